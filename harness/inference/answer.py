"""Answers: the request as users write it, and a reply that is continued, repeated or refused.

`answer` handles replies that are cut or do not match their type. `Client.call`, below it, handles
empty replies, for every call to a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, TypedDict, get_args

from harness.errors import (
    InferenceError,
    InvalidInput,
    ReplyCut,
    ReplyEmpty,
    ReplyFiltered,
    ReplyInvalid,
    RunLimitReached,
    did_you_mean,
)
from harness.inference.completion import Completion, Usage, is_visible, why_no_text
from harness.inference.json_text import json_objects_in
from harness.inference.request import ChatRequest, Effort, Message, Prompt, as_messages, as_texts
from harness.inference.structured import Ask, ReplyType

OnCut = Literal["error", "keep", "continue"]
"""What becomes of a reply that is not whole: `error` raises an error that carries its text, `keep`
returns it as it is, `continue` asks for the rest and joins it; a filtered reply stays an error."""

_MOST_CONTINUATIONS = 4  # a model that goes on for ever is stopped after this many
# A longer run of letters is no word: Chinese, minified JSON. Written again, it may be cut again.
_LONGEST_WORD = 80
_REMINDER = "\n\n[Your last reply had no text. Give your answer as text.]"
_REMINDER_OF_TOOLS = "\n\n[Your last reply was empty. Answer, or call a tool.]"
# For a greedy call that is repeated: at temperature 0 it would get the same reply.
_TEMPERATURE_AGAIN = 0.3


class ChatOptions(TypedDict, total=False):
    """What every form of `chat` takes; those without a word here are as in `ChatRequest`."""

    max_output_tokens: int | None
    """Where the reply is cut; when left out, the model's context or a limit of the run ends it."""
    on_cut: OnCut
    """What becomes of a reply that was cut or filtered: `error` raises, `keep` takes it as it is,
    and `continue` asks for the rest, a few times at most, and joins it."""
    allow_empty: bool
    """Whether a reply without visible text is an answer. By default the model is asked once more,
    and a second such reply is an error."""
    attempts: int
    """The most replies until one is of the type of `returns`; the model is told why; 1 if unset."""
    temperature: float
    top_p: float | None
    top_k: int | None
    min_p: float | None
    frequency_penalty: float
    presence_penalty: float | None
    reasoning_effort: Effort | None
    extra_body: Mapping[str, object] | None
    seed: int | None
    stop: Sequence[str]
    timeout_s: float | None
    priority: int


# Options of other clients → what to write here.
_REMEDIES = {
    "system": 'begin the prompt with it: [{"role": "system", "content": "…"}, {"role": "user", …}]',
    "response_format": "give the type as returns=",
    "response_model": "give the type as returns=",
}
_FIELDS = frozenset(field.name for field in fields(ChatRequest))


def chat_request(
    prompt: Prompt,
    *,
    returns: Any = None,  # noqa: ANN401 - a type, annotated perhaps
    stop: Sequence[str] = (),
    **settings: Any,  # noqa: ANN401
) -> tuple[ChatRequest, ReplyType[Any] | None]:
    """The request that `chat` was called with, and the type of its reply, None for a text."""
    for name in settings.keys() - _FIELDS:
        options = {"returns", "tools", "tool_choice", "on_text", *ChatOptions.__annotations__}
        remedy = _REMEDIES.get(name) or did_you_mean(name, options)
        raise TypeError(f"chat has no option '{name}'; {remedy}")
    reply_type = None if returns in (None, Completion) else ReplyType(returns)
    request = ChatRequest(
        messages=as_messages(prompt),
        stop=as_texts(stop),
        reply_schema=None if reply_type is None else reply_type.schema,
        **settings,
    )
    return request, reply_type


