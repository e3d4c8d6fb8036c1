"""The agent: a model that calls tools until it can answer.

A plain loop: the model replies, the tools it asks for are called, the results go back to it. Code
decides when the loop ends, by `next_move`.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, Required, TypedDict

from harness.errors import InvalidInput, NodeTimedOut, NotOffered, RunLimitReached, did_you_mean
from harness.graph import InProcess, NodeCall, Timeout, Work
from harness.graph.executor import timed
from harness.graph.graph import ResultT
from harness.graph.node import RUN_PARAMETER
from harness.inference import Completion, Image, Message, OnCut, ToolCall
from harness.session.mcp_tools import ToolSource
from harness.session.tools import ToolFailed, ToolOutcome, ToolResult, UsableTool, cut, result_of
from harness.trace import Tracer, describe, events

AgentStop = Literal["answered", "max_steps", "repeating"]
"""Why an agent ended: with an answer, out of steps, or because its model repeated the same calls in
spite of a warning."""

SAME_CALLS = 3
"""The steps in a row with the same calls and results after which the model is warned."""
_TRACEBACK_CHARS = 5_000

_LAST = "\n\n[No further call is possible. Answer now, with what you know.]"
_UNSEEN = "\n\n[The images of this result cannot be shown to this model.]"


class AgentReplyOptions(TypedDict, total=False):
    """The options of `run.agent` for each reply of its model, as in `run.chat`."""

    max_output_tokens: int | None
    on_cut: OnCut
    temperature: float
    seed: int | None


class AgentOptions(AgentReplyOptions, total=False):
    """The options of all forms of `run.agent`; see there."""

    tools: Required[Sequence[ToolSource]]
    system: str | None
    max_steps: int
    timeout_s: float | None
    max_result_chars: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult(Generic[ResultT]):
    """The result of an agent."""

    text: str
    """The answer. If the agent was stopped: its last text, perhaps empty."""
    stop_reason: AgentStop
    value: ResultT
    """The answer in the type asked for; None if there is no answer or no type was asked for."""
    steps: int
    """Replies of the model."""
    calls: tuple[ToolResult, ...]
    """In the order in which the model asked for them."""
    messages: tuple[Message, ...]
    """The conversation, for another call to continue. Tool calls that were not made are left out.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStep:
    """A reply of the model that did not end the loop, with the results of its calls."""

    turn: Message  # the reply, with what its server wants back
    results: tuple[ToolResult, ...]


Move = AgentStop | Literal["call", "remind"]
"""Why the agent ends, or its next move: `call` the tools, or `remind` the model of the last results
of the same calls."""


def next_move(steps: Sequence[AgentStep], reply: Completion, *, max_steps: int) -> Move:
    """The next move after a reply of the model."""
    if not reply.tool_calls:
        return "answered"
    requested = _key_of(reply.tool_calls)
    repetitions = 0
    if steps and _key_of(steps[-1].turn.tool_calls) == requested:
        if any(result.outcome == "repeated" for result in steps[-1].results):
            return "repeating"
        for step in reversed(steps):
            is_same = _key_of(step.turn.tool_calls) == requested
            if not is_same or _results_of(step) != _results_of(steps[-1]):
                break
            repetitions += 1
    if len(steps) + 1 >= max_steps:
        return "max_steps"
    return "remind" if repetitions >= SAME_CALLS else "call"


def _results_of(step: AgentStep) -> list[tuple[str, tuple[Image, ...]]]:
    return [(result.text, result.images) for result in step.results]


def _key_of(calls: Sequence[ToolCall]) -> list[tuple[str, object]]:
    """A key of calls, the same for calls that differ only in the spelling of their arguments."""
    return [(call.name, call.as_object() or call.arguments) for call in calls]


