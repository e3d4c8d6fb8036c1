"""A graph compiled for execution, and the state of each node in one run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from pydantic_core import from_json, to_json

from harness.graph.annotations import asks_for, item_of
from harness.graph.fingerprint import Code, code_of
from harness.graph.graph import Graph, returned
from harness.graph.node import Node, Parameter
from harness.graph.outcome import Skipped
from harness.graph.policies import Policies
from harness.graph.values import (
    ValueForm,
    digest,
    digest_of_all,
    dump_plain,
    sets_in_order,
    value_form,
)

NO_DIGEST = ""
"""The digest of a value without a JSON form; it never equals another."""

PENDING: Final = object()
"""The placeholder for a future output."""


class Blocked(NamedTuple):
    """The placeholder for an output that this part of the run will not have."""

    label: str
    """The call whose end was the reason; empty if it was the whole run's."""
    what: str
    """How that call ended: `failed`."""

    @property
    def reason(self) -> str:
        """The same as a sentence."""
        return f"'{self.label}' {self.what}" if self.label else self.what


# --- the plan -----------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class Step:
    """A node, compiled for running."""

    node: Node
    policies: Policies
    """The node's policies over the graph's."""
    form: ValueForm
    """The form of one call's output."""
    item_form: ValueForm | None
    """The form of a generating node's items; None for other nodes."""
    code: Code
    mapped: tuple[Parameter, ...]
    whole: tuple[Parameter, ...]
    """Parameters that are not mapped, those of its `when` included."""
    takes_skipped: frozenset[str]
    """Parameters that ask for `Skipped`."""
    takes_skipped_items: frozenset[str]
    """Parameters that ask for lists with `Skipped` in them."""
    waits_for: int = 0
    """How many nodes it needs the whole output of."""
    consumers: list[Step] = field(default_factory=list)
    """Steps that need its whole output."""
    followers: list[Step] = field(default_factory=list)
    """Steps that take its items as they come."""

    @property
    def gives_items(self) -> bool:
        """Whether its output is made item by item."""
        return bool(self.mapped) or self.item_form is not None


_PLANS: WeakKeyDictionary[Graph, Sequence[Step]] = WeakKeyDictionary()


def plan_of(graph: Graph) -> Sequence[Step]:
    """The graph's nodes as steps, in the order of definition; compiled once for all its runs.

    Raises:
        PipelineInvalid: An annotation names something that does not exist.
    """
    plan = _PLANS.get(graph)
    # Nodes are only ever added.
    if plan is None or len(plan) != len(graph.nodes):
        plan = _PLANS[graph] = _compile(graph)
    else:
        for step in plan:  # the names in its code may mean something else now, as in a notebook
            step.code = code_of(step.node.function)
    return plan


def _compile(graph: Graph) -> list[Step]:
    steps = {node.name: _step(node, graph) for node in graph.nodes.values()}
    for step in steps.values():
        for name in step.node.sources:
            source = steps.get(name)
            if source is None:
                continue
            if source.gives_items and _streams(step, name):
                source.followers.append(step)
            else:
                source.consumers.append(step)
                step.waits_for += 1
    return list(steps.values())


def _step(node: Node, graph: Graph) -> Step:
    asked = node.when.parameters if node.when else ()
    return Step(
        node=node,
        policies=node.policies.over(graph.policies),
        form=value_form(returned(node)),
        item_form=value_form(item_of(node.annotation("return"))) if node.is_streaming else None,
        code=code_of(node.function),
        mapped=tuple(one for one in node.parameters if one.is_mapped),
        whole=tuple(one for one in (*node.parameters, *asked) if not one.is_mapped),
        takes_skipped=_asking(node, graph, lambda annotation: annotation),
        takes_skipped_items=_asking(node, graph, item_of),
    )


def _asking(node: Node, graph: Graph, part: Callable[[object], object]) -> frozenset[str]:
    """The parameters that ask for `Skipped` in a part of their annotation."""
    return frozenset(
        one.name
        for one in node.parameters
        if one.source in graph.nodes and asks_for(part(node.annotation(one.name)), Skipped)
    )


def _streams(step: Step, source: str) -> bool:
    """Whether a step takes only the items of a source, as they come."""
    return (
        step.node.combine == "zip"
        and any(one.source == source for one in step.mapped)
        and all(one.source != source for one in step.whole)
    )


# --- nodes --------------------------------------------------------------------------------------


