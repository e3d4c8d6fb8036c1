from dataclasses import asdict, replace
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_runs import STARTED, span, steady, write_journal

from harness.trace import Flow, Instant, Journal, ManualClock, RunEnded, RunTrace, TraceOptions
from harness.trace.calls import Call, Interval
from harness.trace.report import report_of
from harness.trace.report.call_group import call_group
from harness.trace.report.cost import cost_of
from harness.trace.report.critical_path import critical_path
from harness.trace.report.goodput import Targets, goodput_of
from harness.trace.report.occupancy import occupancy_of
from harness.trace.report.percentiles import percentiles_of

MS = 1_000_000
S = 1_000_000_000
START_NS = 5 * S
"""What the clock shows when a made-up run begins: a report must not take it for zero."""


def call(start_ms=0, end_ms=1000, *, status="ok", model="small", phases=None, **attributes):
    """A call whose phases last as many milliseconds as are given."""
    return Call(
        id=1,
        start_ns=start_ms * MS,
        end_ns=end_ms * MS,
        model=model,
        role=None,
        node=None,
        status=status,
        error=None,
        attributes=attributes,
        phases={
            name: (Interval(start_ns=0, end_ns=ms * MS),) for name, ms in (phases or {}).items()
        },
    )


def journal_of(directory, *records, end_ms=None):
    """A journal with these records; without an end, that of a run that was killed."""
    ended = [] if end_ms is None else [RunEnded(START_NS + end_ms * MS, "ok")]
    started = STARTED._replace(time_ns=START_NS)
    return write_journal(directory / "run.jsonl", *records, *ended, started=started)


def report_on(directory, *records, end_ms=1000):
    return report_of(journal_of(directory, *records, end_ms=end_ms))


def node(number, start_ms, end_ms, name, **more):
    return span(
        number,
        START_NS + start_ms * MS,
        START_NS + end_ms * MS,
        name="node",
        node=name,
        label=name,
        **more,
    )


def within(number, start_ms, end_ms, name, *, parent, **more):
    return span(
        number, START_NS + start_ms * MS, START_NS + end_ms * MS, name=name, parent=parent, **more
    )


# Percentiles


@steady
@given(st.lists(st.integers(0, 50), min_size=1, max_size=150))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(values):
    def naive(percent):
        return min(
            one
            for one in values
            if 100 * sum(other <= one for other in values) >= percent * len(values)
        )

    found = percentiles_of(values)
    assert (found.p50_ns, found.p95_ns, found.p99_ns) == (naive(50), naive(95), naive(99))
    assert found.count == len(values)


@pytest.mark.parametrize(
    ("count", "percentiles"),
    [
        pytest.param(1, (1, 1, 1), id="one value is all of them"),
        pytest.param(4, (2, 4, 4), id="the lower of the two in the middle"),
        pytest.param(20, (10, 19, 20), id="the 19th of 20 is the 95th of 100"),
        pytest.param(100, (50, 95, 99), id="a hundred"),
        pytest.param(200, (100, 190, 198), id="two hundred"),
    ],
)
def test_percentiles_go_by_nearest_rank(count, percentiles):
    found = percentiles_of(reversed(range(1, count + 1)))
    assert (found.p50_ns, found.p95_ns, found.p99_ns) == percentiles


def test_percentiles_are_of_what_is_known():
    assert percentiles_of([None, 7, None]).count == 1
    assert percentiles_of([None]) is None


# Groups of calls


