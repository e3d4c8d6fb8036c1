"""The lexical index: BM25 over title and text, by tantivy, in a directory of its own."""

from __future__ import annotations

import ctypes
import fcntl
import json
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
        self._directory = directory
        self._primary = primary
        self._schema = LexicalSchema(primary.language)
        # Re-entrant, since a thread that finds the index damaged while it reads makes it again.
        self._reading = RLock()
        self._index: tantivy.Index
        self.position = 0
        self._seen = 0  # the last write that a search met
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
        if not self._reading.acquire(blocking=self.position < until):
            return
        try:
            self._with_repair(lambda: self._read_new(until))
        finally:
            self._reading.release()

    def search(
        self, query: str, *, limit: int, where: WantedTags | None = None, until: int = 0
    ) -> dict[int, float]:
        """Sequence number to BM25 score of the best `limit` passages, best first.

        It considers all writes up to `until` at least: those that the index has not read are
        scored here if they are few, and read before if they are many.
        """
        clauses = self._schema.clauses(query)
        wanted = self._schema.any_of(clauses)
        if where is not None:
            wanted = self._schema.both(wanted, self._schema.tagged(where))
        # Read before the search: a passage committed in between is then found twice, and `|=` keeps
        # one score. Read after it, it would be found by neither.
        recent, removed = self._unread(until)
        # Removed passages are still in the index; they are left out below.
        scores = self._with_repair(lambda: self._scores(wanted, limit + len(removed)))
        if recent:
            with _translated(self._directory):
                searcher = self._index.searcher()
                scores |= self._schema.recent_scores(
                    recent, clauses, where=where, searcher=searcher
                )
        ranked = sorted(scores.items(), key=lambda scored: (-scored[1], scored[0]))
        return dict([scored for scored in ranked if scored[0] not in removed][:limit])

    def _unread(self, until: int) -> tuple[dict[int, Passage], set[int]]:
        """The passages stored since the last commit by number, and the numbers of removed ones.

        If there are too many to score one by one, the index reads them instead.
        """
        low = self.position
        high = max(until, self._primary.seen_sequence())
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
        # Stop words are left out by a list: words that are in no passage count as the rarest, which
        # in a small store may be any word.
        with _translated(self._directory):
            return ceiling(self._index.searcher(), self._schema.content_words(query))

    def rebuild(self, progress: Progress | None = None) -> None:
        """Makes the index again from the primary store."""
        with self._reading, self._turn(_TURN_WAIT_S):
            self._make_again(progress)

    def close(self) -> None:
        """Gives memory back; what was committed stays."""
        # glibc keeps the memory that tantivy's threads have freed, up to 20 MB a thread: 200 MB in
        # a process that opened some stores. Other libraries do not, and have no `malloc_trim`.
        with suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)

    def __len__(self) -> int:
        # The index's position is a document, too.
        return int(self._index.searcher().num_docs) - (1 if self.position else 0)

    # --- making it ---------------------------------------------------------------------------

    def _prepare(self, progress: Progress | None) -> None:
        """Opens the index if it is usable; makes it if it is not."""
        # 1. Take the index as it is on disk, if there is nothing to read.
        with suppress(_Unreadable):
            self._load()
            if self.position == self._primary.last_sequence() and self._agrees():
                return
        with self._turn(_TURN_WAIT_S):
            # 2. Read new writes. Another process may have repaired the index meanwhile, too.
            with suppress(_Unreadable):
                self._load()
                self._advance(progress)
                if self._agrees():
                    return
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
                index = self._schema.opened(new)
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

    def _load(self) -> None:
        """Opens the index, and checks that its files are as they were written."""
        with _translated(self._directory):
            if damaged := damaged_file(self._directory):
                raise ValueError(f"{damaged.name} is not as it was written")
            self._index = self._schema.opened(self._directory)
        self._refresh()

    def _agrees(self) -> bool:
        """Whether the index can belong to this store: an index that is ahead of it cannot."""
        last, count = self._primary.extent()
        return self.position < last or (self.position == last and len(self) == count)

    # --- catching up -------------------------------------------------------------------------

    def _read_new(self, until: int) -> None:
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
            removed = self._primary.removed_between(position, last) if position else ()
            if removed:
                # Not `delete_documents_by_term`, which finds no unsigned number.
                writer.delete_documents_by_query(self._schema.numbered(removed))
            for sequence, passage in self._primary.passages_between(position, last):
                writer.add_document(self._schema.document(sequence, passage))
                if progress and sequence % 1000 == 0:
                    progress("reading words", sequence, last)
            if progress:
                progress("reading words", last, last)
            # The position is a document too, so that the commit makes it and the passages agree.
            writer.delete_documents_by_query(self._schema.positions())
            writer.add_document(self._schema.position(last))

    @contextmanager
    def _writer(self, index: tantivy.Index) -> Iterator[tantivy.IndexWriter]:
        """Commits all that is written inside, or nothing if that raises."""
        writer = index.writer(heap_size=_WRITER_HEAP_BYTES, num_threads=1)
        try:
            yield writer
            writer.commit()
        except BaseException:
            # Releases the lock, which would stay locked as long as the traceback refers to the
            # writer.
            with suppress(ValueError):
                writer.wait_merging_threads()
            raise
        # Without the wait merges are cut short, and segments pile up.
        writer.wait_merging_threads()

    def _refresh(self) -> None:
        """Loads the last commit, of this or another process, and the position that it has."""
        with _translated(self._directory):
            self._index.reload()
        self.position = next(iter(self._scores(self._schema.positions(), 1)), 0)

    @contextmanager
    def _turn(self, wait_s: float) -> Iterator[None]:
        """Keeps other processes from writing to the index; raises `_Busy` after `wait_s`."""
        deadline = time.monotonic() + wait_s
        with _translated(self._directory), self._directory.with_suffix(".lock").open("w") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise _Busy(
                            "another process is writing to the lexical index; try again when it is "
                            "done",
                            path=self._directory.parent,
                            code="memory.lane-busy",
                        ) from None
                time.sleep(_TURN_POLL_S)
            yield

    def _with_repair(self, action: Callable[[], T]) -> T:
        """Calls `action`; if the index is damaged, makes the index again and calls it once more."""
        try:
            return action()
        except _Unreadable:
            with self._reading:
                self._prepare(None)
            return action()

    # --- searching ---------------------------------------------------------------------------

    def _scores(self, query: tantivy.Query, limit: int) -> dict[int, float]:
        """Sequence number to score of the best `limit` documents, best first."""
        with _translated(self._directory):
            searcher = self._index.searcher()
            # tantivy allocates room for `limit` hits, and ends the process if there is no room.
            most_hits = max(1, min(limit, searcher.num_docs))
            hits = searcher.search(query, limit=most_hits, count=False).hits
            addresses: list[Any] = [address for _, address in hits]
            sequences = searcher.fast_field_values("sequence", addresses)
        return {int(n or 0): score for n, (score, _) in zip(sequences, hits, strict=True)}


