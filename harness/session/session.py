"""The session: the one place where the parts of a run are joined, and closed again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog

from harness.errors import ConfigurationInvalid
from harness.inference import Backend, InferenceShim, to_its_end
from harness.session.audit import audit_entry
from harness.session.casting import Casting
from harness.session.library import PassageLibrary
from harness.session.models import describe_endpoints, known_endpoints, open_models
from harness.session.roles import Roles
from harness.session.secrets import known_secrets, secret_variables
from harness.session.served_models import ServedModels
from harness.session.settings import Settings
from harness.trace import (
    AUDIT_LOG,
    CallGroup,
    RunTrace,
    Sink,
    TraceOptions,
    append_line,
    calls_of,
    describe,
    group_calls,
)
from harness.wiggum import WiggumResult

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The open parts of one run."""

    trace: RunTrace
    """Its record."""
    shim: InferenceShim
    """Its models."""
    casting: Casting
    """Which of them does what, and what is to be said about it."""
    served: ServedModels
    """The same models, asked in a role: what the servers answer with is looked at."""
    passages: PassageLibrary
    """Its memory."""
    rubrics: Path
    """Where rubrics are looked for first."""
    loops: list[WiggumResult] = field(default_factory=list)
    """How each revise loop ended; grows as they do."""
    models: list[CallGroup] = field(default_factory=list)
    """What each model was used for; known when the session is closed."""

    @property
    def roles(self) -> Roles:
        """Which model does what."""
        return self.casting.roles


@asynccontextmanager
async def open_session(
    settings: Settings,
    *,
    name: str,
    task: str = "",
    environment: Mapping[str, str],
    backends: Mapping[str, Backend] | None = None,
    observers: Sequence[Sink] = (),
) -> AsyncIterator[Session]:
    """Opens everything that a run needs, and closes it in reverse order.

    However the block is left, the run's journal, its timelines and its line in the audit log are
    written.

    Args:
        settings: What to open.
        name: What the run is called.
        task: What it is for, as the audit log keeps it.
        environment: Holds the API keys that endpoints name.
        backends: Ready-made backends by tag, beside those of the settings.
        observers: See each of the run's records as it happens.

    Raises:
        ConfigurationInvalid: The settings contradict themselves, or runs cannot be written.
        SameModel: Producer and evaluator, or those that can answer for them, are one model.
        SameFamily: They are of one family, and the settings refuse that.
        ModelFileInvalid: An embedded model's file is missing or not a GGUF.
    """
    # 1. What the settings alone tell to be wrong, before there is a run.
    endpoints = known_endpoints(settings, backends)
    casting = Casting(endpoints, settings)
    secrets = known_secrets(
        endpoints.values(), environment=environment, named=settings.trace.secrets
    )
    variables = secret_variables(endpoints.values(), named=settings.trace.secrets)
    trace = _start_record(settings, name, secrets, variables, observers)
    made = _Made()
    try:
        async with AsyncExitStack() as stack:
            # 2. The record first, so that everything after it is in it.
            await stack.enter_async_context(_recorded(trace))
            describe_endpoints(endpoints, trace)
            await casting.ask_servers(trace, environment=environment)
            casting.choose_evaluators(trace, task=task, run_id=trace.run_id)
            casting.begin(trace)
            shim = await stack.enter_async_context(
                open_models(
                    endpoints,
                    settings=settings,
                    environment=environment,
                    backends=backends,
                    required=casting.required,
                    tracer=trace,
                    sample_every_s=settings.trace.sample_ms / 1000,
                    warn=partial(casting.warn, tracer=trace),
                )
            )
            passages = PassageLibrary(settings.memory.path, tracer=trace)
            stack.push_async_callback(passages.aclose)
            yield Session(
                trace=trace,
                shim=shim,
                casting=casting,
                served=ServedModels(shim.chat, casting=casting, tracer=trace),
                passages=passages,
                rubrics=settings.rubrics,
                loops=made.loops,
                models=made.models,
            )
    finally:
        # 3. What is made of it, now that it is closed and can be read.
        await to_its_end(partial(_conclude, trace, settings, task=task, casting=casting, made=made))


@asynccontextmanager
async def _recorded(trace: RunTrace) -> AsyncIterator[None]:
    """The trace's block. It is left in a thread: to draw a long run takes a while."""
    trace.__enter__()
    try:
        yield
    except BaseException as error:
        await to_its_end(partial(trace.__exit__, type(error), error, error.__traceback__))
        raise
    await to_its_end(partial(trace.__exit__, None, None, None))


@dataclass(frozen=True, slots=True)
class _Made:
    """What grows while a run goes on, and is whole when it is over."""

    loops: list[WiggumResult] = field(default_factory=list)
    models: list[CallGroup] = field(default_factory=list)


def _conclude(
    trace: RunTrace, settings: Settings, *, task: str, casting: Casting, made: _Made
) -> None:
    """Sums up the calls, and adds the run's line to the audit log.

    A run's result, or its error, must not be lost because its record cannot be read or written.
    """
    path = settings.traces / AUDIT_LOG
    journal = trace.journal()
    if journal is None:
        return
    try:
        calls = calls_of(journal.spans())
        made.models.extend(group_calls(calls, by=lambda call: call.model))
        entry = audit_entry(
            journal,
            calls=calls,
            task=task,
            casting=casting,
            loops=made.loops,
            redactor=trace.redactor,
            content=settings.trace.content,
        )
        append_line(path, trace.redactor.clean_line(entry.as_line()))
    except Exception as error:  # noqa: BLE001 - as above
        _log.warning("the run is not in the audit log", path=str(path), error=describe(error))


def _start_record(
    settings: Settings,
    name: str,
    secrets: Collection[str],
    variables: tuple[str, ...],
    observers: Sequence[Sink],
) -> RunTrace:
    options = TraceOptions(
        content=settings.trace.content,
        durability=settings.trace.durability,
        timelines=settings.trace.timelines,
        secrets=secrets,
        secret_variables=variables,
    )
    try:
        return RunTrace(settings.traces, name=name, options=options, observers=observers)
    except OSError as error:
        raise ConfigurationInvalid(
            f"runs cannot be written to '{settings.traces}' ({error.strerror}); set traces in "
            "harness.toml to a directory that can be written"
        ) from error
