"""A graph compiled for running: what each node needs, and who waits for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple
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


@dataclass(slots=True, kw_only=True, eq=False)
class Step:
    """A node with all that a run has to know of it."""

    node: Node
    """As defined."""
    policies: Policies
    """The node's own, over those of the graph."""
    form: ValueForm
    """What one call of it gives, as a value that can be written down and read back."""
    item_form: ValueForm | None
    """Of a generating node: what it yields."""
    says: Code
    """What its function's code says."""
    mapped: tuple[Parameter, ...]
    """Its mapped parameters."""
    whole: tuple[Parameter, ...]
    """The others, and those of its `when`."""
    takes_skipped: frozenset[str]
    """Parameters that ask for `Skipped`."""
    takes_skipped_items: frozenset[str]
    """Parameters that ask for lists with `Skipped` in them."""
    waits_for: int = 0
    """How many nodes it needs the whole output of."""
    consumers: list[Step] = field(default_factory=list)
    """Who needs its whole output."""
    followers: list[Step] = field(default_factory=list)
    """Who takes its items as they come."""

    @property
    def code(self) -> str:
        """The digest of its function's code."""
        return self.says.digest

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
        for step in plan:  # what it refers to may be another now, as in a notebook
            step.says = code_of(step.node.function)
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
    both = (*node.parameters, *asked)
    return Step(
        node=node,
        policies=node.policies.over(graph.policies),
        form=value_form(returned(node)),
        item_form=value_form(item_of(node.annotation("return"))) if node.is_streaming else None,
        says=code_of(node.function),
        mapped=tuple(one for one in node.parameters if one.is_mapped),
        whole=tuple(one for one in both if not one.is_mapped),
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
    """Whether a step takes the items of a source as they come, and nothing else of it."""
    return (
        step.node.combine == "zip"
        and any(one.source == source for one in step.mapped)
        and all(one.source != source for one in step.whole)
    )


class Blocked(NamedTuple):
    """Stands where the output of a node would that is not to be had in this part of the run."""

    label: str
    """Whose end was the reason."""
    what: str
    """What became of that: `failed`."""

    @property
    def reason(self) -> str:
        """The same as a sentence; no label is the whole run's."""
        return f"'{self.label}' {self.what}" if self.label else self.what


class Pending:
    """Stands where an output will be."""


PENDING = Pending()

NO_DIGEST = ""
"""Of a value that has no form in JSON: it is never the same as another."""


class State:
    """A step's outputs so far.

    Attributes:
        step: The step.
        path: The node's name in the run, with those of the calls that it is nested in.
        places: How many of its calls may be under way.
        waits_for: Nodes whose whole output it still needs.
        is_in_trouble: Whether one of its sources is no plain value.
        outcome: Its whole output, `Skipped` or `Blocked`; of a step that gives items, the list of
            all of them, skipped ones too.
        digest: Of the whole output.
        span: That of its finished call.
        spans: Those of its finished calls, by item.
        items: What each call gave, by item; None until it has begun.
        digests: Of the items.
        total: How many items there will be, once that is known.
        settled: How many there are.
        sources: Of each mapped parameter, the step or the list that its items are from; empty
            until it has begun.
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

    def note_span(self, item: int | None, span: int) -> None:
        """Notes where a call was made."""
        if item is None:
            self.span = span
        else:
            self.spans[item] = span

    def item(self, index: int) -> object:
        """One of its items, or `PENDING`."""
        items = self.items
        return items[index] if items is not None and index < len(items) else PENDING

    def set_item(self, index: int, outcome: object, digest: str) -> None:
        """Notes what a call gave."""
        assert self.items is not None
        missing = index + 1 - len(self.items)
        if missing > 0:
            self.items += [PENDING] * missing
            self.digests += [NO_DIGEST] * missing
        self.items[index] = outcome
        self.digests[index] = digest
        self.settled += 1

    def whole(self, *, with_skipped: bool) -> tuple[object, str]:
        """Its output as a consumer takes it, and the digest of that."""
        if self.items is None or not isinstance(self.outcome, list):
            return self.outcome, self.digest
        if with_skipped not in self._wholes:
            # Made once: a mapped consumer takes it with each of its items.
            self._wholes[with_skipped] = self._list_of_all(with_skipped=with_skipped)
        return self._wholes[with_skipped]

    def has_changed_lists(self) -> bool:
        """Whether a consumer has changed a list of its items that others have too."""
        return any(
            len(given) != len(now) or any(a is not b for a, b in zip(given, now, strict=True))
            for with_skipped, (given, _) in self._wholes.items()
            for now, _ in [self._list_of_all(with_skipped=with_skipped)]
        )

    def _list_of_all(self, *, with_skipped: bool) -> tuple[list[object], str]:
        """All items. Never the list of them itself, which a consumer might change."""
        assert self.items is not None
        if with_skipped or not any(type(item) is Skipped for item in self.items):
            return list(self.items), self.digest
        kept = [n for n, item in enumerate(self.items) if type(item) is not Skipped]
        digests = [self.digests[n] for n in kept]
        return [self.items[n] for n in kept], digest_of_all(digests)

    def with_items_given(self, default: object) -> object:
        """What stands for the output when a call failed: behind the items that others have of it.

        Args:
            default: What was said to.
        """
        if self.step.item_form is None or self.step.mapped or not isinstance(default, list):
            return default
        return [*(self.items or ()), *default]

    def label(self, item: int | None) -> str:
        """A call's name: `findings[2]`."""
        return self.path if item is None else f"{self.path}[{item}]"

    @property
    def reach(self) -> int:
        """Behind the last item that may be there."""
        return 0 if self.items is None else len(self.items)

    @property
    def has_ended(self) -> bool:
        """Whether its outcome is there."""
        return self.outcome is not PENDING

    @property
    def ended_early(self) -> bool:
        """Whether there will be no more items, and it is not known how many there would be."""
        return self.has_ended and self.total is None


class ListSource(NamedTuple):
    """A list that items are taken from."""

    values: list[object]
    """The items."""
    digests: list[str]
    """Theirs."""

    @property
    def total(self) -> int:
        """How many."""
        return len(self.values)

    def item(self, index: int) -> object:
        """One of them; `PENDING` behind the last."""
        return self.values[index] if index < len(self.values) else PENDING

    @property
    def reach(self) -> int:
        """As in `State`."""
        return len(self.values)

    @property
    def has_ended(self) -> bool:
        """As in `State`."""
        return True


def digest_of_value(value: object) -> str:
    """What names a value that a call takes: the same for equal values; `NO_DIGEST` for some."""
    try:
        return digest(dump_plain(value))
    except TypeError:
        pass
    if isinstance(value, Iterator | AsyncIterator):
        return NO_DIGEST  # to write it down would be to read it, which can be done only once
    try:
        plain = from_json(to_json(value, inf_nan_mode="constants"))
        return digest(to_json(sets_in_order(plain, value), inf_nan_mode="constants"))
    except ValueError:
        return NO_DIGEST


def digest_of_skipped(skipped: Skipped) -> str:
    """What names the absence of a value; no value is written so."""
    return digest(f"skipped: {skipped.reason}".encode())


Digests = Mapping[str, str]
"""Of what a call takes, by parameter."""


class Places:
    """Starts what it is given at once while there is room, and else when there is, in order.

    What is nested goes before what is not: calls that have begun are brought to their end before
    further ones begin. Whoever waits costs one entry in a queue, and no task.

    Args:
        limit: How many at once; as many as come when None.
    """

    __slots__ = ("_count", "_free", "_waiting")

    def __init__(self, limit: int | None) -> None:
        self._free = limit
        self._count = count()
        self._waiting: list[tuple[int, int, Callable[[], object]]] = []  # a heap

    def take(self, start: Callable[[], object], *, depth: int = 0) -> None:
        """Calls `start`, which must see to it that `give_back` is called, when there is a place.

        Args:
            start: Begins a call.
            depth: In how many others that call is nested.
        """
        if self._free is None:
            start()
        elif self._free > 0:
            self._free -= 1
            start()
        else:
            heappush(self._waiting, (-depth, next(self._count), start))

    def take_again(self) -> None:
        """Takes a place without waiting: for a call that had lent its own to what it nests."""
        if self._free is not None:
            self._free -= 1

    def give_back(self) -> None:
        """A place is free again; the first who waits gets it."""
        if self._free is None:
            return
        if self._waiting and self._free >= 0:
            heappop(self._waiting)[-1]()
        else:
            self._free += 1


class Given(NamedTuple):
    """What a call gave."""

    value: object
    """Its output."""
    data: bytes
    """That as JSON."""
    span: int
    """Where it was made; 0 when it was there already."""
