"""A headless Chromium, for tests: what does a person see who opens this page?

It is the one that is installed, driven by its DevTools protocol over two pipes, so that nothing
else is needed: https://chromedevtools.github.io/devtools-protocol

From the project's root, this takes a picture of a trace in Perfetto:

    python -m tests.chromium TRACE PICTURE.png [WIDTHxHEIGHT]
"""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from harness.cli.viewer import LoopbackServer, Site, perfetto_site

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = [
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # with one it refuses to run as root
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-sync",
    # Chromium itself has questions to its makers. There is no network here, for it or the page.
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE *.localhost",
]

# Chromium reads from descriptor 3 and writes to descriptor 4; the pipes have other numbers here.
LAUNCHER = """\
import os, sys
commands, answers, program, *arguments = sys.argv[1:]
os.dup2(int(commands), 3)
os.dup2(int(answers), 4)
os.execv(program, [program, *arguments])
"""


class Chromium:
    """A browser with one page; a context manager. Skips the test where none is installed.

    Args:
        profile: A folder for its files.
        width: Of the page's viewport, in pixels.
        height: Of the page's viewport, in pixels.
    """

    def __init__(self, profile: Path, *, width: int = 1600, height: int = 2000):
        program = next(filter(None, map(shutil.which, PROGRAMS)), None)
        if program is None:
            pytest.skip(f"needs a browser, and there is none of {', '.join(PROGRAMS)}")
        their_commands, self._commands = os.pipe()
        self._answers, their_answers = os.pipe()
        pipes = [their_commands, their_answers]
        arguments = [*OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, *map(str, pipes), program, *arguments],
            pass_fds=pipes,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for pipe in pipes:
            os.close(pipe)
        self._received = b""
        self._calls = 0
        self._session: dict[str, str] = {}
        self._events: list[dict] = []

        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        self.call("Network.enable")
        size = {"width": width, "height": height}
        self.call("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=False)

    def call(self, method: str, **parameters: object) -> dict:
        """What the browser answers to a command of the protocol."""
        self._calls += 1
        command = {"id": self._calls, "method": method, "params": parameters, **self._session}
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        deadline = time.monotonic() + 60
        while (message := self._receive(deadline)).get("id") != self._calls:
            self._events.append(message)
        assert "error" not in message, f"{method}: {message['error']}"
        return message["result"]

    def open(self, url: str) -> None:
        """Goes to an address."""
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> object:
        """The value of a JavaScript expression on the page; a promise is awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Returns when a JavaScript expression has become true on the page."""
        instead = self.evaluate(f"""new Promise(done => {{
            const end = Date.now() + 30_000;
            const look = () => {{
                if ({condition}) done(null);
                else if (Date.now() > end) done(document.body?.innerText);
                else setTimeout(look, 50);
            }};
            look();
        }})""")
        assert instead is None, f"never true: {condition}; the page says:\n{instead}"

    def hosts_asked(self) -> set[str]:
        """`host:port` of every request of the page but those that its own policy forbade."""
        self.evaluate("null")  # what has happened so far is told before the answer
        requests = {}
        for event in self._events:
            about = event["params"]
            if event["method"] == "Network.requestWillBeSent":
                requests[about["requestId"]] = about["request"]["url"]
            elif event["method"] == "Network.loadingFailed" and about.get("blockedReason") == "csp":
                del requests[about["requestId"]]
        # Addresses such as data:… have no host.
        return {urlsplit(url).netloc for url in requests.values()} - {""}

    def picture(self) -> bytes:
        """What is to be seen, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(self, *_: object) -> None:
        # It ends when its pipes do.
        os.close(self._commands)
        os.close(self._answers)
        self._process.wait(timeout=30)

    def _receive(self, deadline: float) -> dict:
        while b"\0" not in self._received:
            left_s = max(0, deadline - time.monotonic())
            ready, _, _ = select.select([self._answers], [], [], left_s)
            assert ready, "Chromium does not answer"
            part = os.read(self._answers, 1 << 20)
            assert part, "Chromium has ended"
            self._received += part
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)


def timeline_site(trace: Path, *, at: tuple[int, int, str] | None = None) -> Callable[[str], Site]:
    """The site that `harness trace open` serves."""
    return partial(perfetto_site, trace=trace, name=trace.name, at=at)


def open_trace(browser: Chromium, viewer: LoopbackServer, *, name: str) -> None:
    """Returns when Perfetto has drawn the trace of this name."""
    browser.open(viewer.url)
    browser.wait_for(f"document.title.startsWith({json.dumps(name)})")
    browser.evaluate("waitForPerfettoIdle(500)")


def main(trace: str, picture: str, size: str = "1600x900") -> None:
    width, height = map(int, size.split("x"))
    with (
        LoopbackServer(timeline_site(Path(trace))) as viewer,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        Chromium(Path(profile), width=width, height=height) as browser,
    ):
        threading.Thread(target=viewer.serve_forever, daemon=True).start()
        open_trace(browser, viewer, name=Path(trace).name)
        Path(picture).write_bytes(browser.picture())
        viewer.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