def test_latencies_and_tokens_are_of_the_calls_that_ended_well():
    group = call_group(
        [
            call(0, 100, ttft_ns=10, itl_mean_ns=4, itl_p95_ns=6, input_tokens=5, output_tokens=2),
            call(0, 300, ttft_ns=30, itl_mean_ns=2, itl_p95_ns=9, input_tokens=7, output_tokens=1),
            call(0, 900, status="error", ttft_ns=99, input_tokens=99, output_tokens=99),
            call(0, 800, status="cancelled"),
            call(0, 700, status="unfinished"),
        ]
    )
    assert (group.calls, group.failed, group.cancelled, group.unfinished) == (5, 1, 1, 1)
    assert (group.ttft.p50_ns, group.ttft.p95_ns, group.ttft.count) == (10, 30, 2)
    assert (group.itl_mean.p50_ns, group.itl_mean.p95_ns) == (2, 4)
    assert (group.itl_p95.p50_ns, group.itl_p95.p95_ns) == (6, 9)
    assert (group.duration.p50_ns, group.duration.p99_ns) == (100 * MS, 300 * MS)
    assert (group.input_tokens, group.output_tokens) == (12, 3)
    assert group.total_ns == 2_800 * MS


def test_where_the_time_went_is_told_of_all_attempts():
    group = call_group(
        [
            call(phases={"queue": 1, "load": 20, "prefill": 300, "decode": 4000}),
            call(phases={"queue": 5, "load": 60}, status="error"),
            call(phases={"queue": 7}, status="unfinished"),
        ]
    )
    times = (group.queue_ns, group.load_ns, group.prefill_ns, group.decode_ns)
    assert times == (13 * MS, 80 * MS, 300 * MS, 4000 * MS)


def test_the_decode_rate_leaves_loading_queueing_prefill_and_the_first_token_out():
    group = call_group(
        [
            call(output_tokens=41, phases={"load": 9_000, "queue": 500, "decode": 500}),
            call(output_tokens=11, phases={"prefill": 700, "decode": 125}),
            call(output_tokens=1_000),  # in one piece: nobody knows how fast
        ]
    )
    assert group.decode_tokens_per_s == 50 / 0.625


def test_without_a_decode_phase_there_is_no_decode_rate():
    assert call_group([call(output_tokens=5)]).decode_tokens_per_s is None


@pytest.mark.parametrize(
    ("cached", "tokens", "share"),
    [
        pytest.param([None, None], None, None, id="no server said"),
        pytest.param([0, 0], 0, 0.0, id="nothing was cached"),
        pytest.param([None, 30], 30, 0.3, id="a share of the prompts whose server said"),
        pytest.param([10, 30], 40, 0.2, id="all said"),
    ],
)
def test_that_a_server_does_not_say_what_was_cached_is_not_that_nothing_was(cached, tokens, share):
    group = call_group([call(input_tokens=100, cached_tokens=count) for count in cached])
    assert (group.cached_tokens, group.cached_share) == (tokens, share)


# Goodput


def test_goodput_is_the_tokens_of_the_calls_that_met_both_targets_over_the_time_of_the_run():
    decoded = {"decode": 100}
    goodput = goodput_of(
        [
            call(ttft_ns=500 * MS, itl_mean_ns=50 * MS, output_tokens=30, phases=decoded),
            call(ttft_ns=501 * MS, itl_mean_ns=10 * MS, output_tokens=20, phases=decoded),
            call(ttft_ns=100 * MS, itl_mean_ns=51 * MS, output_tokens=40, phases=decoded),
            call(ttft_ns=100 * MS, output_tokens=10),  # in one piece
        ],
        targets=Targets(),
        run_ns=2 * S,
    )
    assert (goodput.met, goodput.missed, goodput.unknown) == (2, 2, 0)
    assert goodput.tokens_per_s == 20.0
    assert goodput.throughput_tokens_per_s == 50.0
    assert goodput.efficiency == 0.4


def test_a_call_of_unknown_latency_counts_as_neither_met_nor_missed():
    goodput = goodput_of(
        [
            call(ttft_ns=1, itl_mean_ns=1, output_tokens=30),
            call(ttft_ns=S, itl_mean_ns=1, output_tokens=10),
            call(output_tokens=60),
            call(ttft_ns=1, output_tokens=100, phases={"decode": 9}),  # how far apart, none said
            call(ttft_ns=1, status="error"),
        ],
        targets=Targets(),
        run_ns=2 * S,
    )
    assert (goodput.met, goodput.missed, goodput.unknown) == (1, 1, 3)
    assert goodput.tokens_per_s == 15.0
    assert goodput.throughput_tokens_per_s == 100.0
    assert goodput.efficiency == 0.75


