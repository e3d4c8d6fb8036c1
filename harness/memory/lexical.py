"""The lexical index: BM25 over title and text, by tantivy, in a directory of its own."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import re
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

from harness.errors import MemoryStoreFailed
from harness.files import path_text
from harness.memory.passage import Passage, WantedTags
from harness.memory.primary import PrimaryStore, Progress
from harness.memory.terms import LexicalSchema, ceiling

if TYPE_CHECKING:
    import tantivy

_WRITER_HEAP_BYTES = 50_000_000

_TURN_WAIT_S = 30.0
_TURN_POLL_S = 0.005

# The most unread passages that are scored one by one, since a commit of tantivy takes 70 to 115 ms;
# with more, a search waits for a commit.
MOST_RECENT = 32

T = TypeVar("T")


class LexicalIndex:
    """BM25 (k1 = 1.2, b = 0.75, which tantivy fixes) over words of one language.

    May be used from any thread, and by several processes: searches run side by side, and see the
    last commit. Every method raises `MemoryStoreFailed` if the index cannot be read or written.

    It is repaired if needed when it is opened, and then holds all that `primary` holds.

    Attributes:
        position: The last write that it has read.
    """

    def __init__(
        self, directory: Path, primary: PrimaryStore, *, progress: Progress | None = None
    ) -> None:
        import tantivy  # noqa: PLC0415  # importing harness stays light

        self._tantivy = tantivy
        self._directory = directory
        self._primary = primary
        self._schema = LexicalSchema(primary.language)
        # Re-entrant: a thread that finds the index damaged while it reads on makes it again.
        self._reading_on = RLock()
        self._index: tantivy.Index
        self.position = 0
        self._seen = 0
        self._prepare(progress)

    @property
    def is_behind(self) -> bool:
        """Whether a search met writes that the index has not read."""
        return self.position < self._seen

    def catch_up(self, *, until: int) -> None:
        """Reads new writes, at least as far as the write `until`."""
        if self.position >= max(until, self._primary.seen_sequence()):
            return
        # One thread reads; another waits for it only if it needs a write that is not read yet.
        if not self._reading_on.acquire(blocking=self.position < until):
            return
        try:
            self._mended(lambda: self._read_on(until))
        finally:
            self._reading_on.release()

    def search(
        self, query: str, *, limit: int, where: WantedTags | None = None, until: int = 0
    ) -> dict[int, float]:
        """Sequence number to BM25 score of the best `limit` passages, best first.

        It considers all writes up to `until` at least: those that the index has not read are
        scored here if they are few, and read before if they are many.
        """
        clauses = self._schema.asked(query)
        wanted = self._schema.any_of(clauses)
        if where is not None:
            wanted = self._schema.both(wanted, self._schema.tagged(where))
        # Read before the search, so that a commit in between does no harm.
        recent, removed = self._unread(until)
        # Removed passages are still in the index; they are left out below.
        scores = self._mended(lambda: self._found(wanted, limit + len(removed)))
        if recent:
            with _translated(self._directory):
                searcher = self._index.searcher()
                scores |= self._schema.recent_scores(
                    recent, clauses, where=where, searcher=searcher
                )
        ranked = sorted(scores.items(), key=lambda scored: (-scored[1], scored[0]))
        return dict([scored for scored in ranked if scored[0] not in removed][:limit])

    def _unread(self, until: int) -> tuple[dict[int, Passage], set[int]]:
        """What was written since the last commit: passages, and numbers of removed ones."""
        low, high = self.position, max(until, self._primary.seen_sequence())
        self._seen = high
        if low >= high:
            return {}, set()
        if not low or high - low > MOST_RECENT:
            self.catch_up(until=until)
            return {}, set()
        removed = set(self._primary.removed_between(low, high))
        return dict(self._primary.passages_between(low, high)), removed

    def ceiling(self, query: str) -> float:
        """The highest score that a passage can have for a query's words other than stop words."""
        # Words that are in no passage count as the rarest there are: a small store cannot tell stop
        # words from rare ones by itself.
        with _translated(self._directory):
            return ceiling(self._index.searcher(), self._schema.matter(query))

    def rebuild(self, progress: Progress | None = None) -> None:
        """Makes the index again from the primary store."""
        with self._reading_on, self._turn(_TURN_WAIT_S):
            self._make_again(progress)

    def close(self) -> None:
        """Gives memory back; what was committed stays."""
        # What tantivy's threads used and freed stays with the allocator, up to 20 MB a thread:
        # 200 MB in a process that opened some stores. Only glibc keeps it so, and can be told.
        with suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)

    def __len__(self) -> int:
        # The index's position is a document, too.
        return int(self._index.searcher().num_docs) - (1 if self.position else 0)

    # --- making it ---------------------------------------------------------------------------

    def _prepare(self, progress: Progress | None) -> None:
        """Opens the index if it is usable; makes it if it is not."""
        # 1. Take the index as it is on disk, if there is nothing to read.
        is_loaded = self._loads()
        if is_loaded and self.position == self._primary.last_sequence() and self._agrees():
            return
        with self._turn(_TURN_WAIT_S):
            # 2. Read new writes. Another process may have repaired the index meanwhile, too.
            if self._loads():
                try:
                    self._advance(progress)
                    if self._agrees():
                        return
                except _Unreadable as error:
                    if error.is_of_the_disk:
                        raise
            # 3. Make it again: it holds nothing that the primary store does not have.
            self._make_again(progress)

    def _make_again(self, progress: Progress | None) -> None:
        """Makes a new index beside the old one, which serves searches until the new one is done."""
        new, old = (self._directory.with_suffix(suffix) for suffix in (".new", ".old"))
        with _translated(self._directory):
            for directory in (new, old):  # a process that was killed here has left them
                shutil.rmtree(directory, ignore_errors=True)
            try:
                new.mkdir(mode=0o700)
                index = self._opened(new)
                self._write(index, 0, self._primary.last_sequence(), progress)
                # Renamed in one step: a process that opens a folder while it is emptied would leave
                # lock files there.
                if self._directory.is_dir():
                    self._directory.rename(old)
                new.rename(self._directory)
            finally:
                for directory in (new, old):
                    shutil.rmtree(directory, ignore_errors=True)
        self._load()

    def _loads(self) -> bool:
        with suppress(_Unreadable):
            self._load()
            return True
        return False

    def _load(self) -> None:
        with _translated(self._directory):
            if damaged := damaged_file(self._directory):
                raise ValueError(f"{damaged.name} is not as it was written")
            self._index = self._opened(self._directory)
        self._refresh()

    def _opened(self, directory: Path) -> tantivy.Index:
        """The index in a directory, or a new one."""
        # To tantivy a name is UTF-8, whatever the locale.
        index = self._tantivy.Index(self._schema.fields, path=path_text(directory))
        index.register_tokenizer(self._schema.tokenizer, self._schema.analyzer)
        # Otherwise a thread of tantivy's reloads it twice a second if `meta.json` has changed, and
        # if a file was truncated meanwhile, the process ends (SIGBUS).
        index.config_reader(reload_policy="manual")
        return index

    def _agrees(self) -> bool:
        """Whether the index can belong to this store: an index that is ahead of it cannot."""
        last, count = self._primary.extent()
        if self.position > last:
            return False
        return self.position < last or len(self) == count

    # --- catching up -------------------------------------------------------------------------

    def _read_on(self, until: int) -> None:
        """Reads all new writes, unless another process is reading and `until` is reached."""
        self._refresh()
        if self.position >= self._primary.last_sequence():
            return
        try:
            with self._turn(_TURN_WAIT_S if self.position < until else 0):
                self._advance(None)
        except _Busy:
            if self.position < until:
                raise

    def _advance(self, progress: Progress | None) -> None:
        """Reads all new writes. Only inside `_turn`."""
        self._refresh()
        last = self._primary.last_sequence()
        if self.position < last:
            self._write(self._index, self.position, last, progress)
            self._refresh()

    def _write(
        self, index: tantivy.Index, position: int, last: int, progress: Progress | None
    ) -> None:
        """Reads the primary store from a position on, and commits: all or nothing."""
        with _translated(self._directory), self._writer(index) as writer:
            # An index that has read nothing has nothing to drop.
            gone = self._primary.removed_between(position, last) if position else ()
            if gone:
                # Not `delete_documents_by_term`, which finds no unsigned number.
                writer.delete_documents_by_query(self._schema.numbered(gone))
            for sequence, passage in self._primary.passages_between(position, last):
                writer.add_document(self._schema.document(sequence, passage))
                if progress and sequence % 1000 == 0:
                    progress("reading words", sequence, last)
            if progress:
                progress("reading words", last, last)
            # The position is a document of its own: in the same commit, it cannot disagree.
            writer.delete_documents_by_query(self._schema.positions())
            writer.add_document(self._schema.position(last))

    @contextmanager
    def _writer(self, index: tantivy.Index) -> Iterator[tantivy.IndexWriter]:
        """Commits all that is written inside, or nothing if that raises."""
        try:
            writer = index.writer(heap_size=_WRITER_HEAP_BYTES, num_threads=1)
        except ValueError as error:
            if "LockBusy" not in str(error):
                raise
            # The lock is of a program that is not ours: our processes take turns.
            raise self._busy("program") from error
        try:
            yield writer
            writer.commit()
        except BaseException:
            # Releases the lock, which would stay locked as long as the traceback is held.
            with suppress(ValueError):
                writer.wait_merging_threads()
            raise
        # Without the wait merges are cut short, and segments pile up.
        writer.wait_merging_threads()

    def _refresh(self) -> None:
        """Loads the last commit, of this or another process, and the position that it has."""
        with _translated(self._directory):
            self._index.reload()
        self.position = next(iter(self._found(self._schema.positions(), 1)), 0)

    @contextmanager
    def _turn(self, wait_s: float) -> Iterator[None]:
        """Inside, no other process writes to the index. Raises `_Busy` after `wait_s`."""
        deadline = time.monotonic() + wait_s
        with _translated(self._directory), self._directory.with_suffix(".lock").open("w") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise self._busy("process") from None
                time.sleep(_TURN_POLL_S)
            yield

    def _busy(self, writer: str) -> _Busy:
        return _Busy(
            f"another {writer} is writing to the lexical index; try again when it is done",
            path=self._directory.parent,
            code="memory.lane-busy",
        )

    def _mended(self, act: Callable[[], T]) -> T:
        """What `act` returns; if the index turns out to be damaged, after it was made again."""
        try:
            return act()
        except _Unreadable as error:
            if error.is_of_the_disk:
                raise
            with self._reading_on:
                self._prepare(None)
            return act()

    # --- searching ---------------------------------------------------------------------------

    def _found(self, query: tantivy.Query, limit: int) -> dict[int, float]:
        with _translated(self._directory):
            searcher = self._index.searcher()
            # tantivy allocates room for as many hits as it is asked for; if there is no such
            # room, the process ends.
            room = max(1, min(limit, searcher.num_docs))
            hits = searcher.search(query, limit=room, count=False).hits
            addresses: list[Any] = [address for _, address in hits]
            sequences = searcher.fast_field_values("sequence", addresses)
        return {int(n or 0): score for n, (score, _) in zip(sequences, hits, strict=True)}


