"""What a run gives back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any, Generic, Self, cast

from harness.errors import Notice
from harness.graph import (
    Execution,
    Graph,
    NodeFailure,
    NodeSkip,
    Question,
    Rerun,
    RunStatus,
    Skipped,
)
from harness.graph.graph import ResultT
from harness.inference import NOTHING, Spent
from harness.inference.limits import LimitName
from harness.inference.request import most_tokens_in, most_tokens_of_messages
from harness.session.separation import EvaluatorPool, Separation
from harness.trace import (
    AUDIT_LOG,
    TIMELINES,
    CallGroup,
    Instant,
    Journal,
    SpanRecord,
    calls_of,
    events,
)
from harness.trace.calls import charges_of
from harness.wiggum import RecordedLoop, WiggumResult

_ROLE = re.compile(r"(?:\A|\n\n)\[(?:system|user|assistant|tool)(?: [^\]\n]*)?\]\n")
"""The label of a message in a prompt, as the journal keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """The files of a run."""

    journal: Path
    """Every record, one per line; of a resumed run, the file of its first part."""
    chrome_trace: Path | None
    """The timeline as Chrome Trace JSON; None if the settings ask for none."""
    perfetto_trace: Path | None
    """The timeline in Perfetto's own format; None if the settings ask for none."""
    audit_log: Path
    """One line per run."""

    @classmethod
    def beside(cls, journal: Path) -> Self:
        """The files that there are."""
        forms = {form: journal.with_suffix(ending) for form, (ending, _) in TIMELINES.items()}
        written = {form: path for form, path in forms.items() if path.is_file()}
        return cls(
            journal=journal,
            chrome_trace=written.get("chrome"),
            perfetto_trace=written.get("perfetto"),
            audit_log=journal.parent / AUDIT_LOG,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(Generic[ResultT]):
    """The result of a run that finished, failed, was stopped at a limit, or waits for a person."""

    run_id: str
    pipeline: str
    status: RunStatus = "finished"
    outputs: Mapping[str, object]
    """The output of every node that has one; `Skipped` for a node that was skipped."""
    result: ResultT
    """The output of the pipeline's result node: the last node, or the one named by
    `Pipeline(result=…)`. None without an output; if the node was skipped, a warning says so."""
    failures: tuple[NodeFailure, ...] = ()
    skips: tuple[NodeSkip, ...] = ()
    questions: tuple[Question, ...] = ()
    stopped_by: str | None = None
    """The limit that ended the run, in words."""
    limit: str | None = None
    """That limit: `tokens`, `cost`, `time`, `calls`; `outage` of an endpoint, or `journal` that
    could not be written."""
    command_limit: LimitName | None = None
    """That limit, if it was of the command alone: only then an option raises it."""
    reused: tuple[str, ...] = ()
    """Calls of nodes that were not made, because an earlier part of the run has their outputs, or,
    for a node with a `Cache`, another run."""
    reruns: tuple[Rerun, ...] = ()
    """Calls repeated although an earlier part of the run has their outputs, with the reasons."""
    retries: Mapping[str, int] = field(default_factory=dict)
    """Retries of each node and model in the last part, by name."""
    replies_used_again: int = 0
    """Number of model replies kept from earlier parts, for nodes that had not ended then."""
    parts: int = 1
    """Number of parts: 1, and 1 more for each resume."""
    had_finished: bool = False
    """Whether the run had already finished, so that nothing was run."""
    loops: tuple[WiggumResult, ...]
    """Revise loops in the order they ended; for a resumed run, only since then."""
    earlier_loops: tuple[RecordedLoop, ...] = ()
    """Loops that ended before the run was resumed, in nodes that were not called again."""
    models: tuple[CallGroup, ...]
    """The calls of each model and their speed, over all parts of the run."""
    spent: Spent = NOTHING
    """Calls, tokens, money and time of all parts of the run."""
    duration_s: float
    """Duration of the last part, including loading."""
    files: RunFiles
    separation: Separation | None = None
    """How far producer and evaluators differ; None without an evaluator, or if none judged."""
    evaluator_pool: EvaluatorPool | None = None
    """None without a pool, or if none judged."""
    warnings: tuple[Notice, ...] = ()

    def __repr__(self) -> str:
        """The result, shortened, with the figures that people look for."""
        result = shorten(repr(self.result), 80, placeholder=" …")
        return (
            f"RunResult({self.pipeline!r}, {self.status!r}, run_id={self.run_id!r}, "
            f"result={result}, calls={self.spent.calls}, duration_s={self.duration_s:.1f})"
        )

    @property
    def passed(self) -> bool | None:
        """Whether the run finished and every loop met its rubric.

        None if it finished without a loop, so that nothing was judged.
        """
        if self.status != "finished":
            return False
        return all_passed([*self.earlier_loops, *self.loops])


def all_passed(loops: Sequence[WiggumResult | RecordedLoop]) -> bool | None:
    """Whether every loop met its rubric; None if there are no loops."""
    return all(loop.passed for loop in loops) if loops else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult(Generic[ResultT]):
    """The outputs of a pipeline that a node called."""

    outputs: Mapping[str, object]
    result: ResultT
    """See `RunResult.result`."""


def call_result(graph: Graph[ResultT], outputs: Mapping[str, object]) -> CallResult[ResultT]:
    """These outputs of a pipeline, with its result among them."""
    result: Any = outputs.get(graph.result_node)
    return CallResult(outputs=outputs, result=result)


def result_of(graph: Graph[ResultT], ended: Execution) -> ResultT:
    """The result node's output; None without one."""
    output: Any = ended.outputs.get(graph.result_node)
    return cast("ResultT", None if isinstance(output, Skipped) else output)


def result_notices(graph: Graph, ended: Execution) -> Iterator[Notice]:
    """A warning if the result node was skipped."""
    output = ended.outputs.get(graph.result_node)
    if isinstance(output, Skipped):
        yield Notice(
            code="run.result-skipped",
            message=f"there is no result: its node '{graph.result_node}' was skipped "
            f'({output.reason}); if another gives it, write Pipeline(…, result="…")',
        )


def run_spent(journal: Journal) -> Spent:
    """Adds up the use of a run: its calls to models, including embeddings and failed attempts.

    Raises:
        JournalInvalid: A line in the middle is not a record.
    """
    recorded = events.Events()
    calls = calls_of(recorded.noted(journal.items(SpanRecord, Instant)))
    sent: list[events.Request] = [
        call
        for call in (*calls, *recorded[events.OtherRequest])
        if call.was_sent and not call.from_cache
    ]
    endpoints = recorded[events.EndpointEvent]
    charges = charges_of(sent, endpoints)
    # Of calls that were under way when the run was killed the use is unknown, too.
    uncounted = [call for call in sent if call.input_tokens is None and not call.was_free]
    most_asked, most_answered = _most_tokens(uncounted, journal)
    return Spent(
        calls=len(sent),
        input_tokens=sum(call.input_tokens or 0 for call in sent) + most_asked,
        output_tokens=sum(call.output_tokens or 0 for call in sent) + most_answered,
        cost_usd=sum(charges.values()) if charges else None,
        time_ns=journal.duration_ns,
        estimated_calls=len(uncounted),
        unpriced_calls=sum(call.id not in charges and not call.was_free for call in sent),
    )


def _most_tokens(calls: Sequence[events.Request], journal: Journal) -> tuple[int, int]:
    """The estimated tokens of calls without a count, in and out, as far as texts were recorded."""
    chats = [call for call in calls if isinstance(call, events.Chat)]
    texts = journal.texts({sha for c in chats for sha in (c.prompt_sha256, c.reply_sha256) if sha})
    asked = answered = 0
    for chat in chats:
        if prompt := texts.get(chat.prompt_sha256):
            # The meter counted the contents alone; the labels would be two tokens more a message.
            contents, messages = _ROLE.subn("", prompt)
            asked += most_tokens_of_messages(contents, messages=messages)
        answered += most_tokens_in(texts.get(chat.reply_sha256, ""))
    return asked, answered