def label_of(path: str, item: int | None) -> str:
    """The name of a node's call: `findings[2]`."""
    return path if item is None else f"{path}[{item}]"


class State:
    """The outputs of a step so far.

    Attributes:
        step: The step.
        path: The node's name in the run, behind the labels of the calls that it is nested in.
        places: Limits how many of its calls are under way; None without a limit.
        waits_for: How many nodes it still needs the whole output of.
        is_in_trouble: Whether the output of one of its sources is not a plain value.
        outcome: Its whole output, `Skipped` or `Blocked`; for a step that gives items, the list of
            all items, skipped ones included.
        digest: Of the whole output.
        span: Of its finished call; None if an earlier part of the run made it.
        spans: The same by item.
        items: The output of each call, by item; None until it has begun.
        digests: Of the items.
        total: How many items it will have; None as long as that is unknown.
        settled: How many items it has.
        sources: For each mapped parameter, the state or list that its items are from; empty until
            it has begun.
        begun: The items that have begun.
        obstacle: Why there will be no more items, if one of its sources ended early.
    """

    __slots__ = (
        "_wholes", "begun", "digest", "digests", "is_in_trouble", "items", "obstacle", "outcome",
        "path", "places", "settled", "sources", "span", "spans", "step", "total", "waits_for",
    )  # fmt: skip

    def __init__(self, step: Step, path: str) -> None:
        concurrency = step.policies.concurrency
        self.step = step
        self.path = path
        self.places = Places(concurrency.limit) if concurrency else None
        self.waits_for = step.waits_for
        self.is_in_trouble = False
        self.outcome: object = PENDING
        self.digest = NO_DIGEST
        self.span: int | None = None
        self.items: list[object] | None = None
        self.total: int | None = None
        self.settled = 0
        self.obstacle: Blocked | Skipped | None = None
        if step.gives_items:  # most do not, and large graphs have many
            self.spans: dict[int, int] = {}
            self.digests: list[str] = []
            self.sources: list[State | ListSource] = []
            self.begun: set[int] = set()
            self._wholes: dict[bool, tuple[list[object], str]] = {}

    def label(self, item: int | None) -> str:
        """A call's name: `findings[2]`."""
        return label_of(self.path, item)

    def note_span(self, item: int | None, span: int) -> None:
        """Records the span of a call."""
        if item is None:
            self.span = span
        else:
            self.spans[item] = span

    def item(self, index: int) -> object:
        """One of its items, or `PENDING`."""
        items = self.items
        return items[index] if items is not None and index < len(items) else PENDING

    def set_item(self, index: int, outcome: object, digest: str) -> None:
        """Records the output of an item's call."""
        assert self.items is not None
        missing = index + 1 - len(self.items)
        if missing > 0:
            self.items += [PENDING] * missing
            self.digests += [NO_DIGEST] * missing
        self.items[index] = outcome
        self.digests[index] = digest
        self.settled += 1

    def whole(self, *, with_skipped: bool) -> tuple[object, str]:
        """Its output as consumers take it, and its digest."""
        if self.items is None or not isinstance(self.outcome, list):
            return self.outcome, self.digest
        if with_skipped not in self._wholes:
            # Made once: a mapped consumer takes it with each of its items.
            self._wholes[with_skipped] = self._list_of_all(with_skipped=with_skipped)
        return self._wholes[with_skipped]

    def _list_of_all(self, *, with_skipped: bool) -> tuple[list[object], str]:
        """A new list of the items, since a consumer might change it."""
        assert self.items is not None
        if with_skipped or not any(type(item) is Skipped for item in self.items):
            return list(self.items), self.digest
        kept = [n for n, item in enumerate(self.items) if type(item) is not Skipped]
        return [self.items[n] for n in kept], digest_of_all(self.digests[n] for n in kept)

    def with_items_given(self, default: object) -> object:
        """A default for a failed call, after the items that others already have."""
        if self.step.item_form is None or self.step.mapped or not isinstance(default, list):
            return default
        return [*(self.items or ()), *default]

    @property
    def reach(self) -> int:
        """One more than the highest possible item so far."""
        return 0 if self.items is None else len(self.items)

    @property
    def has_ended(self) -> bool:
        """Whether it has its outcome."""
        return self.outcome is not PENDING

    @property
    def ended_early(self) -> bool:
        """Whether it will have no more items, and the number it would have had is unknown."""
        return self.has_ended and self.total is None


