"""Replies that are packed, and such as never end."""

import gzip
import json
import tracemalloc
import zlib

import pytest
from calls import ask, fail, streamed_or_whole
from loopback import Reply, chunk, delta, error_reply, llama_server_stream, usage

from harness.errors import ReplyTooLarge, ServerError, StreamCut

OPENAI = {"backend": "litellm", "model_id": "openai/served-name", "api_key": "sk-1"}
CLAUDE = {"backend": "litellm", "model_id": "anthropic/claude-haiku-4-5", "api_key": "sk-1"}
WAYS = [
    pytest.param({"backend": "llamacpp"}, id="OpenAI's protocol"),
    pytest.param({"backend": "ollama"}, id="Ollama's"),
    pytest.param(OPENAI, id="litellm to OpenAI"),
    pytest.param(CLAUDE, id="litellm to Anthropic"),
]
TEXT = "Grüße\u2028日本"
STREAM = b"".join(llama_server_stream(TEXT))
EVENTS = ("content-type", "text/event-stream")
JSON = ("content-type", "application/json")
GZIP = ("content-encoding", "gzip")


def whole(text):
    choice = {"index": 0, "message": {"content": text}, "finish_reason": "stop"}
    return json.dumps({"object": "chat.completion", "choices": [choice], "usage": usage()}).encode()


def bomb(megabytes):
    """Zeros, a thousandth of their length."""
    packer = zlib.compressobj(wbits=31)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(megabytes)) + packer.flush()


@streamed_or_whole
@pytest.mark.parametrize("way", WAYS)
def test_a_reply_is_read_up_to_a_limit_and_told_apart_from_one_that_broke_off(way, stream):
    body = STREAM * 100 if stream else whole(TEXT * 1000)
    reply = Reply(headers=(EVENTS if stream else JSON,), steps=(body,))

    error = fail(ReplyTooLarge, reply, max_reply_bytes="5 KiB", stream=stream, **way)

    assert (error.code, error.max_reply_bytes) == ("call.reply-too-large", 5120)


@pytest.mark.parametrize("way", WAYS)
def test_a_packed_reply_takes_no_more_memory_than_one_may(way):
    reply = Reply(headers=(EVENTS, GZIP), steps=(bomb(64),))
    fail(ReplyTooLarge, reply, max_reply_bytes=1 << 20, **way)  # imports what it needs

    tracemalloc.start()
    try:
        fail(ReplyTooLarge, reply, max_reply_bytes=1 << 20, **way)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@streamed_or_whole
@pytest.mark.parametrize("way", [WAYS[0], WAYS[2]])
@pytest.mark.parametrize(
    ("name", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)], ids=["gzip", "deflate"]
)
def test_a_packed_reply_is_the_same(name, pack, way, stream):
    packed = pack(STREAM if stream else whole(TEXT))
    headers = (EVENTS if stream else JSON, ("content-encoding", name))
    pieces = tuple(packed[at : at + 7] for at in range(0, len(packed), 7))

    completion, server = ask(Reply(headers=headers, steps=pieces), stream=stream, **way)

    assert completion.text == TEXT
    assert server.asked[0].headers["accept-encoding"] == "gzip"


@pytest.mark.parametrize("way", WAYS[:2])
@pytest.mark.parametrize("packing", ["br", "gzip, br", "zstd"])
def test_a_reply_that_is_packed_as_nobody_asked_is_refused(packing, way):
    headers = (JSON, ("content-encoding", packing))
    with pytest.raises(StreamCut, match="not asked for"):
        ask(Reply(headers=headers, steps=(b"\x8b\x02\x80abc\x03",)), stream=False, **way)


@pytest.mark.parametrize("way", WAYS)
def test_the_beginning_of_an_endless_error_is_the_error(way):
    reply = error_reply(500, None, GZIP, raw=gzip.compress(b"boom " * 1_000_000))

    error = fail(ServerError, reply, max_reply_bytes=4 << 20, **way)

    assert error.status == 500
    assert len(str(error)) < 200_000


def test_a_whole_reply_may_begin_with_a_byte_order_mark():
    reply = Reply(headers=(JSON,), steps=(b"\xef\xbb\xbf" + whole(TEXT),))

    assert ask(reply, stream=False)[0].text == TEXT


def test_a_long_reply_within_the_limit_is_one():
    text = "x" * 1_000_000
    tail = (delta(finish_reason="stop"), chunk(choices=[], usage=usage()), b"data: [DONE]\n\n")

    completion, _ = ask(Reply(steps=(delta(content=text), *tail)))

    assert completion.text == text
