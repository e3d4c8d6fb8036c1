"""What Perfetto itself reads from the exported files.

Times, names, attributes, arrows and counters are expected from the journal alone; on which line
of the timeline a thing is drawn, from `Lanes`, whose own tests say that the lines are sound.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from perfetto import Row, query_traces
from random_runs import write_random_run
from sample_runs import record_eventful_run, span, write_journal

from harness.trace import (
    TIMELINES,
    CounterSet,
    Instant,
    Journal,
    Lanes,
    SpanRecord,
    TimelineFormat,
)

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parents[2] / "traces" / "recorded" / "brief.jsonl"
RANDOM_RUNS = 120
AT_ONCE = 40
"""Traces that one process is asked about: a command line holds so many queries."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How Perfetto shows what a format has."""

    arguments: str
    """What the names of arguments begin with."""
    lane_of_slice: str
    """Joins a slice with its `lane` and its `track`."""
    track_of_counter: str
    """Joins a counter with its `own` track and the `track` that is in."""
    text: Callable[[str], str]
    """A text that the engine shows, as it was written."""
    key: Callable[[str], str]
    """The name of an attribute, as the engine shows it."""


def unescaped(text: str) -> str:
    """A text of the JSON importer, which looks for escapes only in texts that hold a quote.

    `ScanString` in `src/trace_processor/util/json_parser.h` sets `has_escapes` nowhere else.
    """
    return text if '"' in text else json.loads(f'"{text}"')


DIALECTS: dict[TimelineFormat, Dialect] = {
    "chrome": Dialect(
        arguments="args",
        lane_of_slice="""
            JOIN thread_track ON thread_track.id = slice.track_id
            JOIN thread AS lane USING (utid)
            JOIN process AS track USING (upid)
        """,
        track_of_counter="""
            JOIN process_counter_track AS own ON own.id = counter.track_id
            JOIN process AS track USING (upid)
        """,
        text=unescaped,
        key=lambda key: key,
    ),
    "perfetto": Dialect(
        arguments="debug",
        lane_of_slice="""
            JOIN track AS lane ON lane.id = slice.track_id
            JOIN track ON track.id = lane.parent_id
        """,
        track_of_counter="""
            JOIN track AS own ON own.id = counter.track_id
            JOIN track ON track.id = own.parent_id
        """,
        text=lambda text: text,
        # They would read as paths: `SanitizeDebugAnnotationName` in
        # `src/trace_processor/util/debug_annotation_parser.cc`.
        key=lambda key: re.sub(r"[.[\]]", "_", key),
    ),
}

LOST = """
    SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0
"""
SLICES = """
    SELECT
        EXTRACT_ARG(slice.arg_set_id, '{arguments}.span') AS id,
        slice.name AS title,
        slice.category AS name,
        slice.ts AS start_ns,
        slice.dur AS duration_ns,
        slice.depth,
        EXTRACT_ARG(parent.arg_set_id, '{arguments}.span') AS drawn_in,
        lane.name AS lane,
        track.name AS track
    FROM slice
    {lane_of_slice}
    LEFT JOIN slice AS parent ON parent.id = slice.parent_id
    WHERE slice.category IS NOT NULL
    ORDER BY 1
"""
INSTANTS = """
    SELECT slice.name, slice.ts AS time_ns, lane.name AS lane, track.name AS track
    FROM slice
    {lane_of_slice}
    WHERE slice.category IS NULL AND slice.dur = 0
"""
ARGUMENTS = """
    SELECT
        EXTRACT_ARG(slice.arg_set_id, '{arguments}.span') AS id,
        args.key,
        args.value_type AS type,
        CASE WHEN args.value_type IN ('int', 'bool') THEN CAST(args.int_value AS TEXT)
             ELSE COALESCE(args.string_value, args.real_value) END AS value
    FROM slice JOIN args USING (arg_set_id)
    WHERE slice.category IS NOT NULL AND args.key LIKE '{arguments}.%'
"""  # integers as text, since JSON has no exact form for those beyond 53 bits
FLOWS = """
    SELECT
        EXTRACT_ARG(source.arg_set_id, '{arguments}.span') AS source,
        EXTRACT_ARG(target.arg_set_id, '{arguments}.span') AS target
    FROM flow
    LEFT JOIN slice AS source ON source.id = flow.slice_out
    LEFT JOIN slice AS target ON target.id = flow.slice_in
"""
COUNTERS = """
    SELECT own.name, track.name AS track, counter.ts AS time_ns, counter.value
    FROM counter
    {track_of_counter}
"""
QUERIES = (LOST, SLICES, INSTANTS, ARGUMENTS, FLOWS, COUNTERS)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A run as its journal has it, and as Perfetto read its timeline."""

    name: str
    journal: Journal
    dialect: Dialect
    answers: dict[str, list[Row]]

    @property
    def slices(self) -> dict[int, Row]:
        """The slices of spans, by the span's id."""
        return {row["id"]: row for row in self.answers[SLICES]}

    def since_start(self, time_ns: int) -> int:
        return time_ns - self.journal.started.time_ns


