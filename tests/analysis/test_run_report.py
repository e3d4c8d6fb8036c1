"""The figures of calls, and the report of a run."""

import statistics
from dataclasses import asdict
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock
from sample_runs import STARTED, span, write_journal

from harness.analysis import report_of
from harness.analysis.run_report import Targets, goodput_of, occupancy_of
from harness.trace import (
    Flow,
    Instant,
    Journal,
    RunEnded,
    RunTrace,
    SpanRecord,
    TraceOptions,
    calls_of,
)
from harness.trace.calls import Call, Interval, call_group, cost_of, percentiles_of
from harness.trace.events import EndpointEvent, NodeAttempt
from harness.trace.node_records import critical_path

MS = 1_000_000
S = 1_000_000_000
START_NS = 5 * S
"""What the clock shows when a made-up run begins: a report must not take it for zero."""


def call(
    start_ms=0, end_ms=1000, *, status="ok", error=None, model="small", phases=None, **attributes
):
    """A call whose phases last as many milliseconds as are given."""
    said = {"model": model, **attributes}
    return Call.read(
        SpanRecord(1, None, "chat", start_ms * MS, end_ms * MS, status, error, said),
        phases={
            name: (Interval(start_ns=0, end_ns=ms * MS),) for name, ms in (phases or {}).items()
        },
    )


def report_on(directory, *records, end_ms=1000, **options):
    """The report of a run of these records; without an end, of one that was killed."""
    ended = [] if end_ms is None else [RunEnded(START_NS + end_ms * MS, "ok")]
    started = STARTED._replace(time_ns=START_NS)
    journal = write_journal(directory / "run.jsonl", *records, *ended, started=started)
    return report_of(journal, **options)


def at(number, start_ms, end_ms, name, parent=None, **more):
    """A span at a time since the run began."""
    start_ns, end_ns = START_NS + start_ms * MS, START_NS + end_ms * MS
    return span(number, start_ns, end_ns, name=name, parent=parent, **more)


def test_calls_that_a_limit_refused_were_not_made(tmp_path):
    refused = [
        at(number, 10, 10, "chat", model="small", status="error")._replace(
            error="RunLimitReached: max_calls = 1 is reached"
        )
        for number in (3, 4)
    ]
    report = report_on(tmp_path, at(2, 0, 10, "chat", model="small", output_tokens=4), *refused)

    (model,) = report.models
    assert (model.calls, model.failed, model.refused) == (1, 0, 2)
    assert (report.goodput.unknown, report.retries) == (1, 0)


def node(number, start_ms, end_ms, name, **more):
    return at(number, start_ms, end_ms, "node", node=name, label=name, **more)


def instant(name, **attributes):
    return Instant(None, name, START_NS, attributes)


# --- percentiles -----------------------------------------------------------------------------


@given(st.lists(st.integers(0, 50), min_size=1, max_size=150))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(values):
    def naive(percent):
        return min(
            one
            for one in values
            if 100 * sum(other <= one for other in values) >= percent * len(values)
        )

    found = percentiles_of([None, *values])
    tails = (naive(95), naive(99)) if len(values) >= 20 else (None, None)
    assert (found.p95_ns, found.p99_ns) == tails
    assert found.p50_ns == round(statistics.median(values))
    assert (found.count, found.max_ns) == (len(values), max(values))
    assert percentiles_of([None]) is None


# --- calls, and groups of them ---------------------------------------------------------------


def test_calls_are_read_from_spans_with_what_is_around_and_in_them():
    calls = calls_of(
        [
            span(1, 0, 99, name="run"),
            span(2, 0, 99, name="node", parent=1, node="plan"),
            span(3, 0, 99, name="draft", parent=2),
            span(4, 0, 90, name="chat", parent=3, model="small", role="producer"),
            span(5, 0, 3, name="queue", parent=4, reason="max_parallel = 2"),
            span(6, 3, 9, name="queue", parent=4, reason="in use: small"),
            span(7, 9, 12, name="queue", parent=4, source="reported"),
            span(8, 12, 20, name="decode", parent=4),
            span(9, 0, 9, name="chat", parent=1, model="small"),
        ]
    )

    assert [(one.node, one.role) for one in calls] == [("plan", "producer"), (None, None)]
    assert [turn.duration_ns for turn in calls[0].turns] == [3]  # and not the other queues
    assert (calls[0].phase_ns("queue"), calls[0].phase_ns("decode")) == (12, 8)


