"""The calls of tools that the pieces of a reply make up.

Servers number, name and repeat the pieces in many ways. Those that are handled here stand in public
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
    """A whole call of a tool, or a part of one, as one piece of a reply has it."""

    index: int | None
    """The number of its call in the reply; None if the server does not number calls."""
    id: str
    name: str
    arguments: str
    extra: Mapping[str, object] = field(default_factory=dict)


def tool_calls(
    pieces: Iterable[CallPiece], messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
) -> tuple[ToolCall, ...]:
    """The calls that these pieces make up, with ids that are new to the conversation."""
    calls: list[CallPiece] = []  # each is joined from all its pieces so far
    for piece in pieces:
        number = _continued_call(calls, piece)
        if number is None:
            calls.append(piece)
        else:
            calls[number] = _joined(calls[number], piece)
    offered = {tool.name for tool in tools}
    used_ids = {*called_names(messages)}
    complete: list[ToolCall] = []
    for call in calls:
        id_ = call.id
        if not id_ or id_ in used_ids:
            # Mistral's servers take nine letters and digits alone.
            id_ = next(new for new in map("call{:05}".format, count(1)) if new not in used_ids)
        used_ids.add(id_)
        # Some models write blanks or a namespace before the name of a tool.
        bare_name = call.name.strip().rpartition(".")[2]
        name = bare_name if call.name not in offered and bare_name in offered else call.name
        complete.append(ToolCall(id_, name, call.arguments or "{}", call.extra))
    return tuple(complete)


def _continued_call(calls: Sequence[CallPiece], piece: CallPiece) -> int | None:
    """The position in `calls` of the call that a piece continues; None if it begins a call."""
    same_index = [n for n, call in enumerate(calls) if piece.index in {None, call.index}]
    if not piece.name:
        # A call has a name, so this piece continues one, whatever its index says: some servers
        # count the pieces there, others give index 0 to all calls, but not to their last pieces.
        same_id = [n for n, call in enumerate(calls) if piece.id and piece.id == call.id]
        candidates = same_id or same_index or range(len(calls))
        return candidates[-1] if candidates else None
    if not same_index:
        return None
    call = calls[same_index[-1]]
    if piece.id or not call.name:
        continues = piece.id in {"", call.id} or not call.id
    elif piece.index is None or piece.name != call.name:
        continues = False
    else:
        # Some servers repeat the name with each piece, others send a further call of the same tool
        # under the same index. Only the latter begins an object where one is complete.
        begins = piece.arguments.startswith("{") and piece.arguments != call.arguments
        is_complete = parsed(call.arguments) is not None
        continues = not (begins and is_complete)
    return same_index[-1] if continues else None


def _joined(call: CallPiece, piece: CallPiece) -> CallPiece:
    # JSON never continues with its own beginning, so such a piece repeats all arguments so far.
    is_repeated = call.arguments.startswith("{") and piece.arguments.startswith(call.arguments)
    # An empty object stands for no arguments yet.
    is_first = call.arguments == "{}" and piece.arguments.startswith("{")
    replaces = is_repeated or is_first
    return replace(
        call,
        id=call.id or piece.id,
        name=call.name or piece.name,
        arguments=piece.arguments if replaces else call.arguments + piece.arguments,
        extra={**call.extra, **piece.extra},
    )