@pytest.mark.parametrize(
    ("calls", "run_ns", "figures"),
    [
        pytest.param([], S, (0.0, None, None), id="no call"),
        pytest.param([call(output_tokens=6)], 2 * S, (3.0, None, None), id="all unknown"),
        pytest.param([call(ttft_ns=S, output_tokens=6)], 2 * S, (3.0, 0.0, 0.0), id="all too slow"),
        pytest.param([call(ttft_ns=1, output_tokens=6)], 0, (None, None, 1.0), id="no time"),
    ],
)
def test_goodput_is_zero_only_if_it_is_known_to_be(calls, run_ns, figures):
    found = goodput_of(calls, targets=Targets(), run_ns=run_ns)
    assert (found.throughput_tokens_per_s, found.tokens_per_s, found.efficiency) == figures


# Idle time


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


@steady
@given(busy_runs())
def test_idle_time_is_every_nanosecond_in_which_no_call_was_under_way(busy_run):
    calls, run = busy_run
    is_idle = [
        not any(one.start_ns <= now < one.end_ns for one in calls)
        for now in range(run.start_ns, run.end_ns)
    ]
    # A call that took no time parts one gap into two.
    instants = {one.start_ns - run.start_ns for one in calls if one.duration_ns == 0}
    gaps = []
    for idle, stretch in groupby(enumerate(is_idle), key=lambda pair: pair[1]):
        if idle:
            for now, _ in stretch:
                if gaps and gaps[-1][1] == now and now not in instants:
                    gaps[-1][1] = now + 1
                else:
                    gaps.append([now, now + 1])

    found = occupancy_of(calls, run=run)

    assert found.idle_ns == sum(is_idle)
    assert found.idle_gaps == len(gaps)
    assert found.idle_share == (sum(is_idle) / len(is_idle) if is_idle else None)
    if gaps:
        longest = max(gaps, key=lambda gap: gap[1] - gap[0])
        assert [found.longest_gap.start_ns, found.longest_gap.end_ns] == longest
    else:
        assert found.longest_gap is None


@steady
@given(busy_runs())
def test_the_most_calls_at_once_are_those_of_the_busiest_nanosecond(busy_run):
    calls, run = busy_run
    busiest = max(
        sum(one.start_ns <= now < max(one.end_ns, one.start_ns + 1) for one in calls)
        for now in range(run.start_ns, run.end_ns + 1)
    )
    assert occupancy_of(calls, run=run).most_at_once == busiest


# The critical path


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


@steady
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

    path = critical_path(nodes, flows, run=run)

    assert [step.node for step in path.steps] == [f"n{number}" for number in best]
    assert path.after_ns == after_ns
    waits_and_steps = sum(step.wait_ns + step.duration_ns for step in path.steps)
    assert waits_and_steps + path.after_ns == run.duration_ns
    for step, number in zip(path.steps, best, strict=True):
        assert step.start_ns == by_number[number].start_ns - 90
        assert step.run_share == by_number[number].duration_ns / run.duration_ns


def test_only_outputs_of_nodes_make_a_path():
    nodes = [span(1, 0, 5, name="node"), span(3, 5, 9, name="node")]
    flows = [Flow("call", 1, 3), Flow("output", 2, 3)]
    path = critical_path(nodes, flows, run=Interval(start_ns=0, end_ns=10))
    assert [step.duration_ns for step in path.steps] == [4]


def test_flows_that_form_a_circle_do_not_trap_the_search():
    nodes = [span(1, 0, 5, name="node", label="a"), span(2, 0, 5, name="node", label="b")]
    flows = [Flow("output", 1, 2), Flow("output", 2, 1), Flow("output", 2, 2)]
    path = critical_path(nodes, flows, run=Interval(start_ns=0, end_ns=5))
    assert [step.node for step in path.steps] in (["a"], ["a", "b"])


