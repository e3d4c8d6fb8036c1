import asyncio
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from loopback import GONE_BEFORE_A_BYTE, Loopback, Reply, delta, llama_server_stream
from servers.anthropic import Anthropic

from harness.errors import StreamCut
from harness.inference import ChatRequest, Endpoint, as_messages
from harness.inference.managed.litellm_backend import LiteLLMBackend

REQUEST = ChatRequest(model="managed", messages=as_messages("Write."))
PATIENCE_S = 10.0


def backend_at(url, model_id, **fields):
    endpoint = Endpoint(tag="managed", backend="litellm", model_id=model_id, url=url, **fields)
    return LiteLLMBackend(endpoint, api_key="sk-secret")


@pytest.mark.parametrize("size", [1, 2, 3, 64, 100_000], ids="chunks of {} bytes".format)
@pytest.mark.parametrize("model_id", ["openai/served", "hosted_vllm/served"])
def test_no_character_of_a_reply_ends_a_line_of_the_stream(size, model_id):
    text = "Grüße ☃\u2028日本\u0085 “x” 🦫\u2029\u00c2\u200b"
    stream = b"".join(llama_server_stream(*text))
    steps = tuple(stream[at : at + size] for at in range(0, len(stream), size))

    async def main():
        async with Loopback([Reply(steps=steps)]) as server:
            backend = backend_at(server.url, model_id)
            completion = await backend.chat(REQUEST)
            await backend.aclose()
            return completion

    assert asyncio.run(main()).text == text


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    "model_id", ["openai/served", "hosted_vllm/served", "anthropic/claude-haiku-4-5"]
)
def test_a_server_that_hangs_up_is_not_asked_again(model_id, stream):
    async def main():
        async with Loopback([GONE_BEFORE_A_BYTE] * 2) as server:
            backend = backend_at(server.url, model_id, stream=stream)
            with pytest.raises(StreamCut, match="the connection broke before it began"):
                await backend.chat(REQUEST)
            await backend.aclose()
            assert len(server.requests) == 1

    asyncio.run(main())


@pytest.mark.parametrize("model_id", ["openai/served", "hosted_vllm/served"])
def test_calls_one_after_another_share_a_connection(model_id):
    async def main():
        async with Loopback([Reply(steps=llama_server_stream("Hello"))] * 3) as server:
            backend = backend_at(server.url, model_id)
            for _ in range(3):
                await backend.chat(REQUEST)
            assert (server.connections, server.open_connections) == (1, 1)
            await backend.aclose()
            async with asyncio.timeout(PATIENCE_S):
                await server.deserted.wait()

    asyncio.run(main())


def test_calls_of_anthropics_protocol_share_a_connection_too():
    async def main():
        async with Anthropic() as server:
            backend = backend_at(server.root, "anthropic/claude-haiku-4-5")
            for _ in range(3):
                await backend.chat(REQUEST)
                assert server.open_connections == 1
            await backend.aclose()

    asyncio.run(main())


def test_a_hundred_equal_pieces_are_a_reply_like_any_other():
    async def main():
        async with Loopback([Reply(steps=llama_server_stream(*["---"] * 150))]) as server:
            backend = backend_at(server.url, "openai/served")
            completion = await backend.chat(REQUEST)
            await backend.aclose()
            return completion

    assert asyncio.run(main()).text == "---" * 150


def test_a_server_that_never_ends_its_stream_after_done_has_replied_all_the_same():
    async def main():
        endless = Reply(steps=llama_server_stream("Hello"), ending="hold")
        async with Loopback([endless]) as server:
            backend = backend_at(server.url, "openai/served", timeout_s=PATIENCE_S)
            assert (await backend.chat(REQUEST)).text == "Hello"
            async with asyncio.timeout(PATIENCE_S):
                await server.hung_up.wait()
            await backend.aclose()

    asyncio.run(main())


def test_cancelling_in_the_middle_does_not_wait_for_the_rest():
    async def main():
        steps = (delta(role="assistant", content=None), delta(content="The last word is [DONE]"))
        async with Loopback([Reply(steps=steps, ending="hold")]) as server:
            backend = backend_at(server.url, "openai/served")
            call = asyncio.create_task(backend.chat(REQUEST))
            await server.holding.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            async with asyncio.timeout(PATIENCE_S):
                await server.hung_up.wait()
            await backend.aclose()

    asyncio.run(main())


@contextmanager
def anthropic_in_a_thread():
    """A server that outlives an event loop, and keeps its connections."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            body = {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": "claude",
                "content": [{"type": "text", "text": "Hello"}],
                "stop_reason": "end_turn",
                "usage": {"input_tokens": 1, "output_tokens": 1},
            }
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_one_event_loop_after_another_may_call_the_same_provider():
    async def call(url):
        backend = backend_at(url, "anthropic/claude-haiku-4-5", stream=False)
        completion = await backend.chat(REQUEST)
        await backend.aclose()
        return completion.text

    with anthropic_in_a_thread() as url:
        assert [asyncio.run(call(url)) for _ in range(2)] == ["Hello", "Hello"]
