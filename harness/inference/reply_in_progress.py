"""A reply as it arrives, in any protocol: its text so far, and when each piece came."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.inference.call_pieces import CallPiece, tool_calls
from harness.inference.completion import (
    Completion,
    FinishReason,
    Phase,
    PhaseName,
    PhaseSource,
    Usage,
    inter_token_latency,
    is_visible,
)
from harness.inference.marks import MarkSplitter, calls_in, split_whole
from harness.inference.request import ChatRequest
from harness.trace import Clock


class ReplyInProgress:
    """Gathers the pieces of one reply; `arrived` hears of each, for the time limits."""

    def __init__(
        self, request: ChatRequest, *, clock: Clock, arrived: Callable[[], None] | None = None
    ) -> None:
        self.request = request
        self.was_heard = False
        """Whether a listener has any of the answer."""
        self._clock = clock
        self._arrived = arrived
        self._splitter = MarkSplitter()
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[CallPiece] = []
        self._token_ns: list[int] = []
        self._ended_ns: int | None = None
        self._came_whole = False
        self._comes_apart = False
        self._sent_ns = clock()  # unless `sent` is called

    def sent(self) -> None:
        """The request has left: it took until now to connect and to hand it over."""
        self._sent_ns = self._clock()

    def add(
        self,
        text: str = "",
        *,
        reasoning: str = "",
        calls: Sequence[CallPiece] = (),
        is_whole: bool = False,
    ) -> None:
        """A piece has arrived, or all of the reply is here in one."""
        if is_whole:
            self._came_whole = True  # there was no first token to be seen
        # A first piece with the role alone, say, is no token.
        elif text or reasoning or calls:
            self._token_ns.append(self._clock())
            if self._arrived:
                self._arrived()
            if self.request.on_piece:
                self.request.on_piece()
        self._calls.extend(calls)
        self._take_in(text, reasoning)

    def end(self) -> None:
        """Generation is over."""
        # Not the time of the last piece: the last tokens may have had no text, such as the end of a
        # word or of the reply. What the server tells afterwards is no part of it.
        self._ended_ns = self._clock()

    def completion(
        self,
        *,
        finish_reason: FinishReason,
        usage: Usage | None,
        model_id: str,
        reported: ServerTimings | None = None,
        cost_usd: float | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> Completion:
        """The completion, now that the reply has ended as it should."""
        if not self._comes_apart:
            self._split(*self._splitter.rest())
        text, unopened = "".join(self._text), ""
        marked = self._splitter.calls
        if not marked:
            unopened, text, marked = split_whole(
                text, is_thought_out=bool(self._reasoning), tools=self.request.tools
            )
        done_ns = self._clock() if self._ended_ns is None else self._ended_ns
        first_token_ns = self._token_ns[0] if self._token_ns else None
        if reported is not None:
            reported = reported.within(done_ns - self._sent_ns)
        phases = call_phases(
            sent_ns=self._sent_ns,
            first_token_ns=first_token_ns,
            done_ns=done_ns,
            reported=reported,
            came_whole=self._came_whole,
        )
        if self._came_whole and reported and reported.decode_ns is not None:
            # It was not seen; the server says how long ago it was.
            first_token_ns = max(self._sent_ns, done_ns - reported.decode_ns)
        if marked and not self._calls:
            read = calls_in(marked, self.request.tools)
            self._calls = [CallPiece(None, "", name, arguments) for name, arguments in read]
        calls = tool_calls(self._calls, self.request.messages, self.request.tools)
        if calls and finish_reason == "stop":
            finish_reason = "tool_calls"  # as Ollama says it, and vLLM where a call is required
        return Completion(
            text=_repaired(text),
            reasoning=_repaired("".join(self._reasoning) + unopened),
            finish_reason=finish_reason,
            tool_calls=calls,
            tools="native" if self.request.tools else None,
            usage=usage,
            sent_ns=self._sent_ns,
            first_token_ns=first_token_ns,
            phases=phases,
            model_id=model_id,
            itl=inter_token_latency(self._token_ns),
            cost_usd=cost_usd,
            extra=extra or {},
        )

    def _take_in(self, text: str, reasoning: str) -> None:
        if reasoning:
            if not self._comes_apart:
                # From now on a tag in the answer is one that the answer speaks of.
                self._comes_apart = True
                self._split(*self._splitter.rest())
            self._reasoning.append(reasoning)
        if text:
            self._split(*(("", text) if self._comes_apart else self._splitter.feed(text)))

    def _split(self, reasoning: str, answer: str) -> None:
        if reasoning:
            self._reasoning.append(reasoning)
        if answer:
            self._text.append(answer)
            if self.request.on_text:
                # White space alone does no harm before another attempt's answer.
                self.was_heard = self.was_heard or is_visible(answer)
                self.request.on_text(answer)


def _repaired(text: str) -> str:
    """A letter of two halves may come in two pieces; half a one cannot be sent or written."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def as_count(value: Any) -> int | None:  # noqa: ANN401 - JSON
    """A number of tokens or nanoseconds by a server's word; None if it says none."""
    is_whole = isinstance(value, float) and value.is_integer()
    is_text = isinstance(value, str) and value.isdecimal()
    if value is None or is_whole or is_text or type(value) is int:
        return None if value is None else int(value)
    return -1  # no reply is lost for it: `possible` leaves it out


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTimings:
    """What a server says of a call's time; None for what it does not say."""

    queue_ns: int | None = None
    load_ns: int | None = None
    """How long the model took to load for it."""
    prefill_ns: int | None = None
    """How long the prompt took, as far as it was computed."""
    decode_ns: int | None = None

    def within(self, call_ns: int) -> ServerTimings:
        """Without durations that a call of this length cannot have; clocks may differ by a half."""
        most_ns = call_ns + max(call_ns // 2, _SLACK_NS)
        times = asdict(self).items()
        return ServerTimings(**{n: ns for n, ns in times if ns is not None and 0 <= ns <= most_ns})


_SLACK_NS = 1_000_000_000


def call_phases(
    *,
    sent_ns: int,
    first_token_ns: int | None,
    done_ns: int,
    reported: ServerTimings | None = None,
    came_whole: bool = False,
) -> tuple[Phase, ...]:
    """The phases of a call, back to back from `sent_ns` to `done_ns`.

    Decoding is measured, from the first token to the last. Of a reply that came in one piece it is
    what the server reports, or else all that is not known to be something else.

    What went before it is split by what the server reported, and of what is left over there is one
    phase, marked derived: if queueing and prefill were reported (vLLM), it was overhead; if prefill
    alone (llama-server, Ollama), it was queueing; else, even where queueing was reported (TGI), it
    was prefill. With nothing reported all of it counts as prefill, and a queue may hide in it.
    """
    times = reported or ServerTimings()
    decoding: PhaseSource = "measured"
    if first_token_ns is not None:
        first_ns = first_token_ns
    elif came_whole and times.decode_ns is not None:
        first_ns, decoding = max(sent_ns, done_ns - times.decode_ns), "reported"
    elif came_whole:
        told_ns = (times.queue_ns or 0) + (times.load_ns or 0) + (times.prefill_ns or 0)
        first_ns, decoding = min(done_ns, sent_ns + told_ns), "derived"
    else:
        first_ns = done_ns
    phases = (
        *_before_first_token(sent_ns, first_ns, times),
        Phase(name="decode", start_ns=first_ns, end_ns=done_ns, source=decoding),
    )
    return tuple(phase for phase in phases if phase.end_ns > phase.start_ns)


def _before_first_token(sent_ns: int, first_ns: int, times: ServerTimings) -> Iterator[Phase]:
    # The server's and our clock may disagree by the network's delay: stay inside the call. Backward
    # from the first token: what the server does not tell of lies at the call's beginning.
    queue_ns, load_ns, prefill_ns = times.queue_ns or 0, times.load_ns or 0, times.prefill_ns
    rest: PhaseName = "queue" if None in (times.queue_ns, prefill_ns) else "overhead"
    prefilling: PhaseSource = "derived" if prefill_ns is None else "reported"
    if prefill_ns is None:
        prefill_ns = max(0, first_ns - sent_ns - queue_ns - load_ns)
    stretches: tuple[tuple[PhaseName, int, PhaseSource], ...] = (
        ("prefill", prefill_ns, prefilling),
        ("load", load_ns, "reported"),
        ("queue", queue_ns, "reported"),
        (rest, first_ns - sent_ns, "derived"),
    )
    end_ns, backwards = first_ns, list[Phase]()
    for name, duration_ns, source in stretches:
        start_ns = max(sent_ns, end_ns - duration_ns)
        backwards.append(Phase(name=name, start_ns=start_ns, end_ns=end_ns, source=source))
        end_ns = start_ns
    return reversed(backwards)
