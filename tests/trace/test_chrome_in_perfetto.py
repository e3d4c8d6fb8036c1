"""What Perfetto itself reads from the exported file."""

import random

import pytest
from sample_runs import random_spans, record_eventful_run, run_of

from harness.trace import CounterSet, Instant, assign_lanes, write_chrome_trace
from tests.perfetto import query_trace, query_traces

LOST = """
    SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0
"""
SLICES = """
    SELECT
        EXTRACT_ARG(slice.arg_set_id, 'args.span') AS id,
        slice.name AS title,
        slice.category AS name,
        slice.ts AS start_ns,
        slice.dur AS duration_ns,
        slice.depth,
        EXTRACT_ARG(parent.arg_set_id, 'args.span') AS parent,
        thread.name AS thread,
        EXTRACT_ARG(slice.arg_set_id, 'args.status') AS status,
        EXTRACT_ARG(slice.arg_set_id, 'args.error') AS error
    FROM slice
    JOIN thread_track ON thread_track.id = slice.track_id
    JOIN thread USING (utid)
    LEFT JOIN slice AS parent ON parent.id = slice.parent_id
    WHERE slice.category IS NOT NULL
    ORDER BY id
"""
COUNTERS = """
    SELECT counter_track.name, counter.ts AS time_ns, counter.value
    FROM counter JOIN counter_track ON counter_track.id = counter.track_id
    ORDER BY counter.id
"""
INSTANTS = """
    SELECT slice.name, slice.ts AS time_ns, thread.name AS thread
    FROM slice
    LEFT JOIN thread_track ON thread_track.id = slice.track_id
    LEFT JOIN thread USING (utid)
    WHERE slice.category IS NULL
    ORDER BY slice.ts, slice.name
"""
CALLS = """
    SELECT
        EXTRACT_ARG(arg_set_id, 'args.scores.tone') AS tone,
        EXTRACT_ARG(arg_set_id, 'args.model') AS model,
        EXTRACT_ARG(arg_set_id, 'args.prompt') AS prompt,
        EXTRACT_ARG(arg_set_id, 'args.output_tokens') AS output_tokens
    FROM slice WHERE category IN ('evaluate', 'chat') ORDER BY output_tokens
"""


def expected_slices(run):
    """What a faithful viewer shows of a run's spans."""
    lanes = assign_lanes(run.spans, root_track=run.started.name)
    by_id = {span.id: span for span in run.spans}

    def drawn_parent(span):
        parent = by_id.get(span.parent)
        if parent is None or lanes[parent.id] != lanes[span.id]:
            return None
        covers = max(parent.end_ns, parent.start_ns + 1) > span.start_ns >= parent.start_ns
        return parent if covers else None

    def depth(span):
        parent = drawn_parent(span)
        return 0 if parent is None else 1 + depth(parent)

    rows = []
    for span in run.spans:
        lane, parent = lanes[span.id], drawn_parent(span)
        rows.append(
            {
                "id": span.id,
                "title": span.attributes.get("label", span.name),
                "name": span.name,
                "start_ns": span.start_ns - run.started.time_ns,
                "duration_ns": span.duration_ns,
                "depth": depth(span),
                "parent": parent.id if parent else None,
                "thread": f"{lane.track} ({lane.index + 1})" if lane.index else lane.track,
                "status": None if span.status == "ok" else span.status,
                "error": span.error,
            }
        )
    return rows


def expected_counters(run):
    return [
        {
            "name": f"{counter.name} {counter.unit}",
            "time_ns": counter.time_ns - run.started.time_ns,
            "value": counter.value,
        }
        for counter in run.counters
    ]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return record_eventful_run(tmp_path_factory.mktemp("traces"))


@pytest.fixture(scope="module")
def answers(trace):
    """What Perfetto answers about it, by query."""
    queries = (LOST, SLICES, COUNTERS, INSTANTS, CALLS)
    rows = query_traces([(trace.chrome_path, sql) for sql in queries])
    return dict(zip(queries, rows, strict=True))


def test_nothing_of_a_run_is_lost(answers):
    assert answers[LOST] == []


def test_every_span_is_a_slice_where_when_and_what_it_was(trace, answers):
    slices = answers[SLICES]

    assert slices == expected_slices(trace.record)
    # The run is as eventful as these tests assume.
    assert {row["status"] for row in slices} == {None, "error", "unfinished"}
    assert {row["depth"] for row in slices} == {0, 1, 2}
    threads = {row["thread"] for row in slices}
    assert {f"sections ({lane})" for lane in range(2, 9)} < threads


def test_counters_read_as_they_were_set(trace, answers):
    assert answers[COUNTERS] == expected_counters(trace.record)


def test_instants_are_where_and_when_they_happened(trace, answers):
    instants, start_ns = answers[INSTANTS], trace.record.started.time_ns

    assert [(row["name"], row["time_ns"]) for row in instants] == sorted(
        ((one.name, one.time_ns - start_ns) for one in trace.record.instants),
        key=lambda row: (row[1], row[0]),
    )
    threads = {row["name"]: row["thread"] for row in instants}
    assert threads["before any span"] is None
    assert threads["stop"] == "Übersicht 概要"


def test_attributes_can_be_queried(answers):
    evaluate, *chats = answers[CALLS]

    assert evaluate["tone"] == 3.5
    assert [chat["output_tokens"] for chat in chats] == list(range(8))
    assert {(chat["model"], chat["prompt"]) for chat in chats} == {("küken-🐣", '"quoted"\n\u2028')}


def random_run(seed):
    randomness = random.Random(seed)
    # From a few nanoseconds, where everything touches, to hours.
    within_ns = 10 ** randomness.randint(1, 13)
    spans = random_spans(randomness, count=randomness.randint(1, 60), within_ns=within_ns)
    return run_of(
        *spans,
        instants=[
            Instant(span=span.id, name="tick", time_ns=span.start_ns)
            for span in randomness.sample(spans, len(spans) // 3)
        ],
        counters=[
            CounterSet(
                name="load",
                unit="tokens",
                time_ns=number * within_ns // 10,
                value=randomness.uniform(-1e9, 1e9),
            )
            for number in range(10)
        ],
    )


def test_random_runs_read_back_as_they_were(tmp_path):
    runs = {tmp_path / f"{seed}.json": random_run(seed) for seed in range(20)}
    for path, run in runs.items():
        write_chrome_trace(run, path)

    answers = query_traces(
        [(path, sql) for path in runs for sql in (LOST, SLICES, COUNTERS, INSTANTS)]
    )

    for number, run in enumerate(runs.values()):
        lost, slices, counters, instants = answers[4 * number : 4 * number + 4]
        assert lost == [], number
        assert slices == expected_slices(run), number
        assert counters == expected_counters(run), number
        assert len(instants) == len(run.instants), number


def test_slices_that_overlap_on_one_thread_would_be_noticed(tmp_path):
    # The check above is worth something only if Perfetto complains of what lanes prevent.
    path = tmp_path / "overlap.json"
    path.write_text(
        '{"traceEvents": ['
        '{"ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": 5, "name": "first"},'
        '{"ph": "X", "pid": 1, "tid": 1, "ts": 3, "dur": 5, "name": "second"}]}'
    )

    assert query_trace(path, LOST) == [
        {"name": "slice_drop_overlapping_complete_event", "value": 1}
    ]
