"""Nodes that another process can import, and an executor that has them run there."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from harness.graph import InProcess, Skipped, Work


class InPool:
    """Plain functions run in another process, which is given their arguments as bytes.

    Args:
        pool: Where.
    """

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool
        self._here = InProcess()
        self.sent: list[str] = []

    async def call(self, work: Work) -> object:
        if inspect.iscoroutinefunction(work.function) or "run" in work.arguments:
            return await self._here.call(work)
        self.sent.append(work.label)
        given = pickle.dumps((work.function, dict(work.arguments)))
        loop = asyncio.get_running_loop()
        return pickle.loads(await loop.run_in_executor(self._pool, answer, given))

    def stream(self, work: Work) -> AsyncGenerator[object, None]:
        return self._here.stream(work)


def answer(given: bytes) -> bytes:
    """In the other process."""
    function, arguments = pickle.loads(given)
    made: Callable[..., Any] = function
    return pickle.dumps(made(**arguments))


def lines(text: str) -> list[str]:
    return text.split(", ")


def process(line: str) -> int:
    assert line
    return os.getpid()


def lengths(line: str, extra: int = 0) -> tuple[str, int]:
    return line, len(line) + extra


def lengths_alone(line: str) -> tuple[str, int]:
    return line, len(line)


def changed(lines: list[str]) -> int:
    lines.clear()  # its own copy
    return 0


def total(lengths: list[tuple[str, int]], odd: list[int | Skipped]) -> dict[str, int]:
    return dict(lengths) | {"skipped": sum(isinstance(one, Skipped) for one in odd)}


def odd(number: int) -> int:
    return number


def is_odd(number: int) -> bool:
    return number % 2 == 1


def flaky(path: str) -> int:
    """Raises the first two times."""
    with Path(path).open("a+") as file:
        file.write("x")
        times = file.tell()
    if times < 3:
        raise OSError(f"only {times}")
    return times
