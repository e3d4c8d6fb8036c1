"""The runner with another executor than its own: what calls take and give are values."""

import inspect
import multiprocessing
import os
import pickle
from concurrent.futures import ProcessPoolExecutor

import pytest
from graph_runs import as_read, run, step

from harness.graph import Earlier, Graph, InProcess, Skipped, Work
from harness.trace import Tracer


class ByValue:
    """Plain functions are given their arguments as bytes, and give bytes back.

    Args:
        pool: Where they are called; here if there is none.
    """

    def __init__(self, pool: ProcessPoolExecutor | None = None) -> None:
        self._pool = pool
        self._here = InProcess()
        self.sent: list[str] = []

    async def call(self, work: Work) -> object:
        if inspect.iscoroutinefunction(work.function) or "run" in work.arguments:
            return await self._here.call(work)
        self.sent.append(work.label)
        given = pickle.dumps((work.function, dict(work.arguments)))
        # Virtual time knows no other processes, and stands still while this waits for one.
        made = self._pool.submit(answer, given).result() if self._pool else answer(given)
        return pickle.loads(made)


def answer(given: bytes) -> bytes:
    function, arguments = pickle.loads(given)
    return pickle.dumps(function(**arguments))


def lines(text: str) -> list[str]:
    return text.split(", ")


def lengths(line: str, extra: int = 0) -> tuple[str, int]:
    return line, len(line) + extra


def lengths_alone(line: str) -> tuple[str, int]:
    return line, len(line)


def changed(lines: list[str]) -> int:
    lines.clear()  # its own copy
    return os.getpid()


def odd(number: int) -> int:
    return number


def is_odd(number: int) -> bool:
    return number % 2 == 1


def total(lengths: list[tuple[str, int]], odd: list[int | Skipped]) -> dict[str, int]:
    return dict(lengths) | {"skipped": sum(isinstance(one, Skipped) for one in odd)}


def several() -> Graph:
    graph = Graph("several")
    for function in (lines, changed, total):
        graph.node(function)
    graph.node(each={"line": "lines"})(lengths)
    graph.node(each={"number": "numbers"}, when=is_odd)(odd)
    step(graph, "after", "lines", "changed", gives=lambda lines, _: len(lines))

    @graph.node
    async def ticks(lines: list[str]):
        for line in lines:
            yield line

    graph.node(name="of_ticks", each={"line": "ticks"})(lengths)

    @graph.node
    async def nested(run, lines: list[str]) -> list[tuple[str, int]]:
        return await run.map(lengths_alone, lines)

    return graph


INPUTS = {"text": "a, bb, ccc", "numbers": [1, 2, 3]}


def check_that_it_gives_the_same(*, pool=None):
    executor, records = ByValue(pool), []

    ended = run(several(), INPUTS, executor=executor, tracer=Tracer(records.append))

    assert ended.status == "finished", ended
    pairs = [("a", 1), ("bb", 2), ("ccc", 3)]
    assert ended.outputs["total"] == {**dict(pairs), "skipped": 1}
    assert ended.outputs["of_ticks"] == ended.outputs["nested"] == pairs
    assert ended.outputs["after"] == 3
    assert (ended.outputs["changed"] == os.getpid()) is (pool is None)
    sent = {"lines", "lengths[2]", "odd[0]", "total", "of_ticks[1]", "nested/lengths_alone[0]"}
    assert sent <= set(executor.sent)
    assert len(executor.sent) == len(set(executor.sent))

    again = ByValue(pool)
    resumed = run(several(), INPUTS, executor=again, earlier=Earlier(as_read(records)))
    assert resumed.outputs == ended.outputs
    assert again.sent == []


def test_a_graph_gives_the_same_elsewhere_and_nothing_is_sent_again():
    check_that_it_gives_the_same()


@pytest.mark.slow
def test_a_graph_gives_the_same_in_another_process():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        check_that_it_gives_the_same(pool=pool)
