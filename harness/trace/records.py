"""The records of a journal: one per line, in the order of events.

Times are integer nanoseconds of the run's own clock; `RunStarted` ties that clock to the wall. A
span that had ended when its line was written is one record; a longer one has a record for its
beginning and one for its end, so a killed run still shows what it was doing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from harness.errors import message_of

# Raised when a reader of the last version could misread a new journal.
SCHEMA_VERSION = 1

Attributes = Mapping[str, object]
"""The variable facts of a span or instant: JSON values, under short names with units."""

SpanStatus = Literal["ok", "error", "cancelled", "unfinished"]
"""`cancelled` covers Ctrl-C and a sibling's failure: the span itself did not fail. `unfinished`:
the process was killed first, or a thread outlived the run."""

CutBy = Literal["limit", "failure"]
"""What ended a revise loop too early: a limit, or a failed call that may succeed later."""

RunEnd = Literal["ok", "error", "cancelled", "waiting", "stopped"]
"""How a run, or a part of it, ended. `waiting`: a person has to answer before it can go on.
`stopped`: a limit was reached. In both cases nothing failed, and what is done is kept."""

RunState = RunEnd | Literal["unfinished"]
"""The status of a run that may have no end: `unfinished` if it was killed or is still going."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A stretch of the run's clock."""

    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """From its start to its end."""
        return self.end_ns - self.start_ns


_NONE: Attributes = {}
_NO_INPUTS: Mapping[str, str] = {}


# Named tuples rather than dataclasses: making a frozen dataclass takes three times as long, and a
# long run has millions of records.


class RunStarted(NamedTuple):
    """The first record of every file of a run: its journal, and those beside it."""

    schema: int
    run_id: str  # `YYYYMMDDTHHMMSSZ-` and 12 hexadecimal digits
    name: str
    wall_ns: int  # Unix time, in nanoseconds, at the moment the process's clock showed `time_ns`
    time_ns: int
    process_id: int
    # In a part that resumes the run: the end of the part before, on the clock of the first part.
    joined_ns: int | None = None
    part: int = 0  # which part of the run: 0 is the first, 1 the first that resumed it


class SpanStarted(NamedTuple):
    """The beginning of a span."""

    id: int  # unique in its process, counted from 1
    parent: int | None
    name: str
    time_ns: int
    attributes: Attributes = _NONE


class SpanEnded(NamedTuple):
    """The end of a span."""

    id: int
    time_ns: int
    status: SpanStatus = "ok"
    error: str | None = None  # class and message of the exception that left the span
    attributes: Attributes = _NONE  # attributes that became known during the span


class SpanRecord(NamedTuple):
    """A span with both its ends."""

    id: int
    parent: int | None
    name: str
    start_ns: int
    end_ns: int  # on the run's clock; the run's last moment for a span that never ended
    status: SpanStatus = "ok"
    error: str | None = None
    attributes: Attributes = _NONE

    @property
    def duration_ns(self) -> int:
        """From its start to its end."""
        return self.end_ns - self.start_ns


class Instant(NamedTuple):
    """An event at one moment."""

    span: int | None
    name: str
    time_ns: int
    attributes: Attributes = _NONE


class CounterSet(NamedTuple):
    """A quantity's new value, until the next record with the same name, and span or track."""

    name: str  # fixed for the quantity
    unit: str  # what the value counts: `points`, `tokens`, `bytes`
    time_ns: int
    value: float
    span: int | None = None  # the span that set it; it is drawn on that span's track
    track: str | None = None  # the track it is drawn on instead


class Flow(NamedTuple):
    """One span led to another: a draft to its verdict, a node to the node that waited for it."""

    name: str
    source: int
    target: int


class Flows(NamedTuple):
    """Several spans led to one: the nodes that a node waited for. Read back as so many `Flow`."""

    name: str
    sources: tuple[int, ...]
    target: int


class Content(NamedTuple):
    """A text that spans refer to by its hash: prompts, completions, drafts.

    Stored once a process.
    """

    sha256: str  # hexadecimal digest of the UTF-8 text
    text: str


class Piece(NamedTuple):
    """A piece of a reply's text, for observers that hear texts; it is never written."""

    span: int  # the call's span
    text: str


