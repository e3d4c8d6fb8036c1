"""One call of a node: its attempts, each under its time limits, and what it gave as JSON.

What is here knows one call, and nothing of the graph around it.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from contextlib import aclosing, nullcontext
from typing import Any, NamedTuple

from harness.errors import InvalidInput, LimitReached, NodeFailed, message_of
from harness.graph.executor import Work
from harness.graph.node import RUN_PARAMETER
from harness.graph.node_call import NodeCall
from harness.graph.plan import Step
from harness.graph.shared import Shared
from harness.graph.state import Digests
from harness.graph.suspended import Suspended
from harness.graph.timed import timed

OnItem = Callable[[int, object, bytes], Awaitable[None]]
"""Told each item of a generating node: its index, itself, and itself as JSON."""


_TRACEBACK_CHARS = 20_000
"""Of a traceback, in the record: the end says most."""


class Given(NamedTuple):
    """What a call gave."""

    value: object
    """Its output."""
    data: bytes
    """That as JSON."""
    span: int
    """Where it was made; 0 when it was there already."""


class CallFailed(Exception):
    """A call whose last attempt raised.

    Attributes:
        error: What it raised.
        attempts: How often it was called.
    """

    def __init__(self, error: BaseException, attempts: int) -> None:
        super().__init__(message_of(error))
        self.error = error
        self.attempts = attempts


class Call(NamedTuple):
    """One call to be made."""

    step: Step
    """Of which node."""
    path: str
    """The node's, in the run."""
    label: str
    """The same with the item: `findings[2]`."""
    item: int | None
    """Which item; None for all at once."""
    arguments: dict[str, Any]
    """By parameter, without the run."""
    inputs: Digests
    """The digests of the arguments."""
    needs: tuple[int | str, ...]
    """The spans in which they were made; of what an earlier part of the run made, labels."""
    handle: NodeCall | None
    """What stands behind its `run`; None when nothing asks for it."""
    around: NodeCall | None
    """The call that it is nested in."""
    on_item: OnItem | None
    """Told each item as it comes; None unless the node generates them for others."""


async def perform(call: Call, shared: Shared) -> Given:
    """Calls the node until it gives something that it may give, as often as its policy allows.

    Raises:
        CallFailed: It did not.
        Suspended: A person has to answer first.
    """
    task = asyncio.current_task()
    assert task is not None
    attempt = 1
    while True:
        try:
            return await _attempt(call, attempt, shared)
        except BaseException as raised:
            error = leaf(raised)
            if isinstance(error, asyncio.CancelledError):
                # Let through, it would look as if the run had been cancelled.
                whose = "its task" if task.cancelling() else "what it waited for"
                what = asyncio.CancelledError(f"{whose} was cancelled")
                raise CallFailed(what, attempt) from raised
            if not isinstance(error, Exception):
                if error is raised:
                    raise
                raise error from raised
            # What raises as it is cancelled is not to begin again.
            delay_s = None if task.cancelling() else _delay_s(call, error, attempt)
            if delay_s is None:
                raise CallFailed(error, attempt) from error
        shared.tracer.instant(
            "retry",
            node=call.label,
            reason=type(error).__name__,
            detail=shared.tracer.excerpt(message_of(error)),
            attempt=attempt,
            delay_s=delay_s,
        )
        attempt += 1
        with nullcontext() if call.around is None else call.around.pulse.doing("rest"):
            await asyncio.sleep(delay_s)


def _delay_s(call: Call, error: Exception, attempt: int) -> float | None:
    """How long to wait before the next attempt, in seconds; None if there is to be none."""
    retry = call.step.policies.retry
    if retry is None or isinstance(_cause(error), InvalidInput | LimitReached):
        return None
    if call.on_item is not None:
        return None  # others may have gone on with what it gave, and it might give other things
    return retry.delay_s(error, attempt=attempt)


def _cause(error: BaseException) -> BaseException:
    """What was raised at first, in the innermost of nested pipelines."""
    while isinstance(error, NodeFailed) and error.__cause__ is not None:
        error = error.__cause__
    return error


async def _attempt(call: Call, attempt: int, shared: Shared) -> Given:
    step, tracer = call.step, shared.tracer
    path = call.path
    tracer.check_written()
    with tracer.span(
        "node", track=f"node {path}", label=call.label, node=path, item=call.item
    ) as span:
        if attempt > 1:
            span.set(attempt=attempt)
        needs = call.needs
        tracer.flows("output", sources=[n for n in needs if type(n) is int], target=span.id)
        if shared.earlier is not None and (before := [n for n in needs if type(n) is str]):
            span.set(needs=before)
        if call.handle is not None:
            call.handle.begin_attempt(attempt)
        arguments = call.arguments
        if step.node.takes_run:
            assert call.handle is not None
            arguments = {RUN_PARAMETER: shared.run_of(call.handle), **arguments}
        work = Work(call.label, step.node.function, arguments)
        made = _stream(call, work, shared) if step.item_form else shared.executor.call(work)
        timeout = step.policies.timeout
        try:
            if timeout is None or call.handle is None:
                value = await made
            else:
                pulse = call.handle.pulse
                value = await timed(made, timeout, pulse=pulse, label=call.label, log=shared.log)
        except Exception as error:
            said = "".join(traceback.format_exception(error))
            if len(said) > _TRACEBACK_CHARS:  # whole lines: half of a secret is not known for one
                said = said[-_TRACEBACK_CHARS:].partition("\n")[2]
            span.set(traceback=tracer.excerpt(said))
            raise
        finally:
            if call.handle is not None:
                await call.handle.end_attempt()
        value = step.form.check(value)
        return Given(value, step.form.encode(value), span.id)


async def _stream(call: Call, work: Work, shared: Shared) -> list[object]:
    """All items of a generating node, each handed on as it comes."""
    form = call.step.item_form
    assert form is not None
    items: list[object] = []
    async with aclosing(shared.executor.stream(work)) as stream:
        async for item in stream:
            checked = form.check(item)
            if call.on_item is not None:
                await call.on_item(len(items), checked, form.encode(checked))
            items.append(checked)
            if call.handle is not None:
                call.handle.beat()
    return items


def leaf(error: BaseException) -> BaseException:
    """The first error of nested groups; before it what is no failure, as when a person is asked."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [leaf(one) for one in error.exceptions]
    first = min(leaves, key=_rank)
    if isinstance(first, Suspended):
        asking = [one for one in leaves if isinstance(one, Suspended)]
        return Suspended(*(question for one in asking for question in one.questions))
    return first


def _rank(error: BaseException) -> int:
    if isinstance(error, asyncio.CancelledError):
        return 2
    return 1 if isinstance(error, Exception) else 0
