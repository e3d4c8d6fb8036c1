"""The lexical lane: BM25 over title and text, by tantivy, in a directory of its own.

It holds words and sequence numbers, nothing that the truth does not have, so a lane that is
missing, damaged or out of step is simply made again.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from harness.errors import MemoryStoreFailed
from harness.memory.truth import Truth

if TYPE_CHECKING:
    import tantivy

# Part of the schema on disk, and a lane of another schema does not open: raise the number with
# every change of `_english`, and old lanes are made again.
_ANALYZER = "english-1"

_WRITER_HEAP_BYTES = 50_000_000


class LexicalLane:
    """BM25 (k1 = 1.2, b = 0.75, which tantivy fixes) over stemmed English words."""

    @classmethod
    def open(cls, directory: Path, truth: Truth) -> Self:
        """The lane in `directory`, mended where need be, holding all that `truth` holds.

        Raises `MemoryStoreFailed` when that cannot be had.
        """
        # 1. As it lies there, unless it is damaged or of another schema.
        with suppress(_Unreadable):
            lane = cls(directory)
            count = len(truth)
            lane.catch_up(truth)
            # Short of the truth or ahead of it, the lane belonged to another.
            if len(lane) >= count and lane._last_sequence <= truth.last_sequence():
                return lane
        # 2. Made again.
        with _translated(directory):
            shutil.rmtree(directory)
        lane = cls(directory)
        lane.catch_up(truth)
        return lane

    def __init__(self, directory: Path) -> None:
        """The lane as it lies there, or an empty one."""
        import tantivy  # noqa: PLC0415  # importing harness stays light

        self._tantivy = tantivy
        self._directory = directory
        self._analyzer = _english()
        self._schema = (
            tantivy.SchemaBuilder()
            .add_unsigned_field("sequence", stored=True, fast=True)
            # "freq" leaves out positions, since no phrase is ever looked for.
            .add_text_field("body", tokenizer_name=_ANALYZER, index_option="freq")
            .build()
        )
        with _translated(directory):
            directory.mkdir(parents=True, exist_ok=True)
            self._index = tantivy.Index(self._schema, path=str(directory))
            self._index.register_tokenizer(_ANALYZER, self._analyzer)
            self._refresh()

    def catch_up(self, truth: Truth) -> None:
        """Read what the truth has beyond this lane's last sequence number."""
        if self._last_sequence >= truth.last_sequence():
            return
        try:
            writer = self._index.writer(heap_size=_WRITER_HEAP_BYTES, num_threads=1)
        except ValueError as error:
            remedy = "another process is writing to the lexical lane: try again when it is done"
            raise MemoryStoreFailed(f"{error} ({remedy})", path=self._directory.parent) from error
        with _translated(self._directory):
            # 1. Only now, as the one writer, is the last sequence number sure to stay the last.
            self._refresh()
            # 2. All or nothing: what is not committed is gone with the writer.
            for sequence, passage in truth.passages_after(self._last_sequence):
                document = self._tantivy.Document()
                document.add_unsigned("sequence", sequence)
                document.add_text("body", passage.searchable)
                writer.add_document(document)
            writer.commit()
            # 3. Gives the lock back; without the wait merges are cut short and segments pile up.
            writer.wait_merging_threads()
            self._refresh()

    def search(self, query: str, *, limit: int) -> dict[int, float]:
        """Sequence number to BM25 score of the best `limit` passages, best first."""
        with _translated(self._directory):
            searcher = self._index.searcher()
            found = searcher.search(self._any_of(query), limit=limit, count=False).hits
            return {searcher.doc(address)["sequence"][0]: score for score, address in found}

    def __len__(self) -> int:
        return self._index.searcher().num_docs

    def _refresh(self) -> None:
        """See the last commit, ours or another's, and how far it reaches."""
        self._index.reload()
        # Asked of the index and not kept in a file beside it: one commit, no way to disagree.
        everything = self._tantivy.Query.all_query()
        last = self._index.searcher().search(everything, limit=1, order_by_field="sequence").hits
        self._last_sequence: int = last[0][0] if last else 0

    def _any_of(self, text: str) -> tantivy.Query:
        """A query for any word of the text, each as often as it stands there.

        Built from terms: tantivy's own query syntax would make quotes, colons, brackets and
        hyphens of a question into operators or errors.
        """
        query = self._tantivy.Query
        clauses = []
        for word, count in Counter(self._analyzer.analyze(text)).items():
            term = query.term_query(self._schema, "body", word, index_option="freq")
            clauses.append((self._tantivy.Occur.Should, query.boost_query(term, float(count))))
        return query.boolean_query(clauses)


def _english() -> tantivy.TextAnalyzer:
    """Words as runs of letters and digits, up to 40 bytes, lower-cased, Porter-stemmed.

    No stop words are dropped: BM25 already weighs them near nothing, and "to be" stays findable.
    """
    import tantivy  # noqa: PLC0415  # importing harness stays light

    return (
        tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
        .filter(tantivy.Filter.remove_long(40))
        .filter(tantivy.Filter.lowercase())
        .filter(tantivy.Filter.stemmer("english"))
        .build()
    )


class _Unreadable(MemoryStoreFailed):
    """What lies there is no lane, or a damaged one, or one that may not be touched."""


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
        raise _Unreadable(f"{error} ({remedy})", path=directory.parent) from error
