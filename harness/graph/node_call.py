"""One call of a node: its attempts, and what a node may do in a call (nest, map, ask)."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import traceback
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol

from harness.errors import (
    EvaluationFailed,
    HarnessError,
    InvalidInput,
    LimitReached,
    NodeFailed,
    message_of,
)
from harness.graph.executor import Pulse, Work, end, this_task, timed
from harness.graph.graph import Graph, bind_inputs
from harness.graph.node import RUN_PARAMETER, read_node
from harness.graph.outcome import Execution, Question, form_of_answer, not_an_answer, parse_answer
from harness.graph.policies import Concurrency, Retry
from harness.graph.reuse import Earlier, Shared
from harness.graph.state import INNERMOST, CallOutput, StepCall, Use
from harness.graph.values import ValueForm
from harness.trace import describe, events

Answers = Mapping[tuple[str, str], object]
"""Answers of people, by the key and the text of the question."""


class Watcher(Protocol):
    """Receives the progress of a run; nested graphs are left out."""

    def begins(self, node: str, item: int | None) -> None:
        """A call is made, of an item or of a node that is not mapped."""
        ...

    def ends(self, node: str, item: int | None) -> None:
        """An item, or a node as a whole, has an outcome, whether or not it was called."""
        ...

    def counts(self, node: str, total: int) -> None:
        """The number of items of a mapped node is known."""
        ...


OnItem = Callable[[int, object, bytes], Awaitable[None]]
"""Called with each item of a generating node: its index, its value, and the value as JSON."""

# Longest traceback in the record, cut at its beginning: the end says most.
_TRACEBACK_CHARS = 20_000


class Suspended(BaseException):
    """Leaves a node whose questions have no answer yet; nodes that catch all errors do not."""

    def __init__(self, *questions: Question) -> None:
        super().__init__("; ".join(question.text for question in questions))
        self.questions = questions


class CallFailed(Exception):
    """A call whose last attempt raised.

    Attributes:
        error: What it raised.
        attempts: How often it was called.
        beside: The other errors of a group whose first is `error`, as `NodeFailure` has them.
    """

    def __init__(
        self, error: BaseException, attempts: int, *, beside: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message_of(error))
        self.error = error
        self.attempts = attempts
        self.beside = beside


Nested = Callable[["NodeCall", Graph, Mapping[str, object], str], Awaitable[Execution]]
"""Runs a graph inside a call: the call, the graph, its inputs, the prefix of its nodes' names."""


