"""Which models the nodes of a pipeline ask, and in which order, as far as declared.

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

MEMORY = "memory"
"""The role of calls for the vectors of passages; an endpoint need not play it."""

# The methods of a `Run` that judge.
_JUDGING = frozenset({"wiggum", "evaluate"})


def demand_of(graph: Graph) -> dict[str, tuple[str, ...] | None]:
    """By node, the roles that a call of it asks, each once; None where the node does not say."""
    declared = {
        name: node.policies.over(graph.policies).models if node.takes_run else ()
        for name, node in graph.nodes.items()
    }
    return {name: roles and tuple(dict.fromkeys(roles)) for name, roles in declared.items()}


def needed_roles(graph: Graph) -> dict[str, str]:
    """The roles that nodes declare, and which node does."""
    needed = {}
    for node in graph.nodes.values():
        roles = node.policies.over(graph.policies).models or ()
        for role in roles:
            # A node that declares both revises: without an evaluator, code alone checks.
            if role != EVALUATOR or PRODUCER not in roles:
                needed[role] = f"node '{node.name}' ({node.path}:{node.line})"
    return needed


def models_of(names: Sequence[str], roles: Roles, memory: Sequence[str]) -> tuple[str, ...]:
    """Tags of the models of these roles, each stretch of one model once; no fallbacks.

    `memory` are the endpoints that embed passages and rank them.
    """
    tags = (memory if name == MEMORY else roles.tags(name) for name in names)
    return _stretches(itertools.chain.from_iterable(tags))


def _stretches(tags: Iterable[str]) -> tuple[str, ...]:
    return tuple(tag for tag, _ in itertools.groupby(tags))


def judges(graph: Graph) -> bool:
    """Whether a node is seen to judge: by what it declares, or else by the names in its code."""
    return any(EVALUATOR in roles for roles in demand_of(graph).values() if roles) or any(
        not _JUDGING.isdisjoint(code.co_names) or EVALUATOR in code.co_consts
        for code in _undeclared(graph)
    )


def check_roles(roles: Iterable[str], graph: Graph) -> None:
    """Warns of roles that a command names, and no node is seen to ask.

    Raises:
        ConfigurationInvalid: One is nearly the name of a role that is asked.
    """
    declared = set(KNOWN_ROLES).union(*filter(None, demand_of(graph).values()))
    words = {word for code in _undeclared(graph) for word in _words_in(code)}
    for role in roles:
        if role in declared | words:
            continue
        refuse_misspelt(role, declared)
        log_warning(
            f"no node of '{graph.name}' is seen to ask role '{role}'", code="roles.not-asked"
        )


def _undeclared(graph: Graph) -> Iterator[CodeType]:
    """The code of the nodes that do not say which roles they ask."""
    for name, roles in demand_of(graph).items():
        # What a function that it calls does, shows only when it is called.
        code = getattr(inspect.unwrap(graph.nodes[name].function), "__code__", None)
        if roles is None and code is not None:
            yield code


def _words_in(code: CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):  # a function in the function
            yield from _words_in(constant)


# --- one call of a node ---------------------------------------------------------------------------


class CallDemand:
    """What one call of a node still asks; its `Run` reports what it asks.

    Attributes:
        was_surprised: Whether it asked a model that was not expected then.
    """

    def __init__(
        self, uses: Sequence[str], *, roles: Roles, moved: Callable[[], None] = lambda: None
    ) -> None:
        self._ahead = list(uses)
        self._roles = roles
        self._moved = moved
        self._loop: list[str] = []
        self._loop_models: frozenset[str] = frozenset()
        self._loops = 0
        self.was_surprised = False

    @property
    def ahead(self) -> tuple[str, ...]:
        """Tags, the present or next one first, each stretch of one model once."""
        return _stretches((*self._loop, *self._ahead))

    def asks(self, model: str) -> None:
        """A call of a model begins."""
        if model in self._loop:
            self._loop = self._loop[self._loop.index(model) :]
        elif model in self._loop_models:
            # More rounds than were said, or of another loop: then the others follow, once.
            self._loop = [model, *sorted(self._loop_models - {model})]
        elif model not in self._ahead:
            self.was_surprised = True
            self._ahead.insert(0, model)
        else:
            # Those before it stay, behind: a call may alternate between its models.
            at = self._ahead.index(model)
            self._ahead = self._ahead[at:] + self._ahead[:at]
        self._moved()

    @contextmanager
    def revising(self, *, rounds: int, has_draft: bool, is_judged: bool) -> Iterator[None]:
        """Around a revise loop, which may still make `rounds` evaluations."""
        judges = self._roles.tags(EVALUATOR) if is_judged else ()
        turn = [*self._roles.tags(PRODUCER), *judges]
        self._loops += 1
        self._loop_models |= frozenset(turn)
        self._loop = (turn * rounds)[len(turn) - len(judges) if has_draft else 0 :]
        self._ahead = [tag for tag in self._ahead if tag not in turn]
        self._moved()
        try:
            yield
        finally:
            self._loops -= 1
            if not self._loops:
                self._loop, self._loop_models = [], frozenset()
            self._moved()


# --- the forecast of a run ------------------------------------------------------------------------


class Forecaster:
    """Keeps the forecast of one run as its nodes begin, ask and end. A `Watcher` of its graph.

    A node that has not begun is a strand, behind those of the nodes that it waits for; one that is
    mapped is a strand for all items still to come, and one for each that is under way. What is
    nested in a node belongs to its strand. `expect` receives each forecast that differs.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        roles: Roles,
        memory: Sequence[str] = (),
        expect: Callable[[Forecast], None],
    ) -> None:
        self._roles = roles
        self._expect = expect
        self._nodes = {
            name: _NodeAhead(
                name=name,
                uses=models_of(names or (), roles, memory),
                is_all=names is not None,
                total=None if graph.nodes[name].is_mapped else 1,
                after=_ancestors(graph, name),
            )
            for name, names in demand_of(graph).items()
            if names != ()
        }
        self._nodes_left = len(graph.nodes)
        # Passages are also embedded in the background.
        self._asks_unseen = bool(memory)
        self._last_forecast = NOTHING_KNOWN
        self._has_begun = False
        self._is_to_tell = False

    def call(self, label: str) -> CallDemand | None:
        """For the `Run` of a call, at each attempt; None for a node that was not to have one.

        Args:
            label: The call's: `findings[2]`, or `findings[2]/brief/text` for one nested in it.
        """
        outermost, _, inside = label.partition("/")
        ahead = self._nodes.get(node_of_all(outermost))
        if ahead is None:
            return None
        if not inside:
            self._expect_all(ahead, outermost)
        return ahead.calls.get(outermost)

    # --- what the graph says ----------------------------------------------------------------------

    def begins(self, node: str, item: int | None) -> None:
        """See `Watcher.begins`."""
        self._has_begun = True
        self._tell_soon()
        if (ahead := self._nodes.get(node)) is not None:
            label = label_of(node, item)
            ahead.begun.add(label)
            self._expect_all(ahead, label)

    def ends(self, node: str, item: int | None) -> None:
        """See `Watcher.ends`."""
        self._tell_soon()
        if item is None:
            self._nodes_left -= 1
            self._nodes.pop(node, None)
        elif (ahead := self._nodes.get(node)) is not None:
            label = label_of(node, item)
            ahead.begun.add(label)  # one that an earlier part of the run made ends at once
            call = ahead.calls.pop(label, None)
            ahead.is_all &= call is None or not call.was_surprised

    def counts(self, node: str, total: int) -> None:
        """See `Watcher.counts`."""
        if node in self._nodes:
            self._nodes[node].total = total
            self._tell_soon()

    def _expect_all(self, ahead: _NodeAhead, label: str) -> None:
        """Expects all that the node may use, for a call or an attempt that begins."""
        ahead.calls[label] = CallDemand(ahead.uses, roles=self._roles, moved=self._tell_soon)

    # --- what is told -----------------------------------------------------------------------------

    def _tell_soon(self) -> None:
        # Before the first call begins, a run that is resumed, or has a cache, still finds out what
        # it need not do.
        if self._has_begun and not self._is_to_tell:
            self._is_to_tell = True
            # Once for all that happens in one step of the event loop.
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._is_to_tell = False
        # When all is over, what stays in memory is for the budget to say, which closes.
        forecast = self._forecast() if self._nodes_left else NOTHING_KNOWN
        if forecast != self._last_forecast:
            self._last_forecast = forecast
            self._expect(forecast)

    def _forecast(self) -> Forecast:
        strands = [strand for node in self._nodes.values() for strand in node.strands(self._nodes)]
        return Forecast(
            strands=tuple(strand for strand in strands if strand.uses),
            is_complete=not self._asks_unseen
            and all(
                node.is_all and not any(call.was_surprised for call in node.calls.values())
                for node in self._nodes.values()
            ),
        )


