"""The schedule: which nodes and items can begin when others have ended.

It only decides: no task, no clock, no journal.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.errors import PipelineInvalid
from harness.graph.node import Parameter
from harness.graph.outcome import NodeFailure, Skipped
from harness.graph.plan import Step
from harness.graph.state import (
    NO_DIGEST,
    PENDING,
    Blocked,
    CallInputs,
    ItemOutcomes,
    StepState,
    digest_of_value,
)
from harness.graph.values import digest as value_digest
from harness.graph.values import digest_of_all

OnSkip = Callable[[StepState, int | None, str, str | None], None]
"""Called with a node's state, the item, the reason, and the label of the call that caused it."""

_NO_VALUES = (Blocked, Skipped)


class Schedule:
    """Finds the calls that can begin, each time another has ended.

    It calls `start` for each node or item that can begin; `on_skip` for each one that is skipped;
    `on_total` with the number of items of a mapped node, once known; `on_end` for each node, and
    each item of a mapped node, that has an outcome. `prefix` goes before the nodes' names.

    Attributes:
        states: The state of each node, by its name without `prefix`.
        failures: Failures of nodes that could not be called at all.
    """

    def __init__(
        self,
        plan: Sequence[Step],
        inputs: Mapping[str, object],
        *,
        start: Callable[[StepState, int | None], None],
        on_skip: OnSkip,
        on_total: Callable[[StepState, int], None],
        on_end: Callable[[str, int | None], None] | None = None,
        prefix: str,
    ) -> None:
        self.states = {step.node.name: StepState(step, prefix + step.node.name) for step in plan}
        self.failures: list[NodeFailure] = []
        self._inputs = inputs
        # Computed now, before any node can change the inputs.
        self._input_digests = {name: digest_of_value(value) for name, value in inputs.items()}
        self._start = start
        self._on_skip = on_skip
        self._on_total = on_total
        self._on_end = on_end
        # Nodes and items that have settled, but whose followers were not looked at yet. A queue in
        # place of recursion: a chain of skipped nodes may be longer than Python's stack.
        self._settled: deque[tuple[StepState, int | None]] = deque()
        self._unsettled_nodes = len(self.states)

    @property
    def is_over(self) -> bool:
        """Whether every node has an outcome: an output, `Skipped` or `Blocked`."""
        return not self._unsettled_nodes

    def begin(self) -> None:
        """Starts every node that waits for nothing."""
        for state in self.states.values():
            if not state.waits_for:
                self._begin(state)
        self._pass_on()

    def settle(self, state: StepState, item: int | None, outcome: object, digest: str) -> None:
        """Records how a call ended, or an item of a generating node, and starts what can begin now.

        `outcome` is its output, `Skipped` or `Blocked`; `item` is None for a node that is not
        mapped.
        """
        if item is None:
            self._settle_node(state, outcome, digest)
        else:
            self._settle_item(state, item, outcome, digest)
        self._pass_on()

    def call_inputs(
        self, state: StepState, item: int | None, parameters: Sequence[Parameter]
    ) -> CallInputs:
        """The values of these parameters for a call that can begin."""
        arguments: dict[str, Any] = {}
        digests: dict[str, str] = {}
        producers: dict[int | str, None] = {}  # an ordered set
        indices = {} if item is None else indices_of(state, item)
        for parameter in parameters:
            name = parameter.name
            source = self.states.get(parameter.source)
            if parameter.is_mapped:
                index, items = indices[name], state.sources[name]
                arguments[name] = items.outcomes[index]
                digests[name] = items.digests[index]
                if source is not None:
                    # An item of a list that came as a whole was made by the span of the whole.
                    producers[items.spans.get(index) or source.span or source.label(index)] = None
            elif source is None:
                arguments[name] = self._inputs[parameter.source]
                digests[name] = self._input_digests[parameter.source]
            else:
                with_skipped = name in state.step.takes_skipped_items
                arguments[name], digests[name] = source.output(with_skipped=with_skipped)
                producers |= dict.fromkeys(_producers(source, item))
        return CallInputs(arguments, digests, tuple(producers))

    # --- nodes and items that can begin -----------------------------------------------------------

    def _begin(self, state: StepState) -> None:
        """Starts a node whose unmapped inputs are all there, or the first of its items.

        If one of those inputs has no value, or `each=` is given no list, it settles the node.
        """
        step = state.step
        obstacle = self._obstacle(state, step.unmapped, item=None)
        if obstacle is not None:
            self._settle_node(state, obstacle)
        elif not step.mapped:
            self._start(state, None)
        else:
            try:
                state.sources = {p.name: self._items_of(p, state) for p in step.mapped}
            except PipelineInvalid as error:
                self._settle_node(state, self._record_failure(state, error))
                return
            self._advance(state)

    def _items_of(self, parameter: Parameter, state: StepState) -> ItemOutcomes:
        """What `each=` maps over; raises `PipelineInvalid` if that is no list."""
        source = self.states.get(parameter.source)
        if source is not None and source.step.gives_items:
            return source.items
        values: Any = self._inputs[parameter.source] if source is None else source.outcome
        if source is not None and type(values) in _NO_VALUES:
            # No items and no total, by which `_obstacle_of_lists` ends the node.
            return ItemOutcomes()
        if not isinstance(values, list | tuple):
            remedy = "; give list(d.items()) of the mapping" if isinstance(values, Mapping) else ""
            raise state.step.node.mistake(
                f"each= maps over '{parameter.source}', which gave {type(values).__name__} and "
                f"not a list{remedy}",
                code="pipeline.maps-no-list",
            )
        digests = [digest_of_value(value) for value in values]
        # A copy, since other nodes that take the list may change it.
        return ItemOutcomes(outcomes=[*values], digests=digests, total=len(values))

    def _advance(self, state: StepState) -> None:
        """Starts all items of a mapped node that can begin; ends the node if there are no more."""
        if state.obstacle is None:
            state.obstacle = self._obstacle_of_lists(state)
        if state.obstacle is None:
            reach = state.items.total
            if reach is None:
                reach = min(len(items.outcomes) for items in state.sources.values())
            for item in range(reach):
                self._begin_item(state, item)
        self._end_items(state)

    def _obstacle_of_lists(self, state: StepState) -> Blocked | Skipped | None:
        """Why a mapped node gets no further items; None while it may get some.

        Records the reason, or else how many items there will be, once known.
        """
        sources = [self.states.get(parameter.source) for parameter in state.step.mapped]
        # Sources that ended before it was known how many items they would have.
        cut_short = [
            source
            for source, items in zip(sources, state.sources.values(), strict=True)
            if source is not None and source.outcome is not PENDING and items.total is None
        ]
        for source in cut_short:
            if type(source.outcome) is Blocked:
                self._on_skip(state, None, source.outcome.reason, source.outcome.label or None)
                return source.outcome
        try:
            total = count_items(state)
        except PipelineInvalid as error:
            return self._record_failure(state, error)
        if not cut_short:
            if total is not None and state.items.total is None:
                self._on_total(state, total)
            state.items.total = total
        # Else another may still fail.
        elif all(source is None or source.outcome is not PENDING for source in sources):
            # This holds even if the node asks for skipped items: a skipped list has none.
            skipped = Skipped(reason=f"'{cut_short[0].path}' was skipped")
            self._on_skip(state, None, skipped.reason, cut_short[0].path)
            return skipped
        return None

    def _begin_item(self, state: StepState, item: int) -> None:
        """Starts an item if all its arguments exist, unless it has begun before."""
        if item in state.begun or state.obstacle is not None:
            return
        indices = indices_of(state, item)
        values = [items.outcome(indices[name]) for name, items in state.sources.items()]
        if any(value is PENDING for value in values):
            return
        # Added before the item starts or settles: `_end_items` compares `settled` with `begun`.
        state.begun.add(item)
        obstacle = self._obstacle(state, state.step.mapped, item)
        if obstacle is not None:
            self._settle_item(state, item, obstacle, NO_DIGEST)
        else:
            self._start(state, item)

    def _obstacle(
        self, state: StepState, parameters: Sequence[Parameter], item: int | None
    ) -> Blocked | Skipped | None:
        """Why a call cannot be made, if one of the parameters has no value; records the skip."""
        first_skipped: str | None = None
        for parameter in parameters:
            source = self.states.get(parameter.source)
            if source is None:
                continue  # an input always has a value
            outcome, label = source.outcome, source.path
            if parameter.is_mapped and item is not None:
                index = indices_of(state, item)[parameter.name]
                outcome = state.sources[parameter.name].outcome(index)
                label = source.label(index)
            if type(outcome) is Blocked:
                self._on_skip(state, item, outcome.reason, outcome.label or None)
                return outcome
            if type(outcome) is Skipped and parameter.name not in state.step.takes_skipped:
                first_skipped = first_skipped or label
        if first_skipped is None:
            return None
        reason = f"'{first_skipped}' was skipped"
        self._on_skip(state, item, reason, first_skipped)
        return Skipped(reason=reason)

    def _record_failure(self, state: StepState, error: PipelineInvalid) -> Blocked:
        self.failures.append(NodeFailure(node=state.path, error=error, attempts=0))
        return Blocked(state.path, "failed")

    # --- what has ended ---------------------------------------------------------------------------

    def _settle_item(self, state: StepState, item: int, outcome: object, digest: str) -> None:
        state.items.settle(item, outcome, _digest_of(outcome, digest))
        if state.step.followers:
            self._settled.append((state, item))
        if state.step.mapped:
            if self._on_end is not None:
                self._on_end(state.path, item)
            self._end_items(state)

    def _end_items(self, state: StepState) -> None:
        """Settles a mapped node as a whole if all its items have outcomes and no more can begin."""
        items = state.items
        if state.outcome is not PENDING or items.settled < len(state.begun):
            return
        if state.obstacle is not None:
            self._settle_node(state, state.obstacle)
        elif items.settled == items.total:
            # A list with a gap is no output, so one blocked item blocks the node as a whole.
            blocked = [outcome for outcome in items.outcomes if type(outcome) is Blocked]
            outcome = blocked[0] if blocked else items.outcomes
            self._settle_node(state, outcome, digest_of_all(items.digests))

    def _settle_node(self, state: StepState, outcome: object, digest: str = NO_DIGEST) -> None:
        """Gives a node its outcome, which `_pass_on` hands on."""
        if state.step.generates and isinstance(outcome, list):
            # Items that a call yielded were settled as they came. A list from the journal, or a
            # default, comes whole: its items are settled here.
            for item in range(state.items.settled, len(outcome)):
                self._settle_item(state, item, outcome[item], digest_of_value(outcome[item]))
            state.items.total = len(outcome)
        state.outcome = outcome
        state.digest = _digest_of(outcome, digest)
        self._unsettled_nodes -= 1
        if self._on_end is not None:
            self._on_end(state.path, None)
        self._settled.append((state, None))

    def _pass_on(self) -> None:
        """Starts what the nodes and items in `_settled` allow, and what follows from that."""
        while self._settled:
            state, item = self._settled.popleft()
            if item is not None:
                for step in state.step.followers:
                    follower = self.states[step.node.name]
                    # A follower without sources still waits for a whole output; it looks at all
                    # items when it begins.
                    if follower.sources:
                        self._begin_item(follower, item)
                continue
            for step in state.step.consumers:
                consumer = self.states[step.node.name]
                consumer.waits_for -= 1
                if not consumer.waits_for:
                    self._begin(consumer)
            for step in state.step.followers:
                follower = self.states[step.node.name]
                if follower.sources and follower.outcome is PENDING:
                    self._advance(follower)