def test_latencies_are_of_the_calls_that_ended_well_and_tokens_and_time_of_all_attempts():
    first = {"ttft_ns": 10, "itl_mean_ns": 4, "input_tokens": 5}
    second = {"ttft_ns": 30, "itl_mean_ns": 2, "input_tokens": 7}
    second |= {"itl_max_ns": 40}
    phases = {"queue": 1, "load": 20, "prefill": 300, "decode": 4000}
    group = call_group(
        [
            call(0, 100, phases=phases, output_tokens=2, **first),
            call(0, 300, output_tokens=1, **second),
            call(
                0, 900, status="error", phases={"queue": 5, "load": 60}, ttft_ns=9, input_tokens=9
            ),
            call(0, 800, status="cancelled"),
            call(0, 700, status="unfinished", phases={"queue": 7}),
        ]
    )
    assert (group.calls, group.failed, group.cancelled, group.unfinished) == (5, 1, 1, 1)
    assert (group.ttft.p50_ns, group.ttft.max_ns, group.ttft.count) == (20, 30, 2)
    assert (group.itl_mean.p50_ns, group.itl_mean.max_ns) == (3, 4)
    assert group.itl_max_ns == 40
    assert (group.duration.p50_ns, group.duration.max_ns) == (200 * MS, 300 * MS)
    assert (group.input_tokens, group.output_tokens) == (21, 3)
    times = (group.queue_ns, group.load_ns, group.prefill_ns, group.decode_ns)
    assert times == (13 * MS, 80 * MS, 300 * MS, 4000 * MS)


@pytest.mark.parametrize(
    ("calls", "tokens_per_s"),
    [
        pytest.param([call(output_tokens=101, phases={"decode": 1000})], 100, id="after the first"),
        pytest.param([call(output_tokens=1, phases={"decode": 1000})], 0, id="only the first"),
        pytest.param([call(output_tokens=5, phases={"decode": 0})], None, id="no time"),
        pytest.param(
            [
                call(output_tokens=41, phases={"load": 9_000, "queue": 500, "decode": 500}),
                call(output_tokens=11, phases={"prefill": 700, "decode": 125}),
                call(output_tokens=1_000),  # in one piece: nobody knows how fast
                call(phases={"decode": 9_000}),  # whose server counts no tokens
                call(output_tokens=9_000, phases={"decode": 1}, status="error"),
            ],
            80,
            id="of decoding alone",
        ),
    ],
)
def test_the_decode_rate_is_of_the_tokens_after_the_first(calls, tokens_per_s):
    assert call_group(calls).decode_tokens_per_s == tokens_per_s


DRAFT = {"draft_tokens": 30, "accepted_tokens": 12}


@pytest.mark.parametrize(
    ("calls", "cached", "drafts"),
    [
        pytest.param([{}, {}], (None, None), (None, None, None), id="no server said"),
        # A share of the prompts whose server said.
        pytest.param([{}, {"cached_tokens": 30, **DRAFT}], (30, 0.3), (30, 12, 0.4), id="one said"),
        pytest.param(
            [{"cached_tokens": 10, **DRAFT}, {"cached_tokens": 30, **DRAFT}],
            (40, 0.2),
            (60, 24, 0.4),
            id="all said",
        ),
    ],
)
def test_that_a_server_does_not_say_so_is_not_that_there_was_nothing(calls, cached, drafts):
    group = call_group([call(input_tokens=100, output_tokens=5, **said) for said in calls])
    assert (group.cached_tokens, group.cached_share) == cached
    assert (group.draft_tokens, group.accepted_tokens, group.accepted_share) == drafts


