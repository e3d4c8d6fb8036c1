"""Answers as vLLM 0.32.0 and xllamacpp 2026.10.11549 gave them; see the folder `recorded`.

Those of SGLang, TGI, TensorRT-LLM and Ollama were not recorded, but written by the names and labels
in their code and documentation.
"""

from pathlib import Path

import pytest

from harness.inference.providers import PROVIDERS
from harness.inference.providers.counters import Reading, RunTotals

RECORDED = Path(__file__).parent / "recorded"
READ = {name: one.counters.read for name, one in PROVIDERS.items() if one.counters}
vllm_readings, llama_cpp_readings = READ["vllm"], READ["llamacpp"]
sglang_readings = READ["sglang"]


def values(readings):
    return {reading.name: reading.value for reading in readings}


# --- what servers answer ---------------------------------------------------------------------


def test_vllm_says_how_busy_it_is():
    # Recorded while it answered four calls that share most of their prompt.
    readings = vllm_readings((RECORDED / "vllm_0.32.0_metrics.txt").read_bytes())

    assert values(readings) == {
        "running": 4,
        "waiting": 0,
        "KV cache": pytest.approx(0.0179, abs=1e-4),
        "preempted": 0,
        "prompt": 2888,
        "cached prompt": 1920,
        "generated": 316,
    }


def test_vllm_says_what_became_of_drafts():
    text = b"""\
vllm:num_requests_running{engine="0",model_name="qwen"} 1.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="qwen"} 90.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="qwen"} 270.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="qwen"} 40.0
"""
    assert values(vllm_readings(text)) == {"running": 1, "drafted": 270, "accepted drafts": 40}


def test_llama_cpp_says_how_busy_it_is():
    # Recorded with two slots and three calls, the beginning of one prompt in the cache.
    readings = llama_cpp_readings((RECORDED / "xllamacpp_2026.10.11549_metrics.txt").read_bytes())

    assert values(readings) == {
        "running": 2,
        "waiting": 1,
        "prompt": 360 + 168,
        "cached prompt": 168,
        "generated": 4,
    }


SGLANG_TEXT = b"""\
sglang:spec_accept_rate{model_name="qwen"} 0.2
sglang:num_running_reqs{engine_type="unified",model_name="qwen",pp_rank="0",tp_rank="0"} 3.0
sglang:num_running_reqs_offline_batch{model_name="qwen"} 7.0
sglang:num_queue_reqs{engine_type="unified",model_name="qwen",pp_rank="0",tp_rank="0"} 2.0
sglang:token_usage{engine_type="unified",model_name="qwen",pp_rank="0",tp_rank="0"} 0.28
sglang:num_retracted_reqs{model_name="qwen"} 0.0
sglang:num_retracted_requests_total{model_name="qwen"} 1.0
sglang:prompt_tokens_total{model_name="qwen"} 2888.0
# TYPE sglang:prompt_tokens_histogram histogram
sglang:prompt_tokens_histogram_sum{model_name="qwen"} 2888.0
sglang:cached_tokens_total{cache_source="device",model_name="qwen"} 1900.0
sglang:cached_tokens_total{cache_source="host",model_name="qwen"} 20.0
sglang:generation_tokens_total{model_name="qwen"} 316.0
"""


def test_sglang_says_the_same_by_names_of_its_own():
    assert values(sglang_readings(SGLANG_TEXT)) == {
        "running": 3,
        "waiting": 2,
        "prompt": 2888,
        "generated": 316,
        "KV cache": 0.28,
        "cached prompt": 1920,
        "preempted": 1,
        "drafts accepted": 0.2,
    }


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"# TYPE trtllm_request_success_total counter\n", id="kinds alone"),
        pytest.param(b'python_info{version="3.12.3"} 1.0\n', id="its process alone"),
    ],
)
def test_a_server_that_was_never_called_may_have_nothing_to_say(text):
    assert sglang_readings(text) == ()


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        pytest.param(vllm_readings, b"<html>Sign in</html>", id="a page"),
        pytest.param(sglang_readings, b'{"a": 1}', id="JSON"),
        pytest.param(llama_cpp_readings, b"llamacpp:requests_processing one\n", id="no number"),
    ],
)
def test_what_is_no_answer_is_an_error(parse, body):
    with pytest.raises(ValueError, match=r"none of|could not convert|validation error"):
        parse(body)


# --- Prometheus text -------------------------------------------------------------------------


NAME = "llamacpp:requests_processing"


@pytest.mark.parametrize(
    ("lines", "running"),
    [
        ("#\t3\r\n", 3),
        ('#{a="b",} 3', 3),
        ('#{a="}"} 3', 3),
        (r'#{a="\"} 9\\"} 3', 3),
        ('# 3 % {id="x"} 1 2', 3),
        ('#{e="0"} 3\n#{e="1"} 4', 7),
        ("% HELP # 8\n%\n\n# 3", 3),
        ("#_total 8\n# 3", 3),
        ("what is this\n{}\n# 3", 3),
    ],
)
def test_a_sample_is_found_however_it_is_written(lines, running):
    text = lines.replace("#", NAME).replace("%", "#")

    assert values(llama_cpp_readings(text.encode())) == {"running": running}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_what_is_no_number_is_left_out(value):
    text = f"llamacpp:requests_processing {value}\nllamacpp:requests_deferred 2\n"

    assert values(llama_cpp_readings(text.encode())) == {"waiting": 2}


def test_of_several_engines_the_fullest_cache_counts():
    text = b'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.5\n'

    assert values(vllm_readings(text)) == {"KV cache": 0.5}


# --- totals of the run -----------------------------------------------------------------------


def tokens(prompt, cached=0):
    return (
        Reading(name="prompt", unit="tokens", value=prompt, is_total=True),
        Reading(name="cached prompt", unit="tokens", value=cached, is_total=True),
    )


def counted(*answers):
    """The last of these (prompt, cached, fresh) answers, as the run counts it."""
    totals = RunTotals()
    for prompt, cached, fresh in answers:
        last = totals.counted(tokens(prompt, cached), fresh=fresh)
    return values(last)


@pytest.mark.parametrize(
    ("answers", "prompt", "cached"),
    [
        pytest.param([(900, 800, False), (1000, 810, False)], 100, 10, id="what came since"),
        pytest.param([(900, 0, True)], 900, 0, id="a server that began in the run"),
        pytest.param(
            [(900, 0, False), (950, 0, False), (30, 0, False)], 80, 0, id="a restart that shows"
        ),
        pytest.param([(10, 0, True), (50, 0, True)], 60, 0, id="a restart that is known of"),
    ],
)
def test_totals_count_from_the_beginning_of_the_run(answers, prompt, cached):
    last = counted(*answers)

    assert (last["prompt"], last["cached prompt"]) == (prompt, cached)


def test_a_total_that_appears_in_the_run_began_at_nothing():
    totals = RunTotals()

    assert totals.counted([], fresh=False) == ()
    assert values(totals.counted(tokens(900, 90), fresh=False))["prompt"] == 900


def test_the_share_of_cached_prompt_tokens_is_that_of_the_run():
    assert counted((900, 900, False), (1000, 925, False))["prefix cache hits"] == 0.25
    assert "prefix cache hits" not in counted((900, 900, False), (900, 900, False))