def load_all(form: TimelineFormat, journals: list[Journal], directory: Path) -> list[Loaded]:
    ending, write = TIMELINES[form]
    paths = [directory / f"{journal.path.stem}{ending}" for journal in journals]
    for journal, path in zip(journals, paths, strict=True):
        write(journal, path)
    dialect = DIALECTS[form]
    words = {
        "arguments": dialect.arguments,
        "lane_of_slice": dialect.lane_of_slice,
        "track_of_counter": dialect.track_of_counter,
    }
    requests = [(path, query.format(**words)) for path in paths for query in QUERIES]
    size = AT_ONCE * len(QUERIES)
    rows = [
        answer
        for start in range(0, len(requests), size)
        for answer in query_traces(requests[start : start + size])
    ]
    return [
        Loaded(
            name=path.name,
            journal=journal,
            dialect=dialect,
            answers=dict(zip(QUERIES, rows[place : place + len(QUERIES)], strict=True)),
        )
        for place, journal, path in zip(
            range(0, len(rows), len(QUERIES)), journals, paths, strict=True
        )
    ]


def random_journals(directory: Path) -> list[Journal]:
    return [
        Journal(RECORDED),
        Journal(record_eventful_run(directory).journal_path),
        *(write_random_run(directory / f"{seed}.jsonl", seed) for seed in range(RANDOM_RUNS)),
    ]


@pytest.fixture(scope="module", params=DIALECTS)
def runs(request, tmp_path_factory):
    """Random runs in one format, and what Perfetto made of them."""
    directory = tmp_path_factory.mktemp(request.param)
    return load_all(request.param, random_journals(directory), directory)


def test_nothing_of_a_run_is_lost(runs):
    for run in runs:
        assert run.answers[LOST] == [], run.name
        assert len(run.answers[SLICES]) == sum(1 for _ in run.journal.spans()), run.name


def test_every_span_is_a_slice_with_its_title_and_its_times_to_the_nanosecond(runs):
    for run in runs:
        text = run.dialect.text
        shown = {
            number: (text(row["title"]), text(row["name"]), row["start_ns"], row["duration_ns"])
            for number, row in run.slices.items()
        }
        assert shown == {
            one.id: (
                str(one.attributes.get("label") or one.name)
                + ("" if one.status == "ok" else f": {one.status}"),
                one.name,
                run.since_start(one.start_ns),
                one.duration_ns,
            )
            for one in run.journal.spans()
        }, run.name


def placed(journal: Journal) -> Iterator[tuple[SpanRecord, object]]:
    lanes = Lanes(f"run {journal.started.name}")
    for one in journal.spans():
        yield one, lanes.place(one)


def test_every_slice_is_on_the_lane_it_was_given_on_the_nearest_track_around_it(runs):
    for run in runs:
        tracks = {None: f"run {run.journal.started.name}"}
        for one, lane in placed(run.journal):
            row = run.slices[one.id]
            track = tracks[one.id] = one.attributes.get("track", tracks[one.parent])
            number = f" ({lane.index + 1})" if lane.index else ""
            assert run.dialect.text(row["track"]) == track, (run.name, one)
            assert run.dialect.text(row["lane"]) == track + number, (run.name, one)


def test_a_slice_is_drawn_in_its_parent_where_that_is_on_its_lane_and_covers_it(runs):
    for run in runs:
        spans = {one.id: one for one in run.journal.spans()}
        for one in spans.values():
            row, parent = run.slices[one.id], spans.get(one.parent)
            drawn_in, depth = None, 0
            if parent is not None and lane_of(run, parent) == lane_of(run, one):
                # A slice without length covers the moment it happened at.
                until_ns = max(parent.end_ns, parent.start_ns + 1)
                if parent.start_ns <= one.start_ns < until_ns and one.end_ns <= until_ns:
                    drawn_in, depth = parent.id, run.slices[parent.id]["depth"] + 1
            assert (row["drawn_in"], row["depth"]) == (drawn_in, depth), (run.name, one)


def lane_of(run: Loaded, one: SpanRecord) -> tuple[object, object]:
    row = run.slices[one.id]
    return row["track"], row["lane"]


def test_attributes_and_how_a_span_ended_can_be_queried(runs):
    for run in runs:
        shown, drawn = defaultdict(dict), run.slices
        for row in run.answers[ARGUMENTS]:
            key = run.dialect.text(row["key"]).removeprefix(f"{run.dialect.arguments}.")
            value = row["value"]
            shown[row["id"]][key] = (
                row["type"],
                run.dialect.text(value) if row["type"] == "string" else value,
            )
        for one in run.journal.spans():
            expected = {"span": one.id, **one.attributes}
            for shown_elsewhere in ("track", "label"):
                expected.pop(shown_elsewhere, None)
            if drawn[one.id]["drawn_in"] is None:
                expected["parent"] = one.parent
            if one.status != "ok":
                expected["status"] = one.status
            if one.error is not None:
                expected["error"] = one.error
            flat = {
                key: value
                for name, attribute in expected.items()
                for key, value in flattened(run.dialect.key(name), attribute, run.dialect)
            }
            assert shown[one.id] == flat, (run.name, one.id)


