"""What a run gives back: its result, and its events while it goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from textwrap import shorten
from typing import Any, Generic, Literal, Self, cast

import orjson
from pydantic_core import to_jsonable_python

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
from harness.inference.stream import ItemQueue, Stream
from harness.session.separation import EvaluatorPool, Separation
from harness.trace import (
    AUDIT_LOG,
    TIMELINES,
    CallGroup,
    Instant,
    NodeOutput,
    Record,
    Sink,
    SpanEnded,
    SpanStarted,
    dump_json,
    events,
)
from harness.trace.node_records import NodeStatus, attempt_status
from harness.trace.records import Piece, joined, label_of
from harness.wiggum import RecordedLoop, WiggumResult


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
        """The files of the run with this journal."""
        timelines = {}
        for form, (suffix, _) in TIMELINES.items():
            path = journal.with_suffix(suffix)
            if path.is_file():
                timelines[form] = path
        return cls(
            journal=journal,
            chrome_trace=timelines.get("chrome"),
            perfetto_trace=timelines.get("perfetto"),
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
    """That limit: `tokens`, `cost`, `time`, `calls`; `outage` of an endpoint; `journal`, or of a
    batch `output`, that could not be written."""
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
    """What a pipeline that a node called gives back."""

    outputs: Mapping[str, object]
    result: ResultT
    """See `RunResult.result`."""


def call_result(graph: Graph[ResultT], outputs: Mapping[str, object]) -> CallResult[ResultT]:
    """The outputs of a pipeline, and which of them is its result."""
    result: Any = outputs.get(graph.result_node)
    if graph.nodes[graph.result_node].is_mapped and isinstance(result, list):
        # As a node that takes the list gets it: without the items that were skipped.
        result = [item for item in result if not isinstance(item, Skipped)]
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


# --- while it goes on -----------------------------------------------------------------------------

EventKind = Literal[
    "node started", "node ended", "text", "verdict", "round", "loop ended", "warning", "question",
    "missed", "done",
]  # fmt: skip
# Most unread events. The pieces of one call count as one.
_MOST_WAITING = 1_000
_RESULT_FIELDS = ("run_id", "status", "result", "outputs", "stopped_by", "passed", "duration_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """Something that happened in a run. Fields that its kind does not have are None."""

    kind: EventKind
    node: str | None = None
    """The label of the node's call: `answer`, `findings[2]`."""
    attempt: int | None = None
    """For a started node: 1 for its first attempt."""
    status: NodeStatus | None = None
    """For an ended node: a `failed` attempt may be followed by another."""
    output: object = None
    """For an ended node, as JSON, if the run records texts; items come as they are made. None for
    `reused` outputs."""
    error: str | None = None
    """Why the node has no output."""
    role: str | None = None
    """For a text: the model's role. An evaluator's text, and a typed reply, is JSON."""
    model: str | None = None
    """For a text: the endpoint's tag."""
    call: int | None = None
    """For a text: the same number for all pieces of one answer; a retry has another."""
    text: str | None = None
    """A piece of an answer, or the text of a question."""
    round: int | None = None
    """The round's number, from 1; for an ended loop, its best round."""
    composite: float | None = None
    """For a verdict or a round."""
    passed: bool | None = None
    scores: Mapping[str, float] | None = None
    """For a verdict, by dimension."""
    stop_reason: str | None = None
    code: str | None = None
    message: str | None = None
    key: str | None = None
    """For a question: the key that answers it when the run is resumed."""
    form: str | None = None
    """For a question: the kind of answer, in words."""
    missed: int | None = None
    """How many events were dropped because the reader was too slow."""
    result: RunResult | None = None
    """For the last event, `done`."""

    def as_json(self) -> str:
        """One line with the fields that are not None, and the main fields of the result."""
        values = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}
        values = {name: value for name, value in values.items() if value is not None}
        if self.result is not None:
            values["result"] = {name: getattr(self.result, name) for name in _RESULT_FIELDS}
        return dump_json(to_jsonable_python(values, fallback=repr)).decode()


