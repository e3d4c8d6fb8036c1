"""The door into the event loop closes behind what does not end."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import pytest

from harness import NodeFailed, Pipeline, Settings, Timeout
from harness.session import event_loop, run_to_its_end


async def stubborn() -> str:
    """Goes on however often it is cancelled."""
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


def test_it_returns_what_the_coroutine_returns() -> None:
    async def main() -> int:
        return 3

    assert run_to_its_end(main()) == 3


def test_what_is_left_is_cancelled_and_may_clean_up() -> None:
    ended = []

    async def tidy() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    async def main() -> None:
        main.task = asyncio.create_task(tidy())  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    run_to_its_end(main())
    assert ended == [True]


def test_it_does_not_wait_for_a_task_that_ignores_its_cancellation() -> None:
    async def main() -> str:
        main.task = asyncio.create_task(stubborn())  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        return "done"

    began_s = time.monotonic()
    assert run_to_its_end(main()) == "done"
    assert time.monotonic() - began_s < 30


def test_a_pipeline_returns_although_a_node_ignores_its_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pipeline = Pipeline("stubborn")
    pipeline.node(timeout=Timeout(total_s=0.05))(stubborn)
    with pytest.raises(NodeFailed, match=r"took longer than total_s = 0\.05 s") as caught:
        pipeline.run()
    assert caught.value.result.files.journal.is_file()
    assert Settings().traces.is_dir()


def test_an_error_of_the_coroutine_is_raised() -> None:
    async def main() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        run_to_its_end(main())


def test_ctrl_c_that_cancels_nothing_leaves_the_coroutine_its_time_to_clean_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_loop, "_GRACE_S", 0.01)
    ended = []

    def interrupt() -> None:
        # As a handler has it that is not the runner's: in the background there is none of its own.
        raise KeyboardInterrupt

    async def main() -> None:
        asyncio.get_running_loop().call_soon(interrupt)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.1)
            ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        run_to_its_end(main())
    assert ended == [True]
