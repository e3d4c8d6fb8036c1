"""The one place that joins the parts of a run, and closes them again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from harness.errors import ConfigurationInvalid, Notice
from harness.inference import NOTHING, Backend, Client, Limits, Meter, Spent
from harness.inference.limits import merged
from harness.inference.meter import token_prices
from harness.inference.reply_store import KeptReplies
from harness.log import log_warning, warnings_heard_by
from harness.metrics import otel_metrics
from harness.residency import KeepAliveBudget
from harness.rubric import Noise
from harness.session.audit import audit_line
from harness.session.casting import Casting, ServedModels, warn_of_no_price
from harness.session.mcp_tools import McpServers
from harness.session.models import describe_endpoints
from harness.session.passages import PassageLibrary, PassageStore
from harness.session.roles import Roles
from harness.session.settings import Settings
from harness.session.setup import Setup, SharedParts
from harness.session.surroundings import Surroundings
from harness.threads import to_its_end
from harness.trace import (
    AUDIT_LOG,
    CallGroup,
    RunTrace,
    Sink,
    TraceOptions,
    append_line,
    calls_of,
    describe,
    dump_json,
    group_calls,
    monotonic,
)
from harness.wiggum import RecordedLoop, WiggumResult


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """The parts of a run that goes on."""

    trace: RunTrace
    client: Client
    casting: Casting
    """Which model plays which role, and the run's warnings."""
    warn: Callable[[Notice], None]
    """Adds a warning to the log, the timeline, and the result."""
    served: ServedModels
    """Compares the models that the servers name in their replies."""
    seat: Callable[[], Awaitable[None]]
    """Before a judgement: readies the evaluators, if that was not done when the run began."""
    meter: Meter
    """What calls took, and may take."""
    replies: KeptReplies
    """Replies for nodes that have not ended, for when the run is resumed."""
    passages: PassageLibrary
    mcp: McpServers
    surroundings: Surroundings
    """What calls of nodes use, for when the run is resumed."""
    budget: KeepAliveBudget | None
    """None if no models share memory."""
    settings: Settings
    loops: list[WiggumResult] = field(default_factory=list)
    earlier_loops: list[RecordedLoop] = field(default_factory=list)
    """Loops of earlier parts of the run, in nodes that were not called again; known when all nodes
    have ended."""
    scored: list[bool] = field(default_factory=list)
    """Of each text of a scoring batch, whether it passed; one that has no verdict did not."""
    figures: dict[str, float] = field(default_factory=dict)
    """Of an evaluation, the mean of each score."""
    models: list[CallGroup] = field(default_factory=list)
    """The calls of each model; known when the run has ended."""
    noises: dict[tuple[str, Path, str], Noise | None] = field(default_factory=dict)
    """The evaluators' noise, by rubric, the folder of its files, and evaluators."""

    @property
    def roles(self) -> Roles:
        """As cast."""
        return self.casting.roles


