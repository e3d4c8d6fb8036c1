"""Writes a run's journal, the source of all other files about the run.

Traced code only appends to a queue. Some forty times a second, a thread makes records of the
queues' entries, encodes them and writes them. So a killed process loses at most the last moments,
and nothing that code waited for: see `Durability`.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from errno import ENOENT
from pathlib import Path
from typing import Literal

from harness.log import log_warning
from harness.threads import disk_threads, resolve
from harness.trace.journal_line import encode, seal
from harness.trace.records import Content, Piece, Record, SpanEnded, SpanStarted, describe, joined
from harness.trace.secrets import Redactor
from harness.trace.tracer import Entry, RecordMaker, Sink

Durability = Literal["exit", "node", "sync"]
"""When records are on the disk, safe from a kill and from a loss of power. `exit`: at the run's
end. `node`: when `persisted` returns, which the graph awaits after every node. `sync`: at once."""

OnFailure = Literal["stop", "continue"]
"""What the run does if the journal cannot be written, for example on a full disk: begin no further
call, or continue without a journal."""


# With a shorter pause, the thread would disturb a busy event loop.
_EVERY_S = 0.025
# Entries taken together: a span that begins and ends among them becomes one record.
_BATCH = 4096
# So many records are made, and so many written, before other threads may run. Each of both takes a
# tenth of a millisecond, for which an event loop that wakes up has to wait.
_MADE_AT_ONCE = 256
_WRITTEN_AT_ONCE = 64
# With more entries waiting, the code that adds entries must help writing.
_BACKLOG = 50_000


class JournalWriter:
    """Writes records to a new file; raises `OSError` if it cannot be created, or exists."""

    def __init__(
        self,
        path: Path,
        *,
        maker: RecordMaker,
        redactor: Redactor,
        durability: Durability = "node",
        observers: Sequence[Sink] = (),
    ) -> None:
        self.path = path
        # Why the journal ends before the run, such as a full disk; None if it does not.
        self.failure: OSError | None = None
        self._maker = maker
        self._redactor = redactor
        self._durability = durability
        # Called with each record as it is written, from the writing thread.
        self._observers = tuple(observers)
        self._descriptor: int | None = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600
        )
        # Whether the file's name is on the disk. Until then, a loss of power loses all of the file.
        self._is_name_synced = durability == "exit"
        self._process_id = os.getpid()
        self._entries: deque[Entry] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()  # of callers of `persisted`
        self._is_open = False
        # Held while writing. Reentrant, since making a record may end a span, if only by collecting
        # garbage, and so call `flush`; the loop of the outer `flush` writes the new entry.
        self._lock = threading.RLock()
        self._is_writing = False
        self._lines_written = 0
        # The queue's own method, for speed: traced code does nothing else.
        self.append = self._append_durably if durability == "sync" else self._entries.append

    def start(self) -> None:
        """Writes what was appended so far, and has a thread write the rest."""
        self.flush()
        self._is_open = True
        _flusher.add(self)
        # An interpreter that ends with the journal open takes the thread with it.
        atexit.register(self.flush)

    async def persisted(self) -> None:
        """With durability "node", returns when everything appended so far is on the disk."""
        if self._durability == "node" and self._is_open and not self.is_forked:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            # Callers that wait at the same time share one `fsync`.
            if len(self._waiting) == 1:
                disk_threads().submit(self._write_for_waiting)
            await waiting

    def relieve(self) -> None:
        """Writes in this thread if too much is waiting."""
        if len(self._entries) > _BACKLOG:
            self.flush()

    def close(self) -> None:
        """Writes the rest, to the disk, and closes the file; later entries are dropped."""
        if self.is_forked:
            return
        self._is_open = False
        _flusher.remove(self)
        atexit.unregister(self.flush)
        self._write_for_waiting()
        self._sync()
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
            self._entries.clear()

    @property
    def is_forked(self) -> bool:
        """Whether this is a forked child: the file is its parent's, and maybe the lock too."""
        return os.getpid() != self._process_id

    def _write_for_waiting(self) -> None:
        """Writes all entries to the disk, and wakes everyone who waits in `persisted`."""
        futures_by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        # `persisted` submits this once for all who wait, so it takes all of their futures.
        with suppress(IndexError):
            while True:
                future = self._waiting.popleft()
                futures_by_loop.setdefault(future.get_loop(), []).append(future)
        try:
            self.flush()
            if futures_by_loop:
                self._sync()
        finally:
            # All futures of a loop in one call, since waking the loop is what takes long.
            for loop, futures in futures_by_loop.items():
                # The loop may be closed by now.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(resolve, futures)

    def _append_durably(self, entry: Entry) -> None:
        self._entries.append(entry)
        self.flush()
        self._sync()

    def flush(self) -> None:
        """Writes what was appended so far, in this thread."""
        if self.is_forked:
            self._entries.clear()
            return
        with self._lock:
            # Making a record below has added an entry, and called this: the loop writes it.
            if self._is_writing:
                return
            if self._descriptor is None:
                self._entries.clear()
            self._is_writing = True
            try:
                while self._entries:
                    records = self._take_records()
                    self._write(_merged(records))
                    # Observers get also records that were merged, or that are never written.
                    self._observe(records)
            finally:
                self._is_writing = False

    def _take_records(self) -> list[Record]:
        records: list[Record] = []
        for number in range(1, min(len(self._entries), _BATCH) + 1):
            entry = self._entries.popleft()
            try:
                records += self._maker.records(entry)
            except Exception as error:  # noqa: BLE001 - one bad record must not cost the others
                _warn("a record is missing", code="trace.record-missing", error=describe(error))
            if number % _MADE_AT_ONCE == 0:
                time.sleep(0)
        return records

    def _write(self, records: Sequence[Record]) -> None:
        for start in range(0, len(records), _WRITTEN_AT_ONCE):
            if self._descriptor is None or self.failure is not None:
                return
            data = self._lines(records[start : start + _WRITTEN_AT_ONCE])
            try:
                # A call may write only a part of the data, such as before a disk is full.
                while data:
                    data = data[os.write(self._descriptor, data) :]
                if not os.fstat(self._descriptor).st_nlink:
                    # The file was deleted. Writing to it still works, but all of it will be lost.
                    raise FileNotFoundError(ENOENT, "it was deleted", str(self.path))
            except OSError as error:
                self._fail(error)

    def _lines(self, records: Sequence[Record]) -> bytes:
        try:
            lines = [encode(record) for record in records]
            # Texts were cleaned before they were hashed.
            plain = [n for n, record in enumerate(records) if type(record) is not Content]
            if self._redactor.finds_any(b"".join([lines[n] for n in plain])):
                for n in plain:
                    lines[n] = self._redactor.clean_line(lines[n])
            first = self._lines_written + 1
            sealed = b"".join([seal(line, n) for n, line in enumerate(lines, first)])
            self._lines_written += len(lines)
            return sealed
        except Exception as error:  # noqa: BLE001 - one bad record must not cost the others
            if len(records) > 1:
                # One by one, to leave out only the record that cannot be encoded.
                return b"".join(self._lines([record]) for record in records)
            _warn("a record is missing", code="trace.record-missing", error=describe(error))
            return b""

    def _observe(self, records: Sequence[Record]) -> None:
        for observe in self._observers:
            try:
                for record in records:
                    observe(record)
            except Exception as error:  # noqa: BLE001 - whatever an observer raises is not the run's
                self._observers = tuple(o for o in self._observers if o is not observe)
                _warn(
                    "an observer failed and is no longer called",
                    code="trace.observer-failed",
                    error=describe(error),
                )

    def _sync(self) -> None:
        if self.is_forked:
            return
        with self._lock:
            if self._descriptor is not None and self.failure is None:
                if not self._is_name_synced:
                    sync_path(self.path.parent)
                    self._is_name_synced = True
                try:
                    os.fsync(self._descriptor)
                except OSError as error:
                    self._fail(error)

    def _fail(self, error: OSError) -> None:
        # A run must not fail because its trace does.
        self.failure = error
        _warn(
            "the journal is incomplete",
            code="trace.journal-incomplete",
            path=str(self.path),
            error=str(error),
        )


