"""The client: `Client.call` takes each model call from the limits to the provider and back."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, Protocol

from harness.errors import (
    ConfigurationInvalid,
    ContextOverflow,
    HarnessError,
    LimitReached,
    ServerError,
    did_you_mean,
)
from harness.inference.backend import Backend
from harness.inference.call_spans import KvBytes, call_span, heard, record_answer
from harness.inference.completion import Completion, Embeddings
from harness.inference.endpoint import Endpoint
from harness.inference.gate import Gate
from harness.inference.meter import Admission, Meter, Sending
from harness.inference.reply_in_progress import Listener
from harness.inference.reply_store import KeptReplies, ReplyCache, Slot
from harness.inference.request import ChatRequest, EmbedRequest, Request
from harness.inference.retry import another_may_answer, retry_delay_s
from harness.inference.structured import SchemaKnowledge
from harness.inference.time_limits import Deadline, timed_out
from harness.inference.tool_offers import ToolKnowledge, check_typed, read_offered
from harness.trace import Span, Tracer


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The way to one endpoint's model."""

    endpoint: Endpoint
    backend: Backend
    """Not closed by the client."""
    gate: Gate
    others: tuple[Backend, ...] = ()
    """Of the endpoint's further replicas, in the order that the gate has them."""
    schemas: SchemaKnowledge | None = None
    """How its server treats schemas; None if that is not tested."""
    tools: ToolKnowledge | None = None
    """How its server treats tools; None if they are simply passed on."""
    identity: str | None = None
    """The key of its cached replies; None for no cache."""
    kv_bytes: KvBytes | None = None
    """None if the exact size of its model's cache is unknown."""
    error: HarnessError | None = None
    """The endpoint's error, raised by every call to it; None if it can be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The source of a call."""

    label: str | None = None
    """The node's call, by which its replies are kept for a resume: `findings[2]`."""
    sending: Callable[[], AbstractContextManager[object]] = nullcontext
    """Entered while a request is with its server."""


ANY_CALLER = Caller()