def flattened(key: str, value: object, dialect: Dialect) -> Iterator[tuple[str, object]]:
    """An attribute as rows of Perfetto's table: it has none for what is nothing."""
    match value:
        case None:
            pass
        case bool():
            yield key, ("bool", str(int(value)))
        case int() if -(2**63) <= value < 2**63:
            yield key, ("int", str(value))
        case float():
            # The engine's own reading of JSON's decimals is off by a last place.
            yield key, ("real", pytest.approx(value, rel=1e-14, abs=0))
        case dict():
            for name, one in value.items():
                yield from flattened(f"{key}.{dialect.key(name)}", one, dialect)
        case list():
            present = [one for one in value if one is not None]
            for place, one in enumerate(present):
                yield from flattened(f"{key}[{place}]", one, dialect)
        case _:
            yield key, ("string", str(value))


def test_arrows_lead_from_slice_to_slice(runs):
    for run in runs:
        shown = Counter((row["source"], row["target"]) for row in run.answers[FLOWS])
        assert shown == Counter((one.source, one.target) for one in run.journal.flows), run.name


def test_counters_read_as_they_were_set_on_the_track_of_their_span_or_their_own(runs):
    for run in runs:
        text = run.dialect.text
        shown = sorted(
            (text(row["track"]), text(row["name"]), row["time_ns"], row["value"])
            for row in run.answers[COUNTERS]
        )
        expected = sorted(
            (track, f"{one.name}{number} {one.unit}", run.since_start(one.time_ns), one.value)
            for one, track, number in placed_beside_spans(run.journal, CounterSet)
        )
        assert [row[:3] for row in shown] == [row[:3] for row in expected], run.name
        assert [row[3] for row in shown] == pytest.approx([row[3] for row in expected]), run.name


def test_instants_are_where_and_when_they_happened(runs):
    for run in runs:
        text = run.dialect.text
        shown = Counter(
            (text(row["name"]), row["time_ns"], text(row["track"]), text(row["lane"]))
            for row in run.answers[INSTANTS]
        )
        assert shown == Counter(
            (one.name, run.since_start(one.time_ns), track, track + number)
            for one, track, number in placed_beside_spans(run.journal, Instant)
        ), run.name


def placed_beside_spans(journal: Journal, kind: type) -> Iterator[tuple[object, str, str]]:
    """Instants or counters, with their track and the number of their lane."""
    lanes = Lanes(f"run {journal.started.name}")
    for item in journal.items():
        if type(item) is SpanRecord:
            lanes.place(item)
        elif type(item) is kind:
            lane = lanes.lane_of(item.span) if item.span else None
            track = lane.track if lane else getattr(item, "track", None) or lanes.track(None).track
            yield item, track, f" ({lane.index + 1})" if lane and lane.index else ""


@pytest.mark.parametrize("form", DIALECTS)
def test_more_different_texts_than_have_numbers_are_all_there(form, tmp_path):
    # Names, titles, names of attributes and short texts, each more than 10 000.
    numbers = range(1, 10_101)
    spans = [
        span(n, n, n + 1, name=f"name {n}", label=f"title {n}", **{f"key {n}": f"text {n}"})
        for n in numbers
    ]

    (run,) = load_all(form, [write_journal(tmp_path / "run.jsonl", *spans)], tmp_path)

    assert run.answers[LOST] == []
    assert [(row["name"], row["title"]) for row in run.answers[SLICES]] == [
        (f"name {n}", f"title {n}") for n in numbers
    ]
    shown = {row["key"]: row["value"] for row in run.answers[ARGUMENTS]}
    prefix = DIALECTS[form].arguments
    assert [shown[f"{prefix}.key {n}"] for n in numbers] == [f"text {n}" for n in numbers]


def test_integers_and_floats_of_any_size_are_exact_in_perfettos_own_format(tmp_path):
    # Its JSON importer reads some of them wrongly: see the numbers of `random_runs`.
    values = {"a": 2**63, "b": 2**64 - 1, "c": 0.00012345678901234567, "d": 5e-324}

    journal = write_journal(tmp_path / "run.jsonl", span(1, 0, 9, **values))
    (run,) = load_all("perfetto", [journal], tmp_path)

    shown = {row["key"]: row["value"] for row in run.answers[ARGUMENTS]}
    assert {name: shown[f"debug.{name}"] for name in values} == {
        "a": str(2**63),
        "b": str(2**64 - 1),
        "c": 0.00012345678901234567,
        "d": 5e-324,
    }
