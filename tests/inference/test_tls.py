"""A server whose TLS is refused: its calls fail at once, and nothing waits for it to get better."""

import asyncio
import shutil
import ssl
import subprocess

import pytest
from calls import REQUEST, backend_at
from clients import AT_ONCE, client_of
from loopback import llama_server_stream

from harness.errors import EndpointUnreachable

OPENSSL = shutil.which("openssl")


def self_signed(folder):
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        f"{OPENSSL} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        f"-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 -keyout {key} "
        f"-out {certificate}".split(),
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


@pytest.mark.parametrize("backend", ["openai", "litellm"])
@pytest.mark.parametrize(
    ("speaks_tls", "code"),
    [
        pytest.param(
            True,
            "call.certificate-refused",
            marks=pytest.mark.skipif(OPENSSL is None, reason="no openssl to sign with"),
        ),
        (False, "call.no-tls"),
    ],
    ids=["a self-signed certificate", "plain HTTP"],
)
def test_a_server_whose_tls_is_refused_is_asked_once_and_not_held(
    tmp_path, backend, speaks_tls, code
):
    connections = []

    async def serve(reader, writer):
        # Of TLS that was refused asyncio's server hears nothing: only plain connections get here.
        connections.append(await reader.read(1))
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def main():
        tls = self_signed(tmp_path) if speaks_tls else None
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        model_id = {"litellm": "openai/m"}.get(backend, "m")
        async with (
            server,
            backend_at(url, backend=backend, model_id=model_id, api_key="sk-1") as wire,
        ):
            client = client_of(wire, tag="judge", retry=AT_ONCE)
            client.routes[
                "judge"
            ].gate.answers = 1  # it has answered before, so that it may be held
            await client.chat(REQUEST)

    with pytest.raises(EndpointUnreachable) as caught:
        asyncio.run(main())
    assert caught.value.code == code
    assert connections == ([] if speaks_tls else [b"\x16"])


@pytest.mark.skipif(OPENSSL is None, reason="no openssl to sign with")
def test_a_certificate_that_ssl_cert_file_names_is_trusted(tmp_path, monkeypatch):
    body = b"".join(llama_server_stream("Hello"))

    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().split(b"content-length:")[1].split()[0]))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
        writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    async def main():
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=self_signed(tmp_path))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with server, backend_at(url) as wire:
            return (await wire.chat(REQUEST)).text

    assert asyncio.run(main()) == "Hello"
