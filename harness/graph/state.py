"""The state of one run of a graph: of its nodes, their calls, and the places that calls take."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, Literal, NamedTuple

from pydantic_core import from_json, to_json

from harness.graph.fingerprint import digest_of_parts
from harness.graph.outcome import Skipped
from harness.graph.plan import Step
from harness.graph.values import digest, digest_of_all, value_form
from harness.text.value_text import sets_in_order
from harness.trace.records import CutBy, NodeOutput, label_of

NO_DIGEST = ""  # the digest of a value without a JSON form; it never equals another

PENDING: Final = object()  # the placeholder for a future output


class Blocked(NamedTuple):
    """The placeholder for an output that this part of the run will not have."""

    label: str  # the call whose end was the reason; empty if it was the end of the whole run
    ending: str  # how that call or the run ended: `failed`

    @property
    def reason(self) -> str:
        """The reason in words: `'findings' failed`."""
        return f"'{self.label}' {self.ending}" if self.label else self.ending


# --- nodes --------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class ItemOutcomes:
    """The items that a mapped node takes: of a list, or of a node that gives one after another."""

    outcomes: list[object] = field(default_factory=list)  # by item; `PENDING` for none yet
    digests: list[str] = field(default_factory=list)  # by item
    spans: dict[int, int] = field(default_factory=dict)  # item → the span of its call
    total: int | None = None  # how many there will be; None as long as that is unknown
    settled: int = 0  # how many have an outcome

    def outcome(self, index: int) -> object:
        """The outcome of an item; `PENDING` if it has none yet."""
        return self.outcomes[index] if index < len(self.outcomes) else PENDING

    def settle(self, index: int, outcome: object, digest: str) -> None:
        """Records the outcome of an item's call."""
        missing = index + 1 - len(self.outcomes)
        if missing > 0:
            self.outcomes += [PENDING] * missing
            self.digests += [NO_DIGEST] * missing
        self.outcomes[index] = outcome
        self.digests[index] = digest
        self.settled += 1


@dataclass(slots=True, eq=False)
class StepState:
    """The outputs of a step so far."""

    step: Step
    path: str  # the node's name in the run, behind the labels of the calls that it is nested in
    # Limits how many of its calls are under way; None without a limit.
    places: Places | None = field(init=False)
    waits_for: int = field(init=False)  # how many nodes it still needs the whole output of
    # Its whole output, `Skipped` or `Blocked`; for a step that gives items, the list of all items,
    # skipped ones included.
    outcome: object = PENDING
    digest: str = NO_DIGEST  # of the whole output
    span: int | None = None  # of its finished call; None if an earlier part of the run made it
    # Why there will be no more items, if one of its sources ended early.
    obstacle: Blocked | Skipped | None = None
    # The next four are set only for steps that give items, since large graphs have many others.
    items: ItemOutcomes = field(init=False)
    # Mapped parameter → the items that it receives; empty until the step has begun.
    sources: dict[str, ItemOutcomes] = field(init=False)
    begun: set[int] = field(init=False)  # items that have begun, or were settled without a call
    # The list that consumers take and its digest, with skipped items and without, once made.
    _lists: dict[bool, tuple[list[object], str]] = field(init=False)

    def __post_init__(self) -> None:
        concurrency = self.step.policies.concurrency
        self.places = Places(concurrency.limit) if concurrency else None
        self.waits_for = self.step.waits_for
        if self.step.gives_items:
            self.items = ItemOutcomes()
            self.sources = {}
            self.begun = set()
            self._lists = {}

    def label(self, item: int | None) -> str:
        """A call's name: `findings[2]`."""
        return label_of(self.path, item)

    def note_span(self, item: int | None, span: int) -> None:
        """Records the span of a call."""
        if item is None:
            self.span = span
        else:
            self.items.spans[item] = span

    def output(self, *, with_skipped: bool) -> tuple[object, str]:
        """Its output as consumers take it, and its digest.

        `with_skipped` says whether a list of items has `Skipped` in the place of skipped items, or
        leaves these out.
        """
        if not self.step.gives_items or not isinstance(self.outcome, list):
            return self.outcome, self.digest
        if with_skipped not in self._lists:
            # Made once, since a mapped consumer takes the list with each of its items.
            self._lists[with_skipped] = self._list_and_digest(with_skipped=with_skipped)
        return self._lists[with_skipped]

    def _list_and_digest(self, *, with_skipped: bool) -> tuple[list[object], str]:
        outcomes, digests = self.items.outcomes, self.items.digests
        if with_skipped or not any(type(outcome) is Skipped for outcome in outcomes):
            # A new list, since a consumer might change it.
            return list(outcomes), self.digest
        indices = [index for index, outcome in enumerate(outcomes) if type(outcome) is not Skipped]
        return [outcomes[i] for i in indices], digest_of_all(digests[i] for i in indices)