@pytest.mark.parametrize(
    ("saved", "usd"),
    [([None, None], None), ([0.5, None, -0.25], 0.25)],
    ids=["no price is known", "what writing to it cost is deducted"],
)
def test_what_the_caches_of_prompts_saved_is_added_up(saved, usd):
    group = call_group([call(cache_saved_usd=one) if one else call() for one in saved])
    assert group.cache_saved_usd == usd


def test_what_servers_did_not_do_is_told_but_not_of_replies_from_the_cache():
    group = call_group(
        [
            call(schema="enforced", output_tokens=1),
            call(schema="advisory", dropped=["seed"]),
            call(schema="advisory", output_tokens=9),
            call(schema="ignored", dropped=["temperature", "seed"], output_tokens=1),
            call(0, 1, from_cache=True, schema="ignored", dropped=["top_p"]),
        ]
    )
    assert (group.advisory_schemas, group.ignored_schemas) == (2, 1)
    assert group.dropped == ("seed", "temperature")
    assert (group.calls, group.from_cache, group.uncounted) == (5, 1, 1)
    assert (group.duration.count, group.duration.p50_ns) == (4, 1000 * MS)


# --- goodput ---------------------------------------------------------------------------------


DECODED = {"decode": 100}
MET = call(ttft_ns=500 * MS, itl_mean_ns=50 * MS, output_tokens=30, phases=DECODED)
LATE = call(ttft_ns=501 * MS, itl_mean_ns=10 * MS, output_tokens=20, phases=DECODED)
SLOW = call(ttft_ns=100 * MS, itl_mean_ns=51 * MS, output_tokens=40, phases=DECODED)
IN_ONE_PIECE = call(ttft_ns=100 * MS, output_tokens=10)
UNKNOWN = call(output_tokens=60)
UNKNOWN_ITL = call(ttft_ns=1, output_tokens=100, phases=DECODED)
FAILED = call(ttft_ns=1, status="error")


@pytest.mark.parametrize(
    ("calls", "run_ns", "judged", "rates"),
    [
        pytest.param([MET, LATE, SLOW, IN_ONE_PIECE], 2 * S, (2, 2, 0), (20, 50, 0.5), id="both"),
        pytest.param(
            [MET, LATE, UNKNOWN, UNKNOWN_ITL, FAILED], 2 * S, (1, 2, 2), (15, 105, 1 / 3), id="some"
        ),
        pytest.param([], S, (0, 0, 0), (None, 0, None), id="no call"),
        pytest.param([UNKNOWN], 2 * S, (0, 0, 1), (None, 30, None), id="all unknown"),
        pytest.param([MET], 0, (1, 0, 0), (None, None, 1), id="no time"),
    ],
)
def test_goodput_is_the_tokens_of_the_calls_that_met_both_targets(calls, run_ns, judged, rates):
    found = goodput_of(calls, targets=Targets(), run_ns=run_ns)
    assert (found.met, found.missed, found.unknown) == judged
    assert (found.tokens_per_s, found.throughput_tokens_per_s, found.attained) == rates


# --- idle time -------------------------------------------------------------------------------


@st.composite
def busy_runs(draw):
    start_ns = draw(st.integers(0, 20))
    end_ns = start_ns + draw(st.integers(0, 40))
    moments = st.integers(start_ns, end_ns)
    calls = draw(st.lists(st.tuples(moments, moments).map(sorted), max_size=8))
    return (
        [Interval(start_ns=first, end_ns=last) for first, last in calls],
        Interval(start_ns=start_ns, end_ns=end_ns),
    )


@given(busy_runs())
def test_idle_time_is_every_nanosecond_in_which_no_call_was_under_way(busy_run):
    calls, run = busy_run
    is_idle = [
        not any(one.start_ns <= now < one.end_ns for one in calls)
        for now in range(run.start_ns, run.end_ns)
    ]
    busiest = max(
        sum(one.start_ns <= now < max(one.end_ns, one.start_ns + 1) for one in calls)
        for now in range(run.start_ns, run.end_ns + 1)
    )

    found = occupancy_of(calls, run=run)

    assert found.idle_ns == sum(is_idle)
    assert found.idle_share == (sum(is_idle) / len(is_idle) if is_idle else None)
    assert found.most_at_once == busiest
    stretches = [len(list(same)) for idle, same in groupby(is_idle) if idle]
    longest = found.longest_gap
    if any(one.duration_ns == 0 for one in calls):
        return  # a call that took no time parts one gap into two
    assert found.idle_gaps == len(stretches)
    assert (longest.duration_ns if longest else 0) == max(stretches, default=0)


