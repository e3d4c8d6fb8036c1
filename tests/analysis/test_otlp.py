"""A run as OTLP has it: its spans, and all the names they have."""

import json
import re
from hashlib import sha256
from pathlib import Path

import pytest
from manual_clock import ManualClock
from opentelemetry.proto.trace.v1 import trace_pb2

import harness
from harness.analysis.otlp_spans import QUOTING, key_values, model_attributes, otlp_spans
from harness.trace import Instant, Journal, RunTrace, TraceOptions
from harness.trace.events import EndpointEvent

NEW_YEAR_NS = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z
INTERNAL, CLIENT = trace_pb2.Span.SPAN_KIND_INTERNAL, trace_pb2.Span.SPAN_KIND_CLIENT
PROMPT = "[system]\nBe brief.\n\n[user]\nWhat is 概要?\n\nSay."
REPLY = "An abstract 🐣."


def spans_of(journal, *, content=False):
    return list(otlp_spans(journal, content=content))


def by_name(spans):
    return {span.name: span for span in spans}


def values(attributes):
    """Attributes as a dictionary, none of them twice."""
    pairs = [(one.key, value(one.value)) for one in attributes]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def value(any_value):
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return [value(one) for one in any_value.array_value.values]
    return getattr(any_value, kind)


def events(span):
    return [(event.name, values(event.attributes)) for event in span.events]


# --- a run as pipelines leave it -------------------------------------------------------------


def new_run(directory, clock=None, **options):
    options = TraceOptions(timelines=(), **options)
    clock = clock or ManualClock()
    return RunTrace(
        directory, name="essay", clock=clock, wall_ns=lambda: NEW_YEAR_NS, options=options
    )


def chat(trace, clock, *, model="writer"):
    """A call, as `Traced` leaves it."""
    settings = {
        "temperature": 0.5,
        "top_p": 0.9,
        "min_p": 0.05,
        "seed": None,
        "max_output_tokens": 64,
        "structured": False,
    }
    said = {"track": f"model {model}", "label": "chat producer", "role": "producer", **settings}
    prompt_sha256 = trace.content(PROMPT)
    with trace.span("chat", model=model, prompt_sha256=prompt_sha256, **said) as span:
        trace.flow("call", source=span.parent, target=span.id)
        clock.advance(ms=3)
        trace.completed_span("prefill", start_ns=clock() - 1_000_000, end_ns=clock(), source="x")
        trace.instant("first token", at_ns=clock() - 7)
        span.set(ttft_ns=2_999_993, cost_usd=0.25, model_id=f"{model}-2026", finish_reason="stop")
        span.set(input_tokens=31, cached_tokens=0, output_tokens=4)
        span.set(reply_sha256=trace.content(REPLY))


def evaluate(trace, clock, draft, *, of):
    draft_sha256 = trace.content(draft)
    with trace.span("evaluate", label="evaluate round 1", draft_sha256=draft_sha256) as span:
        trace.flow("draft", source=of, target=span.id)
        clock.advance(ms=2)
        span.set(composite=6.5, passed=False, scores={"tone": 4.0, "length": 9})
        span.set(evaluator="judge", findings=["tone: it says 'abstract'"])


@pytest.fixture
def journal(tmp_path):
    """A draft, evaluated, revised and evaluated again; then one that no span wrote."""
    clock = ManualClock(start_ns=5_000)
    with new_run(tmp_path, clock) as trace:
        trace.instant("endpoint", model="writer", backend="litellm", model_id="anthropic/claude-9")
        trace.instant("endpoint", model="judge", url="http://gpu:8000/v1", model_id="qwen")
        with trace.span("run", label="essay"):
            clock.advance(ms=1)
            with trace.span("draft") as draft:
                chat(trace, clock)
            with trace.span("wiggum", rubric="essay"):
                with trace.span("recall", query="What?", limit=2) as recall:
                    recall.set(hits=[{"id": "a1", "title": "Abstracts", "score": 0.5}])
                with trace.span("tool", label="search", tool="search"):
                    pass
                evaluate(trace, clock, REPLY, of=draft.id)
                trace.instant("retry", reason="RateLimited", attempt=1, detail="said 'abstract'")
                with trace.span("revise", focus=["tone"]) as revise:
                    revise.set(draft_sha256=trace.content("Better."))
                clock.advance(ms=4_000)
                evaluate(trace, clock, "Better.", of=revise.id)
                evaluate(trace, clock, "Mine.", of=None)
        trace.completed_span("client lag", start_ns=clock() - 9, end_ns=clock())
    return Journal(trace.journal_path)


