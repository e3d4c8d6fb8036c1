"""Runs a graph: each node starts as soon as its inputs are ready.

Knows no models. A node's output is in the journal before anything that depends on it starts. If a
node fails, its dependants are skipped and all other nodes run. A call that ignores its cancellation
is abandoned after a grace period, so no run hangs on a node.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from harness.errors import NodeFailed, RunLimitReached
from harness.graph.executor import GRACE_S, LeftBehind, forget, leave_behind, this_task
from harness.graph.graph import Graph
from harness.graph.node_call import CallFailed, NodeCall, Suspended, Watcher
from harness.graph.outcome import Execution, Log, NodeFailure, NodeSkip, Question, Skipped
from harness.graph.plan import plan_of
from harness.graph.policies import Default
from harness.graph.reuse import CallOutcome, Outputs, Shared, record_of
from harness.graph.schedule import Schedule
from harness.graph.state import PENDING, Blocked, CallOutput, StepCall, StepState, digest_of_value
from harness.graph.values import digest
from harness.trace import describe, events

_NOT_WANTED = "its when= was not true"


async def execute(
    graph: Graph,
    inputs: Mapping[str, object],
    shared: Shared,
    *,
    deadline_s: float | None = None,
    watcher: Watcher | None = None,
) -> Execution:
    """Runs every node once, a mapped node once per item; a failed node is part of the result.

    The graph was checked before, and `inputs` has the value of every input, from `bind_inputs`.
    After `deadline_s` the run stops all unfinished calls.
    """
    return await _Running(graph, inputs, shared, watcher=watcher).run(deadline_s)


class _Running:
    """One run of one graph."""

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, object],
        shared: Shared,  # the same for nested graphs
        *,
        prefix: str = "",  # goes before its nodes' names
        parent: NodeCall | None = None,  # the call that it is nested in
        # The call that waits for it: not always `parent`'s, since a node may hand its `run` to a
        # function of another.
        around: StepCall | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self._fails_fast = graph.fail_fast
        self._watcher = watcher
        self._parent = parent
        self._around = around
        self._shared = shared
        plan = plan_of(graph)
        self._outputs = Outputs(
            shared=shared,
            attempts=None if parent is None else parent.attempts,
            renamed={} if shared.earlier is None else shared.earlier.renamed(plan, prefix),
        )
        self._schedule = Schedule(
            plan,
            inputs,
            start=self._begin,
            on_skip=self._skip,
            on_total=self._record_total,
            on_end=None if watcher is None else watcher.ends,
            prefix=prefix,
        )
        self._failures = self._schedule.failures
        self._questions: list[Question] = []
        self._stopped_by: RunLimitReached | None = None
        # Why no further function is called; None as long as some may be.
        self._stopping: Blocked | None = None
        # Whether not even a task begins any more, since nothing would wait for it.
        self._is_closed = False
        self._timers: list[asyncio.TimerHandle] = []
        self._loop = asyncio.get_running_loop()
        # A call begins in whatever task makes way for it, which may be inside other spans.
        self._context = contextvars.copy_context()
        self._tasks: dict[StepCall, asyncio.Task[None]] = {}
        # Gets a result when every node has an outcome, or the error that ends the run.
        self._over: asyncio.Future[None] = self._loop.create_future()

    async def run(self, deadline_s: float | None = None) -> Execution:
        """Runs the graph, for this many seconds at most."""
        if deadline_s is not None:
            self._timers.append(self._loop.call_later(deadline_s, self._stop_at_deadline))
        try:
            self._schedule.begin()
            self._end_if_over()
            await self._over
        # The caller was cancelled, or a call raised an error that ends the run (`_run_call`).
        except BaseException:
            # No caller waits for the run any more.
            reason = Blocked("", "the run was interrupted")
            if self._parent is not None:
                reason = Blocked(self._parent.label, "was ended")
            self._stop(reason)
            end_s = self._loop.time() + GRACE_S
            try:
                while self._tasks and (remaining_s := end_s - self._loop.time()) > 0:
                    await asyncio.wait(self._tasks.values(), timeout=remaining_s)
            finally:
                self._is_closed = True
                self._leave_behind()
            raise
        finally:
            for timer in self._timers:
                timer.cancel()
            if self._parent is not None:
                # The caller may catch the error; if not, the outermost run leaves these out.
                for failure in self._failures:
                    because = f"failed, and its caller did not: {describe(failure.error)}"
                    self._shared.log.skips.append(NodeSkip(node=failure.node, reason=because))
        return self._execution()

    def _execution(self) -> Execution:
        outputs: dict[str, object] = {}
        for name, state in self._schedule.states.items():
            output, _ = state.output(with_skipped=True)
            if type(output) is not Blocked:
                outputs[name] = output
        # The states' circular references would keep them alive until the next garbage collection.
        self._schedule.states.clear()
        # Only the outermost graph returns the log: ten thousand nested graphs would each copy it.
        log = self._shared.log if self._parent is None else Log()
        failed = {failure.node for failure in self._failures}
        skips = (skip for skip in log.skips if skip.node not in failed)
        return Execution(
            outputs=outputs,
            failures=tuple(self._failures),
            # Each once: a failure reaches all graphs around it whose callers fail of it.
            skips=tuple(dict.fromkeys(skips)),
            questions=tuple(dict.fromkeys(self._questions)),
            reused=tuple(log.reused),
            renamed=dict(log.renamed),
            reruns=tuple(log.reruns),
            stopped_by=self._stopped_by,
            cut=log.cut,
        )

    def _skip(
        self, state: StepState, item: int | None, reason: str, because_of: str | None = None
    ) -> None:
        """Records a skipped node or item in the log and in the journal."""
        skip = NodeSkip(node=state.label(item), reason=reason, because_of=because_of)
        self._shared.log.skips.append(skip)
        when = state.step.node.when
        # The sources of its `when` are nodes of the same graph, so their paths begin like its own.
        graph_path, slash, _ = state.path.rpartition("/")
        sources = (parameter.source for parameter in when.parameters) if when else ()
        event = events.Skip(
            node=state.path,
            item=item,
            detail=self._shared.tracer.excerpt(reason),
            because_of=because_of,
            decided_by=tuple(f"{graph_path}{slash}{source}" for source in sources),
        )
        self._shared.tracer.instant(event)

    def _skip_call(self, call: StepCall, reason: str, because_of: str | None = None) -> None:
        self._skip(call.state, call.item, reason, because_of)

    def _record_total(self, state: StepState, total: int) -> None:
        self._shared.tracer.instant(events.ItemsEvent(node=state.path, total=total))
        if self._watcher is not None:
            self._watcher.counts(state.path, total)

    # --- calls as tasks ---------------------------------------------------------------------------

    def _begin(self, state: StepState, item: int | None) -> None:
        """Begins a call, now or when its node and the run have a place for it."""
        call = StepCall(state, item, around=self._around)
        if state.places is None:
            self._take_place(call)
        elif not state.places.take(partial(self._take_place, call)):
            call.waits = (("node", self._shared.tracer.now_ns()),)

    def _take_place(self, call: StepCall) -> None:
        if not self._shared.places.take(partial(self._start, call), call):
            call.waits = (*call.waits, ("pipeline", self._shared.tracer.now_ns()))

    def _start(self, call: StepCall) -> None:
        """Starts the task of a call that has got its place."""
        call.has_place = True
        if self._is_closed:
            # The next call gets the place, but not at once: that would start it inside this one,
            # and its next inside it.
            self._loop.call_soon(self._give_back, call)
            return
        # Not in a task group, which would wait for ever for a call that ignores its cancellation.
        # Not by the loop's own factory either: an eager one would run the call's first steps here.
        self._tasks[call] = asyncio.Task(
            self._run_call(call), loop=self._loop, context=self._context.copy()
        )

    def _give_back(self, call: StepCall) -> None:
        """Frees a call's place, if it still has it."""
        if call.has_place:
            self._shared.places.leave(call)
            if call.state.places is not None:
                call.state.places.give_back()

    async def _run_call(self, call: StepCall) -> None:
        """Makes a call, and settles it with its outcome; the body of the call's task."""
        try:
            if self._parent is not None:
                self._parent.beat()
            outcome = await self._outcome(call)
            if self._parent is not None:
                self._parent.beat()
                # What made a stored output, or stood in its place, is in that of the call around.
                self._parent.use(call.uses)
                if call.is_of_run:
                    self._parent.keep_from_cache()
                self._parent.note_loop(passed=call.passed, cut_by=call.cut_by)
            elif call.cut_by is not None:
                self._shared.log.cut += 1
            # An abandoned call was settled with the run's reason for stopping.
            if self._tasks.pop(call, None) is not None:
                self._settle(call, outcome)
                self._end_if_over()
        except BaseException as error:
            self._tasks.pop(call, None)
            if not isinstance(error, LeftBehind) and not self._over.done():
                # It ends the run, which would otherwise wait for this call for ever. Not raised
                # here: SystemExit would break off the loop, and all else with it.
                self._over.set_exception(error)
            elif isinstance(error, Exception | SystemExit):
                pass  # The run is over, and has its result or the error that came first.
            else:
                # A cancellation, or the end of an abandoned call: it ends its own task alone.
                this_task().add_done_callback(forget)
                raise

    def _settle(self, call: StepCall, outcome: CallOutcome) -> None:
        if self._stopping is not None and outcome.value is self._stopping:
            self._skip_call(call, self._stopping.reason, self._stopping.label or None)
        self._schedule.settle(call.state, call.item, *outcome)

    async def _outcome(self, call: StepCall) -> CallOutcome:
        """Makes a call, unless its output is stored already; how it ended."""
        try:
            if self._stopping is not None:
                return CallOutcome(self._stopping)
            parameters = call.step.node.parameters
            call.inputs = self._schedule.call_inputs(call.state, call.item, parameters)
            try:
                stored = await self._outcome_without_call(call)
                if stored is not None:
                    return stored
                output = await self._perform(call)
            except CallFailed as failed:
                return await self._outcome_of_failed(call, failed.failure)
            except Suspended as suspended:
                self._questions += suspended.questions
                return CallOutcome(Blocked(call.label, "waits for an answer"))
            # Another call may have the place while the output is written down.
            self._give_back(call)
            return await self._outputs.keep(call, output)
        except asyncio.CancelledError:
            return CallOutcome(self._outcome_of_cancelled(call))
        finally:
            self._give_back(call)

    async def _outcome_without_call(self, call: StepCall) -> CallOutcome | None:
        """Finds the outcome of a call that need not be made; None if it must be made."""
        if not self._evaluate_when(call):
            self._skip_call(call, _NOT_WANTED)
            return CallOutcome(Skipped(reason=_NOT_WANTED))
        stored = await self._outputs.find(call)
        if stored is not None and type(stored.value) is Skipped:
            self._skip_call(call, f"failed, and is left out: {stored.value.reason}")
        return stored

    def _evaluate_when(self, call: StepCall) -> bool:
        """Evaluates the `when` of a call's node, and records the nodes whose outputs it got."""
        when = call.step.node.when
        if when is None:
            return True
        condition = self._schedule.call_inputs(call.state, call.item, when.parameters)
        call.decided_by = condition.producers
        try:
            return bool(when.function(**condition.arguments))
        except Exception as error:
            raise CallFailed(NodeFailure(node=call.label, error=error, attempts=0)) from error

    async def _perform(self, call: StepCall) -> CallOutput:
        # `_stop` has not cancelled a call that was still looking for a stored output.
        if self._stopping is not None:
            raise asyncio.CancelledError
        handle = NodeCall(call, shared=self._shared, nested=self._nest, parent=self._parent)
        on_item = partial(self._pass_item_on, call) if call.step.generates else None
        if self._watcher is not None:
            self._watcher.begins(call.state.path, call.item)
        call.is_running = True
        try:
            return await handle.perform(on_item)
        finally:
            call.is_running = False

    async def _pass_item_on(self, call: StepCall, item: int, value: object, data: bytes) -> None:
        """Gives an item of a generating node to the nodes that take items as they come."""
        state = call.state
        item_call = StepCall(state, item, call.inputs)
        item_call.uses = call.uses
        # Before `settle`, which may start followers: what they took has to be in the journal.
        unset = call.step.item_form.unset(value) if call.step.item_form else None
        await self._outputs.write(item_call, record_of(item_call, data)._replace(unset=unset))
        if state.outcome is not PENDING:
            raise asyncio.CancelledError  # the call was left behind, and its followers went on
        self._schedule.settle(state, item, value, digest_of_value(value))
        self._end_if_over()

    async def _nest(
        self,
        call: NodeCall,
        around: StepCall,
        graph: Graph,
        inputs: Mapping[str, object],
        prefix: str,
    ) -> Execution:
        return await _Running(
            graph, inputs, self._shared, prefix=prefix, parent=call, around=around
        ).run()

    # --- calls without an output ------------------------------------------------------------------

    async def _outcome_of_failed(self, call: StepCall, failure: NodeFailure) -> CallOutcome:
        """Applies the node's `on_error` to a call whose last attempt raised."""
        error = failure.error
        if self._stopping is not None:
            # An error that a cancelled call raises is no failure.
            return CallOutcome(self._stopping)
        # The place is free from here on, since what follows only writes records.
        self._give_back(call)
        detail = "; ".join([describe(error) or "", *failure.beside])
        # After a limit nothing is written, so that the call is made when the run goes on with a
        # higher limit.
        if is_limit := isinstance(error, RunLimitReached):
            self._stopped_by = self._stopped_by or error
        if (before := await self._outputs.keep_before(call)) is not None:
            return before
        # `on_error` does not apply to a call that was cancelled, by the node itself perhaps.
        on_error = "fail" if this_task().cancelling() else call.step.policies.on_error
        if on_error not in (None, "fail"):
            call.is_of_run = True
        if on_error == "skip":
            self._skip_call(call, f"failed, and is left out: {detail}")
            if not is_limit:
                await self._outputs.write(call, record_of(call, skipped=detail))
            return CallOutcome(Skipped(reason=detail))
        if isinstance(on_error, Default):
            self._skip_call(call, f"failed, and its default stands for it: {detail}")
            value = on_error.value
            if call.step.generates and isinstance(value, list):
                value = [*call.state.items.outcomes, *value]
            data = call.step.form.encode(value)
            if is_limit:
                return CallOutcome(value, digest(data))
            return await self._outputs.keep(call, CallOutput(value, data, 0), is_default=True)
        return CallOutcome(self._blocked_by_failure(call, failure))

    def _blocked_by_failure(self, call: StepCall, failure: NodeFailure) -> Blocked:
        """Records a failure, or the limit that stopped the call; what its consumers get."""
        error = failure.error
        if isinstance(error, RunLimitReached):
            blocked = Blocked(call.label, "was stopped by a limit")
            self._skip_call(call, blocked.ending)
            return blocked
        if isinstance(error, NodeFailed) and isinstance(error.result, Execution):
            # A nested node failed: its failure is listed, and this call counts as skipped.
            first, *others = error.result.failures
            self._failures += [replace(first, beside=(*first.beside, *failure.beside)), *others]
            blocked = Blocked(error.node, "failed")
            self._skip_call(call, blocked.reason, blocked.label)
            return blocked
        self._failures.append(failure)
        return Blocked(call.label, "failed")

    def _outcome_of_cancelled(self, call: StepCall) -> Blocked:
        if self._stopping is not None:
            return self._stopping
        # Who cancelled the task is unknown: perhaps the loop is being closed.
        error = asyncio.CancelledError("its task was cancelled")
        failure = NodeFailure(node=call.label, error=error, attempts=1)
        return self._blocked_by_failure(call, failure)

    # --- the end ----------------------------------------------------------------------------------

    def _stop_at_deadline(self) -> None:
        self._stopped_by = self._stopped_by or RunLimitReached(
            "the run's time is over (max_seconds); unfinished work was stopped", limit="time"
        )
        self._stop(Blocked("", "the run's time was over"))

    def _stop(self, reason: Blocked) -> None:
        """Cancels all calls, and after a grace period abandons those that still run."""
        if self._stopping is None:
            self._stopping = reason
            # The others end by themselves soon.
            for call, task in self._tasks.items():
                if call.is_running:
                    task.cancel()
            self._timers.append(self._loop.call_later(GRACE_S, self._leave_behind))

    def _leave_behind(self) -> None:
        """Abandons the calls that ignore their cancellation."""
        assert self._stopping is not None
        for call in [call for call in self._tasks if call.is_running]:
            leave_behind(self._tasks.pop(call), label=call.label)
            self._give_back(call)
            self._settle(call, CallOutcome(self._stopping))
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._failures and self._fails_fast:
            self._stop(Blocked(self._failures[0].node, "failed"))
        if self._schedule.is_over and not self._over.done():
            self._over.set_result(None)
