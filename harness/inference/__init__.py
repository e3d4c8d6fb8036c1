"""Calls to models: one client in front of all servers."""

from harness.inference.answer import ChatOptions, OnCut
from harness.inference.backend import Backend, ScriptedBackend, ScriptedReply
from harness.inference.client import Client
from harness.inference.completion import Completion, Embeddings, Usage
from harness.inference.endpoint import MACHINE, Endpoint
from harness.inference.images import Image
from harness.inference.limits import NOTHING, Limits, Spent
from harness.inference.meter import Meter
from harness.inference.model_identity import ModelMetadata, server_address
from harness.inference.providers.provider import Host
from harness.inference.providers.registry import provider_of
from harness.inference.request import (
    ChatRequest,
    EmbedRequest,
    Message,
    ToolCall,
    ToolSpec,
    as_messages,
)
from harness.inference.stream import TextStream

__all__ = [
    "MACHINE",
    "NOTHING",
    "Backend",
    "ChatOptions",
    "ChatRequest",
    "Client",
    "Completion",
    "EmbedRequest",
    "Embeddings",
    "Endpoint",
    "Host",
    "Image",
    "Limits",
    "Message",
    "Meter",
    "ModelMetadata",
    "OnCut",
    "ScriptedBackend",
    "ScriptedReply",
    "Spent",
    "TextStream",
    "ToolCall",
    "ToolSpec",
    "Usage",
    "as_messages",
    "provider_of",
    "server_address",
]