def test_of_nodes_cut_off_together_the_one_that_ran_longest_ends_the_path(tmp_path):
    report = report_on(
        tmp_path,
        node(1, 0, 100, "plan"),
        node(2, 150, 900, "write", status="unfinished"),
        node(3, 160, 900, "draw", status="unfinished"),
        Flow("output", 1, 2),
        Flow("output", 1, 3),
        end_ms=None,
    )
    assert [(step.node, step.status) for step in report.critical_path.steps] == [
        ("plan", "ok"),
        ("write", "unfinished"),
    ]
    assert [step.wait_ns for step in report.critical_path.steps] == [0, 50 * MS]


# Cost


def endpoint(model, **attributes):
    return Instant(None, "endpoint", START_NS, {"model": model, **attributes})


@pytest.mark.parametrize(
    ("tokens", "usd_per_million"),
    [pytest.param(300, 7.80, id="300 tokens/s"), pytest.param(1000, 2.34, id="1,000 tokens/s")],
)
def test_a_machine_by_the_hour_costs_what_the_hardware_notes_say(tokens, usd_per_million):
    cost = cost_of([call(output_tokens=tokens)], [endpoint("small", usd_per_hour=8.42)], run_ns=S)
    assert cost.usd_per_million_output_tokens == pytest.approx(usd_per_million, abs=0.005)
    assert cost.models[0].usd_per_million_output_tokens == cost.usd_per_million_output_tokens
    assert cost.usd == pytest.approx(8.42 / 3600)
    assert cost.models[0].basis == ("hours",)


PER_TOKEN = {"usd_per_million_input_tokens": 3.0, "usd_per_million_output_tokens": 15.0}


@pytest.mark.parametrize(
    ("prices", "calls", "basis", "usd", "unpriced"),
    [
        pytest.param(
            PER_TOKEN,
            [call(input_tokens=1000, output_tokens=100)] * 2,
            ("tokens",),
            2 * (0.003 + 0.0015),
            0,
            id="by the token",
        ),
        pytest.param(
            PER_TOKEN,
            [call(input_tokens=1000, output_tokens=100, cost_usd=9.0)],
            ("tokens",),
            0.0045,
            0,
            id="the settings before the list",
        ),
        pytest.param(
            {},
            [call(cost_usd=0.25), call(cost_usd=0.5)],
            ("price list",),
            0.75,
            0,
            id="by the list",
        ),
        pytest.param(
            {}, [call(cost_usd=0.25), call()], ("price list",), 0.25, 1, id="one is not on the list"
        ),
        pytest.param(
            PER_TOKEN,
            [
                call(input_tokens=1000, output_tokens=100),
                call(status="error", input_tokens=1000, output_tokens=100),
            ],
            ("tokens",),
            0.0045,
            1,
            id="what a failed call cost is unknown",
        ),
        pytest.param(
            {"usd_per_hour": 36}, [call(status="error")], ("hours",), 0.02, 0, id="hours alone"
        ),
        pytest.param(
            {"usd_per_hour": 36} | PER_TOKEN,
            [call(input_tokens=1000, output_tokens=100)],
            ("tokens", "hours"),
            0.0245,
            0,
            id="hours and tokens",
        ),
        pytest.param({}, [call(output_tokens=5)], (), None, 1, id="no price"),
        pytest.param(
            {"usd_per_million_output_tokens": 15.0},
            [call(input_tokens=1000, output_tokens=100)],
            (),
            None,
            1,
            id="one price of the two",
        ),
        pytest.param(PER_TOKEN, [call(status="error")], (), None, 1, id="no call that is known"),
        pytest.param({}, [call(cost_usd=0.0)], ("price list",), 0.0, 0, id="free by the list"),
    ],
)
def test_a_models_cost_is_what_its_prices_give(prices, calls, basis, usd, unpriced):
    cost = cost_of(calls, [endpoint("small", **prices)], run_ns=2 * S)
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
        [endpoint("judge"), endpoint("rented", usd_per_hour=3600)],
        run_ns=S,
    )
    assert [one.model for one in cost.models] == ["writer", "judge", "rented"]
    assert cost.usd == 2.0
    assert cost.usd_per_million_output_tokens == 4.0
    assert cost.unpriced_models == ("judge",)


