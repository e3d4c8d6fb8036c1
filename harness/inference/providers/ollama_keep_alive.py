"""The keep-alive time of each call to Ollama, derived from the pauses between earlier calls.

During a run, the budget decides when a model is unloaded. The keep-alive time matters where the
budget has no say: too short, and the model is gone before the next call; too long, and a killed run
leaves it in memory. It is never infinite.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from harness.trace import Clock

BASE_S: Final = 300.0
"""Until enough gaps were seen; it is Ollama's own default."""
LEAST_S: Final = 90.0
"""A run that has been quick so far may pause: one load costs more than a minute of memory."""
MOST_S: Final = 3600.0
"""However long the gaps."""
MARGIN: Final = 1.2
"""Margin over the gap to outlast."""
TENTHS: Final = 9
"""Gaps in ten to outlast."""
ENOUGH_GAPS: Final = 4
"""With fewer than these, the longest to come has hardly been among them."""
KEPT_GAPS: Final = 64
"""Older gaps are forgotten, so that an ended phase of the run does not count."""


def keep_alive_s(gaps_ns: Sequence[int]) -> float:
    """Whole seconds that a model stays loaded after a call.

    The 90th percentile of the gaps and a fifth more, at least `LEAST_S` and at most `MOST_S`; with
    fewer than `ENOUGH_GAPS`, not less than `BASE_S`. The percentile is by nearest rank: the
    shortest of the gaps that nine in ten do not exceed (of 10 gaps the second longest, of 9 the
    longest).
    """
    least_s = LEAST_S if len(gaps_ns) >= ENOUGH_GAPS else BASE_S
    if not gaps_ns:
        return least_s
    rank = -(-TENTHS * len(gaps_ns) // 10)
    wanted_s = math.ceil(sorted(gaps_ns)[rank - 1] * MARGIN / 1e9)
    return min(max(float(wanted_s), least_s), MOST_S)


class IdleGaps:
    """The times that one model was idle, between the end of a call and the beginning of the next.

    Calls that overlap have no gap between them.
    """

    def __init__(self) -> None:
        self._gaps_ns: deque[int] = deque(maxlen=KEPT_GAPS)
        self._under_way = 0
        self._idle_since_ns: int | None = None

    @property
    def gaps_ns(self) -> tuple[int, ...]:
        """The gaps, the earliest first."""
        return tuple(self._gaps_ns)

    @property
    def keep_alive_s(self) -> float:
        """See the function of that name."""
        return keep_alive_s(self._gaps_ns)

    @contextmanager
    def noted(self, clock: Clock) -> Iterator[None]:
        """Around a call of the model."""
        self.began(clock())
        try:
            yield
        finally:
            self.ended(clock())

    def began(self, now_ns: int) -> None:
        """A call begins."""
        if self._idle_since_ns is not None:
            self._gaps_ns.append(now_ns - self._idle_since_ns)
            self._idle_since_ns = None
        self._under_way += 1

    def ended(self, now_ns: int) -> None:
        """A call has ended, well or not."""
        assert self._under_way > 0, "a call ends that never began"
        self._under_way -= 1
        if self._under_way == 0:
            self._idle_since_ns = now_ns
