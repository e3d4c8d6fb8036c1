import re
from hashlib import sha256
from pathlib import Path

import pytest
from otlp_receiver import Receiver, events, trace_pb2, values
from otlp_sample import PROMPT, QUIET, REPLY, by_name, chat, essay_run, sent_spans

import harness
from harness.trace import Journal, ManualClock, RunTrace, TraceOptions
from harness.trace.otlp import send_otlp
from harness.trace.otlp.names import QUOTING
from harness.trace.otlp.served_model import ServedModel


@pytest.fixture
def journal(tmp_path) -> Journal:
    return essay_run(tmp_path)


def test_a_call_has_its_attributes_by_all_three_names(journal):
    call = by_name(sent_spans(journal))["chat claude-9"]

    assert call.kind == trace_pb2.Span.SPAN_KIND_CLIENT
    found = values(call.attributes)
    assert {name: found[name] for name in found if not name.startswith("harness.")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.system": "anthropic",
        "gen_ai.request.model": "claude-9",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 64,
        "gen_ai.output.type": "text",
        "gen_ai.response.model": "writer-2026",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.time_to_first_chunk": 0.002999993,
        "gen_ai.usage.input_tokens": 31,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.output_tokens": 4,
        "openinference.span.kind": "LLM",
        "llm.provider": "anthropic",
        "llm.model_name": "claude-9",
        "llm.invocation_parameters": '{"temperature":0.5,"max_tokens":64}',
        "llm.finish_reason": "stop",
        "llm.token_count.prompt": 31,
        "llm.token_count.prompt_details.cache_read": 0,
        "llm.token_count.completion": 4,
        "llm.token_count.total": 35,
        "llm.cost.total": 0.25,
        "session.id": journal.started.run_id,
    }
    assert found["harness.span"] == "chat"
    assert found["harness.ttft_ns"] == 2_999_993
    assert found["harness.prompt_sha256"] == sha256(PROMPT.encode()).hexdigest()
    assert "harness.seed" not in found


def test_every_span_names_its_session_and_its_kind(journal):
    kinds = {}
    for span in sent_spans(journal):
        found = values(span.attributes)
        assert found["session.id"] == journal.started.run_id
        kinds[span.name] = found["openinference.span.kind"]

    assert {name: kind for name, kind in kinds.items() if kind != "CHAIN"} == {
        "chat claude-9": "LLM",
        "retrieval": "RETRIEVER",
        "evaluate round 1": "EVALUATOR",
    }


def spans_of_model_calls(directory):
    """A probe, a reply with reasoning, one from the cache, and an embedding."""
    clock = ManualClock(start_ns=5_000)
    with RunTrace(directory, name="essay", clock=clock, options=QUIET) as trace:
        said = {"model": "small", "backend": "vllm", "url": "http://gpu:8000/v1", "model_id": "q"}
        trace.instant("endpoint", **said)
        with trace.span("run", label="essay"):
            with trace.span("chat", model="small", label="answered"):
                with trace.span("schema probe", model="small", schema="enforced") as probe:
                    probe.set(model_id="q-7b", input_tokens=30, output_tokens=8)
                trace.instant("circuit opened", model="small", reason="CallTimeout")
            with trace.span("chat", model="small", label="thought") as thought:
                thought.set(input_tokens=9, output_tokens=70, reasoning_tokens=64)
            with trace.span("chat", model="small", label="again") as again:
                again.set(from_cache=True, cost_usd=0.0, finish_reason="stop")
            with trace.span("embed", model="small", texts=2) as embed:
                embed.set(model_id="q-7b", input_tokens=12)
            trace.instant("evaluator drawn", evaluator="judge", seed="the text of a task")
    return {
        values(span.attributes).get("harness.label", values(span.attributes)["harness.span"]): span
        for span in sent_spans(Journal(trace.journal_path))
    }


def test_embedding_has_its_names_in_both_vocabularies(tmp_path):
    span = spans_of_model_calls(tmp_path)["embed"]

    assert (span.name, span.kind) == ("embeddings q", trace_pb2.Span.SPAN_KIND_CLIENT)
    assert {
        name: value
        for name, value in values(span.attributes).items()
        if not name.startswith(("harness.", "session."))
    } == {
        "gen_ai.operation.name": "embeddings",
        "gen_ai.provider.name": "vllm",
        "gen_ai.system": "vllm",
        "gen_ai.request.model": "q",
        "gen_ai.response.model": "q-7b",
        "gen_ai.usage.input_tokens": 12,
        "openinference.span.kind": "EMBEDDING",
        "embedding.model_name": "q-7b",
        "llm.provider": "vllm",
        "llm.model_name": "q",
        "llm.token_count.prompt": 12,
        "llm.token_count.total": 12,
        "server.address": "gpu",
        "server.port": 8000,
    }


