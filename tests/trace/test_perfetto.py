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
from sample_runs import STARTED, span, write_journal

from harness.trace import TIMELINES, Content, CounterSet, Flow, Instant, Journal, SpanRecord
from harness.trace.calls import PHASES
from harness.trace.timeline import Lanes, SummaryTracks, shown_counter

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parents[2] / "traces" / "recorded" / "brief.jsonl"
RANDOM_RUNS = 40
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
    AND slice.id NOT IN (SELECT slice_out FROM flow)
"""  # without the marks that arrows leave from
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
        COALESCE(
            EXTRACT_ARG(source.arg_set_id, 'debug.span'),
            EXTRACT_ARG(source.arg_set_id, 'args.span')
        ) AS source,
        COALESCE(
            EXTRACT_ARG(target.arg_set_id, 'debug.span'),
            EXTRACT_ARG(target.arg_set_id, 'args.span')
        ) AS target,
        source.name,
        source.ts AS start_ns,
        source.ts + source.dur AS end_ns,
        SLICE_IS_ANCESTOR(source.id, target.id) AS is_around,
        target.ts AS target_ns
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
QUERIES = (LOST, SLICES, INSTANTS, ARGUMENTS, COUNTERS)


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
                title_of(one),
                one.name,
                run.since_start(one.start_ns),
                one.duration_ns,
            )
            for one in run.journal.spans()
        }, run.name


def title_of(one: SpanRecord) -> str:
    """A phase has one title, for its color; others say how they ended."""
    title = str(one.attributes.get("label") or one.name)
    if title == one.name and title in PHASES:
        return {"load": "loading", "prefill": "read (prefill)"}.get(title, title)
    return title if one.status == "ok" else f"{title}: {one.status}"


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
        texts = {one.sha256 for one in run.journal.items(Content)}
        for row in run.answers[ARGUMENTS]:
            shown[row["id"]][row["key"].removeprefix("debug.")] = (row["type"], row["value"])
        for one in run.journal.spans():
            expected = {"span": one.id, **one.attributes, **dict(in_ms(one))}
            for shown_elsewhere in ("track", "label"):
                expected.pop(shown_elsewhere, None)
            for name, value in one.attributes.items():
                if name.endswith("_sha256") and value in texts:
                    # Texts are tested with Chrome's format, which has the same arguments.
                    del expected[name]
                    for added in (name.removesuffix("_sha256"), "whole"):
                        assert shown[one.id].pop(added, None) or added == "whole", (one, added)
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


def in_ms(one: SpanRecord) -> Iterator[tuple[str, float]]:
    """Figures of a call in milliseconds, which the timeline adds."""
    for name in ("ttft", "itl_mean"):
        value = one.attributes.get(f"{name}_ns")
        if one.name == "chat" and isinstance(value, int):
            yield f"{name}_ms", round(value / 1e6, 1)


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


@pytest.mark.parametrize("form", TIMELINES)
def test_arrows_lead_forward_from_slices_that_are_over_and_from_marks_in_others(
    journals, tmp_path, form
):
    for run in load_all(form, journals, tmp_path, (FLOWS,)):
        root, rows = f"run {run.journal.started.name}", run.answers[FLOWS]
        lanes, at, order = Lanes(root), {}, {}
        for place, one in enumerate(run.journal.spans()):
            at[one.id], order[one.id] = (one, lanes.place(one)), place
        expected = Counter()
        for name, source, target in run.journal.flows:
            (before, lane), (after, other) = at[source], at[target]
            if order[source] > order[target] or before.start_ns > after.start_ns:
                continue
            marked = name == "call" or (before.end_ns > after.start_ns and lane is not other)
            expected[None if marked else source, target] += 1
        shown = Counter((row["source"], row["target"]) for row in rows)
        # Chrome's format names no slice, only a moment, at which a random run has several.
        if form == "perfetto" or run.journal.path == RECORDED:
            assert shown == expected, run.name
        for row in rows:
            # As Perfetto's UI does, which knows no other place for an arrow to leave from.
            nested = row["is_around"] or row["start_ns"] >= row["target_ns"]
            leaves_ns = row["start_ns"] if nested else row["end_ns"]
            assert leaves_ns <= row["target_ns"], (run.name, row)
            if row["source"] is None:
                assert row["start_ns"] == row["end_ns"] == row["target_ns"], (run.name, row)


def test_a_call_leaves_from_the_moment_it_was_made_and_the_lane_it_was_made_on(tmp_path):
    journal = write_journal(
        tmp_path / "run.jsonl",
        span(1, 0, 90, name="node", track="node text"),
        span(2, 40, 80, parent=1, name="chat", track="model small"),
        Flow("call", 1, 2),
    )
    asked = FLOWS.replace("source.name", "source.name, lane.name AS lane").replace(
        "LEFT JOIN slice AS target", "LEFT JOIN track AS lane ON lane.id = source.track_id\n"
        "    LEFT JOIN slice AS target"
    )  # fmt: skip
    (run,) = load_all("perfetto", [journal], tmp_path, (asked,))
    (row,) = run.answers[asked]
    assert (row["name"], row["lane"], row["start_ns"]) == ("call", "node text", 40)


def summary_of(journal):
    """What both exports add: calls in flight and so on, which have tests of their own."""
    summary = SummaryTracks()
    for one in journal.spans():
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
            for counter, track, number in placed
            for one in [shown_counter(counter)]
        ), run.name


def test_models_stand_above_nodes_and_the_nodes_of_a_row_in_the_row(tmp_path):
    rows = [
        one
        for number in range(20)
        for first in [4 * number + 2]
        for one in [
            span(first, 0, 9, parent=1, name="node", track="node rows"),
            *(
                span(first + n, n, n + 1, parent=first, track=f"node rows[{number}]/words/{node}")
                for n, node in enumerate(["facts", "draft", "polish"], 1)
            ),
        ]
    ]
    calls = [
        span(90, 1, 2, parent=3, name="chat", track="model org/small"),
        CounterSet("running", "requests", 3, 1, None, "server small"),
    ]
    whole = span(1, 0, 9, name="run")
    journal = write_journal(tmp_path / "run.jsonl", whole, *rows, *calls)
    asked = """
        SELECT track.name, around.name AS around, count(*) AS tracks,
            EXTRACT_ARG(track.source_arg_set_id, 'sibling_order_rank') AS rank
        FROM track JOIN track AS around ON around.id = track.parent_id
        JOIN track AS inner ON inner.parent_id = track.id
        GROUP BY track.id ORDER BY rank
    """
    (run,) = load_all("perfetto", [journal], tmp_path, (asked,))
    inside = defaultdict(list)
    for row in run.answers[asked]:
        inside[row["around"]].append((row["name"], row["tracks"]))
    top = [("run essay", 2), ("model org/small", 1), ("server small", 1)]
    # The lanes of the rows, and under them a group for each.
    assert inside.pop(STARTED.run_id) == [*top, ("node rows", 20 + 20)]
    assert inside.pop("node rows") == [(f"node rows[{n}]", 3) for n in range(20)]
    assert inside == {
        f"node rows[{n}]": [
            (f"node rows[{n}]/words/{node}", 1) for node in ("facts", "draft", "polish")
        ]
        for n in range(20)
    }


def test_scores_share_the_axis_of_their_rubric(tmp_path):
    counters = [
        CounterSet(name, unit, time_ns, value, 1)
        for name, unit, time_ns, value in (
            ("composite", "points of 10", 2, 4.1),
            ("clear", "points of 10", 3, 4.5),
            ("rows", "points of view", 4, 7),
        )
    ]
    journal = write_journal(
        tmp_path / "run.jsonl", span(1, 0, 9, name="node", track="node text"), *counters
    )
    asked = """
        SELECT own.name, counter.value,
            EXTRACT_ARG(own.source_arg_set_id, 'y_axis_share_key') AS axis
        FROM counter JOIN track AS own ON own.id = counter.track_id ORDER BY counter.id
    """
    (run,) = load_all("perfetto", [journal], tmp_path, (asked,))
    assert [tuple(row.values()) for row in run.answers[asked]] == [
        ("scale points of 10", 10, "points of 10"),
        ("composite points of 10", 4.1, "points of 10"),
        ("clear points of 10", 4.5, "points of 10"),
        ("rows points of view", 7, None),
    ]


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
    long = "z" * 20_000
    spans[-1] = spans[-1]._replace(attributes={**spans[-1].attributes, long: 7})

    (run,) = load_all("perfetto", [write_journal(tmp_path / "run.jsonl", *spans)], tmp_path)

    assert run.answers[LOST] == []
    assert [(row["name"], row["title"]) for row in run.answers[SLICES]] == [
        (f"name {n}", f"title {n}") for n in numbers
    ]
    shown = {row["key"]: row["value"] for row in run.answers[ARGUMENTS]}
    assert [shown[f"debug.key {n}"] for n in numbers] == [f"text {n}" for n in numbers]
    assert int(shown[f"debug.{long}"]) == 7
