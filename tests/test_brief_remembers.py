"""A second run of the brief, on a related task: what it takes from the first, and who can tell."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from demo import DemoRun, made_once, run_demo
from sample_runs import RunRecord, load_run

from harness.memory import MemoryStore

pytestmark = pytest.mark.slow

TASK = "How large a model fits on one graphics card, and how much memory does its cache take?"
OTHER = "# Prices\n\nA graphics card with 24 GB of memory costs 900 euros, and its cache nothing.\n"
"""Of one part, so that at least two topics of three are of the first run, whatever is chosen."""


AS_THE_FIRST_LEFT_IT = "memory-then"
"""The second may write a section on the same topic, and a better one."""


@pytest.fixture(scope="module")
def second(demo_run: DemoRun, tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    def after_the_first(directory: Path) -> DemoRun:
        shutil.copytree(demo_run.directory, directory, dirs_exist_ok=True)
        shutil.copytree(directory / "memory", directory / AS_THE_FIRST_LEFT_IT)
        options = ("--task", TASK, "--set", f"document={OTHER}", "--memory", "memory")
        return run_demo(directory, *options)

    return made_once(tmp_path_factory, "second", after_the_first)


@pytest.fixture(scope="module")
def first(demo_run: DemoRun, second: DemoRun) -> DemoRun:
    """In the folder of the second, whose memory goes on with its own."""
    return DemoRun(demo_run.result, second.directory)


def recalled(record: RunRecord, node: str) -> list[Mapping[str, Any]]:
    """The hits that calls of a node had."""
    spans = {span.id: span for span in record.spans}
    return [
        hit
        for span in record.spans
        if span.name == "recall" and str(spans[span.parent].attributes["label"]).startswith(node)
        for hit in span.attributes["hits"]
    ]


def test_the_trace_shows_which_passages_are_of_the_first_run(
    first: DemoRun, second: DemoRun
) -> None:
    record = load_run(second.journal)
    hits = recalled(record, "parts")
    assert {hit["run"] for hit in hits} == {first.result["run_id"], second.result["run_id"]}
    with MemoryStore.open(first.directory / "memory") as store:
        for hit in hits:
            passage = store.get(hit["id"])
            assert passage is not None
            assert (passage.title, passage.metadata["run"]) == (hit["title"], hit["run"])


def test_what_the_first_run_read_is_a_source_of_the_second(first: DemoRun, second: DemoRun) -> None:
    earlier = [
        hit
        for hit in recalled(load_run(second.journal), "sources")
        if hit["run"] == first.result["run_id"]
    ]
    assert earlier
    with MemoryStore.open(first.directory / "memory") as store:
        texts = [store.get(hit["id"]).text for hit in earlier]  # type: ignore[union-attr]
    assert set(texts) <= set(second.result["outputs"]["sources"])
    assert not any(text in OTHER for text in texts)


def test_the_first_brief_is_kept_with_its_score(first: DemoRun) -> None:
    (loop,) = first.result["loops"]
    best = loop["rounds"][loop["best_round"] - 1]
    with MemoryStore.open(first.directory / AS_THE_FIRST_LEFT_IT) as store:
        for topic in first.result["outputs"]["topics"]:
            (hit,) = store.search(topic, limit=1, where={"source": "brief", "title": topic})
            assert hit.text in first.result["result"]
            assert hit.passage.quality == pytest.approx(best["composite"])


def test_two_runs_leave_the_first_ones_document_once(first: DemoRun, second: DemoRun) -> None:
    remembered = [
        span.attributes
        for run in (first, second)
        for span in load_run(run.journal).spans
        if span.name == "remember"
    ]
    with MemoryStore.open(first.directory / "memory") as store:
        assert len(store) == sum(int(str(one["added"])) for one in remembered)
