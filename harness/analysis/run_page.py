"""The page of a run, for reading its texts.

`run_page_of` reads a journal into a `RunPage`, which `page_json` writes in pieces; `page/run.html`
and its script draw them, see `html_page.html_of`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from difflib import SequenceMatcher
from pathlib import Path
from typing import Literal

import orjson

from harness.analysis.html_page import object_json
from harness.analysis.observed import Observed
from harness.analysis.run_report import RunReport, Targets, report_of_observed
from harness.compress import sections_of
from harness.errors import InvalidInput
from harness.graph.picture import NodeSeen, node_seen, outermost_node
from harness.graph.values import plain_json
from harness.session.batch_files import SCORES
from harness.trace import events
from harness.trace.calls import PHASES, Call, pricing
from harness.trace.event_forms import attributes_of
from harness.trace.journal_reader import Item, Journal, paths_beside
from harness.trace.node_records import NodeRecord, NodeStatus, RecordedNodes, sources_of
from harness.trace.records import Attributes, NodeOutput, figures, label_of
from harness.trace.run_trace import is_going
from harness.trace.tracer import sha256_of
from harness.wiggum import STOPPED_SINCE, RecordedLoop, Round, rounds_in, texts_of

Op = Literal["=", "+", "-"]
TextIndex = int | None  # which of `RunPage.texts`; None where no text was recorded

# Attributes of a call that a page shows in places of their own, or not at all.
_SHOWN_ELSEWHERE = frozenset(
    {"label", "track", "model", "role", "prompt_sha256", "reply_sha256", "cost_usd"}
    | {"node", "phases", "turns", "room", "node_span", "unreliable", "was_connected"}
    | {"took_no_tokens"}
)
# Passages that share less are shown as two different ones, without comparing their words.
_ALIKE = 0.4
# The most pairs of equal lines or words to compare; more would take seconds.
_MOST_PAIRS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PageItem:
    """One call of a node."""

    label: str
    status: NodeStatus
    error: str | None
    start_ns: int | None  # from the run's start, as everywhere here; None if it never began
    duration_ns: int
    cost_usd: float | None  # with that of the nodes in it, and of scoring it
    score: float | None  # the rubric's score of a batch's row
    gave: TextIndex  # what it returned: a text, or JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class PageNode:
    """A node of the pipeline, with all its items and what is nested in them."""

    name: str
    needs: tuple[str, ...]
    seen: NodeSeen
    items: tuple[PageItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCall:
    """A call of a model."""

    id: int  # the number of its span
    node: str | None  # label of the node call around it
    role: str | None
    model: str
    start_ns: int
    duration_ns: int
    phases: tuple[tuple[str, int, int], ...]  # name, start and duration of each
    unreliable: tuple[str, ...]  # phases and figures that the process saw too late
    status: str
    error: str | None
    cost_usd: float | None
    prompt: TextIndex
    reply: TextIndex
    attributes: Attributes  # tokens, latencies, settings: whatever else is known


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSection:
    """A section of a draft, compared with the draft that was revised."""

    parts: tuple[tuple[Op, str], ...]
    notes: tuple[tuple[str, str], ...]  # dimension and message of each finding about it


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRound:
    """An evaluated draft."""

    round: Round
    # By dimension, what is wrong with the draft as a whole; the rest stands at its section.
    why: Mapping[str, tuple[str, ...]]
    remarks: tuple[str, ...]
    sections: tuple[PageSection, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLoop:
    """A revise loop, beside what the report has of it."""

    stop: str  # why no further round was made, in words
    unreadable: str | None  # why there are no rounds
    rounds: tuple[PageRound, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageEvent:
    """A warning, or a pause before another try."""

    kind: str
    time_ns: int
    where: str | None
    message: str
    figures: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """All that a page shows."""

    version: str  # another one as soon as the journal has more
    report: RunReport
    status: str  # how it ended; `running`; or `unfinished` if it was killed
    wall_ns: int  # when it began, in Unix time
    has_texts: bool
    open_command: str  # the command that shows the run in Perfetto, without `--span N`
    columns: tuple[tuple[PageNode, ...], ...]  # nodes by their distance from the first ones
    result: TextIndex  # what the pipeline's result node returned: the named one, else the last
    loops: tuple[PageLoop, ...]
    rows: str | None  # the node whose items are the rows of a batch
    calls: Iterator[PageCall]
    events: tuple[PageEvent, ...]
    texts: tuple[str, ...]  # each once


def page_json(page: RunPage, *, clean: Callable[[bytes], bytes] = bytes) -> Iterator[bytes]:
    """A page as one JSON object, in pieces; `clean` changes each piece, itself JSON."""
    values = {part.name: getattr(page, part.name) for part in fields(page)}
    # Piece by piece, a run of 85,000 calls takes a third of the memory.
    lists = {name: values.pop(name) for name in ("calls", "texts")}
    return object_json(values, lists, clean=clean)


def version_of(journal: Path) -> str:
    """A text that changes when a run's files grow; it ends with `running` while the run goes on."""
    marks: list[str] = []
    # An error is reported when the journal is read.
    with suppress(OSError):
        marks += [str(path.stat().st_size) for path in (journal, *paths_beside(journal))]
        if is_going(journal):
            marks.append("running")
    return "-".join(marks)


