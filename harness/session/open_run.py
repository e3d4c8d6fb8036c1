"""One part of a run while it goes on: opens its parts, closes them, and writes its audit line.

Who makes and closes what:

- `Setup` is made of settings and backends. It opens nothing.
- `SharedParts` belong to a session (`session.py`), which opens and closes them. A run without a
  session opens the same for itself.
- `RunPlan` says what is run, and how. It opens nothing.
- `OpenRun` is one part of a run. `open_run` makes it by a plan, opens its fields in their order,
  and closes them in reverse.
- `Run` (`run.py`) gives one call of a node access to it, and closes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, Self

from harness.errors import ConfigurationInvalid, InvalidInput, Notice, did_you_mean
from harness.graph import Answers, Asker, Graph
from harness.graph.state import Use
from harness.inference import NOTHING, Backend, Client, Endpoint, Limits, Meter
from harness.inference.limits import merged
from harness.inference.reply_store import KeptReplies
from harness.log import log_warning, warnings_heard_by
from harness.metrics import otel_metrics
from harness.residency import KeepAliveBudget
from harness.rubric import Noise
from harness.session.demand import judges, needed_roles
from harness.session.mcp_tools import McpServers
from harness.session.models import OpenModels, describe_endpoints, open_models, with_backends
from harness.session.passages import PassageLibrary, PassageStore
from harness.session.result import all_passed
from harness.session.resume import EarlierRun, Origin
from harness.session.roles import Casting, Roles, cast_roles, check_evaluators
from harness.session.separation import ComparedModels
from harness.session.settings import OFFLINE_EMBEDDERS, MemorySettings, Settings
from harness.session.surroundings import Surroundings
from harness.session.trust import CODE_VARIABLE, check_store, known_secrets, warn_of_secrets
from harness.threads import to_its_end
from harness.trace import (
    AUDIT_LOG,
    CallGroup,
    Journal,
    RunEnded,
    RunTrace,
    Sink,
    TraceOptions,
    Tracer,
    append_line,
    calls_of,
    describe,
    dump_json,
    events,
    group_calls,
    monotonic,
)
from harness.wiggum import RecordedLoop, WiggumResult

RunVerdict = Literal[
    "PASS", "FAIL", "DONE", "SKIPPED", "ERROR", "WAITING", "STOPPED", "INTERRUPTED"
]
"""PASS: every loop, or every draft of a scoring batch, passed. DONE: it finished, and nothing was
judged. SKIPPED: it finished, and the node that gives its result was skipped. ERROR: the run did not
finish. WAITING, STOPPED, INTERRUPTED: for an answer, at a limit, by a person; it may be resumed.
"""

_UNFINISHED: Mapping[str, RunVerdict] = {
    "waiting": "WAITING",
    "stopped": "STOPPED",
    "cancelled": "INTERRUPTED",
}


# --- before anything is open ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Settings and backends, as a run or all runs of a session use them."""

    settings: Settings
    """See `with_backends`."""
    compared: ComparedModels
    environment: Mapping[str, str]
    """Environment variables, among them the API keys that endpoints name."""
    backends: Mapping[str, Backend] | None
    trace_options: TraceOptions
    facts: dict[str, Use | None] = field(default_factory=dict)
    """See `Surroundings`."""

    @classmethod
    def of(
        cls,
        settings: Settings,
        backends: Mapping[str, Backend] | None,
        environment: Mapping[str, str],
    ) -> Self:
        """The setup of a run; warns of secrets that its files would contain.

        Raises:
            NotTrusted: Credentials or passages may not be sent to the store of the memory.
        """
        settings = with_backends(settings, backends)
        endpoints = settings.endpoints
        memory = settings.memory
        trace = settings.trace
        check_store(memory.path, written_in=memory.written_in, environment=environment)
        warn_of_secrets(endpoints.values(), environment=environment, named=trace.secrets)
        return cls(
            settings=settings,
            compared=ComparedModels(endpoints, same_family=settings.separation.same_family),
            environment=environment,
            backends=backends,
            trace_options=TraceOptions(
                content=trace.content,
                durability=trace.durability,
                on_failure=trace.on_failure,
                timelines=trace.timelines,
                secrets=known_secrets(
                    endpoints.values(), environment=environment, named=trace.secrets
                ),
            ),
        )

    def required(self, roles: Roles, needed_roles: Mapping[str, str]) -> frozenset[str]:
        """Tags of the endpoints that must be usable; for `needed_roles`, see `Roles.required`."""
        models_of_memory = _models_of(self.settings.memory, self.settings.endpoints)
        return roles.in_use | roles.required(needed_roles) | models_of_memory

    def opened(
        self,
        tracer: Tracer,
        *,
        required: Collection[str],
        warn: Callable[[Notice], None] | None = None,
    ) -> AbstractAsyncContextManager[OpenModels]:
        """See `open_models`."""
        return open_models(
            self.settings.endpoints,
            settings=self.settings,
            environment=self.environment,
            backends=self.backends,
            required=required,
            tracer=tracer,
            sample_every_s=self.settings.trace.sample_ms / 1000,
            warn=warn,
        )