# --- errors ----------------------------------------------------------------------------------


class _Busy(MemoryStoreFailed):
    """Another process writes to the index."""


class _Unreadable(MemoryStoreFailed):
    """There is no index, or a damaged one, or one that may not be touched."""

    is_of_the_disk = False
    """Whether making it again would not help."""


@contextmanager
def _translated(directory: Path) -> Iterator[None]:
    """The one place where tantivy's errors become ours."""
    try:
        yield
    except BaseException as error:
        # tantivy raises ValueError for all it foresees. Some damaged files make it panic, and
        # that arrives as a BaseException, of a class that cannot be imported.
        panicked = type(error).__name__ == "PanicException"
        if not panicked and not isinstance(error, (OSError, ValueError)):
            raise
        remedy = (
            f"see that the disk has room and '{directory.name}' may be written; if so, close the "
            f"store and delete '{directory.name}', which is made again from the passages"
        )
        failed = _Unreadable(
            f"{error} ({remedy})", path=directory.parent, code="memory.lane-unreadable"
        )
        failed.is_of_the_disk = _errno_of(error) in _OF_THE_DISK
        raise failed from error


def _errno_of(error: BaseException) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    number = re.search(r"os error (\d+)", str(error))
    return int(number[1]) if number else None


_OF_THE_DISK = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
}


