import asyncio
from dataclasses import replace

from harness import Default, Pipeline, Retry, Run, Settings, Skipped
from harness.analysis.observed import Observed
from harness.analysis.time_budget import time_shares
from harness.trace import Interval, Journal, SpanRecord, calls_of
from harness.trace.events import Events
from harness.trace.node_records import CriticalPath, PathStep
from harness.trace.records import Instant

MS = 1_000_000
RUN = Interval(start_ns=1000 * MS, end_ns=2000 * MS)


def span(number, name, start_ms, end_ms, parent=1, **attributes):
    """Times from the run's start; by default in the one node."""
    start_ns, end_ns = ((1000 + time_ms) * MS for time_ms in (start_ms, end_ms))
    return SpanRecord(number, parent, name, start_ns, end_ns, "ok", None, attributes)


def step(start_ms, ms, *, place_wait_ms=0):
    return PathStep(
        node="node",
        span=1,
        status="ok",
        wait_ns=0,
        place_wait_ns=place_wait_ms * MS,
        start_ns=start_ms * MS,
        duration_ns=ms * MS,
        run_share=None,
    )


def shares(spans, *steps):
    """What they give, in milliseconds."""
    if steps:
        spans = [span(1, "node", 0, 1000, None, node="node"), *spans]
    path = CriticalPath(steps=steps, after_ns=0)
    calls = calls_of(one for one in spans if isinstance(one, SpanRecord))
    found = time_shares(path, calls, Events(spans), run=RUN)
    assert sum(one.duration_ns for one in found) == RUN.duration_ns
    assert [one.share for one in found] == sorted((one.share for one in found), reverse=True)
    return {one.kind: one.duration_ns // MS for one in found}


def test_a_call_is_divided_into_its_phases_and_what_is_around_them():
    call = [
        span(2, "chat", 100, 900),
        span(3, "queue", 110, 150, 2, reason="max_parallel = 2"),
        span(4, "queue", 150, 200, 2, reason="waits for room"),
        span(5, "load", 200, 300, 2),
        span(6, "overhead", 300, 330, 2),
        span(7, "queue", 330, 400, 2, source="reported"),
        span(8, "prefill", 400, 500, 2),
        span(9, "decode", 500, 880, 2),
    ]
    assert shares(call, step(50, 900)) == {
        "decode": 380,
        "prefill": 100,
        "load": 100,
        "code": 100,
        "queue": 70,
        "overhead": 60,
        "room": 50,
        "start": 50,
        "end": 50,
        "turn": 40,
    }


def test_of_calls_side_by_side_work_counts_before_waiting():
    calls = [
        span(2, "chat", 0, 600),
        span(3, "decode", 0, 600, 2),
        span(4, "chat", 0, 1000),
        span(5, "queue", 0, 500, 4, source="reported"),
        span(6, "prefill", 500, 800, 4),
        span(7, "decode", 800, 1000, 4),
    ]
    assert shares(calls, step(0, 1000)) == {"decode": 800, "prefill": 200}


def test_a_stalled_loop_counts_before_what_only_seemed_to_go_on():
    spans = [
        span(2, "chat", 0, 1000),
        span(3, "decode", 0, 1000, 2),
        span(4, "client lag", 300, 700),
    ]
    assert shares(spans, step(0, 1000)) == {"decode": 600, "client lag": 400}


def test_between_nodes_the_wait_for_a_place_is_told_from_the_rest():
    assert shares([], step(100, 200), step(500, 500, place_wait_ms=150)) == {
        "code": 700,
        "place": 150,
        "start": 100,
        "between nodes": 50,
    }


def test_what_lies_beside_the_path_does_not_count():
    spans = [span(2, "chat", 600, 1000), span(3, "decode", 600, 1000, 2)]
    assert shares(spans, step(0, 500)) == {"code": 500, "end": 500}


def test_what_another_node_does_meanwhile_does_not_count():
    spans = [
        span(2, "node", 0, 900, None, node="other"),
        span(3, "chat", 0, 900, 2),
        span(4, "decode", 0, 900, 3),
        span(5, "chat", 0, 1000),
        span(6, "queue", 0, 900, 5, source="reported"),
        span(7, "decode", 900, 1000, 5),
    ]
    assert shares(spans, step(0, 1000)) == {"queue": 900, "decode": 100}


def test_a_stalled_loop_keeps_the_next_node_from_beginning():
    spans = [span(2, "client lag", 150, 400, None)]
    assert shares(spans, step(0, 200), step(500, 500)) == {
        "code": 650,
        "client lag": 250,
        "between nodes": 100,
    }


def test_a_step_that_began_before_the_one_it_took_items_of_had_ended():
    assert shares([], step(0, 600), step(400, 600)) == {"code": 1000}


def test_the_node_whose_own_code_took_most_is_named():
    steps = (replace(step(0, 200), node="quick"), replace(step(200, 800), node="slow"))
    (code,) = time_shares(CriticalPath(steps=steps, after_ns=0), [], Events(), run=RUN)
    assert (code.kind, code.most_of) == ("code", "slow")


def test_the_tool_that_took_most_is_named():
    calls = [
        span(2, "tool", 0, 300, tool="search"),
        span(3, "tool", 300, 400, tool="add"),
        span(4, "tool", 990, 1990, tool="beside the path"),
    ]
    path = CriticalPath(steps=(step(0, 500),), after_ns=0)
    tool, _ = sorted(
        time_shares(path, [], Events(calls), run=RUN),
        key=lambda share: share.kind != "tool",
    )[:2]
    assert (tool.kind, tool.most_of) == ("tool", "search")


def test_of_several_models_the_one_that_wrote_most_is_named():
    spans = [
        span(2, "chat", 0, 300, model="producer"),
        span(3, "decode", 0, 300, 2),
        span(4, "chat", 300, 1000, model="judge"),
        span(5, "decode", 300, 1000, 4),
    ]
    path = CriticalPath(steps=(), after_ns=0)

    (several,) = time_shares(path, calls_of(spans), Events(), run=RUN)
    alone, _ = time_shares(path, calls_of(spans[2:]), Events(), run=RUN)
    assert (several.kind, several.most_of) == ("decode", "judge")
    assert (alone.kind, alone.most_of) == ("decode", None)


def test_a_run_without_nodes_is_divided_as_a_whole():
    spans = [
        span(2, "embed", 0, 200),
        span(3, "recall", 200, 400),
        span(4, "tool", 300, 450),
        span(5, "rerank", 200, 300),
        Instant(None, "retry", 1500 * MS, {"delay_s": 0.2}),
    ]
    assert shares(spans) == {"code": 350, "embed": 300, "retry": 200, "memory": 100, "tool": 50}


def test_attempts_that_failed_are_on_the_path_of_what_went_on_without_them(tmp_path):
    pipeline = Pipeline("letter")

    @pipeline.node(retry=Retry(2, first_delay_s=0.01), on_error=Default("no summary"))
    async def summary(run: Run) -> str:
        await asyncio.sleep(0.05)
        raise OSError("no connection")

    @pipeline.node
    async def letter(run: Run, summary: str) -> str:
        return summary

    journal = Journal(pipeline.run(settings=Settings(traces=tmp_path)).files.journal)
    observed = Observed(journal)
    steps = [(step.node, step.status) for step in observed.path.steps]
    assert steps == [("summary", "error"), ("summary", "error"), ("letter", "ok")]
    spent_ns = {share.kind: share.duration_ns for share in observed.shares}
    # On a busy machine any of the 100 ms may count as client lag.
    code_ns = spent_ns.get("code", 0) + spent_ns.get("client lag", 0)
    assert code_ns >= 100 * MS


def test_a_condition_is_an_edge_of_the_path(tmp_path):
    pipeline = Pipeline("routed")

    @pipeline.node
    def route() -> str:
        return "left"

    @pipeline.node(when=lambda route: route == "left")
    def left() -> str:
        return "a reply"

    @pipeline.node
    def said(left: str | Skipped) -> str:
        return str(left)

    journal = Journal(pipeline.run(settings=Settings(traces=tmp_path)).files.journal)
    assert [step.node for step in Observed(journal).path.steps] == ["route", "left", "said"]
