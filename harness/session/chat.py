"""One call to one model, for whoever wants only the shim."""

from __future__ import annotations

import os
from collections.abc import Sequence

from harness.inference import ChatRequest, Completion, Prompt, as_messages
from harness.session.models import known_endpoints, open_models
from harness.session.settings import Settings, load_settings
from harness.trace import Tracer


async def chat(
    model: str,
    messages: Prompt,
    *,
    max_output_tokens: int = 512,
    temperature: float = 0.0,
    seed: int | None = None,
    stop: Sequence[str] = (),
    settings: Settings | None = None,
) -> Completion:
    """Asks one model once, and leaves no trace.

    The model is opened for this call and closed after it. For more than a few calls, write a
    pipeline: its runs keep models open.

    Args:
        model: Tag of an endpoint in `harness.toml` or `HARNESS_ENDPOINTS`.
        messages: A text, or a conversation.
        max_output_tokens: Where the reply is cut.
        temperature: 0 is greedy.
        seed: Makes sampling repeatable where the server can.
        stop: Texts that end the reply.
        settings: In place of those of the directory and the environment.

    Raises:
        ConfigurationInvalid: There is no such endpoint.
        InferenceError: There is no reply.
    """
    chosen = load_settings(environment=os.environ) if settings is None else settings
    async with open_models(
        known_endpoints(chosen),
        settings=chosen,
        environment=os.environ,
        required={model},
        tracer=Tracer(),
    ) as shim:
        return await shim.chat(
            ChatRequest(
                model=model,
                messages=as_messages(messages),
                max_output_tokens=max_output_tokens,
                temperature=temperature,
                seed=seed,
                stop=tuple(stop),
            )
        )
