"""Which models the nodes of a pipeline ask, and in which order, as far as they declare it.

A node's `models=[…]` lists all roles that it asks, and a revise loop declares its models when it
begins. The rest is unknown.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType

from harness.graph import Graph
from harness.log import log_warning
from harness.residency import NOTHING_KNOWN, Forecast, Strand
from harness.session.roles import EVALUATOR, KNOWN_ROLES, PRODUCER, Roles, refuse_misspelt
from harness.trace.records import label_of, node_of_all

# The methods of a `Run` that judge.
_JUDGING = frozenset({"wiggum", "evaluate"})


def demand_of(graph: Graph) -> dict[str, tuple[str, ...] | None]:
    """Node → the roles that a call of it asks, each once; None if it does not declare them."""
    demand: dict[str, tuple[str, ...] | None] = {}
    for name, node in graph.nodes.items():
        # Without a `Run`, a node cannot ask any.
        roles = node.policies.over(graph.policies).models if node.takes_run else ()
        demand[name] = None if roles is None else tuple(dict.fromkeys(roles))
    return demand


def needed_roles(graph: Graph) -> dict[str, str]:
    """Role → the node that declares it, in words, for roles that a run cannot do without."""
    needed = {}
    for node in graph.nodes.values():
        roles = node.policies.over(graph.policies).models or ()
        for role in roles:
            # A node that declares producer and evaluator revises; without an evaluator, its
            # rubric's checks in code judge alone.
            if role != EVALUATOR or PRODUCER not in roles:
                needed[role] = f"node '{node.name}' ({node.path}:{node.line})"
    return needed


def models_of(names: Sequence[str], roles: Roles) -> tuple[str, ...]:
    """Tags of the models of roles, in their order and without fallbacks."""
    return _without_repeats(tag for name in names for tag in roles.tags(name))


def _without_repeats(tags: Iterable[str]) -> tuple[str, ...]:
    """Takes calls of one model in a row as one."""
    return tuple(tag for tag, _ in itertools.groupby(tags))


def judges(graph: Graph) -> bool:
    """Whether a node is seen to judge: by the roles it declares, or else by names in its code."""
    if any(EVALUATOR in roles for roles in demand_of(graph).values() if roles):
        return True
    return any(
        not _JUDGING.isdisjoint(code.co_names) or EVALUATOR in code.co_consts
        for code in _undeclared_code(graph)
    )


def check_roles(roles: Iterable[str], graph: Graph) -> None:
    """Warns of roles that a command names and no node is seen to ask; refuses misspelt ones."""
    declared = set(KNOWN_ROLES).union(*filter(None, demand_of(graph).values()))
    words = {word for code in _undeclared_code(graph) for word in _texts_in(code)}
    for role in roles:
        if role in declared | words:
            continue
        refuse_misspelt(role, declared)
        log_warning(
            f"no node of '{graph.name}' is seen to ask role '{role}'", code="roles.not-asked"
        )


def _undeclared_code(graph: Graph) -> Iterator[CodeType]:
    """The code of the nodes that do not declare which roles they ask."""
    for name, roles in demand_of(graph).items():
        # The code of functions that the node calls is not looked at.
        code = getattr(inspect.unwrap(graph.nodes[name].function), "__code__", None)
        if roles is None and code is not None:
            yield code


def _texts_in(code: CodeType) -> Iterator[str]:
    """The constant texts of a function, and of functions that it defines."""
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield from _texts_in(constant)


# --- one call of a node ---------------------------------------------------------------------------


class CallDemand:
    """The models that one call of a node will still ask. Its `Run` reports each that it asks.

    Attributes:
        was_surprised: Whether it asked a model that was not expected then.
    """

    def __init__(
        self, tags: Sequence[str], *, roles: Roles, on_change: Callable[[], None] = lambda: None
    ) -> None:
        # Both begin with the present or next model. Those of revise loops come first.
        self._declared_ahead = list(tags)
        self._loop_ahead: list[str] = []
        # All models of the revise loops that go on, and the number of these loops.
        self._loop_models: frozenset[str] = frozenset()
        self._open_loops = 0
        self._roles = roles
        self._on_change = on_change
        self.was_surprised = False

    @property
    def ahead(self) -> tuple[str, ...]:
        """Tags, the present or next one first; calls of one model in a row count as one."""
        return _without_repeats((*self._loop_ahead, *self._declared_ahead))

    def note_call(self, model: str) -> None:
        """Notes that a call of this model begins."""
        if model in self._loop_ahead:
            self._loop_ahead = self._loop_ahead[self._loop_ahead.index(model) :]
        elif model in self._loop_models:
            # The loop has more rounds than forecast, or a loop beside it goes on: the other models
            # of the loops may follow once more.
            self._loop_ahead = [model, *sorted(self._loop_models - {model})]
        elif model not in self._declared_ahead:
            self.was_surprised = True
            self._declared_ahead.insert(0, model)
        else:
            # The models before it move to the end: a call may alternate between its models.
            position = self._declared_ahead.index(model)
            skipped = self._declared_ahead[:position]
            self._declared_ahead = self._declared_ahead[position:] + skipped
        self._on_change()

    @contextmanager
    def revising(self, *, rounds: int, has_draft: bool, is_judged: bool) -> Iterator[None]:
        """Surrounds a revise loop, which may still make `rounds` evaluations."""
        producers = self._roles.tags(PRODUCER)
        models = [*producers, *(self._roles.tags(EVALUATOR) if is_judged else ())]
        self._open_loops += 1
        self._loop_models |= frozenset(models)
        self._loop_ahead = models * rounds
        if has_draft:
            del self._loop_ahead[: len(producers)]  # the first round only judges
        self._declared_ahead = [tag for tag in self._declared_ahead if tag not in models]
        self._on_change()
        try:
            yield
        finally:
            self._open_loops -= 1
            if not self._open_loops:
                self._loop_ahead = []
                self._loop_models = frozenset()
            self._on_change()


# --- the forecast of a run ------------------------------------------------------------------------


class Forecaster:
    """Forecasts which models a run will ask, from its graph's `Watcher` events and the calls made.

    A node that has not begun is a strand, which comes after those of the nodes that it waits for. A
    mapped node is one strand for all items still to come, and one for each that is under way.
    Graphs that a node calls belong to its strand. `expect` receives each forecast that differs.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        roles: Roles,
        asks_in_background: bool = False,
        expect: Callable[[Forecast], None],
    ) -> None:
        self._roles = roles
        self._expect = expect
        # The nodes that have not ended, but for those that ask no model.
        self._nodes = {
            name: _NodeAhead(
                name=name,
                tags=models_of(names or (), roles),
                asks_only_declared=names is not None,
                call_count=None if graph.nodes[name].is_mapped else 1,
                ancestors=_ancestors(graph, name),
            )
            for name, names in demand_of(graph).items()
            if names != ()  # None: undeclared, so it may ask any
        }
        self._unended_nodes = len(graph.nodes)  # with those that ask no model
        # Passages are also embedded in the background, where no node's call shows it.
        self._asks_in_background = asks_in_background
        self._last_forecast = NOTHING_KNOWN
        self._has_begun = False  # whether any call has
        self._is_scheduled = False  # whether a forecast is about to be made

    def call(self, label: str) -> CallDemand | None:
        """The demand of a call, for the `Run` of each attempt; None if its node asks no model.

        Args:
            label: The call's: `findings[2]`, or `findings[2]/brief/text` for one nested in it.
        """
        outermost, _, inside = label.partition("/")
        node = self._nodes.get(node_of_all(outermost))
        if node is None:
            return None
        if not inside:
            self._expect_declared(node, outermost)
        return node.calls.get(outermost)

    # --- what happens in the graph ----------------------------------------------------------------

    # As `graph.node_call.Watcher` says. A forecast is made later, of all that happened until then.

    def begins(self, node: str, item: int | None) -> None:
        """A call is made."""
        self._has_begun = True
        self._schedule_forecast()
        if (ahead := self._nodes.get(node)) is not None:
            label = label_of(node, item)
            ahead.begun.add(label)
            self._expect_declared(ahead, label)

    def ends(self, node: str, item: int | None) -> None:
        """An item, or a node as a whole, has an outcome."""
        self._schedule_forecast()
        if item is None:
            self._unended_nodes -= 1
            self._nodes.pop(node, None)
        elif (ahead := self._nodes.get(node)) is not None:
            label = label_of(node, item)
            ahead.begun.add(label)  # an item with an earlier part's output ends without beginning
            call = ahead.calls.pop(label, None)
            if call is not None and call.was_surprised:
                ahead.asks_only_declared = False

    def counts(self, node: str, total: int) -> None:
        """The number of items of a mapped node is known."""
        if node in self._nodes:
            self._nodes[node].call_count = total
            self._schedule_forecast()

    def _expect_declared(self, node: _NodeAhead, label: str) -> None:
        """Expects all models that the node declares, for a call or an attempt that begins."""
        node.calls[label] = CallDemand(
            node.tags, roles=self._roles, on_change=self._schedule_forecast
        )

    # --- what the budget expects ------------------------------------------------------------------

    def _schedule_forecast(self) -> None:
        # Until the first call begins, a run that is resumed or has a cache is still finding the
        # outputs that it can reuse.
        if self._has_begun and not self._is_scheduled:
            self._is_scheduled = True
            # One forecast for all that happens in one step of the event loop.
            asyncio.get_running_loop().call_soon(self._pass_on)

    def _pass_on(self) -> None:
        self._is_scheduled = False
        # After the last node, the budget alone decides what stays in memory.
        forecast = self._forecast() if self._unended_nodes else NOTHING_KNOWN
        if forecast != self._last_forecast:
            self._last_forecast = forecast
            self._expect(forecast)

    def _forecast(self) -> Forecast:
        nodes = self._nodes.values()
        strands = [strand for node in nodes for strand in node.strands(self._nodes)]
        return Forecast(
            strands=tuple(strand for strand in strands if strand.uses),
            is_complete=not self._asks_in_background and all(node.is_foreseen for node in nodes),
        )