# --- errors ----------------------------------------------------------------------------------


class _Busy(MemoryStoreFailed):
    """Another process writes to the index."""


class _Unreadable(MemoryStoreFailed):
    """There is no index, or a damaged one, or one that may not be read or written."""


@contextmanager
def _translated(directory: Path) -> Iterator[None]:
    """Translates tantivy's errors into `_Unreadable`."""
    try:
        yield
    except BaseException as error:
        # tantivy raises ValueError for the failures that it foresees. Some damaged files make it
        # panic, which arrives as a BaseException of a class that cannot be imported.
        is_panic = type(error).__name__ == "PanicException"
        if not is_panic and not isinstance(error, (OSError, ValueError)):
            raise
        remedy = (
            f"see that the disk has room and '{directory.name}' may be written; if so, close the "
            f"store and delete '{directory.name}', which is made again from the passages"
        )
        raise _Unreadable(
            f"{error} ({remedy})", path=directory.parent, code="memory.lane-unreadable"
        ) from error


# --- checksums -------------------------------------------------------------------------------

# tantivy ends each file of a segment with a footer that holds the checksum of the content, but does
# not compare the two, so a damaged file would give wrong answers. Comparing them takes 6 ms for
# 50,000 passages. The footer is JSON, its length, and a magic number (`directory/footer.rs`).
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
    for path in sorted(directory.iterdir()):
        if path.name.partition(".")[0] in segments and not _is_whole(path):
            return path
    return None


def _segments(table: Path) -> set[str]:
    """The names of the segments' files, up to the first dot."""
    try:
        segments = json.loads(table.read_bytes())["segments"]
        return {segment["segment_id"].replace("-", "") for segment in segments}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{table.name} is no table of segments") from error


def _is_whole(path: Path) -> bool:
    """Whether the content of a file of a segment has the checksum in the footer."""
    size = path.stat().st_size
    if size < _END.size:
        return False
    with path.open("rb") as file:
        file.seek(size - _END.size)
        footer_length, magic = _END.unpack(file.read(_END.size))
        content_length = size - _END.size - footer_length
        if magic != _MAGIC or content_length < 0:
            return False
        file.seek(content_length)
        footer = file.read(footer_length)
        # In blocks, since files may be larger than memory.
        file.seek(0)
        checksum = 0
        remaining = content_length
        while remaining > 0 and (block := file.read(min(remaining, _BLOCK_BYTES))):
            checksum = crc32(block, checksum)
            remaining -= len(block)
    try:
        return bool(json.loads(footer)["crc"] == checksum)
    except (ValueError, KeyError, TypeError):
        return False
