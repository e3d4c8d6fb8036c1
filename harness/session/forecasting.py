"""The forecast of a run: what its nodes will still ask of models, told as it changes.

A node that has not begun is a strand, behind those of the nodes that it waits for; one that is
mapped is a strand for all items that are still to come, and one for each that is under way. What is
nested in a node belongs to its strand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from harness.graph import Graph
from harness.residency import NOTHING_KNOWN, Forecast, Strand
from harness.session.cast import Cast
from harness.session.course import Course, Plan
from harness.session.node_uses import MEMORY, Loop, NodeUses
from harness.session.roles import EVALUATOR


class Foresight:
    """Takes down what a call of a node asks of models; its `Run` has it.

    Args:
        course: What the call still asks, or the one that it is nested in.
        cast: Who plays which role.
        moved: Told that the course may have become another.
    """

    def __init__(self, course: Course, cast: Cast, moved: Callable[[], None]) -> None:
        self._course = course
        self._cast = cast
        self._moved = moved

    @contextmanager
    def asking(self, model: str) -> Iterator[None]:
        """Around a call of a model."""
        self._course.asks(model)
        self._moved()
        try:
            yield
        finally:
            self._course.answered(model)
            self._moved()

    @contextmanager
    def revising(self, loop: Loop, *, rounds_before: int, is_judged: bool) -> Iterator[None]:
        """Around a revise loop.

        Args:
            loop: What is known of it.
            rounds_before: Those that it goes on behind.
            is_judged: Whether its rubric has anything that a model must judge.
        """
        rounds = self._cast.rounds_of(loop, rounds_before=rounds_before, is_judged=is_judged)
        begun = self._course.begin_loop(rounds)
        self._moved()
        try:
            yield
        finally:
            self._course.end_loop(begun)
            self._moved()


class Forecaster:
    """Keeps the forecast of one run. A `Watcher` of its graph.

    It says nothing before the first call begins: until then a run that is resumed, or has a cache,
    finds out what it need not do.

    Args:
        graph: What is run.
        uses: What its nodes ask, by name.
        cast: Who plays which role.
        expect: Told the forecast when it has become another: soon, and once for all that happens in
            one step of the event loop.
    """

    def __init__(
        self,
        graph: Graph,
        uses: Mapping[str, NodeUses],
        *,
        cast: Cast,
        expect: Callable[[Forecast], None],
    ) -> None:
        self._cast = cast
        self._expect = expect
        self._nodes = _nodes_ahead(graph, {name: cast.plan_of(one) for name, one in uses.items()})
        self._nodes_left = len(graph.nodes)
        roles = {role for one in uses.values() for role in one.roles}
        self._at_any_time: set[str] = set()
        if MEMORY in roles and cast.embedder:
            # Passages are embedded in the background as well, after whoever remembered them.
            self._at_any_time.add(cast.embedder)
        if EVALUATOR in roles and cast.summariser and cast.roles.evaluators:
            # Only a draft that is too long is shortened: not worth a load ahead.
            self._at_any_time.add(cast.summariser)
        self._under_way: dict[str, _UnderWay] = {}
        self._told = NOTHING_KNOWN
        self._has_begun = False
        self._is_to_tell = False

    def foresight(self, label: str) -> Foresight | None:
        """For the `Run` of a call, each attempt anew; None where the node was not to have a `Run`.

        Args:
            label: The call's: `findings[2]`, or `findings[2]/brief/text` for one nested in it.
        """
        outermost, _, inside = label.partition("/")
        call = self._under_way.get(outermost)
        if call is None:
            return None
        if not inside:
            call.course.begin_anew()
        return Foresight(call.course, self._cast, partial(self._note, call))

    # --- what the graph says ----------------------------------------------------------------------

    def begins(self, node: str, item: int | None) -> None:
        """See `Watcher.begins`."""
        self._has_begun = True
        self._tell_soon()
        ahead = self._nodes.get(node)
        if ahead is None:
            return
        label = node if item is None else f"{node}[{item}]"
        call = _UnderWay(label, Course(ahead.plan), ahead)
        ahead.begun.add(item)
        ahead.calls[item] = self._under_way[label] = call
        for follower in ahead.followers:
            follower.waiting = None  # it comes behind one more

    def ends(self, node: str, item: int | None) -> None:
        """See `Watcher.ends`."""
        self._tell_soon()
        if item is None:
            self._nodes_left -= 1
        ahead = self._nodes.get(node)
        if ahead is None:
            return
        if item is None:
            del self._nodes[node]
            ended = list(ahead.calls.values())
        else:
            ahead.begun.add(item)
            ended = [ahead.calls.pop(item)] if item in ahead.calls else []
        for call in ended:
            del self._under_way[call.label]

    def counts(self, node: str, total: int) -> None:
        """See `Watcher.counts`."""
        ahead = self._nodes.get(node)
        if ahead is not None:
            ahead.total = total
            self._tell_soon()

    # --- what is told -----------------------------------------------------------------------------

    def _note(self, call: _UnderWay) -> None:
        call.strand = None
        call.node.is_misread |= call.course.was_surprised
        self._tell_soon()

    def _tell_soon(self) -> None:
        if self._has_begun and not self._is_to_tell:
            self._is_to_tell = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._is_to_tell = False
        # When all is over, what is in memory is nobody's business but the budget's, which closes.
        forecast = self._forecast() if self._nodes_left else NOTHING_KNOWN
        if forecast != self._told:
            self._told = forecast
            self._expect(forecast)

    def _forecast(self) -> Forecast:
        strands: list[Strand] = []
        perhaps = set(self._at_any_time)
        for node in self._nodes.values():
            if node.has_more:
                strands.append(node.waiting or node.wait_behind(self._nodes))
                perhaps |= node.perhaps
            for call in node.calls.values():
                strands.append(call.strand or call.go_on())
                perhaps |= call.perhaps
        # Many are alike.
        expected = {model for uses in {strand.uses for strand in strands} for model in uses}
        return Forecast(
            strands=tuple(strand for strand in strands if strand.uses),
            is_complete=perhaps <= expected
            and all(node.plan.is_all and not node.is_misread for node in self._nodes.values()),
        )


@dataclass(slots=True, eq=False)
class _UnderWay:
    """A call that has begun."""

    label: str
    course: Course
    node: _NodeAhead
    # As they were when it last moved.
    strand: Strand | None = None
    perhaps: frozenset[str] = frozenset()

    def go_on(self) -> Strand:
        self.perhaps = self.course.perhaps
        self.strand = Strand(name=self.label, uses=self.course.ahead)
        return self.strand


@dataclass(slots=True, eq=False, kw_only=True)
class _NodeAhead:
    """A node that may ask models, and has not ended."""

    name: str
    plan: Plan
    uses: tuple[str, ...]
    perhaps: frozenset[str]
    is_mapped: bool
    # Whether a call of it has asked what was not foreseen, or in another order.
    is_misread: bool = False
    # The nodes that it waits for, and asks models behind.
    after: tuple[str, ...]
    followers: list[_NodeAhead] = field(default_factory=list)
    total: int | None = None
    # The items of which there is nothing to come, or which are under way; else None, once.
    begun: set[int | None] = field(default_factory=set)
    calls: dict[int | None, _UnderWay] = field(default_factory=dict)
    waiting: Strand | None = None

    @property
    def has_more(self) -> bool:
        """Whether there are calls that have not begun."""
        if not self.is_mapped:
            return not self.begun
        return self.total is None or len(self.begun) < self.total

    def wait_behind(self, nodes: Mapping[str, _NodeAhead]) -> Strand:
        """The strand of what has not begun."""
        names = set(self.after)
        for name in self.after:
            if name in nodes:
                names.update(call.label for call in nodes[name].calls.values())
        self.waiting = Strand(name=self.name, uses=self.uses, after=frozenset(names))
        return self.waiting


def _nodes_ahead(graph: Graph, plans: Mapping[str, Plan]) -> dict[str, _NodeAhead]:
    nodes: dict[str, _NodeAhead] = {}
    for name, plan in plans.items():
        if plan.parts or not plan.is_all:
            course = Course(plan)
            nodes[name] = _NodeAhead(
                name=name,
                plan=plan,
                uses=course.ahead,
                perhaps=course.perhaps,
                is_mapped=graph.nodes[name].is_mapped,
                after=tuple(_before(name, graph, plans)),
            )
    for node in nodes.values():
        for name in node.after:
            nodes[name].followers.append(node)
    return nodes


def _before(name: str, graph: Graph, plans: Mapping[str, Plan]) -> dict[str, None]:
    """The nodes that a node waits for and that may ask models.

    Those that they wait for are behind them, but for what is behind one that nothing is known of:
    its strand begins when it asks.
    """
    found: dict[str, None] = {}
    seen: set[str] = set()
    open_ = [name]
    while open_:
        for source in graph.dependencies(graph.nodes[open_.pop()]):
            if source in seen:
                continue
            seen.add(source)
            plan = plans[source]
            if plan.parts or not plan.is_all:
                found[source] = None
            if not plan.parts:
                open_.append(source)
    return found
