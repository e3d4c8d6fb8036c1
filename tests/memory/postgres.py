"""A PostgreSQL server for tests: on loopback, in a folder of its own, ended by its process id."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

NOBODY = 65534
LOCKED = "locked"
"""The user that needs a password; a test makes it."""
_names = count()


def missing() -> str | None:
    """Why no server can be started; None if it can."""
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        return f"no postgresql: {error}"
    return None if programs() else "no postgresql: neither pg_config nor PATH knows initdb"


def programs() -> Path | None:
    """The folder of `initdb` and `postgres`; Debian has it beside `PATH`."""
    said = None
    if config := shutil.which("pg_config"):
        said = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False)
    found = shutil.which("initdb")
    folders = [
        *([Path(said.stdout.strip())] if said else []),
        *([Path(found).resolve().parent] if found else []),
        *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True),
    ]
    return next((one for one in folders if (one / "initdb").is_file()), None)


class Server:
    """A server that is running, until `end`."""

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self.folder = folder
        self._bin = programs()
        self._settings = () if durable else ("-c", "fsync=off")
        # It refuses to run as root.
        self._user = {"user": NOBODY, "group": NOBODY} if os.getuid() == 0 else {}
        if self._user:
            os.chown(folder, NOBODY, NOBODY)
        command = [self._bin / "initdb", "-D", folder / "data", "-A", "trust", "-U", "harness"]
        subprocess.run(
            [*command, "-E", "UTF8", "--locale", "C", "--no-sync"],
            check=True, cwd=folder, stdout=subprocess.DEVNULL, **self._user,
        )  # fmt: skip
        rules = folder / "data/pg_hba.conf"
        rules.write_text(f"host all {LOCKED} all scram-sha-256\n{rules.read_text()}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._process = self._started()

    def url(self, schema: str | None = None) -> str:
        """Of a schema; of a new one by default."""
        schema = schema or f"s{os.getpid()}_{next(_names)}"
        return f"postgresql://harness@127.0.0.1:{self.port}/postgres?schema={schema}"

    def connect(self):
        """A connection of psycopg's."""
        import psycopg

        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="harness", dbname="postgres", autocommit=True
        )

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Ends it: SIGINT ends connections, SIGQUIT is a crash."""
        self._process.send_signal(how)
        self._process.wait(60)

    def start(self) -> None:
        """Starts it again, where it was."""
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        log = (self.folder / "log").open("ab")
        process = subprocess.Popen(
            [
                self._bin / "postgres", "-D", self.folder / "data", "-p", str(self.port),
                "-c", "listen_addresses=127.0.0.1", "-k", self.folder, *self._settings,
            ],
            cwd=self.folder, stdout=log, stderr=log, **self._user,
        )  # fmt: skip
        log.close()
        for _ in range(600):
            with suppress(Exception):
                self.connect().close()
                return process
            if process.poll() is not None:
                break
            time.sleep(0.05)
        process.kill()
        raise RuntimeError((self.folder / "log").read_text())


@contextmanager
def server(*, durable: bool = False) -> Iterator[Server]:
    """A server for the block."""
    # Not in pytest's folder, which is closed to the user that it runs as.
    folder = Path(tempfile.mkdtemp(prefix="harness-postgres-"))
    folder.chmod(0o755)
    try:
        running = Server(folder, durable=durable)
        try:
            yield running
        finally:
            running.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