def _models_of(memory: MemorySettings, endpoints: Mapping[str, Endpoint]) -> set[str]:
    """Tags of the endpoints that embed and rank passages; refuses one that does not exist."""
    for tag in memory.models:
        if tag in endpoints:
            continue
        if tag == memory.rerank:
            raise ConfigurationInvalid(
                f"[memory] rerank is '{tag}', which is not an endpoint; "
                + did_you_mean(tag, endpoints),
                code="memory.reranker-unknown",
            )
        raise ConfigurationInvalid(
            f"[memory] embedder is '{tag}', which is not an endpoint; "
            + did_you_mean(tag, [*OFFLINE_EMBEDDERS, *endpoints]),
            code="memory.embedder-unknown",
        )
    return set(memory.models)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedParts:
    """What the runs of a session have in common."""

    setup: Setup
    models: OpenModels
    store: PassageStore
    """The memory of all runs, if `[memory]` keeps it; otherwise each run has its own."""
    observers: Sequence[Sink]
    """Observers of every run."""
    meter: Meter
    """Counts what all runs take together."""
    tenants: Limits | Mapping[str, Limits] | None
    """The limits of every tenant; or limits by tenant, and then there are no other tenants."""
    _tenant_meters: dict[str, Meter] = field(default_factory=dict)
    """Tenant → its meter, from its first run on."""

    def meter_of(self, tenant: str | None) -> Meter:
        """The meter around a tenant's runs; without a tenant, the session's."""
        if tenant is None:
            return self.meter
        if not isinstance(tenant, str):
            raise InvalidInput(
                f"tenant is {tenant!r:.80}; give its name, a text", code="session.tenant-not-text"
            )
        limits = self.tenants
        if isinstance(limits, Mapping):
            if tenant not in limits:
                raise InvalidInput(
                    f"no tenant is called '{tenant}'; {did_you_mean(tenant, limits)}",
                    code="session.tenant-unknown",
                )
            limits = limits[tenant]
        if tenant not in self._tenant_meters:
            title = f"tenant '{tenant}'"
            meter = self.meter.inside(limits or Limits(), whose="tenant", title=title)
            # If another thread asks at the same time what the tenant spent, both get one meter.
            self._tenant_meters.setdefault(tenant, meter)
        return self._tenant_meters[tenant]


# --- a part of a run ------------------------------------------------------------------------------


@dataclass(slots=True)
class _EndedLoop:
    label: str
    """Of the innermost call that it is in."""
    result: WiggumResult
    repeated: str = ""
    """The label of the innermost call around it that was repeated since; empty if none was."""


