"""What is on a GPU if not all of a model is, and how little that helps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.hardware import Loading, gguf_footprint, read_gguf_header, split_footprint
from harness.hardware.footprint import GPU_CONTEXT_BYTES
from harness.hardware.gguf import weights_of

LAYER, INPUT, NORM = 2_216_448, 30_081_024, 2304  # of the demo model, in bytes
CACHE = 4096 * 2 * 3 * 64 * 2


@pytest.fixture(scope="module")
def demo(demo_model):
    return read_gguf_header(demo_model)


@pytest.mark.parametrize(
    ("gpu_layers", "on_gpu", "outputs"),
    [
        pytest.param(0, 0, 0, id="nothing"),
        pytest.param(1, 0, 1, id="the output comes first"),
        pytest.param(11, 10, 1, id="then layers, from the last"),
        pytest.param(99, 30, 1, id="more than there are"),
        pytest.param(None, 30, 1, id="all, unsaid"),
    ],
)
def test_layers_go_to_the_gpu_from_the_last_with_their_caches(demo, gpu_layers, on_gpu, outputs):
    split = split_footprint(demo, Loading(context_tokens=4096), gpu_layers=gpu_layers)
    # The vocabulary's matrix is needed at both ends, and so in both places.
    (gpu,) = split.gpus
    assert gpu.weights_bytes == on_gpu * LAYER + outputs * (NORM + INPUT)
    assert split.machine.weights_bytes == (30 - on_gpu) * LAYER + INPUT + (1 - outputs) * NORM
    assert gpu.kv_bytes == on_gpu * CACHE
    assert split.machine.kv_bytes == (30 - on_gpu) * CACHE


def test_a_model_that_is_on_the_gpu_leaves_little_here(demo):
    split = split_footprint(demo, Loading(context_tokens=4096), gpu_layers=None)
    whole = gguf_footprint(demo, Loading(context_tokens=4096))
    (gpu,) = split.gpus
    assert gpu.weights_bytes == whole.weights_bytes
    assert gpu.compute_bytes == whole.compute_bytes + GPU_CONTEXT_BYTES
    assert split.machine.weights_bytes == INPUT
    assert split.machine.compute_bytes < whole.compute_bytes / 10


# llama.cpp: the first GPU with which the shares add up to more than layer / 31, the output's 30.
DEALT = {
    "as many each": ((1, 1), (16, 14), 1),
    "three quarters": ((3, 1), (24, 6), 1),
    "as GiB, the last too small": ((14.5, 24.0, 0.1), (12, 18, 0), 1),
    "as GiB, the first too small": ((0.1, 24.0), (1, 29), 1),
    "all on one": ((7,), (30,), 0),
}


@pytest.mark.parametrize(("shares", "layers", "output"), DEALT.values(), ids=DEALT)
def test_layers_are_dealt_out_to_several_gpus_by_their_shares(demo, shares, layers, output):
    loading = Loading(context_tokens=4096)
    parts = split_footprint(demo, loading, gpu_layers=None, shares=shares).gpus
    assert [one.weights_bytes for one in parts] == [
        count * LAYER + (gpu == output) * (NORM + INPUT) for gpu, count in enumerate(layers)
    ]
    assert [one.kv_bytes for one in parts] == [count * CACHE for count in layers]
    (alone,) = split_footprint(demo, loading, gpu_layers=None).gpus
    assert sum(one.weights_bytes + one.kv_bytes for one in parts) == (
        alone.weights_bytes + alone.kv_bytes
    )
    computes = [alone.compute_bytes if count else 0 for count in layers]
    assert [one.compute_bytes for one in parts] == computes


def test_a_matrix_of_its_own_for_the_output_is_not_in_two_places():
    weights = weights_of(
        [
            ("token_embd.weight", 100),
            ("blk.0.attn_q.weight", 10),
            ("blk.1.ffn_up_exps.weight", 20),
            ("blk.2.nextn.eh_proj.weight", 7),
            ("output_norm.weight", 1),
            ("output.weight", 50),
        ],
        layers=3,
        drafts=1,
    )
    assert (weights.input_bytes, weights.layer_bytes) == (100, (10, 20))
    assert (weights.output_bytes, weights.shared_bytes) == (51, 0)
    assert weights.expert_bytes == 20
    assert weights.loaded_bytes == 181


def test_of_experts_only_those_count_for_speed_that_a_token_uses(demo):
    assert demo.active_bytes == 30 * LAYER + NORM + INPUT
    weights = replace(demo.weights, expert_bytes=10 * LAYER)
    mixed = replace(demo, weights=weights, expert_count=8, expert_used_count=2)
    assert mixed.active_bytes == demo.active_bytes - 10 * LAYER * 6 // 8
