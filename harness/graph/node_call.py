"""What all parts of one run of a graph share, nested graphs included."""

from __future__ import annotations

import asyncio
import hashlib
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeVar

from harness.errors import InvalidInput, LimitReached, NodeFailed, message_of
from harness.graph.executor import GRACE_S, Executor, Pulse, Work, leave_behind, timed
from harness.graph.graph import Graph, bind_inputs
from harness.graph.node import RUN_PARAMETER, read_node
from harness.graph.outcome import (
    Execution,
    Log,
    Question,
    form_of_answer,
    not_an_answer,
    parse_answer,
)
from harness.graph.policies import Concurrency, Policies, Retry
from harness.graph.reuse import Earlier, OutputCache
from harness.graph.state import Digests, Given, Places, Step
from harness.trace import Tracer

Answers = Mapping[tuple[str, str], object]
"""What was answered, by the key and the text of the question."""

Asker = Callable[[Question], Awaitable[object | None]]
"""Asks a person at once; None when nobody is there."""


class Watcher(Protocol):
    """Told how far a run is, of the graph itself and not of what is nested in its nodes."""

    def begins(self, node: str, item: int | None) -> None:
        """A call is made: of an item, or of a node that is not mapped."""
        ...

    def ends(self, node: str, item: int | None) -> None:
        """An item has an outcome, or a node as a whole, whether it was called or not."""
        ...

    def counts(self, node: str, total: int) -> None:
        """It has turned out how many items a mapped node has."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Surroundings of every call."""

    run_of: Callable[[NodeCall], object]
    """Makes what a node that takes a `run` receives."""
    tracer: Tracer
    """Sees every call, and its output."""
    executor: Executor
    """Makes the calls."""
    places: Places
    """How many calls may be under way in all."""
    earlier: Earlier | None
    """What earlier parts of the run gave; None in its first part."""
    cache: OutputCache | None
    """What earlier runs gave."""
    answers: dict[tuple[str, str], object]
    """What people answered so far, as `Answers`; grows."""
    asker: Asker | None
    """Reaches a person at once."""
    log: Log = field(default_factory=Log)
    """What is to be said at the end."""


T = TypeVar("T")
R = TypeVar("R")

Nested = Callable[["NodeCall", Graph, Mapping[str, object], str], Awaitable[Execution]]
"""Runs a graph inside a call: the call, the graph, its inputs, the prefix of its nodes' names."""