class ListSource(NamedTuple):
    """A list whose items a mapped node takes; stands in for a `State` that has ended."""

    values: list[object]
    digests: list[str]

    @property
    def total(self) -> int:
        """How many items."""
        return len(self.values)

    @property
    def reach(self) -> int:
        """As in `State`."""
        return len(self.values)

    @property
    def has_ended(self) -> bool:
        """As in `State`."""
        return True

    def item(self, index: int) -> object:
        """One of its items; `PENDING` after the last."""
        return self.values[index] if index < len(self.values) else PENDING


# --- calls --------------------------------------------------------------------------------------


class Taken(NamedTuple):
    """The arguments of one call."""

    arguments: dict[str, Any]
    inputs: dict[str, str]
    """The digests of the arguments, by parameter."""
    needs: tuple[int | str, ...]
    """The spans that made the arguments; labels, where an earlier part of the run made them."""


class Call:
    """One call of a node, or of one item, from the moment it may begin to its end.

    Attributes:
        state: Of its node.
        step: Its node.
        item: None for a node that is not mapped.
        taken: Set when it begins.
        has_place: Whether it counts as one of those under way.
        waits: Its waits, one after the other with their starts, until it began.
        is_made: Whether its function is running; only then can it be cancelled, since before and
            after there are only records to write.
    """

    __slots__ = ("has_place", "is_made", "item", "state", "step", "taken", "waits")

    def __init__(self, state: State, item: int | None, taken: Taken | None = None) -> None:
        self.state = state
        self.step = state.step
        self.item = item
        if taken is not None:
            self.taken = taken
        self.has_place = False
        self.waits: tuple[tuple[str, int], ...] = ()
        self.is_made = False

    @property
    def label(self) -> str:
        """Its name: `findings[2]`."""
        return self.state.label(self.item)


class Given(NamedTuple):
    """The output of one call."""

    value: object
    data: bytes
    """The value as JSON."""
    span: int
    """The span that made it; 0 if it existed before."""


_MOST_LOANS = 7
"""How many further calls may begin for each place while calls wait for their models."""


class Places:
    """Starts calls at once while there is room, else in order as places become free.

    Nested calls go first, so that begun calls end before others begin. A waiting call costs one
    queue entry, and no task.
    """

    __slots__ = ("_count", "_free", "_lent", "_most_lent", "_waiting")

    def __init__(self, limit: int | None) -> None:
        self._free = limit
        self._lent, self._most_lent = 0, _MOST_LOANS * (limit or 0)
        self._count = count()
        self._waiting: list[tuple[int, int, Callable[[], object]]] = []  # a heap

    def take(self, start: Callable[[], object], *, depth: int = 0) -> None:
        """Calls `start` when there is a place; `give_back` must follow.

        `depth` is the number of calls around that call.
        """
        if self._free is None:
            start()
        elif self._free + self._lent > 0:
            self._free -= 1
            start()
        else:
            heappush(self._waiting, (-depth, next(self._count), start))

    def take_again(self) -> None:
        """Takes a place without waiting, for a call that had lent its own to nested calls."""
        if self._free is not None:
            self._free -= 1

    def give_back(self) -> None:
        """Frees a place; the first call that waits gets it."""
        if self._free is not None:
            self._free += 1
            self._fill()

    def lend(self, idle: int) -> None:
        """Lets others begin while so many calls under way cannot go on, up to seven a place."""
        self._lent = min(idle, self._most_lent)
        self._fill()

    def _fill(self) -> None:
        while self._free is not None and self._waiting and self._free + self._lent > 0:
            self._free -= 1
            heappop(self._waiting)[-1]()


# --- digests ------------------------------------------------------------------------------------


def digest_of_value(value: object) -> str:
    """The digest of a value that a call takes, the same for equal values; `NO_DIGEST` for some."""
    try:
        return digest(dump_plain(value))
    except TypeError:
        pass
    if isinstance(value, Iterator | AsyncIterator):
        return NO_DIGEST  # it can be read only once
    try:
        plain = from_json(to_json(value, inf_nan_mode="constants"))
        return digest(to_json(sets_in_order(plain, value), inf_nan_mode="constants"))
    except ValueError:
        return NO_DIGEST


def digest_of_skipped(skipped: Skipped) -> str:
    """The digest of a missing value, which no value has."""
    return digest(f"skipped: {skipped.reason}".encode())
