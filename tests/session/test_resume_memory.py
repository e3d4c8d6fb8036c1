"""What nodes remembered in a run's earlier parts, recalled by those that are called now."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from harness import NodeFailed, Passage, Pipeline, Run, ScriptedBackend, Settings
from harness.session import RunResult
from harness.session.resume_memory import remembered_in
from harness.session.settings import MemorySettings
from harness.trace import Journal
from harness.trace.secrets import REDACTED

SECRET = "k3y-of-many-parts"
TEA = "# Tea\n\nSteep it for three minutes.\n\n# Bread\n\nLet it rise.\n"


class Places:
    """What a pipeline remembers, and whether what recalls it fails before it does."""

    def __init__(self, *documents: str) -> None:
        self.documents = documents
        self.fails = True
        self.remembered = 0


def pipeline_of(places: Places) -> Pipeline:
    pipeline = Pipeline("remembering")

    @pipeline.node
    async def kept(run: Run) -> int:
        places.remembered += 1
        for document in places.documents:
            await run.remember(document, title="Kitchen", source="book")
        return len(places.documents)

    @pipeline.node
    async def found(run: Run, kept: int) -> list[str]:
        if places.fails:
            raise ValueError("not yet")
        hits = await run.recall("steep tea, and let bread rise", limit=9)
        return sorted(f"{one.passage.title}|{one.passage.source}" for one in hits)

    return pipeline


def fail_and_resume(places: Places, settings: Settings, *, failures: int = 1) -> RunResult:
    pipeline, backends = pipeline_of(places), {"producer": ScriptedBackend([])}
    for part in range(failures):
        with pytest.raises(NodeFailed):
            asyncio.run(
                pipeline.run_async(
                    {}, resume="latest" if part else None, settings=settings, backends=backends
                )
            )
    places.fails = False
    return asyncio.run(
        pipeline.run_async({}, resume="latest", settings=settings, backends=backends)
    )


@pytest.mark.parametrize("failures", [1, 3])
def test_what_a_finished_node_remembered_is_recalled_in_every_later_part(
    tmp_path: Path, failures: int
) -> None:
    places = Places(TEA, "Green tea is less hot.")
    result = fail_and_resume(places, Settings(traces=tmp_path), failures=failures)
    assert places.remembered == 1
    assert result.result == ["Bread|book", "Kitchen|book", "Tea|book"]
    assert result.warnings == ()
    # What is kept again is recorded anew, for the part after that: each document counts once.
    (journal,) = (one for one in tmp_path.glob("2*.jsonl") if "." not in one.stem)
    assert len(set(remembered_in(Journal(journal)))) == 2


def test_a_document_with_a_secret_is_told_to_be_missing_and_the_others_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", SECRET)
    places = Places(TEA, f"# Safe\n\nThe tea is behind {SECRET}.")
    result = fail_and_resume(places, Settings(traces=tmp_path))
    assert result.result == ["Bread|book", "Tea|book"]
    (warning,) = map(str, result.warnings)
    assert "1 document that earlier parts of the run remembered cannot be recalled" in warning


def test_a_secret_that_is_as_long_as_what_stands_for_it_is_missed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "k3y-of-many-parts-and-more"[: len(REDACTED)]
    monkeypatch.setenv("MY_API_KEY", secret)
    result = fail_and_resume(Places(f"# Safe\n\nTea: {secret}."), Settings(traces=tmp_path))
    assert result.result == []
    assert len(result.warnings) == 1


def test_a_memory_that_outlives_its_runs_is_not_filled_again(tmp_path: Path) -> None:
    settings = Settings(traces=tmp_path / "traces", memory=MemorySettings(path=tmp_path / "memory"))
    result = fail_and_resume(Places(TEA), settings)
    assert result.result == ["Bread|book", "Tea|book"]
    (journal,) = (one for one in settings.traces.glob("2*.jsonl") if "." not in one.stem)
    assert remembered_in(Journal(journal)) == ()


def test_what_was_said_of_a_document_is_known_again_too(tmp_path: Path) -> None:
    pipeline, first = Pipeline("remembering"), []

    @pipeline.node
    async def kept(run: Run) -> int:
        kept = await run.remember(TEA, source="book", quality=9.0, metadata={"shelf": 3})
        first.extend(kept)
        return len(kept)

    @pipeline.node
    async def found(run: Run, kept: int) -> list[Passage]:
        if not (tmp_path / "mended").exists():
            raise ValueError("not yet")
        hits = await run.recall("steep tea, and let bread rise", where={"shelf": 3, "run": run.id})
        return [hit.passage for hit in hits]

    def part(resume: str | None) -> RunResult:
        settings = Settings(traces=tmp_path / "traces")
        backends = {"producer": ScriptedBackend([])}
        return asyncio.run(
            pipeline.run_async({}, resume=resume, settings=settings, backends=backends)
        )

    with pytest.raises(NodeFailed):
        part(None)
    (tmp_path / "mended").touch()
    again = part("latest").result
    assert {one.id: one for one in again} == {one.id: one for one in first}
    assert {one.quality for one in again} == {9.0}
