"""Tools at real engines: where the model's template has them, where it has not, and vLLM.

The demo's model was not made for tools. It calls one where examples have shown it how, or where it
must.
"""

import asyncio
import json
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager

import httpx2
import pytest
from calls import backend_at
from clients import client_of
from contract_rows import VLLM_URL
from real_engines import either_engine, loaded

from harness.inference import ChatRequest, Message, ToolCall, ToolSpec
from harness.inference.providers.embedded import _SCRIPT, _SERVER
from harness.inference.providers.registry import knowledge_of
from harness.inference.structured import SchemaKnowledge
from harness.inference.tool_offers import ToolKnowledge
from harness.session.settings import demo_endpoint
from harness.trace import Tracer
from harness.trace.records import SpanEnded

pytestmark = pytest.mark.slow

CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}}
WEATHER = ToolSpec("weather", "The weather in a city.", CITY | {"required": ["city"]})
QUESTION = Message("user", "What is the weather in Oslo?")
# That of Qwen 2.5, in short.
TEMPLATE = """
{%- if tools %}{{- '<|im_start|>system\\nYou can call functions:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools>\\n\\nFor each call, return JSON within <tool_call></tool_call> tags:\\n' }}
{{- '<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>' }}
{{- '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' and message.tool_calls %}{{- '<|im_start|>assistant' }}
{%- for tool_call in message.tool_calls %}{%- set tool_call = tool_call.function %}
{{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
{{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content }}
{{- '\\n</tool_response><|im_end|>\\n' }}
{%- else %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def examples():
    """Turns in which the tool was called, answered, and made use of."""
    for number, city in enumerate(("Rome", "Paris", "Bergen")):
        call = ToolCall(f"c{number}", "weather", json.dumps({"city": city}))
        yield Message("user", f"What is the weather in {city}?")
        yield Message("assistant", "", tool_calls=(call,))
        yield Message("tool", "Rain, 8 °C", answers=call.id)
        yield Message("assistant", "Rain, 8 °C.")


@contextmanager
def llama_server(**fields):
    """The address of one that serves the demo's model with these parameters."""
    # One thread: they wait for each other spinning, and tests may share the cores.
    threads = {"cpuparams.n_threads": 1, "cpuparams_batch.n_threads": 1}
    file = {"model.path": str(demo_endpoint().path), "n_ctx": 2048, "n_parallel": 1}
    fields = {**_SERVER, **threads, **file, **fields}
    command = [sys.executable, "-P", str(_SCRIPT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        try:
            server.stdin.write(json.dumps(fields).encode() + b"\n")
            server.stdin.flush()
            yield json.loads(server.stdout.readline())["url"] + "/v1"
        finally:
            server.kill()


@asynccontextmanager
async def client_to(backend, records, knowledge=None):
    line = {"tools": knowledge or ToolKnowledge(), "schemas": SchemaKnowledge()}
    yield client_of(backend, tracer=Tracer(records.append), line=line)


def ask(client, *messages, **how):
    asked = {"tools": (WEATHER,), "max_output_tokens": 80, **how}
    return client.chat(ChatRequest(model="m", messages=messages, **asked))


def probed(records):
    """What was found out, by the probe."""
    return next(r.attributes["tools"] for r in records if isinstance(r, SpanEnded))


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_template_with_tools_is_told_of_them_and_calls_are_read(stream):
    records = []

    async def main():
        with llama_server(chat_template=TEMPLATE) as url:
            async with (
                backend_at(url, backend="llamacpp", stream=stream) as backend,
                client_to(backend, records) as client,
            ):
                return await ask(client, *examples(), QUESTION)

    reply = asyncio.run(main())
    assert (probed(records), reply.tools, reply.finish_reason) == ("native", "native", "tool_calls")
    assert [(one.name, one.as_object()) for one in reply.tool_calls] == [
        ("weather", {"city": "Oslo"})
    ]
    assert reply.tool_calls[0].id
    assert (reply.first_token_ns is not None) or not stream


@either_engine
def test_a_template_without_tools_has_them_typed(backend):
    records = []

    async def main():
        async with loaded(backend, context_tokens=2048) as engine:
            _, knowledge = knowledge_of(demo_endpoint().model_copy(update={"backend": backend}))
            async with client_to(engine, records, knowledge) as client:
                first = await ask(client, QUESTION, tool_choice="required")
                said = Message("assistant", "", tool_calls=first.tool_calls)
                result = Message("tool", "Sunny, 21 °C", answers=first.tool_calls[0].id)
                return first, await ask(client, QUESTION, said, result)

    first, second = asyncio.run(main())
    assert (first.tools, first.structured, second.tools) == ("typed", "enforced", "typed")
    assert (first.tool_calls[0].name, first.tool_calls[0].as_object()) == (
        "weather",
        {"city": "Oslo"},
    )
    assert second.text


@pytest.mark.skipif(not VLLM_URL, reason="HARNESS_TEST_VLLM_URL names no running vLLM")
def test_a_vllm_without_its_flags_refuses_once_and_has_them_typed():
    records = []

    async def main():
        async with httpx2.AsyncClient() as http:
            model = (await http.get(f"{VLLM_URL}/v1/models")).json()["data"][0]["id"]
        async with (
            backend_at(f"{VLLM_URL}/v1", backend="vllm", model_id=model) as backend,
            client_to(backend, records) as client,
        ):
            return [await ask(client, QUESTION, tool_choice="required") for _ in range(2)]

    for reply in asyncio.run(main()):
        assert (reply.tools, reply.tool_calls[0].as_object()) == ("typed", {"city": "Oslo"})
    assert probed(records) == "typed"