class EndedLoops:
    """The revise loops that ended in a part of a run; knows which are of the last attempts.

    A loop in `a/p/b`: `repeats("a")` voids it, `keeps("a/p/b")` restores it, since b's output is
    taken again. After `repeats("a/p/b")`, `keeps("a/p/b")` does not.
    """

    def __init__(self) -> None:
        self._loops: list[_EndedLoop] = []
        # Label of a call → the loops in it, and in calls in it.
        self._loops_by_call = defaultdict[str, list[_EndedLoop]](list)

    def add(self, label: str, loop: WiggumResult) -> None:
        """Adds a loop that has ended, in this call of a node."""
        ended = _EndedLoop(label, loop)
        self._loops.append(ended)
        for around in accumulate(label.split("/"), "{}/{}".format):
            self._loops_by_call[around].append(ended)

    def repeats(self, label: str) -> None:
        """Notes that a call is repeated."""
        for loop in self._loops_by_call.get(label, ()):
            loop.repeated = max(loop.repeated, label, key=len)

    def keeps(self, label: str) -> None:
        """Notes that a further attempt of a call around this one takes its output again."""
        for loop in self._loops_by_call.get(label, ()):
            # What it did in earlier attempts of its own is not in that output.
            if label.startswith(f"{loop.repeated}/"):
                loop.repeated = ""

    @property
    def of_last_attempts(self) -> tuple[WiggumResult, ...]:
        """In the order they ended, without those of attempts that were repeated."""
        return tuple(loop.result for loop in self._loops if not loop.repeated)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A graph, and how it is run; see `Pipeline.run_async` for most fields."""

    graph: Graph
    settings: Settings
    limits: Limits | None = None
    """Limits that were given for this run, now or before; they override the pipeline's."""
    own_limits: Limits | None = None
    """The pipeline's limits."""
    max_parallel: int | None = None
    backends: Mapping[str, Backend] | None = None
    shared: SharedParts | None = None
    """The session's parts, for a run of a session."""
    tenant: str | None = None
    observers: Sequence[Sink] = ()
    asker: Asker | None = None
    origin: Origin | None = None
    is_batch: bool = False
    """Whether its nodes are the rows of a table: replies are kept, for when some are changed."""
    refused: events.RefusedRows | None = None
    """Rows of the batch that are not run."""
    row_ids: Sequence[str] = ()
    batch_state: Path | None = None
    """The file that names the run for its batch."""
    produces: bool = True
    """Whether drafts are also written, not only judged."""
    caches: bool = True
    """Whether a node with a `Cache` takes outputs of other runs, and keeps its own for them."""
    scored: Callable[[], Iterable[bool]] = tuple
    """See `OpenRun.scored`."""
    figures: Callable[[], Mapping[str, float]] = dict
    """See `OpenRun.figures`."""

    # Filled when the run begins, or goes on.
    inputs: Mapping[str, object] = field(default_factory=dict)
    """All inputs, by name."""
    given_inputs: frozenset[str] = frozenset()
    """Names of the inputs that were given, in this part or before; the others have defaults."""
    answers: Answers = field(default_factory=dict)
    earlier: EarlierRun | None = None
    """None in a run's first part, as is `surroundings`."""
    surroundings: Surroundings | None = None

    @property
    def task(self) -> str:
        """What the run is for."""
        return str(self.inputs.get("task", ""))


@dataclass(kw_only=True, eq=False)
class OpenRun:
    """One part of a run that goes on."""

    plan: RunPlan
    settings: Settings
    """The session's, if the run belongs to a session; else those of the plan."""
    trace: RunTrace
    casting: Casting = field(init=False)
    """Which model plays which role."""
    budget: KeepAliveBudget | None = field(init=False)
    """None if no models share memory."""
    meter: Meter = field(init=False)
    """Counts what calls take, and holds the run's limits."""
    replies: KeptReplies = field(init=False)
    """Replies for nodes that have not ended, for when the run is resumed."""
    client: Client = field(init=False)
    passages: PassageLibrary = field(init=False)
    mcp: McpServers = field(init=False)
    surroundings: Surroundings = field(init=False)
    """What a node's call depends on, so that a resumed run repeats it if that changed."""

    warnings: list[Notice] = field(default_factory=list)
    ended_loops: EndedLoops = field(default_factory=EndedLoops)
    earlier_loops: list[RecordedLoop] = field(default_factory=list)
    """Loops of earlier parts of the run, in nodes that were not called again; filled when all nodes
    have ended."""
    scored: list[bool] = field(default_factory=list)
    """Whether each text of a scoring batch passed; a text without a verdict did not."""
    figures: dict[str, float] = field(default_factory=dict)
    """An evaluation's mean of each score."""
    models: list[CallGroup] = field(default_factory=list)
    """The calls of each model; filled when the run has ended."""
    noises: dict[tuple[str, Path, str], Noise | None] = field(default_factory=dict)
    """The rubric's hash, the folder of its files and the evaluators → the evaluators' noise."""

    def warn(self, notice: Notice) -> None:
        """Adds a warning to the log, the timeline, and the result."""
        self.warnings.append(notice)
        with warnings_heard_by(self.trace.warned):
            log_warning(notice.message, code=notice.code)

    def warn_of_no_price(self, meter: Meter) -> None:
        """Warns, once, that a cost limit had no effect because no price is known."""
        for scope in meter.chain:
            has_limit = scope.limits.max_cost_usd is not None
            if not has_limit or scope.spent.cost_usd is not None or not scope.spent.unpriced_calls:
                continue
            notice = Notice(
                code="limits.cost-unbounded",
                message=f"{scope.limits.said('cost')} had no effect: no call's price is known; "
                "write usd_per_million_input_tokens and usd_per_million_output_tokens under the "
                "endpoints",
            )
            if notice not in self.warnings:
                self.warn(notice)


