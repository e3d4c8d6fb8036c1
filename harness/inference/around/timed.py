"""How long a call may take in all: one clock for its attempts, the waits between, and stand-ins."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from harness.inference.around.wrapper import R, T, Wrapper
from harness.inference.backend import Backend
from harness.inference.endpoint import Endpoint
from harness.inference.request import CountRequest
from harness.inference.time_limits import Deadline, timed_out


class Timed(Wrapper):
    """The innermost wrapper: here a call is sent, and its time begins to run.

    What it waits for before, a place, room or a model that loads, is not in its time.

    Args:
        backend: Told how much is left, as the request's `timeout_s`.
        endpoint: Names the limit in the error.
    """

    def __init__(self, backend: Backend, *, endpoint: Endpoint) -> None:
        super().__init__(backend)
        self._endpoint = endpoint

    async def around(self, request: R, ask: Callable[[R], Awaitable[T]]) -> T:
        """Asks, if there is time left, when its gate lets it.

        Raises:
            CallTimeout: There is none.
        """
        gate = None if isinstance(request, CountRequest) else request.gate
        timed = partial(self._in_time, ask=ask)
        return await (timed(request) if gate is None else gate(request, timed))

    async def _in_time(self, request: R, *, ask: Callable[[R], Awaitable[T]]) -> T:
        deadline: Deadline | None = request.deadline
        if deadline is None:
            return await ask(request)
        deadline.begin()
        if deadline.left_s <= 0:
            raise timed_out("timeout_s", self._endpoint)
        if deadline.left_s == math.inf:
            return await ask(request)
        return await ask(replace(request, timeout_s=deadline.left_s))
