"""How long loading a model takes: as recent runs measured it, else as its size lets expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, Literal

from harness.errors import JournalInvalid
from harness.residency import Tenant
from harness.trace import AUDIT_LOG, Journal, SpanRecord
from harness.trace.run_files import JOURNAL_SUFFIX

LoadTimeSource = Literal["measured", "guess"]
"""From runs, or from the size."""

_RUNS: Final = 8
"""The latest, which are looked at."""
_MOST_BYTES: Final = 8 << 20
"""Of a journal: a longer one takes longer to read than its loads are worth."""

MeasuredLoads = Mapping[tuple[str, int], Sequence[float]]
"""Seconds, by tag and by the bytes that were thought to be needed: with other settings, or another
file, these are others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTime:
    """What one load takes."""

    seconds: float
    """By the clock."""
    source: LoadTimeSource
    """How that is known."""


def load_seconds(tenant: Tenant, measured: MeasuredLoads) -> LoadTime:
    """What loading a model takes: the median of the loads seen, else what its size tells."""
    seen = measured.get((tenant.model, tenant.need_bytes))
    if seen:
        return LoadTime(seconds=median(seen), source="measured")
    return LoadTime(seconds=tenant.load_s, source="guess")


def measured_loads(traces: Path) -> MeasuredLoads:
    """The loads of the latest runs; a journal that cannot be read is passed over.

    Args:
        traces: The directory that runs land in; it need not exist.
    """
    found: dict[tuple[str, int], list[float]] = {}
    for path in _latest_journals(traces):
        try:
            for span in Journal(path).spans():
                _take(span, found)
        except (JournalInvalid, OSError):
            continue
    return found


def _latest_journals(traces: Path) -> list[Path]:
    journals = []
    for path in traces.glob(f"*{JOURNAL_SUFFIX}"):
        try:
            status = path.stat()
        except OSError:
            continue
        # A resumed run's further parts, whose names have a dot, are read with its first.
        if path.name != AUDIT_LOG and "." not in path.stem and status.st_size <= _MOST_BYTES:
            journals.append((status.st_mtime_ns, path))
    return [path for _, path in sorted(journals, reverse=True)[:_RUNS]]


def _take(span: SpanRecord, found: dict[tuple[str, int], list[float]]) -> None:
    # A call that waits for a load has a span of that name, too, which says what it waits for.
    if span.name != "load" or span.status != "ok" or "waits_for" in span.attributes:
        return
    model, need_bytes = span.attributes.get("model"), span.attributes.get("need_bytes")
    if isinstance(model, str) and isinstance(need_bytes, int):
        seconds = (span.end_ns - span.start_ns) / 1e9
        found.setdefault((model, need_bytes), []).append(seconds)