async def run_agent(
    ask: Callable[[tuple[Message, ...]], Awaitable[Completion]],
    tools: Sequence[UsableTool],
    messages: Sequence[Message],
    *,
    name: str,
    call: NodeCall,
    tracer: Tracer,
    role: str,
    max_steps: int,
    max_result_chars: int,
) -> AgentResult[None]:
    """Lets a model call tools until it answers, or there is a reason to stop.

    `name` labels its tool calls as steps of the node's `call`: an identifier that no other agent of
    this call has. A result longer than `max_result_chars` loses its middle.

    Raises:
        InvalidInput: A limit is too low.
        RunLimitReached: A limit of the run ended it.
        InferenceError: A reply failed; `ReplyEmpty` if two in a row have no text and no call.
    """
    if max_steps < 1 or max_result_chars < 1:
        raise InvalidInput(
            f"max_steps is {max_steps} and max_result_chars {max_result_chars}; each must be 1 or "
            "more",
            code="agent.limit-not-positive",
        )
    by_name = {tool.spec.name: tool for tool in tools}
    caller = _ToolCaller(by_name, tracer, max_result_chars)
    messages_so_far, steps = list(messages), list[AgentStep]()
    with tracer.span(events.Agent(f"{name} ({role})", role)) as span:
        while True:
            number = len(steps) + 1
            with tracer.span(events.AgentStep(f"step {number}", number)):
                try:
                    reply = await ask(tuple(messages_so_far))
                except NotOffered:
                    # The model takes no images, so a note stands in place of those from tools.
                    without_images = [*map(_without_images, messages_so_far)]
                    if without_images == messages_so_far:
                        raise  # it refuses something else
                    messages_so_far = without_images
                    reply = await ask(tuple(messages_so_far))
                match move := next_move(steps, reply, max_steps=max_steps):
                    case "answered" | "max_steps" | "repeating":
                        break
                    case "call":
                        # As steps of the run, calls are in its journal before the model is asked
                        # again, so that a resumed run repeats no finished call.
                        items = [caller.item(request) for request in reply.tool_calls]
                        results = await call.map(caller.step, items, name=name, has_track=False)
                    case "remind":
                        results = [_repeated(result) for result in steps[-1].results]
                steps.append(AgentStep(turn=reply.message, results=tuple(results)))
                is_last = len(steps) == max_steps - 1
                messages_so_far += _messages_of(steps[-1], is_last=is_last)
        calls = tuple(result for step in steps for result in step.results)
        span.set(steps=len(steps) + 1, calls=len(calls), stop_reason=move)
    texts = [step.turn.content.strip() for step in steps] + [reply.text.strip()]
    if texts[-1]:
        messages_so_far.append(replace(reply.message, tool_calls=()))
    return AgentResult(
        text=next(filter(None, reversed(texts)), ""),
        stop_reason=move,
        value=None,
        steps=len(texts),
        calls=calls,
        messages=tuple(messages_so_far),
    )


def _without_images(message: Message) -> Message:
    """A tool's message with a note in place of its images; any other message as it is."""
    if message.role != "tool" or not message.images:
        return message
    return replace(message, content=message.content + _UNSEEN, images=())


def _repeated(result: ToolResult) -> ToolResult:
    note = (
        f"{result.text}\n\n[Not called again: you have made the same call {SAME_CALLS} times in a "
        "row, and this is its result. Answer, or call something else.]"
    )
    return replace(result, text=note, outcome="repeated")


def _messages_of(step: AgentStep, *, is_last: bool) -> list[Message]:
    """What a step adds to the conversation; after the last, the model must answer."""
    results = [
        Message("tool", result.text, answers=call.id, images=result.images)
        for call, result in zip(step.turn.tool_calls, step.results, strict=True)
    ]
    messages = [step.turn, *results]
    if is_last:
        # No message of its own, since some models' templates allow no user after a tool.
        messages[-1] = replace(messages[-1], content=messages[-1].content + _LAST)
    return messages