# --- checksums -------------------------------------------------------------------------------

# tantivy ends each file of a segment with a footer that holds the checksum of the rest, and does
# not compare the two; without that, a damaged file gives wrong answers. 6 ms for 50,000 passages.
# tantivy's `directory/footer.rs`: JSON, its length, and a magic number.
_END = struct.Struct("<II")
_MAGIC = 1337

_BLOCK_BYTES = 1 << 20


def damaged_file(directory: Path) -> Path | None:
    """The first file of the index that is not as it was written; None if all are.

    Raises:
        OSError: A file cannot be read.
        ValueError: The list of files cannot be read.
    """
    segments = _segments(directory / "meta.json")
    files = (path for path in directory.iterdir() if path.name.partition(".")[0] in segments)
    return next((path for path in sorted(files) if not _is_whole(path)), None)


def _segments(table: Path) -> set[str]:
    """How the names of the files of each segment begin."""
    try:
        listed = json.loads(table.read_bytes())["segments"]
        return {segment["segment_id"].replace("-", "") for segment in listed}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{table.name} is no table of segments") from error


def _is_whole(path: Path) -> bool:
    size = path.stat().st_size
    if size < _END.size:
        return False
    with path.open("rb") as file:
        file.seek(size - _END.size)
        length, magic = _END.unpack(file.read(_END.size))
        start = size - _END.size - length
        if magic != _MAGIC or start < 0:
            return False
        file.seek(start)
        footer = file.read(length)
        # In blocks, since files may be larger than memory.
        file.seek(0)
        checksum = 0
        while start > 0 and (block := file.read(min(start, _BLOCK_BYTES))):
            checksum = crc32(block, checksum)
            start -= len(block)
    try:
        return bool(json.loads(footer)["crc"] == checksum)
    except (ValueError, KeyError, TypeError):
        return False