@asynccontextmanager
async def open_run(plan: RunPlan, *, environment: Mapping[str, str]) -> AsyncIterator[OpenRun]:
    """Opens everything that a run of a graph needs, and closes it in reverse order.

    The run's journal, its timelines and its line in the audit log are written however the block
    ends. In a session, the session's settings and backends count.
    """
    # 1. Mistakes in the settings are raised before there is a run; warnings are collected, and
    #    recorded as soon as there is one.
    early_warnings: list[tuple[str, Mapping[str, object]]] = []

    def keep(message: str, details: Mapping[str, object]) -> Mapping[str, object]:
        early_warnings.append((message, details))
        return {}

    with warnings_heard_by(keep):
        setup = (
            Setup.of(plan.settings, plan.backends, environment)
            if plan.shared is None
            else plan.shared.setup
        )
    settings = setup.settings
    roles = cast_roles(settings.endpoints, settings, produces=plan.produces)
    is_judged = judges(plan.graph)
    # If the graph does not show that it judges, mistakes in evaluators are raised at the judgement.
    if is_judged:
        check_evaluators(roles, setup.compared)
    needed = setup.required(roles, needed_roles(plan.graph))
    # Read before the trace opens the journal again, to which this part's own calls are added.
    spent = NOTHING if plan.earlier is None else plan.earlier.spent
    run = OpenRun(
        plan=plan,
        settings=settings,
        trace=_start_record(settings, plan, setup.trace_options),
    )
    began_ns = monotonic()
    run.casting = Casting(
        roles=roles,
        models=setup.compared,
        settings=settings,
        task=plan.task,
        environment=environment,
        tracer=run.trace,
        warn=run.warn,
    )
    run.meter = Meter(
        limits=merged(plan.limits, plan.own_limits, settings.limits.limits),
        endpoints=settings.endpoints,
        before=spent,
        began_ns=began_ns,
        tracer=run.trace,
        around=None if plan.shared is None else plan.shared.meter_of(plan.tenant),
    )
    if plan.origin is not None and plan.origin.limits is not None:
        run.meter = run.meter.inside(plan.origin.limits, whose="command")
    try:
        async with AsyncExitStack() as stack:
            # 2. The trace, before everything that it records.
            run.trace.__enter__()
            stack.push_async_exit(partial(_close_record, run.trace))
            stack.enter_context(warnings_heard_by(run.trace.warned))
            for message, details in early_warnings:
                run.trace.warned(message, details)
            describe_endpoints(settings.endpoints, run.trace)
            if is_judged:
                await run.casting.seat()
            else:
                await run.casting.ask_servers()
            # 3. The models, and the stored replies and checks of calls to them.
            opening = (
                setup.opened(run.trace, required=needed, warn=run.warn)
                if plan.shared is None
                else plan.shared.models.serving(run.trace, required=needed, warn=run.warn)
            )
            models = await stack.enter_async_context(opening)
            run.budget = models.budget
            # Called last, since parts that are registered later may still make calls as they close.
            stack.callback(run.warn_of_no_price, run.meter)
            run.replies = KeptReplies(
                settings.endpoints,
                trace=run.trace,
                is_wanted=settings.trace.is_resumable,
                warn=run.warn,
            )
            stack.callback(run.replies.close)
            # `noticed` and `served` are of this run alone, also in a session.
            run.client = replace(
                models.client,
                tracer=run.trace,
                warn=run.warn,
                noticed=set(),
                served={},
                meter=run.meter,
                replies=run.replies,
                before_call=run.casting.check_replies,
                after_reply=run.casting.compare_reply,
            )
            # 4. The memory, tools and surroundings of nodes.
            if plan.shared is not None and settings.memory.is_kept:
                store = plan.shared.store  # closed with the session
            else:
                store = PassageStore(settings.memory, ask=run.client.embed)
                stack.push_async_callback(store.aclose)
            run.passages = PassageLibrary(
                store, tracer=run.trace, ask=run.client.embed, rank=run.client.rerank, warn=run.warn
            )
            run.mcp = McpServers(run.trace)
            stack.push_async_callback(run.mcp.aclose)
            run.surroundings = plan.surroundings or Surroundings(
                settings, environment=environment, facts=setup.facts
            )
            yield run
    finally:
        # 5. The audit log's line, now that the journal is closed and can be read. Since a long
        #    journal takes a while, a thread reads it, to its end even if the run is cancelled.
        await to_its_end(partial(_conclude, run))


