"""`harness.open`: models, memory and limits that outlive runs, for services and notebooks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, TypedDict, Unpack

from harness.errors import InvalidInput
from harness.graph.graph import ResultT
from harness.inference import Backend, Limits, Meter, Spent
from harness.log import warnings_heard_by
from harness.session.open_run import Setup, SharedParts
from harness.session.own_loop import Background, in_background, refuse_running_loop
from harness.session.passages import PassageStore
from harness.session.pipeline import Pipeline, check_options, run_pipeline
from harness.session.result import RunEvents, RunResult
from harness.session.roles import cast_roles
from harness.session.settings import Settings, settings_or_default
from harness.trace import Redactor, SharedTracer, Sink


class SessionOptions(TypedDict, total=False):
    """The options of `open`; see there."""

    settings: Settings | None
    limits: Limits | None
    tenants: Limits | Mapping[str, Limits] | None
    backends: Mapping[str, Backend] | None
    observers: Sequence[Sink]


# The options of a run in a session, beside `tenant`; all others are inputs.
_OPTIONS = frozenset({"resume", "answers", "asker", "limits", "observers", "origin"})


class Session:
    """Models, memory and limits that any number of runs share; `harness.open` makes it.

    Models stay in memory between runs, as far as the budget allows. Connections stay open, and
    servers are not probed again. Each run has its own roles, limits, journal and warnings.
    """

    def __init__(self, parts: SharedParts) -> None:
        self._parts = parts
        self._loop = asyncio.get_running_loop()
        # The callers' tasks that are inside `run`.
        self._tasks: set[asyncio.Task[Any]] = set()
        self._a_run_ended = asyncio.Event()
        self._is_open = True

    async def run(
        self,
        pipeline: Pipeline[ResultT],
        inputs: Mapping[str, object] | None = None,
        /,
        *,
        tenant: str | None = None,
        **options: Any,  # noqa: ANN401 - of `Pipeline.run_async`, and inputs by name
    ) -> RunResult[ResultT]:
        """Runs a pipeline as `Pipeline.run_async` does, with what the session has open.

        When its task is cancelled, or the session ends, the run ends as cancelled, and can be
        resumed, in this session or elsewhere.

        Args:
            pipeline: It may be another one each time.
            inputs: By name.
            tenant: For whom the run is made, in whose limits its calls count too. A resumed run
                keeps its own if none is given.
            options: Those of `Pipeline.run_async` but `settings` and `backends`; all others are
                inputs by name.

        Raises:
            InvalidInput: As there; or the session is closed, belongs to another event loop, or does
                not know the tenant.
            NodeFailed: A node raised.
        """
        if not self._is_open:
            raise closed()
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidInput(
                "the session belongs to another event loop; open one in each loop, or use "
                "harness.open_sync(), which any thread may call",
                code="session.other-loop",
            )
        if own := {"settings", "backends"} & options.keys():
            raise InvalidInput(
                f"{min(own)} are the session's: give them to harness.open(), or call "
                "pipeline.run_async()",
                code="session.option-of-session",
            )
        if not isinstance(pipeline, Pipeline):
            raise InvalidInput(
                f"{pipeline!r:.80} is no pipeline; session.run(pipeline, task=…) takes the object",
                code="session.not-a-pipeline",
            )
        named = {name: value for name, value in options.items() if name not in _OPTIONS}
        chosen = {name: value for name, value in options.items() if name in _OPTIONS}
        # An unknown tenant is refused before the run has a journal.
        self._parts.meter_of(tenant)
        task = asyncio.current_task()
        assert task is not None, "a coroutine is run by a task"
        self._tasks.add(task)
        try:
            return await run_pipeline(
                pipeline, inputs, named, shared=self._parts, tenant=tenant, **chosen
            )
        finally:
            self._tasks.discard(task)
            self._a_run_ended.set()

    def events(
        self,
        pipeline: Pipeline[Any],
        inputs: Mapping[str, object] | None = None,
        /,
        **options: Any,  # noqa: ANN401
    ) -> RunEvents:
        """Runs a pipeline as `run` does; yields its events, as `Pipeline.events` does."""
        observers = options.pop("observers", ())
        return RunEvents(
            lambda own: self.run(pipeline, inputs, observers=(*observers, own), **options)
        )

    def spent(self, tenant: str | None = None) -> Spent:
        """What calls took since the session was opened: all, or those made for a tenant."""
        return self._parts.meter_of(tenant).spent

    async def _end(self) -> None:
        """Cancels all runs, and waits until they have ended."""
        self._is_open = False
        # If this task is a run's, it must not wait for itself.
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        # The tasks belong to callers, and may go on for long after the runs in them have ended.
        while self._tasks & tasks:
            self._a_run_ended.clear()
            await self._a_run_ended.wait()


@asynccontextmanager
async def open(  # noqa: A001 - harness.open
    *,
    settings: Settings | None = None,
    limits: Limits | None = None,
    tenants: Limits | Mapping[str, Limits] | None = None,
    backends: Mapping[str, Backend] | None = None,
    observers: Sequence[Sink] = (),
) -> AsyncIterator[Session]:
    """Opens models, memory and limits once, for any number of runs.

        async with harness.open() as session:
            result = await session.run(pipeline, task="…")

    Models are loaded at the first call; servers of managed models are asked about them at once.
    Leaving the block cancels runs that still go on, and then closes everything.

    Args:
        settings: Used in place of the settings of the directory and the environment.
        limits: On tokens, calls and dollars of all runs together; those of the settings are for
            each run.
        tenants: Limits on what a tenant's runs take together: the same for each tenant, or by name.
            Then only those named exist.
        backends: Ready-made backends by tag, as for `Pipeline.run_async`; closed with the session.
        observers: Receive each record of every run, such as `harness.Metrics`; see its `of_run` to
            tell the runs apart.

    Raises:
        ConfigurationInvalid: The settings are invalid, or an endpoint with a role is not usable.
        InvalidInput: An argument is of the wrong type, or a limit is on time.
        ModelFileInvalid: An embedded model's file is missing or not a GGUF.
        DoesNotFit: A model with a role is larger than the budget.
        InferenceError: The server of a managed model with a role does not say what it takes.
    """
    settings = settings_or_default(settings)
    check_options(backends=backends, observers=observers)
    _check_session_limits(limits, tenants)
    setup = Setup.of(settings, backends, os.environ)
    endpoints = setup.settings.endpoints
    tracer = SharedTracer()
    tracer.redactor = Redactor(setup.trace_options.secrets)
    required = setup.required(cast_roles(endpoints, setup.settings), {})
    with warnings_heard_by(tracer.warned):
        async with setup.opened(tracer, required=required) as models:
            meter = Meter(
                limits=limits or Limits(), endpoints=endpoints, tracer=tracer, whose="session"
            )
            # Passages are also embedded in the background, outside of any run: the session's limits
            # count these calls too.
            metered = replace(models.client, meter=meter)
            store = PassageStore(settings.memory, ask=metered.embed)
            parts = SharedParts(
                setup=setup,
                models=models,
                store=store,
                observers=observers,
                meter=meter,
                tenants=tenants,
            )
            session = Session(parts)
            try:
                yield session
            finally:
                # The runs end before what they share is closed: the store, then the models.
                try:
                    await session._end()  # noqa: SLF001 - the two are one
                finally:
                    await store.aclose()


def closed() -> InvalidInput:
    """The error for a run that begins after the session was closed."""
    return InvalidInput(
        "the session is closed; run pipelines inside its block", code="session.closed"
    )


def _check_session_limits(limits: object, tenants: object) -> None:
    if not isinstance(tenants, Limits | Mapping | None):
        raise InvalidInput(
            f"tenants is {tenants!r:.80}; give Limits(…), or a mapping of names to them",
            code="session.tenants-invalid",
        )
    for scope in (limits, *(tenants.values() if isinstance(tenants, Mapping) else [tenants])):
        check_options(limits=scope)
        if isinstance(scope, Limits) and scope.max_seconds is not None:
            raise InvalidInput(
                "max_seconds limits a run, and not a session; give it to session.run(limits=…), or "
                "under [limits] in harness.toml",
                code="session.limit-on-time",
            )


class SyncSession:
    """A `Session` for code without an event loop, from any thread; `harness.open_sync` makes it."""

    def __init__(self, background: Background[Session]) -> None:
        self._background = background

    def run(
        self,
        pipeline: Pipeline[ResultT],
        inputs: Mapping[str, object] | None = None,
        /,
        **options: Any,  # noqa: ANN401
    ) -> RunResult[ResultT]:
        """See `Session.run`. Ctrl-C cancels the run, which can be resumed."""
        refuse_running_loop("await session.run(…) of harness.open()")
        # The thread has ended if the session is closed, or if this process is a forked child.
        if not self._background.thread.is_alive():
            raise closed()
        session = self._background.served
        return self._background.result_of(session.run(pipeline, inputs, **options))

    def spent(self, tenant: str | None = None) -> Spent:
        """See `Session.spent`."""
        return self._background.served.spent(tenant)


@contextmanager
def open_sync(**options: Unpack[SessionOptions]) -> Iterator[SyncSession]:
    """Opens a session as `open` does, with the same options, for code without an event loop.

        with harness.open_sync() as session:
            result = session.run(pipeline, task="…")

    Raises:
        InvalidInput: An event loop is running here, as in a notebook: `async with harness.open()`.
    """
    refuse_running_loop("async with harness.open() as session:")
    with in_background(open(**options)) as background:
        yield SyncSession(background)
