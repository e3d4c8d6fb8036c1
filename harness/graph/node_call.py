"""One call of a node: its attempts, and what a node may do in a call (nest, map, ask)."""

from __future__ import annotations

import asyncio
import hashlib
import traceback
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from harness.errors import (
    EvaluationFailed,
    HarnessError,
    InvalidInput,
    LimitReached,
    NodeFailed,
    message_of,
)
from harness.graph.executor import InProcess, Pulse, Work, as_runtime_error, end, this_task, timed
from harness.graph.graph import Graph, bind_inputs
from harness.graph.node import RUN_PARAMETER, read_node
from harness.graph.outcome import (
    Asked,
    Execution,
    NodeFailure,
    Question,
    form_of_answer,
    not_an_answer,
    parse_answer,
)
from harness.graph.policies import Concurrency, Retry
from harness.graph.reuse import Earlier, Shared
from harness.graph.state import CallOutput, StepCall, Use
from harness.graph.values import ValueForm
from harness.trace import Span, describe, events
from harness.trace.records import CutBy

Answers = Mapping[Asked, object]
"""Answers of people."""


class Watcher(Protocol):
    """Receives the progress of a run; nested graphs are left out."""

    def begins(self, node: str, item: int | None) -> None:
        """A call is made, of an item or of a node that is not mapped."""

    def ends(self, node: str, item: int | None) -> None:
        """An item, or a node as a whole, has an outcome, whether or not it was called."""

    def counts(self, node: str, total: int) -> None:
        """The number of items of a mapped node is known."""


OnItem = Callable[[int, object, bytes], Awaitable[None]]
"""Called with each item of a generating node: its index, its value, and the value as JSON."""

# The call whose code runs in this context, even if it uses the `run` of another call.
_RUNNING: ContextVar[NodeCall] = ContextVar("running")
# After so many answers of another form, a person who is there now is not asked again.
_MOST_ANSWERS = 10
# Longest traceback in the record, cut at its beginning: the end says most.
_TRACEBACK_CHARS = 20_000


class Suspended(BaseException):
    """Leaves a node whose questions have no answer yet."""

    # Not an `Exception`, so that a node that catches all errors does not catch it.

    def __init__(self, *questions: Question) -> None:
        super().__init__("; ".join(question.text for question in questions))
        self.questions = questions


class CallFailed(Exception):
    """A call whose last attempt raised."""

    def __init__(self, failure: NodeFailure) -> None:
        super().__init__(message_of(failure.error))
        self.failure = failure


RunNested = Callable[["NodeCall", StepCall, Graph, Mapping[str, object], str], Awaitable[Execution]]
"""Runs a graph inside a call: the call whose `run` does, the call that waits for it, the graph, its
inputs, the prefix of its nodes' names."""


