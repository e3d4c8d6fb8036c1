"""What is advised, on models and devices by hand, with a server whose launch is written here."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.serving_advice import Advice, Wanted, advise
from harness.analysis.serving_load import Load, loads_of, shape_of_run
from harness.errors import InvalidInput
from harness.hardware.data_tables import read_tables
from harness.hardware.device import device_by_hand
from harness.hardware.model_shape import ModelShape
from harness.hardware.rates import USUAL, Factors
from harness.inference.providers.serving import Launch, Serving, Setting
from harness.trace.calls import calls_of
from harness.trace.journal_reader import Journal
from harness.trace.records import Instant, SpanRecord

TABLES = read_tables()
RECORDED = Path(__file__).parents[2] / "traces" / "recorded"
started: list[Serving] = []


def launch(serving: Serving) -> Launch:
    started.append(serving)
    command = Setting(f"serve {serving.model} {serving.sequences}", "to serve it")
    return Launch(command=(command,), endpoint=(Setting('backend = "openai"', "its dialect"),))


def shape(size: str, quantization: str) -> ModelShape:
    made = TABLES.shape(size, TABLES.quantizations[quantization])
    return replace(made, family="given")  # as of a file


def advised(
    *models: tuple[str, str, str], memory: str = "24 GiB", count: int = 1, **how: Any
) -> Advice:
    load = {key: how.pop(key) for key in tuple(how) if key in Load.__dataclass_fields__}
    runtime, factors = how.pop("runtime", None), how.pop("factors", USUAL)
    device = device_by_hand(memory, bandwidth="1000 GB", like=TABLES.device("rtx-4090"))
    started.clear()
    return advise(
        [
            Wanted(role=role, shape=shape(size, quantization), model=f"{size}.gguf",
                   load=Load(**load), runtime=runtime, factors=factors)
            for role, size, quantization in models
        ],
        replace(device, count=count),
        tables=TABLES,
        launches={"llamacpp": launch, "ollama": launch, "vllm": launch},
        **how,
    )  # fmt: skip


PRODUCER, JUDGE = ("producer", "8B", "Q4_K_M"), ("evaluator", "8B", "Q8_0")


@pytest.mark.parametrize(
    ("models", "memory", "users", "placement", "chosen"),
    [
        ([PRODUCER, JUDGE], "24 GiB", 4, "whole", [("Q4_K_M", 16, 4), ("Q8_0", 16, 4)]),
        # The cache is packed first, the judge's last.
        ([PRODUCER, JUDGE], "24 GiB", 16, "whole", [("Q4_K_M", 8, 16), ("Q8_0", 16, 16)]),
        ([JUDGE, PRODUCER], "24 GiB", 22, "whole", [("Q8_0", 8, 22), ("Q4_K_M", 8, 22)]),
        # Then the weights, no further than the floors.
        ([("producer", "8B", "Q8_0")], "8 GiB", 4, "whole", [("Q5_K_M", 16, 4)]),
        # Then fewer are served at once.
        ([JUDGE], "12 GiB", 16, "whole", [("Q8_0", 8, 13)]),
        ([PRODUCER, JUDGE], "12 GiB", 2, "in turns", [("Q4_K_M", 16, 2), ("Q8_0", 16, 2)]),
        ([("evaluator", "70B", "Q8_0")], "24 GiB", 1, "split", [("Q8_0", 8, 0)]),
    ],
    ids=["both", "a packed cache", "packed caches", "packed weights", "fewer", "turns", "split"],
)
def test_models_go_whole_or_by_turns_before_any_is_split(models, memory, users, placement, chosen):
    advice = advised(*models, memory=memory, users=users)
    assert advice.placement == placement
    found = [(one.chosen.quantization, one.chosen.kv_bits, one.sequences) for one in advice.models]
    assert found == chosen


def test_devices_that_several_models_leave_idle_are_told_of():
    assert "idle" not in advised(PRODUCER, JUDGE).said
    assert "2 of 3 devices idle: ask" in advised(PRODUCER, JUDGE, count=3).said
    assert "1 of 3 devices idle." in advised(("producer", "70B", "Q4_K_M"), count=3).said


def test_a_launch_gets_what_was_chosen_and_each_server_its_port_and_share():
    advice = advised(PRODUCER, JUDGE, users=16)
    assert [(one.port, one.sequences, one.kv_bits) for one in started] == [
        (8080, 16, 8),
        (8081, 16, 16),
    ]
    assert sum(one.gpu_share or 0 for one in started) < 1
    assert advice.models[0].launch is not None
    assert advice.models[0].launch.command[0].text == "serve 8B.gguf 16"
    advised(PRODUCER)
    assert (started[0].port, started[0].gpu_share) == (None, None)


def test_devices_hold_replicas_until_one_is_too_small_for_a_model():
    advised(("producer", "8B", "BF16"), count=4, users=10)
    assert (started[0].replicas, started[0].tensor_parallel, started[0].sequences) == (4, 1, 3)
    advice = advised(("evaluator", "70B", "BF16"), memory="24 GiB", count=4)
    assert (started[0].replicas, started[0].tensor_parallel) == (1, 4)
    assert any("tensor parallel over 4" in note for note in advice.models[0].notes)
    # Two replicas of 13 each seat fewer than both devices together.
    advised(JUDGE, memory="12 GiB", count=2, users=26)
    assert (started[0].replicas, started[0].tensor_parallel, started[0].sequences) == (2, 1, 13)
    advised(JUDGE, memory="12 GiB", count=2, users=27)
    assert (started[0].replicas, started[0].tensor_parallel, started[0].sequences) == (1, 2, 27)
    # Two have room enough, and are quick enough or not.
    for itl_s, ways in ((0.05, (2, 2)), (0.03, (1, 4))):
        advised(("producer", "70B", "Q4_K_M"), count=4, itl_s=itl_s)
        assert (started[0].replicas, started[0].tensor_parallel) == ways
    advised(("evaluator", "70B", "Q8_0"))
    assert started[0].gpu_layers is not None
    assert 10 < started[0].gpu_layers < 40


def test_the_runtime_is_that_of_the_files_kind_unless_one_is_asked_for():
    assert advised(PRODUCER).models[0].runtime.name == "llama.cpp"
    assert advised(("producer", "8B", "BF16")).models[0].runtime.name == "vLLM"
    advice = advised(PRODUCER, runtime="mlc-llm").models[0]
    assert (advice.runtime.backend, advice.launch) == ("mlc", None)  # no launch is given here
    assert advice.notes[0] == "convert it: MLC-LLM takes mlc"
    with pytest.raises(InvalidInput) as caught:
        advised(PRODUCER, runtime="vlm")
    assert caught.value.code == "advise.runtime-unknown"
    crowd = advised(PRODUCER, users=64, prompt_tokens=8000).models[0].notes
    assert any("vLLM is better" in note for note in crowd)
    assert any("LMCache" in note for note in crowd)


def test_devices_that_are_short_are_counted_and_those_that_are_shared_are_paid_once():
    big = ("producer", "405B", "Q4_K_M")
    alone, two = (advised(big, count=n).said.rpartition(" or ")[2] for n in (1, 2))
    assert alone == two
    # llama.cpp divides a model over any number; heads are divided over powers of two.
    needed = int(alone.partition(" ")[0])
    assert needed.bit_count() > 1
    assert advised(big, count=needed).placement == "whole"
    assert advised(big, count=needed - 1).said.rpartition(" or ")[2] == alone
    in_heads = advised(big, count=needed, runtime="vllm")
    assert in_heads.placement == "split"
    assert in_heads.said.endswith(f" or {1 << needed.bit_length()} such devices.")
    models = advised(PRODUCER, JUDGE, usd_per_hour=1.0).models
    days = [one.value for model in models for one in model.figures if one.name == "given: a day"]
    assert days == [12, 12]


def test_models_that_take_turns_are_for_the_budget_to_load():
    two = {"memory": "12 GiB"}
    assert {one.runtime.name for one in advised(PRODUCER, JUDGE, **two).models} == {"embedded"}
    for model in advised(PRODUCER, JUDGE, **two, runtime="ollama").models:
        assert model.launch is not None
        assert model.launch.endpoint[-1].text == "manage = true"


@pytest.mark.parametrize(
    ("producer", "judge", "memory", "ports"),
    [
        ((2, 2_000), (1, 2_000), "24 GiB", (None, None)),
        ((8, 2_000), (1, 30_000), "24 GiB", (8080, 8081)),  # eight of the long ones do not fit
        ((2, 2_000), (1, 2_000), "12 GiB", (None, None)),
        ((8, 1_000), (1, 16_000), "12 GiB", (8080, 8081)),
    ],
    ids=["beside each other", "not beside each other", "in turns", "not even alone"],
)
def test_one_server_has_several_models_only_if_they_fit_with_its_settings(
    producer, judge, memory, ports
):
    device = device_by_hand(memory, bandwidth="1000 GB", like=TABLES.device("rtx-4090"))
    started.clear()
    advice = advise(
        [
            Wanted(role=role, shape=shape("8B", "Q8_0"), model=f"{role}.gguf",
                   load=Load(users=users, prompt_tokens=tokens), runtime="ollama")
            for role, (users, tokens) in (("producer", producer), ("evaluator", judge))
        ],
        device,
        tables=TABLES,
        launches={"ollama": launch},
    )  # fmt: skip
    assert advice.placement == ("whole" if memory == "24 GiB" else "in turns")
    assert tuple(one.port for one in started[-2:]) == ports


def test_users_far_beyond_the_memory_are_not_tried_one_by_one():
    started_s = time.process_time()
    model = advised(PRODUCER, users=10_000_000).models[0]
    assert model.sequences == model.chosen.sequences == 100
    assert time.process_time() - started_s < 2


def test_sequences_that_fit_are_those_beside_the_other_models():
    [alone] = advised(PRODUCER).models
    beside, judge = advised(PRODUCER, JUDGE).models
    assert (alone.chosen.sequences, beside.chosen.sequences) == (53, 24)
    assert beside.chosen.sequences - judge.chosen.sequences in {-1, 0, 1}


@pytest.mark.parametrize(
    ("rate", "count", "told"), [(0.3, 1, False), (3, 1, True), (2, 8, False), (24, 8, True)]
)
def test_a_rate_beyond_what_is_answered_is_told(rate, count, told):
    [model] = advised(PRODUCER, users=4 * count, rate_per_s=rate, count=count).models
    assert any("the queue grows" in note for note in model.notes) == told


def test_a_judge_below_its_floor_is_told_of_and_a_producer_is_not():
    [producer, judge] = advised(PRODUCER, ("evaluator", "8B", "Q4_K_M")).models
    assert not any("too coarse" in note for note in producer.notes)
    assert "Q4_K_M is too coarse for evaluator: 8 bits or more" in judge.notes[0]
    [second] = advised(("judge2", "8B", "Q4_K_M")).models
    assert "too coarse for judge2" in second.notes[0]


def figures(advice: Advice) -> dict[str, Any]:
    return {one.name: one for one in advice.models[0].figures}


def test_every_figure_has_its_formula_filled_in_and_each_speed_its_bound():
    found = figures(advised(PRODUCER, users=4, rate_per_s=0.1, usd_per_hour=0.6))
    assert [one.name for one in found.values() if "{" in one.formula or not one.formula] == []
    assert all(
        one.value <= one.ceiling if one.unit != "s" else one.value >= one.ceiling
        for one in found.values()
        if one.ceiling is not None
    )
    assert found["given: a day"].value == pytest.approx(14.4)
    assert found["requests within targets"].value > 0.1
    # An hour that is hardly busy costs as much.
    idle = found["given: a million tokens"].value
    busy = figures(advised(PRODUCER, users=4, usd_per_hour=0.6))["given: a million tokens"].value
    share = 0.1 / found["requests within targets"].value
    assert idle == pytest.approx(busy / share)
    learned = advised(PRODUCER, factors=Factors(bandwidth=0.3, compute=0.5))
    assert figures(learned)["decode alone"].value < found["decode alone"].value


def test_a_run_says_how_many_asked_at_once_and_what_for():
    journal = Journal(RECORDED / "h100-eight-at-once.jsonl")
    calls = calls_of(one for one in journal.items(SpanRecord) if isinstance(one, SpanRecord))
    # Eight were answered at once, and eight waited.
    [(tag, (roles, load))] = loads_of(calls).items()
    assert (tag, roles, load.users, load.calls) == ("m8", ("producer",), 16, 16)
    assert 10 < load.prompt_tokens < 2000
    assert load.rate_per_s is not None
    instants = [one for one in journal.items(Instant) if isinstance(one, Instant)]
    found, file = shape_of_run(tag, instants)
    assert file == "m8.gguf"
    assert found.weight_bytes == pytest.approx(7_635_312_896, rel=0.001)
    assert found.token_kv_bytes() == 131_072
    with pytest.raises(InvalidInput) as caught:
        shape_of_run("other", instants)
    assert caught.value.code == "advise.size-unknown"
