"""Two real llama.cpp servers behind one endpoint: their caches, and the end of one."""

import asyncio
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from bench_replicas import SHARE_AIM, cached_share, engines, one_ended

pytestmark = pytest.mark.slow


def test_two_servers_keep_as_much_of_the_prefix_cache_as_one():
    async def main():
        async with engines(1) as [alone]:
            share_one = await cached_share(alone, loops=2)
        async with engines(2) as both:
            return share_one, await cached_share(*both, loops=2)

    share_one, share_two = asyncio.run(main())
    assert share_one > 0.4
    assert share_two >= SHARE_AIM * share_one


def test_no_call_is_lost_when_a_servers_process_ends():
    async def main():
        async with engines(2) as both:
            return await one_ended(*both, calls=24)

    found = asyncio.run(main())
    assert found["lost"] == 0
    assert sum(found["reasons"].values()) == 24
    assert found["reasons"]["failed over"] > 0