def test_a_machine_that_was_not_called_costs_the_run_nothing():
    prices = [endpoint("rented", usd_per_hour=3600), endpoint("spare", usd_per_hour=3600)]

    cost = cost_of([call(model="rented")], prices, run_ns=S)

    assert ([one.model for one in cost.models], cost.usd) == (["rented"], 1.0)


def test_a_run_without_calls_has_no_known_cost():
    assert asdict(cost_of([], [endpoint("small", **PER_TOKEN)], run_ns=S)) == {
        "models": (),
        "usd": None,
        "usd_per_million_output_tokens": None,
        "unpriced_models": (),
    }


# The whole report


def test_calls_are_grouped_by_model_node_and_role_in_the_order_of_their_first(tmp_path):
    report = report_on(
        tmp_path,
        node(1, 0, 300, "draft"),
        within(2, 0, 100, "chat", parent=1, model="writer", role="producer", output_tokens=1),
        within(3, 100, 200, "chat", parent=1, model="judge", role="evaluator", output_tokens=2),
        within(4, 300, 400, "chat", parent=None, model="writer", output_tokens=4),
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
        within(1, 0, 500, "chat", parent=None, model="big"),
        within(2, 0, 200, "load", parent=1, model="big"),
        within(3, 500, 900, "chat", parent=None, model="small"),
        within(4, 500, 530, "load", parent=3, source="reported"),
        within(5, 600, 650, "load", parent=None, model="big", status="error"),
    )
    assert [(one.model, one.loads, one.load_ns) for one in report.loads] == [
        ("big", 2, 250 * MS),
        ("small", 1, 30 * MS),
    ]
    assert report.load_ns == 280 * MS
    assert [group.load_ns for group in report.models] == [200 * MS, 30 * MS]


def test_a_loop_tells_its_scores_and_why_it_stopped(tmp_path):
    (loop,) = report_on(
        tmp_path,
        node(1, 0, 900, "text"),
        within(
            2,
            100,
            800,
            "wiggum",
            parent=1,
            rubric="brief",
            composites=[8.9, 9],
            best_round=2,
            passed=True,
            stop_reason="passed",
        ),
    ).loops
    assert (loop.node, loop.rubric, loop.composites) == ("text", "brief", (8.9, 9.0))
    assert (loop.best_round, loop.passed, loop.stop_reason) == (2, True, "passed")
    assert (loop.status, loop.duration_ns) == ("ok", 700 * MS)


@pytest.mark.parametrize("reason", ["cycling", "evaluator_error", "producer_error"])
def test_the_reasons_of_older_journals_are_still_told(tmp_path, reason):
    said = within(1, 0, 900, "wiggum", parent=None, rubric="brief", stop_reason=reason)
    assert report_on(tmp_path, said).loops[0].stop_reason == reason


def test_a_loop_that_was_cut_off_tells_the_scores_it_had_come_to(tmp_path):
    (loop,) = report_on(
        tmp_path,
        within(1, 0, 900, "wiggum", parent=None, rubric="brief", status="unfinished"),
        within(2, 0, 100, "evaluate", parent=1, composite=7.5),
        within(3, 200, 300, "evaluate", parent=1, composite=8),
        within(4, 400, 900, "evaluate", parent=1, status="unfinished"),
        within(5, 400, 500, "evaluate", parent=None, composite=1.0),
        end_ms=None,
    ).loops
    assert loop.composites == (7.5, 8.0)
    assert (loop.node, loop.best_round, loop.passed, loop.stop_reason) == (None, None, None, None)
    assert loop.status == "unfinished"


