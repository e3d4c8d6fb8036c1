"""The inference shim: one `chat(request) -> completion` in front of every server people run."""

from harness.inference.around.cached import (
    Cached,
    answer_again,
    call_key,
    completion_as_text,
    read_completion,
    reply_identity,
)
from harness.inference.around.call_cache import CallCache
from harness.inference.around.fallback import FallingBack
from harness.inference.around.limit import Limited
from harness.inference.around.retry import Retrying, RetryPolicy, retry_delay_s
from harness.inference.around.schema_keeping import SchemaKeeping, SchemaKnowledge
from harness.inference.around.timed import Timed
from harness.inference.around.traced import Traced
from harness.inference.around.wrapper import R, T, Wrapper
from harness.inference.backend import Backend, ScriptedBackend
from harness.inference.completion import (
    Completion,
    Embeddings,
    FinishReason,
    Phase,
    StructuredMode,
    TokenLogprob,
    Usage,
)
from harness.inference.connect import connect
from harness.inference.endpoint import FILE_BACKENDS, MACHINE, Endpoint
from harness.inference.engines.embedded import EmbeddedLlamaCpp, machine_memory_bytes
from harness.inference.engines.llama_cpp_python import LlamaCppPython
from harness.inference.identity.identity import (
    ModelIdentity,
    Relation,
    model_identity,
    relation_of,
    served_identity,
)
from harness.inference.identity.metadata import ModelMetadata, metadata_from
from harness.inference.identity.served_metadata import TELLING_BACKENDS, served_metadata
from harness.inference.metrics.metrics_source import MetricsSource, metrics_source
from harness.inference.metrics.server_metrics import Reading
from harness.inference.request import (
    ChatRequest,
    CountRequest,
    EmbedRequest,
    Gate,
    JsonSchema,
    Message,
    Prompt,
    Request,
    as_messages,
    as_texts,
    most_prompt_tokens,
    most_tokens_in,
    most_tokens_of,
    most_tokens_of_messages,
)
from harness.inference.server_facts import ServerFacts, server_facts, slots_source
from harness.inference.shim import InferenceShim
from harness.inference.structured import ReplyType
from harness.inference.to_its_end import to_its_end
from harness.inference.whole_reply import OnCut, check_whole, whole_reply
from harness.inference.wire.ollama import OllamaWire
from harness.inference.wire.openai import OpenAIWire
from harness.inference.wire.profile import Profile
from harness.inference.wire.profiles import PROFILES
from harness.inference.wire.triton import TritonWire

__all__ = [
    "FILE_BACKENDS",
    "MACHINE",
    "PROFILES",
    "TELLING_BACKENDS",
    "Backend",
    "Cached",
    "CallCache",
    "ChatRequest",
    "Completion",
    "CountRequest",
    "EmbedRequest",
    "EmbeddedLlamaCpp",
    "Embeddings",
    "Endpoint",
    "FallingBack",
    "FinishReason",
    "Gate",
    "InferenceShim",
    "JsonSchema",
    "Limited",
    "LlamaCppPython",
    "Message",
    "MetricsSource",
    "ModelIdentity",
    "ModelMetadata",
    "OllamaWire",
    "OnCut",
    "OpenAIWire",
    "Phase",
    "Profile",
    "Prompt",
    "R",
    "Reading",
    "Relation",
    "ReplyType",
    "Request",
    "RetryPolicy",
    "Retrying",
    "SchemaKeeping",
    "SchemaKnowledge",
    "ScriptedBackend",
    "ServerFacts",
    "StructuredMode",
    "T",
    "Timed",
    "TokenLogprob",
    "Traced",
    "TritonWire",
    "Usage",
    "Wrapper",
    "answer_again",
    "as_messages",
    "as_texts",
    "call_key",
    "check_whole",
    "completion_as_text",
    "connect",
    "machine_memory_bytes",
    "metadata_from",
    "metrics_source",
    "model_identity",
    "most_prompt_tokens",
    "most_tokens_in",
    "most_tokens_of",
    "most_tokens_of_messages",
    "read_completion",
    "relation_of",
    "reply_identity",
    "retry_delay_s",
    "served_identity",
    "served_metadata",
    "server_facts",
    "slots_source",
    "to_its_end",
    "whole_reply",
]
