"""What a run writes is its user's alone, and holds no secrets."""

from __future__ import annotations

import asyncio
import os
import stat

from session_runs import settings_of

from harness import Cache, Pipeline, Run, ScriptedBackend

SECRET = "zx-0123456789-mine"


def pipeline():
    leaks = Pipeline("leaks")

    @leaks.node(cache=Cache())
    async def told(run: Run) -> str:
        await run.remember("# Tea\n\nSteep green tea for three minutes, not four.")
        await run.chat("producer", "?")
        return os.environ["MY_KEYS"]

    return leaks


def test_all_that_a_run_leaves_is_its_users_and_has_no_secret_in_it(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEYS", SECRET)
    settings = settings_of(tmp_path, cache="disk", memory={"path": tmp_path / "memory"})
    former = os.umask(0o022)
    try:
        backends = {"producer": ScriptedBackend(lambda _request: f"It is {SECRET}.")}
        asyncio.run(pipeline().run_async({}, settings=settings, backends=backends))
    finally:
        os.umask(former)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"outputs.sqlite", "calls.sqlite", "runs.jsonl"}
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    top = (path for path in files if path.parent in {tmp_path / "traces", tmp_path / "memory"})
    seen = {path.name: stat.S_IMODE(path.stat().st_mode) for path in top if path.stat().st_size}
    assert {name for name, mode in seen.items() if mode & 0o077} == set()
    inner = [path for path in (tmp_path / "memory").iterdir() if path.is_dir()]
    assert [path for path in inner if path.stat().st_mode & 0o077] == []
