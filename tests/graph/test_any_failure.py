"""Random pipelines of nodes that go wrong in every way: each run ends, and all is accounted for."""

import asyncio
import re
from dataclasses import dataclass
from random import Random

import virtual_time
from graph_runs import (
    cancels_itself,
    execute,
    forever,
    gives_when_cancelled,
    ignores_its_cancellation,
    raises_when_cancelled,
)
from hypothesis import given
from random_graphs import SEED
from watched import Watched, all_spans_ended, unended_tasks, watch

from harness.errors import RunLimitReached
from harness.graph import Concurrency, Default, Graph, Retry, Skipped, Timeout, bind_inputs
from harness.trace import Tracer

DEADLINE_S = 40.0
GRACE_S = 1.0


async def work():
    return "done"


async def takes_long():
    await asyncio.sleep(10)
    return "done"


async def raises():
    await asyncio.sleep(1)
    raise ValueError("raised")


async def gives_another_type():
    return 5


async def reaches_a_limit():
    raise RunLimitReached("over", limit="calls")


async def raises_a_group():
    async with asyncio.TaskGroup() as group:
        group.create_task(raises())
        group.create_task(forever())


OF_GROUPS = {"raises", "forever"}
"""Tasks of a node itself, which a run knows nothing of: they outlive one that is broken off."""

WRONG = (
    takes_long, forever, raises, ignores_its_cancellation, gives_another_type,
    reaches_a_limit, cancels_itself, raises_when_cancelled, gives_when_cancelled, raises_a_group,
)  # fmt: skip


@dataclass
class Made:
    """A pipeline made by chance."""

    random: Random
    wrong: float
    """How likely it is that a call goes wrong."""

    def graph(self, name: str, *, depth: int = 0) -> Graph:
        random = self.random
        graph = Graph(name, fail_fast=random.random() < 0.15)
        before: list[str] = []
        lists: list[str] = ["numbers"]
        for number in range(random.randint(1, 7 - 2 * depth)):
            node = f"n{number}"
            takes = random.choice([None, *before])
            kind = random.choice(
                ("plain", "mapped", "mapped", "stream", *(("call", "map", "both") * (depth < 2)))
            )
            options = self.options()
            if kind == "mapped":
                source = random.choice(lists)
                graph.node(name=node, each={"one": source}, **options)(self.one())
                lists.append(node)
            elif kind == "stream":
                if isinstance(options["on_error"], Default):
                    options["on_error"] = Default(["default"])
                graph.node(name=node, **options)(self.stream())
                lists.append(node)
            elif kind == "plain":
                taken = {"takes": {"other": takes}} if takes else {}
                graph.node(name=node, **taken, **options)(self.plain(takes_other=bool(takes)))
            else:
                graph.node(name=node, **options)(self.nesting(kind, depth))
            before.append(node)
        return graph

    def options(self) -> dict[str, object]:
        random = self.random
        return {
            "retry": random.choice((None, None, Retry(2, first_delay_s=1))),
            "timeout": random.choice((None, Timeout(total_s=3), Timeout(idle_s=2))),
            "on_error": random.choice((None, None, "skip", Default("default"))),
            "concurrency": random.choice((None, None, Concurrency(1))),
            "when": random.choice((None, None, None, None, lambda: False, lambda: 1 / 0)),
        }

    def chosen(self):
        return self.random.choice(WRONG) if self.random.random() < self.wrong else work

    def plain(self, *, takes_other: bool):
        does = self.chosen()

        async def plain() -> str:
            return await does()

        async def taking(other: object) -> str:
            return await does()

        return taking if takes_other else plain

    def one(self):
        does = [self.chosen() for _ in range(4)]
        order = iter(range(10**6))

        async def one(one: object) -> str:
            return await does[next(order) % 4]()

        return one

    def stream(self):
        does = [self.chosen() for _ in range(self.random.randint(0, 3))]

        async def stream():
            for one in does:
                yield await one()

        return stream

    def nesting(self, kind: str, depth: int):
        subs = [self.graph(name, depth=depth + 1) for name in ("left", "right")]
        step, catches = self.one(), self.random.random() < 0.2

        async def nesting(run) -> str:
            try:
                if kind == "map":
                    return f"{len(await run.map(step, [1, 2, 3]))}"
                if kind == "call":
                    return f"{len(await run.call(subs[0], inputs_of(subs[0])))}"
                both = (run.call(sub, inputs_of(sub)) for sub in subs)
                return f"{len(await asyncio.gather(*both))}"
            except Exception:
                if catches:
                    return "caught"
                raise

        return nesting


