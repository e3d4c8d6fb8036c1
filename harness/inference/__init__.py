"""The inference shim: one `chat(request) -> completion` in front of every server people run."""

from harness.inference.around.retry import Retrying, RetryPolicy, retry_delay_s
from harness.inference.around.traced import Traced
from harness.inference.backend import Backend
from harness.inference.completion import Completion, FinishReason, Phase, Usage
from harness.inference.connect import connect
from harness.inference.endpoint import Endpoint
from harness.inference.engines.embedded import EmbeddedLlamaCpp, machine_memory_bytes
from harness.inference.identity.identity import model_identity
from harness.inference.message import Message, Prompt, as_messages
from harness.inference.metrics.metrics_source import MetricsSource, metrics_source
from harness.inference.metrics.server_metrics import Reading
from harness.inference.request import ChatRequest, JsonSchema
from harness.inference.scripted import ScriptedBackend
from harness.inference.shim import InferenceShim
from harness.inference.structured import ReplyType
from harness.inference.to_its_end import to_its_end
from harness.inference.wire.openai import OpenAIWire

__all__ = [
    "Backend",
    "ChatRequest",
    "Completion",
    "EmbeddedLlamaCpp",
    "Endpoint",
    "FinishReason",
    "InferenceShim",
    "JsonSchema",
    "Message",
    "MetricsSource",
    "OpenAIWire",
    "Phase",
    "Prompt",
    "Reading",
    "ReplyType",
    "RetryPolicy",
    "Retrying",
    "ScriptedBackend",
    "Traced",
    "Usage",
    "as_messages",
    "connect",
    "machine_memory_bytes",
    "metrics_source",
    "model_identity",
    "retry_delay_s",
    "to_its_end",
]
