"""Calls at two replicas, one of them slower, through the gate, on a clock of its own."""

import asyncio
from math import ceil

from virtual_loop import run_virtually

from harness.inference import ChatRequest, Replica, as_messages
from harness.inference.gate import Gate
from harness.trace import Tracer

AT_ONCE = 2
"""Calls at each replica; one takes a second at the quick one."""


def makespan_s(calls: int, slower: float, *, seed: int = 0) -> float:
    """Until all are answered; each begins in a way of its own, and all come at once."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        gate = Gate(
            max_parallel=AT_ONCE,
            replicas=[Replica(name="quick"), Replica(name="slow")],
            tracer=Tracer(clock=lambda: round(loop.time() * 1e9)),
        )

        async def ask(number: int) -> None:
            messages = as_messages(f"{seed}: call {number}")
            async with gate.passed(ChatRequest(model="m", messages=messages)) as place:
                await asyncio.sleep(slower if place.name == "slow" else 1.0)

        async with asyncio.TaskGroup() as group:
            for number in range(calls):
                group.create_task(ask(number))
        return loop.time()

    return run_virtually(main)


def best_split_s(calls: int, slower: float) -> float:
    """The same with the best number of calls that could be given to the slow one beforehand."""
    return min(
        max(ceil(slow / AT_ONCE) * slower, float(ceil((calls - slow) / AT_ONCE)))
        for slow in range(calls + 1)
    )
