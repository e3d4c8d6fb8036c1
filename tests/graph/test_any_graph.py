"""Any graph gives what reading it recursively gives: however parallel, and wherever cut off."""

import asyncio
import inspect
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from random import Random

from graph_runs import Calls, as_read, label, run, run_recorded
from hypothesis import given
from random_graphs import SEED, random_dag

from harness.graph import Default, Earlier, Graph, OnError, Retry, Skipped

BLOCKED = "blocked"
SKIPPED = "skipped"


@dataclass(frozen=True)
class Made:
    """A node made to order."""

    name: str
    kind: str
    """`one` text, a `list` of them, a `stream`, or a text per item: `zip` or `product`."""
    size: int
    """How many texts it gives."""
    whole: tuple[str, ...]
    """What it takes as it is."""
    mapped: tuple[str, ...]
    """What it maps over."""
    asks: frozenset[str]
    """Where `Skipped` will do."""
    asks_items: frozenset[str]
    """Where `Skipped` will do for items of a list that it takes as it is."""
    picky: int
    """Of so many calls it wants all but one; all when 0."""
    brittle: int
    """Of so many calls one raises; none when 0."""
    on_error: OnError | None

    @property
    def needs(self) -> tuple[str, ...]:
        return (*self.whole, *self.mapped)

    def chance(self, what: str, values: dict[str, object]) -> int:
        """A number that is the same for the same values."""
        shown = {name: show(value) for name, value in values.items()}
        said = repr((self.name, what, sorted(shown.items())))
        return int(sha256(said.encode()).hexdigest()[:8], 16)

    def is_wanted(self, values: dict[str, object]) -> bool:
        return not self.picky or self.chance("when", values) % self.picky > 0

    def raises(self, values: dict[str, object]) -> bool:
        return bool(self.brittle) and self.chance("raise", values) % self.brittle == 0

    def gives(self, values: dict[str, object]) -> object:
        text = f"{self.chance('give', values):x}"
        is_list = self.kind in {"list", "stream"}
        return [f"{text}.{n}" for n in range(self.size)] if is_list else text


def show(value: object) -> object:
    """A value without the reasons for which something was skipped."""
    if isinstance(value, list):
        return [show(one) for one in value]
    return SKIPPED if isinstance(value, Skipped) else value


def made_to_order(seed: int) -> dict[str, Made]:
    random = Random(seed)
    shape = random_dag(random, random.randint(3, 16), degree=3)
    nodes: dict[str, Made] = {}
    usual = random.randint(0, 3)
    for name, needs in shape.needs.items():
        lists = [need for need in needs if nodes[need].kind != "one"]
        kind = random.choice(("one", "list", "stream", *("zip", "product") * 2 * bool(lists)))
        mapped: list[str] = []
        size = random.choice((usual, usual, random.randint(0, 3)))
        if kind == "zip":
            size = nodes[lists[0]].size
            mapped = [one for one in lists if nodes[one].size == size and random.random() < 0.8]
            mapped = mapped or lists[:1]
        elif kind == "product":
            mapped = random.sample(lists, random.randint(1, len(lists)))
            size = math.prod(nodes[one].size for one in mapped)
            if size > 12:
                kind, mapped, size = "one", [], 1
        on_error = random.choice((None, None, "skip", Default("instead")))
        if kind == "list":
            on_error = random.choice((None, "skip"))
        elif kind == "stream":  # what it gave before it failed depends on the time it took
            on_error = None
        nodes[name] = Made(
            name=name,
            kind=kind,
            size=size,
            whole=tuple(one for one in needs if one not in mapped),
            mapped=tuple(mapped),
            asks=frozenset(one for one in needs if random.random() < 0.3),
            asks_items=frozenset(one for one in needs if random.random() < 0.3),
            picky=random.choice((0, 0, 3, 5)),
            brittle=random.choice((0, 0, 0, 6, 9)),
            on_error=on_error,
        )
    return nodes


# --- as a graph ----------------------------------------------------------------------------------


def graph_of(nodes: dict[str, Made], calls: Calls) -> Graph:
    graph = Graph("any")
    for made in nodes.values():
        parameters = {need: annotation(made, nodes[need]) for need in made.needs}
        function = stream_of(made, calls) if made.kind == "stream" else function_of(made, calls)
        function.__name__ = made.name
        # Parameters have names of their own, since a mapped one gets an item of what it names.
        function.__annotations__ = {f"p_{need}": one for need, one in parameters.items()}
        function.__annotations__["return"] = returns(made)
        function.__signature__ = signature(parameters)
        named = {need: f"p_{need}" for need in made.needs}
        graph.node(
            name=made.name,
            each={named[need]: need for need in made.mapped},
            takes={named[need]: need for need in made.whole},
            combine="product" if made.kind == "product" else "zip",
            when=predicate_of(made, parameters) if made.picky else None,
            on_error=made.on_error,
            retry=Retry(2, first_delay_s=0.1) if made.size % 2 else None,
        )(function)
    return graph


def signature(parameters):
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature([inspect.Parameter(f"p_{need}", keyword) for need in parameters])


