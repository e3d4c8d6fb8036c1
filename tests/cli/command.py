"""`harness` as a person types it, run in this process: words in; exit code and words out.

What a process of its own would end with is put back after each command: the environment, the
directory, what was imported, signal handlers, logging. An exception that the command does not turn
into words is the test's.
"""

from __future__ import annotations

import asyncio
import importlib
import io
import json
import logging
import os
import pty
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import structlog

from harness.cli.main import main

COMMAND = Path(sys.executable).with_name("harness")
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "TMPDIR": tempfile.gettempdir(),
    "XDG_CONFIG_HOME": tempfile.mkdtemp(prefix="config-"),  # what was run may be resumed
    "XDG_CACHE_HOME": tempfile.mkdtemp(prefix="cache-"),
}
NOBODY = "http://127.0.0.1:9"
"""At the discard port nothing listens."""

S = TypeVar("S", bound=AbstractAsyncContextManager[Any])


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it wrote."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    @property
    def code(self) -> str:
        """What the error of a command with `--json` is called."""
        return str(self.json["error"]["code"])

    @property
    def text(self) -> str:
        """Standard output without line breaks."""
        return " ".join(self.stdout.split())


def harness(
    *arguments: str | Path,
    cwd: Path,
    endpoints: Mapping[str, Any] | None = None,
    stdin: str | io.BytesIO = "",
    typed: str | None = None,
    **environment: str,
) -> Done:
    """Runs the command.

    Args:
        arguments: What follows its name.
        cwd: The directory it is run in.
        endpoints: As HARNESS_ENDPOINTS gives them.
        stdin: What is piped into it.
        typed: What is typed at the terminal that it has in place of pipes; it has none if None.
        environment: All other variables that it sees.
    """
    if endpoints is not None:
        environment["HARNESS_ENDPOINTS"] = json.dumps(endpoints)
    out, err = _Stream(), _Stream(is_terminal=typed is not None)
    with ExitStack() as stack:
        piped = io.BytesIO(stdin.encode()) if isinstance(stdin, str) else stdin
        given = io.TextIOWrapper(piped, "utf-8")
        if typed is not None:
            given = stack.enter_context(_terminal(typed))
            environment.setdefault("TERM", "xterm")
        stack.enter_context(_process())
        stack.enter_context(chdir(cwd))
        stack.enter_context(mock.patch.dict(os.environ, ENVIRONMENT | environment, clear=True))
        argv = [str(COMMAND), *map(str, arguments)]
        stack.enter_context(
            mock.patch.multiple(sys, argv=argv, stdin=given, stdout=out, stderr=err)
        )
        try:
            main()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(bool(error.code))
        return Done(code, out.text(), err.text())


def interrupt(number: int = signal.SIGINT) -> None:
    """Has the command's thread interrupted, as Ctrl-C does; a server or a node may call it."""
    identifier = threading.main_thread().ident
    assert identifier is not None
    signal.pthread_kill(identifier, number)


@contextmanager
def serving(server: S) -> Iterator[S]:
    """A server in a thread of its own, since the command has this one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait_for(work: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(30)

    try:
        wait_for(server.__aenter__())
        try:
            yield server
        finally:
            wait_for(server.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class _Stream(io.TextIOWrapper):
    """A pipe, or a terminal."""

    def __init__(self, *, is_terminal: bool = False) -> None:
        super().__init__(io.BytesIO(), "utf-8", newline="", write_through=True)
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def text(self) -> str:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


@contextmanager
def _terminal(typed: str) -> Iterator[io.TextIOWrapper]:
    """A terminal's keyboard, at which all has been typed already."""
    keyboard, terminal = pty.openpty()
    os.write(keyboard, typed.encode())
    try:
        with os.fdopen(terminal, encoding="utf-8") as opened:
            yield opened
    finally:
        os.close(keyboard)


@contextmanager
def _process() -> Iterator[None]:
    """Puts back what ends with a process."""
    path, modules = list(sys.path), set(sys.modules)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    root, level = list(logging.root.handlers), logging.root.level
    structured = structlog.get_config() if structlog.is_configured() else None
    # What is written within a second of being imported would be read as it was before.
    writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    importlib.invalidate_caches()
    try:
        with warnings.catch_warnings():
            yield
    finally:
        added = [place for place in sys.path if place not in path]
        sys.path[:], sys.dont_write_bytecode = path, writes_bytecode
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(tuple(added) or "\0"):
                del sys.modules[name]
        for number, handler in handlers.items():
            signal.signal(number, handler)
        logging.root.handlers[:] = root
        logging.root.setLevel(level)
        structlog.reset_defaults()
        if structured is not None:
            structlog.configure(**structured)