# --- the critical path -----------------------------------------------------------------------


@st.composite
def graphs(draw):
    """Nodes that wait for earlier ones, and who waits for whom. No two end at the same time."""
    nodes, flows = [], []
    count = draw(st.integers(1, 7))
    for number in range(1, count + 1):
        waits_for = draw(st.sets(st.sampled_from(range(1, number)))) if number > 1 else set()
        free_ns = max([100, *(nodes[one - 1].end_ns for one in waits_for)])
        start_ns = free_ns + draw(st.integers(0, 5))
        end_ns = start_ns + draw(st.integers(0, 9))
        while any(one.end_ns == end_ns for one in nodes):
            end_ns += 1
        nodes.append(span(number, start_ns, end_ns, name="node", label=f"n{number}"))
        flows += [Flow("output", source, number) for source in sorted(waits_for)]
    return nodes, draw(st.permutations(flows))


@given(graphs(), st.integers(0, 5))
def test_the_critical_path_is_of_all_chains_the_one_that_ended_last_at_every_step(graph, after_ns):
    nodes, flows = graph
    by_number = {one.id: one for one in nodes}

    def chains_to(number):
        before = [flow.source for flow in flows if flow.target == number]
        if not before:
            return [[number]]
        return [[*chain, number] for source in before for chain in chains_to(source)]

    every = [chain for number in by_number for chain in chains_to(number)]
    best = max(every, key=lambda chain: [by_number[number].end_ns for number in reversed(chain)])
    run = Interval(start_ns=90, end_ns=max(one.end_ns for one in nodes) + after_ns)

    path = critical_path([*map(NodeAttempt.of, nodes)], flows, run=run)

    assert [step.node for step in path.steps] == [f"n{number}" for number in best]
    assert path.after_ns == after_ns
    waits_and_steps = sum(step.wait_ns + step.duration_ns for step in path.steps)
    assert waits_and_steps + path.after_ns == run.duration_ns
    for step, number in zip(path.steps, best, strict=True):
        assert step.start_ns == by_number[number].start_ns - 90
        assert step.run_share == by_number[number].duration_ns / run.duration_ns


def test_a_circle_does_not_trap_the_search():
    nodes = [span(1, 0, 5, name="node", label="a"), span(2, 0, 6, name="node", label="b")]
    circle = [Flow("output", 1, 2), Flow("output", 2, 1), Flow("output", 2, 2)]
    path = critical_path([*map(NodeAttempt.of, nodes)], circle, run=Interval(start_ns=0, end_ns=9))
    assert [step.node for step in path.steps][-1] == "b"


# --- cost ------------------------------------------------------------------------------------

HOURLY = {"usd_per_hour": 3600}
PER_TOKEN = {"usd_per_million_input_tokens": 3.0, "usd_per_million_output_tokens": 15.0}
PAID = call(input_tokens=1000, output_tokens=100)
PAID_IN_VAIN = call(input_tokens=1000, output_tokens=100, status="error")
BROKEN = call(status="error")
NOT_SENT = call(status="error", error="RunLimitReached: small: not asked")


def endpoint(model, **attributes):
    return instant("endpoint", model=model, **attributes)


