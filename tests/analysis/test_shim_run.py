"""A run through the inference shim, against emulated servers: what is made of its journal."""

import asyncio
import socket
from contextlib import suppress

from servers.openai_dialects import DIALECTS
from servers.openai_server import OpenAIServer
from test_otlp import CLIENT, spans_of, values

from harness import open_shim
from harness.analysis import diagnose, report_of
from harness.errors import EndpointUnreachable
from harness.inference import ChatRequest, EmbedRequest, Endpoint, as_messages
from harness.session.settings import Settings
from harness.trace import RunTrace, TraceOptions
from harness.trace.perfetto import perfetto_packets

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def ask(model, text, **more):
    return ChatRequest(model=model, messages=as_messages(text), **more)


async def everything(trace):
    """A schema, a reply from the cache, a field that is dropped, a dead endpoint, an embedding."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers there
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        async with (
            OpenAIServer(dialect=DIALECTS["llamacpp"]) as llama,
            OpenAIServer(dialect=DIALECTS["triton-openai"]) as triton,
            OpenAIServer(dialect=DIALECTS["openai"]) as embedding,
        ):
            served = {
                tag: Endpoint(tag=tag, model_id="served-name", backend=backend, url=url, **more)
                for tag, backend, url, more in (
                    ("llama", "llamacpp", f"{llama.root}/v1", {"drop": ("seed",)}),
                    ("triton", "triton-openai", f"{triton.root}/v1", {}),
                    ("vectors", "openai", f"{embedding.root}/v1", {}),
                    ("gone", "vllm", nobody, {"fallback": ("llama",), "retry": {"base_s": 0.01}}),
                )
            }
            for one in served.values():
                said = one.model_dump(mode="json", exclude_defaults=True, exclude={"tag"})
                trace.instant("endpoint", model=one.tag, **said)
            settings = Settings(endpoints=served, cache="run")
            with trace.span("run", label="shim"):
                async with open_shim(settings=settings, tracer=trace) as shim:
                    for _ in range(2):
                        await shim.chat(ask("triton", "Where?", reply_schema=SCHEMA))
                    await shim.chat(ask("llama", "Hello.", seed=3, temperature=0.5))
                    for number in range(4):
                        await shim.chat(ask("gone", f"Number {number}?"))
                    await shim.embed(EmbedRequest(model="vectors", texts=("a", "b")))
                    with suppress(EndpointUnreachable):
                        await shim.embed(EmbedRequest(model="gone", texts=("a",)))


def test_what_became_of_every_call_is_reported_diagnosed_exported_and_drawn(tmp_path):
    with RunTrace(tmp_path, name="shim", options=TraceOptions(timelines=())) as trace:
        asyncio.run(everything(trace))
    journal = trace.journal()

    report = report_of(journal)
    models = {model.name: model for model in report.models}
    assert {tag: (one.calls, one.failed, one.from_cache) for tag, one in models.items()} == {
        "triton": (2, 0, 1),
        "llama": (5, 0, 0),
        "gone": (16, 16, 0),
    }
    assert (models["triton"].ignored_schemas, models["llama"].dropped) == (1, ("seed",))
    assert report.fallbacks == 4
    assert [(one.name, one.model, one.requests, one.failed) for one in report.asides] == [
        ("schema probe", "triton", 1, 0),
        ("embed", "vectors", 1, 0),
        ("embed", "gone", 4, 4),
    ]

    findings = {one.rule: one for one in diagnose(journal).findings}
    # On a busy machine, more may be said: that calls made one after another took long.
    assert findings["out-of-reach"].model == "gone"

    # A collector is told which calls left this machine.
    found = [(span.kind, values(span.attributes)) for span in spans_of(journal)]
    assert {
        (one["harness.span"], one.get("harness.from_cache", False))
        for kind, one in found
        if kind == CLIENT
    } == {(name, False) for name in ("chat", "schema probe", "embed")}

    packets = b"".join(perfetto_packets(journal)).decode("utf-8", "replace")
    titles = {"schema probe", "embed", "fallback"}
    assert all(title in packets for title in titles)
