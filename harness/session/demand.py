"""Which models the nodes of a pipeline ask, and in which order, as far as declared or observed.

A node's `models=[…]` lists all roles that it asks. The last run of the pipeline shows the order in
which its nodes asked, and a mapped node's earlier items show it for the later ones. A revise loop
declares its models when it begins. The rest is unknown: the source of nodes is not read.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from harness.errors import ConfigurationInvalid, JournalInvalid
from harness.graph import Graph
from harness.residency import NOTHING_KNOWN, Forecast, Strand
from harness.session.roles import EVALUATOR, PRODUCER, Roles
from harness.trace import AUDIT_LOG, Journal, SpanRecord
from harness.trace.journal_reader import JOURNAL_SUFFIX

MEMORY = "memory"
"""The role of calls for the vectors of passages; an endpoint need not play it."""

_RUNS: Final = 8
"""The latest journals that are looked at."""
_MOST_JOURNAL_BYTES: Final = 4 << 20
"""Longer journals are skipped; one of this size is read in a quarter of a second."""
_MOST_USES: Final = 64
"""Most roles kept for one call of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Players:
    """The models behind the roles of a run. Fallbacks are left out."""

    roles: Roles
    embedder: str | None = None
    """Tag of the endpoint that makes the vectors of passages."""

    def of(self, role: str) -> tuple[str, ...]:
        """The tags of a role's models: several for a panel of evaluators; empty if it has none."""
        match role:
            case "evaluator":
                return self.roles.evaluators
            case "memory":
                return (self.embedder,) if self.embedder else ()
        try:
            return (self.roles.model(role),)
        except ConfigurationInvalid:
            return ()  # the call is refused when it is made


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The models that one call of a node asks."""

    roles: tuple[str, ...] = ()
    """In order. From a declaration alone, each once: the node may alternate between them."""
    source: Literal["declared", "seen", "unknown"] = "unknown"
    """The source of the order."""
    is_all: bool = False
    """Whether it asks in no other role."""

    def uses(self, players: Players) -> tuple[str, ...]:
        """The same by tag, each stretch of one model once."""
        tags = itertools.chain.from_iterable(map(players.of, self.roles))
        return tuple(tag for tag, _ in itertools.groupby(tags))


def demand_of(graph: Graph, seen: Mapping[str, Sequence[str]]) -> dict[str, Demand]:
    """The models that the nodes of a graph ask, by name.

    `seen` has, by node, the roles that its calls asked before; see `last_asked`.
    """
    return {name: _demand(graph, name, seen.get(name)) for name in graph.nodes}


def _demand(graph: Graph, name: str, seen: Sequence[str] | None) -> Demand:
    node = graph.nodes[name]
    declared = node.policies.over(graph.policies).models if node.takes_run else ()
    if declared is not None and (not seen or not set(declared) >= set(seen) - {MEMORY}):
        return Demand(roles=tuple(dict.fromkeys(declared)), source="declared", is_all=True)
    if seen is None:
        return Demand()
    return Demand(roles=tuple(seen), source="seen", is_all=declared is not None)


# --- what the last runs did -----------------------------------------------------------------------


def latest_journals(traces: Path) -> Iterator[Journal]:
    """The readable journals of the latest runs, latest first.

    The folder need not exist.
    """
    found = []
    for path in traces.glob(f"*{JOURNAL_SUFFIX}"):
        try:
            status = path.stat()
        except OSError:
            continue
        # A resumed run's further parts, whose names have a dot, are read with its first.
        is_run = path.name != AUDIT_LOG and "." not in path.stem
        if is_run and status.st_size <= _MOST_JOURNAL_BYTES:
            found.append((status.st_mtime_ns, path))
    for _, path in sorted(found, reverse=True)[:_RUNS]:
        try:
            yield Journal(path)
        except JournalInvalid:
            continue


def last_asked(traces: Path, pipeline: str) -> tuple[dict[str, tuple[str, ...]], Journal | None]:
    """By node, the roles that its calls asked in the pipeline's last run that ended well; that run.

    Of a node's items, the one that asked the most. A node that asked no model stands there too.
    """
    for journal in latest_journals(traces):
        if journal.started.name == pipeline and journal.ended and journal.ended.status == "ok":
            try:
                return _asked_in(journal.spans()), journal
            except (JournalInvalid, OSError):
                continue
    return {}, None


def _asked_in(spans: Iterable[SpanRecord]) -> dict[str, tuple[str, ...]]:
    call_of: dict[int | None, SpanRecord] = {}
    asked: dict[int, list[str]] = {}
    nodes: dict[int, str] = {}
    for span in spans:
        call = call_of.get(span.parent)
        if call is None and span.name == "node":
            # The outermost: what is nested in a node belongs to it.
            call, nodes[span.id], asked[span.id] = span, str(span.attributes.get("node")), []
        if call is None:
            continue
        call_of[span.id] = call
        role, roles = span.attributes.get("role"), asked[call.id]
        if span.name in {"chat", "embed"} and isinstance(role, str) and roles[-1:] != [role]:
            roles.append(role)
    found: dict[str, tuple[str, ...]] = {}
    for id_, node in nodes.items():
        found[node] = max(found.get(node, ()), tuple(asked[id_][:_MOST_USES]), key=len)
    return found


# --- one call of a node ---------------------------------------------------------------------------


class CallDemand:
    """What one call of a node still asks; its `Run` reports what it asks.

    It may alternate between the tags that it is expected to ask if `by_turns`.

    Attributes:
        seen: The tags that it has asked, each stretch of one model once.
        was_surprised: Whether it asked a model that was not expected then.
    """

    def __init__(
        self,
        uses: Sequence[str],
        *,
        by_turns: bool,
        players: Players,
        moved: Callable[[], None],
    ) -> None:
        self._expected, self._by_turns_at_first = tuple(uses), by_turns
        self._players = players
        self._moved = moved
        self.restart()

    @property
    def ahead(self) -> tuple[str, ...]:
        """Tags, the present or next one first, each stretch of one model once."""
        tags = itertools.groupby((*self._loop, *self._ahead))
        return tuple(tag for tag, _ in tags)

    def restart(self) -> None:
        """The call begins, or a further attempt of it."""
        self._ahead = list(self._expected)
        self._by_turns = self._by_turns_at_first
        self._loop: list[str] = []
        self._loop_models: frozenset[str] = frozenset()
        self._loops = 0
        self.seen: list[str] = []
        self.was_surprised = False

    def asks(self, model: str) -> None:
        """A call of a model begins."""
        if self.seen[-1:] != [model] and len(self.seen) < _MOST_USES:
            self.seen.append(model)
        if model in self._loop_models:
            others = sorted(self._loop_models - {model})
            self._loop = _from(model, self._loop) or [model, *others]
        elif model not in self._ahead:
            self.was_surprised = self._by_turns = True
            self._ahead.insert(0, model)
        elif self._by_turns:
            at = self._ahead.index(model)
            self._ahead = self._ahead[at:] + self._ahead[:at]
        else:
            self._ahead = _from(model, self._ahead)
        self._moved()

    @contextmanager
    def revising(self, *, rounds: int, has_draft: bool, is_judged: bool) -> Iterator[None]:
        """Around a revise loop.

        `rounds` is how many evaluations it may still make.
        """
        judges = self._players.of(EVALUATOR) if is_judged else ()
        turn = [*self._players.of(PRODUCER), *judges]
        self._loops += 1
        self._loop_models |= frozenset(turn)
        self._loop = (turn * rounds)[len(turn) - len(judges) if has_draft else 0 :]
        if self._by_turns:
            self._ahead = [tag for tag in self._ahead if tag not in turn]
        else:
            self._ahead = list(itertools.dropwhile(turn.__contains__, self._ahead))
        self._moved()
        try:
            yield
        finally:
            self._loops -= 1
            if not self._loops:
                self._loop, self._loop_models = [], frozenset()
            self._moved()


def _from(model: str, tags: list[str]) -> list[str]:
    return tags[tags.index(model) :] if model in tags else []


# --- the forecast of a run ------------------------------------------------------------------------


class Forecaster:
    """Keeps the forecast of one run as its nodes begin, ask and end. A `Watcher` of its graph.

    A node that has not begun is a strand, behind those of the nodes that it waits for; one that is
    mapped is a strand for all items still to come, and one for each that is under way. What is
    nested in a node belongs to its strand. Says nothing before the first call begins: until then a
    run that is resumed, or has a cache, finds out what it need not do. `expect` is told the
    forecast when it has changed: soon, and once for all that happens in one step of the event loop.
    """

    def __init__(
        self,
        graph: Graph,
        demand: Mapping[str, Demand],
        *,
        players: Players,
        expect: Callable[[Forecast], None],
    ) -> None:
        self._players = players
        self._expect = expect
        self._nodes = {
            name: _NodeAhead(
                name=name,
                uses=one.uses(players),
                by_turns=one.source == "declared",
                is_all=one.is_all,
                total=None if graph.nodes[name].is_mapped else 1,
                after=ancestors(graph, name),
            )
            for name, one in demand.items()
            if one.roles or not one.is_all
        }
        self._left = len(graph.nodes)
        self._under_way: dict[str, CallDemand] = {}
        # Passages are also embedded in the background.
        self._asks_unseen = players.embedder is not None
        self._told = NOTHING_KNOWN
        self._has_begun = False
        self._is_to_tell = False

    def call(self, label: str) -> CallDemand | None:
        """For the `Run` of a call, at each attempt; None for a node that was not to have one.

        Args:
            label: The call's: `findings[2]`, or `findings[2]/brief/text` for one nested in it.
        """
        outermost, _, inside = label.partition("/")
        call = self._under_way.get(outermost)
        if call is not None and not inside:
            call.restart()
        return call

    # --- what the graph says ----------------------------------------------------------------------

    def begins(self, node: str, item: int | None) -> None:
        """See `Watcher.begins`."""
        self._has_begun = True
        self._tell_soon()
        ahead = self._nodes.get(node)
        if ahead is None:
            return
        ahead.begun.add(item)
        call = CallDemand(
            ahead.uses, by_turns=ahead.by_turns, players=self._players, moved=self._tell_soon
        )
        self._under_way[_label(node, item)] = ahead.calls[item] = call

    def ends(self, node: str, item: int | None) -> None:
        """See `Watcher.ends`."""
        self._tell_soon()
        ahead = self._nodes.get(node)
        if item is None:
            self._left -= 1
            self._nodes.pop(node, None)
        if ahead is None:
            return
        ahead.begun.add(item)
        for one in [one for one in ahead.calls if item in (None, one)]:
            ahead.learn(ahead.calls.pop(one))
            del self._under_way[_label(node, one)]

    def counts(self, node: str, total: int) -> None:
        """See `Watcher.counts`."""
        if node in self._nodes:
            self._nodes[node].total = total
            self._tell_soon()

    # --- what is told -----------------------------------------------------------------------------

    def _tell_soon(self) -> None:
        if self._has_begun and not self._is_to_tell:
            self._is_to_tell = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._is_to_tell = False
        # When all is over, what stays in memory is for the budget to say, which closes.
        forecast = self._forecast() if self._left else NOTHING_KNOWN
        if forecast != self._told:
            self._told = forecast
            self._expect(forecast)

    def _forecast(self) -> Forecast:
        strands = [strand for node in self._nodes.values() for strand in node.strands(self._nodes)]
        return Forecast(
            strands=tuple(strand for strand in strands if strand.uses),
            is_complete=not self._asks_unseen
            and all(node.is_sure for node in self._nodes.values()),
        )


@dataclass(slots=True, kw_only=True)
class _NodeAhead:
    """A node that has not ended."""

    name: str
    uses: tuple[str, ...]
    by_turns: bool
    is_all: bool
    total: int | None
    """How many calls it has; None as long as that is not known."""
    after: tuple[str, ...]
    begun: set[int | None] = field(default_factory=set)
    """The items that are under way or have ended; None for a node that is not mapped."""
    calls: dict[int | None, CallDemand] = field(default_factory=dict)

    @property
    def is_sure(self) -> bool:
        """Whether it asks nothing but what is expected."""
        return self.is_all and not any(call.was_surprised for call in self.calls.values())

    def strands(self, nodes: Mapping[str, _NodeAhead]) -> Iterator[Strand]:
        """What has not begun, and what is under way."""
        if self.total is None or len(self.begun) < self.total:
            before = [name for name in self.after if name in nodes]
            calls = [_label(name, item) for name in before for item in nodes[name].calls]
            yield Strand(name=self.name, uses=self.uses, after=frozenset([*before, *calls]))
        for item, call in self.calls.items():
            # An item's label is no node's name; a node that is not mapped has one strand at a time.
            yield Strand(name=_label(self.name, item), uses=call.ahead)

    def learn(self, call: CallDemand) -> None:
        """Takes what a call asked for what the next ones ask."""
        self.is_all &= not call.was_surprised
        if call.seen:
            self.uses, self.by_turns = tuple(call.seen), False


def _label(node: str, item: int | None) -> str:
    return node if item is None else f"{node}[{item}]"


def ancestors(graph: Graph, name: str) -> tuple[str, ...]:
    """All nodes that a node waits for, directly or not."""
    found: dict[str, None] = {}
    open_ = [name]
    while open_:
        sources = [one for one in graph.dependencies(graph.nodes[open_.pop()]) if one not in found]
        found.update(dict.fromkeys(sources))
        open_ += sources
    return tuple(found)