def run_page_of(path: Path, *, open_command: str = "harness trace open") -> RunPage:
    """Reads a run of which all texts fit into memory; `open_command` shows it in Perfetto.

    Raises:
        JournalInvalid: It cannot be read, or a line in the middle is not a record.
    """
    # Taken before the journal is read: whatever is written meanwhile changes the version.
    version = version_of(path)
    journal = Journal(path)
    nodes = _PageNodes(origin_ns=journal.started.time_ns)
    observed = Observed(journal, nodes=nodes)
    report = report_of_observed(observed, Targets())
    recorded, calls = observed.recorded, observed.calls
    records = nodes.records(observed.every_call)
    # Frees its counters and spans before all texts are read.
    del observed
    # In the order of the journal, so that a text keeps its number while the run goes on.
    hashes = {text for call in calls for text in (call.prompt_sha256, call.reply_sha256)}
    texts = _Texts(journal.texts(hashes - {None}))
    has_texts = len(texts.numbers) > 0
    pipelines = recorded[events.PipelineEvent]
    is_batch = any(pipeline.is_batch for pipeline in pipelines)
    columns = _columns(
        nodes, records, _sources(journal, recorded), report, texts, is_batch=is_batch
    )
    is_running = report.status == "unfinished" and version.endswith("running")
    return RunPage(
        version=version,
        report=report,
        status="running" if is_running else report.status,
        wall_ns=journal.started.wall_ns,
        has_texts=has_texts,
        open_command=open_command,
        columns=columns,
        result=None if is_batch else _result(columns, {pipeline.result for pipeline in pipelines}),
        loops=tuple(_loops(journal, report.loops)),
        # The node of a batch's rows needs no other, so it comes first.
        rows=columns[0][0].name if is_batch and columns else None,
        calls=_page_calls(calls, nodes, texts.numbers, recorded[events.EndpointEvent]),
        events=tuple(_events(nodes, recorded)),
        texts=tuple(texts.texts),
    )


def _result(columns: Sequence[Sequence[PageNode]], named: Collection[str | None]) -> TextIndex:
    """The output of the node in `named`, else of the last node; None if it was mapped."""
    nodes = [node for column in columns for node in column]
    results = [node for node in nodes if node.name in named] or nodes[-1:]
    return next((node.items[0].gave for node in results if len(node.items) == 1), None)


