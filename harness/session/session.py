"""The session: the one place where the parts of a run are joined, and closed again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from harness.errors import ConfigurationInvalid
from harness.inference import Backend, Endpoint, InferenceShim
from harness.session.audit import audit_entry
from harness.session.library import PassageLibrary
from harness.session.models import known_endpoints, open_models
from harness.session.roles import Roles
from harness.session.secrets import known_secrets
from harness.session.settings import Settings
from harness.trace import AUDIT_LOG, RunTrace, Sink, TraceOptions, append_line
from harness.wiggum import WiggumResult

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The open parts of one run."""

    trace: RunTrace
    """Its record."""
    shim: InferenceShim
    """Its models."""
    roles: Roles
    """Which of them does what."""
    passages: PassageLibrary
    """Its memory."""
    rubrics: Path
    """Where rubrics are looked for first."""
    loops: list[WiggumResult] = field(default_factory=list)
    """How each revise loop ended; grows as they do."""


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

    However the block is left, the run's journal, its Chrome trace and its line in the audit log
    are written.

    Args:
        settings: What to open.
        name: What the run is called.
        task: What it is for, as the audit log keeps it.
        environment: Holds the API keys that endpoints name.
        backends: Ready-made backends by tag, beside those of the settings.
        observers: See each of the run's records as it happens.

    Raises:
        ConfigurationInvalid: The settings contradict themselves, or runs cannot be written.
        SameModel: Producer and evaluator resolve to one model.
        ModelFileInvalid: An embedded model's file is missing or not a GGUF.
    """
    # 1. What the settings alone tell to be wrong, before there is a run.
    endpoints = known_endpoints(settings, backends)
    roles = Roles(endpoints, settings.roles)
    secrets = known_secrets(
        endpoints.values(), environment=environment, named=settings.trace.secrets
    )
    trace = _start_record(settings, name, secrets, observers)
    loops: list[WiggumResult] = []
    try:
        async with AsyncExitStack() as stack:
            # 2. The record first, so that everything after it is in it.
            stack.enter_context(trace)
            _describe_endpoints(endpoints, trace)
            shim = await stack.enter_async_context(
                open_models(
                    endpoints,
                    settings=settings,
                    environment=environment,
                    backends=backends,
                    required=roles.in_use,
                    tracer=trace,
                    sample_every_s=settings.trace.sample_ms / 1000,
                )
            )
            passages = PassageLibrary(settings.memory.path, tracer=trace)
            stack.push_async_callback(passages.aclose)
            yield Session(
                trace=trace,
                shim=shim,
                roles=roles,
                passages=passages,
                rubrics=settings.rubrics,
                loops=loops,
            )
    finally:
        # 3. The line about it, now that the record is closed and can be read.
        journal = trace.journal()
        if journal is not None:
            entry = audit_entry(
                journal, task=task, roles=roles, loops=loops, content=settings.trace.content
            )
            _append(settings.traces / AUDIT_LOG, trace.redactor.clean_line(entry.as_line()))


def _describe_endpoints(endpoints: Mapping[str, Endpoint], trace: RunTrace) -> None:
    """What the report must know of the models that calls will name, at the head of the record."""
    for tag, endpoint in endpoints.items():
        # A trace is shown to others: where a file lies on this machine is not theirs to know.
        said = endpoint.model_dump(
            mode="json", exclude={"tag", "api_key_env", "path"}, exclude_defaults=True
        )
        if endpoint.path is not None:
            said["file"] = endpoint.path.name
        trace.instant("endpoint", model=tag, **said)


def _append(path: Path, line: bytes) -> None:
    """A run's result, or its error, must not be lost because its line cannot be written."""
    try:
        append_line(path, line)
    except OSError as error:
        _log.warning("the run is not in the audit log", path=str(path), error=str(error))


def _start_record(
    settings: Settings, name: str, secrets: Collection[str], observers: Sequence[Sink]
) -> RunTrace:
    options = TraceOptions(
        content=settings.trace.content,
        durability=settings.trace.durability,
        timelines=settings.trace.timelines,
        secrets=secrets,
    )
    try:
        return RunTrace(settings.traces, name=name, options=options, observers=observers)
    except OSError as error:
        raise ConfigurationInvalid(
            f"runs cannot be written to '{settings.traces}' ({error.strerror}); set traces in "
            "harness.toml to a directory that can be written"
        ) from error