def annotation(made: Made, source: Made) -> object:
    one: object = str
    if source.kind != "one" and source.name not in made.mapped:
        per_item = source.mapped and source.name in made.asks_items
        one = list[str | Skipped] if per_item else list[str]
    return one | Skipped if source.name in made.asks else one


def returns(made: Made) -> object:
    if made.kind == "stream":
        return AsyncIterator[str]
    return list[str] if made.kind == "list" else str


def function_of(made: Made, calls: Calls):
    async def function(**named: object) -> object:
        values = {name.removeprefix("p_"): value for name, value in named.items()}
        await calls.take(f"{made.name} {made.chance('call', values)}", patience(made, values))
        if made.raises(values):
            raise RuntimeError(made.name)
        return made.gives(values)

    return function


def stream_of(made: Made, calls: Calls):
    async def function(**named: object):
        values = {name.removeprefix("p_"): value for name, value in named.items()}
        for text in made.gives(values):
            await asyncio.sleep(patience(made, values))
            yield text
        if made.raises(values):
            raise RuntimeError(made.name)

    return function


def predicate_of(made: Made, parameters):
    def predicate(**named: object) -> bool:
        return made.is_wanted({name.removeprefix("p_"): value for name, value in named.items()})

    predicate.__signature__ = signature(parameters)
    return predicate


def patience(made: Made, values: dict[str, object]) -> float:
    return made.chance("wait", values) % 7


# --- as one reads it -----------------------------------------------------------------------------


class Reader:
    """What every node gives, by recursion alone."""

    def __init__(self, nodes: dict[str, Made]) -> None:
        self.nodes = nodes
        self.known: dict[str, object] = {}
        self.has_failed = False

    def outcome(self, name: str) -> object:
        """A text or a list, `Skipped` or BLOCKED; of a mapped node, a list of these."""
        if name not in self.known:
            made = self.nodes[name]
            whole = {need: self.whole(need, made) for need in made.whole}
            self.known[name] = self.obstacle(whole, made) or (
                self.items(made, whole) if made.mapped else self.call(made, whole)
            )
        return self.known[name]

    def whole(self, name: str, taker: Made | None) -> object:
        value = self.outcome(name)
        if not self.nodes[name].mapped or not isinstance(value, list):
            return value
        if BLOCKED in value:
            return BLOCKED
        keeps = taker is None or name in taker.asks_items
        return [one for one in value if keeps or not isinstance(one, Skipped)]

    def obstacle(self, values: dict[str, object], made: Made) -> object:
        if BLOCKED in values.values():
            return BLOCKED
        unwanted = [n for n, one in values.items() if isinstance(one, Skipped)]
        return Skipped(reason="") if set(unwanted) - made.asks else None

    def items(self, made: Made, whole: dict[str, object]) -> object:
        lists = {need: self.outcome(need) for need in made.mapped}
        if not all(isinstance(one, list) for one in lists.values()):
            return BLOCKED if BLOCKED in lists.values() else Skipped(reason="")
        combine = product if made.kind == "product" else zip
        rows = [dict(zip(lists, row, strict=True)) for row in combine(*lists.values())]
        return [self.obstacle(row, made) or self.call(made, whole | row) for row in rows]

    def call(self, made: Made, values: dict[str, object]) -> object:
        if not made.is_wanted(values):
            return Skipped(reason="")
        if not made.raises(values):
            return made.gives(values)
        if isinstance(made.on_error, Default):
            return made.on_error.value
        self.has_failed = self.has_failed or made.on_error != "skip"
        return Skipped(reason="") if made.on_error == "skip" else BLOCKED

    def read(self) -> tuple[str, dict[str, object]]:
        wholes = {name: self.whole(name, None) for name in self.nodes}
        outputs = {name: show(one) for name, one in wholes.items() if one != BLOCKED}
        return "failed" if self.has_failed else "finished", outputs


# --- the two -------------------------------------------------------------------------------------


def seen(ended):
    return ended.status, {name: show(one) for name, one in ended.outputs.items()}


@given(seed=SEED)
def test_a_graph_gives_what_reading_it_gives_however_parallel(seed):
    nodes = made_to_order(seed)
    graph = graph_of(nodes, Calls())

    for max_parallel in (None, Random(seed).randint(1, 3)):
        assert seen(run(graph, max_parallel=max_parallel)) == Reader(nodes).read()


@given(seed=SEED)
def test_a_graph_that_is_cut_off_anywhere_gives_the_same_and_calls_nothing_twice(seed):
    nodes, random = made_to_order(seed), Random(-seed)
    calls = Calls()
    graph = graph_of(nodes, calls)
    first, records = run_recorded(graph, max_parallel=random.choice((None, 1, 3)))

    kept = as_read(records[: random.randint(0, len(records))])
    calls.clear()
    ended, more = run_recorded(graph, earlier=Earlier(kept), max_parallel=random.choice((None, 2)))

    assert seen(ended) == seen(first) == Reader(nodes).read()
    assert ended.reruns == ()
    there = {label(one) for one in kept}
    again = {label(one) for one in as_read(more) if nodes[one.node].kind != "stream"}
    assert there.isdisjoint(again)
    if first.status == "finished":  # else it is chance how far those got who follow a stream
        assert there | {label(one) for one in as_read(more)} == {
            label(one) for one in as_read(records)
        }