async def answer(
    ask: Ask,
    request: ChatRequest,
    *,
    reply_type: ReplyType[Any] | None = None,
    on_cut: OnCut = "error",
    attempts: int = 1,
) -> Any:  # noqa: ANN401 - a completion, or a value of the type
    """The reply to a call, whole unless `on_cut` is `keep`; with a type, the reply as its value.

    The model is asked up to `attempts` times for a value of the type. A cut reply is asked for
    again only if it was stored.

    Raises:
        InvalidInput: `on_cut` or `attempts` is wrong.
        ReplyCut: The reply was cut, and not stored.
        ReplyInvalid: No attempt gave a value of the type.
        InferenceError: Whatever `ask` raises.
    """
    if on_cut not in get_args(OnCut):
        raise InvalidInput(
            f"on_cut is '{on_cut}'; it can be {', '.join(get_args(OnCut))}",
            code="request.on-cut-unknown",
        )
    if type(attempts) is not int or attempts < 1:  # True is an int too
        raise InvalidInput(
            f"attempts is {attempts!r:.80}; give a whole number, 1 or more",
            code="request.attempts-not-positive",
        )
    failed_attempts = 0
    while True:
        try:
            reply = await ask(request)
            if on_cut != "keep":
                reply = await _whole_reply(ask, request, reply, on_cut=on_cut)
            return reply if reply_type is None else reply_type.parse(reply, endpoint=request.model)
        except (ReplyInvalid, ReplyCut) as error:
            # A stored reply is no attempt: it cost nothing, and would come again.
            if not error.from_cache:
                failed_attempts += 1
                if isinstance(error, ReplyCut) or failed_attempts >= attempts:
                    raise
            request = _repeated(request, error)


def _repeated(request: ChatRequest, error: ReplyInvalid | ReplyCut) -> ChatRequest:
    """The request changed, so that another reply may come: a stored one would come again."""
    request = replace(request, asks_again=True)
    if isinstance(error, ReplyInvalid) and error.text.strip():
        problem = error.problem or error.statement
        demand = f"That is not what was asked for: {problem}. Answer again, in full."
        turns = (Message("assistant", error.text), Message("user", demand))
        return replace(request, messages=(*request.messages, *turns))
    return varied(request, 1)


def varied(request: ChatRequest, number: int) -> ChatRequest:
    """The request with its seed raised by `number`, and a temperature above 0."""
    seed = (request.seed or 0) + number
    return replace(request, temperature=request.temperature or _TEMPERATURE_AGAIN, seed=seed)


async def _whole_reply(
    ask: Ask, request: ChatRequest, reply: Completion, *, on_cut: OnCut
) -> Completion:
    """The reply, joined to the rest of it if `on_cut` is `continue`; raises as `check_whole`."""
    continuations = 0
    while on_cut == "continue" and continuations < _MOST_CONTINUATIONS:
        # The half arguments of a call, or of what may become one, are no text to continue.
        is_call = reply.tool_calls or reply.tools == "typed"
        if is_call or reply.finish_reason != "length" or not reply.text.strip():
            break
        reply = await _continued(ask, request, reply)
        continuations += 1
    check_whole(reply, endpoint=request.model, continuations=continuations)
    return reply


def check_whole(completion: Completion, *, endpoint: str, continuations: int = 0) -> None:
    """Raises `ReplyCut` for a reply that is not whole; `RunLimitReached` if a limit cut it."""
    reason = completion.finish_reason
    if reason in {"stop", "tool_calls"}:
        return
    error_class = ReplyCut
    if reason == "content_filter":
        error_class = ReplyFiltered
        why = "was stopped by the provider's filter; reword the request"
    elif not is_visible(completion.text):
        why = f"was cut before its answer: {why_no_text(completion)}; raise max_output_tokens"
    else:
        after = f", also after {continuations} calls for the rest" if continuations > 1 else ""
        why = f"was cut before its end{after}; raise max_output_tokens, ask for less"
    if is_visible(completion.text):
        why += f", or take it as it is with on_cut='keep'. It begins: {completion.text[:160]!r}"
    cut = error_class(
        f"the reply {why}",
        endpoint=endpoint,
        text=completion.text,
        finish_reason=reason,
        usage=completion.usage,
        from_cache=completion.from_cache,
    )
    if completion.cut_by is None:
        raise cut
    raise RunLimitReached(
        f"the run's limit of {completion.cut_by} cut a reply of '{endpoint}' after "
        f"{len(completion.text)} characters; raise it to go on",
        limit=completion.cut_by,
    ) from cut


