"""The client: `Client.call` takes each model call from the limits to the provider and back."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pydantic import ValidationError

from harness.errors import (
    ConfigurationInvalid,
    ContextOverflow,
    HarnessError,
    InferenceError,
    LimitReached,
    Notice,
    NotOffered,
    ReplyEmpty,
    ServerError,
    did_you_mean,
    errors_of,
)
from harness.inference.answer import check_text, lacks_text, reminded, with_text
from harness.inference.backend import Backend
from harness.inference.call_spans import (
    KvBytes,
    call_span,
    conversation_text,
    record_answer,
    with_trace_listeners,
)
from harness.inference.charges import most_input_tokens
from harness.inference.completion import (
    Completion,
    Embeddings,
    Ranking,
    doubts,
    is_visible,
    possible,
)
from harness.inference.endpoint import Endpoint
from harness.inference.gate import Gate, ReplicaPlace
from harness.inference.health import (
    another_may_answer,
    retry_delay_s,
    turn_delay_s,
    was_connected,
    was_refused,
)
from harness.inference.limits import Limits
from harness.inference.meter import Meter, RoomTaken, Sending
from harness.inference.reply_store import KeptReplies, ReplyCache, Slot
from harness.inference.request import ChatRequest, EmbedRequest, Request, RerankRequest, merged
from harness.inference.structured import SchemaKnowledge, read_fitted
from harness.inference.time_limits import CallTime, timed_out
from harness.inference.tool_offers import ToolKnowledge, check_typed, read_offered
from harness.inference.turns import TurnKnowledge
from harness.trace import Span, Tracer, events
from harness.trace.tracer import span_under_way


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The way to one endpoint's model."""

    endpoint: Endpoint
    # One for each replica, in the gate's order. The client does not close them.
    backends: tuple[Backend, ...]
    gate: Gate
    # How its server treats schemas; None if that is not tested.
    schemas: SchemaKnowledge | None = None
    # How its server treats tools; None if they are simply passed on.
    tools: ToolKnowledge | None = None
    turns: TurnKnowledge = field(default_factory=TurnKnowledge)
    identity: str | None = None  # the key of its cached replies; None for no cache
    kv_bytes: KvBytes | None = None  # None if the exact size of its model's cache is unknown
    # The endpoint's error, raised by every call to it; None if it can be used.
    error: HarnessError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSource:
    """The node's call that makes a model call; without a `label`, it is no node's."""

    # Its name, by which the replies are kept for a resume: `findings[2]`.
    label: str | None = None
    # Entered while a request is with its server.
    sending: Callable[[], AbstractContextManager[object]] = nullcontext