class NodeCall:
    """One call of a node, as the node sees it.

    Attributes:
        label: Its name: `findings[2]`, `answer/brief/findings[2]`.
        pulse: Its signs of life.
        parent: The call that it is nested in; None for one of the run's own nodes.
        attempts: Outputs of nested calls, for the next attempt of this call or of one that it is
            nested in; None if none of them has a `Retry`.
    """

    def __init__(
        self, call: StepCall, *, shared: Shared, nested: RunNested, parent: NodeCall | None = None
    ) -> None:
        self.label = call.label
        self.pulse: Pulse = Pulse(None if parent is None else parent.pulse)
        self.attempts: Earlier | None = None if parent is None else parent.attempts
        if self.attempts is None and call.step.policies.retry is not None:
            self.attempts = Earlier()
        self._repeats = 0
        self._unanswered: list[Question] = []  # of this attempt
        if misled := shared.misled.get(call.label):
            call.misled = misled.next_variation(call.step.code.digest)
        self._has_given_items = False
        self.parent = parent
        self._call = call
        self._shared = shared
        self._run_nested = nested
        self._counts: defaultdict[str, int] = defaultdict(int)  # steps of this attempt, by kind
        self._nesting: set[asyncio.Task[Any]] = set()  # the node's tasks that wait for a nested run

    @property
    def repeats(self) -> int:
        """How often the call, or a call around it, was repeated so far."""
        return self._repeats + (0 if self.parent is None else self.parent.repeats)

    @property
    def variation(self) -> int:
        """See `StepCall.variation`."""
        return self._call.variation

    @property
    def innermost(self) -> NodeCall:
        """The call whose code runs now: this one, or one inside it that uses this one's `run`."""
        running = _RUNNING.get(None)
        around = running
        while around is not None and around is not self:
            around = around.parent
        return running if running is not None and around is self else self

    def begin_again(self) -> None:
        """Restarts the numbering of steps in the same attempt, whose worker was lost."""
        self._begin_attempt(self._repeats + 1)

    def use(self, uses: Mapping[str, Use]) -> None:
        """Records models, rubrics or settings that this call, and so each call around it, uses."""
        self._call.uses.update(uses)
        # At once: a generating node around it may give an item before this call ends.
        if self.parent is not None:
            self.parent.use(uses)

    def keep_from_cache(self) -> None:
        """Notes that the output holds in this run alone, so that no `Cache` gives it to others."""
        self._call.is_of_run = True  # as those around it learn at its end

    def note_loop(self, *, passed: bool | None, cut_by: CutBy | None) -> None:
        """Notes whether the draft of a loop in it passed, and what ended the loop too early."""
        if passed is not None:
            self._call.passed = passed and self._call.passed is not False
        if self._call.cut_by != "failure":  # after which a run goes on without a higher limit
            self._call.cut_by = cut_by or self._call.cut_by

    def beat(self) -> None:
        """A sign of life, for `Timeout(idle_s=…)`, of this call and of those around it."""
        self.pulse.beat()

    def key(self, kind: str) -> str:
        """A name for the next step of a kind in this call: `text#1@` and a digest.

        The same in every part of the run, as long as the call's inputs and code are the same.
        """
        number = self.count(kind)
        inputs = [f"{name}={digest}" for name, digest in self._call.inputs.digests.items()]
        text = "\n".join([kind, self._call.step.code.digest, *inputs])
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return f"{self.label}#{number}@{digest}"

    async def call(self, graph: Graph, inputs: Mapping[str, object]) -> Mapping[str, object]:
        """Runs another graph inside this call, in the same journal; returns its nodes' outputs.

        Raises:
            PipelineInvalid: Its inputs are not what it needs.
            NodeFailed: One of its nodes failed.
            RunLimitReached: A limit of the run ended it.
        """
        graph.check()
        values = bind_inputs(graph, inputs)
        prefix = f"{self.label}/{self._numbered(graph.name)}/"
        return (await self._run_inside(graph, values, prefix)).outputs

    async def map(
        self,
        function: Callable[..., Any],
        items: Sequence[object],
        *,
        name: str | None = None,
        max_parallel: int | None = None,
        retry: Retry | None = None,
        has_track: bool = True,
    ) -> list[Any]:
        """Calls a function for each item, in parallel, each call a step like a node's item.

        Without `has_track`, its calls are drawn inside this one.

        Returns:
            The results, in the order of the items.

        Raises:
            PipelineInvalid: The function cannot be a step.
            NodeFailed: A call failed.
            RunLimitReached: A limit of the run ended it.
        """
        concurrency = None if max_parallel is None else Concurrency(max_parallel)
        node = read_node(function, name=name, retry=retry, concurrency=concurrency)
        if len(node.parameters) != 1:
            raise InvalidInput(
                f"run.map calls '{node.name}' with one item at a time, and it takes "
                f"{len(node.parameters)} values; a function inside the node can see values that "
                "are the same for all",
                code="pipeline.map-takes-one-value",
            )
        # No identifier, so no node has this name.
        source = "items of the map"
        item = replace(node.parameters[0], source=source, is_mapped=True)
        graph = Graph(self.label)
        track = None if has_track else track_of(self._call)
        # Numbered, since a node may map one function several times.
        graph.add(replace(node, name=self._numbered(node.name), parameters=(item,), track=track))
        graph.check()
        execution = await self._run_inside(graph, {source: list(items)}, f"{self.label}/")
        (values,) = execution.outputs.values()
        assert isinstance(values, list)
        return values

    async def ask(self, text: str, returns: Any = str) -> Any:  # noqa: ANN401
        """Asks a person a question; returns the answer as a value of type `returns`.

        Raises:
            Suspended: There is no answer yet; the node ends here, and is called again with one.
        """
        shared = self._shared
        excerpt = shared.tracer.excerpt
        self.keep_from_cache()
        key = f"{self.label}/{self._numbered('ask')}"
        form, schema = form_of_answer(returns)
        inputs = sorted(self._call.inputs.digests.items())
        about = hashlib.sha256(repr(inputs).encode()).hexdigest()[:16]
        # Without secrets, as the journal has it, since its answer is found by the text.
        text = shared.tracer.redactor.clean(text)
        question = Question(
            key=key, node=self.label, text=text, form=form, schema=schema, about=about
        )
        asked = question.asked
        # Journals of earlier versions do not say what an answer was about.
        reply = shared.answers.get(asked, shared.answers.get(asked._replace(about="")))
        # After an answer of the wrong form, the person is asked again, and told what is wrong. A
        # function that always gives the same would be asked for ever.
        for _ in range(_MOST_ANSWERS):
            if reply is None and (reply := await self._immediate_answer(question)) is None:
                break
            try:
                answer = parse_answer(reply, returns)
            except ValueError as error:
                # In JSON there are many mistakes; another answer just has not the form.
                mistake = None if schema is None else error
                question = replace(question, problem=not_an_answer(reply, form, mistake))
                reply = None
            else:
                # For the next attempt of the node, which asks again.
                shared.answers[asked] = reply
                answered = events.AnswerEvent(
                    key=key, text=excerpt(text), answer=excerpt(reply), about=excerpt(about)
                )
                shared.tracer.instant(answered)
                # A person must not be asked twice.
                await shared.tracer.persisted()
                return answer
        asks = events.QuestionEvent(
            key=key, text=excerpt(text), form=form, schema=schema, about=excerpt(about)
        )
        shared.tracer.instant(asks)
        self._unanswered.append(question)
        raise Suspended(question)

    async def _immediate_answer(self, question: Question) -> object | None:
        """Asks a person who is there now; None without an answer."""
        asker = self._shared.asker
        if asker is None:
            return None

        def ask() -> object:
            with self._shared.asking:  # a person reads one question at a time
                return asker(question)

        with self.pulse.doing("ask"):
            # It calls a plain function in a thread, so the lock does not stop the event loop.
            return await InProcess().call(Work(self.label, ask, {}))

    async def _run_inside(
        self, graph: Graph, values: Mapping[str, object], prefix: str
    ) -> Execution:
        """Runs a graph inside the call, and raises what ended it early.

        The call that waits for it lends its place to the graph's calls.
        """
        task = this_task()
        running = _RUNNING.get(None)
        # None in a thread that left its call's context.
        waiting = self._stand_in() if running is None else running._call  # noqa: SLF001 - its own
        self._nesting.add(task)
        try:
            with self._shared.places.lent_by(waiting):
                execution = await self._run_nested(self, waiting, graph, values, prefix)
        finally:
            self._nesting.discard(task)
        if execution.failures:
            raise execution.error
        if execution.stopped_by is not None:
            raise execution.stopped_by
        if execution.questions:
            self._unanswered += execution.questions
            raise Suspended(*execution.questions)
        return execution

    def _stand_in(self) -> StepCall:
        """The call whose place is lent if it is unknown which call inside this one waits."""
        if self._call.loan is None:
            return self._call
        # This call's own place is lent already.
        call = StepCall(self._call.state, self._call.item, around=self._call)
        call.has_place = True
        return call

    def count(self, kind: str) -> int:
        """Counts a further step of a kind in this call: 1 for the first."""
        self._counts[kind] += 1
        return self._counts[kind]

    def _numbered(self, name: str) -> str:
        """The name of the next step of this name in this call: `brief`, then `brief#2`."""
        number = self.count(name)
        return name if number == 1 else f"{name}#{number}"

    # --- attempts ---------------------------------------------------------------------------------

    async def perform(self, on_item: OnItem | None) -> CallOutput:
        """Calls the node until it gives a valid output, as often as its policy allows.

        `on_item` is called with each item as it comes; None unless the node generates items for
        others.

        Raises:
            CallFailed: No attempt gave one.
            Suspended: A person has to answer first.
        """
        _RUNNING.set(self)
        # Not asked for below, where an error is caught: a call that is left behind is thrown one
        # from outside its task.
        task = this_task()
        attempt = 1
        while True:
            try:
                return await self._attempt(attempt, on_item)
            except BaseException as raised:  # noqa: BLE001 - raised again, or for a next attempt
                error, delay_s = self._error_and_delay(raised, attempt=attempt, task=task)
            retry = events.RetryEvent(
                node=self.label,
                reason=type(error).__name__,
                detail=self._shared.tracer.excerpt(message_of(error)),
                attempt=attempt,
                delay_s=delay_s,
            )
            self._shared.tracer.instant(retry)
            attempt += 1
            # The calls around this one do not count as idle meanwhile. This call's own limits hold
            # only within attempts.
            with self.pulse.doing("rest"):
                await asyncio.sleep(delay_s)

    def _error_and_delay(
        self, raised: BaseException, *, attempt: int, task: asyncio.Task[Any]
    ) -> tuple[Exception, float]:
        """The error of an attempt, and the seconds until the next.

        Raises as `perform` does if there is no next.
        """
        error, *others = leaves = _leaves(raised)
        if isinstance(error, Suspended):
            # Questions that were asked side by side all wait, not the first alone; and some
            # may have been asked by another call's code, whose task this one waited for.
            suspended = [leaf for leaf in leaves if isinstance(leaf, Suspended)]
            elsewhere = [question for leaf in suspended for question in leaf.questions]
            raise Suspended(*dict.fromkeys([*self._unanswered, *elsewhere])) from raised
        if isinstance(error, asyncio.CancelledError):
            # Let through, it would look as if the run had been cancelled.
            subject = "its task" if task.cancelling() else "what it waited for"
            cancelled = asyncio.CancelledError(f"{subject} was cancelled")
            failure = NodeFailure(node=self.label, error=cancelled, attempts=attempt)
            raise CallFailed(failure) from raised
        if not isinstance(error, Exception):
            if error is raised:
                raise error
            raise error from raised
        # No further attempt of a call that raises as it is cancelled, nor of one whose
        # items other nodes may have used: the next attempt might give other items.
        is_last = task.cancelling() or self._has_given_items
        delay_s = None if is_last else self._delay_s(error, attempt)
        if delay_s is None:
            failure = NodeFailure(
                node=self.label, error=error, attempts=attempt, beside=_first_lines(others)
            )
            raise CallFailed(failure) from error
        if _may_be_due_to_a_reply(error):
            self._call.misled += 1
        return error, delay_s

    def _delay_s(self, error: Exception, attempt: int) -> float | None:
        """Seconds before the next attempt; None for no further attempt."""
        retry = self._call.step.policies.retry
        if retry is None or isinstance(_cause(error), InvalidInput | LimitReached):
            return None
        return retry.delay_s(error, attempt=attempt)

    async def _attempt(self, attempt: int, on_item: OnItem | None) -> CallOutput:
        """Calls the node's function once, inside a span, and checks its output."""
        call = self._call
        step = call.step
        tracer = self._shared.tracer
        # On a full disk no further call is made whose output would be lost; see `OnFailure`.
        tracer.check_written()
        waits_ns = _take_waits_ns(call, until_ns=tracer.now_ns())
        started = events.NodeAttempt(
            track=track_of(call),
            label=self.label,
            node=call.state.path,
            item=call.item,
            concurrency_wait_ns=waits_ns.get("node"),
            place_wait_ns=waits_ns.get("pipeline"),
            attempt=attempt if attempt > 1 else None,
        )
        with tracer.span(started) as span, self._note_failure(span):
            if step.policies.on_error not in (None, "fail"):
                # If it fails, nodes that go on without its output had to wait for it too.
                call.state.note_span(call.item, span.id)
            self._record_producers(span)
            self._begin_attempt(attempt)
            arguments: Mapping[str, Any] = call.inputs.arguments
            if step.node.takes_run:
                arguments = {RUN_PARAMETER: self._shared.run_of(self), **arguments}
            function = step.node.function
            if step.item_form is not None:
                function = partial(self._collect, step.item_form, on_item, function)
            work = Work(self.label, function, arguments, step.policies.on, self)
            value_of_work = self._shared.executor.call(work)
            limits = step.policies.timeout
            if limits is not None:
                value_of_work = timed(value_of_work, limits, pulse=self.pulse, label=self.label)
            try:
                value = await value_of_work
            except BaseException as error:
                # Closing this coroutine raises GeneratorExit here, the node's own code below here.
                is_below = error.__traceback__ is not None and error.__traceback__.tb_next
                is_exit = is_below and isinstance(_leaves(error)[0], GeneratorExit)
                if is_exit or isinstance(error, Exception):
                    span.set(traceback=tracer.excerpt(_traceback(error)))
                if is_exit:
                    raise as_runtime_error(error) from error
                raise
            finally:
                if self._nesting:
                    # Nested runs that still go on, as `asyncio.gather` leaves them.
                    await end([*self._nesting], label=self.label)
            if self._unanswered:
                # The node caught `Suspended`, as `asyncio.gather` with `return_exceptions` does.
                raise Suspended(*self._unanswered)
            return CallOutput(value, step.form.encode(value), span.id)

    @contextmanager
    def _note_failure(self, span: Span) -> Iterator[None]:
        """Records what decides whether a resumed run gives the same replies again."""
        try:
            yield
        except Exception as raised:
            span.set(code=self._call.step.code.digest, variation=self._call.misled)
            reason = _leaves(raised)[0]
            if reason is not raised:
                span.set(reason=type(reason).__name__)
            raise

    def _record_producers(self, span: Span) -> None:
        """Draws an arrow to an attempt from each call that made one of its inputs."""
        arrows = (("output", self._call.inputs.producers), ("condition", self._call.decided_by))
        labels: list[str] = []
        for flow, producers in arrows:
            spans = [producer for producer in producers if isinstance(producer, int)]
            self._shared.tracer.flows(flow, sources=spans, target=span.id)
            labels += [producer for producer in producers if isinstance(producer, str)]
        # Calls of earlier parts of the run have no span to draw an arrow from, only a label.
        if self._shared.earlier is not None and labels:
            span.set(needs=labels)

    async def _collect(
        self,
        form: ValueForm,
        on_item: OnItem | None,
        function: Callable[..., Any],
        /,
        **arguments: object,
    ) -> list[object]:
        """Collects the items that a generating node yields, and passes each on as it comes."""
        items: list[object] = []
        async with aclosing(function(**arguments)) as stream:
            async for item in stream:
                data = form.encode(item)
                if on_item is not None:
                    self._has_given_items = True
                    await on_item(len(items), item, data)
                items.append(item)
                self.beat()
        return items

    def _begin_attempt(self, attempt: int) -> None:
        # The numbering of steps begins again, so that each step of a second attempt has the name
        # that it had in the first, and finished steps are found, as in a resumed run.
        self._repeats = attempt - 1
        self._unanswered.clear()
        if self.repeats:
            self._shared.on_repeat(self.label)
        if self._counts:
            # Work that the attempt before left out is done again, or left out again.
            self._shared.log.drop_skips_in(self.label)
        self._counts.clear()
        self._call.cut_by = self._call.passed = None