def test_a_run_is_one_trace_with_its_spans_inside_each_other(journal):
    spans = spans_of(journal)

    names = {span.span_id: span.name for span in spans}
    trace_id = sha256(journal.started.run_id.encode()).digest()[:16]
    assert {span.trace_id for span in spans} == {trace_id}
    assert len(names) == len(spans) == sum(1 for _ in journal.spans())
    assert all(len(span_id) == 8 and any(span_id) for span_id in names)
    assert {span.name: names.get(span.parent_span_id) for span in spans} == {
        "invoke_workflow essay": None,
        "draft": "invoke_workflow essay",
        "chat claude-9": "draft",
        "prefill": "chat claude-9",
        "wiggum": "invoke_workflow essay",
        "client lag": "invoke_workflow essay",
        "retrieval": "wiggum",
        "execute_tool search": "wiggum",
        "evaluate round 1": "wiggum",
        "revise": "wiggum",
    }
    said = {span.name: values(span.attributes) for span in spans}
    assert {one["session.id"] for one in said.values()} == {journal.started.run_id}
    # Sent again, it is the same.
    assert list(otlp_spans(journal)) == list(otlp_spans(journal))


def test_times_are_unix_nanoseconds_to_the_last_digit(journal):
    call = by_name(spans_of(journal))["chat claude-9"]

    assert call.start_time_unix_nano == NEW_YEAR_NS + 1_000_000
    assert call.end_time_unix_nano == NEW_YEAR_NS + 4_000_000
    assert [(one.name, one.time_unix_nano) for one in call.events] == [
        ("first token", NEW_YEAR_NS + 4_000_000 - 7)
    ]


def test_how_a_span_ended_is_its_status(tmp_path):
    with new_run(tmp_path) as trace:
        trace.span("open").__enter__()
        for name, error in (("bad", ValueError("it said 'no'")), ("cut", KeyboardInterrupt())):
            with pytest.raises(type(error)), trace.span(name):
                raise error
        with trace.span("good"):
            pass
    journal = trace.journal()

    def outcome(span):
        found = values(span.attributes)
        said = (found.get("error.type"), found.get("harness.status"))
        return (span.status.code, span.status.message, *said)

    unset, ok, error = 0, trace_pb2.Status.STATUS_CODE_OK, trace_pb2.Status.STATUS_CODE_ERROR
    assert {name: outcome(span) for name, span in by_name(spans_of(journal)).items()} == {
        "good": (ok, "", None, None),
        "bad": (error, "ValueError", "ValueError", "error"),
        "cut": (unset, "KeyboardInterrupt", "KeyboardInterrupt", "cancelled"),
        "open": (unset, "", None, "unfinished"),
    }
    bad = by_name(spans_of(journal, content=True))["bad"]
    assert bad.status.message == "ValueError: it said 'no'"


def test_instants_are_events_and_flows_links_save_from_the_span_around(journal):
    spans = spans_of(journal)
    names = {span.span_id: span.name for span in spans}

    retry = {"harness.reason": "RateLimited", "harness.attempt": 1}
    assert events(by_name(spans)["wiggum"]) == [("retry", retry)]
    links = [
        (span.name, names[one.span_id], one.trace_id == span.trace_id, values(one.attributes))
        for span in spans
        for one in span.links
    ]
    assert sorted(links, key=str) == [
        ("evaluate round 1", "draft", True, {"harness.flow": "draft"}),
        ("evaluate round 1", "revise", True, {"harness.flow": "draft"}),
    ]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("größe 概要 🐣\x00\u2028", "größe 概要 🐣\x00\u2028"),
        (0, 0),
        (-(2**63), -(2**63)),
        (2**64 - 1, "18446744073709551615"),
        (False, False),
        (-0.1, -0.1),
        ([1, -2], [1, -2]),
        ([], "[]"),
        ([1, 2.5], "[1,2.5]"),
        ({"tone": {"é": [1]}}, '{"tone":{"é":[1]}}'),
    ],
)
def test_a_value_arrives_as_what_it_is_or_as_json(ours, theirs):
    found = values(key_values({"x": ours, "y": None}))

    assert found == {"x": theirs}
    assert type(found["x"]) is type(theirs)


