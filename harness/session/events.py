"""Live events of a run, made from its records."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal

import orjson
from pydantic_core import to_jsonable_python

from harness.inference.stream import Stream, Told
from harness.session.result import RunResult
from harness.trace import Instant, NodeOutput, Record, Sink, SpanEnded, SpanStarted
from harness.trace.node_records import NodeStatus, attempt_status
from harness.trace.records import Piece

EventKind = Literal[
    "node started", "node ended", "text", "verdict", "round", "loop ended", "warning", "question",
    "missed", "done",
]  # fmt: skip
_MOST_WAITING = 1_000
"""Most unread events for a slow reader. The pieces of one call count as one."""
_TOLD_OF_A_RESULT = ("run_id", "status", "result", "outputs", "stopped_by", "passed", "duration_s")


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
    """For an ended loop."""
    code: str | None = None
    """The code of a warning."""
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
        said = {one.name: getattr(self, one.name) for one in fields(self)}
        said = {name: value for name, value in said.items() if value is not None}
        if self.result is not None:
            said["result"] = {name: getattr(self.result, name) for name in _TOLD_OF_A_RESULT}
        return orjson.dumps(to_jsonable_python(said, fallback=repr)).decode()


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
        told = Told[RunEvent](_joined, most=_MOST_WAITING, missed=_missed)
        super().__init__(partial(_told, run, told), told)


async def _told(
    run: Callable[[Sink], Coroutine[Any, Any, RunResult]], told: Told[RunEvent]
) -> RunResult:
    result = await run(_Observer(told))
    told.tell(RunEvent(kind="done", result=result))
    return result


def _joined(before: RunEvent, more: RunEvent) -> RunEvent:
    return replace(before, text=f"{before.text}{more.text}")


def _missed(number: int) -> RunEvent:
    return RunEvent(kind="missed", missed=number)


class _Observer:
    """Makes events of records, in the thread that writes the journal."""

    hears_text = True

    def __init__(self, told: Told[RunEvent]) -> None:
        self._told = told
        self._open: dict[int, SpanStarted] = {}
        self._attempts: dict[str, int] = {}

    def __call__(self, record: Record) -> None:
        match record:
            case Piece():
                call: Any = self._open[record.span].attributes
                asked = {"role": call["role"], "model": call["model"], "call": record.span}
                self._tell("text", record.span, key=record.span, text=record.text, **asked)
            case SpanStarted():
                self._open[record.id] = record
                if record.name == "node":
                    label = str(record.attributes["label"])
                    self._attempts[label] = attempt = self._attempts.get(label, 0) + 1
                    self._tell("node started", record.id, attempt=attempt)
            case SpanEnded():
                self._end(record, dict(record.attributes))
                del self._open[record.id]
            case NodeOutput() if record.skipped is None:  # else there is an instant, too
                output = None if record.value is None else orjson.loads(orjson.dumps(record.value))
                label = _label(record.node, record.item)
                self._tell("node ended", node=label, status="done", output=output)
            case Instant():
                self._note(record, dict(record.attributes))

    def _end(self, record: SpanEnded, said: dict[str, Any]) -> None:
        name = self._open[record.id].name
        if name == "node" and record.status != "ok":
            status = attempt_status(record)
            self._tell("node ended", record.id, status=status, error=record.error)
        elif name == "evaluate" and "composite" in said:
            judged = {name: said[name] for name in ("composite", "passed", "scores")}
            self._tell("verdict", record.id, **judged)
        elif name == "wiggum" and "stop_reason" in said:
            reason, best = said["stop_reason"], said.get("best_round")
            self._tell("loop ended", record.id, stop_reason=reason, round=best)

    def _note(self, instant: Instant, said: dict[str, Any]) -> None:
        match instant.name:
            case "skip" | "reuse":
                label = _label(said["node"], said.get("item"))
                status = "skipped" if instant.name == "skip" else "reused"
                self._tell("node ended", node=label, status=status, error=said.get("detail"))
            case "round":
                one = {name: said[name] for name in ("round", "composite", "passed")}
                self._tell("round", instant.span, **one)
            case "warning":
                one = {name: said.get(name) for name in ("code", "message")}
                self._tell("warning", instant.span, **one)
            case "question":
                one = {name: said.get(name) for name in ("key", "text", "form")}
                self._tell("question", instant.span, **one)

    def _tell(
        self,
        kind: EventKind,
        span: int | None = None,
        *,
        key: int | None = None,
        node: str | None = None,
        **said: Any,  # noqa: ANN401
    ) -> None:
        """Sends an event of a node, or of the node around a span."""
        around = self._open.get(span or 0)
        while around is not None and around.name != "node":
            around = self._open.get(around.parent or 0)
        label = node if around is None else str(around.attributes["label"])
        self._told.tell(RunEvent(kind=kind, node=label, **said), key=key)


def _label(node: str, item: int | None) -> str:
    return node if item is None else f"{node}[{item}]"
