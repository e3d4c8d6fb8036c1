import pytest
from sample_runs import run_of, span

from harness.trace import ModelSummary, summarise_models

MS = 1_000_000


def chat(number, *, status="ok", start_ms=0, end_ms=1000, **attributes):
    return span(
        number, start_ms * MS, end_ms * MS, name="chat", status=status, model="small", **attributes
    )


def decode(number, call, *, ms):
    return span(number, 0, ms * MS, name="decode", parent=call)


def summary_of(*spans):
    (summary,) = summarise_models(run_of(*spans))
    return summary


def test_a_run_without_calls_has_no_models():
    assert summarise_models(run_of(span(1, 0, 9, name="run"))) == ()


def test_the_figures_of_a_model_are_those_of_its_calls():
    summary = summary_of(
        span(1, 0, 9_000 * MS, name="run"),
        chat(2, input_tokens=100, cached_tokens=0, output_tokens=41, ttft_ns=200 * MS),
        decode(3, 2, ms=500),
        chat(4, input_tokens=120, cached_tokens=96, output_tokens=11, ttft_ns=50 * MS),
        decode(5, 4, ms=125),
        chat(6, input_tokens=30, cached_tokens=None, output_tokens=1, ttft_ns=61 * MS),
    )

    assert summary == ModelSummary(
        model="small",
        calls=3,
        failed=0,
        input_tokens=250,
        cached_tokens=96,
        output_tokens=53,
        ttft_median_ns=61 * MS,
        # 40 and 10 tokens after the first, in 0.5 s and 0.125 s.
        decode_tokens_per_s=80.0,
    )


def test_an_even_number_of_waits_has_its_median_in_the_middle():
    calls = [chat(number, ttft_ns=ns) for number, ns in enumerate((30, 10, 50, 20), start=1)]

    assert summary_of(*calls).ttft_median_ns == 25


def test_calls_that_did_not_end_well_are_counted_and_not_measured():
    summary = summary_of(
        chat(1, status="error"),
        chat(2, status="error", input_tokens=5, output_tokens=5, ttft_ns=1),
        decode(3, 2, ms=1),
        chat(4, status="cancelled"),
        chat(5, status="unfinished"),
    )

    assert summary == ModelSummary(
        model="small",
        calls=4,
        failed=2,
        input_tokens=0,
        cached_tokens=None,
        output_tokens=0,
        ttft_median_ns=None,
        decode_tokens_per_s=None,
    )


@pytest.mark.parametrize(
    ("cached", "in_all"),
    [
        pytest.param([None, None], None, id="no server said"),
        pytest.param([None, 7], 7, id="one server said"),
        pytest.param([0, 0], 0, id="nothing was cached"),
    ],
)
def test_cached_tokens_are_unknown_only_if_no_call_knew_them(cached, in_all):
    calls = [chat(number, cached_tokens=count) for number, count in enumerate(cached, start=1)]

    assert summary_of(*calls).cached_tokens == in_all


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
    summary = summary_of(chat(1, output_tokens=output_tokens), decode(2, 1, ms=decode_ms))

    assert summary.decode_tokens_per_s == tokens_per_s


def test_models_stand_in_the_order_of_their_first_calls():
    calls = [
        span(number, 0, 9, name="chat", model=model, input_tokens=number)
        for number, model in enumerate(["writer", "judge", "writer"], start=1)
    ]

    summaries = summarise_models(run_of(*calls))

    assert [(one.model, one.calls, one.input_tokens) for one in summaries] == [
        ("writer", 2, 4),
        ("judge", 1, 2),
    ]