@pytest.mark.parametrize(
    ("prices", "calls", "basis", "usd", "unpriced"),
    [
        pytest.param(PER_TOKEN, [PAID] * 2, ("tokens",), 0.009, 0, id="by the token"),
        pytest.param(PER_TOKEN, [call(input_tokens=1000, output_tokens=100, cost_usd=9.0)],
                     ("tokens",), 0.0045, 0, id="the settings before the list"),
        pytest.param({}, [call(cost_usd=0.25), call(cost_usd=0.5)], ("price list",), 0.75, 0,
                     id="by the list"),
        pytest.param({}, [call(cost_usd=0.25), call()], ("price list",), 0.25, 1,
                     id="one is not on the list"),
        pytest.param(PER_TOKEN, [PAID, BROKEN], ("tokens",), 0.0045, 1, id="a failed call"),
        pytest.param(PER_TOKEN, [PAID, PAID_IN_VAIN], ("tokens",), 0.009, 0,
                     id="a failed call that was counted"),
        pytest.param(PER_TOKEN, [PAID, NOT_SENT],
                     ("tokens",), 0.0045, 0, id="a call that was not even sent"),
        pytest.param({"usd_per_hour": 36}, [BROKEN], ("hours",), 0.02, 0, id="hours alone"),
        pytest.param({"usd_per_hour": 36} | PER_TOKEN, [PAID], ("tokens", "hours"), 0.0245, 0,
                     id="hours and tokens"),
        pytest.param({"usd_per_million_output_tokens": 15.0}, [PAID], (), None, 1,
                     id="one price of the two"),
        pytest.param({}, [call(cost_usd=0.0)], ("price list",), 0.0, 0, id="free by the list"),
    ],
)  # fmt: skip
def test_a_models_cost_is_what_its_prices_give(prices, calls, basis, usd, unpriced):
    cost = cost_of(calls, [EndpointEvent.of(endpoint("small", **prices))], run_ns=2 * S)
    (model,) = cost.models
    assert model.basis == basis
    assert model.usd == (usd if usd is None else pytest.approx(usd))
    assert model.unpriced_calls == unpriced
    assert cost.usd == model.usd
    assert cost.unpriced_models == (("small",) if usd is None else ())


def test_the_cost_of_a_run_is_of_the_models_whose_cost_is_known_and_names_the_others():
    cost = cost_of(
        [
            call(model="writer", cost_usd=1.0, output_tokens=500_000),
            call(model="judge", output_tokens=900_000),
            call(model="rented", output_tokens=0),
        ],
        # A machine that was not called costs the run nothing.
        [
            EndpointEvent.of(endpoint(one, **prices))
            for one, prices in {"judge": {}, "rented": HOURLY, "spare": HOURLY}.items()
        ],
        run_ns=S,
    )
    assert [one.model for one in cost.models] == ["writer", "judge", "rented"]
    assert cost.usd == 2.0
    assert cost.usd_per_million_output_tokens == 4.0
    assert cost.unpriced_models == ("judge",)


def test_probes_embedding_and_ranking_are_paid_for_as_calls_are(tmp_path):
    report = report_on(
        tmp_path,
        endpoint("small", usd_per_million_input_tokens=1.0, usd_per_million_output_tokens=10.0),
        at(1, 0, 9, "chat", model="small", input_tokens=100, output_tokens=10),
        at(2, 0, 3, "schema probe", parent=1, model="small", input_tokens=30, output_tokens=5),
        at(3, 9, 12, "embed", model="small", input_tokens=1_500),
        at(4, 12, 15, "rerank", model="small", input_tokens=500),
    )
    (cost,) = report.cost.models
    assert cost.usd == pytest.approx(0.002280)
    assert (cost.basis, cost.unpriced_calls) == (("tokens",), 0)


# --- the whole report ------------------------------------------------------------------------


def test_calls_are_grouped_by_model_node_and_role_in_the_order_of_their_first(tmp_path):
    report = report_on(
        tmp_path,
        node(1, 0, 300, "draft"),
        at(2, 0, 100, "chat", parent=1, model="writer", role="producer", output_tokens=1),
        at(3, 100, 200, "chat", parent=1, model="judge", role="evaluator", output_tokens=2),
        at(4, 300, 400, "chat", model="writer", output_tokens=4),
    )

    def tokens(groups):
        return [(group.name, group.calls, group.output_tokens) for group in groups]

    assert tokens(report.models) == [("writer", 2, 5), ("judge", 1, 2)]
    assert tokens(report.nodes) == [("draft", 2, 3), (None, 1, 4)]
    assert tokens(report.roles) == [("producer", 1, 1), ("evaluator", 1, 2), (None, 1, 4)]
    assert tokens([report.calls]) == [(None, 3, 7)]


