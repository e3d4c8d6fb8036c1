import asyncio

import pytest

from harness.inference.wire.sse import event_data


def payloads(*chunks):
    async def arriving():
        for chunk in chunks:
            yield chunk

    async def main():
        return [data async for data in event_data(arriving())]

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        pytest.param(b"data: one\n\ndata: two\n\n", [b"one", b"two"], id="LF"),
        pytest.param(b"data: one\r\n\r\ndata: two\r\n\r\n", [b"one", b"two"], id="CRLF"),
        pytest.param(b"data:one\n\n", [b"one"], id="no space after the colon"),
        pytest.param(b": ping\n\ndata: one\n\n:\n\n", [b"one"], id="keep-alive comments"),
        pytest.param(b"event: x\nid: 7\nretry: 9\ndata: one\n\n", [b"one"], id="other fields"),
        pytest.param(b"data: one\n\ndata: [DONE]", [b"one", b"[DONE]"], id="no last newline"),
        pytest.param(
            "data: a\u2028b\u2029c\x85d\n\n".encode(),
            ["a\u2028b\u2029c\x85d".encode()],
            id="Unicode's own line ends are text",
        ),
        pytest.param(b"", [], id="nothing"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 5, 1000], ids="chunks of {}".format)
def test_payloads_do_not_depend_on_how_the_stream_was_cut(stream, expected, size):
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]

    assert payloads(*chunks) == expected
