"""Outputs that hold over many runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from harness import Cache, Pipeline, ScriptedBackend, Settings
from harness.session import RunResult
from harness.session.output_cache import OUTPUT_CACHE, StoredOutputs


class Calls:
    """How often a node was called; no part of its code."""

    def __init__(self) -> None:
        self.count = 0


def counted(calls: Calls, cache: Cache | None, *, ending: str = "!") -> Pipeline:
    pipeline = Pipeline("counted")

    @pipeline.node(cache=cache)
    def loud(word: str) -> str:
        calls.count += 1
        return word.upper() + ending

    return pipeline


def run(pipeline: Pipeline, traces: Path, word: str = "a") -> RunResult:
    return asyncio.run(
        pipeline.run_async(
            {"word": word},
            settings=Settings(traces=traces),
            backends={"producer": ScriptedBackend([])},
        )
    )


def test_an_output_of_another_run_will_do_where_code_and_inputs_are_the_same(
    tmp_path: Path,
) -> None:
    calls = Calls()
    first = run(counted(calls, Cache()), tmp_path)
    again = run(counted(calls, Cache()), tmp_path)
    assert (calls.count, again.result, again.reused) == (1, "A!", ("loud",))
    assert first.run_id != again.run_id
    assert run(counted(calls, Cache()), tmp_path, "b").result == "B!"
    assert run(counted(calls, Cache(), ending="?"), tmp_path).result == "A?"
    assert calls.count == 3


def test_without_a_cache_policy_there_is_no_file(tmp_path: Path) -> None:
    calls = Calls()
    for _ in range(2):
        run(counted(calls, None), tmp_path)
    assert calls.count == 2
    assert not (tmp_path / OUTPUT_CACHE).exists()


def test_a_file_that_cannot_be_opened_is_said_and_fails_no_node(tmp_path: Path) -> None:
    (tmp_path / OUTPUT_CACHE).write_text("something else")
    result = run(counted(Calls(), Cache()), tmp_path)
    assert result.result == "A!"
    assert any("outputs are not kept for other runs" in one for one in map(str, result.warnings))


@pytest.mark.parametrize(
    ("max_age_s", "age_s", "is_found"),
    [
        pytest.param(None, 1e9, True, id="no limit"),
        pytest.param(60.0, 60.0, True, id="just young enough"),
        pytest.param(60.0, 60.5, False, id="too old"),
        pytest.param(0.0, 1.0, False, id="none is young enough"),
    ],
)
def test_an_output_is_found_until_it_is_too_old(
    tmp_path: Path, max_age_s: float | None, age_s: float, *, is_found: bool
) -> None:
    async def find() -> bytes | None:
        now_s = [1_000.0]
        stored = StoredOutputs(tmp_path / "o.sqlite", warn=print, wall_s=lambda: now_s[0])
        stored.keep("key", b'"line\\none"')
        now_s[0] += age_s
        try:
            return await stored.find("key", max_age_s=max_age_s)
        finally:
            await stored.aclose()

    assert asyncio.run(find()) == (b'"line\\none"' if is_found else None)


def test_what_was_stored_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    async def keep_and_find() -> bytes | None:
        stored = StoredOutputs(tmp_path / "o.sqlite", warn=print)
        stored.keep("key", b"[1,2]")
        await stored.aclose()
        again = StoredOutputs(tmp_path / "o.sqlite", warn=print)
        assert await again.find("other", max_age_s=None) is None
        found = await again.find("key", max_age_s=None)
        await again.aclose()
        return found

    assert asyncio.run(keep_and_find()) == b"[1,2]"
