"""The lexical lane: BM25 over title and text, by tantivy, in a directory of its own.

It holds words and sequence numbers, nothing that the truth does not have, so a lane that is
missing, damaged or out of step is simply made again.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Self, TypeVar

from harness.errors import MemoryStoreFailed
from harness.memory.checksums import damaged_file
from harness.memory.lexical_schema import LexicalSchema, ceiling
from harness.memory.truth import Progress, Truth
from harness.memory.where import Where

if TYPE_CHECKING:
    import tantivy

_WRITER_HEAP_BYTES = 50_000_000

_TURN_WAIT_S = 30.0
_TURN_POLL_S = 0.005

T = TypeVar("T")


class LexicalLane:
    """BM25 (k1 = 1.2, b = 0.75, which tantivy fixes) over words of one language.

    May be used from any thread, and by several processes: searches go on side by side, and see
    what was committed last.
    """

    @classmethod
    def open(cls, directory: Path, truth: Truth, *, progress: Progress | None = None) -> Self:
        """The lane in `directory`, mended where need be, holding all that `truth` holds.

        Where nothing can be written, and the lane is not as it should be, one is made in memory.

        Raises:
            MemoryStoreFailed: That cannot be had.
        """
        lane = cls(directory, truth)
        lane._take_up(progress)
        return lane

    def __init__(self, directory: Path, truth: Truth) -> None:
        """See `open`: this one has read nothing yet."""
        import tantivy  # noqa: PLC0415  # importing harness stays light

        self._tantivy = tantivy
        self._directory = directory
        self._truth = truth
        self._schema = LexicalSchema(truth.language)
        self._reading_on = RLock()
        self._index: tantivy.Index
        self._in_memory = False
        self._position = 0

    @property
    def position(self) -> int:
        """The last write that this lane has read."""
        return self._position

    def catch_up(self, *, until: int) -> None:
        """Reads what was written since, at least as far as the write `until`.

        Raises:
            MemoryStoreFailed: It cannot; what was read before stays searchable.
        """
        last = self._truth.last_sequence()
        if self._position >= last:
            return
        # One thread reads; the others wait for it only if it reads something of theirs.
        if not self._reading_on.acquire(blocking=self._position < until):
            return
        try:
            self._mended(lambda: self._read_on(until))
        finally:
            self._reading_on.release()

    def search(self, query: str, *, limit: int, where: Where | None = None) -> dict[int, float]:
        """Sequence number to BM25 score of the best `limit` passages, best first."""
        wanted = self._schema.any_of(self._schema.asked(query))
        if where is not None:
            wanted = self._schema.both(wanted, self._schema.tagged(where))
        return self._mended(lambda: self._found(wanted, limit))

    def scores(self, query: str, sequences: Collection[int]) -> dict[int, float]:
        """The same of certain passages, those that have any of the words."""
        if not sequences:
            return {}
        wanted = self._schema.any_of(self._schema.asked(query))
        wanted = self._schema.both(wanted, self._schema.numbered(sequences))
        return self._mended(lambda: self._found(wanted, len(sequences)))

    def ceiling(self, query: str) -> float:
        """What the score of a passage with nothing but a query's words tends to.

        Those that are in every text, such as "the", are left out, and those that are nowhere count
        as the rarest there are: a small store cannot tell the one from the other by itself.
        """
        with _translated(self._directory):
            return ceiling(self._index.searcher(), self._schema.matter(query))

    def rebuild(self, progress: Progress | None = None) -> None:
        """Makes the lane again from the truth.

        Raises:
            MemoryStoreFailed: It cannot be written.
        """
        with self._reading_on:
            self._take_up(progress, anew=True)

    def close(self) -> None:
        """Gives memory back; what was committed stays."""
        # What tantivy's threads used and freed stays with the allocator, up to 20 MB a thread:
        # 200 MB in a process that opened some stores. Only glibc keeps it so, and can be told.
        with suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)

    def __len__(self) -> int:
        return int(self._index.searcher().num_docs) - (1 if self._position else 0)

    # --- making it ---------------------------------------------------------------------------

    def _take_up(self, progress: Progress | None, *, anew: bool = False) -> None:
        """The lane as it lies there, if it can be used, or else, or `anew`, out of the truth."""
        # 1. As it lies there, with nothing to read.
        if not anew and self._loads() and self._is_up_to_date():
            return
        # 2. In memory, where nothing may be written.
        if self._truth.read_only:
            index = self._opened(None)
            self._write(index, 0, self._truth.last_sequence(), progress)
            self._use(index)
            self._in_memory = True
            return
        with self._turn(_TURN_WAIT_S):
            # 3. With what there is to read. Another process may have mended it meanwhile, too.
            if not anew and self._loads():
                try:
                    self._advance(progress)
                    if self._agrees():
                        return
                except _Unreadable as error:
                    if error.is_of_the_disk:
                        raise
            # 4. Made again.
            self._make_again(progress)

    def _make_again(self, progress: Progress | None) -> None:
        """Out of the truth, beside the old one, in which searches go on until this one is done."""
        new, old = (self._directory.with_suffix(suffix) for suffix in (".new", ".old"))
        with _translated(self._directory):
            for left in (new, old):  # by who was killed at this
                shutil.rmtree(left, ignore_errors=True)
            try:
                new.mkdir(mode=0o700)
                index = self._opened(new)
                self._write(index, 0, self._truth.last_sequence(), progress)
                # Aside in one step: whoever opens it leaves lock files in what is being emptied.
                if self._directory.is_dir():
                    self._directory.rename(old)
                new.rename(self._directory)
            finally:
                for left in (new, old):
                    shutil.rmtree(left, ignore_errors=True)
        self._load()

    def _loads(self) -> bool:
        with suppress(_Unreadable):
            self._load()
            return True
        return False

    def _load(self) -> None:
        """The lane as it lies there."""
        with _translated(self._directory):
            if damaged := damaged_file(self._directory):
                raise ValueError(f"{damaged.name} is not as it was written")
            self._use(self._opened(self._directory))

    def _opened(self, directory: Path | None) -> tantivy.Index:
        """The index in a directory, or a new one; in memory without a directory."""
        index = self._tantivy.Index(
            self._schema.fields, path=None if directory is None else str(directory)
        )
        index.register_tokenizer(self._schema.tokenizer, self._schema.analyzer)
        # Or else a thread of tantivy's reloads it twice a second, if `meta.json` has changed, and
        # when a file has been cut off meanwhile, the process ends (SIGBUS).
        index.config_reader(reload_policy="manual")
        return index

    def _use(self, index: tantivy.Index) -> None:
        self._index = index
        self._refresh()

    def _is_up_to_date(self) -> bool:
        return self._position == self._truth.last_sequence() and self._agrees()

    def _agrees(self) -> bool:
        """Whether the lane can be this truth's: short of it or ahead of it, it was another's."""
        last, count = self._truth.extent()
        if self._position > last:
            return False
        return self._position < last or len(self) == count

    # --- reading on --------------------------------------------------------------------------

    def _read_on(self, until: int) -> None:
        """Reads to the end; not when others are at it, unless they have to be waited for."""
        with _translated(self._directory):
            self._refresh()
        if self._position >= self._truth.last_sequence():
            return
        if self._in_memory:
            self._advance(None)
            return
        if self._truth.read_only:
            self._take_up(None)
            return
        try:
            with self._turn(_TURN_WAIT_S if self._position < until else 0):
                self._advance(None)
        except _Busy:
            if self._position < until:
                raise

    def _advance(self, progress: Progress | None) -> None:
        """Reads to the end. For whoever has the turn."""
        with _translated(self._directory):
            self._refresh()
        last = self._truth.last_sequence()
        if self._position < last:
            self._write(self._index, self._position, last, progress)
            with _translated(self._directory):
                self._refresh()

    def _write(
        self, index: tantivy.Index, position: int, last: int, progress: Progress | None
    ) -> None:
        """Reads the truth from a position on, and commits: all or nothing."""
        with _translated(self._directory), self._writer(index) as writer:
            gone = self._truth.removed_between(position, last)
            # Only now: a compaction that comes later has not made that list shorter. A lane that
            # has read nothing has missed nothing.
            if 0 < position < self._truth.compacted():
                raise _Unreadable(
                    "it missed what was removed",
                    path=self._directory.parent,
                    code="memory.lane-unreadable",
                )
            if gone:
                # Not `delete_documents_by_term`, which finds no unsigned number.
                writer.delete_documents_by_query(self._schema.numbered(gone))
            for sequence, passage in self._truth.passages_between(position, last):
                writer.add_document(self._schema.document(sequence, passage))
                if progress and sequence % 1000 == 0:
                    progress("reading words", sequence, last)
            if progress:
                progress("reading words", last, last)
            # How far it reaches is a document of its own: one commit, no way to disagree.
            writer.delete_documents_by_query(self._schema.positions())
            writer.add_document(self._schema.position(last))

    @contextmanager
    def _writer(self, index: tantivy.Index) -> Iterator[tantivy.IndexWriter]:
        """What is written inside is committed, or all forgotten."""
        try:
            writer = index.writer(heap_size=_WRITER_HEAP_BYTES, num_threads=1)
        except ValueError as error:
            if "LockBusy" not in str(error):
                raise
            # Not one of us, who take turns.
            raise _Busy(
                "another program is writing to the lexical lane: try again when it is done",
                path=self._directory.parent,
                code="memory.lane-busy",
            ) from error
        try:
            yield writer
            writer.commit()
        except BaseException:
            # Gives the lock back, which would stay locked as long as anyone holds the traceback.
            with suppress(ValueError):
                writer.wait_merging_threads()
            raise
        # Without the wait merges are cut short, and segments pile up.
        writer.wait_merging_threads()

    def _refresh(self) -> None:
        """See the last commit, ours or another's, and how far it reaches."""
        self._index.reload()
        searcher = self._index.searcher()
        hits = searcher.search(self._schema.positions(), limit=1).hits
        found = self._sequences(searcher, hits)
        self._position = found[0] if found else 0

    @contextmanager
    def _turn(self, wait_s: float) -> Iterator[None]:
        """Inside, no other process writes to the lane. Raises `_Busy` when it is not to be had."""
        deadline = time.monotonic() + wait_s
        with _translated(self._directory), self._directory.with_suffix(".lock").open("w") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise _Busy(
                            "another process is writing to the lexical lane: try again when it "
                            "is done",
                            path=self._directory.parent,
                            code="memory.lane-busy",
                        ) from None
                time.sleep(_TURN_POLL_S)
            yield

    def _mended(self, act: Callable[[], T]) -> T:
        """What `act` returns; when the lane turns out to be damaged, after it was made again."""
        try:
            return act()
        except _Unreadable as error:
            if error.is_of_the_disk:
                raise
            with self._reading_on:
                self._take_up(None)
            return act()

    # --- searching ---------------------------------------------------------------------------

    def _found(self, query: tantivy.Query, limit: int) -> dict[int, float]:
        with _translated(self._directory):
            searcher = self._index.searcher()
            # tantivy makes room for as many hits as it is asked for, and where there is no such
            # room, the process ends.
            most = max(1, min(limit, searcher.num_docs))
            hits = searcher.search(query, limit=most, count=False).hits
            sequences = self._sequences(searcher, hits)
        scores = (score for score, _ in hits)
        return dict(sorted(zip(sequences, scores, strict=True), key=lambda one: (-one[1], one[0])))

    @staticmethod
    def _sequences(searcher: tantivy.Searcher, hits: Iterable[tuple[Any, Any]]) -> list[int]:
        addresses = [address for _, address in hits]
        return [int(n or 0) for n in searcher.fast_field_values("sequence", addresses)]


class _Busy(MemoryStoreFailed):
    """Another process writes to the lane."""


class _Unreadable(MemoryStoreFailed):
    """What lies there is no lane, or a damaged one, or one that may not be touched."""

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
            f"store and delete '{directory.name}', which is made again from the truth"
        )
        failed = _Unreadable(
            f"{error} ({remedy})", path=directory.parent, code="memory.lane-unreadable"
        )
        failed.is_of_the_disk = _number_of(error) in _OF_THE_DISK
        raise failed from error


def _number_of(error: BaseException) -> int | None:
    """What the operating system calls it, of its errors."""
    if isinstance(error, OSError):
        return error.errno
    said = re.search(r"os error (\d+)", str(error))
    return int(said[1]) if said else None


_OF_THE_DISK = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
}
