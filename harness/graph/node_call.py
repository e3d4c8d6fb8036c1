"""What a node can do with the graph that it is called in: nest, map, ask."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from harness.errors import InvalidInput, NodeFailed
from harness.graph.answer import form_of_answer, not_an_answer, parse_answer
from harness.graph.earlier import Earlier
from harness.graph.graph import Graph
from harness.graph.inputs import bind_inputs
from harness.graph.left_behind import leave_behind
from harness.graph.outcome import Execution, Question
from harness.graph.policies import Concurrency, Policies, Retry
from harness.graph.pulse import Pulse
from harness.graph.read_node import read_node
from harness.graph.shared import GRACE_S, Shared
from harness.graph.state import Digests
from harness.graph.suspended import Suspended

if TYPE_CHECKING:
    from harness.graph.plan import Step

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