class NodeCall:
    """One call of a node, as the node sees it.

    Args:
        step: Of which node.
        label: The call's: `findings[2]`, `answer/brief/findings[2]`.
        inputs: The digests of what it takes.
        shared: What it has in common with all calls.
        nested: Runs a graph inside it.
        parent: The call that it is nested in.

    Attributes:
        pulse: Its signs of life.
        attempts: What finished inside of it and of the calls that it is nested in, for the next
            attempt of one of them; None if none is called again.
        left: What attempts left for the next one to know, by any key; also of those that it is
            nested in.
    """

    def __init__(
        self,
        step: Step,
        *,
        label: str,
        inputs: Digests,
        shared: Shared,
        nested: Nested,
        parent: NodeCall | None = None,
    ) -> None:
        self.label = label
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.pulse: Pulse = Pulse(None if parent is None else parent.pulse)
        self.attempts: Earlier | None = None if parent is None else parent.attempts
        if self.attempts is None and step.policies.retry is not None:
            self.attempts = Earlier()
        self.left: dict[object, object] = {} if parent is None else parent.left
        self._repeats = 0
        self._parent = parent
        self._step = step
        self._inputs = inputs
        self._shared = shared
        self._nested = nested
        self._counts: Counter[str] = Counter()
        # The tasks of the node that wait for something nested.
        self._nesting: set[asyncio.Task[Any]] = set()

    @property
    def repeats(self) -> int:
        """How often it was called again by now, and what it is nested in."""
        return self._repeats + (0 if self._parent is None else self._parent.repeats)

    def begin_attempt(self, attempt: int) -> None:
        """From here on things are counted anew.

        So what the call does in a second attempt bears the names that it had in the first: what
        finished then is found, here as in a resumed run, which begins with a first one.
        """
        self._repeats = attempt - 1
        if self._counts:
            # What was left out inside the attempt before is done again, or left out again.
            log, inside = self._shared.log, f"{self.label}/"
            log.skips[:] = [one for one in log.skips if not one.node.startswith(inside)]
            log.failed_inside[:] = [
                one for one in log.failed_inside if not one.node.startswith(inside)
            ]
        self._counts.clear()

    async def end_attempt(self) -> None:
        """Ends what is nested in the call and still goes on: `asyncio.gather` leaves the rest."""
        left = set(self._nesting)
        for task in left:
            task.cancel()
        try:
            if left:
                await asyncio.wait(left, timeout=GRACE_S)
        finally:
            for task in left:
                leave_behind(task, label=self.label, log=self._shared.log)

    def beat(self) -> None:
        """A sign of life, for `Timeout(idle_s=…)`; also of the calls that it is nested in."""
        self.pulse.beat()

    def key(self, kind: str) -> str:
        """A name for the next thing of a kind that this call does.

        The same in every part of the run, as long as the call's inputs and its code are: `text#1@`
        and a digest of these.
        """
        self._counts[kind] += 1
        said = "\n".join([kind, self._step.code, *(f"{k}={v}" for k, v in self._inputs.items())])
        digest = hashlib.sha256(said.encode()).hexdigest()[:16]
        return f"{self.label}#{self._counts[kind]}@{digest}"

    async def call(self, graph: Graph, inputs: Mapping[str, object]) -> Mapping[str, object]:
        """Runs another graph inside this call, with the same record; returns what its nodes gave.

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
        parallel: int | None = None,
        retry: Retry | None = None,
    ) -> list[Any]:
        """Calls a function for each item, in parallel, each a step of the run like a node's item.

        Args:
            function: Plain or async, of one parameter, and of the `run` if it likes.
            items: What it is called with.
            name: What the step is called; as the function when left out.
            parallel: How many at once.
            retry: Whether what raised is called again.

        Returns:
            What it returned, in the order of the items.

        Raises:
            PipelineInvalid: The function cannot be a step.
            NodeFailed: A call failed.
            RunLimitReached: A limit of the run ended it.
        """
        policies = Policies(
            retry=retry, concurrency=Concurrency(parallel) if parallel is not None else None
        )
        node = read_node(function, name=name, policies=policies)
        if len(node.parameters) != 1:
            raise InvalidInput(
                f"run.map calls '{node.name}' with one item at a time, and it takes "
                f"{len(node.parameters)} values; what is the same for all it can see from inside "
                "the node",
                code="pipeline.map-takes-one-value",
            )
        item = replace(node.parameters[0], source="items", is_mapped=True)
        graph = Graph(self.label)
        graph.add(replace(node, name=self._numbered(node.name), parameters=(item,)))
        graph.check()
        ended = await self._inside(graph, {"items": list(items)}, f"{self.label}/")
        (values,) = _whole(ended).outputs.values()
        assert isinstance(values, list)
        return values

    async def ask(self, text: str, returns: Any = str) -> Any:  # noqa: ANN401
        """What a person answers.

        Args:
            text: The question.
            returns: The type of the answer.

        Raises:
            Suspended: Nobody has answered yet: the node ends here, and is called again when
                somebody has.
        """
        shared, key = self._shared, self._numbered("ask")
        question = Question(
            key=f"{self.label}/{key}", node=self.label, text=text, form=form_of_answer(returns)
        )
        given = shared.answers.get((question.key, text))
        if given is None:
            given = await self._asked(question)
        while given is not None:
            try:
                answer = parse_answer(given, returns)
            except ValueError:
                question = replace(question, problem=not_an_answer(given, question.form))
                given = await self._asked(question)
            else:
                shared.answers[question.key, text] = given
                shared.tracer.instant(
                    "answer",
                    key=question.key,
                    text=shared.tracer.excerpt(text),
                    answer=shared.tracer.excerpt(given),
                )
                # Nobody likes to be asked twice.
                await shared.tracer.persisted()
                return answer
        shared.tracer.instant(
            "question", key=question.key, text=shared.tracer.excerpt(text), form=question.form
        )
        raise Suspended(question)

    async def _asked(self, question: Question) -> object | None:
        """What a person says to a question at once; None if nobody is there."""
        asker = self._shared.asker
        if asker is None:
            return None
        with self.pulse.ask():
            return await asker(question)

    async def _inside(self, graph: Graph, values: Mapping[str, object], prefix: str) -> Execution:
        """Runs a graph inside the call, whose place is free for its nodes meanwhile."""
        places = self._shared.places
        task = asyncio.current_task()
        assert task is not None
        if not self._nesting:
            # When its nodes are in the queue, which go before others.
            asyncio.get_running_loop().call_soon(places.give_back)
        self._nesting.add(task)
        try:
            return await self._nested(self, graph, values, prefix)
        finally:
            self._nesting.discard(task)
            if not self._nesting:
                places.take_again()

    def _numbered(self, name: str) -> str:
        """The name, with a number from its second use in this call on."""
        self._counts[name] += 1
        count = self._counts[name]
        return name if count == 1 else f"{name}#{count}"


def _whole(ended: Execution) -> Execution:
    """The end of a nested graph, if it gave all that it could."""
    if ended.failures:
        first, *others = ended.failures
        failed = NodeFailed(first.node, first.error, attempts=first.attempts, others=len(others))
        failed.result = ended
        raise failed from first.error
    if ended.stopped_by is not None:
        raise ended.stopped_by
    if ended.questions:
        raise Suspended(*ended.questions)
    return ended


OnItem = Callable[[int, object, bytes], Awaitable[None]]
"""Told each item of a generating node: its index, itself, and itself as JSON."""


_TRACEBACK_CHARS = 20_000
"""Of a traceback, in the record: the end says most."""


class CallFailed(Exception):
    """A call whose last attempt raised.

    Attributes:
        error: What it raised.
        attempts: How often it was called.
    """

    def __init__(self, error: BaseException, attempts: int) -> None:
        super().__init__(message_of(error))
        self.error = error
        self.attempts = attempts


class Call(NamedTuple):
    """One call to be made."""

    step: Step
    """Of which node."""
    path: str
    """The node's, in the run."""
    label: str
    """The same with the item: `findings[2]`."""
    item: int | None
    """Which item; None for all at once."""
    arguments: dict[str, Any]
    """By parameter, without the run."""
    inputs: Digests
    """The digests of the arguments."""
    needs: tuple[int | str, ...]
    """The spans in which they were made; of what an earlier part of the run made, labels."""
    handle: NodeCall | None
    """What stands behind its `run`; None when nothing asks for it."""
    around: NodeCall | None
    """The call that it is nested in."""
    on_item: OnItem | None
    """Told each item as it comes; None unless the node generates them for others."""


