"""What Perfetto itself reads from the exported files.

Times, names, attributes, arrows and counters are expected from the journal alone; on which line
of the timeline a thing is drawn, from `Lanes`, whose own tests say that the lines are sound.
Chrome's format is read back in its own tests; here, only that Perfetto loses nothing of it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from perfetto import Row, query_traces
from random_runs import write_random_run
from sample_runs import span, write_journal

from harness.trace import TIMELINES, CounterSet, Instant, Journal, SpanRecord
from harness.trace.summary_tracks import SUMMED, SummaryTracks
from harness.trace.timeline import Lanes

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parents[2] / "traces" / "recorded" / "brief.jsonl"
RANDOM_RUNS = 80
AT_ONCE = 40
"""Traces that one process is asked about: a command line holds so many queries."""

LOST = """
    SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0
"""
COUNT = "SELECT count(*) AS count FROM slice WHERE category IS NOT NULL"
SLICES = """
    SELECT
        EXTRACT_ARG(slice.arg_set_id, 'debug.span') AS id,
        slice.name AS title,
        slice.category AS name,
        slice.ts AS start_ns,
        slice.dur AS duration_ns,
        slice.depth,
        EXTRACT_ARG(parent.arg_set_id, 'debug.span') AS drawn_in,
        lane.name AS lane,
        track.name AS track
    FROM slice
    JOIN track AS lane ON lane.id = slice.track_id
    JOIN track ON track.id = lane.parent_id
    LEFT JOIN slice AS parent ON parent.id = slice.parent_id
    WHERE slice.category IS NOT NULL
    ORDER BY 1
"""
INSTANTS = """
    SELECT slice.name, slice.ts AS time_ns, lane.name AS lane, track.name AS track
    FROM slice
    JOIN track AS lane ON lane.id = slice.track_id
    JOIN track ON track.id = lane.parent_id
    WHERE slice.category IS NULL AND slice.dur = 0
"""
ARGUMENTS = """
    SELECT
        EXTRACT_ARG(slice.arg_set_id, 'debug.span') AS id,
        args.key,
        args.value_type AS type,
        CASE WHEN args.value_type IN ('int', 'bool') THEN CAST(args.int_value AS TEXT)
             ELSE COALESCE(args.string_value, args.real_value) END AS value
    FROM slice JOIN args USING (arg_set_id)
    WHERE slice.category IS NOT NULL AND args.key LIKE 'debug.%'
"""  # integers as text, since JSON has no exact form for those beyond 53 bits
FLOWS = """
    SELECT
        EXTRACT_ARG(source.arg_set_id, 'debug.span') AS source,
        EXTRACT_ARG(target.arg_set_id, 'debug.span') AS target
    FROM flow
    LEFT JOIN slice AS source ON source.id = flow.slice_out
    LEFT JOIN slice AS target ON target.id = flow.slice_in
"""
COUNTERS = """
    SELECT own.name, track.name AS track, counter.ts AS time_ns, counter.value
    FROM counter
    JOIN track AS own ON own.id = counter.track_id
    JOIN track ON track.id = own.parent_id
"""
QUERIES = (LOST, SLICES, INSTANTS, ARGUMENTS, FLOWS, COUNTERS)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A run as its journal has it, and as Perfetto read its timeline."""

    journal: Journal
    answers: dict[str, list[Row]]

    @property
    def name(self) -> str:
        return self.journal.path.name

    @property
    def slices(self) -> dict[int, Row]:
        """The slices of spans, by the span's id."""
        return {row["id"]: row for row in self.answers[SLICES]}

    def since_start(self, time_ns: int) -> int:
        return time_ns - self.journal.started.time_ns


def load_all(form: str, journals: list[Journal], directory: Path, queries=QUERIES) -> list[Loaded]:
    ending, write = TIMELINES[form]
    loaded = []
    for start in range(0, len(journals), AT_ONCE):
        some = journals[start : start + AT_ONCE]
        paths = [directory / f"{journal.path.stem}{ending}" for journal in some]
        for journal, path in zip(some, paths, strict=True):
            write(journal, path)
        rows = iter(query_traces([(path, query) for path in paths for query in queries]))
        loaded += [
            Loaded(journal=journal, answers={query: next(rows) for query in queries})
            for journal in some
        ]
    return loaded


@pytest.fixture(scope="module")
def journals(tmp_path_factory):
    directory = tmp_path_factory.mktemp("journals")
    return [
        Journal(RECORDED),
        *(write_random_run(directory / f"{seed}.jsonl", seed) for seed in range(RANDOM_RUNS)),
    ]