@dataclass(frozen=True, slots=True)
class _ToolCaller:
    """Calls tools, each call a step of the run."""

    tools: Mapping[str, UsableTool]
    tracer: Tracer
    max_result_chars: int

    def code_parts(self) -> tuple[object, ...]:
        # The code of the tool that is called is a part of each step's inputs instead.
        return ()

    def item(self, call: ToolCall) -> dict[str, str]:
        """The inputs of a step. Its recorded result is reused as long as they are the same."""
        code = self.tools[call.name].code if call.name in self.tools else ""
        return {"tool": call.name, "arguments": call.arguments, "code": code}

    async def step(self, run: Any, call: dict[str, str]) -> ToolResult:  # noqa: ANN401 - a `Run`
        """One call of a tool; an error of the tool is its result."""
        name, arguments = call["tool"], call["arguments"]
        outcome: ToolOutcome = "ok"
        images: tuple[Image, ...] = ()
        arguments_sha256 = self.tracer.content(arguments)
        with self.tracer.span(
            events.ToolEvent(label=name, tool=name, arguments_sha256=arguments_sha256)
        ) as span:
            try:
                text, images = await self._call_tool(run, name, arguments)
            except ToolFailed as error:
                text, outcome = f"Error: {error}", error.outcome
            except (Exception, asyncio.CancelledError) as error:
                if _is_the_runs_own(error):
                    raise
                # The model is told of any other failure, and may try something else.
                outcome = "timed out" if isinstance(error, NodeTimedOut) else "failed"
                text = f"Error: {describe(error)}"
                where = "".join(traceback.format_exception(error))[-_TRACEBACK_CHARS:]
                span.set(traceback=self.tracer.excerpt(where))
            text = cut(text, max_chars=self.max_result_chars)
            span.set(outcome=outcome, result_sha256=self.tracer.content(text))
            if outcome in {"failed", "timed out"}:
                span.status, span.error = "error", text
        return ToolResult(name=name, arguments=arguments, text=text, outcome=outcome, images=images)

    async def _call_tool(
        self,
        run: Any,  # noqa: ANN401
        name: str,
        written: str,
    ) -> tuple[str, tuple[Image, ...]]:
        """The text and images of a tool's result; raises what the tool raises, and `ToolFailed`."""
        tool = self.tools.get(name)
        if tool is None:
            suggestion = did_you_mean(name, self.tools)
            raise ToolFailed(f"there is no tool '{name}'; {suggestion}", outcome="unknown")
        arguments = tool.read(written)
        # The node call behind the run: a person is asked, and time is counted, through it.
        call: NodeCall = run._call  # noqa: SLF001 - nodes do not see it
        question = tool.question(arguments)
        if question is not None and not await call.ask(question, bool):
            refused = "refused by the person who was asked; do not make this call again"
            raise ToolFailed(refused, outcome="refused")
        values = {RUN_PARAMETER: run, **arguments} if tool.takes_run else arguments
        result = _called(Work(f"{call.label} {name}", tool.function, values))
        if tool.timeout_s is None:
            return result_of(await result)
        limit = Timeout(total_s=tool.timeout_s)
        result = timed(result, limit, pulse=call.pulse, label=call.label)
        try:
            return result_of(await result)
        except NodeTimedOut as error:
            late = f"'{name}' took longer than timeout_s = {tool.timeout_s:g} s"
            raise ToolFailed(late, outcome="timed out") from error


async def _called(work: Work) -> object:
    try:
        return await InProcess().call(work)
    except SystemExit as error:
        # Caught in this task, since a task that raises it ends the event loop.
        raise RuntimeError(f"the tool ended itself: {describe(error)}") from error


def _is_the_runs_own(error: BaseException) -> bool:
    """Whether an error ends the run, instead of being told to the model."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        # If nobody cancels this task, the tool raised the error by itself.
        return task is None or bool(task.cancelling())
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_the_runs_own, error.exceptions))
    return isinstance(error, RunLimitReached)