ANY_CALLER = CallSource()


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Calls models by the tags of their endpoints; `call` shows all steps of a call."""

    routes: Mapping[str, Route]  # by tag. Every tag in an endpoint's `fallback` must be among them.
    tracer: Tracer  # records every call; its clock also serves all deadlines
    cache: ReplyCache | None = None
    meter: Meter = field(default_factory=lambda: Meter(limits=Limits(), tracer=Tracer()))
    replies: KeptReplies | None = None
    before_call: Callable[[], None] | None = None  # raises if no further call may be made
    # Raises if this reply may not be used.
    after_reply: Callable[[ChatRequest, Completion], None] | None = None
    # Gets each notice once for each endpoint, such as of impossible counts or of another model.
    warn: Callable[[Notice], None] | None = None
    noticed: set[tuple[str, str]] = field(default_factory=set)  # (tag, code) of each notice so far
    # (tag, replica) → the name of the model that answered last.
    served: dict[tuple[str, int], str] = field(default_factory=dict)
    randomness: random.Random = field(default_factory=random.Random)

    def chat(
        self, request: ChatRequest, *, caller: CallSource = ANY_CALLER
    ) -> Coroutine[Any, Any, Completion]:
        """One reply, whole; raises `InferenceError`, and `RunLimitReached` without room for it."""
        return self.call(request, caller=caller)

    def embed(
        self, request: EmbedRequest, *, caller: CallSource = ANY_CALLER
    ) -> Coroutine[Any, Any, Embeddings]:
        """One vector per text; raises as `chat` does, and `NotOffered`."""
        return self.call(request, caller=caller)

    def rerank(
        self, request: RerankRequest, *, caller: CallSource = ANY_CALLER
    ) -> Coroutine[Any, Any, Ranking]:
        """One score per text; raises as `embed` does."""
        return self.call(request, caller=caller)

    async def call(self, request: Request, *, caller: CallSource = ANY_CALLER) -> Any:  # noqa: ANN401
        """The answer to one call: a `Completion`, `Embeddings` or a `Ranking`.

        1. Replay: a reply that an earlier part of the run got to the same call of the same node.
        2. Retry and fallback, within one time limit. Each attempt is a span; a reply in the cache
           ends it (`_insist`, `_ask_endpoint`).
        3. Limits: the meter reserves what a request may take, or refuses it (`_send`).
        4. Gate: a place among the endpoint's calls, the model in memory.
        5. Provider: the request is sent.
        6. Record: the span gets phases and usage, the meter the use, and a resume the reply.
        """
        # An unknown tag is an error before anything is reserved.
        self._route(request.model)
        async with self._slot(request, caller) as slot:
            # 1. Replay
            stored = slot.stored
            # A stored reply may lack text because the earlier call allowed that.
            if stored and isinstance(request, ChatRequest) and not lacks_text(request, stored):
                return stored
            if self.before_call is not None:
                self.before_call()
            # An endpoint that was down for too long ends the run, also at a call to another.
            for route in self.routes.values():
                route.gate.check()
            # 2. to 5.
            async with self.meter.in_time(request) as request_in_time:
                answer = await self._insist(request_in_time, caller)
            # 6. Record
            if isinstance(request, ChatRequest):
                if self.after_reply is not None:
                    self.after_reply(request, answer)
                slot.reply = answer
            return answer

    async def _insist(self, request: Request, caller: CallSource) -> Any:  # noqa: ANN401
        """The answer of the endpoint or of a fallback; raises the first endpoint's last error."""
        whole_call = CallTime(request.timeout_s or math.inf)
        listener = None
        if isinstance(request, ChatRequest) and request.on_text is not None:
            listener = _Listener(request.on_text)
            request = replace(request, on_text=listener.hear)
        first = self._route(request.model)
        # Vectors and scores of another model cannot be compared with those of the first.
        fallbacks = first.endpoint.fallback if isinstance(request, ChatRequest) else ()
        routes = (first, *(self.routes[tag] for tag in fallbacks))
        failed: list[tuple[str, HarnessError]] = []  # (tag, its last error) of each endpoint
        try:
            for route in routes:
                endpoint, tag = route.endpoint, route.endpoint.tag
                if failed:
                    failed_tag, error = failed[-1]
                    reason = type(error).__name__
                    detail = self.tracer.excerpt(str(error))
                    self.tracer.instant(
                        events.Fallback(model=failed_tag, reason=reason, detail=detail, to=tag)
                    )
                    request = replace(request, model=tag)
                time = CallTime(endpoint.timeout_s, outer=whole_call)
                call = _EndpointCall(request, route, caller, time, may_wait=route is routes[-1])
                try:
                    answer = await self._ask_endpoint(call, listener)
                except HarnessError as error:
                    if failed:
                        # After a fallback, any error but a limit leads to the next one.
                        asks_next = not isinstance(error, LimitReached)
                    else:
                        asks_next = len(routes) > 1 and another_may_answer(error)
                    if not asks_next or (listener and listener.was_heard):
                        raise
                    failed.append((tag, error))
                else:
                    return replace(answer, endpoint=tag) if failed else answer
            (_, first_error), *of_fallbacks = failed
            for tag, its_error in of_fallbacks:
                note = f"'{tag}', asked instead: {type(its_error).__name__}: {its_error}"
                first_error.add_note(note)
            raise first_error
        finally:
            failed.clear()  # the errors hold this frame, which must not hold them

    async def _ask_endpoint(self, call: _EndpointCall, listener: _Listener | None) -> Any:  # noqa: ANN401
        """Makes attempts at one endpoint until it answers; raises the last attempt's error."""
        while True:
            tried_before = len(call.tried)
            try:
                return await self._attempt(call)
            except HarnessError as error:
                _keep_secrets_out_of(error, self.tracer.redactor.clean)
                # A caller that heard a part of this answer must not hear another after it.
                if listener and listener.was_heard:
                    raise
                is_new_replica = len(call.tried) > tried_before
                delay_s = self._retry_delay_s(call, error, is_new_replica=is_new_replica)
                if delay_s is None:
                    raise
            await asyncio.sleep(delay_s)

    def _retry_delay_s(
        self, call: _EndpointCall, error: HarnessError, *, is_new_replica: bool
    ) -> float | None:
        """Prepares the next attempt; returns how long to wait for it, or None to make none.

        Attempts that fail while the endpoint is down or full do not count. `is_new_replica` says
        whether a replica failed that had not failed the call before.
        """
        route, request = call.route, call.request
        retry, gate, attempt = route.endpoint.retry, route.gate, call.attempt
        jitter = self.randomness.random()
        counted = 1  # as how many attempts the failed one counts
        delay_s = retry_delay_s(
            error, attempt=attempt, policy=retry, jitter=jitter, left_s=call.time.left_s
        )
        # 1. After an empty reply, the model is reminded to answer; once, or not again.
        is_empty = isinstance(error, ReplyEmpty) and retry.max_attempts > 1
        if is_empty and isinstance(request, ChatRequest):
            reminder = reminded(request)
            call.request = reminder or request
            delay_s = None if reminder is None else 0.0
        # 2. Another replica is asked at once.
        if is_new_replica and len(call.tried) < len(route.backends):
            delay_s, counted = 0.0, 0
        else:
            call.tried.clear()
            # 3. In an outage, the gate will hold the call until its server is back.
            if not call.may_wait:
                delay_s = None if gate.is_down else delay_s
            elif 0 < route.endpoint.max_outage_s < (getattr(error, "retry_after_s", None) or 0):
                delay_s = None  # the server itself says that waiting is in vain
            elif gate.holds(error, answers=call.answers, is_last=delay_s is None):
                delay_s, counted = 0.0, 0
                call.time.begin_again()  # also each try at a server that is down takes time
            # 4. A server that answered others since the call last failed is only full for a while.
            elif call.answers not in {None, gate.answers}:
                turn_s = turn_delay_s(error, waited_s=call.waited_s, jitter=jitter)
                if turn_s is not None and call.waited_s + turn_s < route.endpoint.max_outage_s:
                    delay_s, counted = turn_s, 0
                    call.waited_s += turn_s
                    call.time.begin_again()
        if delay_s is not None:
            pause = events.RetryEvent(
                model=route.endpoint.tag,
                reason=type(error).__name__,
                detail=self.tracer.excerpt(str(error)),
                attempt=attempt,
                delay_s=delay_s,
            )
            self.tracer.instant(pause)
            call.time.spend(delay_s * counted)
        call.attempt = attempt + counted
        call.answers = gate.answers
        return delay_s

    async def _attempt(self, call: _EndpointCall) -> Any:  # noqa: ANN401
        request, route = call.request, call.route
        if isinstance(request, ChatRequest):
            request = with_defaults(request, route.endpoint)
        with call_span(request, self.tracer) as span:
            if not isinstance(request, ChatRequest):
                answer = await self._send(request, call, span)
                record_answer(answer, span, kv_bytes=route.kv_bytes)
                return answer
            self.tracer.flow("call", source=span.parent, target=span.id)
            request = with_trace_listeners(request, span)
            async with self._cached(request, route) as cached:
                reply = cached.stored or await self._reply(request, call, span)
                # Recorded before the checks: a useless reply has taken time and tokens, too.
                record_answer(reply, span, kv_bytes=route.kv_bytes)
                check_text(request, reply)
                check_typed(request, reply)
                # After the checks: a useless reply is not cached, nor one that a limit cut, be it a
                # loop's: the same call has more room elsewhere.
                is_cut = reply.finish_reason == "length" and call.room is not None
                if cached.stored is None and not is_cut:
                    cached.reply = reply
            return reply

    async def _reply(self, request: ChatRequest, call: _EndpointCall, span: Span) -> Completion:
        """One reply, asked for in a way that the server takes, as its refusals teach."""
        route, ask = call.route, lambda probe: self._send(probe, call, span_under_way() or span)
        refused = 0
        self.meter.check(request)
        while True:
            offered, mode = request, None
            try:
                if route.tools is not None:
                    offered = await route.tools.offer(request, ask, tracer=self.tracer)
                outgoing = offered
                if offered.reply_schema is not None and route.schemas is not None:
                    outgoing, mode = await route.schemas.fit(offered, ask, tracer=self.tracer)
            except BaseException:
                span.set(was_connected=False)  # only a probe was sent, which has its own span
                raise
            outgoing = route.turns.folded(outgoing)
            if outgoing.messages is not request.messages:  # such as a schema in words
                sent = partial(conversation_text, outgoing.messages)
                span.set(prompt_sha256=self.tracer.content(sent))
            try:
                answer = await self._send(outgoing, call, span)
            except ContextOverflow as error:
                # A limit may have given the reply more room than the context has.
                if not self.meter.leaves_less(call.room, outgoing, error):
                    raise
            except ServerError as error:
                # If one of these learns from the refusal, the call is sent in another way.
                tools = route.tools
                schemas = route.schemas if mode is not None else None
                if not (
                    route.turns.learn(error, outgoing)
                    or (tools and tools.learn(error, outgoing))
                    or (schemas and schemas.learn(error, offered, outgoing))
                ):
                    raise
            else:
                self._notice(outgoing.model, *doubts(outgoing, answer))
                answer = read_fitted(offered, outgoing, with_text(offered, answer), mode)
                return with_text(request, read_offered(request, offered, answer))
            refused += 1
            span.set(refused_requests=refused)

    async def _send(self, request: Request, call: _EndpointCall, span: Span) -> Any:  # noqa: ANN401
        """One request, once the meter and the gate let it through."""
        route = call.route
        if route.error is not None:
            # With a traceback, the route's one error would hold the frames of every call.
            raise route.error.with_traceback(None)
        async with self._admitted(request, call) as (sending, place):
            call.room = sending.room
            if call.room is not None:
                span.set(max_output_tokens=call.room)
            if place.name:
                span.set(replica=place.name, replica_reason=place.reason)
            if (left_s := call.time.left_s) <= 0:
                raise timed_out("timeout_s", route.endpoint)
            on_piece = request.on_piece if isinstance(request, ChatRequest) else None

            def piece_came() -> None:
                if place.is_probe:
                    route.gate.note_answer(place)
                sending.pieces += 1
                if on_piece is not None:
                    on_piece()

            changes: dict[str, Any] = {"timeout_s": left_s if left_s < math.inf else None}
            if isinstance(request, ChatRequest):
                changes["on_piece"] = piece_came
            sent = replace(sending.request, **changes)
            # 5. Provider
            sent_ns = self.tracer.now_ns()
            try:
                with errors_of(route.endpoint.tag), self.tracer.calling(), call.caller.sending():
                    # From here on, a call that fails may have cost something.
                    sending.has_left = True
                    ask = _method_for(sent, route.backends[place.replica])
                    answer = await ask(sent)
            except (asyncio.CancelledError, InferenceError) as error:
                if sending.pieces:
                    # Its server does not count the tokens of a reply that broke off any more.
                    span.set(output_tokens=sending.pieces)
                # An error after the first piece of a reply is no refusal, whatever it says.
                if was_refused(error) and not sending.pieces:
                    span.set(took_no_tokens=True)
                elif was_connected(error):
                    span.set(prompt_estimate=most_input_tokens(sending.request))
                else:
                    span.set(was_connected=False)
                raise
            finally:
                call.time.spend((self.tracer.now_ns() - sent_ns) / 1e9)
            sending.answer = sending.cut(self._checked(answer, request, place.replica))
            return sending.answer

    @asynccontextmanager
    async def _admitted(
        self, request: Request, call: _EndpointCall
    ) -> AsyncIterator[tuple[Sending, ReplicaPlace]]:
        # 3. Limits, 4. gate. While a call is held there, others have its room.
        passed = partial(call.route.gate.passed, request, tried=call.tried, may_wait=call.may_wait)
        while True:
            with suppress(RoomTaken):
                async with (
                    self.meter.sending(request) as sending,
                    passed(on_hold=sending.release) as place,
                ):
                    sending.check_reserved()
                    yield sending, place
                    return

    def _checked(self, answer: Any, request: Request, replica: int) -> Any:  # noqa: ANN401
        """The answer without impossible counts; warns of these, and of a replica's other model."""
        tag, model_id = request.model, answer.model_id
        answer, impossible = possible(answer)
        if impossible:
            message = (
                f"'{tag}' reports what a call cannot have taken ({impossible}): such calls are "
                "counted by the length of their texts"
            )
            self._notice(tag, Notice(code="call.counts-impossible", message=message))
        if model_id:  # some servers name no model in a reply
            before = self.served.get((tag, replica), model_id)
            self.served[tag, replica] = model_id
            if before != model_id:
                message = (
                    f"'{before}' answered for '{tag}', and now '{model_id}' does: its server has "
                    "another model; set the endpoint's model_id, or begin a new run for it"
                )
                self._notice(tag, Notice(code="call.model-changed", message=message))
        return answer

    def _notice(self, tag: str, *notices: Notice) -> None:
        for notice in notices:
            if self.warn is not None and (tag, notice.code) not in self.noticed:
                self.noticed.add((tag, notice.code))
                self.warn(notice)

    def _route(self, tag: str) -> Route:
        if (route := self.routes.get(tag)) is None:
            raise ConfigurationInvalid(
                f"no endpoint is called '{tag}'; " + did_you_mean(tag, self.routes),
                code="endpoint.unknown",
            )
        return route

    def _slot(self, request: Request, caller: CallSource) -> AbstractAsyncContextManager[Slot]:
        if self.replies is None or caller.label is None or not isinstance(request, ChatRequest):
            return nullcontext(Slot())
        return self.replies.slot(request, label=caller.label)

    def _cached(self, request: ChatRequest, route: Route) -> AbstractAsyncContextManager[Slot]:
        if self.cache is None or route.identity is None:
            return nullcontext(Slot())
        return self.cache.slot(request, identity=route.identity, clock=self.tracer.now_ns)


