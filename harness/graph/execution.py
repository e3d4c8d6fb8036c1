"""Running a graph: every node as soon as what it needs is there.

Knows nothing of models. A node's output is in the journal before anything that depends on it
starts. A node that fails takes its dependants with it, and nothing else; what can be done is done.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any

from harness.errors import NodeFailed, RunLimitReached
from harness.graph.executor import GRACE_S, Executor, InProcess, LeftBehind, forget, leave_behind
from harness.graph.graph import Graph
from harness.graph.node_call import (
    Answers,
    Asker,
    Call,
    CallFailed,
    NodeCall,
    Shared,
    Suspended,
    Watcher,
    perform,
)
from harness.graph.outcome import Execution, Log, NodeFailure, NodeSkip, Question, Skipped
from harness.graph.policies import Default
from harness.graph.reuse import Earlier, OutputCache, Outputs, changed_outputs
from harness.graph.schedule import Schedule, Taken
from harness.graph.state import (
    NO_DIGEST,
    PENDING,
    Blocked,
    Given,
    Places,
    State,
    digest_of_value,
    plan_of,
)
from harness.graph.values import digest
from harness.log import log_warning
from harness.trace import Tracer, describe

_NOT_WANTED = "its when= was not true"


async def execute(
    graph: Graph,
    inputs: Mapping[str, object],
    *,
    run_of: Callable[[NodeCall], object],
    tracer: Tracer,
    executor: Executor | None = None,
    parallel_calls: int | None = None,
    earlier: Earlier | None = None,
    cache: OutputCache | None = None,
    answers: Answers | None = None,
    asker: Asker | None = None,
    deadline_s: float | None = None,
    watcher: Watcher | None = None,
) -> Execution:
    """Runs every node once, a mapped node once per item, and says what became of each.

    A node's failure is part of what is returned, and not raised.

    Args:
        graph: What to run; checked: see `Graph.check`.
        inputs: The value of every input, as `bind_inputs` gives them.
        run_of: Makes what nodes that take a `run` receive.
        tracer: Sees every call, and its output.
        executor: Makes the calls; in this process when left out.
        parallel_calls: How many may be under way at once; as many as there are when None.
        earlier: What earlier parts of the run gave: it is not made again.
        cache: What earlier runs gave, for nodes with a `Cache`.
        answers: What people answered to questions of earlier parts.
        asker: Reaches a person at once.
        deadline_s: After so many seconds what is still going is stopped.
        watcher: Told how far it is.
    """
    shared = Shared(
        run_of=run_of,
        tracer=tracer,
        executor=executor or InProcess(),
        places=Places(parallel_calls),
        earlier=earlier,
        cache=cache,
        answers=dict(answers or {}),
        asker=asker,
    )
    return await _Running(graph, inputs, shared, watcher=watcher).to_its_end(deadline_s)


class _Running:
    """One run of one graph.

    Args:
        graph: What is run.
        inputs: The value of every input.
        shared: What it has in common with the graph that it is nested in.
        prefix: Goes before its nodes' names.
        parent: The call that it is nested in.
        watcher: Told how far it is.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, object],
        shared: Shared,
        *,
        prefix: str = "",
        parent: NodeCall | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self._fails_fast = graph.fail_fast
        self._watcher = watcher
        self._parent = parent
        self._shared = shared
        self._outputs = Outputs(
            tracer=shared.tracer,
            log=shared.log,
            earlier=shared.earlier,
            cache=shared.cache,
            attempts=None if parent is None else parent.attempts,
            nodes={f"{prefix}{name}" for name in graph.nodes},
        )
        depth = 0 if parent is None else parent.depth + 1
        self._calls = Calls(self._run_call, places=shared.places, depth=depth, log=shared.log)
        self._schedule = Schedule(
            plan_of(graph),
            inputs,
            start=self._calls.begin,
            on_skip=self._skip,
            on_total=self._say_total,
            on_end=None if watcher is None else self._say_ended,
            prefix=prefix,
        )
        self._failures = self._schedule.failures
        self._questions: list[Question] = []
        self._stopped_by: RunLimitReached | None = None
        # Why nothing further is begun, once that is so.
        self._stopping: Blocked | None = None
        self._timers: list[asyncio.TimerHandle] = []

    async def to_its_end(self, deadline_s: float | None = None) -> Execution:
        """Runs it."""
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        if deadline_s is not None:
            self._timers.append(self._loop.call_later(deadline_s, self._run_out))
        try:
            self._schedule.begin()
            self._look_around()
            await self._over
        except BaseException:
            self._interrupt()
            try:
                await self._calls.wait(GRACE_S)
            finally:
                self._calls.begin_no_more()
                self._leave_behind()
            raise
        finally:
            for timer in self._timers:
                timer.cancel()
            if self._parent is not None:
                self._shared.log.failed_inside += self._failures
        for label in changed_outputs(self._schedule.states.values()):
            log_warning(
                "an output was changed after it was written down, and a run that goes on from the "
                "journal would not see that; let the node that takes it change a copy",
                code="run.output-changed",
                node=label,
            )
        wholes = {
            name: state.whole(with_skipped=True)[0] for name, state in self._schedule.states.items()
        }
        # References in a circle would keep them until Python looks for such.
        self._schedule.states.clear()
        log = self._shared.log
        return Execution(
            outputs={name: one for name, one in wholes.items() if type(one) is not Blocked},
            failures=tuple(self._failures),
            skips=(*log.skips, *self._unnoticed()),
            questions=tuple(self._questions),
            reused=tuple(log.reused),
            reruns=tuple(log.reruns),
            renamed=dict(log.renamed),
            stopped_by=self._stopped_by,
        )

    def _unnoticed(self) -> Iterator[NodeSkip]:
        """What failed inside of nodes that went on all the same."""
        noticed = {one.node for one in self._failures}
        for one in self._shared.log.failed_inside:
            if one.node not in noticed:
                noticed.add(one.node)
                said = describe(one.error)
                yield NodeSkip(node=one.node, reason=f"failed, and its caller did not: {said}")

    def _skip(
        self, state: State, item: int | None, reason: str, because_of: str | None = None
    ) -> None:
        """Takes down that a call was not made, or came to nothing."""
        skip = NodeSkip(node=state.label(item), reason=reason, because_of=because_of)
        self._shared.log.skips.append(skip)
        tracer = self._shared.tracer
        said = tracer.excerpt(reason)
        tracer.instant("skip", node=state.path, item=item, detail=said, because_of=because_of)

    def _leave_out(self, state: State, item: int | None, said: str) -> None:
        self._skip(state, item, f"failed, and is left out: {said}")

    def _say_total(self, state: State, total: int) -> None:
        self._shared.tracer.instant("items", node=state.path, total=total)
        if self._watcher is not None:
            self._watcher.counts(state.path, total)

    def _say_ended(self, state: State, item: int | None) -> None:
        assert self._watcher is not None
        self._watcher.ends(state.path, item)

    # --- calls as tasks ---------------------------------------------------------------------------

    async def _run_call(self, going: Going) -> None:
        """Makes a call, and takes down how it ended."""
        try:
            if self._parent is not None:
                self._parent.beat()
            outcome, given_digest = await self._outcome(going)
            if self._parent is not None:
                self._parent.beat()
            if self._calls.has_ended(going):
                self._settle(going, outcome, given_digest)
                self._look_around()
        except BaseException as error:
            # The run must end by it, and not wait for this call for ever.
            self._calls.has_ended(going)
            if not isinstance(error, LeftBehind) and not self._over.done():
                # Raised here as well, SystemExit would break off the loop, and all else with it.
                self._over.set_exception(error)
            elif not isinstance(error, Exception):
                task = asyncio.current_task()
                assert task is not None
                task.add_done_callback(forget)
                raise

    def _settle(self, going: Going, outcome: object, given_digest: str) -> None:
        state, item = going.state, going.item
        if outcome is self._stopping and self._stopping is not None:
            self._skip(state, item, self._stopping.reason, self._stopping.label or None)
        self._schedule.settle(state, item, outcome, given_digest)

    async def _outcome(self, going: Going) -> tuple[object, str]:
        """What a call gave, or what stands for it; and the digest of that."""
        state, item = going.state, going.item
        try:
            if self._stopping is not None:
                return self._stopping, NO_DIGEST
            taken = self._schedule.taken(state, item, state.step.node.parameters)
            try:
                found = await self._found(state, item, taken)
                if found is not None:
                    return found
                given = await self._perform(going, taken)
            except CallFailed as failed:
                return await self._failed(going, failed, taken)
            except Suspended as suspended:
                self._questions += suspended.questions
                return Blocked(state.label(item), "waits for an answer"), NO_DIGEST
            # What it gave has to be written down: its place is free for another meanwhile.
            self._calls.give_back(going)
            return await self._outputs.keep(state, item, taken, given)
        except asyncio.CancelledError:
            return self._cut_off(state, item), NO_DIGEST
        finally:
            self._calls.give_back(going)

    async def _found(
        self, state: State, item: int | None, taken: Taken
    ) -> tuple[object, str] | None:
        """What a call gives that need not be made; None of one that must be."""
        if not self._is_wanted(state, item):
            self._skip(state, item, _NOT_WANTED)
            return Skipped(reason=_NOT_WANTED), NO_DIGEST
        known = await self._outputs.find(state, item, taken)
        if known is not None and type(known[0]) is Skipped:
            self._leave_out(state, item, known[0].reason)
        return known

    def _is_wanted(self, state: State, item: int | None) -> bool:
        """Whether a node's `when=` lets it run."""
        when = state.step.node.when
        if when is None:
            return True
        asked = self._schedule.taken(state, item, when.parameters)
        try:
            return bool(when.function(**asked.arguments))
        except Exception as error:
            raise CallFailed(error, 0) from error

    async def _perform(self, going: Going, taken: Taken) -> Given:
        if self._stopping is not None:
            raise asyncio.CancelledError
        state, item = going.state, going.item
        step, label = state.step, state.label(item)
        handle = None
        if step.node.takes_run or step.policies.timeout is not None:
            handle = NodeCall(
                step,
                label=label,
                inputs=taken.inputs,
                shared=self._shared,
                nested=self._nest,
                parent=self._parent,
            )
        is_shown = step.item_form is not None and not step.mapped
        on_item = partial(self._hand_on, state, taken) if is_shown else None
        arguments, inputs, needs = taken
        around = self._parent
        call = Call(
            step, state.path, label, item, arguments, inputs, needs, handle, around, on_item
        )
        if self._watcher is not None:
            self._watcher.begins(state.path, item)
        going.is_made = True
        try:
            return await perform(call, self._shared)
        finally:
            going.is_made = False

    async def _hand_on(
        self, state: State, taken: Taken, item: int, value: object, data: bytes
    ) -> None:
        """An item of a generating node, for those who take items as they come."""
        await self._outputs.record(state, item, taken, data=data, digest=digest(data))
        if state.outcome is not PENDING:
            raise asyncio.CancelledError  # it was left behind, and its followers have gone on
        self._schedule.add_item(state, item, value, digest_of_value(value))
        self._look_around()

    async def _nest(
        self, call: NodeCall, graph: Graph, inputs: Mapping[str, object], prefix: str
    ) -> Execution:
        nested = _Running(graph, inputs, self._shared, prefix=prefix, parent=call)
        return await nested.to_its_end()

    # --- calls that give nothing ------------------------------------------------------------------

    async def _failed(self, going: Going, failed: CallFailed, taken: Taken) -> tuple[object, str]:
        """What stands for the output of a call whose last attempt raised."""
        state, item, error = going.state, going.item, failed.error
        if self._stopping is not None:
            return self._stopping, NO_DIGEST  # what it raised on its way out is no failure
        self._calls.give_back(going)
        said = describe(error) or ""
        # What a limit kept from being made is made when the run goes on with a higher one.
        is_limit = isinstance(error, RunLimitReached)
        if isinstance(error, RunLimitReached):
            self._stopped_by = self._stopped_by or error
        task = asyncio.current_task()
        assert task is not None
        # A call that somebody cancelled, the node itself perhaps, has not come to its end.
        on_error = "fail" if task.cancelling() else state.step.policies.on_error
        if on_error == "skip":
            self._leave_out(state, item, said)
            if not is_limit:
                await self._outputs.record(state, item, taken, skipped=said)
            return Skipped(reason=said), NO_DIGEST
        if isinstance(on_error, Default):
            self._skip(state, item, f"failed, and its default stands for it: {said}")
            value = state.with_items_given(on_error.value)
            data = state.step.form.encode(value)
            if is_limit:
                return value, digest(data)
            return await self._outputs.keep(state, item, taken, Given(value, data, 0))
        return self._given_up(state, item, failed), NO_DIGEST

    def _given_up(self, state: State, item: int | None, failed: CallFailed) -> Blocked:
        """Takes down that nothing stands for a call's output."""
        label, error = state.label(item), failed.error
        if isinstance(error, RunLimitReached):
            self._skip(state, item, describe(error) or "")
            return Blocked(label, "was stopped by a limit")
        if isinstance(error, NodeFailed) and isinstance(error.result, Execution):
            # What failed is nested in it.
            self._failures += error.result.failures
            blocked = Blocked(error.node, "failed")
            self._skip(state, item, blocked.reason, blocked.label)
        else:
            self._failures.append(NodeFailure(node=label, error=error, attempts=failed.attempts))
            blocked = Blocked(label, "failed")
        return blocked

    def _cut_off(self, state: State, item: int | None) -> Blocked:
        """What stands for the output of a call whose task was cancelled."""
        if self._stopping is not None:
            return self._stopping
        # By whom, nobody knows; the loop is being closed, perhaps.
        what = asyncio.CancelledError("its task was cancelled")
        return self._given_up(state, item, CallFailed(what, 1))

    # --- the end ----------------------------------------------------------------------------------

    def _run_out(self) -> None:
        """The run's time is over."""
        self._stopped_by = self._stopped_by or RunLimitReached(
            "the run's time was over (max_seconds); what was still going was stopped", limit="time"
        )
        self._stop(Blocked("", "the run's time was over"))

    def _stop(self, why: Blocked) -> None:
        """Ends all calls, and begins no more."""
        if self._stopping is None:
            self._stopping = why
            self._calls.cancel()
            self._timers.append(self._loop.call_later(GRACE_S, self._leave_behind))

    def _interrupt(self) -> None:
        """From here on nothing is begun: nobody waits for the run any more."""
        parent = self._parent
        self._stopping = Blocked(
            *(("", "the run was interrupted") if parent is None else (parent.label, "was ended"))
        )
        self._calls.cancel()

    def _leave_behind(self) -> None:
        """Goes on without the calls that ignore that they were cancelled."""
        assert self._stopping is not None
        for going in self._calls.leave_behind():
            self._settle(going, self._stopping, NO_DIGEST)
        self._look_around()

    def _look_around(self) -> None:
        """What follows from what has just been settled."""
        if self._failures and self._fails_fast:
            self._stop(Blocked(self._failures[0].node, "failed"))
        if self._schedule.is_over and not self._over.done():
            self._over.set_result(None)


