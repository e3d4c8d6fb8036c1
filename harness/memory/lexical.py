"""The lexical lane: BM25 over title and text, by tantivy, in a directory of its own.

It holds words and sequence numbers, nothing that the truth does not have, so a lane that is
missing, damaged or out of step is simply made again.
"""

from __future__ import annotations

import fcntl
import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Self, TypeVar

from harness.errors import MemoryStoreFailed
from harness.memory.checksums import damaged_file
from harness.memory.query_text import read_query
from harness.memory.truth import Progress, Truth
from harness.memory.where import Where, tags_of
from harness.memory.words import analyzer, check_language, spaced

if TYPE_CHECKING:
    import tantivy

# Part of the schema on disk, and a lane of another schema does not open: raise the number with
# every change of what a document or a word is, and old lanes are made again.
_FORMAT = 2

_K1 = 1.2  # tantivy's, as is b = 0.75

_WRITER_HEAP_BYTES = 50_000_000

_TURN_WAIT_S = 30.0
_TURN_POLL_S = 0.005

T = TypeVar("T")

_POSITION = "position"  # no tag: these are hexadecimal


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
            InvalidInput: Nobody knows the truth's language.
        """
        check_language(truth.language)
        lane = cls(directory, truth)
        lane._take_up(progress)
        return lane

    def __init__(self, directory: Path, truth: Truth) -> None:
        """See `open`: this one has read nothing yet."""
        import tantivy  # noqa: PLC0415  # importing harness stays light

        self._tantivy = tantivy
        self._directory = directory
        self._truth = truth
        self._analyzer = analyzer(truth.language)
        name = f"{truth.language}-{_FORMAT}"
        self._schema = (
            tantivy.SchemaBuilder()
            .add_unsigned_field("sequence", indexed=True, fast=True)
            .add_text_field("body", tokenizer_name=name)
            .add_text_field("title", tokenizer_name=name)
            .add_text_field("tag", tokenizer_name="raw", index_option="basic")
            .build()
        )
        self._analyzer_name = name
        self._reading_on = RLock()
        self._index: tantivy.Index
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
        wanted = self._any_of(self._asked(query))
        if where is not None:
            wanted = self._both(wanted, self._tagged(where))
        return self._mended(lambda: self._found(wanted, limit))

    def scores(self, query: str, sequences: Collection[int]) -> dict[int, float]:
        """The same of certain passages, those that have any of the words."""
        if not sequences:
            return {}
        wanted = self._both(self._any_of(self._asked(query)), self._numbered(sequences))
        return self._mended(lambda: self._found(wanted, len(sequences)))

    def ceiling(self, query: str) -> float:
        """What no passage's score for a query exceeds: that of one with nothing but its words.

        Words that are nowhere count as the rarest there are: for more, and in a small store any
        "how" and "does" of a question would hide its answer. A little too low after deletions,
        which tantivy goes on counting until it merges the segment.
        """
        searcher = self._index.searcher()
        count = searcher.num_docs
        most = 0.0
        for clause in self._asked(query):
            for word in clause.words:
                having = max(1, searcher.doc_freq(clause.field, word))
                # tantivy's idf; k1 + 1 is what the part of a word's frequency tends to.
                idf = math.log(1 + (count - having + 0.5) / (having + 0.5))
                most += clause.weight * idf * (_K1 + 1)
        return most

    def rebuild(self, progress: Progress | None = None) -> None:
        """Makes the lane again from the truth.

        Raises:
            MemoryStoreFailed: It cannot be written.
        """
        with self._reading_on:
            self._take_up(progress, anew=True)

    def close(self) -> None:
        """Nothing is held but memory; what was committed stays."""

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
            self._use(self._tantivy.Index(self._schema))
            self._write(self._truth.last_sequence(), progress)
            return
        with self._turn(_TURN_WAIT_S):
            # 3. With what there is to read. Another process may have mended it meanwhile, too.
            if not anew and self._loads():
                with suppress(_Unreadable):
                    self._advance(progress)
                    if self._agrees():
                        return
            # 4. Made again.
            shutil.rmtree(self._directory, ignore_errors=True)
            self._load()
            self._advance(progress)

    def _loads(self) -> bool:
        with suppress(_Unreadable):
            self._load()
            return True
        return False

    def _load(self) -> None:
        """The lane as it lies there, or an empty one."""
        with _translated(self._directory):
            if not (self._directory / "meta.json").exists():
                if self._truth.read_only:
                    raise ValueError("there is none")
                self._directory.mkdir(parents=True, exist_ok=True)
            elif damaged := damaged_file(self._directory):
                raise ValueError(f"{damaged.name} is not as it was written")
            self._use(self._tantivy.Index(self._schema, path=str(self._directory)))

    def _use(self, index: tantivy.Index) -> None:
        index.register_tokenizer(self._analyzer_name, self._analyzer)
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
        # Both have to be known: a lane that has read nothing has missed nothing.
        if 0 < self._position < self._truth.compacted():
            raise _Unreadable("it missed what was removed", path=self._directory)
        if self._position < last:
            self._write(last, progress)

    def _write(self, last: int, progress: Progress | None) -> None:
        """Reads the truth from the position on, and commits: all or nothing."""
        try:
            writer = self._index.writer(heap_size=_WRITER_HEAP_BYTES, num_threads=1)
        except ValueError as error:  # by a program that does not take turns with us
            raise _Busy(f"{error}: try again later", path=self._directory.parent) from error
        with _translated(self._directory):
            if gone := self._truth.removed_between(self._position, last):
                # Not `delete_documents_by_term`, which finds no unsigned number.
                writer.delete_documents_by_query(self._numbered(gone))
            for sequence, passage in self._truth.passages_between(self._position, last):
                document = self._tantivy.Document()
                document.add_unsigned("sequence", sequence)
                document.add_text("body", spaced(passage.searchable))
                document.add_text("title", spaced(passage.title))
                for tag in tags_of(passage):
                    document.add_text("tag", tag)
                writer.add_document(document)
                if progress and sequence % 1000 == 0:
                    progress("reading words", sequence, last)
            if progress:
                progress("reading words", last, last)
            # How far it reaches is a document of its own: one commit, no way to disagree.
            writer.delete_documents_by_term("tag", _POSITION)
            document = self._tantivy.Document()
            document.add_unsigned("sequence", last)
            document.add_text("tag", _POSITION)
            writer.add_document(document)
            writer.commit()
            # Gives the lock back; without the wait merges are cut short and segments pile up.
            writer.wait_merging_threads()
            self._refresh()

    def _refresh(self) -> None:
        """See the last commit, ours or another's, and how far it reaches."""
        self._index.reload()
        searcher = self._index.searcher()
        query = self._tantivy.Query.term_query(self._schema, "tag", _POSITION)
        found = self._sequences(searcher, searcher.search(query, limit=1).hits)
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
            hits = searcher.search(query, limit=limit, count=False).hits
            sequences = self._sequences(searcher, hits)
        scores = (score for score, _ in hits)
        return dict(sorted(zip(sequences, scores, strict=True), key=lambda one: (-one[1], one[0])))

    @staticmethod
    def _sequences(searcher: tantivy.Searcher, hits: Iterable[tuple[Any, Any]]) -> list[int]:
        addresses = [address for _, address in hits]
        return [int(n or 0) for n in searcher.fast_field_values("sequence", addresses)]

    def _asked(self, text: str) -> list[_Clause]:
        """What is looked for, from terms.

        tantivy's own query syntax would make quotes, colons, brackets and hyphens of a question
        into operators or errors.
        """
        asked = read_query(text)
        clauses = [
            _Clause(field="body", words=(word,), weight=count)
            for word, count in Counter(self._words(asked.words)).items()
        ]
        phrases = (self._words(phrase) for phrase in asked.phrases)
        titles = (self._words(title) for title in asked.titles)
        return [
            *clauses,
            *(_Clause(field="body", words=words) for words in phrases if len(words) > 1),
            *(_Clause(field="title", words=words) for words in titles if words),
        ]

    def _words(self, text: str) -> tuple[str, ...]:
        return tuple(self._analyzer.analyze(spaced(text)))

    def _any_of(self, clauses: Iterable[_Clause]) -> tantivy.Query:
        query = self._tantivy.Query
        should = []
        for clause in clauses:
            if len(clause.words) == 1:
                one = query.term_query(
                    self._schema, clause.field, clause.words[0], index_option="freq"
                )
            else:
                one = query.phrase_query(self._schema, clause.field, list(clause.words))
            should.append((self._tantivy.Occur.Should, query.boost_query(one, clause.weight)))
        return query.boolean_query(should)

    def _numbered(self, sequences: Iterable[int]) -> tantivy.Query:
        return self._tantivy.Query.term_set_query(self._schema, "sequence", list(sequences))

    def _tagged(self, where: Where) -> tantivy.Query:
        query, occur = self._tantivy.Query, self._tantivy.Occur
        return query.boolean_query(
            [
                (occur.Must, query.term_set_query(self._schema, "tag", list(tags)))
                for tags in where.tags()
            ]
        )

    def _both(self, scored: tantivy.Query, required: tantivy.Query) -> tantivy.Query:
        query, occur = self._tantivy.Query, self._tantivy.Occur
        return query.boolean_query(
            [(occur.Must, scored), (occur.Must, query.const_score_query(required, 0.0))]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clause:
    """Something to look for."""

    field: str
    """Where."""
    words: tuple[str, ...]
    """One, or several in a row."""
    weight: float = 1.0
    """How much it counts."""


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
        failed = _Unreadable(f"{error} ({remedy})", path=directory.parent)
        failed.is_of_the_disk = any(words in str(error) for words in _OF_THE_DISK)
        raise failed from error


_OF_THE_DISK = ("No space left", "os error 28", "Permission denied", "Read-only file system")