class _Flusher:
    """Flushes all open journals of the process again and again, in one thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._journals: set[JournalWriter] = set()
        self._thread: threading.Thread | None = None

    def add(self, journal: JournalWriter) -> None:
        with self._lock:
            self._journals.add(journal)
            # A thread for each journal would take a fifth of what a short run takes.
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="harness journals", daemon=True
                )
                self._thread.start()

    def remove(self, journal: JournalWriter) -> None:
        with self._lock:
            self._journals.discard(journal)

    def _work(self) -> None:
        while True:
            time.sleep(_EVERY_S)
            with self._lock:
                journals = [*self._journals]
                if not journals:
                    self._thread = None
                    return
            for journal in journals:
                journal.flush()


_flusher = _Flusher()


def _replace_flusher() -> None:
    # A forked child does not have its parent's thread, and the lock may be held for ever.
    global _flusher  # noqa: PLW0603
    _flusher = _Flusher()


os.register_at_fork(after_in_child=_replace_flusher)


def _merged(records: Sequence[Record]) -> list[Record]:
    """The records to write: a span that began and ended among them has one record, not two."""
    merged: list[Record] = []
    positions: dict[int, int] = {}  # span → the position of its beginning
    for record in records:
        # Pieces of replies are for observers alone.
        if type(record) is Piece:
            continue
        if type(record) is SpanStarted:
            positions[record.id] = len(merged)
        elif type(record) is SpanEnded and record.id in positions:
            started = merged[positions[record.id]]
            assert isinstance(started, SpanStarted)
            merged[positions[record.id]] = joined(started, record)
            continue
        merged.append(record)
    return merged


def sync_path(path: Path) -> None:
    """Puts a file on the disk, or the names of the files in a directory."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _warn(what: str, *, code: str, **details: object) -> None:
    # The log itself may fail: a closed pipe, a full disk.
    with suppress(Exception):
        log_warning(what, code=code, **details)
