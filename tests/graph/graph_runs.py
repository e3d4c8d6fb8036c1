"""Graphs of simple nodes, and runs of graphs: in virtual time, with a journal, cut, resumed."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import orjson
import virtual_time

from harness.graph import Earlier, Execution, Graph, NodeCall, bind_inputs
from harness.graph import execute as execute_shared
from harness.graph.node_call import Watcher
from harness.graph.reuse import Shared
from harness.graph.state import Places
from harness.trace import Flows, Journal, NodeOutput, RunTrace, SpanStarted, TraceOptions, Tracer

PATIENCE_S = 5.0
"""Nothing here waits for anything but itself: what does not move for so long hangs."""
_UNHURRIED = TraceOptions(durability="exit", timelines=())


class Calls:
    """Counts calls by name, and knows when each began.

    No dataclass: what it holds is no part of the code of the functions that use it.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.begun_s: dict[str, float] = {}

    def note(self, name: str) -> None:
        self.counts[name] += 1
        self.begun_s.setdefault(name, asyncio.get_running_loop().time())

    async def take(self, name: str, seconds: float) -> None:
        self.note(name)
        await asyncio.sleep(seconds)

    def clear(self) -> None:
        self.counts.clear()
        self.begun_s.clear()


class UnderWay:
    """Counts who is inside."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def spend(self, seconds: float = 1.0) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.now -= 1


def step(
    graph: Graph,
    name: str,
    *takes: str,
    each: Mapping[str, str] | None = None,
    seconds: float = 0.0,
    calls: Calls | None = None,
    raises: BaseException | type[BaseException] | None = None,
    gives: object = None,
    **options,
) -> None:
    """Adds an async node that takes values of these names, and for each mapped one an item.

    It is noted in `calls` with what it takes, waits so long, and raises, or gives a value: of a
    function, what that gives for what the node takes, awaited if it is async.
    """

    async def does(**taken: object) -> object:
        if calls is not None:
            calls.note(" ".join([name, *map(str, taken.values())]))
        await asyncio.sleep(seconds)
        if raises is not None:
            raise raises
        given = gives(*taken.values()) if callable(gives) else gives
        return await given if inspect.isawaitable(given) else given

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(one, keyword) for one in (*(each or {}), *takes)]
    does.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    graph.node(name=name, each=each, **options)(does)


def nests(
    graph: Graph, name: str, *subs: Graph, inputs: Mapping[str, object] | None = None, **options
) -> None:
    """Adds a node that calls these graphs at once."""

    async def call(run: NodeCall, *_: object) -> list[object]:
        if len(subs) == 1:
            return [dict(await run.call(subs[0], inputs or {}))]
        found = await asyncio.gather(*(run.call(sub, inputs or {}) for sub in subs))
        return [dict(one) for one in found]

    step(graph, name, "run", gives=call, **options)


async def forever() -> None:
    await asyncio.Event().wait()


async def ignores_its_cancellation() -> None:
    while True:
        try:
            await forever()
        except asyncio.CancelledError:
            continue


async def cancels_itself() -> None:
    asyncio.current_task().cancel()  # type: ignore[union-attr]
    await forever()


async def raises_when_cancelled() -> None:
    try:
        await forever()
    finally:
        raise RuntimeError("while tidying up")


async def gives_when_cancelled() -> str:
    with contextlib.suppress(asyncio.CancelledError):
        await forever()
    return "done all the same"


class SlowTracer(Tracer):
    """As a journal that takes three quarters of a second to be on the disk."""

    async def persisted(self) -> None:
        await asyncio.sleep(0.75)


async def execute(
    graph: Graph,
    inputs: Mapping[str, object],
    *,
    max_parallel: int | Places | None = None,
    deadline_s: float | None = None,
    watcher: Watcher | None = None,
    **shared,
) -> Execution:
    """A run with these surroundings."""
    places = max_parallel if isinstance(max_parallel, Places) else Places(max_parallel)
    around = Shared(**{"run_of": lambda call: call, "places": places, **shared})
    return await execute_shared(graph, inputs, around, deadline_s=deadline_s, watcher=watcher)


async def execute_graph(
    graph: Graph, inputs: Mapping[str, object] | None = None, *, tracer: Tracer | None = None, **how
) -> Execution:
    """As a session does it, with the call itself as the `run` of its node."""
    graph.check()
    values = bind_inputs(graph, inputs or {})
    return await execute(graph, values, **{"tracer": tracer or Tracer(), **how})


def run(graph: Graph, inputs: Mapping[str, object] | None = None, **how) -> Execution:
    """In virtual time; a run that hangs fails."""
    return virtual_time.run(execute_graph(graph, inputs, **how), patience_s=PATIENCE_S)


def run_recorded(
    graph: Graph, inputs: Mapping[str, object] | None = None, **how
) -> tuple[Execution, list[object]]:
    """The same, and everything that was recorded."""
    records: list[object] = []
    return run(graph, inputs, tracer=Tracer(records.append), **how), records


def outputs_of(graph: Graph, **inputs) -> Mapping[str, object]:
    """Of a run in which nothing went wrong."""
    ended = run(graph, inputs)
    assert ended.status == "finished", ended
    return ended.outputs


def run_in_journal(
    directory: Path,
    graph: Graph,
    inputs: Mapping[str, object] | None = None,
    *,
    resume: Path | None = None,
    secrets: tuple[str, ...] = (),
    **how,
) -> tuple[Execution, Path]:
    """A run, or a further part of one, with a journal on the disk."""

    async def main(trace: RunTrace) -> Execution:
        async with asyncio.timeout(PATIENCE_S):
            return await execute_graph(
                graph, inputs, tracer=trace, earlier=earlier_of(resume) if resume else None, **how
            )

    options = TraceOptions(durability="exit", timelines=(), secrets=secrets)
    with RunTrace(
        directory, name=graph.name, options=options if secrets else _UNHURRIED, resume=resume
    ) as trace:
        return asyncio.run(main(trace)), trace.journal_path


def outputs_in(path: Path) -> list[NodeOutput]:
    """What nodes returned, as the journal has it."""
    return [item for item in Journal(path).items() if isinstance(item, NodeOutput)]


def earlier_of(path: Path) -> Earlier:
    return Earlier(outputs_in(path))


def as_read(records: Iterable[object]) -> list[NodeOutput]:
    """The outputs among records, as they come back from a journal."""
    return [
        one._replace(value=orjson.loads(orjson.dumps(one.value)))
        for one in records
        if isinstance(one, NodeOutput)
    ]


def reruns(ended: Execution) -> list[tuple[str, str]]:
    """What was made again, and why."""
    return [(one.node, one.reason) for one in ended.reruns]


def resumed(
    graph: Graph, records: Iterable[object], inputs: Mapping[str, object] | None = None, **how
) -> tuple[Execution, list[object]]:
    """A further part of a run from what those before recorded; that, and what it records."""
    records, more = list(records), []
    ended = run(graph, inputs, tracer=Tracer(more.append), earlier=Earlier(as_read(records)), **how)
    return ended, [*records, *more]


def arrows(records: Iterable[object]) -> list[tuple[str, str]]:
    """From which node call an arrow leads to which."""
    records = list(records)
    labels = {one.id: one.attributes["label"] for one in records if isinstance(one, SpanStarted)}
    return [
        (labels[source], labels[one.target])
        for one in records
        if isinstance(one, Flows)
        for source in one.sources
    ]


def cut(path: Path, lines: int, directory: Path) -> Path:
    """A copy of a journal's first lines: what is left when the process is killed."""
    directory.mkdir(parents=True, exist_ok=True)
    copy = directory / path.name
    copy.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))
    return copy


def label(output: NodeOutput) -> str:
    return output.node if output.item is None else f"{output.node}[{output.item}]"