def _may_be_due_to_a_reply(error: Exception) -> bool:
    """Whether the next attempt needs other replies of the models, or else would fail again."""
    cause = _cause(error)
    # Where a call to a model failed there was no reply, and the call is made again in any case.
    return isinstance(cause, EvaluationFailed) or not isinstance(cause, HarnessError | OSError)


def _cause(error: BaseException) -> BaseException:
    """The first error, in the innermost of nested pipelines."""
    while isinstance(error, NodeFailed) and error.__cause__ is not None:
        error = error.__cause__
    return error


def track_of(call: StepCall) -> str:
    """The track of the timeline that a call is drawn on."""
    return call.step.node.track or f"node {call.state.path}"


def _take_waits_ns(call: StepCall, *, until_ns: int) -> dict[str, int]:
    """How long a call waited for a place of its `node` and of the `pipeline`, in ns by limit.

    Clears the call's waits, since they count for its first attempt alone.
    """
    ends_ns = [*(since_ns for _, since_ns in call.waits[1:]), until_ns]
    waits_ns: dict[str, int] = {}
    for (limit, since_ns), end_ns in zip(call.waits, ends_ns, strict=False):
        waits_ns[limit] = end_ns - since_ns
    call.waits = ()
    return waits_ns


def _traceback(error: BaseException) -> str:
    """The traceback as text; without its beginning, if it is long."""
    text = "".join(traceback.format_exception(error))
    if len(text) <= _TRACEBACK_CHARS:
        return text
    # Whole lines only: half a secret would not be recognized, and so not be masked.
    return text[-_TRACEBACK_CHARS:].partition("\n")[2]


def _leaves(error: BaseException) -> list[BaseException]:
    """The errors in nested groups, the reason first; a question to a person goes before errors."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    leaves = [leaf for nested in error.exceptions for leaf in _leaves(nested)]
    # A group cancels its other tasks when one raises: a cancellation is never the reason.
    return sorted(leaves, key=_rank)


def _first_lines(errors: list[BaseException]) -> tuple[str, ...]:
    """The class and first line of each error, without cancellations and repetitions."""
    lines = [str(describe(e)).partition("\n")[0] for e in errors if isinstance(e, Exception)]
    return tuple(dict.fromkeys(lines))


def _rank(error: BaseException) -> int:
    """The place of an error in the order of `_leaves`: the lowest is the reason."""
    if isinstance(error, asyncio.CancelledError):
        return 2
    return 1 if isinstance(error, Exception) else 0
