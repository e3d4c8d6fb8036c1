"""Whatever waits for whatever, with however few places: a run comes to its end."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st
from session_runs import settings_of

from harness import Concurrency, Pipeline, Run, ScriptedBackend, ScriptedReply, ToolCall
from harness.rubric import Rubric

EXAMPLES = settings.default.max_examples
PATIENCE_S = 20.0
"""Of real time, where a run takes a fiftieth of a second: nothing in it sleeps."""
UNHURRIED = {"durability": "exit", "timelines": []}
CHECKS = [{"check": "words", "min": 2}]
RUBRIC = Rubric.model_validate(
    {"id": "long", "title": "Long", "pass_at": 10}
    | {"dimensions": [{"name": "long", "checks": CHECKS}]}
)
Way = tuple[str, int, int | None]
"""How a level nests the next one, how many times, and with how many places of its own."""
WAYS = st.tuples(
    st.sampled_from(["map", "call", "agent", "wiggum", "lock", "gather"]),
    st.integers(1, 3),
    st.none() | st.integers(1, 3),
)


def model(request):
    """Asks for the tool once, where there is one; else says two words."""
    if request.tools and request.messages[-1].role == "user":
        wanted = [ToolCall(f"go-{n}", "go", json.dumps({"number": n})) for n in range(2)]
        return ScriptedReply(tool_calls=tuple(wanted))
    return "two words"


async def nested(run: Run, levels: list[Way], lock: asyncio.Lock) -> int:
    """How many times the innermost level is reached; all by the same `run`."""
    if not levels:
        await run.chat("producer", "Say it.")
        return 1
    (way, width, places), *inner = levels

    async def item(number: int) -> int:
        return await nested(run, inner, lock)

    count = 0
    if way == "map":
        count = sum(await run.map(item, [*range(width)], max_parallel=places))
    elif way == "gather":
        count = sum(await asyncio.gather(*(item(number) for number in range(width))))
    elif way == "lock":
        # Not again inside: its holder would wait for itself.
        inner = [level for level in inner if level[0] != "lock"]

        async def alone(number: int) -> int:
            async with lock:
                return await item(number)

        count = sum(await run.map(alone, [*range(width)], max_parallel=places))
    elif way == "call":
        pipeline = Pipeline("inner")
        limit = None if places is None else Concurrency(places)

        @pipeline.node(concurrency=limit)
        async def first() -> int:
            return width

        @pipeline.node(concurrency=limit)
        async def second(first: int) -> int:
            return await item(first)

        count = (await run.call(pipeline)).outputs["second"]
    elif way == "agent":
        reached = []

        async def go(number: int) -> str:
            """Goes on."""
            reached.append(await item(number))
            return "done"

        await run.agent("producer", "Do it.", tools=[go])
        count = sum(reached)
    else:
        await run.wiggum("Write.", rubric=RUBRIC, max_rounds=2)
        count = await item(0)
    return count


def leaves(levels: list[Way], *, may_lock: bool = True) -> int:
    count = 1
    for way, width, _ in levels:
        if way == "lock" and not may_lock:
            continue
        may_lock = may_lock and way != "lock"
        count *= {"agent": 2, "call": 1, "wiggum": 1}.get(way, width)
    return count


@settings(max_examples=10 if EXAMPLES < 100 else EXAMPLES)  # the fast tier's cases come below
@given(st.lists(WAYS, min_size=1, max_size=3), st.none() | st.integers(1, 3), st.integers(1, 2))
@example([("map", 4, None), ("map", 4, None)], 1, 1)
@example([("map", 2, None), ("agent", 1, None), ("agent", 1, None)], 1, 2)
@example([("lock", 4, None), ("call", 1, 1)], 2, 1)
@example([("gather", 3, None), ("wiggum", 1, None), ("call", 1, 1)], 1, 2)
def test_any_nesting_of_rows_maps_calls_loops_and_agents_ends(levels, places, rows):
    pipeline = Pipeline("any", max_parallel=places)
    lock = asyncio.Lock()

    @pipeline.node
    async def count(run: Run, row: str) -> int:
        return await nested(run, levels, lock)

    async def main(folder: str) -> list[object]:
        async with asyncio.timeout(PATIENCE_S):
            result = await pipeline.batch(
                [{"row": str(number)} for number in range(rows)],
                max_parallel=places,
                settings=settings_of(Path(folder), trace=UNHURRIED),
                backends={"producer": ScriptedBackend(model)},
            )
        return list(result.outputs.values())

    with tempfile.TemporaryDirectory() as folder:
        assert asyncio.run(main(folder)) == [leaves(levels)] * rows
