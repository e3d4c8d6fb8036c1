"""When the process stood still, as late heartbeats show, and the error of times measured then."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

from harness.trace.clock import Clock
from harness.trace.records import Interval

BEAT_NS = 10_000_000  # the time from one beat to the next
# The loop stood still if a beat is later than this; a timer is not that late.
LEAST_STALL_NS = 8_000_000
# For so long after a stall, data that arrived in it may still be unread.
_AFTERWARDS_NS = 10_000_000
_MOST_KEPT = 20_000
# A duration is wrong if its ends may be wrong by a larger share of it.
_MOST_DOUBT = 0.1


class Stalls:
    """The stalls of one event loop, as far back as calls that are under way may need them.

    Beats come from its thread; any thread may ask.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stalls: list[Interval] = []
        self._last_ns: int | None = None

    def beat(self) -> Interval | None:
        """Notes that the loop runs; returns the stall that this beat has ended."""
        now_ns = self._clock()
        last_ns, self._last_ns = self._last_ns, now_ns
        if last_ns is None or now_ns - last_ns < BEAT_NS + LEAST_STALL_NS:
            return None
        stall = Interval(start_ns=last_ns, end_ns=now_ns)
        if len(self._stalls) >= _MOST_KEPT:
            # A new list: another thread may be reading the old one.
            self._stalls = self._stalls[_MOST_KEPT // 2 :]
        self._stalls.append(stall)
        return stall

    def stop(self) -> None:
        """Expects no more beats: a missing beat is no stall from here on."""
        self._last_ns = None

    def falsify(self, measured: Interval, *, from_sending: bool = False) -> bool:
        """Whether a measured duration may be wrong by more than a tenth.

        Its end is an arrival. So is its start, unless it is measured `from_sending` something.
        """
        doubt_ns = self._early_ns(measured.end_ns)
        if not from_sending:
            doubt_ns += self._early_ns(measured.start_ns)
        return doubt_ns > _MOST_DOUBT * measured.duration_ns

    def falsify_gaps(self, measured: Interval, *, longest_ns: int) -> bool:
        """Whether the longest wait between two arrivals in this time may be wrong by a tenth."""
        stalls = self._known()
        first = bisect_right(stalls, measured.start_ns - _AFTERWARDS_NS, key=attrgetter("end_ns"))
        until = bisect_right(stalls, measured.end_ns, key=attrgetter("start_ns"))
        return any(s.duration_ns > _MOST_DOUBT * longest_ns for s in stalls[first:until])

    @property
    def overdue_ns(self) -> int:
        """How long the next beat has been missing; 0 if it is not."""
        return 0 if self._last_ns is None else max(0, self._clock() - self._last_ns - BEAT_NS)

    def _early_ns(self, stamped_ns: int) -> int:
        """How long before its timestamp data may have arrived, in ns."""
        # Data that arrives while the event loop is blocked gets its time only afterwards.
        stalls = self._known()
        count = bisect_right(stalls, stamped_ns, key=attrgetter("start_ns"))
        if count and stamped_ns <= stalls[count - 1].end_ns + _AFTERWARDS_NS:
            return stamped_ns - stalls[count - 1].start_ns
        return 0

    def _known(self) -> list[Interval]:
        """All stalls; the last of them still goes on if the next beat is overdue."""
        overdue_ns, last_ns = self.overdue_ns, self._last_ns
        if last_ns is None or overdue_ns < LEAST_STALL_NS:
            return self._stalls
        return [*self._stalls, Interval(start_ns=last_ns, end_ns=last_ns + BEAT_NS + overdue_ns)]