def _digest_of(outcome: object, digest: str) -> str:
    """The digest of an outcome, which is `digest` if the outcome is a value."""
    if type(outcome) is Skipped:
        # No value is written like this, so the digest is never that of a value.
        return value_digest(f"skipped: {outcome.reason}".encode())
    return NO_DIGEST if type(outcome) is Blocked else digest


def _producers(source: StepState, item: int | None) -> list[int | str]:
    """The spans, or the label, of the calls that made the whole output of a node."""
    spans = source.items.spans if source.step.gives_items else {}
    if not spans:
        return [source.span or source.path]
    whole = [source.span] if source.span else []
    if item is not None:
        # The last span stands for all: an arrow from each to each item would be too many arrows.
        return [*whole, next(reversed(spans.values()))]
    return [*whole, *spans.values()]


def count_items(state: StepState) -> int | None:
    """The number of items that a mapped node will have; None while unknown.

    Raises:
        PipelineInvalid: It walks lists side by side that differ in length.
    """
    node = state.step.node
    totals = [items.total for items in state.sources.values()]
    known = [total for total in totals if total is not None]
    is_known = len(known) == len(totals)
    if node.combine == "product":
        return math.prod(known) if is_known else None
    if len(set(known)) > 1:
        lengths = ", ".join(
            f"'{parameter.source}' has {total}"
            for parameter, total in zip(state.step.mapped, totals, strict=True)
            if total is not None
        )
        raise node.mistake(
            f"each= walks lists side by side, and they differ in length: {lengths}; to take all "
            'combinations, write combine="product"',
            code="pipeline.lengths-differ",
        )
    return known[0] if is_known else None


def indices_of(state: StepState, item: int) -> dict[str, int]:
    """For each mapped parameter, by its name, the index of the item that an item's call takes."""
    if state.step.node.combine == "zip":
        return dict.fromkeys(state.sources, item)
    indices: dict[str, int] = {}
    # As the digits of a number: the last parameter changes fastest.
    for name, items in reversed(state.sources.items()):
        assert items.total is not None, "a product begins when all its sources are whole"
        item, indices[name] = divmod(item, items.total)
    return indices