def inputs_of(graph: Graph) -> dict[str, object]:
    sources = {one.source for node in graph.nodes.values() for one in node.parameters}
    return {"numbers": [1, 2, 3]} if "numbers" in sources else {}


@given(seed=SEED)
def test_every_run_ends_and_accounts_for_every_call(seed):
    random = Random(seed)
    graph = Made(random, wrong=random.choice((0.1, 0.3, 0.8))).graph("top")
    how = {"max_parallel": random.choice((None, 1, 2, 5)), "deadline_s": DEADLINE_S}
    watched = watch(graph, inputs_of(graph), **how)
    execution = watched.ended

    # It ends, and leaves nothing.
    assert watched.seconds <= DEADLINE_S + GRACE_S
    assert {task.get_coro().__name__ for task in watched.tasks_left} <= OF_GROUPS
    assert all_spans_ended(watched.records)

    # What became of each node is said, and of what it became so as well.
    said = {one.node for one in (*execution.failures, *execution.skips)}
    for name in graph.nodes:
        calls = {label for label in said if re.match(rf"{name}(\[\d+\])?$", label)}
        inside = {label for label in said if re.match(rf"{name}(\[\d+\])?(/|$)", label)}
        assert name in execution.outputs or calls or inside, name
        if isinstance(execution.outputs.get(name), Skipped):
            assert calls, name
    assert {skip.because_of for skip in execution.skips} - {None} <= said | going_on(watched)

    # It is as its parts are.
    if execution.failures:
        assert execution.status == "failed"
    elif execution.stopped_by is not None:
        assert execution.status == "stopped"
    else:
        assert execution.status == "finished"
        assert graph.nodes.keys() == execution.outputs.keys()

    # What was given is written down.
    assert {label for label, attempts in watched.statuses.items() if "ok" in attempts} <= (
        watched.recorded
    )


@given(seed=SEED)
def test_a_run_that_is_cancelled_at_any_moment_ends_within_the_grace(seed):
    random = Random(seed)
    graph = Made(random, wrong=random.choice((0.1, 0.3, 0.8))).graph("top")
    after_s, max_parallel = random.choice((0.0, 0.5, 1.0, 2.5, 7.0)), random.choice((None, 1, 3))
    records = []

    async def main():
        loop = asyncio.get_running_loop()
        running = asyncio.create_task(
            execute(
                graph,
                bind_inputs(graph, inputs_of(graph)),
                run_of=lambda call: call,
                tracer=Tracer(records.append, clock=lambda: round(loop.time() * 1e9)),
                max_parallel=max_parallel,
            )
        )
        await asyncio.wait({running}, timeout=after_s)
        begun_s = loop.time()
        running.cancel()
        await asyncio.wait({running})
        return running.cancelled(), loop.time() - begun_s, await unended_tasks()

    was_cancelled, took_s, left = virtual_time.run(main())

    assert was_cancelled or took_s == 0  # or it was over before
    assert took_s <= GRACE_S
    assert {task.get_coro().__name__ for task in left} <= OF_GROUPS
    assert all_spans_ended(records)


def going_on(watched: Watched) -> set[str]:
    """Calls that ended something nested in them, and went on."""
    return {label for label, attempts in watched.statuses.items() if attempts[-1] == "ok"}
