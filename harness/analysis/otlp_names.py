"""What our spans and attributes are called elsewhere: the one table of it.

Two vocabularies, since viewers differ in what they read, and both still move. GenAI: the semantic
conventions of OpenTelemetry, release 1.44, now in open-telemetry/semantic-conventions-genai.
OpenInference: openinference-semantic-conventions 0.1.42. Every attribute is also kept under its own
name, after `harness.`.

Texts leave only on request: the viewer is often on another's machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from harness.analysis.facts import provider_named
from harness.trace.journal_line import dump_json
from harness.trace.records import Attributes, SpanRecord

TextOf = Callable[[str], str | None]
"""The text with this SHA-256, if it is at hand."""


class _Names(NamedTuple):
    """What a span is to others."""

    kind: str = "CHAIN"
    """`openinference.span.kind`."""
    operation: str | None = None
    """`gen_ai.operation.name`."""
    attributes: Mapping[str, Sequence[str]] = {}
    """The others' names for our attributes."""
    texts: Mapping[str, Sequence[str]] = {}
    """The same for attributes that are a text, or the hash of one."""


_ANSWERED: dict[str, Sequence[str]] = {
    "model_id": ["gen_ai.response.model"],
    "input_tokens": ["gen_ai.usage.input_tokens", "llm.token_count.prompt"],
    "cached_tokens": [
        "gen_ai.usage.cache_read.input_tokens",
        "llm.token_count.prompt_details.cache_read",
    ],
    "output_tokens": ["gen_ai.usage.output_tokens", "llm.token_count.completion"],
    "reasoning_tokens": [
        "gen_ai.usage.reasoning.output_tokens",
        "llm.token_count.completion_details.reasoning",
    ],
    "cost_usd": ["llm.cost.total"],
}
"""What a model says of its reply. Of one from the cache, nothing is counted."""

_SPANS = {
    "run": _Names(operation="invoke_workflow", attributes={"label": ["gen_ai.workflow.name"]}),
    "chat": _Names(
        kind="LLM",
        operation="chat",
        attributes={
            "temperature": ["gen_ai.request.temperature"],
            "top_p": ["gen_ai.request.top_p"],
            "top_k": ["gen_ai.request.top_k"],
            "seed": ["gen_ai.request.seed"],
            "max_output_tokens": ["gen_ai.request.max_tokens"],
            "structured": ["gen_ai.output.type"],
            "finish_reason": ["gen_ai.response.finish_reasons", "llm.finish_reason"],
            "ttft_ns": ["gen_ai.response.time_to_first_chunk"],
            **_ANSWERED,
        },
        texts={"prompt_sha256": ["input.value"], "reply_sha256": ["output.value"]},
    ),
    "schema probe": _Names(kind="LLM", operation="chat", attributes=_ANSWERED),
    "embed": _Names(
        kind="EMBEDDING",
        operation="embeddings",
        attributes={
            "model_id": ["gen_ai.response.model", "embedding.model_name"],
            "input_tokens": [
                "gen_ai.usage.input_tokens",
                "llm.token_count.prompt",
            ],
        },
    ),
    "recall": _Names(
        kind="RETRIEVER",
        operation="retrieval",
        texts={"query": ["gen_ai.retrieval.query.text", "input.value"]},
    ),
    "evaluate": _Names(kind="EVALUATOR", texts={"draft_sha256": ["input.value"]}),
    "revise": _Names(texts={"draft_sha256": ["output.value"]}),
}
_ANY = _Names()

_CONVERTED: dict[str, Callable[[Any], object]] = {
    "gen_ai.output.type": lambda structured: "json" if structured else "text",
    "gen_ai.response.finish_reasons": lambda reason: [reason],
    "gen_ai.response.time_to_first_chunk": lambda ns: ns / 1e9,
}

QUOTING = frozenset(
    {
        *("answer", "detail", "digest", "findings", "hits", "metadata", "query", "seed", "text"),
        *("section", "title", "traceback", "where"),
    }
)
"""Attributes that may quote a text: all that pass through `Tracer.excerpt`. A task's text may be
the seed that an evaluator is drawn by; a call's seed is a number, and quotes nothing."""

