"""Answers as vLLM 0.32.0 and xllamacpp 2026.10.11549 gave them; see the folder `recorded`."""

import json
from pathlib import Path

import pytest

from harness.inference.metrics.server_metrics import (
    LLAMA_CPP,
    Reading,
    RunTotals,
    llama_cpp_readings,
    ollama_readings,
    prometheus_readings,
    slot_readings,
    vllm_readings,
)

RECORDED = Path(__file__).parent / "recorded"


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


def test_the_slots_of_llama_cpp_say_how_full_its_context_is():
    # Recorded at the same moment: two slots of 512 tokens.
    [reading] = slot_readings((RECORDED / "xllamacpp_2026.10.11549_slots.json").read_bytes())

    assert reading == Reading(name="KV cache", unit="share", value=(197 + 198) / 1024)


@pytest.mark.parametrize(
    ("slots", "share"),
    [
        pytest.param([], [], id="no slots"),
        pytest.param([{"n_ctx": 512, "is_processing": False}], [0], id="never used"),
        pytest.param(
            [{"n_ctx": 512, "is_processing": False, "n_prompt_tokens": 300}],
            [0],
            id="what a call has left behind",
        ),
        pytest.param(
            [
                {"n_ctx": 512, "is_processing": True, "n_prompt_tokens": 256},
                {"n_ctx": 512, "is_processing": False, "n_prompt_tokens": 300},
            ],
            [0.25],
            id="one of two at work",
        ),
        pytest.param([{"n_ctx": 512, "is_processing": True}], [], id="a build that does not say"),
    ],
)
def test_only_requests_under_way_fill_the_context(slots, share):
    readings = slot_readings(json.dumps(slots).encode())

    assert [reading.value for reading in readings] == share


def test_ollama_says_what_its_models_take():
    # The fields are those of api.ProcessModelResponse in ollama 0.33.
    body = b"""{"models": [
        {"name": "qwen3:8b", "model": "qwen3:8b", "size": 6000000000, "digest": "500a",
         "details": {"family": "qwen3"}, "expires_at": "2026-11-20T09:00:00Z",
         "size_vram": 4000000000, "context_length": 4096},
        {"name": "all-minilm:latest", "model": "all-minilm:latest", "size": 50000000,
         "digest": "1b22", "expires_at": "2026-11-20T09:00:00Z", "size_vram": 0}
    ]}"""

    assert ollama_readings(body) == (
        Reading(name="resident", unit="bytes", value=6_050_000_000),
        Reading(name="resident on GPU", unit="bytes", value=4_000_000_000),
    )
    assert values(ollama_readings(b'{"models":[]}')) == {"resident": 0, "resident on GPU": 0}


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        pytest.param(vllm_readings, b"", id="no text at all"),
        pytest.param(vllm_readings, b"<html>Sign in</html>", id="a page"),
        pytest.param(vllm_readings, b"\xff\xfe\x00", id="not UTF-8"),
        pytest.param(vllm_readings, b"llamacpp:requests_processing 1\n", id="another server's"),
        pytest.param(llama_cpp_readings, b"llamacpp:requests_processing one\n", id="no number"),
        pytest.param(slot_readings, b"[{", id="slots cut short"),
        pytest.param(slot_readings, b'{"error": "no slots"}', id="slots of another shape"),
        pytest.param(slot_readings, b'[{"n_ctx": 0, "is_processing": true}]', id="no context"),
        pytest.param(ollama_readings, b"[]", id="models of another shape"),
    ],
)
def test_what_is_no_answer_is_an_error(parse, body):
    with pytest.raises(ValueError, match=r"none of|could not convert|validation error"):
        parse(body)


# --- Prometheus text -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "running"),
    [
        pytest.param("llamacpp:requests_processing 3", 3, id="bare"),
        pytest.param("llamacpp:requests_processing\t3\r\n", 3, id="a tab, CRLF"),
        pytest.param("llamacpp:requests_processing 1.5e+01", 15, id="exponent"),
        pytest.param("llamacpp:requests_processing{} 3", 3, id="no labels in braces"),
        pytest.param('llamacpp:requests_processing{a="b",} 3', 3, id="a last comma"),
        pytest.param('llamacpp:requests_processing {a="b"}3', 3, id="odd blanks"),
        pytest.param('llamacpp:requests_processing{a="}"} 3', 3, id="a brace in a label"),
        pytest.param(r'llamacpp:requests_processing{a="\"} 9\\"} 3', 3, id="escaped quotes"),
        pytest.param("llamacpp:requests_processing 3 1795163156000", 3, id="timestamp"),
        pytest.param('llamacpp:requests_processing 3 # {id="x"} 1 2', 3, id="exemplar"),
        pytest.param(
            'llamacpp:requests_processing{e="0"} 3\nllamacpp:requests_processing{e="1"} 4',
            7,
            id="two engines",
        ),
        pytest.param(
            "# HELP llamacpp:requests_processing 8\n#\n\nllamacpp:requests_processing 3",
            3,
            id="comments",
        ),
        pytest.param(
            "llamacpp:requests_processing_total 8\nllamacpp:requests_processing 3",
            3,
            id="a name that begins the same",
        ),
        pytest.param("what is this\n{}\nllamacpp:requests_processing 3", 3, id="lines of no kind"),
    ],
)
def test_a_sample_is_found_however_it_is_written(lines, running):
    assert values(prometheus_readings(lines.encode(), LLAMA_CPP)) == {"running": running}


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
        Reading(name="prompt", unit="tokens", value=prompt, total=True),
        Reading(name="cached prompt", unit="tokens", value=cached, total=True),
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
        pytest.param([(900, 800, False)], 0, 0, id="what was there before the run"),
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


def test_the_share_of_cached_prompt_tokens_is_that_of_the_run():
    assert counted((900, 900, False), (1000, 925, False))["prefix cache hits"] == 0.25
    assert "prefix cache hits" not in counted((900, 900, False), (900, 900, False))


def test_what_is_no_total_is_passed_on():
    reading = Reading(name="running", unit="requests", value=3)

    assert RunTotals().counted([reading], fresh=False) == (reading,)
