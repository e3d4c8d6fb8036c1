"""A run's events while it goes on, made from its records."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import orjson
from pydantic_core import to_jsonable_python

from harness.inference.stream import Stream, Told
from harness.session.result import RunResult
from harness.trace import Instant, NodeOutput, Record, Sink, SpanEnded, SpanStarted
from harness.trace.node_records import NodeStatus, attempt_status
from harness.trace.records import Piece

_MOST_WAITING = 1_000
"""Events that a slow reader can leave unread. The pieces of one call count as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """Something that happened in a run; the kinds are the classes below."""

    def as_json(self) -> str:
        """One line: `{"event": "NodeStarted", "node": "findings[2]", …}`."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        said = {"event": type(self).__name__, **said}
        return orjson.dumps(to_jsonable_python(said, fallback=repr)).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStarted(RunEvent):
    """A call of a node begins, or a further attempt at it."""

    node: str
    """Its label: `answer`, `findings[2]`, `answer/brief/findings[2]`."""
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnded(RunEvent):
    """A call of a node has its output, or an attempt has none; a generated item has come."""

    node: str
    status: NodeStatus
    output: object = None
    """As JSON; None without one, and where the run records no texts."""
    error: str | None = None
    """Why there is no output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPiece(RunEvent):
    """A piece of a model's answer. An evaluator's, and typed replies, are JSON."""

    node: str | None
    role: str | None
    model: str
    """The endpoint's tag."""
    call: int
    """The same for the pieces of one answer; a call that is tried again has a new number."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictReached(RunEvent):
    """A draft was judged, in a loop or by `run.evaluate`."""

    node: str | None
    composite: float
    passed: bool
    scores: Mapping[str, float]
    """By dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEnded(RunEvent):
    """A round of a revise loop."""

    node: str | None
    round: int
    """From 1."""
    composite: float
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopEnded(RunEvent):
    """A revise loop has come to a reason to stop."""

    node: str | None
    stop_reason: str
    best_round: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(RunEvent):
    """A warning of the log."""

    node: str | None
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAsked(RunEvent):
    """A node waits for a person's answer, with which the run is resumed."""

    node: str | None
    key: str
    text: str | None
    """None where the run records no texts."""
    form: str
    """The kind of answer, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsMissed(RunEvent):
    """So many events came too fast for their reader, and were dropped, the oldest first."""

    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDone(RunEvent):
    """The last event: the run came to its end, as `status` of its result says."""

    result: RunResult

    def as_json(self) -> str:
        """One line, with the result's main fields beside `event`."""
        names = ("run_id", "status", "result", "outputs", "stopped_by", "passed", "duration_s")
        said = {name: getattr(self.result, name) for name in names}
        said = {"event": type(self).__name__, **said}
        return orjson.dumps(to_jsonable_python(said, fallback=repr)).decode()


class RunEvents(Stream[RunEvent, RunResult]):
    """The events of one run: `async for event in pipeline.events(task="…")`.

    A run that fails raises after its last event. A run that is left early is cancelled, and can be
    resumed. A slow reader holds up no run: pieces of one call that it has not read are joined, and
    beyond 1,000 waiting events the oldest give way to an `EventsMissed`.

    Args:
        run: Runs the pipeline with this observer.
    """

    def __init__(self, run: Callable[[Sink], Coroutine[Any, Any, RunResult]]) -> None:
        told = Told[RunEvent](
            join=_joined, most=_MOST_WAITING, missed=lambda number: EventsMissed(events=number)
        )
        super().__init__(partial(_told, run, told), told)

    @property
    def result(self) -> RunResult:
        """The run's, after the last event.

        Raises:
            InvalidInput: It has not ended.
            HarnessError: There is none, as the stream has raised.
        """
        return self._result


async def _told(
    run: Callable[[Sink], Coroutine[Any, Any, RunResult]], told: Told[RunEvent]
) -> RunResult:
    result = await run(_Observer(told))
    told.tell(RunDone(result=result))
    return result


def _joined(before: RunEvent, more: RunEvent) -> RunEvent:
    assert isinstance(before, TextPiece)
    assert isinstance(more, TextPiece)
    return replace(before, text=before.text + more.text)


class _Observer:
    """Makes events of records, in the thread that writes the journal."""

    hears_text = True

    def __init__(self, told: Told[RunEvent]) -> None:
        self._tell = told.tell
        self._open: dict[int, SpanStarted] = {}
        self._attempts: dict[str, int] = {}

    def __call__(self, record: Record) -> None:
        match record:
            case Piece():
                call: Any = self._open[record.span].attributes
                piece = TextPiece(
                    node=self._node(record.span),
                    role=call["role"],
                    model=call["model"],
                    call=record.span,
                    text=record.text,
                )
                self._tell(piece, key=record.span)
            case SpanStarted():
                self._open[record.id] = record
                if record.name == "node":
                    label = str(record.attributes["label"])
                    self._attempts[label] = attempt = self._attempts.get(label, 0) + 1
                    self._tell(NodeStarted(node=label, attempt=attempt))
            case SpanEnded():
                self._end(record)
            case NodeOutput():
                label = _label(record.node, record.item)
                self._attempts.pop(label, None)
                if record.skipped is None:  # else there is an instant, too
                    value = record.value
                    output = orjson.loads(orjson.dumps(value)) if value is not None else None
                    self._tell(NodeEnded(node=label, status="done", output=output))
            case Instant():
                self._note(record, dict(record.attributes))

    def _end(self, record: SpanEnded) -> None:
        node = self._node(record.id)
        said: dict[str, Any] = dict(record.attributes)
        name = self._open.pop(record.id).name
        if name == "node" and record.status != "ok":
            status = attempt_status(record)
            self._tell(NodeEnded(node=str(node), status=status, error=record.error))
        elif name == "evaluate" and "composite" in said:
            judged = {one: said[one] for one in ("composite", "passed", "scores")}
            self._tell(VerdictReached(node=node, **judged))
        elif name == "wiggum" and "stop_reason" in said:
            stop_reason, best_round = said["stop_reason"], said.get("best_round")
            self._tell(LoopEnded(node=node, stop_reason=stop_reason, best_round=best_round))

    def _note(self, instant: Instant, said: dict[str, Any]) -> None:
        node = self._node(instant.span)
        match instant.name:
            case "skip" | "reuse":
                label = _label(said["node"], said.get("item"))
                status: NodeStatus = "skipped" if instant.name == "skip" else "reused"
                self._tell(NodeEnded(node=label, status=status, error=said.get("detail")))
            case "round":
                one = {name: said[name] for name in ("round", "composite", "passed")}
                self._tell(RoundEnded(node=node, **one))
            case "warning":
                code, message = str(said.get("code")), str(said["message"])
                self._tell(Warned(node=node, code=code, message=message))
            case "question":
                asked: dict[str, Any] = {name: said.get(name) for name in ("key", "text", "form")}
                self._tell(QuestionAsked(node=node, **asked))

    def _node(self, span: int | None) -> str | None:
        """The label of the node call around a span."""
        around = self._open.get(span or 0)
        while around is not None and around.name != "node":
            around = self._open.get(around.parent or 0)
        return None if around is None else str(around.attributes["label"])


def _label(node: str, item: int | None) -> str:
    return node if item is None else f"{node}[{item}]"