class _Texts:
    """The texts of a page, each once, and the number of each by its SHA-256."""

    def __init__(self, recorded: Mapping[object, str]) -> None:
        self.texts = [*recorded.values()]
        self.numbers = {sha256: number for number, sha256 in enumerate(recorded)}

    def index(self, text: str | None) -> TextIndex:
        """The number of a text; adds the text if it is new."""
        if text is None:
            return None
        number = self.numbers.setdefault(sha256_of(text), len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number


class _PageNodes(RecordedNodes):
    """The calls of nodes, with their outputs, which only the page shows."""

    def __init__(self, *, origin_ns: int) -> None:
        super().__init__()
        self.origin_ns = origin_ns  # the run's start on its clock
        self.outputs: dict[tuple[str, int | None], object] = {}

    def note(self, item: Item) -> None:
        super().note(item)
        if type(item) is NodeOutput:
            self.outputs[item.node, item.item] = plain_json(item.value)


# --- the graph --------------------------------------------------------------------------------


def _columns(
    nodes: _PageNodes,
    records: Sequence[NodeRecord],
    sources: Mapping[str, Iterable[str]],
    report: RunReport,
    texts: _Texts,
    *,
    is_batch: bool,
) -> tuple[tuple[PageNode, ...], ...]:
    """The nodes of `RunPage.columns`."""
    records_by_node: dict[str, list[NodeRecord]] = {}
    costs: dict[str, list[float]] = {}  # label of a call → what it and the calls in it cost
    for record in records:
        records_by_node.setdefault(outermost_node(record.node), []).append(record)
        if record.cost_usd is not None:
            # The cost of a nested call counts for itself, and for its outermost caller.
            for label in {record.label, record.label.partition("/")[0]}:
                costs.setdefault(label, []).append(record.cost_usd)
    critical = {outermost_node(step.node) for step in report.critical_path.steps}
    depths: dict[str, int] = {}  # node → the number of its column
    columns: list[list[PageNode]] = []
    # The journal mentions a node after the nodes that it needs.
    for name, members in records_by_node.items():
        needs = [source for source in sources.get(name, ()) if source in depths]
        depths[name] = depth = max((depths[need] + 1 for need in needs), default=0)
        if depth == len(columns):
            columns.append([])
        members_in_order = sorted(members, key=lambda r: ("/" in r.node, r.item or 0))
        columns[depth].append(
            PageNode(
                name=name,
                needs=tuple(needs),
                seen=node_seen(members, is_critical=name in critical),
                items=tuple(
                    _item(record, nodes, texts, costs, is_batch=is_batch)
                    for record in members_in_order
                ),
            )
        )
    return tuple(map(tuple, columns))


def _sources(journal: Journal, recorded: events.Events) -> dict[str, dict[str, None]]:
    """Node → the nodes whose output it was given, or on account of which it was skipped."""
    names = {node.id: outermost_node(node.caption) for node in recorded[events.NodeAttempt]}
    sources: dict[str, dict[str, None]] = {}
    for span, attempts in sources_of(recorded[events.NodeAttempt], journal.flows).items():
        source_names = dict.fromkeys(names[attempt.id] for attempt in attempts)
        sources.setdefault(names[span], {}).update(source_names)
    for skip in recorded[events.Skip]:
        reasons = (skip.because_of or "", *skip.decided_by)
        source_names = dict.fromkeys(map(outermost_node, filter(None, reasons)))
        sources.setdefault(outermost_node(skip.node), {}).update(source_names)
    return sources


def _item(
    record: NodeRecord,
    nodes: _PageNodes,
    texts: _Texts,
    costs: Mapping[str, Sequence[float]],
    *,
    is_batch: bool,
) -> PageItem:
    """A call of a node; `costs` has the costs by the labels of calls."""
    output = nodes.outputs.get((record.node, record.item))
    if not isinstance(output, str | None):
        output = orjson.dumps(output, option=orjson.OPT_INDENT_2).decode()
    labels = {record.label}
    score = None
    # The items of a batch's own nodes are rows, which the node `SCORES` scores.
    if is_batch and "/" not in record.node:
        labels.add(label_of(SCORES, record.item))
        score = nodes.outputs.get((SCORES, record.item))
    spent = [usd for label in labels for usd in costs.get(label, ())]
    return PageItem(
        label=record.label,
        status=record.status,
        error=record.error,
        start_ns=record.times[0].start_ns - nodes.origin_ns if record.times else None,
        duration_ns=record.duration_ns,
        cost_usd=sum(spent) if spent else None,
        score=score.get("verdict", score).get("composite") if isinstance(score, dict) else None,
        gave=texts.index(output),
    )


# --- calls ------------------------------------------------------------------------------------


def _page_calls(
    calls: Sequence[Call],
    nodes: _PageNodes,
    numbers: Mapping[object, int],
    endpoints: Sequence[events.EndpointEvent],
) -> Iterator[PageCall]:
    """The calls of a page, each made when it is asked for: there may be a hundred thousand."""
    usd_of = pricing(endpoints)
    for call in calls:
        yield PageCall(
            id=call.id,
            node=nodes.label_around(call.id),
            role=call.role,
            model=call.model,
            start_ns=call.start_ns - nodes.origin_ns,
            duration_ns=call.duration_ns,
            phases=tuple(
                (name, part.start_ns - nodes.origin_ns, part.duration_ns)
                for name in PHASES
                for part in call.phases.get(name, ())
            ),
            unreliable=tuple(sorted(call.unreliable)),
            status=call.status,
            error=call.error,
            cost_usd=None if call.from_cache else usd_of(call),
            prompt=numbers.get(call.prompt_sha256),
            reply=numbers.get(call.reply_sha256),
            attributes={
                name: value
                for name, value in attributes_of(call).items()
                if name not in _SHOWN_ELSEWHERE
            },
        )


def _events(nodes: _PageNodes, recorded: events.Events) -> Iterator[PageEvent]:
    """Warnings, retries and fallbacks, in the order of time."""
    shown: list[events.Warned | events.RetryEvent | events.Fallback]
    shown = [*recorded[events.Warned], *recorded[events.RetryEvent], *recorded[events.Fallback]]
    for event in sorted(shown, key=lambda event: event.time_ns):
        attributes = {n: v for n, v in event.attributes.items() if n not in {"message", "detail"}}
        node = attributes.get("node")
        yield PageEvent(
            kind=event.NAME,
            time_ns=event.time_ns - nodes.origin_ns,
            where=str(node) if node else nodes.label_around(event.span or 0),
            message=event.message if isinstance(event, events.Warned) else event.detail or "",
            figures=tuple(figures(attributes)),
        )


# --- loops ------------------------------------------------------------------------------------


def _loops(journal: Journal, loops: Sequence[RecordedLoop]) -> Iterator[PageLoop]:
    recorded = texts_of(loops, journal)
    for loop in loops:
        rounds: tuple[Round, ...] = ()
        unreadable = None
        try:
            rounds = rounds_in(loop, recorded, journal)
        except InvalidInput as error:
            unreadable = str(error)
        yield PageLoop(
            stop=_stop(loop),
            unreadable=unreadable,
            rounds=tuple(_round(scored, rounds) for scored in rounds),
        )


def _stop(loop: RecordedLoop) -> str:
    if loop.stop_reason is None:
        return "not over"
    since = filter(None, (STOPPED_SINCE.get(loop.stop_reason), loop.stop_detail))
    return f"{loop.stop_reason}: {'; '.join(since)}"


def _round(scored: Round, rounds: Sequence[Round]) -> PageRound:
    """A round of a loop, whose `rounds` have the draft that it revised."""
    verdict = scored.verdict
    base = None if scored.base_round is None else rounds[scored.base_round - 1].draft
    # Index of a section → (dimension, message) of each finding about it.
    notes: dict[int, list[tuple[str, str]]] = {}
    for score in verdict.scores:
        for finding in score.own_findings:
            if finding.section_index is not None:
                notes.setdefault(finding.section_index, []).append((score.name, finding.message))
    reasons = verdict.unjudged_reasons
    unjudged = [
        f"{name} ({reasons[name]})" if name in reasons else name for name in verdict.unjudged
    ]
    # Remark → whether it holds.
    remarks = {
        "its reply was cut": scored.cut,
        f"the gate {', '.join(verdict.gates)} is shut": verdict.gates,
        f"below its floor: {', '.join(verdict.below_floor)}": verdict.below_floor,
        f"not judged: {', '.join(unjudged)}": unjudged,
        f"judged by {verdict.evaluator}": verdict.evaluator,
    }
    return PageRound(
        round=scored,
        remarks=tuple(remark for remark, holds in remarks.items() if holds),
        why={
            score.name: (
                *filter(None, [score.own_reason]),
                *(f.message for f in score.own_findings if f.section_index is None),
                *(f"held down: {cap}" for cap in score.capped),
            )
            for score in verdict.scores
        },
        sections=tuple(_sections(scored.draft, base, notes)),
    )


def _sections(
    draft: str, base: str | None, notes: Mapping[int, Sequence[tuple[str, str]]]
) -> Iterator[PageSection]:
    """The sections of a draft, each compared with the one of its title in `base`; then lost ones.

    `notes` has findings by the index of their section.
    """
    # Title → the texts of the sections that have it.
    before: dict[str, list[str]] = {}
    for section in sections_of(base or ""):
        before.setdefault(section.title, []).append(section.text)
    for index, section in enumerate(sections_of(draft)):
        texts = before.get(section.title) or [section.text if base is None else ""]
        old_text = texts.pop(texts.index(section.text) if section.text in texts else 0)
        yield PageSection(
            parts=tuple(word_changes(old_text, section.text)), notes=tuple(notes.get(index, ()))
        )
    for lost_text in (text for texts in before.values() for text in texts):
        yield PageSection(parts=(("-", lost_text),), notes=())


def word_changes(before: str, after: str) -> list[tuple[Op, str]]:
    """The difference of two texts: parts kept (`=`), added (`+`) and removed (`-`).

    The kept and the added parts, joined, are `after`.
    """
    parts: list[tuple[Op, str]] = []
    # Blank lines, which are all alike, go with the line after them.
    old, new = (re.findall(r"\n*[^\n]+\n?|\n+", text) for text in (before, after))
    for kind, a, b, c, d in _matcher(old, new).get_opcodes():
        if kind == "equal":
            parts.append(("=", "".join(new[c:d])))
        else:
            parts += _passage_changes("".join(old[a:b]), "".join(new[c:d]))
    return [part for part in parts if part[1]]


def _passage_changes(before: str, after: str) -> Iterator[tuple[Op, str]]:
    """The changed words of two passages; the passages as a whole if few words are alike."""
    old, new = (re.findall(r"\S+\s*|\s+", text) for text in (before, after))
    matcher = _matcher(old, new)
    if matcher.ratio() < _ALIKE:
        yield from (("-", before), ("+", after))
        return
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            yield "=", "".join(new[c:d])
        else:
            yield from (("-", "".join(old[a:b])), ("+", "".join(new[c:d])))


def _matcher(old: Sequence[str], new: Sequence[str]) -> SequenceMatcher[str]:
    # `autojunk` ignores what is frequent, but for what stands beside other matches.
    counts = Counter(new)
    pairs = sum(counts[piece] for piece in old)
    return SequenceMatcher(None, old, new, autojunk=pairs > _MOST_PAIRS)
