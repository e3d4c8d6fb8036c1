"""`harness trace export latest --format csv --output calls.csv`: a line for each model call."""

from __future__ import annotations

import csv

from harness import ExportTarget, Journal
from harness.errors import InvalidInput
from harness.trace import calls_of

COLUMNS = ("model", "role", "start_ms", "ttft_ms", "duration_ms", "input_tokens", "output_tokens")


def export_csv(journal: Journal, target: ExportTarget) -> str:
    """See `harness.Exporter`."""
    if target.endpoint or target.headers:
        raise InvalidInput("csv writes a file; give --output", code="csv.no-endpoint")
    path = target.output or journal.path.with_suffix(".csv")
    calls = calls_of(journal.spans())
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for call in calls:
            table.writerow(
                [
                    call.model,
                    call.role,
                    round(call.start_ns / 1e6, 3),
                    None if call.ttft_ns is None else round(call.ttft_ns / 1e6, 3),
                    round((call.end_ns - call.start_ns) / 1e6, 3),
                    call.input_tokens,
                    call.output_tokens,
                ]
            )
    return f"{len(calls)} calls written to {path}"