def test_loads_are_counted_in_calls_and_outside_of_them(tmp_path):
    report = report_on(
        tmp_path,
        at(1, 0, 500, "chat", model="big"),
        at(2, 0, 200, "load", parent=1, model="big"),
        at(3, 500, 900, "chat", model="small"),
        at(4, 500, 530, "load", parent=3, source="reported"),
        at(5, 600, 650, "load", model="big", status="error"),
    )
    assert [(one.model, one.loads, one.load_ns) for one in report.loads] == [
        ("big", 2, 250 * MS),
        ("small", 1, 30 * MS),
    ]
    assert [group.load_ns for group in report.models] == [200 * MS, 30 * MS]


def test_a_loop_tells_its_scores_and_why_it_stopped(tmp_path):
    # A reason that only older journals have.
    said = {"composites": [8.9, 9], "best_round": 2, "passed": True, "stop_reason": "cycling"}
    (loop,) = report_on(
        tmp_path,
        node(1, 0, 900, "text"),
        at(2, 100, 800, "wiggum", parent=1, rubric="brief", **said),
    ).loops
    assert (loop.node, loop.rubric, loop.composites) == ("text", "brief", (8.9, 9.0))
    assert (loop.best_round, loop.passed, loop.stop_reason) == (2, True, "cycling")


def test_a_loop_that_was_cut_off_tells_the_scores_it_had_come_to(tmp_path):
    (loop,) = report_on(
        tmp_path,
        at(1, 0, 900, "wiggum", rubric="brief", status="unfinished"),
        at(2, 0, 100, "evaluate", parent=1, composite=7.5),
        at(3, 200, 300, "evaluate", parent=1, composite=8),
        at(4, 400, 900, "evaluate", parent=1, status="unfinished"),
        at(5, 400, 500, "evaluate", composite=1.0),
        end_ms=None,
    ).loops
    assert (loop.composites, loop.status) == ((7.5, 8.0), "unfinished")
    assert (loop.node, loop.best_round, loop.passed, loop.stop_reason) == (None, None, None, None)


def test_what_happened_to_calls_and_models_is_counted(tmp_path):
    report = report_on(
        tmp_path,
        *[instant("retry")] * 3,
        *[instant("fallback", model="a", to="b")] * 2,
        instant("evict", model="a", reason="room for b"),
        # Neither models unloaded at the end of the run nor the vectors of older journals count.
        instant("evict", model="b", reason="end of run"),
        instant("evict", guest="vectors", reason="room for b"),
    )
    assert (report.retries, report.fallbacks) == (3, 2)
    assert report.evictions == 1


def test_what_models_are_asked_beside_chats_is_named_and_keeps_them_from_being_idle(tmp_path):
    report = report_on(
        tmp_path,
        at(1, 0, 500, "chat", model="small"),
        at(2, 0, 200, "schema probe", parent=1, model="small", input_tokens=40),
        at(3, 500, 700, "embed", model="small", input_tokens=9),
        at(4, 700, 800, "embed", model="small", status="error"),
        at(6, 800, 900, "rerank", model="small", input_tokens=7),
        # A limit refused it, so it was not made.
        at(5, 800, 800, "embed", model="small", status="error")._replace(
            error="RunLimitReached: max_calls = 3 is reached"
        ),
    )
    assert [
        (one.name, one.model, one.requests, one.failed, one.total_ns, one.input_tokens)
        for one in report.asides
    ] == [
        ("schema probe", "small", 1, 0, 200 * MS, 40),
        ("embed", "small", 2, 1, 300 * MS, 9),
        ("rerank", "small", 1, 0, 100 * MS, 7),
    ]
    assert (report.occupancy.idle_ns, report.occupancy.most_at_once) == (100 * MS, 1)
    assert report.calls.calls == 1


