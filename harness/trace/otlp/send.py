"""The OpenTelemetry export: a run, sent to a collector as OTLP over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from harness.errors import ExportFailed
from harness.trace.journal_reader import Journal
from harness.trace.otlp.collector import Collector
from harness.trace.otlp.message import export_request
from harness.trace.otlp.spans import otlp_spans
from harness.version import __version__

_BATCH_BYTES = 4_000_000
"""A batch that has grown to this goes out: collectors refuse requests beyond some 20 MB."""


def send_otlp(
    journal: Journal,
    *,
    endpoint: str,
    headers: Mapping[str, str] | None = None,
    content: bool = False,
    batch: int = 512,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Sends a run to a collector: Phoenix, Langfuse, Jaeger, or any other that takes OTLP.

    Args:
        journal: The run's; best when it is over, since viewers keep what they got first.
        endpoint: The collector's address; `/v1/traces` is added where it is missing.
        headers: Sent along, to be let in. No message quotes their values.
        content: Whether prompts, replies, drafts, and words about them go too.
        batch: Spans in one request, at most.
        sleep: Waits, in seconds.

    Returns:
        How many spans were sent.

    Raises:
        InvalidInput: The address or a header is not usable.
        ExportFailed: The collector is not there, or did not take all of the run.
        JournalInvalid: A line in the middle of the journal is not a record.
    """
    resource = {
        "service.name": "harness",
        "service.version": __version__,
        "openinference.project.name": journal.started.name,
    }
    sent = 0
    with Collector(endpoint, headers=headers or {}, sleep=sleep) as collector:
        for spans in _batches(otlp_spans(journal, content=content), batch):
            collector.post(export_request(spans, resource=resource, version=__version__))
            sent += len(spans)
    if collector.rejected_spans:
        raise ExportFailed(
            f"the collector at {collector.shown} kept {sent - collector.rejected_spans} of the "
            f"run's {sent} spans: {collector.complaint or 'it does not say why'}",
            address=collector.shown,
            rejected_spans=collector.rejected_spans,
        )
    return sent


def _batches(spans: Iterable[bytes], most: int) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for span in spans:
        if batch and (len(batch) >= most or size + len(span) > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(span)
        size += len(span)
    if batch:
        yield batch