# --- names -----------------------------------------------------------------------------------


def test_a_call_has_its_attributes_by_all_their_names(journal):
    call = by_name(spans_of(journal))["chat claude-9"]

    assert call.kind == CLIENT
    found = values(call.attributes)
    assert {name: found[name] for name in found if not name.startswith("harness.")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "claude-9",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.max_tokens": 64,
        "gen_ai.output.type": "text",
        "gen_ai.response.model": "writer-2026",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.time_to_first_chunk": 0.002999993,
        "gen_ai.usage.input_tokens": 31,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.output_tokens": 4,
        "session.id": journal.started.run_id,
    }
    assert (found["harness.span"], found["harness.ttft_ns"]) == ("chat", 2_999_993)
    assert found["harness.prompt_sha256"] == sha256(PROMPT.encode()).hexdigest()
    assert "harness.seed" not in found


def test_what_else_models_are_asked_has_its_names_too(tmp_path):
    with new_run(tmp_path, ManualClock(start_ns=5_000)) as trace:
        said = {"model": "small", "backend": "vllm", "url": "http://gpu:8000/v1", "model_id": "q"}
        trace.instant("endpoint", **said)
        with trace.span("run", label="essay"):
            with trace.span("schema probe", model="small", schema="enforced") as probe:
                probe.set(model_id="q-7b", input_tokens=30, output_tokens=8)
            with trace.span("chat", model="small", label="thought") as thought:
                thought.set(input_tokens=9, output_tokens=70, reasoning_tokens=64)
            with trace.span("chat", model="small", label="again") as again:
                again.set(from_cache=True, cost_usd=0.0, finish_reason="stop")
            with trace.span("embed", model="small", texts=2) as embed:
                embed.set(model_id="q-7b", input_tokens=12)
            with trace.span("rerank", model="small", texts=2):
                pass
            trace.instant("evaluator drawn", evaluator="judge", seed="the text of a task")
    found = {}
    for span in spans_of(trace.journal()):
        one = values(span.attributes)
        found[one.get("harness.label", one["harness.span"])] = (span, one)

    span, said = found["embed"]
    assert (span.name, span.kind) == ("embeddings q", CLIENT)
    assert (
        said.items()
        >= {
            "gen_ai.operation.name": "embeddings",
            "gen_ai.provider.name": "vllm",
            "gen_ai.usage.input_tokens": 12,
            "gen_ai.response.model": "q-7b",
            "server.address": "gpu",
            "server.port": 8000,
        }.items()
    )
    assert found["rerank"][1]["gen_ai.operation.name"] == "rerank"
    # Tokens of reasoning are told of those of the reply.
    span, said = found["thought"]
    assert said["gen_ai.usage.reasoning.output_tokens"] == 64
    # A reply from the cache used no tokens and asked nobody.
    span, said = found["again"]
    assert not [name for name in said if "usage" in name]
    assert (span.kind, said["harness.from_cache"]) == (INTERNAL, True)
    # The probe of a schema is a call with its tokens.
    span, said = found["schema probe"]
    assert (span.name, said["gen_ai.operation.name"]) == ("chat q", "chat")
    assert (said["gen_ai.usage.input_tokens"], said["harness.schema"]) == (30, "enforced")
    # A task that an evaluator was drawn by does not leave.
    assert events(found["essay"][0]) == [("evaluator drawn", {"harness.evaluator": "judge"})]


def test_a_workflow_and_an_agent_have_their_names(tmp_path):
    with (
        new_run(tmp_path) as trace,
        trace.span("run", label="essay"),
        trace.span("agent", label="search (producer)", role="producer"),
    ):
        pass

    said = {span.name: values(span.attributes) for span in spans_of(Journal(trace.journal_path))}
    assert [one["gen_ai.agent.name"] for one in said.values()] == ["essay", "search (producer)"]


