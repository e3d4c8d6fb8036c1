"""A run's journal: the file that everything else about the run is derived from.

One record a line, written as it happens. A record is in the operating system's hands when `append`
returns, so killing the process loses nothing; losing power may lose the last seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import structlog

from harness.errors import JournalInvalid
from harness.trace.records import SCHEMA_VERSION, Record, RunStarted, decode, encode

_log = structlog.get_logger(__name__)


class JournalWriter:
    """Appends records to a new file.

    Args:
        path: The file; it must not exist.

    Raises:
        OSError: The file cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failure: OSError | None = None
        """Why the journal stopped before the run did, if it did (a full disk, say)."""
        # Unbuffered on purpose: about 2 µs a record, and nothing to lose on a kill.
        self._file = path.open("xb", buffering=0)
        # Threads trace too, and outlive a run that was cancelled. Reentrant, since collecting
        # garbage in the middle of a write may end a span.
        self._lock = threading.RLock()

    def append(self, record: Record) -> None:
        """Writes one record, unless the journal is closed or has failed.

        Never raises: a run must not fail because its trace does.
        """
        data = encode(record)
        with self._lock:
            if self.failure is not None or self._file.closed:
                return
            try:
                while data:
                    data = data[self._file.write(data) :]
            except OSError as error:
                self.failure = error
                _log.warning("the journal is incomplete", path=str(self.path), error=str(error))

    def close(self) -> None:
        """Closes the file; records that come later are dropped."""
        with self._lock:
            self._file.close()


def read_journal(path: Path) -> Iterator[Record]:
    """The records of a journal, in order. A last line that was cut off by a crash is left out.

    Raises:
        JournalInvalid: A line is not a record, or a newer version wrote the file.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                record = decode(line)
            except ValueError as error:
                raise JournalInvalid(str(error), path=path, line=number) from error
            if isinstance(record, RunStarted) and record.schema > SCHEMA_VERSION:
                raise JournalInvalid(
                    f"written by a newer version (schema {record.schema}, this one reads up to "
                    f"{SCHEMA_VERSION}); upgrade wiggum-harness to read it",
                    path=path,
                    line=number,
                )
            yield record
