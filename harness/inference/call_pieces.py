"""The calls of tools that the pieces of a reply make up.

Servers number, name and repeat the pieces in ways of their own; those met here were seen in public
reports of streams from Ollama's cloud, Nebius, Cerebras, Gemini's proxies, vLLM and others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from harness.inference.json_text import parsed
from harness.inference.request import Message, ToolCall, ToolSpec, called_names


@dataclass(frozen=True, slots=True)
class CallPiece:
    """What a piece of a reply adds to its calls of tools: a whole call, or some of one."""

    index: int | None
    """Which call it belongs to, where the server numbers them."""
    id: str
    name: str
    arguments: str
    extra: Mapping[str, object] = field(default_factory=dict)


def tool_calls(
    pieces: Iterable[CallPiece], messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
) -> tuple[ToolCall, ...]:
    """The calls that these pieces make up, with ids that are new to the conversation."""
    calls: list[CallPiece] = []
    for piece in pieces:
        if (place := _place(calls, piece)) is None:
            calls.append(piece)
        else:
            calls[place] = _joined(calls[place], piece)
    names, used = {tool.name for tool in tools}, {*called_names(messages)}
    complete: list[ToolCall] = []
    for call in calls:
        id_ = call.id
        if not id_ or id_ in used:
            id_ = next(free for n in count(1) if (free := f"call_{n}") not in used)
        used.add(id_)
        name = _offered(call.name, names)
        complete.append(ToolCall(id_, name, call.arguments or "{}", call.extra))
    return tuple(complete)


def _place(calls: Sequence[CallPiece], piece: CallPiece) -> int | None:
    """Where in `calls` the one stands that a piece goes on; None for one that begins a call."""
    numbered = [n for n, call in enumerate(calls) if piece.index in {None, call.index}]
    same_id = [n for n, call in enumerate(calls) if piece.id and piece.id == call.id]
    if not piece.name:
        # Whatever its number says: a call without a name is none. Some servers count their pieces,
        # others number all calls 0 but for their ends.
        return next(reversed(same_id or numbered or range(len(calls))), None)
    if not numbered:
        return None
    begun = calls[numbered[-1]]
    if piece.id or not begun.name:
        goes_on = piece.id in {"", begun.id} or not begun.id
    else:  # the name may come with each piece, and so may a further call of the same tool
        begins = piece.arguments.startswith("{") and piece.arguments != begun.arguments
        is_whole = parsed(begun.arguments.encode("utf-8", "replace")) is not None
        is_further = begins and is_whole
        goes_on = piece.index is not None and piece.name == begun.name and not is_further
    return numbered[-1] if goes_on else None


def _joined(call: CallPiece, piece: CallPiece) -> CallPiece:
    begun, more = call.arguments, piece.arguments
    # No JSON goes on with its own beginning: such a piece repeats all of it so far. An empty
    # object stands for no arguments yet.
    is_again = begun.startswith("{") and more.startswith(begun)
    is_first = begun == "{}" and more.startswith("{")
    return replace(
        call,
        id=call.id or piece.id,
        name=call.name or piece.name,
        arguments=more if is_again or is_first else begun + more,
        extra={**call.extra, **piece.extra},
    )


def _offered(name: str, names: set[str]) -> str:
    """The name of the tool that is meant: some models write its namespace before it, or blanks."""
    last = name.strip().rpartition(".")[2]
    return last if name not in names and last in names else name
