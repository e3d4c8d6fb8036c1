"""What a burst of calls shows, what is learned from it, and how that is kept."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from loopback import DONE, Loopback, Reply, delta, error_reply, llama_server_stream
from shapes import shape_by_hand
from structlog.testing import capture_logs

from harness.advise.data_tables import DeviceSpec
from harness.advise.measured_speed import (
    Burst,
    MeasuredBurst,
    keep_rates,
    learn,
    learned_for,
    measure_speed,
    measured_burst,
    predicted_of,
)
from harness.advise.rates import Factors, Rates
from harness.errors import InferenceError
from harness.inference import Completion, Endpoint, Usage
from harness.inference.completion import Phase
from harness.session import Settings
from harness.trace.journal_reader import Journal

MODEL = shape_by_hand("7B", layers=32, kv_heads=8, head_dim=128, bits=4.5)
CPU = DeviceSpec(
    name="machine",
    memory_bytes=32 << 30,
    memory_bytes_per_s=50e9,
    flops_per_s=1e12,
    is_gpu=False,
    source="test",
)
GPU = replace(CPU, name="gpu0", memory_bytes_per_s=1e12, flops_per_s=1e14, is_gpu=True)
MS = 10**6


def answer(pieces_ms, *, prefill_ms=None, tokens=None, cached=0):
    """A call with a prompt of 100 tokens, sent at 0, whose pieces came then."""
    first, last = pieces_ms[0], pieces_ms[-1]
    read_from = first - (prefill_ms or first)
    phases = (("prefill", read_from, first, "reported"), ("decode", first, last, "measured"))
    counted = Usage(input_tokens=100, output_tokens=tokens or len(pieces_ms), cached_tokens=cached)
    completion = Completion(
        text="",
        reasoning="",
        finish_reason="length",
        usage=counted,
        sent_ns=0,
        first_token_ns=first * MS,
        phases=tuple(
            Phase(name=name, start_ns=a * MS, end_ns=b * MS, source=source)
            for name, a, b, source in phases
        ),
        model_id="m",
    )
    return completion, counted, [at * MS for at in pieces_ms]


def every(ms, *, since, count=20):
    return [since + ms * number for number in range(count)]


ANSWERS = {
    "one alone": ([answer(every(10, since=50))], 1, 10),
    "two together": ([answer(every(20, since=50)), answer(every(20, since=50))], 2, 20),
    # While the second's prompt was read, the first wrote slowly: that is left out.
    "one begins late": (
        [answer([50, 500, *every(20, since=1000)]), answer(every(20, since=1000))],
        2,
        20,
    ),
    "one after the other": ([answer(every(10, since=50)), answer(every(10, since=260))], 1, 10),
    "pieces of two tokens": ([answer(every(10, since=50), tokens=39)], 1, 5),
    "too few tokens": ([answer([50, 60])], 0, None),
    "no piece while all are written": (
        [answer([0, 1000], tokens=40), answer([400, 600], tokens=40)],
        1,
        200 / 39,
    ),
    "all at one moment": ([answer([50, 50], tokens=20)], 0, None),
    "all in one piece": ([answer([50], tokens=20)], 0, None),
}


@pytest.mark.parametrize(("answers", "at_once", "step_ms"), ANSWERS.values(), ids=ANSWERS)
def test_a_step_is_measured_while_all_replies_are_written(answers, at_once, step_ms):
    found = measured_burst(Burst(len(answers), 100, 20), answers)
    assert found.at_once == pytest.approx(at_once)
    assert found.step_s == (None if step_ms is None else pytest.approx(step_ms / 1000))


def test_prompts_from_a_cache_were_not_read():
    answers = [answer(every(10, since=50), cached=60), answer(every(10, since=90), prefill_ms=40)]
    found = measured_burst(Burst(2, 100, 20), answers)
    assert found.prompt_tokens == 70
    assert found.prefill_tokens_per_s == pytest.approx(140 / 0.09)
    assert found.ttft_s == 0.09


def burst_of(rates, sequences, prompt_tokens):
    """As it would be measured where the arithmetic is right."""
    return MeasuredBurst(
        burst=Burst(sequences, prompt_tokens, 64),
        prompt_tokens=prompt_tokens,
        prefill_tokens_per_s=rates.prefill_tokens_per_s(prompt_tokens),
        ttft_s=1.0,
        at_once=sequences,
        context_tokens=prompt_tokens + 32,
        step_s=rates.step_s(tokens=prompt_tokens + 32, sequences=sequences),
    )


FACTORS = Factors(bandwidth=0.6, compute=0.4, cache=0.1)


@pytest.mark.parametrize("device", [CPU, GPU], ids=["cpu", "gpu"])
def test_what_calls_alone_show_predicts_others(device):
    truth = Rates(model=MODEL, device=device, factors=FACTORS)
    known = [burst_of(truth, 1, tokens) for tokens in (64, 512)]
    learned = learn(MODEL, device, known, runtime="llamacpp", run_id="r")
    assert learned.factors_on(device).cache == pytest.approx(0.1, rel=0.01)
    # A machine whose speed is measured anew, and found to be another, is as quick as it was.
    faster = replace(device, memory_bytes_per_s=2 * device.memory_bytes_per_s)
    again = Rates(model=MODEL, device=faster, factors=learned.factors_on(faster))
    for figure, (said, measured) in predicted_of(burst_of(truth, 4, 1500), again).items():
        assert figure.startswith("TTFT") or said == pytest.approx(measured, rel=0.02), figure


def test_operations_are_learned_as_of_16_bits():
    gpu = replace(GPU, has_int8=True)
    packed = replace(MODEL, quantization="Q4_K_M")
    truth = Rates(model=packed, device=gpu, factors=FACTORS)
    learned = learn(packed, gpu, [burst_of(truth, 1, 512)], runtime="llamacpp", run_id="r")
    assert learned.factors_on(gpu).compute == pytest.approx(FACTORS.compute)


def test_a_processor_that_hides_all_reading_has_a_factor():
    one = replace(burst_of(Rates(model=MODEL, device=CPU), 1, 64), step_s=1e-6)
    factors = learn(MODEL, CPU, [one], runtime="llamacpp", run_id="r").factors_on(CPU)
    assert factors.bandwidth == pytest.approx(4)


# --- how it is kept ----------------------------------------------------------------------------


def learned(run_id, **fields):
    one = burst_of(Rates(model=MODEL, device=CPU), 1, 64)
    return learn(MODEL, CPU, [one], runtime="llamacpp", run_id=run_id).model_copy(update=fields)


def test_what_was_learned_is_found_by_device_runtime_and_family(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    for one in (
        learned("1"),
        learned("2"),
        learned("3", family="qwen2"),
        learned("4", runtime="vllm", family="qwen2"),
        learned("5", device="gpu0"),
    ):
        keep_rates(one, environment)

    def found(family="", **given):
        shape = replace(MODEL, family=family)
        one = learned_for(
            environment, given.pop("device", CPU), shape, runtime=given.get("runtime")
        )
        return one and one.run_id

    assert found() == "2"  # later than 1, and of the family
    assert found("qwen2") == "4"
    assert found("qwen2", runtime="llamacpp") == "3"
    assert found("gemma", runtime="llamacpp") == "3"  # of another family: the latest
    assert found(device=GPU) == "5"
    assert found(runtime="sglang") is None


def test_a_damaged_file_is_left_out_with_a_warning_and_replaced(tmp_path):
    environment = {"HOME": str(tmp_path)}
    file = tmp_path / ".cache" / "harness" / "machine.json"
    assert learned_for(environment, CPU, MODEL, runtime=None) is None
    keep_rates(learned("1"), environment)
    file.write_text(file.read_text().replace('"flops_per_s"', '"flops_per_s": -1, "x"'))
    with capture_logs() as logs:
        assert learned_for(environment, CPU, MODEL, runtime=None) is None
        keep_rates(learned("2"), environment)
    assert {one["code"] for one in logs} == {"advise.factors-unreadable"}
    assert learned_for(environment, CPU, MODEL, runtime=None).run_id == "2"


# --- the run --------------------------------------------------------------------------------------

WHOLE = Reply(steps=llama_server_stream(*"abcdefghij"))


def measure(replies, tmp_path, *, limit_s=None):
    async def run():
        async with Loopback(replies) as server:
            fields = {"tag": "small", "backend": "openai", "url": server.url}
            return await measure_speed(
                Settings(traces=tmp_path),
                Endpoint.model_validate(fields),
                [Burst(1, 16, 8), Burst(2, 16, 8)],
                environment={},
                limit_s=limit_s,
            ), [asked.body["messages"][-1]["content"] for asked in server.requests]

    return asyncio.run(run())


def test_bursts_are_a_run_whose_prompts_begin_differently(tmp_path):
    (run_id, found), prompts = measure([WHOLE] * 4, tmp_path)
    assert [one.burst.sequences for one in found] == [1, 2]
    assert found[1].prompt_tokens == 31
    assert len({prompt[:60] for prompt in prompts}) == 4
    journal = Journal(tmp_path / f"{run_id}.jsonl")
    names = [span.name for span in journal.spans()]
    assert (names.count("measure"), names.count("chat")) == (2, 4)


def test_a_burst_that_is_not_over_in_time_is_left_out(tmp_path):
    held = Reply(steps=WHOLE.steps[:2], ending="hold")
    (_, found), _ = measure([WHOLE, WHOLE, held, held], tmp_path, limit_s=0.5)
    assert [one.burst.sequences for one in found] == [1]


@pytest.mark.parametrize(
    "reply",
    [
        error_reply(400, {"error": {"message": "no"}}),
        Reply(steps=(delta(content="a"), delta(finish_reason="stop"), DONE)),
    ],
    ids=["refused", "tokens not counted"],
)
def test_an_endpoint_without_a_speed_is_an_error(reply, tmp_path):
    with pytest.raises(InferenceError) as raised:
        measure([WHOLE, reply, reply, reply], tmp_path)
    assert not isinstance(raised.value, ExceptionGroup)