class RunEvents(Stream[RunEvent, RunResult]):
    """The events of one run: `async for event in pipeline.events(task="…")`.

    Afterwards, `result` has the run's result. A failed run raises after its last event. Leaving the
    iteration early cancels the run, which can be resumed. A slow reader never delays the run:
    unread pieces of one call are joined, and beyond 1,000 waiting events the oldest are replaced by
    one that counts the `missed` events.

    Args:
        run: Runs the pipeline with this observer.
    """

    def __init__(self, run: Callable[[Sink], Coroutine[Any, Any, RunResult]]) -> None:
        queue = ItemQueue[RunEvent](
            lambda before, after: replace(before, text=f"{before.text}{after.text}"),
            most=_MOST_WAITING,
            missed=lambda number: RunEvent(kind="missed", missed=number),
        )

        async def run_observed() -> RunResult:
            result = await run(_Observer(queue))
            queue.put(RunEvent(kind="done", result=result))
            return result

        super().__init__(run_observed, queue)


class _Observer:
    """Makes an event of each record that has one, in the thread that writes the journal."""

    hears_text = True

    def __init__(self, queue: ItemQueue[RunEvent]) -> None:
        self._queue = queue
        self._open_spans: dict[int, SpanStarted] = {}
        # Label of a node's call → how many attempts have begun.
        self._attempts: Counter[str] = Counter()

    def __call__(self, record: Record) -> None:
        match record:
            case Piece():
                call = events.Chat.read(self._open_spans[record.span])
                event = RunEvent(
                    kind="text",
                    node=self._node_around(record.span),
                    text=record.text,
                    role=call.role,
                    model=call.model,
                    call=call.id,
                )
                self._queue.put(event, key=record.span)
            case SpanStarted():
                self._open_spans[record.id] = record
                if node := events.NodeAttempt.of(record):
                    self._attempts[node.label] += 1
                    self._tell("node started", node.label, attempt=self._attempts[node.label])
            case SpanEnded():
                self._note_end(record)
                del self._open_spans[record.id]
            case NodeOutput() if record.skipped is None:  # a skipped node has an instant as well
                output = None if record.value is None else orjson.loads(orjson.dumps(record.value))
                label = label_of(record.node, record.item)
                self._tell("node ended", label, status="done", output=output)
            case Instant():
                self._note_instant(record)

    def _note_end(self, record: SpanEnded) -> None:
        span = joined(self._open_spans[record.id], record)
        node = self._node_around(record.id)
        if events.NodeAttempt.of(span) and span.status != "ok":
            self._tell("node ended", node, status=attempt_status(span), error=span.error)
        elif (evaluated := events.Evaluate.of(span)) and evaluated.composite is not None:
            self._tell(
                "verdict",
                node,
                composite=evaluated.composite,
                passed=evaluated.passed,
                scores=evaluated.scores,
            )
        elif (loop := events.LoopEvent.of(span)) and loop.stop_reason is not None:
            self._tell("loop ended", node, stop_reason=loop.stop_reason, round=loop.best_round)

    def _note_instant(self, instant: Instant) -> None:
        node = self._node_around(instant.span)
        if skip := events.Skip.of(instant):
            label = label_of(skip.node, skip.item)
            self._tell("node ended", label, status="skipped", error=skip.detail)
        elif reuse := events.Reuse.of(instant):
            self._tell("node ended", label_of(reuse.node, reuse.item), status="reused")
        elif round_ := events.RoundEvent.of(instant):
            composite, passed = round_.composite, round_.passed
            self._tell("round", node, round=round_.round, composite=composite, passed=passed)
        elif warning := events.Warned.of(instant):
            self._tell("warning", node, code=warning.code, message=warning.message)
        elif question := events.QuestionEvent.of(instant):
            self._tell("question", node, key=question.key, text=question.text, form=question.form)

    def _tell(self, kind: EventKind, node: str | None, **fields_: Any) -> None:  # noqa: ANN401
        self._queue.put(RunEvent(kind=kind, node=node, **fields_))

    def _node_around(self, span_id: int | None) -> str | None:
        """The label of the node's call that a span belongs to; None outside of nodes."""
        span = self._open_spans.get(span_id or 0)
        while span is not None:
            if attempt := events.NodeAttempt.of(span):
                return attempt.label
            span = self._open_spans.get(span.parent or 0)
        return None
