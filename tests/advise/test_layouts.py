"""Layouts of models on devices, and the load that a recorded run was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from shapes import shape_by_hand

from harness.advise.data_tables import DeviceSpec, device_by_hand, known_device, known_shape
from harness.advise.layouts import (
    Layout,
    ServingGoal,
    Workload,
    divisions,
    enough_devices,
    layouts,
    placements_of,
    workloads_of,
)
from harness.advise.rates import Factors
from harness.trace.calls import calls_of
from harness.trace.journal_reader import Journal
from harness.trace.records import SpanRecord

RECORDED = Path(__file__).parents[2] / "traces" / "recorded"


def device(name: str, count: int = 1) -> DeviceSpec:
    return replace(known_device(name), count=count)


def wanted(model: str, *, role: str = "model", **how: Any) -> ServingGoal:
    load = {key: how.pop(key) for key in tuple(how) if key in Workload.__dataclass_fields__}
    shape = known_shape(model)
    return ServingGoal(role=role, shape=shape, model=model, workload=Workload(**load), **how)


def first(model: str, on: DeviceSpec, **how: Any) -> Layout:
    return layouts(wanted(model, **how), on)[0]


def division(row: Layout) -> tuple[str, int, int, int]:
    return row.precision, row.tensor_parallel, row.stages, row.copies


@pytest.mark.parametrize(
    ("model", "on", "users", "expected", "met"),
    [
        ("8B", device("rtx-4090"), 1, ("BF16", 1, 1, 1), True),
        # Its own FP8, on all eight, and nothing lower.
        ("DeepSeek-V3", device("h200", 8), 32, ("FP8", 8, 1, 1), True),
        # 40 users have a place in FP8 over both, and none has in time.
        ("70B", device("h100", 2), 40, ("FP8", 2, 1, 1), False),
        ("Mixtral-8x7B", device("a100-80gb", 2), 8, ("BF16", 2, 1, 1), True),
        ("gpt-oss-120b", device("h100"), 1, ("MXFP4", 1, 1, 1), True),
        # One of two is enough, and costs less.
        ("8B", device("h100", 2), 1, ("BF16", 1, 1, 1), True),
        ("8B", device("h100", 4), 64, ("BF16", 1, 1, 2), True),
    ],
)
def test_the_first_layout_meets_most_targets_in_the_highest_precision_at_the_least_cost(
    model, on, users, expected, met
):
    row = first(model, on, users=users)
    assert (division(row), not row.misses) == (expected, met)


def test_rows_are_sorted_by_targets_then_precision_then_cost():
    rows = layouts(wanted("70B", users=8), device("h100", 4))
    misses = [len(row.misses) for row in rows]
    assert misses == sorted(misses)
    for count in set(misses):
        bits = [round(row.bits, 2) for row in rows if len(row.misses) == count]
        assert bits == sorted(bits, reverse=True)
    costs = [row.usd_per_hour for row in rows if row.precision == "FP8" and not row.misses]
    assert costs == sorted(costs)


def test_a_precision_of_its_own_is_replaced_only_if_another_is_asked_for():
    on = device("h200", 8)
    rows = layouts(wanted("DeepSeek-V3"), on)
    assert {row.precision for row in rows} == {"FP8"}
    rows = layouts(wanted("DeepSeek-V3", quantization="AWQ"), on)
    assert {row.precision for row in rows} == {"AWQ"}
    rows = layouts(wanted("8B", quantization="Q8_0"), device("rtx-4090"))
    assert [row.precision for row in rows] == ["Q8_0"]
    judges = layouts(wanted("8B", role="judge-2"), device("rtx-4090"))
    assert {row.precision for row in judges} == {"BF16", "FP8", "Q8_0"}


def test_a_latent_is_repeated_on_each_gpu_and_grouped_heads_are_divided():
    rows = layouts(wanted("DeepSeek-V3"), device("h200", 8))
    of = {(row.tensor_parallel, row.stages): row for row in rows}
    assert of[8, 1].sequence_bytes == 8 * of[1, 8].sequence_bytes
    # The heads of Llama are eight: four GPUs have two each.
    rows = layouts(wanted("70B"), device("h200", 4))
    caches = {row.sequence_bytes for row in rows if row.tensor_parallel <= 4}
    assert caches == {2560 * 327_680}


def test_heads_are_divided_evenly_and_llama_cpp_divides_layers():
    shape = shape_by_hand("3B", layers=28, heads=24, kv_heads=8, head_dim=128)
    assert {ranks for ranks, _ in divisions(shape, 16)} == {1, 2, 4, 8}
    assert {ranks for ranks, _ in divisions(replace(shape, heads=20), 8)} == {1, 2, 4}
    packed_shape = replace(shape, packing="gguf")
    assert divisions(packed_shape, 3) == [(1, 1), (1, 2), (1, 3)]


def test_each_missed_target_is_told_with_its_limit():
    rows = layouts(wanted("70B", users=200, quantization="FP8"), device("h100", 2))
    [(places, ttft, *_)] = [row.misses for row in rows if row.tensor_parallel == 2]
    assert (places.target, places.limit) == ("places", 200)
    # The last of them waits until two others' replies are written.
    assert ttft.value > 2 * 500 * 0.03
    assert 90 < places.value < 200
    rows = layouts(wanted("70B", quantization="FP8", itl_s=0.01), device("h100"))
    assert [miss.target for miss in rows[0].misses] == ["ITL"]
    [row] = layouts(wanted("8B", users=4, rate_per_s=50), device("l4"))[:1]
    assert {"rate", "TTFT"} <= {miss.target for miss in row.misses}
    # A run asks no faster than it is answered.
    [row] = layouts(wanted("8B", users=4, rate_per_s=50, calls=9), device("l4"))[:1]
    assert "rate" not in {miss.target for miss in row.misses}


def test_speeds_stop_where_the_devices_are_unknown():
    bare = first("8B", device_by_hand("24 GiB"))
    assert (bare.decode_limit, bare.ttft_s, bare.itl_s, bare.tokens_per_s) == (None,) * 4
    some = first("8B", device_by_hand("24 GiB", bandwidth="1008 GB"))
    assert (some.prefill_limit, some.ttft_s) == (None, None)
    # 8e9 parameters less a table of 128,256 * 4096, and 2,250 tokens of a cache, all of 16 bits.
    read = 2 * (8e9 - 0.525e9) + 2250 * 131_072
    assert some.decode_limit == pytest.approx(1008e9 / read, rel=0.01)


def test_limits_are_above_what_is_expected_and_a_measurement_changes_that():
    row = first("8B", device("rtx-4090"), quantization="BF16")
    assert row.decode_limit is not None
    assert row.itl_s is not None
    assert 1 / row.itl_s == pytest.approx(0.6 * row.decode_limit)
    factors = Factors(bandwidth=0.3, compute=0.5)
    slow = first("8B", device("rtx-4090"), quantization="BF16", measured=factors)
    assert slow.itl_s == pytest.approx(2 * row.itl_s)


def test_what_would_meet_the_targets_is_on_this_device_first_then_by_cost():
    asked = [wanted("70B", users=40)]
    found = enough_devices(asked, device("h100", 2))
    (kind, _), *others = found
    assert (kind.name, kind.count) == ("h100", 8)
    costs = [kind.usd_per_hour * kind.count for kind, _ in others if kind.usd_per_hour]
    assert costs == sorted(costs)
    assert all(place.chosen for _, places in found for place in places)
    assert enough_devices([wanted("405B", itl_s=0.0001)], device("h100", 2)) == []


def test_two_models_share_one_device_and_have_their_own_of_several():
    two = [wanted("8B", role="producer"), wanted("8B", role="evaluator")]
    places = placements_of(two, device("rtx-4090"))
    assert [one.models for one in places] == [2, 2]
    rows = [one.chosen for one in places]
    assert [row and row.precision for row in rows] == ["FP8", "FP8"]
    assert sum(row.device_bytes for row in rows if row) <= 0.92 * 24 * 2**30
    # The judge whole on the first; the larger model on the others.
    two[0] = wanted("70B", role="producer")
    producer, judge = placements_of(two, device("h100", 3))
    assert ((judge.first, judge.count), (producer.first, producer.count)) == ((0, 1), (1, 2))
    # Three models, two devices: the judge has its own.
    three = [wanted("8B", role=role) for role in ("producer", "evaluator", "planner")]
    assert [one.models for one in placements_of(three, device("h100", 2))] == [2, 1, 2]


def test_models_that_do_not_fit_together_have_no_place():
    two = [wanted("8B", role="producer"), wanted("8B", role="evaluator")]
    places = placements_of(two, device_by_hand("12 GiB"))
    assert [one.layouts for one in places] == [(), ()]
    # A lower precision of the producer makes room, none of the judge's below its floor.
    producer, judge = placements_of(two, device_by_hand("16 GiB"))
    assert judge.chosen is not None
    assert judge.chosen.bits >= 8
    assert producer.chosen is not None


def test_models_that_share_a_device_never_take_more_than_it_has():
    for users in (1, 8, 24, 40, 64):
        two = [wanted("8B", role=role, users=users) for role in ("producer", "evaluator")]
        places = placements_of(two, device("rtx-4090"))
        rows = [place.layouts[0] for place in places]
        assert sum(row.device_bytes for row in rows) <= 0.92 * 24 * 2**30, users
        # If not all have a place, a lower precision of the producer seats more.
        assert all(max(row.sequences for row in one.layouts) >= min(users, 5) for one in places)
        assert rows[1].bits >= 8


def test_a_run_says_how_many_asked_at_once_and_what_for():
    journal = Journal(RECORDED / "h100-eight-at-once.jsonl")
    # Eight were answered at once, and eight waited.
    [(tag, (roles, load))] = workloads_of(calls_of(journal.spans())).items()
    assert (tag, roles, load.users, load.calls) == ("m8", ("producer",), 16, 16)
    assert 10 < load.prompt_tokens < 2000
    assert load.rate_per_s is not None
    momentary = SpanRecord(1, None, "chat", 5, 5, "ok", None, {"model": "m8"})
    assert workloads_of(calls_of([momentary]))["m8"][1].users == 1
