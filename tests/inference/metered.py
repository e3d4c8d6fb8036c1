"""A client whose meter counts what a test's own function answers."""

from __future__ import annotations

import numpy as np
from clients import client_of, meter_of

from harness import Message, ScriptedBackend
from harness.inference import NOTHING, ChatRequest, Completion, Embeddings, Usage


class Embedding(ScriptedBackend):
    """Makes a vector of each text."""

    async def embed(self, request):
        vectors = np.zeros((len(request.texts), 3), np.float32)
        return Embeddings(vectors=vectors, input_tokens=7, model_id="e")


def request(model="m", *, chars=30, room=20, **more):
    message = Message("user", "x" * chars)
    return ChatRequest(model=model, messages=(message,), max_output_tokens=room, **more)


def client_on(chat, clock, *, limits, before=NOTHING, prices=None, **how):
    """Of a model that is asked by this function."""
    backend = Embedding([])
    backend.chat = chat
    meter = meter_of(limits, clock, prices=prices, before=before)
    return client_of(backend, meter=meter, **how)


def reply(input_tokens=30, output_tokens=6, *, text="x", cost_usd=None, **counts):
    tokens = {"input_tokens": input_tokens, "output_tokens": output_tokens, "cached_tokens": None}
    usage = Usage(**{**tokens, **counts})
    return Completion(
        text=text,
        reasoning="",
        finish_reason="stop",
        usage=usage,
        sent_ns=0,
        first_token_ns=None,
        phases=(),
        model_id="m",
        cost_usd=cost_usd,
    )