# --- calls --------------------------------------------------------------------------------------


class CallInputs(NamedTuple):
    """The arguments of one call."""

    arguments: dict[str, Any]  # by parameter
    digests: dict[str, str]  # of the arguments, by parameter
    # The calls that made the arguments: their spans, or the labels of those that an earlier part
    # of the run made.
    producers: tuple[int | str, ...]


NO_INPUTS: Final = CallInputs({}, {}, ())


class Use(NamedTuple):
    """A model, a rubric or a setting that a call used, as it was then."""

    digest: str
    # Its properties, for a message; empty if the record has them already.
    parts: Mapping[str, str] = {}


@dataclass(slots=True, eq=False)
class StepCall:
    """One call of a node, or of one item, from the moment it may begin to its end."""

    state: StepState
    item: int | None  # None for a node that is not mapped
    inputs: CallInputs = NO_INPUTS  # set when it begins
    decided_by: tuple[int | str, ...] = ()  # `producers` of what its node's `when=` was given
    around: StepCall | None = None  # the call whose code waits for this call's graph
    has_place: bool = False  # whether it counts as under way
    loan: Loan | None = None  # of its own place, while it waits for nested calls
    # Its waits, each for a place of its node or of the pipeline, and when each began.
    waits: tuple[tuple[Literal["node", "pipeline"], int], ...] = ()
    # What it used so far beside its code and inputs, by name.
    uses: dict[str, Use] = field(default_factory=dict)
    # Whether its output holds in this run alone: a person, the memory or a limit had a part in it.
    is_of_run: bool = False
    cut_by: CutBy | None = None  # what ended a revise loop in it too early
    passed: bool | None = None  # as `NodeOutput.passed`
    before: NodeOutput | None = None  # its output, if it is made again since such a loop goes on
    misled: int = 0  # how often it failed by a model's reply, in all parts of the run
    # Whether its function is running; only then can it be cancelled, since before and after there
    # are only records to write.
    is_running: bool = False

    @property
    def step(self) -> Step:
        """Its node."""
        return self.state.step

    @property
    def label(self) -> str:
        """Its name: `findings[2]`."""
        return self.state.label(self.item)

    @property
    def variation(self) -> int:
        """Makes its replies differ from those that failed it, or a call around it."""
        return self.misled + (0 if self.around is None else 100 * self.around.variation)


@dataclass(slots=True, eq=False)
class Loan:
    """The place of a call that waits for nested calls: one of them has it, or the next gets it."""

    borrower: StepCall | None = None  # the nested call that has the place now
    tasks: int = 0  # how many tasks of the lender wait for nested calls
    queue: deque[_QueuedCall] = field(default_factory=deque)  # nested calls that wait for a place


class CallOutput(NamedTuple):
    """The output of one call."""

    value: object
    data: bytes  # the value as JSON
    span: int  # the span that made it; 0 if it existed before


# How many further calls may begin for each place while calls wait for their models. With eight
# calls a place, 100 rows that took turns at two models needed 4 loads in place of 20.
_EXTRA_PER_PLACE = 7


@dataclass(slots=True, eq=False)
class _QueuedCall:
    """A call in the queue for a free place, and perhaps in that of a loan too."""

    call: StepCall | None
    start: Callable[[], object] | None  # None once it has begun