def test_tokens_of_reasoning_are_told_of_those_of_the_reply(tmp_path):
    found = values(spans_of_model_calls(tmp_path)["thought"].attributes)

    assert found["gen_ai.usage.reasoning.output_tokens"] == 64
    assert found["llm.token_count.completion_details.reasoning"] == 64
    assert found["llm.token_count.total"] == 79


def test_a_reply_from_the_cache_used_no_tokens_and_asked_nobody(tmp_path):
    span = spans_of_model_calls(tmp_path)["again"]
    found = values(span.attributes)

    assert not [name for name in found if "usage" in name or "token_count" in name]
    assert found["harness.from_cache"] is True
    assert found["gen_ai.operation.name"] == "chat"
    assert span.kind == trace_pb2.Span.SPAN_KIND_INTERNAL


def test_the_probe_of_a_schema_is_a_call_with_its_tokens(tmp_path):
    span = spans_of_model_calls(tmp_path)["schema probe"]
    found = values(span.attributes)

    assert (span.name, found["openinference.span.kind"]) == ("chat q", "LLM")
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (30, 8)
    assert found["harness.schema"] == "enforced"


def test_a_task_that_an_evaluator_was_drawn_by_does_not_leave(tmp_path):
    ((name, said),) = events(spans_of_model_calls(tmp_path)["essay"])

    assert name == "evaluator drawn"
    assert said == {"harness.evaluator": "judge"}


def test_no_text_leaves_unless_asked(journal):
    with Receiver() as receiver:
        send_otlp(journal, endpoint=receiver.url)

    sent = receiver.posted[0].body.decode("utf-8", "replace")
    for said in ("概要", "abstract", "Abstracts", "What?", "Better.", "Mine."):
        assert said not in sent


def test_texts_go_along_when_asked(journal):
    spans = by_name(sent_spans(journal, content=True))
    found = {name: values(span.attributes) for name, span in spans.items()}

    call = found["chat claude-9"]
    assert (call["input.value"], call["input.mime_type"]) == (PROMPT, "text/plain")
    assert (call["output.value"], call["output.mime_type"]) == (REPLY, "text/plain")
    assert call["gen_ai.input.messages"] == (
        '[{"role":"system","parts":[{"type":"text","content":"Be brief."}]},'
        '{"role":"user","parts":[{"type":"text","content":"What is 概要?\\n\\nSay."}]}]'
    )
    assert call["gen_ai.output.messages"] == (
        '[{"role":"assistant","parts":[{"type":"text","content":"An abstract 🐣."}],'
        '"finish_reason":"stop"}]'
    )
    assert found["revise"]["output.value"] == "Better."
    assert found["evaluate round 1"]["input.value"] == "Mine."
    assert found["retrieval"]["gen_ai.retrieval.query.text"] == "What?"
    assert found["retrieval"]["retrieval.documents.0.document.name"] == "Abstracts"
    assert events(spans["wiggum"])[0][1]["harness.detail"] == "said 'abstract'"


def test_a_run_that_recorded_no_texts_has_none_to_send(tmp_path):
    clock = ManualClock()
    options = TraceOptions(timelines=(), content="hash")
    with RunTrace(tmp_path, name="essay", clock=clock, options=options) as trace:
        chat(trace, clock)

    (call,) = [s for s in sent_spans(Journal(trace.journal_path), content=True) if s.events]
    found = values(call.attributes)
    assert "harness.prompt_sha256" in found
    assert found.keys().isdisjoint({"input.value", "output.value", "gen_ai.input.messages"})


def test_every_attribute_that_may_quote_a_text_is_known_to_the_export():
    sources = [path.read_text() for path in Path(harness.__file__).parent.rglob("*.py")]
    quoting = {name for text in sources for name in re.findall(r"(\w+)=[\w.]+\.excerpt\(", text)}

    # The titles of `hits` are excerpts in a list.
    assert quoting | {"hits"} == QUOTING