class NodeCall:
    """One call of a node, as the node sees it.

    Attributes:
        label: Its name: `findings[2]`, `answer/brief/findings[2]`.
        pulse: Its signs of life.
        attempts: Outputs of nested calls, for the next attempt of this call or of one that it is
            nested in; None if none of them has a `Retry`.
    """

    def __init__(
        self, call: StepCall, *, shared: Shared, nested: Nested, parent: NodeCall | None = None
    ) -> None:
        self.label = call.label
        self.pulse: Pulse = Pulse(None if parent is None else parent.pulse)
        self.attempts: Earlier | None = None if parent is None else parent.attempts
        if self.attempts is None and call.step.policies.retry is not None:
            self.attempts = Earlier()
        self._repeats = 0
        self._variations = 0
        self._has_given_items = False
        self._parent = parent
        self._call = call
        self._shared = shared
        self._nested = nested
        self._counts: defaultdict[str, int] = defaultdict(int)
        # The tasks of the node that wait for something nested.
        self._nesting: set[asyncio.Task[Any]] = set()

    @property
    def repeats(self) -> int:
        """How often the call, or a call around it, was repeated so far."""
        return self._repeats + (0 if self._parent is None else self._parent.repeats)

    @property
    def variation(self) -> int:
        """0, or the number of this attempt's replies, if the same replies would fail again."""
        # An inner and an outer repetition must never have the same number.
        return self._variations + (0 if self._parent is None else 100 * self._parent.variation)

    def begin_again(self) -> None:
        """Restarts the numbering of steps in the same attempt, whose worker was lost."""
        self._begin_attempt(self._repeats + 1)

    def use(self, uses: Mapping[str, Use]) -> None:
        """Notes what this call, and so each call around it, uses beside code and inputs."""
        self._call.uses.update(uses)
        if self._parent is not None:
            self._parent.use(uses)

    def beat(self) -> None:
        """A sign of life, for `Timeout(idle_s=…)`, of this call and of those around it."""
        self.pulse.beat()

    def key(self, kind: str) -> str:
        """A name for the next step of a kind in this call: `text#1@` and a digest.

        The same in every part of the run, as long as the call's inputs and code are the same.
        """
        number = self.count(kind)
        code, inputs = self._call.step.code.digest, self._call.taken.inputs
        text = "\n".join([kind, code, *(f"{name}={value}" for name, value in inputs.items())])
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
        ended = await self._inside(graph, values, f"{self.label}/{self._numbered(graph.name)}/")
        return _whole(ended).outputs

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
        places = None if max_parallel is None else Concurrency(max_parallel)
        node = read_node(function, name=name, retry=retry, concurrency=places)
        if len(node.parameters) != 1:
            raise InvalidInput(
                f"run.map calls '{node.name}' with one item at a time, and it takes "
                f"{len(node.parameters)} values; a function inside the node can see values that "
                "are the same for all",
                code="pipeline.map-takes-one-value",
            )
        item = replace(node.parameters[0], source="items", is_mapped=True)
        graph = Graph(self.label)
        track = None if has_track else track_of(self._call)
        # Numbered, since a node may map one function several times.
        graph.add(replace(node, name=self._numbered(node.name), parameters=(item,), track=track))
        graph.check()
        ended = await self._inside(graph, {"items": list(items)}, f"{self.label}/")
        (values,) = _whole(ended).outputs.values()
        assert isinstance(values, list)
        return values

    async def ask(self, text: str, returns: Any = str) -> Any:  # noqa: ANN401
        """Asks a person a question; returns the answer as a value of type `returns`.

        Raises:
            Suspended: There is no answer yet; the node ends here, and is called again with one.
        """
        shared, key = self._shared, self._numbered("ask")
        question = Question(
            key=f"{self.label}/{key}", node=self.label, text=text, form=form_of_answer(returns)
        )
        reply = shared.answers.get((question.key, text))
        if reply is None:
            reply = await self._asked(question)
        # An answer of the wrong form is asked for again, with what is wrong, as long as one comes.
        while reply is not None:
            try:
                answer = parse_answer(reply, returns)
            except ValueError:
                question = replace(question, problem=not_an_answer(reply, question.form))
                reply = await self._asked(question)
            else:
                # For the next attempt of the node, which asks again.
                shared.answers[question.key, text] = reply
                excerpt, answered = shared.tracer.excerpt(text), shared.tracer.excerpt(reply)
                shared.tracer.instant(
                    events.AnswerEvent(key=question.key, text=excerpt, answer=answered)
                )
                # A person must not be asked twice.
                await shared.tracer.persisted()
                return answer
        excerpt = shared.tracer.excerpt(text)
        shared.tracer.instant(
            events.QuestionEvent(key=question.key, text=excerpt, form=question.form)
        )
        raise Suspended(question)

    async def _asked(self, question: Question) -> object | None:
        """A person's immediate answer; None if there is none."""
        asker = self._shared.asker
        if asker is None:
            return None
        with self.pulse.doing("ask"):
            answer = asker(question)
            return await answer if inspect.isawaitable(answer) else answer

    async def _inside(self, graph: Graph, values: Mapping[str, object], prefix: str) -> Execution:
        """Runs a graph inside the call; whoever waits for it lends its place to the nodes."""
        task = this_task()
        if INNERMOST.get(None) is None:  # it comes from a thread that left its call's context
            INNERMOST.set(self._innermost())
        self._nesting.add(task)
        try:
            with self._shared.places.lent_by(INNERMOST.get()):
                return await self._nested(self, graph, values, prefix)
        finally:
            self._nesting.discard(task)

    def _innermost(self) -> StepCall:
        """Stands for an unknown call inside this one, if this one's own place is lent already."""
        if self._call.loan is None:
            return self._call
        call = StepCall(self._call.state, self._call.item, around=self._call)
        call.has_place = True
        return call

    def count(self, kind: str) -> int:
        """The number of the next step of a kind in this call, from 1."""
        self._counts[kind] += 1
        return self._counts[kind]

    def _numbered(self, name: str) -> str:
        count = self.count(name)
        return name if count == 1 else f"{name}#{count}"

    # --- attempts ---------------------------------------------------------------------------------

    async def perform(self, on_item: OnItem | None) -> CallOutput:
        """Calls the node until it gives a valid output, as often as its policy allows.

        `on_item` is called with each item as it comes; None unless the node generates items for
        others.

        Raises:
            CallFailed: No attempt gave one.
            Suspended: A person has to answer first.
        """
        tracer = self._shared.tracer
        # Not where an error is caught: a call that is left behind is thrown one from outside its
        # task.
        task = this_task()
        attempt = 1
        while True:
            try:
                return await self._attempt(attempt, on_item)
            except BaseException as raised:
                error, *further = _leaves(raised)
                if isinstance(error, asyncio.CancelledError):
                    # Let through, it would look as if the run had been cancelled.
                    whose = "its task" if task.cancelling() else "what it waited for"
                    what = asyncio.CancelledError(f"{whose} was cancelled")
                    raise CallFailed(what, attempt) from raised
                if not isinstance(error, Exception):
                    if error is raised:
                        raise
                    raise error from raised
                # Neither a call that raises as it is cancelled, nor one whose items others may have
                # used: it might give other items.
                is_last = task.cancelling() or self._has_given_items
                delay_s = None if is_last else self._delay_s(error, attempt)
                if delay_s is None:
                    raise CallFailed(error, attempt, beside=_first_lines(further)) from error
                # The next attempt asks for other replies if these may have been the reason. They
                # were not where a call failed: it is made again in any case.
                cause = _cause(error)
                is_of_a_call = isinstance(cause, HarnessError | OSError)
                if isinstance(cause, EvaluationFailed) or not is_of_a_call:
                    self._variations += 1
            event = events.RetryEvent(
                node=self.label,
                reason=type(error).__name__,
                detail=tracer.excerpt(message_of(error)),
                attempt=attempt,
                delay_s=delay_s,
            )
            tracer.instant(event)
            attempt += 1
            # No idleness of the calls around it; this call's own limits hold only within attempts.
            with self.pulse.doing("rest"):
                await asyncio.sleep(delay_s)

    def _delay_s(self, error: Exception, attempt: int) -> float | None:
        """Seconds before the next attempt; None for no further attempt."""
        retry = self._call.step.policies.retry
        if retry is None or isinstance(_cause(error), InvalidInput | LimitReached):
            return None
        return retry.delay_s(error, attempt=attempt)

    async def _attempt(self, attempt: int, on_item: OnItem | None) -> CallOutput:
        call, shared, step = self._call, self._shared, self._call.step
        tracer = shared.tracer
        arguments, _, digests = call.taken
        needs = (*digests, *call.decided_by)
        # On a full disk no further call is made whose output would be lost; see `OnFailure`.
        tracer.check_written()
        waits = _waits(call, until_ns=tracer.now_ns())
        begun = events.NodeAttempt(
            track=track_of(call),
            label=self.label,
            node=call.state.path,
            item=call.item,
            concurrency_wait_ns=waits.get("node"),
            place_wait_ns=waits.get("pipeline"),
            attempt=attempt if attempt > 1 else None,
        )
        with tracer.span(begun) as span:
            if step.policies.on_error not in (None, "fail"):
                # Should it fail, nodes that go on without its output had to wait for it too.
                call.state.note_span(call.item, span.id)
            for flow, sources in (("output", digests), ("condition", call.decided_by)):
                tracer.flows(flow, sources=[n for n in sources if type(n) is int], target=span.id)
            # Outputs of earlier parts have no span to draw an arrow from, only a label.
            if shared.earlier is not None and (before := [n for n in needs if type(n) is str]):
                span.set(needs=before)
            self._begin_attempt(attempt)
            if step.node.takes_run:
                arguments = {RUN_PARAMETER: shared.run_of(self), **arguments}
            work = Work(self.label, step.node.function, arguments, step.policies.on, self)
            if step.item_form is None:
                work_done = shared.executor.call(work)
            else:
                work_done = self._stream(step.item_form, work, on_item)
            try:
                if (limits := step.policies.timeout) is not None:
                    work_done = timed(
                        work_done, limits, pulse=self.pulse, label=self.label, log=shared.log
                    )
                value = await work_done
            except Exception as error:
                span.set(traceback=tracer.excerpt(_traceback(error)))
                raise
            finally:
                if self._nesting:
                    # Calls inside that still go on: `asyncio.gather` leaves them.
                    await end([*self._nesting], label=self.label, log=shared.log)
            value = step.form.check(value)
            return CallOutput(value, step.form.encode(value), span.id)

    async def _stream(self, form: ValueForm, work: Work, on_item: OnItem | None) -> list[object]:
        items: list[object] = []
        async with aclosing(self._shared.executor.stream(work)) as stream:
            async for item in stream:
                checked = form.check(item)
                if on_item is not None:
                    self._has_given_items = True
                    await on_item(len(items), checked, form.encode(checked))
                items.append(checked)
                self.beat()
        return items

    def _begin_attempt(self, attempt: int) -> None:
        # The numbering of steps begins again. So each step of a second attempt gets its name from
        # the first, and finished steps are found, as in a resumed run.
        self._repeats = attempt - 1
        if self._counts:
            # Work that the attempt before left out is done again, or left out again.
            log, inside = self._shared.log, f"{self.label}/"
            log.skips[:] = [skip for skip in log.skips if not skip.node.startswith(inside)]
            log.failed_inside[:] = [
                failure for failure in log.failed_inside if not failure.node.startswith(inside)
            ]
        self._counts.clear()


