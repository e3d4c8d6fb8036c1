"""The figures of calls, from the spans that model calls leave."""

import pytest
from sample_runs import span

from harness.trace import call_group, calls_of, group_calls

MS = 1_000_000


def chat(number, *, status="ok", start_ms=0, end_ms=1000, model="small", **attributes):
    return span(
        number, start_ms * MS, end_ms * MS, name="chat", status=status, model=model, **attributes
    )


def phase(number, call, name, *, ms):
    return span(number, 0, ms * MS, name=name, parent=call)


def by_model(*spans):
    return group_calls(calls_of(spans), by=lambda call: call.model)


def test_a_run_without_calls_has_no_models():
    assert by_model(span(1, 0, 9, name="run"), phase(2, 1, "decode", ms=1)) == ()


def test_the_figures_of_a_model_are_those_of_its_calls():
    (group,) = by_model(
        span(1, 0, 9_000 * MS, name="run"),
        chat(2, input_tokens=100, cached_tokens=0, output_tokens=41, ttft_ns=200 * MS),
        phase(3, 2, "decode", ms=500),
        chat(4, input_tokens=120, cached_tokens=96, output_tokens=11, ttft_ns=50 * MS),
        phase(5, 4, "prefill", ms=50),
        phase(6, 4, "decode", ms=125),
        chat(7, input_tokens=30, cached_tokens=None, output_tokens=1, ttft_ns=61 * MS),
    )

    assert (group.name, group.calls, group.failed) == ("small", 3, 0)
    assert (group.input_tokens, group.cached_tokens, group.output_tokens) == (250, 96, 53)
    # 40 and 10 tokens after the first, in 0.5 s and 0.125 s.
    assert group.decode_tokens_per_s == 80.0
    assert (group.total_ns, group.prefill_ns, group.decode_ns) == (3000 * MS, 50 * MS, 625 * MS)


def test_calls_that_did_not_end_well_are_counted_and_not_measured():
    (group,) = by_model(
        chat(1, status="error"),
        chat(2, status="error", input_tokens=5, output_tokens=5, ttft_ns=1),
        phase(3, 2, "decode", ms=1),
        chat(4, status="cancelled"),
        chat(5, status="unfinished"),
    )

    assert (group.calls, group.failed, group.cancelled, group.unfinished) == (4, 2, 1, 1)
    assert (group.input_tokens, group.output_tokens, group.cached_tokens) == (0, 0, None)
    assert (group.ttft, group.duration, group.decode_tokens_per_s) == (None, None, None)


@pytest.mark.parametrize(
    ("output_tokens", "decode_ms", "tokens_per_s"),
    [
        pytest.param(101, 1000, 100.0, id="the first token is not of the decode"),
        pytest.param(1, 1000, 0.0, id="only the first token"),
        pytest.param(0, 1000, 0.0, id="no token"),
        pytest.param(5, 0, None, id="no time"),
    ],
)
def test_the_decode_rate_is_of_the_tokens_after_the_first(output_tokens, decode_ms, tokens_per_s):
    calls = calls_of([chat(1, output_tokens=output_tokens), phase(2, 1, "decode", ms=decode_ms)])

    assert call_group(calls).decode_tokens_per_s == tokens_per_s


def test_models_stand_in_the_order_of_their_first_calls():
    groups = by_model(
        chat(1, model="writer", input_tokens=1),
        chat(2, model="judge", input_tokens=2),
        chat(3, model="writer", input_tokens=3),
    )

    assert [(one.name, one.calls, one.input_tokens) for one in groups] == [
        ("writer", 2, 4),
        ("judge", 1, 2),
    ]


def test_a_call_belongs_to_the_node_around_it():
    calls = calls_of(
        [
            span(1, 0, 9, name="run"),
            span(2, 0, 9, name="node", parent=1, node="plan"),
            span(3, 0, 9, name="draft", parent=2),
            span(4, 0, 9, name="chat", parent=3, model="small", role="producer"),
            span(5, 0, 9, name="chat", parent=1, model="small"),
        ]
    )

    assert [(call.node, call.role) for call in calls] == [("plan", "producer"), (None, None)]


def test_a_reply_from_the_cache_is_counted_apart_and_measured_by_nothing():
    (group,) = by_model(
        chat(1, input_tokens=100, output_tokens=41, ttft_ns=200 * MS),
        chat(2, end_ms=1, from_cache=True, schema="ignored", dropped=["seed"]),
        chat(3, end_ms=1, from_cache=True),
    )

    assert (group.calls, group.from_cache, group.uncounted) == (3, 2, 0)
    assert (group.duration.count, group.duration.p50_ns) == (1, 1000 * MS)
    assert (group.ignored_schemas, group.dropped) == (0, ())


def test_calls_whose_server_counts_no_tokens_are_in_no_figure_of_tokens():
    (group,) = by_model(
        chat(1, output_tokens=41),
        phase(2, 1, "decode", ms=500),
        chat(3),
        phase(4, 3, "decode", ms=9000),
    )

    assert (group.uncounted, group.output_tokens) == (1, 41)
    assert group.decode_tokens_per_s == 80.0


@pytest.mark.parametrize(
    ("told", "figures"),
    [
        pytest.param([{}, {}], (None, None, None), id="no server said"),
        pytest.param(
            [{"draft_tokens": 30, "accepted_tokens": 12}, {}], (30, 12, 0.4), id="one said"
        ),
        pytest.param(
            [{"draft_tokens": 30, "accepted_tokens": 12}] * 2, (60, 24, 0.4), id="all said"
        ),
        pytest.param([{"draft_tokens": 0, "accepted_tokens": 0}], (0, 0, None), id="no draft"),
    ],
)
def test_what_came_of_drafts_is_told_where_a_server_says(told, figures):
    (group,) = by_model(*(chat(n, output_tokens=5, **said) for n, said in enumerate(told, 1)))

    assert (group.draft_tokens, group.accepted_tokens, group.accepted_share) == figures


def test_schemas_that_were_not_enforced_and_fields_that_were_not_sent_are_told():
    (group,) = by_model(
        chat(1, schema="enforced"),
        chat(2, schema="advisory", dropped=["seed"]),
        chat(3, schema="advisory", reasoning_tokens=7),
        chat(4, schema="ignored", dropped=["temperature", "seed"]),
    )

    assert (group.advisory_schemas, group.ignored_schemas) == (2, 1)
    assert group.dropped == ("seed", "temperature")
    assert group.reasoning_tokens == 7


def test_a_wait_for_a_turn_is_told_from_other_queues():
    (call,) = calls_of(
        [
            chat(1),
            span(2, 0, 3, name="queue", parent=1, reason="max_concurrency = 2"),
            span(3, 3, 9, name="queue", parent=1, reason="in use: small"),
            span(4, 9, 12, name="queue", parent=1, source="reported"),
        ]
    )

    assert [turn.duration_ns for turn in call.turns] == [3]
    assert call.phase_ns("queue") == 12
