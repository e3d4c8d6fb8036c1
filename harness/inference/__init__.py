"""The inference shim: one `chat(request) -> completion` in front of every server people run."""

from harness.inference.around.retry import Retrying, RetryPolicy, retry_delay_s
from harness.inference.around.traced import Traced
from harness.inference.around.wrapper import R, T, Wrapper
from harness.inference.backend import Backend
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
from harness.inference.endpoint import Endpoint
from harness.inference.engines.embedded import EmbeddedLlamaCpp, machine_memory_bytes
from harness.inference.identity.identity import model_identity
from harness.inference.message import Message, Prompt, as_messages
from harness.inference.metrics.metrics_source import MetricsSource, metrics_source
from harness.inference.metrics.server_metrics import Reading
from harness.inference.request import ChatRequest, CountRequest, EmbedRequest, JsonSchema, Request
from harness.inference.scripted import ScriptedBackend
from harness.inference.shim import InferenceShim
from harness.inference.structured import ReplyType
from harness.inference.to_its_end import to_its_end
from harness.inference.wire.openai import OpenAIWire
from harness.inference.wire.profile import Profile
from harness.inference.wire.profiles import PROFILES

__all__ = [
    "PROFILES",
    "Backend",
    "ChatRequest",
    "Completion",
    "CountRequest",
    "EmbedRequest",
    "EmbeddedLlamaCpp",
    "Embeddings",
    "Endpoint",
    "FinishReason",
    "InferenceShim",
    "JsonSchema",
    "Message",
    "MetricsSource",
    "OpenAIWire",
    "Phase",
    "Profile",
    "Prompt",
    "R",
    "Reading",
    "ReplyType",
    "Request",
    "RetryPolicy",
    "Retrying",
    "ScriptedBackend",
    "StructuredMode",
    "T",
    "TokenLogprob",
    "Traced",
    "Usage",
    "Wrapper",
    "as_messages",
    "connect",
    "machine_memory_bytes",
    "metrics_source",
    "model_identity",
    "retry_delay_s",
    "to_its_end",
]