def test_neither_models_unloaded_at_the_end_of_the_run_nor_guests_count_as_evicted(tmp_path):
    report = report_on(
        tmp_path,
        Instant(None, "retry", START_NS, {"attempt": 1}),
        Instant(None, "retry", START_NS, {"attempt": 2}),
        Instant(None, "evict", START_NS, {"model": "a", "reason": "room for b"}),
        Instant(None, "evict", START_NS, {"model": "b", "reason": "end of run"}),
        Instant(None, "evict", START_NS, {"guest": "vectors", "reason": "room for b"}),
    )
    assert (report.retries, report.evictions) == (2, 1)


def test_fallbacks_and_openings_of_circuits_are_counted_beside_retries(tmp_path):
    report = report_on(
        tmp_path,
        Instant(None, "fallback", START_NS, {"model": "a", "to": "b"}),
        Instant(None, "fallback", START_NS, {"model": "a", "to": "b"}),
        Instant(None, "circuit opened", START_NS, {"model": "a"}),
        Instant(None, "circuit closed", START_NS, {"model": "a"}),
    )
    assert (report.retries, report.fallbacks, report.circuit_openings) == (0, 2, 1)


def test_what_models_are_asked_beside_chats_is_named_and_keeps_them_from_being_idle(tmp_path):
    report = report_on(
        tmp_path,
        within(1, 0, 500, "chat", parent=None, model="small"),
        within(2, 0, 200, "schema probe", parent=1, model="small", input_tokens=40),
        within(3, 500, 700, "embed", parent=None, model="small", input_tokens=9),
        within(4, 700, 800, "embed", parent=None, model="small", status="error"),
        within(5, 900, 1000, "count tokens", parent=None, model="big", tokens=12),
    )
    assert [
        (one.name, one.model, one.requests, one.failed, one.total_ns, one.input_tokens)
        for one in report.asides
    ] == [
        ("schema probe", "small", 1, 0, 200 * MS, 40),
        ("embed", "small", 2, 1, 300 * MS, 9),
        ("count tokens", "big", 1, 0, 100 * MS, None),
    ]
    assert report.occupancy.idle_ns == 100 * MS
    assert report.occupancy.most_at_once == 1
    assert report.calls.calls == 1


def test_replies_from_the_cache_are_no_work_and_cost_nothing(tmp_path):
    report = report_on(
        tmp_path,
        endpoint("small", **PER_TOKEN),
        within(1, 0, 500, "chat", parent=None, model="small", input_tokens=9, output_tokens=2),
        within(2, 600, 600, "chat", parent=None, model="small", from_cache=True),
        within(3, 700, 700, "chat", parent=None, model="big", from_cache=True),
    )
    (cost,) = report.cost.models
    assert (cost.model, cost.unpriced_calls, report.cost.unpriced_models) == ("small", 0, ())
    assert report.goodput.unknown == 1
    assert report.occupancy.idle_gaps == 1
    assert (report.calls.calls, report.calls.from_cache) == (3, 2)


def test_a_call_that_was_not_even_sent_cannot_have_cost_anything():
    failed, refused = (
        replace(call(status="error"), error=error)
        for error in ("ServerError: small: HTTP 500", "CircuitOpen: small: not asked")
    )

    (cost,) = cost_of([failed, refused], [endpoint("small", **PER_TOKEN)], run_ns=S).models

    assert cost.unpriced_calls == 1


def test_probes_and_embedding_are_paid_for_as_calls_are(tmp_path):
    report = report_on(
        tmp_path,
        endpoint("small", usd_per_million_input_tokens=1.0, usd_per_million_output_tokens=10.0),
        within(1, 0, 9, "chat", parent=None, model="small", input_tokens=100, output_tokens=10),
        within(2, 0, 3, "schema probe", parent=1, model="small", input_tokens=30, output_tokens=5),
        within(3, 9, 12, "embed", parent=None, model="small", input_tokens=2_000),
        within(4, 12, 13, "count tokens", parent=None, model="small", tokens=12),
    )
    (cost,) = report.cost.models
    assert cost.usd == pytest.approx(0.002280)
    assert (cost.basis, cost.unpriced_calls) == (("tokens",), 0)