@dataclass(slots=True, kw_only=True)
class _NodeAhead:
    """A node that has not ended."""

    name: str
    tags: tuple[str, ...]
    """The models that it declares."""
    asks_only_declared: bool
    """Whether it declares its models, and no call that has ended asked for another."""
    call_count: int | None
    """How many calls it has; None as long as the number of items is unknown."""
    ancestors: tuple[str, ...]
    """The nodes that it waits for."""
    begun: set[str] = field(default_factory=set)
    """Labels of the calls that are under way or have ended."""
    calls: dict[str, CallDemand] = field(default_factory=dict)
    """Label → a call that is under way."""

    @property
    def is_foreseen(self) -> bool:
        """Whether it has asked for no other models than it declares."""
        return self.asks_only_declared and not any(
            call.was_surprised for call in self.calls.values()
        )

    def strands(self, nodes: Mapping[str, _NodeAhead]) -> Iterator[Strand]:
        """A strand for the calls to come, if there are some, and one for each call under way."""
        if self.call_count is None or len(self.begun) < self.call_count:
            before = [name for name in self.ancestors if name in nodes]
            calls = [label for name in before for label in nodes[name].calls]
            yield Strand(name=self.name, uses=self.tags, after=frozenset([*before, *calls]))
        for label, call in self.calls.items():
            # Names of strands differ: an item's label is no node's name, and a node that is not
            # mapped either has begun or has not.
            yield Strand(name=label, uses=call.ahead)


def _ancestors(graph: Graph, name: str) -> tuple[str, ...]:
    """All nodes that a node waits for, directly or not."""
    ancestors: dict[str, None] = {}
    unvisited = [name]
    while unvisited:
        for source in graph.dependencies(graph.nodes[unvisited.pop()]):
            if source not in ancestors:
                ancestors[source] = None
                unvisited.append(source)
    return tuple(ancestors)