class Places:
    """Limits the calls under way: starts a call at once while there is room, else in order.

    A waiting call costs no task. The places of a node's `Concurrency` know no calls; those of a
    pipeline do, since the place of a call that waits for nested calls goes to one of these.
    """

    __slots__ = ("_extra", "_free", "_most_extra", "_number", "_queue")

    def __init__(self, limit: int | None) -> None:
        self._free = limit  # None without a limit; below 0 while calls are under way in excess
        self._extra = 0  # how many calls may be under way in excess of the limit
        self._most_extra = _EXTRA_PER_PLACE * (limit or 0)
        self._number = count()
        # A heap of (-depth, is first, number, queued call): see step 4 of `take`.
        self._queue: list[tuple[int, bool, int, _QueuedCall]] = []

    def take(self, start: Callable[[], object], call: StepCall | None = None) -> bool:
        """Calls `start` when there is a place; whether there is one now.

        When the call is over, `leave` gives the place back; without a `call`, `give_back` does.
        """
        loan = _loan_around(call)
        # 1. No limit.
        if self._free is None:
            start()
        # 2. The place of the call that waits for this one's graph, if no other call has it. It goes
        #    to no other graph: so each nested one has a place, and can end, whatever others do.
        elif call is not None and loan is not None and loan.borrower is None:
            loan.borrower = call
            start()
        # 3. A free one, or one in excess while other calls wait for their models. `_free` may go
        #    below 0, and no further call begins until it is back.
        elif self._free + self._extra > 0:
            self._free -= 1
            start()
        else:
            # 4. It waits in two queues: for any free place, and for that of the lender. Deeper
            #    calls go first, and then nodes that follow another item by item, so that work that
            #    was begun ends before more begins.
            queued = _QueuedCall(call, start)
            is_no_follower = call is None or not call.state.step.follows
            heappush(self._queue, (-_depth(call), is_no_follower, next(self._number), queued))
            if loan is not None:
                loan.queue.append(queued)
            return False
        return True

    @contextmanager
    def lent_by(self, call: StepCall) -> Iterator[None]:
        """Lends the place of a call that waits inside the block for nested calls."""
        if call.loan is None and call.has_place:
            call.loan = Loan()
        loan = call.loan
        if loan is None:
            yield  # the call is over, and one of its tasks goes on
            return
        loan.tasks += 1
        try:
            yield
        finally:
            loan.tasks -= 1
            if not loan.tasks and call.loan is loan:
                self._end_loan(call)

    def leave(self, call: StepCall) -> None:
        """Frees the place of a call that is over."""
        self._end_loan(call)
        call.has_place = False
        loan = _loan_around(call)
        if loan is None or loan.borrower is not call:
            self.give_back()
            return
        loan.borrower = None
        # A call that has begun with another place stays in this queue, and takes nothing from it.
        while loan.borrower is None and loan.queue:
            self._begin(loan.queue.popleft(), loan)

    def _end_loan(self, call: StepCall) -> None:
        borrower = None if call.loan is None else call.loan.borrower
        call.loan = None
        if borrower is not None and self._free is not None:
            # The borrower was left behind, and goes on in excess of the limit.
            self._free -= 1

    def give_back(self) -> None:
        """Frees a place; the first call that waits gets it."""
        if self._free is not None:
            self._free += 1
            self._fill()

    def lend(self, idle: int) -> None:
        """Lets others begin while `idle` calls under way cannot go on, up to seven a place."""
        self._extra = min(idle, self._most_extra)
        self._fill()

    def _fill(self) -> None:
        while self._free is not None and self._queue and self._free + self._extra > 0:
            *_, queued = heappop(self._queue)
            self._begin(queued, None)

    def _begin(self, queued: _QueuedCall, loan: Loan | None) -> None:
        """Begins a call with the place of a loan, or a free one, unless it has begun already."""
        start, queued.start = queued.start, None  # it may still be in the other queue
        if start is None or self._free is None:
            return
        if loan is None:
            self._free -= 1
        else:
            loan.borrower = queued.call
        start()


def _loan_around(call: StepCall | None) -> Loan | None:
    """The loan of the call that waits for this call's graph; None if it lends nothing."""
    return None if call is None or call.around is None else call.around.loan


def _depth(call: StepCall | None) -> int:
    """How deep a call is nested: 1 for a call of the outermost graph, 0 for None."""
    depth = 0
    while call is not None:
        depth += 1
        call = call.around
    return depth


# --- digests ------------------------------------------------------------------------------------


_JSON_TYPES = frozenset({str, int, float, bool, type(None), list, dict})


def digest_of_value(value: object) -> str:
    """The digest of a value that a call takes, the same for equal values.

    `NO_DIGEST` for an iterator, and for an object that cannot be written as JSON.
    """
    # An object with parts, such as a handle of a database.
    if hasattr(type(value), "code_parts"):
        return digest_of_parts(value) or NO_DIGEST
    if isinstance(value, Iterator | AsyncIterator):
        return NO_DIGEST  # it can be read only once
    if type(value) in _JSON_TYPES:
        try:
            # Written like an output, so that a value has one digest wherever it comes from.
            return digest(value_form(object).encode(value))
        except TypeError:
            pass  # a container with a value that plain JSON does not have, such as a tuple
    try:
        # pydantic writes models, dataclasses, dates and tuples too.
        plain = from_json(to_json(value, inf_nan_mode="constants"))
        return digest(to_json(sets_in_order(plain, value), inf_nan_mode="constants"))
    except ValueError:
        return NO_DIGEST
