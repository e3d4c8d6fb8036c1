"""A reply as it arrives, in any protocol: its text and calls so far, and when each piece came."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from typing import Any

from harness.errors import ReplyInvalid
from harness.inference.completion import (
    Completion,
    FinishReason,
    Phase,
    PhaseName,
    PhaseSource,
    Usage,
    inter_token_latency,
)
from harness.inference.json_text import parsed
from harness.inference.marks import MarkSplitter, calls_in, split_whole
from harness.inference.request import ChatRequest, Message, ToolCall, ToolSpec, called_names
from harness.inference.time_limits import Arrived
from harness.trace import Clock


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A whole call of a tool, or a part of one, as one piece of a reply has it."""

    index: int | None
    """The number of its call in the reply; None if the server does not number calls."""
    id: str
    name: str
    arguments: str
    extra: Mapping[str, object] = field(default_factory=dict)


class ReplyInProgress:
    """Gathers the pieces of one reply; calls `arrived` for each, for the time limits."""

    def __init__(
        self, request: ChatRequest, *, clock: Clock, arrived: Arrived | None = None
    ) -> None:
        self.request = request
        self.stops = StopTexts(())  # those of a request whose server was not sent them
        self._clock = clock
        self._arrived = arrived
        self._splitter = MarkSplitter()
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[CallPiece] = []
        self._token_ns: list[int] = []
        self._ended_ns: int | None = None
        self._came_whole = False
        self._sent_ns = clock()  # unless `sent` is called

    @property
    def was_heard(self) -> bool:
        """Whether `on_text` was given anything of the answer."""
        return self.request.on_text is not None and bool(self._text)

    def sent(self) -> None:
        """Notes that the request has left, now that it is connected and handed over."""
        self._sent_ns = self._clock()

    def add(
        self,
        text: str = "",
        *,
        reasoning: str = "",
        calls: Sequence[CallPiece] = (),
        is_whole: bool = False,
    ) -> None:
        """Adds a piece that has arrived; `is_whole` says that it is the whole reply."""
        if is_whole:
            self._came_whole = True  # so the time of its first token is not known
        # A piece with neither, such as a first one with the role alone, is no token.
        elif text or reasoning or calls:
            self._token_ns.append(self._clock())
            if self._arrived:
                self._arrived()
            if self.request.on_piece:
                self.request.on_piece()
        self._calls.extend(calls)
        if reasoning:
            self._splitter.apart.append(reasoning)
            self._reasoning.append(reasoning)
        if text:
            self._append(*self._splitter.feed(text))

    def end(self) -> None:
        """Notes that generation is over."""
        # The last piece may have come earlier, since the last tokens may have no text, such as the
        # end of the reply. Usage that the server sends afterwards is no part of generation.
        self._ended_ns = self._clock()

    def completion(
        self,
        *,
        finish_reason: FinishReason,
        usage: Usage | None,
        model_id: str,
        reported: ServerTimings | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> Completion:
        """The completion, now that the reply has ended as it should."""
        self._append(*self._splitter.rest())
        self._tell(self.stops.held_back)
        finish_reason = "stop" if self.stops.has_ended else finish_reason
        tools = self.request.tools
        # What no piece could show: reasoning and calls that the whole text tells from the answer.
        text, reasoning = "".join(self._text), "".join(self._reasoning)
        calls_text = self._splitter.calls
        if not calls_text:
            thought, text, calls_text = split_whole(text, reasoning=reasoning, tools=tools)
            reasoning = reasoning or thought
        if calls_text and not self._calls:
            self._calls = [CallPiece(None, "", *call) for call in calls_in(calls_text, tools)]
        calls = tool_calls(self._calls, self.request.messages, tools)
        if calls and finish_reason == "stop":
            finish_reason = "tool_calls"  # Ollama says "stop" here, and vLLM for required calls
        done_ns = self._clock() if self._ended_ns is None else self._ended_ns
        first_token_ns = self._token_ns[0] if self._token_ns else None
        reported = reported and reported.within(done_ns - self._sent_ns)
        phases = call_phases(
            sent_ns=self._sent_ns,
            first_token_ns=first_token_ns,
            done_ns=done_ns,
            reported=reported,
            came_whole=self._came_whole,
        )
        if self._came_whole and reported and reported.decode_ns is not None:
            # Nobody saw the first token; the server says how long ago it was.
            first_token_ns = max(self._sent_ns, done_ns - reported.decode_ns)
        return Completion(
            text=_repaired(text),
            reasoning=_repaired(reasoning),
            finish_reason=finish_reason,
            tool_calls=calls,
            tools="native" if tools else None,
            usage=usage,
            sent_ns=self._sent_ns,
            first_token_ns=first_token_ns,
            phases=phases,
            model_id=model_id,
            itl=inter_token_latency(self._token_ns),
            extra=extra or {},
        )

    def refused_calls(self, refusal: ReplyInvalid, *, model_id: str) -> Completion:
        """The calls that a refusal quotes, as if left in the text; raises it if it has none."""
        self.add(refusal.text, is_whole=True)
        reply = self.completion(finish_reason="stop", usage=None, model_id=model_id)
        if not reply.tool_calls:
            raise refusal
        return reply

    def _append(self, reasoning: str, answer: str) -> None:
        if reasoning:
            self._reasoning.append(reasoning)
        self._tell(self.stops.feed(answer))

    def _tell(self, answer: str) -> None:
        if answer:
            self._text.append(answer)
            if self.request.on_text:
                self.request.on_text(answer)


class StopTexts:
    """Ends a text that comes in pieces before the first stop text in it."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self.held_back = ""  # to be given if no further piece comes
        self.has_ended = False

    def feed(self, piece: str) -> str:
        """Takes a piece; returns the text that it adds, less an end that may begin a stop text."""
        if self.has_ended:
            return ""
        text = self.held_back + piece
        if ends := [text.find(stop) for stop in self._stops if stop in text]:
            self.has_ended, self.held_back = True, ""
            return text[: min(ends)]
        begun = (n for stop in self._stops for n in range(len(stop)) if text.endswith(stop[:n]))
        safe_end = len(text) - max(begun, default=0)
        self.held_back = text[safe_end:]
        return text[:safe_end]


def _repaired(text: str) -> str:
    """The text with surrogate pairs joined, and `\ufffd` for a half that stands alone."""
    # The halves of a letter may come in two pieces. Half a letter cannot be sent or written.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def as_count(value: Any) -> int | None:  # noqa: ANN401 - JSON
    """A number of tokens or nanoseconds that a server reports; -1 if it is no whole number."""
    if value is None:
        return None
    is_whole = isinstance(value, float) and value.is_integer()
    is_text = isinstance(value, str) and value.isdecimal() and len(value) < 20
    # `possible` leaves -1 out; an error would lose the reply.
    return int(value) if is_whole or is_text or type(value) is int else -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTimings:
    """The times of a call that its server reports; None for those that it does not."""

    queue_ns: int | None = None
    load_ns: int | None = None
    """How long the model took to load for the call."""
    prefill_ns: int | None = None
    """How long the prompt took, without its part from a cache."""
    decode_ns: int | None = None

    def within(self, call_ns: int) -> ServerTimings:
        """Without durations that a call of this length cannot have, if clocks differ by a half."""
        most_ns = call_ns + max(call_ns // 2, 1_000_000_000)
        times = asdict(self).items()
        return ServerTimings(**{n: ns for n, ns in times if ns is not None and 0 <= ns <= most_ns})


def call_phases(
    *,
    sent_ns: int,
    first_token_ns: int | None,
    done_ns: int,
    reported: ServerTimings | None = None,
    came_whole: bool = False,
) -> tuple[Phase, ...]:
    """The phases of a call, back to back from `sent_ns` to `done_ns`.

    Decoding is measured, from the first token to the last. For a reply that came in one piece, it
    is the time that the server reports, or else all time that no other phase is reported to take.

    The time before it is split by the server's report. The remainder is one more phase, marked as
    derived: overhead, if queueing and prefill were reported (vLLM); queueing, if prefill alone was
    (llama-server, Ollama); otherwise prefill, even if queueing was reported (TGI). Without a
    report, all of it counts as prefill, and a queue may hide in it.
    """
    times = reported or ServerTimings()
    decoding: PhaseSource = "measured"
    first_ns = done_ns if first_token_ns is None else first_token_ns
    is_unseen = first_token_ns is None and came_whole
    if is_unseen and times.decode_ns is not None:
        first_ns, decoding = max(sent_ns, done_ns - times.decode_ns), "reported"
    elif is_unseen:
        before_ns = (times.queue_ns or 0) + (times.load_ns or 0) + (times.prefill_ns or 0)
        first_ns, decoding = min(done_ns, sent_ns + before_ns), "derived"
    phases = (
        *_before_first_token(sent_ns, first_ns, times),
        Phase(name="decode", start_ns=first_ns, end_ns=done_ns, source=decoding),
    )
    return tuple(phase for phase in phases if phase.end_ns > phase.start_ns)


def _before_first_token(sent_ns: int, first_ns: int, times: ServerTimings) -> Iterator[Phase]:
    """The phases from `sent_ns` to `first_ns`, in order."""
    queue_ns, load_ns, prefill_ns = times.queue_ns or 0, times.load_ns or 0, times.prefill_ns
    remainder: PhaseName = "queue" if None in (times.queue_ns, prefill_ns) else "overhead"
    prefilling: PhaseSource = "derived" if prefill_ns is None else "reported"
    if prefill_ns is None:
        prefill_ns = max(0, first_ns - sent_ns - queue_ns - load_ns)
    # Backward from the first token, since time that the server does not report lies at the call's
    # beginning. No phase reaches beyond the call: the network's delay may make clocks disagree.
    backwards: tuple[tuple[PhaseName, int, PhaseSource], ...] = (
        ("prefill", prefill_ns, prefilling),
        ("load", load_ns, "reported"),
        ("queue", queue_ns, "reported"),
        (remainder, first_ns - sent_ns, "derived"),
    )
    end_ns = first_ns
    phases: list[Phase] = []
    for name, duration_ns, source in backwards:
        start_ns = max(sent_ns, end_ns - duration_ns)
        phases.append(Phase(name=name, start_ns=start_ns, end_ns=end_ns, source=source))
        end_ns = start_ns
    return reversed(phases)


# --- calls in pieces --------------------------------------------------------------------------
# Servers number, name and repeat the pieces in many ways. Those handled here stand in public
# reports of streams from Ollama's cloud, Nebius, Cerebras, Gemini's proxies, vLLM and others.

# A tool's name, with what models write around it: blanks, a namespace, a number, marks.
_NAME = re.compile(r"\A\s*(?:[\w-]+[.:])*?([\w-]+)(?::\d+)?\s*(?:<[|\uff5c].*)?\Z", re.DOTALL)


def tool_calls(
    pieces: Iterable[CallPiece], messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
) -> tuple[ToolCall, ...]:
    """The calls that these pieces make up, with ids that are new to the conversation."""
    offered = {tool.name for tool in tools}
    calls: list[CallPiece] = []  # each is joined from all its pieces so far
    for piece in pieces:
        n = _place(calls, piece, offered)
        if n == len(calls):
            calls.append(piece)
        else:
            calls[n] = _joined(calls[n], piece)
    used_ids = {*called_names(messages)}
    # Mistral's servers take nine letters and digits alone.
    new_ids = (new for new in map("call{:05}".format, count(1)) if new not in used_ids)
    complete: list[ToolCall] = []
    for call in calls:
        id_ = call.id if call.id and call.id not in used_ids else next(new_ids)
        used_ids.add(id_)
        bare_name = _NAME.sub(r"\1", call.name)
        name = next((name for name in (call.name, bare_name) if name in offered), call.name)
        complete.append(ToolCall(id_, name, call.arguments or "{}", call.extra))
    return tuple(complete)


def _place(calls: Sequence[CallPiece], piece: CallPiece, offered: Set[str]) -> int:
    """The position in `calls` of the call that a piece continues; their number if it begins one."""
    latest_first = range(len(calls) - 1, -1, -1)
    same_index = (n for n in latest_first if piece.index in {None, calls[n].index})
    if not piece.name:
        # A call has a name, so this piece continues one, whatever its index says: some servers
        # count the pieces there, others give index 0 to all calls, but not to their last pieces.
        likely = [*same_index, *latest_first]
        same_id = [n for n in likely if piece.id and piece.id == calls[n].id]
        return next(iter(same_id or likely), len(calls))
    n = next(same_index, len(calls))
    if n == len(calls) or (piece.id and calls[n].id not in {"", piece.id}):
        return len(calls)
    call = calls[n]
    # Some servers send a name in pieces.
    name = _NAME.sub(r"\1", call.name + piece.name)
    is_in_pieces = not call.arguments and any(tool.startswith(name) for tool in offered)
    if not call.name or (is_in_pieces and piece.name not in offered):
        return n
    if piece.name != call.name or (piece.index is None and not piece.id):
        return len(calls)
    # Some servers repeat the name with each piece, others send a further call of the same tool
    # under the same index or id. Only the latter begins an object where one is complete.
    begins = piece.arguments.startswith("{") and piece.arguments != call.arguments
    is_empty = bool(piece.id) and call.arguments == "{}"  # it stands for no arguments yet
    return len(calls) if begins and not is_empty and parsed(call.arguments) is not None else n


def _joined(call: CallPiece, piece: CallPiece) -> CallPiece:
    # JSON never continues with its own beginning. An empty object stands for no arguments yet.
    is_again = call.arguments == "{}" or piece.arguments.startswith(call.arguments)
    is_all = is_again and piece.arguments.startswith("{")
    return replace(
        call,
        id=call.id or piece.id,
        name=call.name if piece.name == call.name else call.name + piece.name,
        arguments=piece.arguments if is_all else call.arguments + piece.arguments,
        extra={**call.extra, **piece.extra},
    )
