"""The memory store: passages go in, the best few for a query come out.

`primary` holds the passages (SQLite or PostgreSQL); `lexical` and `vector_index` are made from it
and follow it; `ranking` weighs what both propose.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from heapq import nsmallest
from numbers import Integral
from pathlib import Path
from threading import Event, Lock
from typing import Self, get_args

import numpy as np

from harness.errors import InferenceError, InvalidInput, did_you_mean
from harness.memory.database import Place, place_of
from harness.memory.embedder import (
    Embedder,
    UnrelatedCosines,
    Vectors,
    WordLlamaEmbedder,
    embed,
    has_wordllama,
    unrelated_cosines,
)
from harness.memory.guard import Guard, refusal_of
from harness.memory.lexical import LexicalIndex
from harness.memory.minilm import MiniLmEmbedder
from harness.memory.passage import Added, Filter, Hit, Hits, Passage, Stats, WantedTags, wanted_tags
from harness.memory.primary import Numbers, PrimaryStore, Progress, judgement
from harness.memory.ranking import Mode, fuse, is_relevant, novelty, recency, score
from harness.memory.upkeep import Upkeep
from harness.memory.vector_index import VectorIndex

# How many passages each index proposes for fusion, at least. A passage that the lexical index does
# not propose counts 0 by its words. On the Cranfield collection nDCG@10 is the same with 40, 100
# and all 1,400.
_PROPOSALS = 100

# How many passages are ranked for each that is returned, and at least.
_CANDIDATES_PER_HIT = 3
_LEAST_CANDIDATES = 12

# Passages that are embedded at a time in the background. A slow embedder takes a second for its
# few, and what is under way when the store closes is lost. So few are embedded as they are added,
# and the next search finds their meaning.
_BATCH = 256
_FEW = 16


class MemoryStore:
    """Passages in a directory or in PostgreSQL, searched by words, by meaning, or both.

    Every method may be called from any thread, and several processes may have the store open:
    searches run in parallel, writes take turns. `add` and `delete` are durable when they return,
    and the next search of this store sees them. Another process sees them as soon as it has read
    all earlier writes; on another machine, after the server's notification.
    """

    def __init__(
        self,
        primary: PrimaryStore,
        lexical: LexicalIndex,
        vector: VectorIndex,
        *,
        embedder: Embedder,
        merge: bool,
        guard: Guard | None,
        progress: Progress | None,
    ) -> None:
        self._primary = primary
        self._lexical = lexical
        self._vector = vector
        self._embedder = embedder
        self._merge = merge
        self._guard = guard
        self._progress: Progress = progress or (lambda *_: None)
        self._written = 0  # this store's last write, which its later searches must see
        self._written_lock = Lock()
        self._embeds_later = bool(getattr(embedder, "in_background", False))
        self._batch = _FEW if self._embeds_later else _BATCH
        self._upkeep = Upkeep(self._maintain)
        self._start_upkeep()
        self._primary.database.follow(self._read_remote_writes)

    @classmethod
    def open(
        cls,
        path: Place | str,
        *,
        embedder: Embedder | None = None,
        language: str | None = None,
        merge: bool = True,
        guard: Guard | None = None,
        cache: Path | None = None,
        progress: Progress | None = None,
        make: bool = True,
    ) -> Self:
        """Opens the store at a place, or creates one there.

        Indexes that are behind catch up; damaged ones are rebuilt. Passages without a vector of
        this embedder are embedded in the background: until then, only words find them.

        Args:
            path: The directory, or `postgresql://user@host/database`, without a password: that is
                taken from `PGPASSWORD` or `~/.pgpass`.
            embedder: If None, `WordLlamaEmbedder`, or `MiniLmEmbedder` where that has no build.
            language: Language for stemming, such as `german`, or `none`. If None: English for a new
                store, else the store's own.
            merge: Whether a passage with the words of a stored one is merged into it: with equal
                title and text, but for Unicode's forms of a letter and white space around them.
            guard: Says why a passage may not be stored, or None if it may; called for each.
            cache: Directory for indexes of a PostgreSQL store; `harness/memory` in
                `XDG_CACHE_HOME` or `~/.cache` if None.
            progress: Called with the step, the amount done and the total; from another thread for
                background work.
            make: Whether to create a missing store.

        Raises:
            MemoryStoreFailed: It cannot be read or made.
            InvalidInput: The language is unknown or not the store's, the url is invalid, or there
                is no store.
            ConfigurationInvalid: psycopg is not installed.
        """
        embedder = embedder or (WordLlamaEmbedder() if has_wordllama() else MiniLmEmbedder())
        primary = PrimaryStore.open(place_of(path), language=language, cache=cache, make=make)
        try:
            lexical = LexicalIndex(primary.directory / "lexical", primary, progress=progress)
            vector = VectorIndex(primary, embedder)
            vector.catch_up()
        except BaseException:
            primary.close()
            raise
        return cls(
            primary, lexical, vector, embedder=embedder, merge=merge, guard=guard, progress=progress
        )

    # --- writing -----------------------------------------------------------------------------

    def add(self, passages: Iterable[Passage]) -> Added:
        """Stores all of the passages or, if it raises, none.

        A passage with a known id changes nothing. A passage with the words of a stored one is not
        stored (see `open`), nor is one with invisible characters, or that the guard refuses.

        Raises:
            MemoryStoreFailed: They cannot be written.
            InvalidInput: The embedder did not return vectors.
        """
        # 1. Read the passages before anything is locked: the iterable may take long, or search in
        #    this store.
        checked = [(passage, refusal_of(passage, self._guard)) for passage in passages]
        accepted = [passage for passage, refusal in checked if refusal is None]
        refused = tuple(refusal for _, refusal in checked if refusal is not None)
        # 2. Make vectors for all that are new.
        embeds_later = self._embeds_later and len(accepted) > _FEW
        vectors_by_id = {} if embeds_later else self._vectors_of_new(accepted)
        # 3. Write into the primary store, from which the indexes read at the next search.
        added = self._primary.add(
            [(passage, vectors_by_id.get(passage.id)) for passage in accepted],
            embedder=self._embedder,
            merge=self._merge,
        )
        self._record_write()
        if embeds_later:
            self._vector.catch_up()
            self._start_upkeep()
        return replace(added, refused=refused)

    def delete(self, *ids: str) -> int:
        """Removes passages; returns how many existed."""
        deleted = self._primary.delete(ids)
        self._record_write()
        return deleted

    # --- reading -----------------------------------------------------------------------------

    def damaged(self) -> list[str]:
        """Reads all passages; the ids of those that are not as they were stored."""
        return self._primary.damaged()

    def get(self, id: str) -> Passage | None:  # noqa: A002 - the word that passages have for it
        """The passage with this id; None if there is none."""
        return self._primary.get(id)

    def search(
        self,
        query: str,
        *,
        limit: int = 4,
        mode: Mode = "hybrid",
        where: Filter | None = None,
        half_life_days: float | None = None,
    ) -> Hits:
        """The best `limit` passages for a query, best first; fewer if fewer are relevant.

        Any text is a query; a blank one finds nothing. While the vector index is unavailable, only
        words count, and the hits say why.

        Args:
            query: `"several words"` in quotes, and `title:word`, count extra.
            limit: How many, at most.
            mode: By words and meaning, by words, or by meaning.
            where: Only passages whose metadata, `source` or `title` have these values; a list of
                values means any of them, and `{">=": 2024, "<": 2026}` all numbers in this range.
            half_life_days: The age at which a passage's relevance counts half; None if age does
                not count.

        Raises:
            InvalidInput: The limit, mode, filter or half-life is invalid.
            MemoryStoreFailed: The store cannot be read.
        """
        limit = _checked_limit(limit)
        if mode not in get_args(Mode):
            raise InvalidInput(
                f"no search mode '{mode}'; {did_you_mean(mode, get_args(Mode))}",
                code="memory.unknown-mode",
            )
        is_valid = isinstance(half_life_days, int | float) and 0 < half_life_days < math.inf
        if half_life_days is not None and not is_valid:
            raise InvalidInput(
                f"half_life_days is {half_life_days!r}; it must be a number greater than 0",
                code="memory.half-life-not-positive",
            )
        tags = wanted_tags(where, self._primary.tags_within) if where else None
        # A model's reply may hold half of a surrogate pair, which no function below can encode.
        query = query.encode(errors="replace").decode()
        if not query.strip():
            return Hits([])
        hits = self._ranked(query, mode, limit=limit, where=tags, half_life_days=half_life_days)
        if tags and not hits:
            # Only without hits, since this is one more query.
            hits.none_match = not len(self._primary.tagged(tags))
        self._start_upkeep()
        return hits

    def neighbors(self, passage: Passage, *, count: int = 1) -> list[Passage]:
        """A passage with `count` passages before it and `count` after it, in order.

        A turn's neighbors have the next positions in its conversation. Another passage's neighbors
        have the same source, in the order in which they were stored; a passage without a source has
        none.

        Raises:
            InvalidInput: The count is negative.
            MemoryStoreFailed: The store cannot be read.
        """
        count = int(count)
        if count < 0:
            raise InvalidInput(
                f"count is {count}; it must not be negative", code="memory.count-negative"
            )
        turn = passage.turn
        if turn is not None:
            position = turn.position
            within = {">=": position - count, "<=": position + count}
            same = self._tagged({"conversation": turn.conversation, "position": within})
            # Not by number alone, since turns may be stored in any order. Bounds are rounded, and
            # the metadata may have a position, too.
            places = [
                (near.turn.position, number, near)
                for number, near in self._primary.fetch(same).items()
                if near.turn and abs(near.turn.position - position) <= count
            ]
            return [near for *_, near in sorted(places)]
        sequence = self._primary.known([passage]).get(passage.id)
        if not passage.source or sequence is None:
            return [passage]
        same_source = self._tagged({"source": passage.source})
        place = int(np.searchsorted(same_source, sequence))
        passages = self._primary.fetch(same_source[max(0, place - count) : place + count + 1])
        return [passages[number] for number in sorted(passages)]

    def _tagged(self, where: Filter) -> Numbers:
        """The sequence numbers of the passages that satisfy a filter, ascending."""
        return self._primary.tagged(wanted_tags(where, self._primary.tags_within))

    def novelty(self, texts: Iterable[str]) -> float:
        """How new these texts are to the store: the mean over the texts, 0 to 10.

        A text stored word for word counts 0; one no nearer to a stored passage than unrelated texts
        are to each other counts 10. Without texts: 0. With an empty store: 10.

        Raises:
            MemoryStoreFailed: The vector index is unavailable.
        """
        # Passages without a vector are embedded first: they are the newest, which these texts are
        # most likely to repeat.
        self._vector.catch_up()
        if self._vector.missing and self._vector.unavailable is None:
            self._start_upkeep()
            self._upkeep.wait()
        batch = embed(self._embedder, list(texts))
        self._vector.catch_up()
        nearest = np.array([self._nearest(vector) for vector in batch], dtype=np.float32)
        return novelty(nearest, unrelated=self._unrelated.limit)

    def stats(self) -> Stats:
        """The contents of the store, and the state of its indexes."""
        self._vector.catch_up()
        return Stats(
            passages=len(self._primary),
            language=self._primary.language,
            embedder=self._embedder.name,
            dimensions=self._embedder.dimensions,
            unembedded=self._primary.count_without_vector(self._embedder),
            vector_bytes=self._vector.resident_bytes,
            disk_bytes=self._primary.database.size_bytes() + _bytes_in(self._primary.directory),
        )

    @property
    def behind(self) -> int | None:
        """How many known writes the local indexes have not read; None if no server reports it."""
        last = self._primary.database.seen()
        if last is None:
            return None
        return max(0, last - min(self._lexical.position, self._vector.position))

    def __len__(self) -> int:
        return len(self._primary)

    # --- searching ---------------------------------------------------------------------------

    def _ranked(
        self,
        query: str,
        mode: Mode,
        *,
        limit: int,
        where: WantedTags | None,
        half_life_days: float | None,
    ) -> Hits:
        # 1. Ask each index for proposals, if it is available.
        lexical_scores, cosines, fallback = self._scores(query, mode, limit=limit, where=where)
        # 2. Fuse both scores, and read the best passages. If age counts, read all, since a recent
        #    passage may be among the best although many are more relevant.
        mean, unrelated = (0.0, 0.0) if cosines is None else self._unrelated
        fused = fuse(lexical_scores, cosines, least_cosine=mean)
        least = max(_LEAST_CANDIDATES, _CANDIDATES_PER_HIT * limit)
        count = least if half_life_days is None else len(fused)
        best = nsmallest(count, fused, key=lambda sequence: (-fused[sequence], sequence))
        # With their texts, since a second question to a server would take longer than reading them.
        rows = self._primary.rows(best)
        # 3. Rank these by relevance, age and quality; of equals, the older goes first.
        ceiling = 0.0 if lexical_scores is None else self._lexical.ceiling(query)
        lexical_scores = lexical_scores or {}
        cosines = cosines or {}
        now = datetime.now(UTC)
        scores: dict[int, float] = {}
        for sequence, row in rows.items():
            quality, created = judgement(row)
            lexical, cosine = lexical_scores.get(sequence), cosines.get(sequence)
            if is_relevant(lexical, cosine, unrelated=unrelated, ceiling=ceiling):
                age_factor = recency(created, half_life_days=half_life_days, now=now)
                scores[sequence] = score(fused[sequence] * age_factor, quality)
        ranked = sorted(scores, key=lambda sequence: (-scores[sequence], sequence))
        hits = [
            Hit(
                passage=self._primary.whole(rows[sequence]),
                rank=rank,
                score=scores[sequence],
                fused=fused[sequence],
                lexical=lexical_scores.get(sequence),
                vector=cosines.get(sequence),
            )
            for rank, sequence in enumerate(ranked[:limit], start=1)
        ]
        return Hits(hits, fallback=fallback)

    def _scores(
        self, query: str, mode: Mode, *, limit: int, where: WantedTags | None
    ) -> tuple[dict[int, float] | None, dict[int, float] | None, str | None]:
        """BM25 scores and cosines by sequence number, and why there are no cosines.

        The first or second is None if that index was not asked, or is unavailable.
        """
        # Each index proposes more than are returned, since only what both propose can be fused.
        depth = max(_CANDIDATES_PER_HIT * limit, _PROPOSALS)
        # `until`, so that the search sees all that this store has written.
        search_words = partial(
            self._lexical.search, query, limit=depth, where=where, until=self._written
        )
        # The lexical index goes first, so that the vector index can score all that it proposes.
        lexical = None if mode == "vector" else search_words()
        if mode == "lexical":
            return lexical, None, None
        cosines, reason = self._cosines(query, depth, including=lexical or (), where=where)
        if lexical is None and reason is not None:
            lexical = search_words()
        return lexical, cosines, reason

    def _cosines(
        self, query: str, depth: int, *, including: Collection[int], where: WantedTags | None
    ) -> tuple[dict[int, float] | None, str | None]:
        """Cosines to the query by sequence number and None, or None and why there are none."""
        self._vector.catch_up()
        matrix = self._vector.matrix
        if matrix is None:
            return None, self._vector.unavailable or "it is closed"
        try:
            (embedded,) = embed(self._embedder, [query])
            # Computed here and not in `_ranked`, since here a failure falls back to words.
            _ = self._unrelated
        except InferenceError as error:
            return None, f"the query cannot be embedded: {error}"
        within = None if where is None else self._primary.tagged(where)
        return matrix.search(embedded, limit=depth, including=including, within=within), None

    @cached_property
    def _unrelated(self) -> UnrelatedCosines:
        return unrelated_cosines(self._embedder)

    def _nearest(self, vector: Vectors) -> float:
        """The greatest cosine of a passage to a vector (d,) of unit length; -1 without passages."""
        if not vector.any():
            return 1.0  # a text without content is not new
        matrix = self._vector.matrix
        if matrix is None:
            reason = self._vector.unavailable
            raise self._primary.database.failed(
                f"novelty is measured by the vector index, which is unavailable ({reason})",
                code="memory.lane-away",
            )
        return max(matrix.search(vector, limit=1).values(), default=-1.0)

    # --- upkeep ------------------------------------------------------------------------------

    def rebuild(self, progress: Progress | None = None) -> None:
        """Rebuilds the lexical index, and embeds passages without a vector.

        Raises:
            MemoryStoreFailed: They cannot be written.
        """
        self._lexical.rebuild(progress)
        before = self._progress
        self._progress = progress or before
        try:
            # By the one thread that embeds: a second would embed the same passages again.
            self.wait()
        finally:
            self._progress = before
        # Nothing is left, unless that thread failed: then this raises the reason.
        self._vector.embed_missing(stop=Event(), batch=self._batch, progress=progress)

    def compact(self) -> None:
        """Frees the space of deleted passages, and of other embedders' vectors."""
        self._primary.compact(self._embedder)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the indexes have read all writes, and all passages are embedded.

        Returns:
            False if embedding takes longer than `timeout_s`, or fails.
        """
        last = self._primary.last_sequence()
        self._lexical.catch_up(until=last)
        self._vector.catch_up(until=last)
        end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        # Passages that were added as the work ended are left to the next turn.
        while (rest_s := end_s - time.monotonic()) > 0 and self._start_upkeep():
            self._upkeep.wait(None if timeout_s is None else rest_s)
            self._vector.catch_up()
        return not self._vector.missing

    def close(self) -> None:
        """Closes files and ends threads. Nothing is lost if this is never called."""
        self._upkeep.close()
        self._vector.close()
        self._lexical.close()
        self._primary.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _vectors_of_new(self, passages: Sequence[Passage]) -> dict[str, Vectors]:
        """The vectors of the passages that are not stored yet, by id."""
        stored = self._primary.known(passages)
        new = {passage.id: passage for passage in passages if passage.id not in stored}
        vectors = embed(self._embedder, [passage.searchable for passage in new.values()])
        return dict(zip(new, vectors, strict=True))

    def _record_write(self) -> None:
        with self._written_lock:  # otherwise a thread could replace a higher number by a lower one
            self._written = self._primary.seen_sequence()

    def _start_upkeep(self) -> bool:
        """Starts the upkeep if there is work for it; returns whether it is under way."""
        is_behind = self._vector.missing or self._lexical.is_behind
        return bool(is_behind) and self._upkeep.start()

    def _read_remote_writes(self) -> None:
        if self.behind:
            self._upkeep.start()

    def _maintain(self, stop: Event) -> None:
        """The work of the upkeep: reads new writes, and embeds passages without a vector."""
        self._lexical.catch_up(until=0)
        self._vector.embed_missing(stop=stop, batch=self._batch, progress=self._report)

    def _report(self, step: str, done: int, total: int) -> None:
        self._progress(step, done, total)  # looked up now, since `rebuild` may have set another


def _checked_limit(limit: object) -> int:
    # `Integral` and not `int`, so that numpy's integers are accepted.
    if not isinstance(limit, Integral) or int(limit) < 1:
        raise InvalidInput(
            f"limit is {limit!r}; it must be a whole number, at least 1",
            code="memory.limit-not-positive",
        )
    return int(limit)  # since three times np.uint8(100) is 44


def _bytes_in(directory: Path) -> int:
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):  # the files of indexes come and go
                total += Path(parent, name).stat().st_size
    return total