class Watch(Protocol):
    """Looks at the calls of a run, and may refuse them."""

    def before(self) -> None:
        """Raises if no further call may be made."""
        ...

    def look_at(self, request: ChatRequest, completion: Completion) -> None:
        """Raises if this reply may not be used."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Calls models by the tags of their endpoints; `call` shows all steps of a call."""

    lines: Mapping[str, Line]
    """By tag. Every tag in an endpoint's `fallback` must be among them."""
    tracer: Tracer
    """Records every call; its clock also serves all deadlines."""
    cache: ReplyCache | None = None
    meter: Meter | None = None
    replies: KeptReplies | None = None
    watch: Watch | None = None
    randomness: random.Random = field(default_factory=random.Random)
    """Draws the jitter of waits between attempts."""

    def chat(
        self, request: ChatRequest, *, caller: Caller = ANY_CALLER
    ) -> Coroutine[Any, Any, Completion]:
        """One reply, whole.

        Raises:
            ConfigurationInvalid: No endpoint has the request's tag.
            RunLimitReached: The meter's limits leave no room for it.
            InferenceError: There is no reply.
        """
        return self.call(request, caller=caller)

    def embed(
        self, request: EmbedRequest, *, caller: Caller = ANY_CALLER
    ) -> Coroutine[Any, Any, Embeddings]:
        """One vector per text; raises as `chat` does, and `NotOffered`."""
        return self.call(request, caller=caller)

    async def call(self, request: Request, *, caller: Caller = ANY_CALLER) -> Any:  # noqa: ANN401
        """The answer to one call: a `Completion`, or `Embeddings`.

        1. Replay: a reply that an earlier part of the run got to the same call of the same node.
        2. Limits: the meter reserves what the call may take, or refuses it.
        3. Retry and fallback, within one deadline. Each attempt is a span; a reply in the cache
           ends it (`_insist`, `_attempt`).
        4. Gate: a place among the endpoint's calls, the model in memory, room in the meter.
        5. Provider: the request is sent (`_send`).
        6. Record: the span gets phases and usage, the meter what was taken, and the reply is kept
           for a resume.
        """
        self._line(request.model)
        async with self._slot(request, caller) as slot:
            # 1. Replay
            if slot.known is not None:
                return slot.known
            if self.watch is not None:
                self.watch.before()
            while True:
                # 2. Limits
                async with self._admitted(request) as admission:
                    asked = request if admission is None else admission.request
                    try:
                        # 3. to 5.
                        answer = await self._insist(asked, admission, caller)
                    except ContextOverflow as error:
                        if not self._gets_less_room(admission, error):
                            raise
                    else:
                        break
            # 6. Record
            if isinstance(request, ChatRequest):
                slot.reply = answer = self._looked_at(request, answer, admission)
            return answer

    async def _insist(
        self, request: Request, admission: Admission[Any] | None, caller: Caller
    ) -> Any:  # noqa: ANN401
        """Asks until there is an answer or no way to one; raises the first endpoint's last error.

        A listener that heard a part of one answer gets no other.
        """
        whole = Deadline(request.timeout_s or math.inf, clock=self.tracer.now_ns)
        listener = Listener(request) if isinstance(request, ChatRequest) else None
        asked: Request = request if listener is None else listener.request
        lines = self._lines(request)
        tried: list[tuple[str, HarnessError]] = []
        try:
            for line in lines:
                tag, limit_s = line.endpoint.tag, line.endpoint.timeout_s
                deadline = Deadline(limit_s, clock=self.tracer.now_ns, outer=whole)
                call = _Call(line, admission, caller, deadline)
                moves = 0
                if tried:
                    self._instant("fallback", *tried[-1], to=tag)
                    asked = replace(asked, model=tag)
                for attempt in count(1):
                    failed_before = len(call.tried)
                    try:
                        answer = await self._attempt(asked, call)
                    except HarnessError as error:
                        if listener is not None and listener.told:
                            raise
                        delay_s = self._delay_s(error, attempt - moves, call)
                        if failed_before < len(call.tried) <= len(line.others):
                            moves, delay_s = moves + 1, 0.0  # another replica is asked at once
                        else:
                            call.tried.clear()
                        if delay_s is None:
                            if not _another_is_asked(error, lines, is_first=not tried):
                                raise
                            tried.append((tag, error))
                            break
                        self._instant("retry", tag, error, attempt=attempt, delay_s=delay_s)
                    else:
                        return replace(answer, endpoint=tag) if tried else answer
                    await asyncio.sleep(delay_s)
            raise _all_failed(tried)
        finally:
            tried.clear()  # its errors hold this frame, which would hold them

    async def _attempt(self, request: Request, call: _Call) -> Any:  # noqa: ANN401
        """One attempt at one endpoint, in a span of its own."""
        with call_span(request, self.tracer) as span:
            if isinstance(request, ChatRequest):
                self.tracer.flow("call", source=span.parent, target=span.id)
                request = heard(request, span)
            if not isinstance(request, ChatRequest):
                answer = await self._send(request, call, span)
            elif (known := await self._cached(request, call.line)) is not None:
                answer = known
            else:
                schemas, tools, mode = call.line.schemas, call.line.tools, None
                ask, offered = partial(self._send, call=call, span=span), request
                while True:
                    if tools is not None:
                        offered = await tools.offer(request, ask, tracer=self.tracer)
                    wanted = offered
                    if offered.reply_schema is not None and schemas is not None:
                        wanted, mode = await schemas.fit(offered, ask, tracer=self.tracer)
                    try:
                        answer = await self._send(wanted, call, span)
                        break
                    except ServerError as error:
                        if tools is not None and tools.learn(error, wanted):
                            continue
                        if mode is None or schemas is None or not schemas.learn(error):
                            raise
                answer = answer if mode is None else replace(answer, structured=mode)
                answer = read_offered(request, offered, answer)
                if self.cache is not None and call.line.identity is not None:
                    self.cache.keep(request, answer, identity=call.line.identity)
            record_answer(answer, span, kv_bytes=call.line.kv_bytes)
            if isinstance(request, ChatRequest):
                check_typed(request, answer)
            return answer

    async def _send(self, request: Request, call: _Call, span: Span) -> Any:  # noqa: ANN401
        """One request, once the gate and the meter let it through; its time begins here."""
        line, deadline = call.line, call.deadline
        if line.error is not None:
            # Else each call would leave its frames in the one error, and what they hold with them.
            raise line.error.with_traceback(None)
        # 4. Gate
        async with (
            line.gate.passed(request, tried=call.tried) as place,
            self._metered(request, call) as sending,
        ):
            if place.name:
                span.set(replica=place.name, replica_reason=place.reason)
            sent = request if sending is None else sending.request
            deadline.begin()
            left_s = deadline.left_s
            if left_s <= 0:
                raise timed_out("timeout_s", line.endpoint)
            if left_s < math.inf:
                sent = replace(sent, timeout_s=left_s)
            # 5. Provider
            with call.caller.sending():
                answer = await _asked((line.backend, *line.others)[place.replica], sent)
            if sending is not None:
                sending.answer = answer
            return answer

    def _line(self, tag: str) -> Line:
        line = self.lines.get(tag)
        if line is None:
            raise ConfigurationInvalid(
                f"no endpoint is called '{tag}'; " + did_you_mean(tag, self.lines),
                code="endpoint.unknown",
            )
        return line

    def _lines(self, request: Request) -> Sequence[Line]:
        """The endpoints to ask, in order. Another model's vectors are of no use."""
        line = self._line(request.model)
        others = line.endpoint.fallback if isinstance(request, ChatRequest) else ()
        return (line, *(self.lines[tag] for tag in others))

    def _slot(self, request: Request, caller: Caller) -> AbstractAsyncContextManager[Slot]:
        if self.replies is None or caller.label is None or not isinstance(request, ChatRequest):
            return nullcontext(Slot())
        return self.replies.slot(request, label=caller.label)

    def _admitted(self, request: Request) -> AbstractAsyncContextManager[Admission[Any] | None]:
        if self.meter is None:
            return nullcontext()
        return self.meter.admitted(request)

    def _metered(
        self, request: Request, call: _Call
    ) -> AbstractAsyncContextManager[Sending[Any] | None]:
        if self.meter is None or call.admission is None:
            return nullcontext()
        return self.meter.sending(call.admission, request)

    def _gets_less_room(self, admission: Admission[Any] | None, error: ContextOverflow) -> bool:
        """Whether a limit gave the call more room than its context has."""
        if self.meter is None or admission is None:
            return False
        return self.meter.has_less_room(admission, error)

    async def _cached(self, request: ChatRequest, line: Line) -> Completion | None:
        if self.cache is None or line.identity is None:
            return None
        asked_ns = self.tracer.now_ns()
        return await self.cache.find(request, identity=line.identity, asked_ns=asked_ns)

    def _delay_s(self, error: HarnessError, attempt: int, call: _Call) -> float | None:
        return retry_delay_s(
            error,
            attempt=attempt,
            policy=call.line.endpoint.retry,
            jitter=self.randomness.random(),
            left_s=call.deadline.left_s,
        )

    def _instant(self, name: str, tag: str, error: HarnessError, **more: Any) -> None:  # noqa: ANN401
        self.tracer.instant(
            name,
            model=tag,
            reason=type(error).__name__,
            detail=self.tracer.excerpt(str(error)),
            **more,
        )

    def _looked_at(
        self, request: ChatRequest, reply: Completion, admission: Admission[Any] | None
    ) -> Completion:
        if self.watch is not None:
            self.watch.look_at(request, reply)
        if self.meter is None or admission is None:
            return reply
        return self.meter.cut_by(admission, reply)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call on its way to one endpoint."""

    line: Line
    admission: Admission[Any] | None
    caller: Caller
    deadline: Deadline
    tried: set[int] = field(default_factory=set)
    """The endpoint's replicas that have failed it."""


def _another_is_asked(error: HarnessError, lines: Sequence[Line], *, is_first: bool) -> bool:
    """Whether the next endpoint is asked after this error.

    After the first endpoint, only if that was unable to answer; after a stand-in, always but at a
    limit.
    """
    if is_first:
        return len(lines) > 1 and another_may_answer(error)
    return not isinstance(error, LimitReached)


def _all_failed(tried: Sequence[tuple[str, HarnessError]]) -> HarnessError:
    """The first endpoint's error, with the others' as its notes."""
    (_, first), *others = tried
    for tag, error in others:
        first.add_note(f"'{tag}', asked instead: {type(error).__name__}: {error}")
    return first


def _asked(backend: Backend, request: Request) -> Awaitable[Any]:
    if isinstance(request, ChatRequest):
        return backend.chat(request)
    return backend.embed(request)
