"""Whole replies: continues, accepts or refuses a reply that was cut, filtered, or has no text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import fields, replace
from typing import Any, Literal, get_args

from harness.errors import (
    InferenceError,
    InvalidInput,
    ReplyCut,
    ReplyEmpty,
    ReplyFiltered,
    RunLimitReached,
)
from harness.inference.completion import Completion, Usage
from harness.inference.request import ChatRequest, Message

OnCut = Literal["error", "keep", "continue"]
"""What becomes of a reply that is not whole: an error that carries its text, the reply as it is, or
the rest, asked for and joined to it. `continue` is for a cut reply; a filtered one is an error."""

_MOST_CALLS_FOR_THE_REST = 4
"""A model that goes on for ever is stopped after this many."""


async def whole_reply(
    ask: Callable[[ChatRequest], Awaitable[Completion]], request: ChatRequest, *, on_cut: OnCut
) -> Completion:
    """The reply to a call, whole unless `on_cut` is `keep`.

    Raises:
        InvalidInput: There is no such `on_cut`.
        ReplyCut: The reply is not whole, even after the rest was asked for; `ReplyFiltered` and
            `ReplyEmpty` are kinds of it.
        InferenceError: As `ask` raises it.
    """
    if on_cut not in get_args(OnCut):
        raise InvalidInput(
            f"on_cut is '{on_cut}'; it can be {', '.join(get_args(OnCut))}",
            code="request.on-cut-unknown",
        )
    completion = await ask(request)
    if on_cut == "keep":
        return completion
    asked = 0
    for _ in range(_MOST_CALLS_FOR_THE_REST if on_cut == "continue" else 0):
        if completion.finish_reason != "length" or not completion.text.strip():
            break
        if completion.tool_calls or completion.tools == "typed":
            break  # a call, or what may become one: its arguments are nothing to go on with
        completion = await _continued(ask, request, completion)
        asked += 1
    check_whole(completion, endpoint=request.model, asked_for_rest=asked)
    return completion


def check_whole(completion: Completion, *, endpoint: str, asked_for_rest: int = 0) -> None:
    """That a reply is all that the model had to say.

    Raises:
        ReplyCut: It is not.
        RunLimitReached: It is not, since a limit left it too little room.
    """
    reason = completion.finish_reason
    has_said = completion.tool_calls or completion.text.strip()
    if reason == "stop" or (reason == "tool_calls" and has_said):
        return
    after = f", also after {asked_for_rest} calls for the rest" if asked_for_rest > 1 else ""
    kind, why = {
        "length": (
            ReplyCut,
            f"was cut before its end{after}; raise max_output_tokens, ask for less",
        ),
        "content_filter": (
            ReplyFiltered,
            "was stopped by the provider's filter; reword the request",
        ),
        "tool_calls": (
            ReplyEmpty,
            "calls tools and has no text; no tool was offered, so reword the request",
        ),
    }[reason]
    cut = kind(
        f"the reply {why}, or take it as it is with on_cut='keep'. "
        f"It begins: {completion.text[:160]!r}",
        endpoint=endpoint,
        text=completion.text,
        finish_reason=reason,
        usage=completion.usage,
    )
    if completion.cut_by is None:
        raise cut
    raise RunLimitReached(
        f"the run's limit of {completion.cut_by} cut a reply of '{endpoint}' after "
        f"{len(completion.text)} characters; raise it to go on",
        limit=completion.cut_by,
    ) from cut


async def _continued(
    ask: Callable[[ChatRequest], Awaitable[Completion]], request: ChatRequest, cut: Completion
) -> Completion:
    """A cut reply joined to more of it.

    The rest is asked for from the last whole word on, so that it begins with a word whether the
    server continues the text or the model is asked to. JSON under a grammar is continued from its
    last letter.
    """
    kept, gap = _whole_words(cut.text) if request.reply_schema is None else (cut.text, "")
    asked = replace(
        request,
        messages=(*request.messages, Message("assistant", kept)),
        goes_on=True,
        reply_schema=None,  # a grammar would begin again
    )
    try:
        more = await ask(asked)
    except InferenceError:
        # The cut reply is the error to report; this one becomes its context.
        check_whole(cut, endpoint=request.model)
        raise
    has_more = bool(more.text.strip() or more.tool_calls)
    ended = more.finish_reason if has_more or more.finish_reason == "content_filter" else "length"
    return replace(
        more,
        text=kept + ("" if more.text[:1].isspace() else gap) + more.text if has_more else cut.text,
        reasoning=cut.reasoning + more.reasoning,
        finish_reason=ended,
        usage=_together(cut.usage, more.usage),
        sent_ns=cut.sent_ns,
        first_token_ns=cut.first_token_ns,
        phases=(*cut.phases, *more.phases),
        itl=None,
        logprobs=(),
        structured=cut.structured,
        cost_usd=_sum(cut.cost_usd, more.cost_usd),
        cache_saved_usd=_sum(cut.cache_saved_usd, more.cache_saved_usd),
        attempts=cut.attempts + more.attempts,
        from_cache=cut.from_cache and more.from_cache,
    )


def _whole_words(text: str) -> tuple[str, str]:
    """A text without its last word, and the space that stood before that; all, if it has one."""
    words = text.rstrip()
    if words != text:
        return words, text[len(words) :]
    head = words[: -len(words.split()[-1])]
    return (head.rstrip(), head[len(head.rstrip()) :]) if head.strip() else (text, "")


def _together(first: Usage | None, second: Usage | None) -> Usage | None:
    """The sum; None for a count that either lacks."""
    if first is None or second is None:
        return None
    names = (field.name for field in fields(Usage))
    return Usage(**{name: _sum(getattr(first, name), getattr(second, name)) for name in names})


def _sum(first: Any, second: Any) -> Any:  # noqa: ANN401 - a number, or None
    return None if first is None or second is None else first + second