def _whole(ended: Execution) -> Execution:
    if ended.failures:
        raise ended.error
    if ended.stopped_by is not None:
        raise ended.stopped_by
    if ended.questions:
        raise Suspended(*ended.questions)
    return ended


def _cause(error: BaseException) -> BaseException:
    """The first error, in the innermost of nested pipelines."""
    while isinstance(error, NodeFailed) and error.__cause__ is not None:
        error = error.__cause__
    return error


def track_of(call: StepCall) -> str:
    """The track of the timeline that a call is drawn on."""
    return call.step.node.track or f"node {call.state.path}"


def _waits(call: StepCall, *, until_ns: int) -> dict[str, int]:
    """How long the call's first attempt waited for a place, of its node's and of all, by limit."""
    waits, call.waits = call.waits, ()
    times_ns = [*(since_ns for _, since_ns in waits), until_ns]
    return {limit: times_ns[n + 1] - since_ns for n, (limit, since_ns) in enumerate(waits)}


def _traceback(error: Exception) -> str:
    text = "".join(traceback.format_exception(error))
    if len(text) <= _TRACEBACK_CHARS:
        return text
    return text[-_TRACEBACK_CHARS:].partition("\n")[2]  # whole lines: half a secret goes unseen


def _leaves(error: BaseException) -> list[BaseException]:
    """The errors of nested groups, the reason first; a question to a person goes before errors."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    leaves = [leaf for nested in error.exceptions for leaf in _leaves(nested)]
    # A group cancels its other tasks when one raises: a cancellation is never the reason.
    leaves.sort(key=_rank)
    if isinstance(leaves[0], Suspended):
        asking = [leaf for leaf in leaves if isinstance(leaf, Suspended)]
        return [Suspended(*(question for suspended in asking for question in suspended.questions))]
    return leaves


def _first_lines(errors: list[BaseException]) -> tuple[str, ...]:
    """The class and first line of each error, without cancellations and repetitions."""
    lines = [str(describe(e)).partition("\n")[0] for e in errors if isinstance(e, Exception)]
    return tuple(dict.fromkeys(lines))


def _rank(error: BaseException) -> int:
    if isinstance(error, asyncio.CancelledError):
        return 2
    return 1 if isinstance(error, Exception) else 0