def _method_for(request: Request, backend: Backend) -> Callable[[Any], Awaitable[Any]]:
    """The backend's method that answers requests of this kind; raises `NotOffered`."""
    if isinstance(request, ChatRequest):
        return backend.chat
    if not isinstance(request, RerankRequest):
        return backend.embed
    rerank: Callable[[Any], Awaitable[Any]] | None = getattr(backend, "rerank", None)
    if rerank is None:
        raise NotOffered("its backend cannot rank; name an endpoint whose server does")
    return rerank


def with_defaults(request: ChatRequest, endpoint: Endpoint) -> ChatRequest:
    """The call with the endpoint's settings where it has none of its own."""
    names = ("top_k", "presence_penalty", "reasoning_effort")
    settings = {name: getattr(endpoint, name) for name in names if getattr(request, name) is None}
    if endpoint.extra_body:
        settings["extra_body"] = merged(endpoint.extra_body, request.extra_body or {})
    return replace(request, **settings)


@dataclass(slots=True)
class _Listener:
    """A caller's `on_text`, and whether it has heard anything of the answer."""

    on_text: Callable[[str], None]
    was_heard: bool = False

    def hear(self, text: str) -> None:
        # White space alone does no harm before another attempt's answer.
        self.was_heard = self.was_heard or is_visible(text)
        self.on_text(text)