class NodeOutput(NamedTuple):
    """What a node returned; on disk before anything that depends on it starts.

    A resumed run reuses it as long as the digests of the node's code, of its inputs and of what it
    used are the same.
    """

    # The node's path: `findings`, or in a nested pipeline the calls that lead to it,
    # `answer[3]/brief#2/findings`: item 3 of `answer` called `brief` for the second time.
    node: str
    item: int | None  # which item of a mapped node, counted from 0; None for a plain node
    # The value as JSON, an `orjson.Fragment` where it is written; None if skipped or not recorded.
    value: object
    # Parameter → the digest of its value; empty when the run records no digests.
    inputs: Mapping[str, str] = _NO_INPUTS
    code: str | None = None
    skipped: str | None = None  # why there is no value: the node was skipped
    # Digest of the value before secrets were taken out of it. If it is None, or not the digest of
    # the recorded value, that is not what the node returned, and no resumed run can use it.
    digest: str | None = None
    # Name → digest of each model, rubric and setting that the call used; None if it can use none.
    uses: Mapping[str, str] | None = None
    is_default: bool = False  # whether the call failed, and the default of its node stands for it
    is_of_run: bool = False  # whether a person, the memory, a limit or a policy had a part in it
    # For each model in the value, the fields that were left to their defaults; None if none were.
    unset: Sequence[Sequence[str]] | None = None
    is_cut: bool = False  # whether a loop in it ended too early, which a resumed run continues
    cut_by: CutBy = "limit"  # what ended that loop
    passed: bool | None = None  # whether the drafts of all its loops passed; None without a loop


class RunEnded(NamedTuple):
    """The last record of a process that was not killed."""

    time_ns: int
    status: RunEnd
    error: str | None = None


Record = (
    RunStarted | SpanStarted | SpanEnded | SpanRecord | Instant | CounterSet | Flow | Flows
    | Content | Piece | NodeOutput | RunEnded
)  # fmt: skip


def last_moment(record: Record) -> int:
    """The latest time in a record, in nanoseconds; 0 if it has none."""
    match record:
        case SpanRecord(end_ns=time_ns):
            return time_ns
        case Content() | Piece() | NodeOutput() | Flow() | Flows():
            return 0
        case _:
            return record.time_ns


def describe(error: BaseException | None) -> str | None:
    """Class and message of an exception, as records keep it."""
    if error is None:
        return None
    # An error without a message is its class alone.
    return f"{type(error).__name__}: {message_of(error)}".removesuffix(": ")


def error_class(error: str | None) -> str:
    """The class of the error that ended a span or a run; empty without one."""
    return (error or "").partition(":")[0]


def joined(started: SpanStarted, ended: SpanEnded) -> SpanRecord:
    """A span from the records of its two ends."""
    return SpanRecord(
        started.id,
        started.parent,
        started.name,
        started.time_ns,
        ended.time_ns,
        ended.status,
        ended.error,
        {**started.attributes, **ended.attributes} if ended.attributes else started.attributes,
    )


def title(span: SpanRecord | SpanStarted) -> str:
    """The display name of a span: its label, or else its name."""
    label = span.attributes.get("label")
    return str(label) if label else span.name


def own_track(span: SpanRecord | SpanStarted) -> str:
    """The track that a span starts; empty for one that is drawn on the track around it."""
    return str(span.attributes.get("track") or "")


def label_of(node: str, item: int | None) -> str:
    """The name of a node's call: `findings[2]`."""
    return node if item is None else f"{node}[{item}]"


_INSTANCE = re.compile(r"\[\d+\]|#\d+")


def node_of_all(path: str) -> str:
    """A node's path without the indexes of the calls around it: `rows/brief/answer`."""
    return _INSTANCE.sub("", path)


def figures(attributes: Attributes) -> Iterator[tuple[str, str]]:
    """Names and values of attributes for display: times in milliseconds, and without None."""
    for name, value in attributes.items():
        if name.endswith("_ns") and isinstance(value, int):
            yield name.removesuffix("_ns"), f"{value / 1e6:,.1f} ms"
        elif value is not None:
            yield name, str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSpan:
    """A span without an end: the run was killed, is still going, or a thread outlived it."""

    name: str  # the span's fixed phrase
    title: str  # the title in the timeline
    start_ns: int  # the time from the run's start to the beginning
    open_ns: int  # how long it had taken by the last record