def test_replies_from_the_cache_are_no_work_and_cost_nothing(tmp_path):
    report = report_on(
        tmp_path,
        endpoint("small", **PER_TOKEN),
        at(1, 0, 500, "chat", model="small", input_tokens=9, output_tokens=2),
        at(2, 600, 600, "chat", model="small", from_cache=True),
        at(3, 700, 700, "chat", model="big", from_cache=True),
    )
    (cost,) = report.cost.models
    assert (cost.model, cost.unpriced_calls, report.cost.unpriced_models) == ("small", 0, ())
    assert report.goodput.unknown == 1
    assert report.occupancy.idle_gaps == 1
    assert (report.calls.calls, report.calls.from_cache) == (3, 2)


@pytest.mark.parametrize("end_ms", [pytest.param(None, id="killed"), pytest.param(7, id="ended")])
def test_a_run_without_calls_has_a_report(tmp_path, end_ms):
    report = report_on(tmp_path, end_ms=end_ms)
    assert (report.calls.calls, report.occupancy.most_at_once) == (0, 0)
    assert (report.models, report.nodes, report.roles, report.loads) == ((), (), (), ())
    assert (report.critical_path.steps, report.cost.usd) == ((), None)
    assert report.critical_path.after_ns == report.duration_ns == report.occupancy.idle_ns
    assert report.status == ("unfinished" if end_ms is None else "ok")


def record_run(trace, clock):
    """A plan of 0.5 s, then a text of 2 s whose model loads for 1 s; yields while it decodes."""
    trace.instant("endpoint", model="small", backend="embedded", usd_per_hour=3.6)
    clock.advance(ms=100)
    with trace.span("run", label="essay"):
        with trace.span("node", node="plan", label="plan") as plan:
            clock.advance(ms=500)
        with trace.span("node", node="text", label="text") as text:
            trace.flow("output", source=plan.id, target=text.id)
            with trace.span("chat", model="small", role="producer") as chat:
                with trace.span("load", model="small"):
                    clock.advance(ms=1000)
                sent_ns = clock()
                clock.advance(ms=400)
                yield
                clock.advance(ms=600)
                trace.completed_span("prefill", start_ns=sent_ns, end_ns=sent_ns + 400 * MS)
                trace.completed_span("decode", start_ns=sent_ns + 400 * MS, end_ns=clock())
                chat.set(ttft_ns=400 * MS, itl_mean_ns=20 * MS, input_tokens=9, output_tokens=31)


def test_a_recorded_run_is_reported_as_it_went_and_a_killed_one_as_far_as_it_came(tmp_path):
    clock = ManualClock(START_NS)
    options = TraceOptions(durability="sync")
    with RunTrace(tmp_path, name="essay", clock=clock, options=options) as trace:
        for _ in record_run(trace, clock):
            # What a kill would leave at this moment: sent, and no token yet.
            trace.instant("waiting")
            killed = report_of(Journal(trace.journal_path))
        clock.advance(ms=400)
    report = report_of(trace.journal())

    assert (report.run_id, report.status, report.unfinished) == (trace.run_id, "ok", ())
    assert report.duration_ns == 3 * S
    (model,) = report.models
    assert (model.ttft.p50_ns, model.duration.p50_ns) == (400 * MS, 2 * S)
    assert (model.load_ns, model.prefill_ns, model.decode_ns) == (S, 400 * MS, 600 * MS)
    assert model.decode_tokens_per_s == 50.0
    assert report.goodput.tokens_per_s == pytest.approx(31 / 3)
    assert asdict(report.occupancy.longest_gap) == {"start_ns": 0, "end_ns": 600 * MS}
    assert [(step.node, step.start_ns, step.run_share) for step in report.critical_path.steps] == [
        ("plan", 100 * MS, 0.5 / 3),
        ("text", 600 * MS, 2 / 3),
    ]
    assert report.cost.usd == pytest.approx(0.003)

    assert (killed.status, killed.error, killed.duration_ns) == ("unfinished", None, 2 * S)
    assert (killed.calls.calls, killed.calls.unfinished, killed.calls.failed) == (1, 1, 0)
    assert killed.calls.ttft is None
    assert [(one.title, one.start_ns, one.open_ns) for one in killed.unfinished] == [
        ("essay", 100 * MS, 1900 * MS),
        ("text", 600 * MS, 1400 * MS),
        ("chat", 600 * MS, 1400 * MS),
    ]
