"""Calls to models: one client in front of all servers."""

from harness.inference.answer import ChatOptions, OnCut, answer, chat_request, check_whole, varied
from harness.inference.backend import Backend, ScriptedBackend, ScriptedReply
from harness.inference.client import Caller, Client, Line
from harness.inference.completion import Completion, Embeddings, Phase, Ranking, TokenLogprob, Usage
from harness.inference.endpoint import FILE_BACKENDS, MACHINE, Endpoint
from harness.inference.gate import Gate, Replica
from harness.inference.images import Image
from harness.inference.limits import NOTHING, Limits, Spent, merged
from harness.inference.meter import Meter, token_prices
from harness.inference.model_identity import (
    ModelIdentity,
    ModelMetadata,
    metadata_from,
    model_identity,
    relation_of,
    served_identity,
    server_address,
)
from harness.inference.providers.counters import Reading
from harness.inference.providers.http import Access
from harness.inference.providers.provider import Host, HostReport
from harness.inference.providers.registry import (
    connect,
    host_of,
    knowledge_of,
    loading_of,
    metrics_source,
    provider_of,
    served_metadata,
    server_facts,
    slots_source,
)
from harness.inference.providers.server_host import ServerFacts
from harness.inference.reply_store import ReplyCache
from harness.inference.request import (
    ChatRequest,
    EmbedRequest,
    Message,
    Prompt,
    Request,
    RerankRequest,
    ToolCall,
    ToolSpec,
    as_messages,
    as_texts,
    most_prompt_tokens,
    most_tokens_of,
)
from harness.inference.stream import TextStream
from harness.inference.structured import SchemaKnowledge
from harness.inference.tool_offers import ToolKnowledge

__all__ = [
    "FILE_BACKENDS",
    "MACHINE",
    "NOTHING",
    "Access",
    "Backend",
    "Caller",
    "ChatOptions",
    "ChatRequest",
    "Client",
    "Completion",
    "EmbedRequest",
    "Embeddings",
    "Endpoint",
    "Gate",
    "Host",
    "HostReport",
    "Image",
    "Limits",
    "Line",
    "Message",
    "Meter",
    "ModelIdentity",
    "ModelMetadata",
    "OnCut",
    "Phase",
    "Prompt",
    "Ranking",
    "Reading",
    "Replica",
    "ReplyCache",
    "Request",
    "RerankRequest",
    "SchemaKnowledge",
    "ScriptedBackend",
    "ScriptedReply",
    "ServerFacts",
    "Spent",
    "TextStream",
    "TokenLogprob",
    "ToolCall",
    "ToolKnowledge",
    "ToolSpec",
    "Usage",
    "answer",
    "as_messages",
    "as_texts",
    "chat_request",
    "check_whole",
    "connect",
    "host_of",
    "knowledge_of",
    "loading_of",
    "merged",
    "metadata_from",
    "metrics_source",
    "model_identity",
    "most_prompt_tokens",
    "most_tokens_of",
    "provider_of",
    "relation_of",
    "served_identity",
    "served_metadata",
    "server_address",
    "server_facts",
    "slots_source",
    "token_prices",
    "varied",
]