def test_targets_can_be_chosen(tmp_path):
    journal = journal_of(
        tmp_path, within(1, 0, 500, "chat", parent=None, ttft_ns=600 * MS), end_ms=500
    )
    assert report_of(journal).goodput.met == 0
    assert report_of(journal, targets=Targets(ttft_ns=600 * MS)).goodput.met == 1


@pytest.mark.parametrize("end_ms", [pytest.param(None, id="killed"), pytest.param(7, id="ended")])
def test_a_run_without_calls_has_a_report(tmp_path, end_ms):
    report = report_on(tmp_path, end_ms=end_ms)
    assert report.calls.calls == 0
    assert (report.models, report.nodes, report.roles, report.loads) == ((), (), (), ())
    assert report.critical_path.steps == ()
    assert report.critical_path.after_ns == report.duration_ns == report.occupancy.idle_ns
    assert report.occupancy.most_at_once == 0
    assert report.cost.usd is None
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


def test_a_recorded_run_is_reported_as_it_went(tmp_path):
    clock = ManualClock(START_NS)
    with RunTrace(tmp_path, name="essay", clock=clock) as trace:
        list(record_run(trace, clock))
        clock.advance(ms=400)

    report = report_of(trace.journal())

    assert (report.run_id, report.pipeline) == (trace.run_id, "essay")
    assert (report.status, report.error, report.unfinished) == ("ok", None, ())
    assert report.duration_ns == 3 * S
    (model,) = report.models
    assert (model.ttft.p50_ns, model.duration.p50_ns) == (400 * MS, 2 * S)
    assert (model.load_ns, model.prefill_ns, model.decode_ns) == (S, 400 * MS, 600 * MS)
    assert model.decode_tokens_per_s == 50.0
    assert report.goodput.met == 1
    assert report.goodput.tokens_per_s == pytest.approx(31 / 3)
    assert report.goodput.efficiency == 1.0
    assert (report.occupancy.idle_ns, report.occupancy.idle_gaps) == (S, 2)
    assert asdict(report.occupancy.longest_gap) == {"start_ns": 0, "end_ns": 600 * MS}
    assert [(step.node, step.start_ns, step.run_share) for step in report.critical_path.steps] == [
        ("plan", 100 * MS, 0.5 / 3),
        ("text", 600 * MS, 2 / 3),
    ]
    assert report.critical_path.after_ns == 400 * MS
    assert report.cost.usd == pytest.approx(0.003)


def test_a_killed_run_is_reported_as_far_as_it_came(tmp_path):
    clock = ManualClock(START_NS)
    with RunTrace(
        tmp_path, name="essay", clock=clock, options=TraceOptions(durability="sync")
    ) as trace:
        for _ in record_run(trace, clock):
            # What a kill would leave at this moment: sent, and no token yet.
            trace.instant("waiting")
            report = report_of(Journal(trace.journal_path))

    assert (report.status, report.error) == ("unfinished", None)
    assert report.duration_ns == 2 * S
    assert (report.calls.calls, report.calls.unfinished, report.calls.failed) == (1, 1, 0)
    assert report.calls.ttft is None
    assert report.calls.total_ns == 1400 * MS
    assert (report.goodput.met, report.goodput.missed, report.goodput.unknown) == (0, 0, 1)
    assert [step.node for step in report.critical_path.steps] == ["plan", "text"]
    assert [(one.title, one.start_ns, one.open_ns) for one in report.unfinished] == [
        ("essay", 100 * MS, 1900 * MS),
        ("text", 600 * MS, 1400 * MS),
        ("chat", 600 * MS, 1400 * MS),
    ]


def test_a_run_that_failed_says_of_what(tmp_path):
    trace = RunTrace(tmp_path, name="essay")
    with pytest.raises(ValueError, match="no"), trace, trace.span("chat", model="small"):
        raise ValueError("no")
    report = report_of(Journal(trace.journal_path))
    assert (report.status, report.error) == ("error", "ValueError: no")
    assert report.models[0].failed == 1
