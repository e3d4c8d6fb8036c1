"""F1 RunTrace, F2 JSONL Audit Log, F3 Chrome Trace Exporter (tracing): one record of a run.

    harness run run_trace
    harness runs            # the audit log: one line for each run that ended
    harness trace open      # the timeline, in Perfetto

**Problem.** A log says what happened, not how long it took or what it waited for. A profiler knows
the machine, but no prompt. After a crash, both are gone.

**Forces.** Recording must not slow, change or fail the run. Everything goes into one journal, line
by line, during the run; timelines, reports and resumes are made from it.

**Costs.** No call. A span takes about a microsecond of the traced code.

**When not.** Do not record spans of less than a millisecond: add up their times and set an
attribute.

**In Perfetto.** `count words` lies inside its node with its attributes, and the counter `words` is
on the node's track. `files` is a plain function, so it ran in a thread. Every slice has its number
in the journal, `span`.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from harness import Journal, Pipeline, Run, RunTrace

DOCUMENT = "A journal holds every record, one per line, in the order in which things happened."

run_trace = Pipeline("run-trace")


@run_trace.node
async def words(run: Run, document: str = DOCUMENT) -> int:
    """Some work of a node's own, made visible."""
    with run.span("count words", chars=len(document)) as span:
        found = len(document.split())
        span.set(words=found)
    run.counter("words", found, unit="words")
    return found


@run_trace.node
def files(words: int) -> dict[str, object]:
    """The same for a program without a pipeline, and its files read back."""
    with TemporaryDirectory() as folder:
        with RunTrace(Path(folder), name="mine") as trace:
            for size in (words, 10 * words):
                with trace.span("measure", words=size):
                    sorted(range(1_000 * size), reverse=True)
        journal = trace.journal_path
        spans = {span.attributes["words"]: span.name for span in Journal(journal).spans()}
        timeline = json.loads(journal.with_suffix(".json").read_text(encoding="utf-8"))
        slices = sum(event["ph"] == "X" for event in timeline["traceEvents"])
        return {"spans": len(spans), "slices in the Chrome trace": slices}