async def perform(call: Call, shared: Shared) -> Given:
    """Calls the node until it gives something that it may give, as often as its policy allows.

    Raises:
        CallFailed: It did not.
        Suspended: A person has to answer first.
    """
    task = asyncio.current_task()
    assert task is not None
    attempt = 1
    while True:
        try:
            return await _attempt(call, attempt, shared)
        except BaseException as raised:
            error = leaf(raised)
            if isinstance(error, asyncio.CancelledError):
                # Let through, it would look as if the run had been cancelled.
                whose = "its task" if task.cancelling() else "what it waited for"
                what = asyncio.CancelledError(f"{whose} was cancelled")
                raise CallFailed(what, attempt) from raised
            if not isinstance(error, Exception):
                if error is raised:
                    raise
                raise error from raised
            # What raises as it is cancelled is not to begin again.
            delay_s = None if task.cancelling() else _delay_s(call, error, attempt)
            if delay_s is None:
                raise CallFailed(error, attempt) from error
        shared.tracer.instant(
            "retry",
            node=call.label,
            reason=type(error).__name__,
            detail=shared.tracer.excerpt(message_of(error)),
            attempt=attempt,
            delay_s=delay_s,
        )
        attempt += 1
        with nullcontext() if call.around is None else call.around.pulse.doing("rest"):
            await asyncio.sleep(delay_s)


