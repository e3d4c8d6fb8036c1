"""A backend that is not asked while its server cannot be reached."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from harness.errors import CircuitOpen
from harness.inference.around.circuit import (
    Circuit,
    CircuitPolicy,
    Closed,
    Open,
    admit,
    after,
    outcome_of,
)
from harness.inference.around.wrapper import R, T, Wrapper
from harness.inference.backend import Backend
from harness.inference.completion import Completion
from harness.inference.request import ChatRequest, Request
from harness.trace import Tracer


class CircuitBreaking(Wrapper):
    """Refuses calls at once while there is no hope for them, so that nobody waits in vain.

    Args:
        backend: Asked while its server can be reached, and now and then to see whether it can.
        policy: The limits.
        tracer: Sees when calls begin to be refused and when no longer; the time is its clock's.
    """

    def __init__(self, backend: Backend, *, policy: CircuitPolicy, tracer: Tracer) -> None:
        super().__init__(backend)
        self._policy = policy
        self._tracer = tracer
        self._circuit: Circuit = Closed()
        self._last_failure = ""

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`.

        The first piece of a probe's tells that the server is there: others need not wait for more.
        """
        if isinstance(self._circuit, Closed):
            return await self.around(request, self._backend.chat)

        def on_text(text: str) -> None:
            self._conclude(request, None, sent_ns=self._tracer.now_ns())
            if request.on_text:
                request.on_text(text)

        return await self.around(replace(request, on_text=on_text), self._backend.chat)

    async def around(self, request: R, ask: Callable[[R], Awaitable[T]]) -> T:
        """Asks, unless it would be in vain.

        Raises:
            CircuitOpen: It was not asked.
        """
        sent_ns = self._tracer.now_ns()
        admitted = admit(self._circuit, now_ns=sent_ns)
        if admitted is None:
            raise self._refusal(request, now_ns=sent_ns)
        self._circuit = admitted
        try:
            reply = await ask(request)
        except BaseException as error:
            self._conclude(request, error, sent_ns=sent_ns)
            raise
        self._conclude(request, None, sent_ns=sent_ns)
        return reply

    def _conclude(self, request: Request, error: BaseException | None, *, sent_ns: int) -> None:
        """Takes note of what a call tells of the server."""
        before, now_ns = self._circuit, self._tracer.now_ns()
        outcome = outcome_of(error)
        self._circuit = after(before, outcome, sent_ns=sent_ns, now_ns=now_ns, policy=self._policy)
        if self._circuit == before:
            return
        if outcome == "unreachable" and isinstance(self._circuit, Open):
            self._last_failure = str(error).removeprefix(f"{request.model}: ")
            self._tracer.instant(
                "circuit opened",
                model=request.model,
                reason=type(error).__name__,
                detail=self._tracer.excerpt(str(error)),
                pause_s=self._circuit.pause_ns / 1e9,
            )
        elif outcome == "reached" and not isinstance(before, Closed):
            self._tracer.instant(
                "circuit closed", model=request.model, open_s=(now_ns - before.since_ns) / 1e9
            )

    def _refusal(self, request: Request, *, now_ns: int) -> CircuitOpen:
        circuit = self._circuit
        assert not isinstance(circuit, Closed)
        out_for_s = (now_ns - circuit.since_ns) / 1e9
        if isinstance(circuit, Open):
            again = f"it will be asked again in {(circuit.until_ns - now_ns) / 1e9:.1f} s"
        else:
            again = "another call is asking it just now"
        return CircuitOpen(
            f"not asked, as it has been out of reach for {out_for_s:.1f} s; {again}. "
            f"The last time: {self._last_failure}",
            endpoint=request.model,
        )
