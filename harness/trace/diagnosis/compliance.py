"""Rules about what servers did not do as they were asked: keep to a schema, take a field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.trace.calls import Call
from harness.trace.diagnosis.finding import Evidence, Finding, counted, named
from harness.trace.diagnosis.observed import Observed

ENFORCING: Mapping[str, str] = {
    "openai": "say what server it is: TGI, TabbyAPI, TensorRT-LLM and MLC look for a schema "
    "elsewhere than OpenAI's API does; backend under [endpoints.{tag}] in harness.toml",
    "ollama": "use a newer Ollama, or a model that does not think aloud: with some that do, it "
    "takes no notice of a schema",
    "tensorrt-llm": "start trtllm-serve with guided_decoding_backend in its --config",
    "triton": "reach the model by an engine's own server, such as vLLM's: Triton takes no schema",
    "triton-openai": "reach the model by an engine's own server, such as vLLM's: Triton takes no "
    "schema",
}
"""By backend, what may have schemas enforced; nothing more is known for the others."""

_DECIDING = frozenset({"temperature", "top_p", "top_k", "min_p", "frequency_penalty"})
"""Fields that decide what is written, as does the seed of a reply that is not greedy. Without the
others, something is only not told."""


def schema_not_enforced(observed: Observed) -> Finding | None:
    """Replies were to match a schema, and nothing but the model's goodwill saw to it."""
    found = [
        finding
        for model, calls in observed.by_model().items()
        if (finding := _schema_not_enforced_by(observed, model, calls)) is not None
    ]
    return max(found, key=lambda one: one.evidence.figures["unenforced_calls"], default=None)


def _schema_not_enforced_by(
    observed: Observed, model: str, calls: Sequence[Call]
) -> Finding | None:
    loose = [call for call in calls if call.attributes.get("schema") in {"advisory", "ignored"}]
    if not loose:
        return None
    is_ignored = any(call.attributes["schema"] == "ignored" for call in loose)
    server = observed.servers.get(model)
    enforcing = None if server is None else ENFORCING.get(server.backend)
    return Finding(
        rule="schema-not-enforced",
        severity="warning" if is_ignored else "hint",
        model=model,
        seen=f"{counted(len(loose), 'call')} to '{model}' had a schema, "
        + (
            "of which the server took no notice."
            if is_ignored
            else "to which the server did not hold the reply."
        ),
        evidence=Evidence.of(loose, unenforced_calls=len(loose)),
        meaning="Nothing but the model's goodwill: it is told of the schema in words, at the end "
        "of each prompt, and may still reply with something else.",
        layer="L3",
        move=(
            *(() if enforcing is None else (enforcing.format(tag=model),)),
            "take a server that enforces schemas: llama-server, vLLM and SGLang do",
            f'structured = "enforced" under [endpoints.{model}], if only the test call went wrong',
        ),
    )


def dropped_fields(observed: Observed) -> Finding | None:
    """Calls were sent without fields that the model or its server refuses."""
    found = [
        finding
        for model, calls in observed.by_model().items()
        if (finding := _dropped_for(observed, model, calls)) is not None
    ]
    return max(found, key=lambda one: one.evidence.figures["calls_without"], default=None)


def _dropped_for(observed: Observed, model: str, calls: Sequence[Call]) -> Finding | None:
    without = [call for call in calls if call.dropped]
    if not without:
        return None
    names = tuple(dict.fromkeys(name for call in without for name in call.dropped))
    unrepeatable = any(map(_is_left_to_the_model, without))
    by_settings = [name for name in names if name in observed.server(model).drop]
    return Finding(
        rule="dropped-fields",
        severity="warning" if unrepeatable else "hint",
        model=model,
        seen=f"{len(without)} of {len(calls)} calls to '{model}' were sent without {named(names)}.",
        evidence=Evidence.of(without, calls_without=len(without), calls=len(calls)),
        meaning=(
            "Its settings say so."
            if len(by_settings) == len(names)
            else "The model, or its server, refuses them."
        )
        + (
            " It samples in its own way: the run cannot be repeated as it was."
            if unrepeatable
            else " What is written does not depend on them."
        ),
        layer="L5",
        move=(
            *(
                (f"take {named(by_settings)} out of drop under [endpoints.{model}]",)
                if by_settings
                else ()
            ),
            "take a model or a server that accepts them",
        ),
    )


def _is_left_to_the_model(call: Call) -> bool:
    """Whether the same call may be answered otherwise, for want of a field."""
    is_greedy = call.attributes.get("temperature") == 0
    return not _DECIDING.isdisjoint(call.dropped) or ("seed" in call.dropped and not is_greedy)
