"""The state of one run of a graph: of its nodes, their calls, and the places that calls take."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, Literal, NamedTuple

from pydantic_core import from_json, to_json

from harness.graph.fingerprint import digest_of_parts
from harness.graph.outcome import Skipped
from harness.graph.plan import Step
from harness.graph.values import digest, digest_of_all, sets_in_order, value_form
from harness.trace.records import label_of

NO_DIGEST = ""  # the digest of a value without a JSON form; it never equals another

PENDING: Final = object()  # the placeholder for a future output


class Blocked(NamedTuple):
    """The placeholder for an output that this part of the run will not have."""

    label: str  # the call whose end was the reason; empty if it was the whole run's
    what: str  # how that call ended: `failed`

    @property
    def reason(self) -> str:
        """The end of a sentence: `'findings' failed`."""
        return f"'{self.label}' {self.what}" if self.label else self.what


# --- nodes --------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class StepState:
    """The outputs of a step so far."""

    step: Step
    path: str  # the node's name in the run, behind the labels of the calls that it is nested in
    # Limits how many of its calls are under way; None without a limit.
    places: Places | None = field(init=False)
    waits_for: int = field(init=False)  # how many nodes it still needs the whole output of
    is_in_trouble: bool = False  # whether the output of one of its sources is not a plain value
    # Its whole output, `Skipped` or `Blocked`; for a step that gives items, the list of all items,
    # skipped ones included.
    outcome: object = PENDING
    digest: str = NO_DIGEST  # of the whole output
    span: int | None = None  # of its finished call; None if an earlier part of the run made it
    items: list[object] | None = None  # the output of each call, by item; None until it has begun
    total: int | None = None  # how many items it will have; None as long as that is unknown
    settled: int = 0  # how many items it has now
    # Why there will be no more items, if one of its sources ended early.
    obstacle: Blocked | Skipped | None = None
    # By item; only of steps that give items: most do not, and large graphs have many.
    spans: dict[int, int] = field(init=False)
    digests: list[str] = field(init=False)
    # For each mapped parameter, the state or list that its items are from; empty until it has
    # begun.
    sources: list[StepState | ListSource] = field(init=False)
    begun: set[int] = field(init=False)
    _wholes: dict[bool, tuple[list[object], str]] = field(init=False)

    def __post_init__(self) -> None:
        concurrency = self.step.policies.concurrency
        self.places = Places(concurrency.limit) if concurrency else None
        self.waits_for = self.step.waits_for
        if self.step.gives_items:
            self.spans, self.digests, self.sources = {}, [], []
            self.begun, self._wholes = set(), {}

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
        assert self.items is not None
        # A new list, since a consumer might change it.
        if with_skipped or not any(type(item) is Skipped for item in self.items):
            return list(self.items), self.digest
        numbers = [n for n, item in enumerate(self.items) if type(item) is not Skipped]
        return [self.items[n] for n in numbers], digest_of_all(self.digests[n] for n in numbers)

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


class ListSource(NamedTuple):
    """A list whose items a mapped node takes; stands in for a `StepState` that has ended."""

    values: list[object]
    digests: list[str]

    @property
    def total(self) -> int:
        """The number of items."""
        return len(self.values)

    @property
    def reach(self) -> int:
        """As in `StepState`: all items exist."""
        return len(self.values)

    @property
    def has_ended(self) -> bool:
        """As in `StepState`."""
        return True

    def item(self, index: int) -> object:
        """One of its items; `PENDING` after the last."""
        return self.values[index] if index < len(self.values) else PENDING


# --- calls --------------------------------------------------------------------------------------


class Taken(NamedTuple):
    """The arguments of one call."""

    arguments: dict[str, Any]
    inputs: dict[str, str]  # the digests of the arguments, by parameter
    # The spans that made the arguments; labels, where an earlier part of the run made them.
    needs: tuple[int | str, ...]


NOTHING_TAKEN: Final = Taken({}, {}, ())


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
    taken: Taken = NOTHING_TAKEN  # set when it begins
    decided_by: tuple[int | str, ...] = ()  # what its node's `when=` was given
    around: StepCall | None = None  # the call that it is nested in, by what waits for it
    has_place: bool = False  # whether it counts as one of those under way
    lender: Loan | None = None  # whose place it has; None for one of the run's own
    loan: Loan | None = None  # of its own place, while it waits for nested calls
    # Its waits for a place of its node or of all, one after the other with their starts.
    waits: tuple[tuple[Literal["node", "pipeline"], int], ...] = ()
    # What it used so far beside its code and inputs, by name.
    uses: dict[str, Use] = field(default_factory=dict)
    # Whether its function is running; only then can it be cancelled, since before and after there
    # are only records to write.
    is_made: bool = False

    @property
    def step(self) -> Step:
        """Its node."""
        return self.state.step

    @property
    def label(self) -> str:
        """Its name: `findings[2]`."""
        return self.state.label(self.item)


@dataclass(slots=True, eq=False)
class Loan:
    """The place of a call that waits for nested calls: one of them has it, or the next gets it."""

    borrower: StepCall | None = None
    tasks: int = 0  # of the lender, which wait
    waiting: deque[_QueuedCall] = field(default_factory=deque)


INNERMOST: ContextVar[StepCall] = ContextVar("innermost")
"""The call that this code runs in, whatever `run` it uses."""


class CallOutput(NamedTuple):
    """The output of one call."""

    value: object
    data: bytes  # the value as JSON
    span: int  # the span that made it; 0 if it existed before


# How many further calls may begin for each place while calls wait for their models. Eight calls a
# place: 100 rows that took turns at two models needed 4 loads in place of 20.
_MOST_LOANS = 7


@dataclass(slots=True, eq=False)
class _QueuedCall:
    call: StepCall | None
    start: Callable[[], object] | None  # None once it has begun


class Places:
    """Starts calls at once while there is room, else in order; a waiting call costs no task."""

    __slots__ = ("_count", "_free", "_lent", "_most_lent", "_waiting")

    def __init__(self, limit: int | None) -> None:
        self._free = limit
        self._lent, self._most_lent = 0, _MOST_LOANS * (limit or 0)
        self._count = count()
        self._waiting: list[tuple[int, bool, int, _QueuedCall]] = []  # a heap

    def take(self, start: Callable[[], object], call: StepCall | None = None) -> None:
        """Calls `start` when there is a place; `leave` must follow, without a call `give_back`."""
        loan = None if call is None or call.around is None else call.around.loan
        # 1. No limit.
        if self._free is None:
            start()
        # 2. The place of the call that waits for this one's graph, if no other call has it. It goes
        #    to no other graph: so each nested one has a place, and can end, whatever others do.
        elif call is not None and loan is not None and loan.borrower is None:
            loan.borrower, call.lender = call, loan
            start()
        # 3. A free one, or one in excess for a call that waits for its model. `_free` may go
        #    below 0, and no further call begins until it is back.
        elif self._free + self._lent > 0:
            self._free -= 1
            start()
        else:
            # 4. In line twice: for any free place, and for that of the lender. Deeper calls go
            #    first, and nodes that follow another item by item: what is begun ends before more
            #    begins.
            depth = 0
            around = call
            while around is not None:
                depth += 1
                around = around.around
            queued = _QueuedCall(call, start)
            is_first = call is None or not call.state.step.follows
            heappush(self._waiting, (-depth, is_first, next(self._count), queued))
            if loan is not None:
                loan.waiting.append(queued)

    @contextmanager
    def lent_by(self, call: StepCall) -> Iterator[None]:
        """Lends the place of a call that waits inside the block for nested calls."""
        if call.loan is None and call.has_place:
            call.loan = Loan()
        if (loan := call.loan) is None:
            yield  # the call is over, and one of its tasks goes on
            return
        loan.tasks += 1
        try:
            yield
        finally:
            loan.tasks -= 1
            if not loan.tasks and call.loan is loan:
                call.loan = None
                if loan.borrower is not None and self._free is not None:
                    # It was left behind, and is under way in excess.
                    loan.borrower.lender = None
                    self._free -= 1

    def leave(self, call: StepCall) -> None:
        """The call is over, and its place free, unless a nested call goes on with it."""
        call.has_place = False
        (loan, call.loan), (lender, call.lender) = (call.loan, None), (call.lender, None)
        borrower = None if loan is None else loan.borrower
        if borrower is not None:
            # Left behind, the nested call goes on with the place, and owes it to this one's lender.
            borrower.lender = lender
        if lender is None:
            if borrower is None:
                self.give_back()
            return
        lender.borrower = borrower
        # A call that has begun with another place stays in this line, and takes nothing from it.
        while lender.borrower is None and lender.waiting:
            self._begin(lender.waiting.popleft(), lender)

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
            self._begin(heappop(self._waiting)[-1], None)

    def _begin(self, queued: _QueuedCall, lender: Loan | None) -> None:
        """Begins a call with the place of a lender, or a free one, unless it had one before."""
        start, queued.start = queued.start, None
        if start is None or self._free is None:
            return
        if lender is None or queued.call is None:
            self._free -= 1
        else:
            lender.borrower, queued.call.lender = queued.call, lender
        start()


# --- digests ------------------------------------------------------------------------------------


_JSON = frozenset({str, int, float, bool, type(None), list, dict})


def digest_of_value(value: object) -> str:
    """The digest of a value that a call takes, the same for equal values; `NO_DIGEST` for some."""
    # An object with parts, such as a handle of a database.
    if hasattr(type(value), "code_parts"):
        return digest_of_parts(value) or NO_DIGEST
    if isinstance(value, Iterator | AsyncIterator):
        return NO_DIGEST  # it can be read only once
    if type(value) in _JSON:
        try:
            # As an output is written, so that a value has one digest wherever it comes from.
            return digest(value_form(object).encode(value))
        except TypeError:
            pass  # something in it is not what JSON means
    try:
        plain = from_json(to_json(value, inf_nan_mode="constants"))
        return digest(to_json(sets_in_order(plain, value), inf_nan_mode="constants"))
    except ValueError:
        return NO_DIGEST