@pytest.fixture(scope="module")
def runs(journals, tmp_path_factory):
    """Random runs, and what Perfetto made of them."""
    return load_all("perfetto", journals, tmp_path_factory.mktemp("perfetto"))


@pytest.mark.parametrize("form", TIMELINES)
def test_nothing_of_a_run_is_lost(journals, tmp_path, form):
    for run in load_all(form, journals, tmp_path, (LOST, COUNT)):
        assert run.answers[LOST] == [], run.name
        assert run.answers[COUNT] == [{"count": sum(1 for _ in run.journal.spans())}], run.name


def test_every_span_is_a_slice_with_its_title_and_its_times_to_the_nanosecond(runs):
    for run in runs:
        shown = {
            number: (row["title"], row["name"], row["start_ns"], row["duration_ns"])
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


def test_every_slice_is_on_the_lane_it_was_given_on_the_nearest_track_around_it(runs):
    for run in runs:
        root = f"run {run.journal.started.name}"
        tracks, lanes = {None: root}, Lanes(root)
        for one in run.journal.spans():
            row, lane = run.slices[one.id], lanes.place(one)
            track = tracks[one.id] = one.attributes.get("track", tracks[one.parent])
            number = f" ({lane.index + 1})" if lane.index else ""
            assert (row["track"], row["lane"]) == (track, track + number), (run.name, one)


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
            shown[row["id"]][row["key"].removeprefix("debug.")] = (row["type"], row["value"])
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
                for key, value in flattened(key_of(name), attribute)
            }
            assert shown[one.id] == flat, (run.name, one.id)


def key_of(name: str) -> str:
    """As Perfetto shows it: `SanitizeDebugAnnotationName` leaves nothing that reads as a path."""
    return re.sub(r"[.[\]]", "_", name)


def flattened(key: str, value: object) -> Iterator[tuple[str, object]]:
    """An attribute as rows of Perfetto's table: it has none for what is nothing."""
    match value:
        case None:
            pass
        case bool():
            yield key, ("bool", str(int(value)))
        case int() if value < 2**63:
            yield key, ("int", str(value))
        case float():
            yield key, ("real", value)
        case dict():
            for name, one in value.items():
                yield from flattened(f"{key}.{key_of(name)}", one)
        case list():
            present = [one for one in value if one is not None]
            for place, one in enumerate(present):
                yield from flattened(f"{key}[{place}]", one)
        case _:
            yield key, ("string", str(value))


def test_arrows_lead_from_slice_to_slice(runs):
    for run in runs:
        shown = Counter((row["source"], row["target"]) for row in run.answers[FLOWS])
        assert shown == Counter((one.source, one.target) for one in run.journal.flows), run.name


def summary_of(journal):
    """What both exports add: calls in flight and so on, which have tests of their own."""
    summary = SummaryTracks()
    for one in journal.spans():
        if one.name in SUMMED:
            summary.add(one)
    return summary.counters()


def test_counters_read_as_they_were_set_on_the_track_of_their_span_or_their_own(runs):
    for run in runs:
        shown = [
            (row["track"], row["name"], row["time_ns"], float(row["value"]))
            for row in run.answers[COUNTERS]
        ]
        placed = [
            *placed_beside_spans(run.journal, CounterSet),
            *((one, f"run {run.journal.started.name}", "") for one in summary_of(run.journal)),
        ]
        assert sorted(shown) == sorted(
            (
                track,
                f"{one.name}{number} {one.unit}",
                run.since_start(one.time_ns),
                float(one.value),
            )
            for one, track, number in placed
        ), run.name


def test_instants_are_where_and_when_they_happened(runs):
    for run in runs:
        shown = Counter(
            (row["name"], row["time_ns"], row["track"], row["lane"])
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


def test_more_different_texts_than_have_numbers_are_all_there(tmp_path):
    # Names, titles, names of attributes and short texts, each more than 10 000.
    numbers = range(1, 10_101)
    spans = [
        span(n, n, n + 1, name=f"name {n}", label=f"title {n}", **{f"key {n}": f"text {n}"})
        for n in numbers
    ]

    (run,) = load_all("perfetto", [write_journal(tmp_path / "run.jsonl", *spans)], tmp_path)

    assert run.answers[LOST] == []
    assert [(row["name"], row["title"]) for row in run.answers[SLICES]] == [
        (f"name {n}", f"title {n}") for n in numbers
    ]
    shown = {row["key"]: row["value"] for row in run.answers[ARGUMENTS]}
    assert [shown[f"debug.key {n}"] for n in numbers] == [f"text {n}" for n in numbers]
