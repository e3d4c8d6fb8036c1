"""A reply while it is arriving, whatever the protocol: what has been said so far, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.inference.completion import (
    Completion,
    FinishReason,
    TokenLogprob,
    Usage,
    inter_token_latency,
)
from harness.inference.phases import ServerTimings, call_phases
from harness.inference.reasoning import ReasoningSplitter, split_unopened
from harness.inference.request import ChatRequest
from harness.trace import Clock


class ReplyInProgress:
    """Gathers the pieces of one reply.

    Args:
        request: What is being answered.
        clock: The caller's clock; the request is taken to be sent now.
        arrived: Told that a piece has come, for the time limits.
    """

    def __init__(
        self, request: ChatRequest, *, clock: Clock, arrived: Callable[[], None] | None = None
    ) -> None:
        self._request = request
        self._clock = clock
        self._arrived = arrived
        self._splitter = ReasoningSplitter()
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._token_ns: list[int] = []
        self._ended_ns: int | None = None
        self._came_whole = False
        self._comes_apart = False
        self._sent_ns = clock()

    def add(
        self, text: str = "", *, reasoning: str = "", logprobs: Sequence[TokenLogprob] = ()
    ) -> None:
        """A piece has arrived."""
        if logprobs:
            self._logprobs.extend(logprobs)
        if not (text or reasoning):
            return
        self._token_ns.append(self._clock())
        if self._arrived:
            self._arrived()
        if self._request.on_piece:
            self._request.on_piece()
        self._take_in(text, reasoning)

    def add_whole(self, text: str, *, reasoning: str = "") -> None:
        """All of the reply is here in one piece: there was no first token to be seen."""
        self._came_whole = True
        self._take_in(text, reasoning)

    def end(self) -> None:
        """Generation is over.

        The last tokens may have had no text: the end of a word, or of the reply. And what the
        server tells afterwards is not part of it.
        """
        self._ended_ns = self._clock()

    def completion(
        self,
        *,
        finish_reason: FinishReason,
        usage: Usage | None,
        model_id: str,
        reported: ServerTimings | None = None,
        dropped: tuple[str, ...] = (),
        attempts: int = 1,
        cost_usd: float | None = None,
    ) -> Completion:
        """The completion, now that the reply has ended as it should."""
        self._split(*self._splitter.rest())
        text, unopened = "".join(self._text), ""
        if not self._reasoning:
            unopened, text = split_unopened(text)
        done_ns = self._clock() if self._ended_ns is None else self._ended_ns
        first_token_ns = self._token_ns[0] if self._token_ns else None
        phases = call_phases(
            sent_ns=self._sent_ns,
            first_token_ns=first_token_ns,
            done_ns=done_ns,
            reported=reported,
            came_whole=self._came_whole,
        )
        if self._came_whole and reported and reported.decode_ns is not None:
            first_token_ns = max(self._sent_ns, done_ns - reported.decode_ns)
        return Completion(
            text=text,
            reasoning="".join(self._reasoning) + unopened,
            finish_reason=finish_reason,
            usage=usage,
            sent_ns=self._sent_ns,
            first_token_ns=first_token_ns,
            phases=phases,
            model_id=model_id,
            itl=inter_token_latency(self._token_ns),
            cost_usd=cost_usd,
            logprobs=tuple(self._logprobs),
            dropped=dropped,
            attempts=attempts,
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
            if self._request.on_text:
                self._request.on_text(answer)