def _start_record(settings: Settings, plan: RunPlan, options: TraceOptions) -> RunTrace:
    """Opens the journal of a new run, or that of a run to resume."""
    traces, observers = settings.traces, plan.observers
    resume = None if plan.earlier is None else plan.earlier.journal.path
    if settings.trace.otel:
        observers = (*observers, otel_metrics())
    try:
        return RunTrace(
            traces, name=plan.graph.name, options=options, observers=observers, resume=resume
        )
    except OSError as error:
        raise ConfigurationInvalid(
            f"runs cannot be written to '{traces}' ({error.strerror}); set traces in "
            f"harness.toml to a directory that can be written ({CODE_VARIABLE} has to allow one "
            "outside of that file's folder)",
            code="config.traces-unwritable",
        ) from error


async def _close_record(trace: RunTrace, *error: Any) -> None:  # noqa: ANN401 - of `__exit__`
    # In a thread, since drawing the timelines of a long run takes a while.
    await to_its_end(partial(trace.__exit__, *error))


# --- after all is closed --------------------------------------------------------------------------


def _conclude(run: OpenRun) -> None:
    """Sums up the calls, and adds the run's line to the audit log."""
    trace = run.trace
    path = trace.journal_path.parent / AUDIT_LOG
    if trace.failure is not None:
        message = (
            f"the journal lacks what came last ({trace.failure.strerror}): {trace.journal_path}"
        )
        run.warnings.append(Notice(code="trace.journal-incomplete", message=message))
    journal = trace.journal()
    if journal is None:
        return
    try:
        run.models.extend(group_calls(calls_of(journal.spans()), by=lambda call: call.model))
        line = _audit_line(run, journal)
        append_line(path, trace.redactor.clean_line(dump_json(line) + b"\n"))
    # A record that cannot be read or written must not cost the run's result, or hide its error.
    except Exception as error:  # noqa: BLE001
        log_warning(
            "the run is not in the audit log",
            code="audit.not-written",
            path=str(path),
            error=describe(error),
        )


def _audit_line(run: OpenRun, journal: Journal) -> dict[str, object]:
    """The run's result in figures; the texts of drafts and replies stand in the journal."""
    started = journal.started
    ended = journal.ended
    use = run.meter.of_run.spent  # the sums of the run's own report, probes and cut calls included
    loops = run.ended_loops.of_last_attempts
    entries: list[dict[str, Any]] = [
        {
            "rubric": loop.rubric,
            "rubric_sha256": loop.rubric_sha256,
            "stop_reason": loop.stop_reason or "cancelled",
            "best_round": loop.best_round,
            "scores": loop.composites,
        }
        for loop in run.earlier_loops
    ]
    entries += [
        {
            "rubric": loop.rubric.id,
            "rubric_sha256": loop.rubric.sha256,
            "stop_reason": loop.stop_reason,
            "best_round": loop.best.number,
            "scores": tuple(round_.verdict.composite for round_ in loop.rounds),
        }
        for loop in loops
    ]
    last = entries[-1] if entries else {}
    passed = all(run.scored) if run.scored else all_passed([*run.earlier_loops, *loops])
    is_skipped = any(notice.code == "run.result-skipped" for notice in run.warnings)
    roles = run.casting.roles
    separation = run.casting.separation
    return {
        "run_id": started.run_id,
        "timestamp": datetime.fromtimestamp(started.wall_ns / 1e9, tz=UTC).isoformat(),
        "pipeline": started.name,
        "task": run.plan.task if run.settings.trace.content == "full" else "",
        "producer_model": roles.producer,
        "evaluator_model": ", ".join(roles.evaluators) or None,
        "separation": separation.relation if separation is not None else None,
        "warnings": [asdict(notice) for notice in run.warnings],
        "run_duration_s": journal.duration_ns / 1e9,
        "input_tokens": use.input_tokens,
        "output_tokens": use.output_tokens,
        "wiggum_scores": last.get("scores", ()),
        "stop_reason": last.get("stop_reason"),
        "loops": entries,
        **({"evaluation": run.figures} if run.figures else {}),
        **({"tenant": run.plan.tenant} if run.plan.tenant else {}),
        "final": _final(ended, is_skipped=is_skipped, passed=passed),
        "error": ended.error if ended else "killed",
    }


def _final(ended: RunEnded | None, *, is_skipped: bool, passed: bool | None) -> RunVerdict:
    if ended is None or ended.status != "ok":
        return _UNFINISHED.get("" if ended is None else ended.status, "ERROR")
    if is_skipped:
        return "SKIPPED"
    if passed is None:
        return "DONE"
    return "PASS" if passed else "FAIL"