@asynccontextmanager
async def open_run(
    settings: Settings,
    *,
    name: str,
    task: str = "",
    environment: Mapping[str, str],
    backends: Mapping[str, Backend] | None = None,
    observers: Sequence[Sink] = (),
    limits: Limits | None = None,
    command_limits: Limits | None = None,
    needed_roles: Mapping[str, str] | None = None,
    resume: Path | None = None,
    spent: Spent = NOTHING,
    produces: bool = True,
    judges: bool = True,
    surroundings: Surroundings | None = None,
    shared: SharedParts | None = None,
    tenant: str | None = None,
) -> AsyncIterator[OpenRun]:
    """Opens everything that a run needs, and closes it in reverse order.

    The run's journal, its timelines and its line in the audit log are written however the block
    ends.

    Args:
        settings: What to open.
        name: The pipeline's.
        task: What the run is for, for the audit log.
        environment: Holds the API keys that endpoints name.
        backends: Ready-made backends by tag, beside those of the settings. A backend with a role's
            name as its tag plays that role, over the settings.
        observers: Receive each record of the run as it happens.
        limits: Limits of the whole run; each overrides the same limit of the settings.
        command_limits: Limits of this part alone, inside those of the run.
        needed_roles: Roles that must have a usable model before the block begins, and the nodes
            that need them.
        resume: The journal of a run to resume.
        spent: The use of earlier parts of the run.
        produces: Whether drafts are also written, not only judged; see `Roles`.
        judges: Whether it is known that drafts are judged; otherwise mistakes that matter only then
            are found at the first judgement.
        surroundings: Of these settings, if earlier parts of the run were compared with them.
        shared: Of the session that it is a run of, whose settings and backends count.
        tenant: For whom the session makes it.

    Raises:
        ConfigurationInvalid: The settings contradict themselves, a role has no model, or runs
            cannot be written.
        InvalidInput: The run to resume is still going.
        SameModel: Producer and evaluator, or their fallbacks, are one model.
        SameFamily: They are of one family, and the settings refuse that.
        ModelFileInvalid: An embedded model's file is missing or not a GGUF.
    """
    # 1. Mistakes that the settings alone show, before there is a run.
    early: list[tuple[str, Mapping[str, object]]] = []

    def keep(message: str, details: Mapping[str, object]) -> Mapping[str, object]:
        early.append((message, details))
        return {}

    with warnings_heard_by(keep):
        setup = Setup.of(settings, backends, environment) if shared is None else shared.setup
    endpoints, settings = setup.endpoints, setup.settings
    casting = Casting(endpoints, settings, produces=produces, models=setup.compared)
    if judges:
        casting.check()
    needed = setup.required(casting.roles, needed_roles or {})
    trace = _start_record(settings, name, setup.trace_options, observers, resume=resume)
    began_ns = monotonic()
    opened: OpenRun | None = None
    try:
        async with AsyncExitStack() as stack:
            # 2. The record first, so that everything after it is recorded.
            await stack.enter_async_context(_recorded(trace))
            for message, details in early:
                trace.warned(message, details)
            describe_endpoints(endpoints, trace)
            casting.tracer = trace
            seat = partial(casting.seat, environment=environment, task=task)
            if judges:
                await seat()
            else:
                await casting.ask_servers(environment=environment, judges=False)
            opening = (
                setup.opened(trace, required=needed, warn=casting.warn)
                if shared is None
                else shared.models.serving(trace, required=needed, warn=casting.warn)
            )
            models = await stack.enter_async_context(opening)
            meter = Meter(
                limits=merged(limits, settings.limits.limits),
                prices=token_prices(endpoints),
                before=spent,
                clock=monotonic,
                began_ns=began_ns,
                tracer=trace,
                around=None if shared is None else shared.meter_of(tenant),
            )
            served = ServedModels(casting)
            if command_limits is not None:
                meter = meter.inside(command_limits, whose="command")
            stack.callback(warn_of_no_price, meter, casting)
            replies = KeptReplies(
                endpoints,
                trace=trace,
                resumed=resume is not None,
                is_wanted=settings.trace.is_resumable,
                warn=casting.warn,
            )
            stack.callback(replies.close)
            client = replace(
                models.client,
                tracer=trace,
                warn=casting.warn,
                noticed=set(),
                meter=meter,
                replies=replies,
                before_call=served.before,
                after_reply=served.look_at,
            )
            if shared is not None and shared.store.is_kept:
                store = shared.store
            else:
                store = PassageStore(settings.memory, ask=client.embed)
                stack.push_async_callback(store.aclose)
            passages = PassageLibrary(
                store,
                tracer=trace,
                ask=client.embed,
                rank=client.rerank,
                warn=casting.warn,
            )
            mcp = McpServers(trace)
            stack.push_async_callback(mcp.aclose)
            opened = OpenRun(
                trace=trace,
                client=client,
                casting=casting,
                warn=casting.warn,
                served=served,
                seat=seat,
                meter=meter,
                replies=replies,
                passages=passages,
                mcp=mcp,
                surroundings=surroundings
                or Surroundings(
                    settings, setup.backends, environment=environment, facts=setup.facts
                ),
                budget=models.budget,
                settings=settings,
            )
            yield opened
    finally:
        # 3. The audit log's line, now that the journal is closed and can be read.
        await to_its_end(
            partial(
                _conclude, trace, settings, task=task, tenant=tenant, casting=casting, opened=opened
            )
        )


@asynccontextmanager
async def _recorded(trace: RunTrace) -> AsyncIterator[None]:
    """The trace's block, which ends in a thread: drawing a long run takes a while."""
    trace.__enter__()
    try:
        with warnings_heard_by(trace.warned):
            yield
    except BaseException as error:
        await to_its_end(partial(trace.__exit__, type(error), error, error.__traceback__))
        raise
    await to_its_end(partial(trace.__exit__, None, None, None))


def _conclude(
    trace: RunTrace,
    settings: Settings,
    *,
    task: str,
    tenant: str | None,
    casting: Casting,
    opened: OpenRun | None,
) -> None:
    """Sums up the calls, and adds the run's line to the audit log.

    A record that cannot be read or written must not cost the run's result, or hide its error.
    """
    path = trace.journal_path.parent / AUDIT_LOG
    if trace.failure is not None:
        lost = f"the journal lacks what came last ({trace.failure.strerror}): {trace.journal_path}"
        casting.warnings.append(Notice(code="trace.journal-incomplete", message=lost))
    journal = trace.journal()
    if journal is None:
        return
    try:
        calls = calls_of(journal.spans())
        if opened is not None:
            opened.models.extend(group_calls(calls, by=lambda call: call.model))
        line = audit_line(
            journal,
            calls=calls,
            task=task,
            casting=casting,
            loops=opened.loops if opened else (),
            earlier_loops=opened.earlier_loops if opened else (),
            scored=opened.scored if opened else (),
            figures=opened.figures if opened else {},
            tenant=tenant,
            content=settings.trace.content,
        )
        append_line(path, trace.redactor.clean_line(dump_json(line) + b"\n"))
    except Exception as error:  # noqa: BLE001 - as above
        log_warning(
            "the run is not in the audit log",
            code="audit.not-written",
            path=str(path),
            error=describe(error),
        )


def _start_record(
    settings: Settings,
    name: str,
    options: TraceOptions,
    observers: Sequence[Sink],
    *,
    resume: Path | None,
) -> RunTrace:
    traces = settings.traces
    if settings.trace.otel:
        observers = (*observers, otel_metrics())
    try:
        return RunTrace(traces, name=name, options=options, observers=observers, resume=resume)
    except OSError as error:
        raise ConfigurationInvalid(
            f"runs cannot be written to '{traces}' ({error.strerror}); set traces in "
            "harness.toml to a directory that can be written",
            code="config.traces-unwritable",
        ) from error
