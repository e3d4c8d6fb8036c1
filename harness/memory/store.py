"""The memory store: passages go in, the best few for a query come out.

`primary` holds the passages (SQLite or PostgreSQL); `lexical` and `vector_index` are made from it
and follow it; `ranking` weighs what both propose.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from heapq import nsmallest
from numbers import Integral
from pathlib import Path
from threading import Event, Lock
from types import TracebackType
from typing import Self, get_args

import numpy as np

from harness.errors import InferenceError, InvalidInput, MemoryStoreFailed, did_you_mean
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
from harness.memory.passage import (
    Added,
    Filter,
    Hit,
    Hits,
    Passage,
    Refusal,
    Stats,
    WantedTags,
    wanted_tags,
)
from harness.memory.primary import Numbers, PrimaryStore, Progress, judgement
from harness.memory.ranking import Mode, fuse, is_relevant, novelty, recency, score
from harness.memory.upkeep import Upkeep
from harness.memory.vector_index import VectorIndex

# How many passages each index proposes for fusion, at least. What the lexical index does not
# propose counts 0 for its words. On the Cranfield collection nDCG@10 is the same from 40, 100 and
# all 1,400.
_PROPOSALS = 100


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
        self._progress = progress
        self._written = 0  # our last write, which every later search of ours must see
        self._noting = Lock()
        self._embeds_later = bool(getattr(embedder, "in_background", False))
        self._upkeep = Upkeep(self._tend)
        self._start_upkeep()
        self._primary.follow(self._follow)

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
            primary,
            lexical,
            vector,
            embedder=embedder,
            merge=merge,
            guard=guard,
            progress=progress,
        )

    # --- writing -----------------------------------------------------------------------------

    def add(self, passages: Iterable[Passage]) -> Added:
        """Stores all of the passages or, if it raises, none.

        A passage with a known id changes nothing, one with the words of a stored passage is not
        stored (see `open`), and one with invisible characters, or that the
        guard refuses, is not stored.

        Raises:
            MemoryStoreFailed: They cannot be written.
            InvalidInput: The embedder did not return vectors.
        """
        # 1. Read them before anything is locked: the iterable may take long, or search here.
        accepted, refused = self._filtered(passages)
        # 2. Make vectors for all that are new.
        embeds_later = self._embeds_later and len(accepted) > _FEW
        vector_of = {} if embeds_later else self._vectors_of_new(accepted)
        # 3. Write into the primary store, from which the indexes read at the next search.
        added = self._primary.add(
            [(passage, vector_of.get(passage.id)) for passage in accepted],
            embedder=self._embedder,
            merge=self._merge,
        )
        self._has_written()
        if embeds_later:
            self._vector.catch_up()
            self._start_upkeep()
        return replace(added, refused=refused)

    def delete(self, *ids: str) -> int:
        """Removes passages; returns how many existed."""
        deleted = self._primary.delete(ids)
        self._has_written()
        return deleted

    # --- reading -----------------------------------------------------------------------------

    def damaged(self) -> list[str]:
        """The ids of passages that are not as they were stored: reads them all."""
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
        _check_limit(limit)
        if mode not in get_args(Mode):
            raise InvalidInput(
                f"no search mode '{mode}'; {did_you_mean(mode, get_args(Mode))}",
                code="memory.unknown-mode",
            )
        is_time = isinstance(half_life_days, int | float) and 0 < half_life_days < math.inf
        if half_life_days is not None and not is_time:
            raise InvalidInput(
                f"half_life_days is {half_life_days!r}; it must be a number greater than 0",
                code="memory.half-life-not-positive",
            )
        tags = wanted_tags(where, self._primary.tags_within) if where else None
        # Replies of models do hold halves of surrogate pairs, which nothing below can encode.
        query = query.encode(errors="replace").decode()
        if not query.strip():
            return Hits([])
        hits = self._ranked(query, mode, limit=limit, where=tags, half_life_days=half_life_days)
        if tags and not hits:
            # Asked only where it matters: the filter is another query.
            hits.none_match = not len(self._primary.tagged(tags))
        self._start_upkeep()
        return hits

    def neighbors(self, passage: Passage, *, count: int = 1) -> list[Passage]:
        """The passages around one, in order, itself among them: `count` before it, `count` after.

        Of a turn, the turns at the next positions of its conversation; of another passage, those of
        its source, in the order in which they were stored; without a source, itself alone.

        Raises:
            MemoryStoreFailed: The store cannot be read.
        """
        if (turn := passage.turn) is not None:
            positions = range(turn.position - count, turn.position + count + 1)
            where: Filter = {"conversation": turn.conversation, "position": positions}
            turns = self._primary.fetch(self._tagged(where)).items()
            # Not by number: turns may be stored in any order.
            places = [(near.turn.position, number, near) for number, near in turns if near.turn]
            return [near for *_, near in sorted(places)]
        sequence = self._primary.known([passage]).get(passage.id)
        if not passage.source or sequence is None:
            return [passage]
        numbers = self._tagged({"source": passage.source})
        row = int(np.searchsorted(numbers, sequence))
        passages = self._primary.fetch(numbers[max(0, row - count) : row + count + 1])
        return [passages[number] for number in sorted(passages)]

    def _tagged(self, where: Filter) -> Numbers:
        return self._primary.tagged(wanted_tags(where, self._primary.tags_within))

    def novelty(self, texts: Iterable[str]) -> float:
        """How new these texts are to the store: the mean over the texts, 0 to 10.

        A text stored word for word counts 0; one no nearer to a stored passage than unrelated texts
        are to each other counts 10. Without texts: 0. With an empty store: 10.

        Raises:
            MemoryStoreFailed: The vector index is unavailable.
        """
        # Passages that lack a vector are the newest, those that a batch is most likely to repeat.
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
        embedder = self._embedder
        self._vector.catch_up()
        return Stats(
            passages=len(self._primary),
            language=self._primary.language,
            embedder=embedder.name,
            dimensions=embedder.dimensions,
            unembedded=self._primary.count_without_vector(embedder),
            vector_bytes=self._vector.resident_bytes,
            disk_bytes=self._primary.size_bytes() + _bytes_in(self._primary.directory),
        )

    @property
    def behind(self) -> int | None:
        """Known writes that the local indexes have not read; None if no server reports it."""
        heard = self._primary.heard_sequence()
        read = min(self._lexical.position, self._vector.position)
        return None if heard is None else max(0, heard - read)

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
        # 1. What each index proposes, if it is available.
        lexical, vector, fallback = self._scores(query, mode, limit=limit, where=where)
        # 2. Fuse both scores, and read the best passages; all if age counts, since a passage may
        #    then be among the best though many are more relevant.
        mean, unrelated = (0.0, 0.0) if vector is None else self._unrelated
        fused = fuse(lexical, vector, least_cosine=mean)
        count = _candidates_for(limit) if half_life_days is None else len(fused)
        best = nsmallest(count, fused, key=lambda sequence: (-fused[sequence], sequence))
        # Texts are read too, since each question to a server takes longer than what it reads.
        rows = self._primary.rows(best)
        # 3. Rank these by relevance, age and quality; of equals, the older goes first.
        ceiling = 0.0 if lexical is None else self._lexical.ceiling(query)
        words, cosines = lexical or {}, vector or {}
        now = datetime.now(UTC)
        scores: dict[int, float] = {}
        for sequence, row in rows.items():
            quality, created = judgement(row)
            by_words, by_meaning = words.get(sequence), cosines.get(sequence)
            if is_relevant(by_words, by_meaning, unrelated=unrelated, ceiling=ceiling):
                age = recency(created, half_life_days=half_life_days, now=now)
                scores[sequence] = score(fused[sequence] * age, quality)
        ranked = sorted(scores, key=lambda sequence: (-scores[sequence], sequence))
        hits = [
            Hit(
                passage=self._primary.whole(rows[sequence]),
                rank=place,
                score=scores[sequence],
                fused=fused[sequence],
                lexical=words.get(sequence),
                vector=cosines.get(sequence),
            )
            for place, sequence in enumerate(ranked[:limit], start=1)
        ]
        return Hits(hits, fallback=fallback)

    def _scores(
        self, query: str, mode: Mode, *, limit: int, where: WantedTags | None
    ) -> tuple[dict[int, float] | None, dict[int, float] | None, str | None]:
        """Scores by words and by meaning (None if not asked), and why there are none by meaning."""
        # Each index proposes more than are returned: only what both propose can be fused.
        depth = max(_candidates_for(limit), _PROPOSALS)
        # All that this store has written counts. The lexical index goes first, so that the vector
        # index can score all that it proposes.
        by_words = partial(
            self._lexical.search, query, limit=depth, where=where, until=self._written
        )
        lexical = None if mode == "vector" else by_words()
        if mode == "lexical":
            return lexical, None, None
        vector, reason = self._by_meaning(query, depth, including=lexical or (), where=where)
        if lexical is None and reason is not None:
            lexical = by_words()
        return lexical, vector, reason

    def _by_meaning(
        self, query: str, depth: int, *, including: Collection[int], where: WantedTags | None
    ) -> tuple[dict[int, float] | None, str | None]:
        """Cosines by sequence number, or why there are none."""
        self._vector.catch_up()
        if reason := self._vector.unavailable:
            return None, reason
        try:
            (embedded,) = embed(self._embedder, [query])
            _ = self._unrelated  # here, where a failure leaves the words to decide
        except InferenceError as error:
            return None, f"the query cannot be embedded: {error}"
        within = None if where is None else self._primary.tagged(where)
        cosines = self._vector.search(embedded, limit=depth, including=including, within=within)
        return cosines, (self._vector.unavailable or "it is closed") if cosines is None else None

    @cached_property
    def _unrelated(self) -> UnrelatedCosines:
        return unrelated_cosines(self._embedder)

    def _nearest(self, vector: Vectors) -> float:
        """The greatest cosine of a passage to a vector (d,) of unit length; -1 without passages."""
        if not vector.any():
            return 1.0  # it says nothing
        cosines = self._vector.search(vector, limit=1)
        if cosines is None:
            raise MemoryStoreFailed(
                "novelty is measured by the vector index, which is unavailable "
                f"({self._vector.unavailable})",
                path=str(self._primary.place),
                code="memory.lane-away",
            )
        return max(cosines.values(), default=-1.0)

    # --- upkeep ------------------------------------------------------------------------------

    def rebuild(self, progress: Progress | None = None) -> None:
        """Rebuilds the lexical index, and embeds passages without a vector.

        Raises:
            MemoryStoreFailed: They cannot be written.
        """
        self._lexical.rebuild(progress)
        self._vector.embed_missing(stop=Event(), progress=progress)

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
        while self._start_upkeep() and self._upkeep.wait(timeout_s):
            # What was added as the work ended is left to the next.
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

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _vectors_of_new(self, passages: Sequence[Passage]) -> dict[str, Vectors]:
        stored = self._primary.known(passages)
        fresh = {passage.id: passage for passage in passages if passage.id not in stored}
        vectors = embed(self._embedder, [passage.searchable for passage in fresh.values()])
        return dict(zip(fresh, vectors, strict=True))

    def _filtered(self, passages: Iterable[Passage]) -> tuple[list[Passage], tuple[Refusal, ...]]:
        refusals: list[Refusal] = []
        accepted: list[Passage] = []
        for passage in passages:
            if (refusal := refusal_of(passage, self._guard)) is None:
                accepted.append(passage)
            else:
                refusals.append(refusal)
        return accepted, tuple(refusals)

    def _has_written(self) -> None:
        with self._noting:  # otherwise a thread could replace a higher number by a lower one
            self._written = self._primary.seen_sequence()

    def _start_upkeep(self) -> bool:
        """Whether there is work, and it is under way."""
        is_behind = self._vector.missing or self._lexical.is_behind
        return bool(is_behind) and self._upkeep.start()

    def _follow(self) -> None:
        if self.behind:
            self._upkeep.start()

    def _tend(self, stop: Event) -> None:
        self._lexical.catch_up(until=0)
        # In few at a time by a slow embedder: what is not stored when the store closes is lost.
        batch = _SLOW_BATCH if self._embeds_later else _BATCH
        self._vector.embed_missing(stop=stop, batch=batch, progress=self._progress)


# A second's work of a slow embedder: of so few, whoever adds them finds the meaning at once.
_FEW = 16

# How many passages are weighed for each that is asked for, and at least.
_CANDIDATES_PER_HIT = 3
_LEAST_CANDIDATES = 12


def _candidates_for(limit: int) -> int:
    return max(_LEAST_CANDIDATES, _CANDIDATES_PER_HIT * limit)


def _check_limit(limit: object) -> None:
    # numpy's integers count, too.
    if not isinstance(limit, Integral) or int(limit) < 1:
        raise InvalidInput(
            f"limit is {limit!r}; it must be a whole number, at least 1",
            code="memory.limit-not-positive",
        )


def _bytes_in(directory: Path) -> int:
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):  # the files of indexes come and go
                total += Path(parent, name).stat().st_size
    return total


# Passages that are embedded at a time in the background.
_BATCH, _SLOW_BATCH = 256, 16
