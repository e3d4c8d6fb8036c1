"""A chat request in Ollama's words: https://docs.ollama.com/api/chat."""

from __future__ import annotations

from collections.abc import Mapping

from harness.inference.endpoint import Endpoint
from harness.inference.request import ChatRequest
from harness.inference.wire.openai_request import wire_messages

_OPTIONS = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "seed")
_BESIDE_OPTIONS = ("logprobs", "top_logprobs")


def sampling_fields(request: ChatRequest) -> dict[str, object]:
    """The fields that a call can do without; Ollama's names for them are ours.

    What was not asked for is left out: the model's own file may say something.
    """
    fields: dict[str, object] = {"temperature": request.temperature, **request.cutoffs}
    if request.frequency_penalty:
        fields["frequency_penalty"] = request.frequency_penalty
    if request.seed is not None:
        fields["seed"] = request.seed
    if request.top_logprobs is not None:
        fields["logprobs"] = True
        fields["top_logprobs"] = request.top_logprobs
    return fields


def chat_fields(
    request: ChatRequest,
    endpoint: Endpoint,
    sampling: Mapping[str, object],
    *,
    keep_alive_s: float | None = None,
) -> dict[str, object]:
    """The whole of a chat call.

    Args:
        request: What is asked.
        endpoint: Of whom.
        sampling: Those of the request's `sampling_fields` that are to be sent.
        keep_alive_s: See `keep_alive_field`.
    """
    options = {name: sampling[name] for name in _OPTIONS if name in sampling}
    if request.max_output_tokens is not None:
        options["num_predict"] = request.max_output_tokens
    if request.stop:
        options["stop"] = list(request.stop)
    fields: dict[str, object] = {
        "model": endpoint.model_id,
        "messages": wire_messages(request.conversation),
        "stream": endpoint.stream,
        # Ollama cuts what is too long and says nothing of it, unless it is told not to: `truncate`
        # is for the prompt, `shift` for a context that fills up while the reply is written.
        "truncate": False,
        "shift": False,
        "options": options | context_option(endpoint),
    }
    fields |= {name: sampling[name] for name in _BESIDE_OPTIONS if name in sampling}
    if request.reply_schema is not None:
        fields["format"] = request.reply_schema
    return fields | keep_alive_field(endpoint, keep_alive_s)


def context_option(endpoint: Endpoint) -> dict[str, object]:
    """`num_ctx`, if the endpoint's entry has a context.

    A model that is asked with another one than it was loaded with is loaded anew: it is in every
    call, or in none.
    """
    if "context_tokens" not in endpoint.model_fields_set:
        return {}
    return {"num_ctx": endpoint.context_tokens}


def keep_alive_field(endpoint: Endpoint, keep_alive_s: float | None = None) -> dict[str, object]:
    """How long the model stays loaded: as the endpoint's entry says, or else so many seconds.

    Without either nothing is said, and Ollama's own setting holds.
    """
    said = keep_alive_s if endpoint.keep_alive is None else endpoint.keep_alive
    return {} if said is None else {"keep_alive": said}
