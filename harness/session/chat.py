"""Calls to models without a pipeline."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar, Unpack, overload

from harness.inference import ChatOptions, Client, Completion, Embeddings, EmbedRequest, TextStream
from harness.inference.answer import answer, chat_request
from harness.inference.request import Prompt, as_texts
from harness.inference.stream import text_stream
from harness.session.models import describe_endpoints, known_endpoints, open_models
from harness.session.own_loop import refuse_running_loop, run_to_its_end
from harness.session.settings import Settings, settings_or_default
from harness.session.tools import Offered, tool_specs
from harness.trace import Tracer

T = TypeVar("T")


@asynccontextmanager
async def open_shim(
    *models: str, settings: Settings | None = None, tracer: Tracer | None = None
) -> AsyncIterator[Client]:
    """Opens the models of this directory, for many calls without a pipeline.

        async with open_shim() as shim:
            completion = await shim.chat(ChatRequest(model="qwen", messages=as_messages("Hello.")))

    Models are loaded and servers connected at the first call, and closed with the block.

    Args:
        models: Tags of endpoints. A mistake in one of them raises at once; one in a fallback is
            logged.
        settings: Used in place of the settings of the directory and the environment.
        tracer: Records every call, such as a `RunTrace`; by default none.

    Raises:
        ConfigurationInvalid: The settings are invalid, or there is no such endpoint.
    """
    chosen = settings_or_default(settings)
    endpoints = known_endpoints(chosen)
    if tracer is not None:
        describe_endpoints(endpoints, tracer)
    async with open_models(
        endpoints,
        settings=chosen,
        environment=os.environ,
        required=models,
        tracer=Tracer() if tracer is None else tracer,
    ) as opened:
        yield opened.client


class CallOptions(ChatOptions, total=False):
    """The options of `chat` and `chat_sync`; see there."""

    tools: Sequence[Offered]
    tool_choice: Literal["auto", "required"]
    on_text: Callable[[str], None] | None
    settings: Settings | None


@overload
async def chat(
    model: str, messages: Prompt, *, returns: None = ..., **options: Unpack[CallOptions]
) -> Completion: ...
@overload
async def chat(
    model: str, messages: Prompt, *, returns: type[T], **options: Unpack[CallOptions]
) -> T: ...
# Annotated and Literal forms are types to pydantic, and not `type[T]` to the type checker.
@overload
async def chat(
    model: str,
    messages: Prompt,
    *,
    returns: Any,  # noqa: ANN401
    **options: Unpack[CallOptions],
) -> Any: ...  # noqa: ANN401
async def chat(
    model: str,
    messages: Prompt,
    *,
    returns: Any = None,
    tools: Sequence[Offered] | None = None,
    tool_choice: Literal["auto", "required"] = "auto",
    on_text: Callable[[str], None] | None = None,
    settings: Settings | None = None,
    **options: Unpack[ChatOptions],
) -> Any:
    """Asks one model once, and records no trace.

    The model is opened for this call and closed after it. For more calls, `open_shim` and pipelines
    keep models open, and test only once how a server treats schemas. Here a short call tests that
    before each call that `returns` a type, unless the endpoint has `structured`.

    Args:
        model: Tag of an endpoint in `harness.toml` or `HARNESS_ENDPOINTS`.
        messages: A text, or a conversation.
        returns: The type to answer in: a pydantic model, a dataclass, a builtin, or any of these
            annotated. The reply is then a value of it, and else a `Completion`.
        tools: Functions that the model may ask to call, in the reply's `tool_calls`. They are not
            called.
        tool_choice: Whether the model decides if it asks for a call, or has to.
        on_text: Called with each piece of the answer as it arrives; after a continued cut, the cut
            word comes again.
        settings: Used in place of the settings of the directory and the environment.
        options: See `ChatOptions`.

    Raises:
        ConfigurationInvalid: There is no such endpoint.
        ReplyCut: The reply was cut; `ReplyFiltered` and `ReplyEmpty` are kinds of it.
        InferenceError: There is no reply, or it is not of the type asked for.
    """
    on_cut, attempts = options.pop("on_cut", "error"), options.pop("attempts", 1)
    request, reply_type = chat_request(
        messages,
        returns=returns,
        tools=tool_specs(tools or ()),
        tool_choice=tool_choice,
        model=model,
        on_text=on_text,
        **options,
    )
    async with open_shim(model, settings=settings) as shim:
        return await answer(
            shim.chat, request, reply_type=reply_type, on_cut=on_cut, attempts=attempts
        )


def stream(
    model: str,
    messages: Prompt,
    *,
    settings: Settings | None = None,
    **options: Unpack[ChatOptions],
) -> TextStream:
    """Asks as `chat` does, and yields the text of the answer as it arrives.

        async for piece in harness.stream("qwen", "Why is the sky blue?"):
            print(piece, end="")

    See `TextStream`, also for errors.
    """
    return text_stream(chat, model, messages, settings=settings, **options)


@overload
def chat_sync(
    model: str, messages: Prompt, *, returns: None = ..., **options: Unpack[CallOptions]
) -> Completion: ...
@overload
def chat_sync(
    model: str, messages: Prompt, *, returns: type[T], **options: Unpack[CallOptions]
) -> T: ...
@overload
def chat_sync(
    model: str,
    messages: Prompt,
    *,
    returns: Any,  # noqa: ANN401
    **options: Unpack[CallOptions],
) -> Any: ...  # noqa: ANN401
def chat_sync(model: str, messages: Prompt, **options: Any) -> Any:
    """Asks as `chat` does, with the same options, from a script without an event loop.

    Raises:
        InvalidInput: An event loop is running here, as in a notebook: `await chat(…)` there.
    """
    refuse_running_loop("await harness.chat(…)")
    return run_to_its_end(chat(model, messages, **options))


async def embed(
    model: str, texts: Sequence[str], *, settings: Settings | None = None
) -> Embeddings:
    """Embeds texts with one model, once; see `chat`.

    Args:
        model: Tag of an endpoint whose model embeds.
        texts: At least one.
        settings: Used in place of the settings of the directory and the environment.

    Raises:
        ConfigurationInvalid: There is no such endpoint.
        NotOffered: Its server does not embed.
        InferenceError: There are no vectors.
    """
    async with open_shim(model, settings=settings) as shim:
        return await shim.embed(EmbedRequest(model=model, texts=as_texts(texts)))