class Going:
    """A call from its beginning to its end.

    Attributes:
        state: Of which node.
        item: Which item; None for all at once.
        has_place: Whether it is one of those that are counted.
        is_made: Whether its function is at work. Before and after that there is nothing to be
            cancelled: what it gave is only to be written down.
    """

    __slots__ = ("has_place", "is_made", "item", "state")

    def __init__(self, state: State, item: int | None) -> None:
        self.state = state
        self.item = item
        self.has_place = False
        self.is_made = False


class Calls:
    """Those of one run of one graph.

    Args:
        run: Makes a call, and takes down how it ended.
        places: How many may be under way, of all graphs together.
        depth: In how many calls the graph is nested.
        log: Knows what was left behind.
    """

    def __init__(
        self,
        run: Callable[[Going], Coroutine[Any, Any, None]],
        *,
        places: Places,
        depth: int,
        log: Log,
    ) -> None:
        self._run = run
        self._places = places
        self._depth = depth
        self._log = log
        self._loop = asyncio.get_running_loop()
        # A call begins in whatever task makes way for it, which may be inside of other spans.
        self._context = contextvars.copy_context()
        self._tasks: dict[Going, asyncio.Task[None]] = {}
        self._is_over = False

    def begin(self, state: State, item: int | None) -> None:
        """Begins a call, now or when there is a place for it."""
        start = partial(self._start, Going(state, item))
        if state.places is None:
            self._places.take(start, depth=self._depth)
        else:
            state.places.take(partial(self._places.take, start, depth=self._depth))

    def give_back(self, going: Going) -> None:
        """Lets another have a call's place, if it still has it."""
        if going.has_place:
            going.has_place = False
            self._places.give_back()
            if going.state.places is not None:
                going.state.places.give_back()

    def has_ended(self, going: Going) -> bool:
        """Takes a call out; whether it was still in, and not left behind."""
        return self._tasks.pop(going, None) is not None

    def cancel(self) -> None:
        """Tells all that are at work to end."""
        for going, task in self._tasks.items():
            if going.is_made:
                task.cancel()

    def leave_behind(self) -> list[Going]:
        """Takes out those that are still at work, and goes on without them."""
        left = [going for going in self._tasks if going.is_made]
        for going in left:
            task = self._tasks.pop(going)
            leave_behind(task, label=going.state.label(going.item), log=self._log)
            self.give_back(going)
        return left

    def begin_no_more(self) -> None:
        """Nobody waits for the run any more: what still waits for a place passes it on."""
        self._is_over = True

    async def wait(self, timeout_s: float) -> None:
        """Returns when all have ended, or after so many seconds."""
        end_s = self._loop.time() + timeout_s
        while self._tasks and (left_s := end_s - self._loop.time()) > 0:
            await asyncio.wait(self._tasks.values(), timeout=left_s)

    def _start(self, going: Going) -> None:
        going.has_place = True
        if self._is_over:
            self._loop.call_soon(self.give_back, going)
            return
        # Not in a task group, which would wait for ever for a call that ignores its cancellation.
        # Not by the loop's own factory either: an eager one would run it within what began it.
        self._tasks[going] = asyncio.Task(
            self._run(going), loop=self._loop, context=self._context.copy()
        )