def test_no_text_leaves_unless_asked(journal):
    spans = otlp_spans(journal)
    sent = b"".join(one.SerializeToString() for one in spans).decode("utf-8", "replace")

    for said in ("概要", "abstract", "Abstracts", "What?", "Better.", "Mine."):
        assert said not in sent


def test_texts_go_along_when_asked(journal):
    spans = by_name(spans_of(journal, content=True))
    found = {name: values(span.attributes) for name, span in spans.items()}

    call = found["chat claude-9"]
    assert json.loads(call["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": PROMPT}]}
    ]
    (reply,) = json.loads(call["gen_ai.output.messages"])
    assert (reply["parts"][0]["content"], reply["finish_reason"]) == (REPLY, "stop")
    assert found["revise"]["harness.draft"] == "Better."
    assert found["evaluate round 1"]["harness.draft"] == "Mine."
    assert found["retrieval"]["gen_ai.retrieval.query.text"] == "What?"
    assert events(spans["wiggum"])[0][1]["harness.detail"] == "said 'abstract'"


def test_a_run_that_recorded_no_texts_has_none_to_send(tmp_path):
    clock = ManualClock()
    with new_run(tmp_path, clock, content="hash") as trace:
        trace.instant("endpoint", model="here", backend="embedded", model_id="smol")
        chat(trace, clock, model="here")

    call = by_name(spans_of(trace.journal(), content=True))["chat smol"]
    found = values(call.attributes)
    assert "harness.prompt_sha256" in found
    assert found.keys().isdisjoint({"gen_ai.input.messages", "gen_ai.output.messages"})
    assert call.kind == INTERNAL  # a model in this process is no remote call


def test_a_traceback_which_may_quote_a_text_leaves_only_with_the_texts(tmp_path):
    with new_run(tmp_path) as trace, trace.span("node", label="asked", node="asked") as span:
        span.set(traceback=f"ValueError: {REPLY}")
    journal = trace.journal()

    sent = [
        [
            one.value.string_value
            for span in spans_of(journal, content=content)
            for one in span.attributes
            if one.key == "harness.traceback"
        ]
        for content in (False, True)
    ]
    assert sent == [[], [f"ValueError: {REPLY}"]]


def test_every_attribute_that_may_quote_a_text_is_known_to_the_export():
    sources = [path.read_text() for path in Path(harness.__file__).parent.rglob("*.py")]
    quoting = {n for text in sources for n in re.findall(r"(\w+)=(?:[\w.]+\.)?excerpt\(", text)}

    # The titles of `hits` are excerpts in a list.
    assert quoting | {"hits", "row_ids"} == QUOTING


def test_a_verdict_is_with_the_span_that_wrote_the_draft(journal):
    spans = spans_of(journal, content=True)

    result = "gen_ai.evaluation"
    said = "it says 'abstract'"
    for author in ("draft", "revise"):
        span = by_name(spans)[author]
        assert events(span) == [
            (f"{result}.result", {f"{result}.name": name, f"{result}.score.value": score, **more})
            for name, score, more in (
                ("composite", 6.5, {f"{result}.score.label": "fail"}),
                ("tone", 4.0, {f"{result}.explanation": said}),
                ("length", 9, {}),
            )
        ]
    # The last is of a draft that no span wrote, and stays with its evaluation.
    evaluations = [span for span in spans_of(journal) if span.name.startswith("evaluate")]
    assert [len(span.events) for span in evaluations] == [0, 0, 3]


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ({"model_id": "qwen"}, ("openai", "qwen")),
        ({"backend": "vllm", "model_id": "org/qwen"}, ("vllm", "org/qwen")),
        ({"backend": "embedded", "model_id": "smol"}, ("llamacpp", "smol")),
        ({"backend": "litellm", "model_id": "bedrock/claude"}, ("aws.bedrock", "claude")),
        ({"backend": "litellm", "model_id": "openrouter/x/y"}, ("openrouter", "x/y")),
    ],
)
def test_the_provider_is_that_of_the_endpoint(said, names):
    found = model_attributes("tag", EndpointEvent.read(Instant(None, "endpoint", 0, said)))

    shown = ("gen_ai.provider.name", "gen_ai.request.model")
    assert tuple(found[name] for name in shown) == names
