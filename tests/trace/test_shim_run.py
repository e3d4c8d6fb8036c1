"""A run through the inference shim, against emulated servers: what is made of its journal."""

import asyncio
import socket
from contextlib import suppress

import pytest
from servers.openai_dialects import DIALECTS
from servers.openai_server import OpenAIServer
from test_otlp import spans_of, values

from harness import open_shim
from harness.errors import EndpointUnreachable
from harness.inference import ChatRequest, CountRequest, EmbedRequest, Endpoint, as_messages
from harness.session.settings import Settings
from harness.trace import Journal, RunTrace, TraceOptions
from harness.trace.diagnosis import diagnose
from harness.trace.report import report_of
from harness.trace.timelines.chrome import write_chrome_trace
from harness.trace.timelines.perfetto import perfetto_packets

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def ask(model, text, **more):
    return ChatRequest(model=model, messages=as_messages(text), **more)


async def everything(trace):
    """A schema, a reply from the cache, a field that is dropped, a dead endpoint, an embedding."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers there
        port = taken.getsockname()[1]
        async with (
            OpenAIServer(dialect=DIALECTS["llamacpp"]) as llama,
            OpenAIServer(dialect=DIALECTS["triton-openai"]) as triton,
            OpenAIServer(dialect=DIALECTS["openai"]) as embedding,
        ):
            endpoints = [
                Endpoint(tag="llama", backend="llamacpp", url=f"{llama.root}/v1", drop=("seed",)),
                Endpoint(tag="triton", backend="triton-openai", url=f"{triton.root}/v1"),
                Endpoint(tag="vectors", backend="openai", url=f"{embedding.root}/v1"),
                Endpoint(
                    tag="gone",
                    backend="vllm",
                    url=f"http://127.0.0.1:{port}/v1",
                    fallback=("llama",),
                ),
            ]
            served = {
                one.tag: one.model_copy(update={"model_id": "served-name"}) for one in endpoints
            }
            for one in served.values():
                said = one.model_dump(mode="json", exclude_defaults=True, exclude={"tag"})
                trace.instant("endpoint", model=one.tag, **said)
            settings = Settings(endpoints=served, cache="run")
            with trace.span("run", label="shim"):
                async with open_shim(settings=settings, tracer=trace) as shim:
                    await shim.chat(ask("triton", "Where?", reply_schema=SCHEMA))
                    await shim.chat(ask("triton", "Where?", reply_schema=SCHEMA))
                    await shim.chat(ask("llama", "Hello.", seed=3, temperature=0.5))
                    for number in range(4):
                        await shim.chat(ask("gone", f"Number {number}?"))
                    await shim.embed(EmbedRequest(model="vectors", texts=("a", "b")))
                    await shim.count_tokens(
                        CountRequest(model="llama", messages=as_messages("Hello."))
                    )
                    with suppress(EndpointUnreachable):
                        await shim.embed(EmbedRequest(model="gone", texts=("a",)))


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    with RunTrace(
        tmp_path_factory.mktemp("shim"), name="shim", options=TraceOptions(timelines=())
    ) as trace:
        asyncio.run(everything(trace))
    return Journal(trace.journal_path)


def test_the_report_knows_what_became_of_every_call(journal):
    report = report_of(journal)
    models = {model.name: model for model in report.models}

    assert {tag: (one.calls, one.failed, one.from_cache) for tag, one in models.items()} == {
        "triton": (2, 0, 1),
        "llama": (5, 0, 0),
        "gone": (4, 4, 0),
    }
    assert (models["triton"].ignored_schemas, models["llama"].dropped) == (1, ("seed",))
    assert (report.retries, report.fallbacks, report.circuit_openings) == (0, 4, 1)
    assert [(one.name, one.model, one.requests, one.failed) for one in report.asides] == [
        ("schema probe", "triton", 1, 0),
        ("embed", "vectors", 1, 0),
        ("count tokens", "llama", 1, 0),
        ("embed", "gone", 1, 1),
    ]
    assert report.goodput.unknown == 4  # those that failed


def test_the_diagnosis_names_what_was_wrong_and_nothing_else(journal):
    findings = {one.rule: one for one in diagnose(journal).findings}

    assert findings.keys() == {"out-of-reach", "schema-not-enforced", "dropped-fields"}
    assert findings["out-of-reach"].model == "gone"
    assert findings["out-of-reach"].evidence.figures == {"failed_calls": 4, "fallbacks": 4}
    assert findings["schema-not-enforced"].model == "triton"
    assert findings["dropped-fields"].move[0].startswith("take 'seed' out of drop")


def test_a_collector_is_told_which_calls_left_this_machine(journal):
    spans = [(span, values(span.attributes)) for span in spans_of(journal)]
    kinds = {
        (found["harness.span"], found.get("harness.from_cache", False)): span.kind
        for span, found in spans
    }
    internal, client = spans[0][0].SPAN_KIND_INTERNAL, spans[0][0].SPAN_KIND_CLIENT

    assert {name: kind for name, kind in kinds.items() if kind == client} == {
        ("chat", False): client,
        ("schema probe", False): client,
        ("embed", False): client,
        ("count tokens", False): client,
    }
    assert kinds["chat", True] == internal


def test_it_can_be_drawn(journal, tmp_path):
    write_chrome_trace(journal, tmp_path / "run.json")
    drawn = (tmp_path / "run.json").read_text(encoding="utf-8")
    packets = b"".join(perfetto_packets(journal)).decode("utf-8", "replace")

    for title in ("schema probe", "embed", "count tokens", "fallback", "circuit opened"):
        assert f'"{title}"' in drawn
        assert title in packets
