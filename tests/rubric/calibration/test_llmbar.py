"""The published figures of LLMBar: 349 evaluators and prompts on pairs that people judged."""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from harness.rubric.calibration.agreement import Resamples, pair_agreement

pytest.importorskip("scipy", reason="scipy is not installed")

DATA = Path(__file__).parents[4] / "shared/data/judge/llmbar"
DRAFT_OF = {1: "a", 2: "b", "1": "a", "2": "b", None: ""}


def test_every_accuracy_is_as_published_and_kappa_as_it_truly_is():
    if not DATA.is_dir():
        pytest.skip("llmbar: no judged pairs in ../shared/data")
    published = json.loads((DATA / "agreement.json").read_text())
    runs = defaultdict(list)
    with (DATA / "judgements.jsonl").open() as lines:
        for one in map(json.loads, lines):
            runs[f"{one['subset']}|{one['judge']}|{one['prompt']}"].append(one)
    wrong = []
    for name, rows in runs.items():
        found = pair_agreement(
            [DRAFT_OF[row["label"]] for row in rows],
            [DRAFT_OF[row["w_order"]] for row in rows],
            [DRAFT_OF[row["w_swapped"]] for row in rows],
            resamples=Resamples([str(row["item"]) for row in rows], np.random.default_rng(0)),
            confidence=0.9,
        )
        stated = published[name]["published"]
        pairs = [
            (found.accuracy.value, float(stated["correct_average"].rstrip("%")) / 100),
            (found.consistent, published[name]["equal"]),
            (found.kappa, published[name]["kappa_order"]),
        ]
        # Where all judgements are the same, kappa is undefined there too.
        wrong += [
            (name, ours, theirs)
            for ours, theirs in pairs
            if theirs is not None and round(ours, 3) != pytest.approx(theirs, abs=6e-4)
        ]

    assert len(runs) == len(published) == 349
    assert wrong == []
    swap = published["LLMBar/Natural|GPT-4|Swap"]
    assert swap["published"]["kappa_average"] == pytest.approx(0.264, abs=5e-4)
    assert swap["kappa_order"] == pytest.approx(0.878, abs=5e-4)
