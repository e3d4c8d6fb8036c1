import asyncio

import pytest

from harness.errors import CallTimeout
from harness.inference import Endpoint
from harness.inference.time_limits import TimeLimits, timed_out

SOON_S = 0.02
LONG_S = 30.0


def endpoint(**limits):
    return Endpoint(tag="judge", backend="scripted", **limits)


async def run(limits, steps, *, timeout_s=None):
    """Waits some seconds before each piece of a reply, and for ever at its end."""
    async with TimeLimits(endpoint(**limits), timeout_s=timeout_s) as time_limits:
        for wait_s in steps:
            await asyncio.sleep(wait_s)
            time_limits.token_arrived()
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("limits", "steps", "limit"),
    [
        ({"timeout_s": SOON_S}, (), "timeout_s"),
        ({"first_token_timeout_s": SOON_S}, (), "first_token_timeout_s"),
        ({"between_tokens_timeout_s": SOON_S}, (0, 0, 0), "between_tokens_timeout_s"),
        ({"first_token_timeout_s": SOON_S, "timeout_s": 0.2}, (0,), "timeout_s"),
        ({"first_token_timeout_s": LONG_S, "timeout_s": SOON_S}, (), "timeout_s"),
        ({"between_tokens_timeout_s": LONG_S, "timeout_s": SOON_S}, (0,), "timeout_s"),
    ],
    ids=str,
)
def test_the_limit_that_was_over_names_itself(limits, steps, limit):
    with pytest.raises(CallTimeout, match=rf"^judge: .* within {limit} = ") as caught:
        asyncio.run(run(limits, steps))

    assert caught.value.limit == limit


def test_a_call_may_have_less_time_than_its_endpoint():
    with pytest.raises(CallTimeout, match=f"timeout_s = {SOON_S:g} s"):
        asyncio.run(run({"timeout_s": LONG_S}, (), timeout_s=SOON_S))


def test_a_call_cannot_have_more_time_than_its_endpoint():
    with pytest.raises(CallTimeout, match=f"timeout_s = {SOON_S:g} s"):
        asyncio.run(run({"timeout_s": SOON_S}, (), timeout_s=LONG_S))


def test_pieces_in_time_are_left_in_peace():
    async def main():
        limits = endpoint(first_token_timeout_s=0.2, between_tokens_timeout_s=0.2)
        async with TimeLimits(limits) as time_limits:
            for _ in range(20):
                await asyncio.sleep(0.02)
                time_limits.token_arrived()

    asyncio.run(main())


def test_a_cancellation_is_no_timeout():
    async def main():
        task = asyncio.create_task(run({}, ()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_a_connection_that_took_too_long_has_a_limit_too():
    error = timed_out("connect_timeout_s", endpoint(connect_timeout_s=2.5))

    assert str(error) == "judge: no connection within connect_timeout_s = 2.5 s"
    assert error.limit == "connect_timeout_s"