def test_a_verdict_is_with_the_span_that_wrote_the_draft(journal):
    spans = by_name(sent_spans(journal, content=True))

    for author in ("draft", "revise"):
        assert events(spans[author]) == [
            (
                "gen_ai.evaluation.result",
                {
                    "gen_ai.evaluation.name": "composite",
                    "gen_ai.evaluation.score.value": 6.5,
                    "gen_ai.evaluation.score.label": "fail",
                },
            ),
            (
                "gen_ai.evaluation.result",
                {
                    "gen_ai.evaluation.name": "tone",
                    "gen_ai.evaluation.score.value": 4.0,
                    "gen_ai.evaluation.explanation": "it says 'abstract'",
                },
            ),
            (
                "gen_ai.evaluation.result",
                {"gen_ai.evaluation.name": "length", "gen_ai.evaluation.score.value": 9},
            ),
        ]
        found = values(spans[author].attributes)
        assert {name: v for name, v in found.items() if name.startswith("evaluations.")} == {
            "evaluations.0.evaluation.name": "composite",
            "evaluations.0.evaluation.score": 6.5,
            "evaluations.0.evaluation.label": "fail",
            "evaluations.1.evaluation.name": "tone",
            "evaluations.1.evaluation.score": 4.0,
            "evaluations.1.evaluation.explanation": "it says 'abstract'",
            "evaluations.2.evaluation.name": "length",
            "evaluations.2.evaluation.score": 9,
        }


def test_a_verdict_on_a_draft_from_elsewhere_stays_with_its_evaluation(journal):
    evaluations = [span for span in sent_spans(journal) if span.name.startswith("evaluate")]

    # The last is of a draft that no span wrote.
    assert [[name for name, _ in events(span)] for span in evaluations] == [
        [],
        [],
        ["gen_ai.evaluation.result"] * 3,
    ]
    found = values(evaluations[2].attributes)
    assert found["output.value"] == (
        '{"composite":6.5,"passed":false,"scores":{"tone":4.0,"length":9}}'
    )
    assert not any(name.startswith("evaluations.") for name in found)


@pytest.mark.parametrize(
    ("backend", "model_id", "names"),
    [
        ("openai", "qwen", ("openai", "openai", "qwen")),
        ("vllm", "org/qwen", ("vllm", "vllm", "org/qwen")),
        ("embedded", "smol", ("llamacpp", "llamacpp", "smol")),
        ("litellm", "gpt-9", ("litellm", "litellm", "gpt-9")),
        ("litellm", "openai/gpt-9", ("openai", "openai", "gpt-9")),
        ("litellm", "bedrock/claude", ("aws.bedrock", "aws", "claude")),
        ("litellm", "gemini/flash", ("gcp.gemini", "google", "flash")),
        ("litellm", "openrouter/x/y", ("openrouter", "openrouter", "x/y")),
    ],
)
def test_the_provider_is_that_of_the_endpoint(backend, model_id, names):
    found = ServedModel("tag", {"backend": backend, "model_id": model_id}).attributes()

    assert names == tuple(
        found[name] for name in ("gen_ai.provider.name", "llm.provider", "gen_ai.request.model")
    )
    assert found["gen_ai.system"] == found["gen_ai.provider.name"]
    assert found["llm.model_name"] == found["gen_ai.request.model"]


def test_a_backend_that_was_not_recorded_is_the_default_one():
    assert ServedModel("tag", {"model_id": "qwen"}).backend == "openai"


def test_of_an_endpoint_that_was_not_recorded_only_the_tag_is_known():
    assert ServedModel("tag", {}).attributes() == {
        "gen_ai.request.model": "tag",
        "llm.model_name": "tag",
        "server.address": None,
        "server.port": None,
    }


@pytest.mark.parametrize(
    ("url", "address", "port"),
    [
        ("http://gpu.lan:8000/v1", "gpu.lan", 8000),
        ("https://api.example/v1", "api.example", None),
        ("http://[::1]:8000/v1", "::1", 8000),
        ("http://[redacted]/v1", None, None),
    ],
)
def test_the_server_is_that_of_the_endpoint(url, address, port):
    found = ServedModel("tag", {"url": url}).attributes()

    assert (found.get("server.address"), found.get("server.port")) == (address, port)


def test_a_model_in_this_process_is_no_remote_call(tmp_path):
    clock = ManualClock()
    with RunTrace(tmp_path, name="x", clock=clock, options=TraceOptions(timelines=())) as trace:
        trace.instant("endpoint", model="here", backend="embedded", model_id="smol")
        chat(trace, clock, model="here")

    call = by_name(sent_spans(Journal(trace.journal_path)))["chat smol"]
    assert call.kind == trace_pb2.Span.SPAN_KIND_INTERNAL