async def _continued(ask: Ask, request: ChatRequest, cut: Completion) -> Completion:
    """A cut reply joined to the text of one more call, which may be cut as well."""
    # Its last word is asked for again, so that the rest begins with a word whether the server
    # continues the text or the model is asked to. JSON is continued from its last letter.
    head, gap = cut.text, ""
    if request.reply_schema is None:
        head, gap = _without_last_word(cut.text)
    continuation = replace(
        request,
        messages=(*request.messages, Message("assistant", head)),
        goes_on=True,
        reply_schema=None,  # a grammar would begin again
    )
    try:
        rest = await ask(continuation)
    except InferenceError:
        # The cut reply is the error to report; this one becomes its context.
        check_whole(cut, endpoint=request.model)
        raise
    text, finish_reason = cut.text, rest.finish_reason
    if rest.text.strip() or rest.tool_calls:
        text = head + ("" if rest.text[:1].isspace() else gap) + rest.text
    elif finish_reason != "content_filter":
        # Nothing more came, whatever the server calls that: the reply is still a cut one.
        finish_reason = "length"
    return replace(
        rest,
        text=text,
        reasoning=cut.reasoning + rest.reasoning,
        finish_reason=finish_reason,
        usage=_sum_of_usage(cut.usage, rest.usage),
        sent_ns=cut.sent_ns,
        first_token_ns=cut.first_token_ns,
        phases=(*cut.phases, *rest.phases),
        # These do not add up over two replies.
        itl=None,
        structured=cut.structured,
        cost_usd=_sum(cut.cost_usd, rest.cost_usd),
        cache_saved_usd=_sum(cut.cache_saved_usd, rest.cache_saved_usd),
        attempts=cut.attempts + rest.attempts,
        from_cache=cut.from_cache and rest.from_cache,
    )


def _without_last_word(text: str) -> tuple[str, str]:
    """The text before its last word, and the space between; the whole text if it has no such."""
    before = text
    if not text[-1].isspace():  # else no word is cut, and only the space at the end is taken off
        word = text.rsplit(maxsplit=1)[-1]
        is_word = len(word) <= _LONGEST_WORD or "/" in word  # an address, a path
        before = text.removesuffix(word) if is_word else ""
    head = before.rstrip()
    return (head, before[len(head) :]) if head else (text, "")


def _sum_of_usage(first: Usage | None, second: Usage | None) -> Usage | None:
    """The sum of two replies' usage; None for a count that either lacks."""
    if first is None or second is None:
        return None
    names = (field.name for field in fields(Usage))
    return Usage(**{name: _sum(getattr(first, name), getattr(second, name)) for name in names})


def _sum(first: Any, second: Any) -> Any:  # noqa: ANN401 - a number, or None
    return None if first is None or second is None else first + second


# --- replies without text ----------------------------------------------------------------------


def lacks_text(request: ChatRequest, reply: Completion) -> bool:
    """Whether a whole reply holds neither text nor calls of offered tools, though it should."""
    if request.allow_empty or reply.finish_reason not in {"stop", "tool_calls"}:
        return False
    return not (reply.tool_calls and request.tools) and not is_visible(reply.text)


def with_text(request: ChatRequest, reply: Completion) -> Completion:
    """The reply; an empty one with the JSON for a schema, if that is in its calls or reasoning."""
    if request.reply_schema is None or not lacks_text(request, reply):
        return reply
    # Some models answer a schema by a call of a tool, though none was offered.
    if len(reply.tool_calls) == 1 and not request.tools:
        arguments = reply.tool_calls[0].arguments
        return replace(reply, text=arguments, tool_calls=(), finish_reason="stop")
    # vLLM and LM Studio file an answer under reasoning if its model did not mark where its thinking
    # begins or ends. JSON with text behind it is a part of the thought.
    objects = json_objects_in(reply.reasoning)
    if not objects:
        return reply
    thought, _, behind = reply.reasoning.rpartition(objects[-1])
    if is_visible(behind.replace("```", "")):
        return reply
    return replace(reply, text=objects[-1], reasoning=thought)


def check_text(request: ChatRequest, reply: Completion) -> None:
    """Raises `ReplyEmpty` if a reply lacks text."""
    if lacks_text(request, reply):
        raise ReplyEmpty(
            f"the reply has no text: {why_no_text(reply)}. Reword the request, give the model more "
            "room or less to reason about, or take such replies with allow_empty=True",
            endpoint=request.model,
            text=reply.text,
            finish_reason=reply.finish_reason,
            usage=reply.usage,
            from_cache=reply.from_cache,
        )


def reminded(request: ChatRequest) -> ChatRequest | None:
    """The request with a reminder that its reply was empty; None if it has that already."""
    # The reminder stands in the last message, since templates of some models allow no further turn.
    # It also changes the request, whose greedy reply would be the same. The rest of a cut reply has
    # none, since the model would go on from the reminder as from its own text.
    *before, last = request.messages
    reminder = _REMINDER_OF_TOOLS if request.tools else _REMINDER
    if request.goes_on or last.content.endswith(reminder):
        return None
    last = replace(last, content=last.content + reminder)
    return replace(request, messages=(*before, last))