@dataclass(slots=True, kw_only=True)
class _NodeAhead:
    """A node that has not ended."""

    name: str
    uses: tuple[str, ...]
    is_all: bool
    """Whether it asks nothing but what it declares, as far as its calls have ended."""
    total: int | None
    """How many calls it has; None as long as that is not known."""
    after: tuple[str, ...]
    begun: set[str] = field(default_factory=set)
    """Labels of the calls that are under way or have ended."""
    calls: dict[str, CallDemand] = field(default_factory=dict)
    """Those under way, by label."""

    def strands(self, nodes: Mapping[str, _NodeAhead]) -> Iterator[Strand]:
        """What has not begun, and what is under way."""
        if self.total is None or len(self.begun) < self.total:
            before = [name for name in self.after if name in nodes]
            calls = [label for name in before for label in nodes[name].calls]
            yield Strand(name=self.name, uses=self.uses, after=frozenset([*before, *calls]))
        for label, call in self.calls.items():
            # An item's label is no node's name; a node that is not mapped has one strand at a time.
            yield Strand(name=label, uses=call.ahead)


def _ancestors(graph: Graph, name: str) -> tuple[str, ...]:
    """All nodes that a node waits for, directly or not."""
    ancestry: dict[str, None] = {}
    to_ask = [name]
    while to_ask:
        for source in graph.dependencies(graph.nodes[to_ask.pop()]):
            if source not in ancestry:
                ancestry[source] = None
                to_ask.append(source)
    return tuple(ancestry)
