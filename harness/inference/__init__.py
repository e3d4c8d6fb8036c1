"""Calls to models: one client in front of all servers."""

from harness.inference.answer import ChatOptions, OnCut, answer, chat_request, check_whole
from harness.inference.backend import Backend, ScriptedBackend, ScriptedReply
from harness.inference.client import Client
from harness.inference.completion import Completion, Embeddings, Usage
from harness.inference.endpoint import FILE_BACKENDS, MACHINE, Endpoint
from harness.inference.images import Image
from harness.inference.limits import NOTHING, Limits, Spent, merged
from harness.inference.meter import Meter
from harness.inference.model_identity import (
    ModelIdentity,
    ModelMetadata,
    relation_of,
    server_address,
)
from harness.inference.providers.provider import Host, HostReport
from harness.inference.providers.registry import provider_of, served_metadata, server_facts
from harness.inference.providers.server_host import ServerFacts
from harness.inference.request import (
    ChatRequest,
    EmbedRequest,
    Message,
    Prompt,
    Request,
    ToolCall,
    ToolSpec,
    as_messages,
    as_texts,
    most_tokens_of,
)
from harness.inference.stream import TextStream

__all__ = [
    "FILE_BACKENDS",
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
    "HostReport",
    "Image",
    "Limits",
    "Message",
    "Meter",
    "ModelIdentity",
    "ModelMetadata",
    "OnCut",
    "Prompt",
    "Request",
    "ScriptedBackend",
    "ScriptedReply",
    "ServerFacts",
    "Spent",
    "TextStream",
    "ToolCall",
    "ToolSpec",
    "Usage",
    "answer",
    "as_messages",
    "as_texts",
    "chat_request",
    "check_whole",
    "merged",
    "most_tokens_of",
    "provider_of",
    "relation_of",
    "served_metadata",
    "server_address",
    "server_facts",
]
