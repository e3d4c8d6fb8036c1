"""Published figures beside computed ones: the table in docs/advise.md, and every known model.

WRITE_SHOWN=1 writes the table anew. Issues are of vllm-project/vllm where nothing else is said.
Cards are as published, not read again here; logs in issues were. Where each configuration was read
stands beside it in tables/models.json.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest
from shapes import shape_by_hand

from harness.advise.data_tables import known_device, known_models, known_shape
from harness.advise.model_shape import ModelShape, configured_shape, parse_parameters
from harness.advise.rates import Rates, usd_per_million_tokens, usual_factors

PAGE = Path(__file__).parents[2] / "docs" / "advise.md"
GIB = 2**30
# Meta's checkpoint has only its feed-forward layers in FP8.
LLAMA_405B = known_models()["Llama-3.1-405B"]["config"]
FP8_405B = configured_shape(
    LLAMA_405B
    | {
        "quantization_config": {
            "quant_method": "fbgemm_fp8",
            "modules_to_not_convert": ["model.layers.0.self_attn.q_proj", "lm_head"],
        }
    },
    path=Path("config.json"),
    title="Llama 3.1 405B FP8",
)
MANUAL = "Agentic Harness Engineering"


def tokens_in(gib: float, model: str, ranks: int = 1) -> float:
    return gib * GIB / known_shape(model).on_rank(ranks).sequence_kv_bytes(1)


class Worked(NamedTuple):
    case: str
    figure: str
    computed: float
    published: float
    source: str
    percent: float = 2
    """That it may be off; more only where the source says why."""


def weights_gib(model: str) -> float:
    return known_shape(model).weight_bytes / GIB


def step_ms(kv_heads: int, **at: int) -> float:
    model = shape_by_hand("70B", layers=80, head_dim=128, bits=8, kv_heads=kv_heads)
    return 1000 * Rates(model=model, device=known_device("h100")).step_s(**at)


def prompts_per_s(model: ModelShape) -> float:
    rates = Rates(model, known_device("h100"), tensor_parallel=8, factors=usual_factors(model))
    return rates.prefill_tokens_per_s(2000) or 0.0


V3, OSS, QWEN = (known_shape(name) for name in ("DeepSeek-V3", "gpt-oss-120b", "Qwen3-30B-A3B"))
# fmt: off
WORKED = [Worked(*row) for row in (
    ("Llama 3.1 8B, BF16", "weights, GiB", weights_gib("Llama-3.1-8B"), 14.99,
     "vLLM's log (10517)"),
    ("Llama 3.1 8B, BF16", "tokens in 3.81 GiB", tokens_in(3.81, "Llama-3.1-8B"), 1952 * 16,
     "vLLM's log, 1,952 blocks of 16 (10517)"),
    ("Qwen 2.5 14B, TP 2", "weights of a GPU, GiB", weights_gib("Qwen2.5-14B") / 2, 13.9476,
     "vLLM's log (13061)"),
    ("Qwen3 30B-A3B", "cache of 262,144 tokens, GiB", QWEN.sequence_kv_bytes(262_144) / GIB, 24.0,
     "vLLM's message (34076)"),
    ("Qwen3 235B-A22B, TP 4", "tokens in 8.11 GiB of a GPU",
     tokens_in(8.11, "Qwen3-235B-A22B", 4), 178_880, "vLLM's log (21348)"),
    ("Qwen3 235B-A22B, TP 4", "tokens in 16.46 GiB of a GPU",
     tokens_in(16.46, "Qwen3-235B-A22B", 4), 367_404, "SGLang's log (21348)"),
    ("Llama 3.1 405B, FP8, TP 8", "weights of a GPU, GiB", FP8_405B.weight_bytes / GIB / 8, 57.752,
     "vLLM's log (6746); its first and last layers are in 16 bits", 3),
    ("Llama 3.1 405B", "KV of a token, bytes", FP8_405B.sequence_kv_bytes(1), 516_096,
     "arXiv 2505.09343, table 1"),
    ("DeepSeek-V3 (MLA)", "KV of a token, bytes", V3.sequence_kv_bytes(1), 70_272,
     "arXiv 2505.09343, table 1"),
    ("DeepSeek-R1, FP8, TP 8", "weights of a GPU, GiB", weights_gib("DeepSeek-R1") / 8, 79.41,
     "vLLM's log (HabanaAI/vllm-fork 809)"),
    ("DeepSeek-V3 on 8 H100, 2,000 tokens", "prompt tokens a second, expected", prompts_per_s(V3),
     52_300, "SGLang's measurement (lmsys.org, 2025-05-05), from which the share is taken", 2),
    ("DeepSeek-V3", "parameters, 10^9", V3.parameters / 1e9, 671, "model card"),
    ("DeepSeek-V3", "active parameters, 10^9", V3.active_parameters / 1e9, 37, "model card"),
    ("Mixtral 8x7B", "active parameters, 10^9", known_shape("Mixtral-8x7B").active_parameters / 1e9,
     12.9, "arXiv 2401.04088"),
    ("gpt-oss-20b, MXFP4", "weights, GiB", weights_gib("gpt-oss-20b"), 12.8, "model card"),
    ("gpt-oss-120b, MXFP4", "weights, GiB", weights_gib("gpt-oss-120b"), 60.8, "model card"),
    ("gpt-oss-120b on an H100", "weights, GiB", weights_gib("gpt-oss-120b"), 64.38,
     "vLLM's log (33155); it pads the experts' widths", 6),
    ("gpt-oss-120b, two sequences", "cache of 131,072 tokens, MiB",
     2 * OSS.sequence_kv_bytes(131_072, beside=1280 - 128) / 2**20, 9216 + 90,
     "llama.cpp's log (ollama/ollama 16480)", 0.01),
    ("70 GB on an H100", "ms of a token, at best", step_ms(8, tokens=0), 20.9, MANUAL),
    ("70B without grouped heads, 10 sequences of 4,000 tokens", "ms of a token, at best",
     step_ms(64, tokens=4000, sequences=10), 52, MANUAL),
    ("$8.42 an hour at 300 tokens/s", "$ a million tokens",
     usd_per_million_tokens(8.42, tokens_per_s=300), 7.80, MANUAL),
)]
# fmt: on


@pytest.mark.parametrize("worked", WORKED, ids=lambda one: f"{one.case}: {one.figure}")
def test_a_computed_figure_is_the_published_one(worked: Worked) -> None:
    assert worked.computed == pytest.approx(worked.published, rel=worked.percent / 100)


def test_the_page_has_these_figures() -> None:
    def written(value: float) -> str:
        return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"

    rows = [
        "| case | figure | computed | published | difference | source |",
        "|---|---|--:|--:|--:|---|",
    ]
    for one in WORKED:
        off = 100 * (one.computed / one.published - 1)
        figures = f"{written(one.computed)} | {written(one.published)} | {off:+.1f} %"
        rows.append(f"| {one.case} | {one.figure} | {figures} | {one.source} |")
    table = "\n".join(rows).replace("-0.0 %", "0").replace("+0.0 %", "0")
    text = PAGE.read_text(encoding="utf-8")
    if os.environ.get("WRITE_SHOWN"):
        start = text.index(rows[0])
        end = text.index("\n\n", start)
        PAGE.write_text(text[:start] + table + text[end:], encoding="utf-8")
    assert table in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", known_models())
def test_a_known_model_has_the_parameters_that_its_card_says(name: str) -> None:
    row, shape = known_models()[name], known_shape(name)
    assert all(row[key] for key in ("source", "date"))
    assert shape.parameters == pytest.approx(parse_parameters(row["parameters"]), rel=0.03)
    assert shape.exact_caches
    if row["active"]:
        # Cards round to whole 10^9, or to three digits; most count the input's table.
        active = parse_parameters(row["active"])
        off = 0.02 * active if "." in row["active"] else 1e9
        table = row["config"]["vocab_size"] * row["config"]["hidden_size"]
        assert shape.active_parameters - off < active < shape.active_parameters + table + off


def test_windows_and_states_end_what_a_sequence_takes() -> None:
    def sequence_bytes(model: str, tokens: int) -> int:
        return known_shape(model).sequence_kv_bytes(tokens)

    # Every sixth layer of Gemma 3 sees all, from the sixth on: ten of 62.
    layer = 2 * 16 * 128 * 2
    assert sequence_bytes("Gemma-3-27B", 32_768) == layer * (10 * 32_768 + 52 * 1024)
    # Three of four layers of Qwen3-Next keep a state: its last three inputs, and 32 * 128 * 128.
    state = 4 * (3 * (2 * 2048 + 4096) + 32 * 128 * 128)
    assert sequence_bytes("Qwen3-Next-80B-A3B", 1) == 36 * state + 24_576
    assert sequence_bytes("gpt-oss-120b", 4096) == 18 * 2048 * (4096 + 128)