def _delay_s(call: Call, error: Exception, attempt: int) -> float | None:
    """How long to wait before the next attempt, in seconds; None if there is to be none."""
    retry = call.step.policies.retry
    if retry is None or isinstance(_cause(error), InvalidInput | LimitReached):
        return None
    if call.on_item is not None:
        return None  # others may have gone on with what it gave, and it might give other things
    return retry.delay_s(error, attempt=attempt)


def _cause(error: BaseException) -> BaseException:
    """What was raised at first, in the innermost of nested pipelines."""
    while isinstance(error, NodeFailed) and error.__cause__ is not None:
        error = error.__cause__
    return error


async def _attempt(call: Call, attempt: int, shared: Shared) -> Given:
    step, tracer = call.step, shared.tracer
    path = call.path
    tracer.check_written()
    with tracer.span(
        "node", track=f"node {path}", label=call.label, node=path, item=call.item
    ) as span:
        if attempt > 1:
            span.set(attempt=attempt)
        needs = call.needs
        tracer.flows("output", sources=[n for n in needs if type(n) is int], target=span.id)
        if shared.earlier is not None and (before := [n for n in needs if type(n) is str]):
            span.set(needs=before)
        if call.handle is not None:
            call.handle.begin_attempt(attempt)
        arguments = call.arguments
        if step.node.takes_run:
            assert call.handle is not None
            arguments = {RUN_PARAMETER: shared.run_of(call.handle), **arguments}
        work = Work(call.label, step.node.function, arguments)
        made = _stream(call, work, shared) if step.item_form else shared.executor.call(work)
        timeout = step.policies.timeout
        try:
            if timeout is None or call.handle is None:
                value = await made
            else:
                pulse = call.handle.pulse
                value = await timed(made, timeout, pulse=pulse, label=call.label, log=shared.log)
        except Exception as error:
            said = "".join(traceback.format_exception(error))
            if len(said) > _TRACEBACK_CHARS:  # whole lines: half of a secret is not known for one
                said = said[-_TRACEBACK_CHARS:].partition("\n")[2]
            span.set(traceback=tracer.excerpt(said))
            raise
        finally:
            if call.handle is not None:
                await call.handle.end_attempt()
        value = step.form.check(value)
        return Given(value, step.form.encode(value), span.id)


async def _stream(call: Call, work: Work, shared: Shared) -> list[object]:
    """All items of a generating node, each handed on as it comes."""
    form = call.step.item_form
    assert form is not None
    items: list[object] = []
    async with aclosing(shared.executor.stream(work)) as stream:
        async for item in stream:
            checked = form.check(item)
            if call.on_item is not None:
                await call.on_item(len(items), checked, form.encode(checked))
            items.append(checked)
            if call.handle is not None:
                call.handle.beat()
    return items


def leaf(error: BaseException) -> BaseException:
    """The first error of nested groups; before it what is no failure, as when a person is asked."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [leaf(one) for one in error.exceptions]
    first = min(leaves, key=_rank)
    if isinstance(first, Suspended):
        asking = [one for one in leaves if isinstance(one, Suspended)]
        return Suspended(*(question for one in asking for question in one.questions))
    return first


def _rank(error: BaseException) -> int:
    if isinstance(error, asyncio.CancelledError):
        return 2
    return 1 if isinstance(error, Exception) else 0


class Suspended(BaseException):
    """Questions have no answer yet.

    No `Exception`: a node that catches whatever may go wrong must not take this for a mistake.

    Attributes:
        questions: What was asked: more than one where the node asks several things at once.
    """

    def __init__(self, *questions: Question) -> None:
        super().__init__("; ".join(one.text for one in questions))
        self.questions = questions