_MANAGED = {
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
"""What GenAI calls a managed API, if not by its prefix in a model's name."""


def span_name(span: SpanRecord, model: object) -> str:
    """An operation and its object, as GenAI wants it; the title of any other span.

    Args:
        span: Ours.
        model: What the provider calls the model that was asked; None for other spans.
    """
    label = str(span.attributes.get("label") or span.name)
    match _SPANS.get(span.name, _ANY).operation:
        case None:
            return label
        case "chat" | "embeddings" as operation:
            return f"{operation} {model}" if model else operation
        case "invoke_workflow" as operation:
            return f"{operation} {label}"
        case operation:
            return operation


def span_attributes(span: SpanRecord, *, text_of: TextOf | None) -> dict[str, object]:
    """A span's attributes by all their names; None stands for an unknown value.

    Args:
        span: Ours.
        text_of: Finds texts; None if texts stay here.
    """
    ours = span.attributes
    names = _SPANS.get(span.name, _ANY)
    found = {
        "harness.span": span.name,
        "openinference.span.kind": names.kind,
        "gen_ai.operation.name": names.operation,
        **own_attributes(ours, texts=text_of is not None),
        **_renamed(ours, names.attributes),
    }
    if text_of is not None:
        texts = {n: text_of(str(v)) if n.endswith("_sha256") else v for n, v in ours.items()}
        for name, text in _renamed(texts, names.texts).items():
            found[name] = text
            if name.endswith(".value"):
                # Phoenix would otherwise take a reply for JSON.
                found[name.replace(".value", ".mime_type")] = "text/plain"
    if span.name == "evaluate" and "composite" in ours:
        verdict = {name: ours.get(name) for name in ("composite", "passed", "scores")}
        found |= {"output.value": _json(verdict), "output.mime_type": "application/json"}
    return found


def own_attributes(attributes: Attributes, *, texts: bool) -> dict[str, object]:
    """Attributes under our own names; those that may quote a text only with `texts`."""
    return {
        f"harness.{name}": value
        for name, value in attributes.items()
        if texts or name not in QUOTING or isinstance(value, int)
    }


def model_attributes(tag: str, endpoint: Attributes) -> dict[str, object]:
    """What both conventions say of the model behind a tag.

    Args:
        tag: The name that calls use.
        endpoint: The attributes of the run's `endpoint` instant; empty if it has none.
    """
    # The instant leaves out what is at its default.
    backend = str(endpoint.get("backend", "openai"))
    provider = provider_named(backend)
    model = str(endpoint.get("model_id") or tag)
    name = provider.telemetry_name or backend
    prefix, _, rest = model.partition("/")
    if provider.finds_keys and rest:
        model, name = rest, _MANAGED.get(prefix, prefix)
    found: dict[str, object] = {"gen_ai.request.model": model, "llm.model_name": model}
    if endpoint:
        # Some viewers read only `system`, the earlier name of `provider.name`.
        found |= {"gen_ai.provider.name": name, "gen_ai.system": name}
    with suppress(ValueError):  # an address that held a secret has a hole in it
        address = urlsplit(str(endpoint.get("url", "")))
        found |= {"server.address": address.hostname, "server.port": address.port}
    return found


def evaluation_results(span: SpanRecord, *, texts: bool) -> Iterator[dict[str, object]]:
    """Attributes of `gen_ai.evaluation.result` events: the whole verdict, then each dimension.

    Empty without a verdict. Explanations may quote the draft, and are given only with `texts`.
    """
    scores = span.attributes.get("scores")
    if "composite" not in span.attributes or not isinstance(scores, Mapping):
        return
    label = "pass" if span.attributes.get("passed") else "fail"
    yield _result("composite", span.attributes["composite"], label=label)
    findings = span.attributes.get("findings") if texts else None
    listed = findings if isinstance(findings, list) else []
    reasons = dict(str(finding).partition(": ")[::2] for finding in listed)
    for name, score in scores.items():
        yield _result(name, score, explanation=reasons.get(name))


def _result(name: str, score: object, **more: object) -> dict[str, object]:
    said = {"name": name, "score.value": score}
    said |= {f"score.{key}" if key == "label" else key: value for key, value in more.items()}
    return {f"gen_ai.evaluation.{key}": value for key, value in said.items()}


def _renamed(ours: Attributes, names: Mapping[str, Sequence[str]]) -> dict[str, object]:
    return {
        theirs: _CONVERTED[theirs](ours[name]) if theirs in _CONVERTED else ours[name]
        for name, all_theirs in names.items()
        if ours.get(name) is not None
        for theirs in all_theirs
    }


def _json(value: object) -> str:
    return dump_json(value).decode()
