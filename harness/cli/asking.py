"""A run's questions on a terminal."""

from __future__ import annotations

import asyncio
import sys

from harness.cli.consoles import say
from harness.cli.progress import Progress
from harness.graph import Question
from harness.graph.outcome import answer_problem


class TerminalAsker:
    """Puts questions to whoever sits at the terminal, one at a time, the progress out of the way.

    Args:
        progress: Makes room.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._turn = asyncio.Lock()

    async def __call__(self, question: Question) -> str | None:
        """What was typed, once it can be an answer; None when the input has ended (Ctrl-D)."""
        async with self._turn:
            with self._progress.paused():
                problem = question.problem
                while True:
                    if problem:
                        say(problem, err=True)
                    say(f"{question.node} asks: {question.text}", err=True)
                    say(f"({question.form}) ", nl=False, err=True)
                    line = await _next_line()
                    if not line:
                        say(err=True)
                        return None
                    answer = line.strip()
                    problem = answer_problem(answer, question.form)
                    if not problem:
                        return answer


async def _next_line() -> str:
    """A line from the terminal, waited for without a thread, which nobody could stop."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    return sys.stdin.readline()
