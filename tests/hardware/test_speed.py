"""Limits of speed, each against the figure that goes with its formula."""

import pytest

from harness.errors import InvalidInput
from harness.hardware import (
    BANDWIDTHS,
    decode_limit_tokens_per_s,
    fit,
    move_s,
    offload_speedup,
    sequences_that_fit,
    step_bytes,
    weights_per_sequence,
)

GB = 10**9
H100 = BANDWIDTHS["h100"]


def test_70_gb_on_an_h100_allow_one_token_in_20_9_ms_whatever_they_are():
    limit = decode_limit_tokens_per_s(70 * GB, bytes_per_s=H100)
    assert round(1000 / limit, 1) == 20.9
    assert limit == decode_limit_tokens_per_s(60 * GB, kv_bytes=10 * GB, bytes_per_s=H100)


def test_a_batch_of_10_with_4000_tokens_each_moves_174_gb_a_step_in_52_ms():
    moved = step_bytes(70 * GB, sequences=10, tokens=4000, token_bytes=2_600_000)
    assert moved == 174 * GB
    assert round(1000 * move_s(moved, bytes_per_s=H100)) == 52
    assert weights_per_sequence(70 * GB, sequences=10) == 7 * GB


@pytest.mark.parametrize(
    ("share", "speedup"),
    [(0, 1), (0.9, 5.26), (1, 10)],
)
def test_a_share_on_a_gpu_of_ten_times_the_speed_is_worth_what_amdahl_says(share, speedup):
    assert round(offload_speedup(share), 2) == speedup


@pytest.mark.parametrize(
    ("gpu_gb", "machine_gb", "how"),
    [
        pytest.param(20, 0, "whole", id="all of it"),
        pytest.param(16, 32, "cache spills", id="the weights, and some of the cache"),
        pytest.param(8, 32, "partly", id="some of the weights"),
        pytest.param(8, 4, "not at all", id="nowhere"),
    ],
)
def test_how_a_model_fits_is_told(gpu_gb, machine_gb, how):
    assert how == fit(
        weight_bytes=14 * GB,
        kv_bytes=5 * GB,
        overhead_bytes=1 * GB,
        gpu_bytes=gpu_gb * GB,
        machine_bytes=machine_gb * GB,
    )


NO_TOKENS = {"weight_bytes": 0, "overhead_bytes": 0, "tokens": 0, "token_bytes": 1}


@pytest.mark.parametrize(
    ("nonsense", "code"),
    [
        (lambda: offload_speedup(1.1), "model.share-out-of-range"),
        (lambda: move_s(1, bytes_per_s=0), "model.not-positive"),
        (lambda: decode_limit_tokens_per_s(0, bytes_per_s=1), "model.not-positive"),
        (lambda: sequences_that_fit(1, **NO_TOKENS), "model.not-positive"),
    ],
    ids=["a share", "bandwidth", "weights", "tokens"],
)
def test_what_says_nothing_is_refused(nonsense, code):
    with pytest.raises(InvalidInput) as caught:
        nonsense()
    assert caught.value.code == code