@dataclass(slots=True)
class _EndpointCall:
    """A call to one endpoint, with what its attempts so far have left."""

    request: Request
    route: Route
    caller: CallSource
    time: CallTime
    # Whether it waits for the end of an outage, since no other endpoint is left to ask.
    may_wait: bool
    tried: set[int] = field(default_factory=set)  # replicas that have failed it
    attempt: int = 1
    waited_s: float = 0.0  # for its turn at a full server, which no attempt counts
    room: int | None = None  # for the reply to its last request, if a limit decided that
    answers: int | None = None  # how many the endpoint had given when the call last failed


def _keep_secrets_out_of(error: HarnessError, clean: Callable[[str], str]) -> None:
    """Redacts the error's texts, and drops its causes if one of them quotes a secret."""
    # Servers quote wrong keys, and a program may print an error with all its causes.
    error.args = tuple(clean(arg) if isinstance(arg, str) else arg for arg in error.args)
    cause = error.__cause__ or error.__context__
    while cause is not None:
        # pydantic's message cuts the input short, in the midst of a key too.
        mistakes = cause.errors() if isinstance(cause, ValidationError) else []
        quoted = f"{[mistake['input'] for mistake in mistakes]}"
        quoted += f"{cause} {cause!r} {vars(cause)}"
        if clean(quoted) != quoted:
            error.__cause__ = error.__context__ = None
            return
        cause = cause.__cause__ or cause.__context__
