"""The runner with another executor than its own: what calls take and give are values."""

import asyncio
import multiprocessing
import os
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor

import pool_work
import pytest
from graph_runs import PATIENCE_S, as_read, execute_graph
from pool_work import InPool

from harness.graph import Earlier, Graph, Retry
from harness.trace import SpanStarted, Tracer


@pytest.fixture(scope="module")
def pool():
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        yield pool


def run_in(pool, graph, inputs=None, *, records=None, **how):
    """As `graph_runs.run`, by the clock: other processes know no virtual time."""
    executor = InPool(pool)

    async def main():
        async with asyncio.timeout(10 * PATIENCE_S):
            tracer = Tracer((records if records is not None else []).append)
            return await execute_graph(graph, inputs, executor=executor, tracer=tracer, **how)

    return asyncio.run(main()), executor.sent


def several() -> Graph:
    graph = Graph("several")
    graph.node(pool_work.lines)
    graph.node(each={"line": "lines"})(pool_work.process)
    graph.node(each={"line": "lines"})(pool_work.lengths)
    graph.node(each={"number": "numbers"}, when=pool_work.is_odd)(pool_work.odd)
    graph.node(pool_work.total)

    @graph.node(each={"length": "lengths"})
    async def here(length: tuple[str, int]) -> str:
        return f"{os.getpid()}"

    @graph.node
    async def ticks(lines: list[str]) -> AsyncIterator[str]:
        for line in lines:
            yield line

    graph.node(name="of_ticks", each={"line": "ticks"})(pool_work.lengths)

    @graph.node
    async def nested(run, lines: list[str]) -> list[tuple[str, int]]:
        return await run.map(pool_work.lengths_alone, lines)

    return graph


INPUTS = {"text": "a, bb, ccc", "numbers": [1, 2, 3]}


def test_a_graph_gives_the_same_in_other_processes(pool):
    records: list[object] = []

    ended, sent = run_in(pool, several(), INPUTS, records=records)

    assert ended.status == "finished", ended
    assert ended.outputs["total"] == {"a": 1, "bb": 2, "ccc": 3, "skipped": 1}
    assert ended.outputs["of_ticks"] == [("a", 1), ("bb", 2), ("ccc", 3)]
    assert ended.outputs["nested"] == [("a", 1), ("bb", 2), ("ccc", 3)]
    assert os.getpid() not in ended.outputs["process"]
    assert set(ended.outputs["here"]) == {str(os.getpid())}
    assert {"lines", "lengths[2]", "odd[0]", "total", "of_ticks[1]"} <= set(sent)
    assert "nested/lengths_alone[0]" in sent
    spans = [one.attributes["label"] for one in records if isinstance(one, SpanStarted)]
    assert set(sent) < set(spans)


def test_its_outputs_are_reused_and_nothing_is_sent_again(pool):
    records: list[object] = []
    first, _ = run_in(pool, several(), INPUTS, records=records)

    ended, sent = run_in(pool, several(), INPUTS, earlier=Earlier(as_read(records)))

    assert ended.outputs == first.outputs
    assert sent == []


def test_what_raises_over_there_is_tried_again_here(pool, tmp_path):
    graph = Graph("flaky")
    graph.node(retry=Retry(3, first_delay_s=0))(pool_work.flaky)
    path = tmp_path / "times"

    ended, sent = run_in(pool, graph, {"path": str(path)})

    assert ended.outputs == {"flaky": 3}
    assert sent == ["flaky"] * 3

    path.unlink()
    graph = Graph("flaky")
    graph.node(pool_work.flaky)
    ended, _ = run_in(pool, graph, {"path": str(path)})
    (failure,) = ended.failures
    assert (type(failure.error), str(failure.error)) == (OSError, "only 1")


def test_who_changes_what_it_was_given_changes_a_copy(pool):
    graph = Graph("changing")
    graph.node(pool_work.lines)
    graph.node(pool_work.changed)

    @graph.node
    async def after(lines: list[str], changed: int) -> int:
        return len(lines)

    ended, _ = run_in(pool, graph, {"text": "a, b"})

    assert ended.outputs == {"lines": ["a", "b"], "changed": 0, "after": 2}


@pytest.mark.parametrize("parallel_calls", [1, 2])
def test_each_call_is_sent_once_however_many_may_be_under_way(pool, parallel_calls):
    ended, sent = run_in(pool, several(), INPUTS, parallel_calls=parallel_calls)

    assert ended.status == "finished"
    assert len(sent) == len(set(sent))
