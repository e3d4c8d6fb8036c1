import asyncio

import pytest

from harness.errors import CallTimeout
from harness.inference import Endpoint
from harness.inference.time_limits import time_limits, timed_out

SOON_S = 0.02
LONG_S = 300.0


def endpoint(**limits):
    return Endpoint(tag="judge", backend="scripted", **limits)


async def run(limits, pieces, *, timeout_s=None):
    """So many pieces of a reply come at once, and then nothing for ever."""
    async with time_limits(endpoint(**limits), timeout_s=timeout_s) as arrived:
        for _ in range(pieces):
            await asyncio.sleep(0)
            arrived()
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("limits", "pieces", "of_the_call", "limit"),
    [
        ({"timeout_s": SOON_S}, 0, None, "timeout_s"),
        ({"first_token_timeout_s": SOON_S}, 0, None, "first_token_timeout_s"),
        ({"between_tokens_timeout_s": SOON_S}, 3, None, "between_tokens_timeout_s"),
        ({"first_token_timeout_s": LONG_S, "timeout_s": SOON_S}, 0, None, "timeout_s"),
        ({"first_token_timeout_s": LONG_S, "timeout_s": SOON_S}, 1, None, "timeout_s"),
        ({"timeout_s": LONG_S}, 0, SOON_S, "timeout_s"),
        ({"timeout_s": SOON_S}, 0, LONG_S, "timeout_s"),
    ],
    ids=str,
)
def test_the_limit_that_was_over_names_itself(limits, pieces, of_the_call, limit):
    with pytest.raises(CallTimeout, match=f"{limit} = {SOON_S:g} s") as caught:
        asyncio.run(run(limits, pieces, timeout_s=of_the_call))

    assert (caught.value.limit, caught.value.endpoint) == (limit, "judge")
    has_part = limit == "timeout_s" and pieces > 0
    assert ("about 1 token of it came" in str(caught.value)) == has_part


@pytest.mark.parametrize(
    ("seconds", "shown"), [(3600, "3600"), (1234.5, "1234"), (0.12345, "0.123")]
)
def test_a_limit_is_told_in_whole_digits(seconds, shown):
    late = timed_out("timeout_s", endpoint(timeout_s=seconds))
    assert f"timeout_s = {shown} s" in str(late)


def test_a_cancellation_is_no_timeout():
    async def main():
        task = asyncio.create_task(run({}, 0))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
