"""The memory store: passages go in, the best few for a query come out."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from threading import Event, Lock
from types import TracebackType
from typing import Self, get_args

import numpy as np

from harness.errors import InvalidInput, did_you_mean
from harness.memory.embedder import Embedder, WordLlamaEmbedder, embed
from harness.memory.found import Added, Hits, Refusal, Stats
from harness.memory.fusion import (
    Fusion,
    convex_combination,
)
from harness.memory.guard import injected_instruction
from harness.memory.lexical import LexicalLane
from harness.memory.novelty import novelty
from harness.memory.passage import Passage
from harness.memory.protocol import Mode
from harness.memory.ranking import Ranking
from harness.memory.search import Searcher
from harness.memory.truth import Merging, Progress, Truth
from harness.memory.upkeep import Upkeep
from harness.memory.vector import EXACT_UP_TO, Device, VectorLane
from harness.memory.where import Filter, Where


class MemoryStore:
    """A directory of passages, searched by words, by meaning, or both.

    Every method may be called from any thread, and several processes may have the directory open:
    searches go on side by side, writes take turns. What `add`, `update` and `delete` did is
    durable when they return, and found by the next search of this store. Those of other processes
    find it as soon, unless one of them is at reading it already: then when that is done.
    """

    def __init__(
        self,
        *,
        truth: Truth,
        lexical: LexicalLane,
        vector: VectorLane,
        searcher: Searcher,
        embedder: Embedder,
        merge: Merging,
        progress: Progress | None,
    ) -> None:
        self._truth = truth
        self._lexical = lexical
        self._vector = vector
        self._searcher = searcher
        self._embedder = embedder
        self._merge = merge
        self._progress = progress
        self._written = 0  # the last write of ours, which every later search of ours must see
        self._noting = Lock()
        self._upkeep = Upkeep(self._tend)
        self._see_to_it()

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        embedder: Embedder | None = None,
        language: str | None = None,
        fusion: Fusion = convex_combination,
        ranking: Ranking | None = None,
        device: Device = "cpu",
        exact_up_to: int = EXACT_UP_TO,
        merge: Merging = True,
        read_only: bool = False,
        progress: Progress | None = None,
    ) -> Self:
        """Opens the store in a directory, or makes one there.

        Lanes that are behind catch up; a damaged one is made again. Passages that another embedder
        embedded are embedded anew in the background: until then words alone decide.

        Args:
            path: The directory.
            embedder: Gives texts their vectors; `WordLlamaEmbedder` when None.
            language: Whose words are stemmed, such as `german`, or `none`; English for a new
                store, and what it was made with for an old one, when None.
            fusion: Makes one score of both lanes'.
            ranking: How quality and titles count.
            device: Where the vectors are: `cuda` needs torch.
            exact_up_to: How many vectors are all compared with a query. Of more a graph proposes
                some, which is quicker and misses a few.
            merge: Whether a passage that says what another says, in the same words, becomes one
                with it: if they are equal but for white space and Unicode's forms of a letter,
                also but for typographic signs (`near`), or never (False).
            read_only: Whether nothing is ever written there.
            progress: Told what is being done, how much of it is, and how much there is; in another
                thread, if that is done in the background.

        Raises:
            MemoryStoreFailed: It cannot be read or made.
            InvalidInput: The language is unknown or not the store's, or there is no such device,
                or no such way to merge.
        """
        if merge not in (True, False, "near"):
            raise InvalidInput(
                f"merge is {merge!r}; it must be True, False or 'near'",
                code="memory.unknown-merge",
            )
        directory = Path(path)
        embedder = embedder or WordLlamaEmbedder()
        truth = Truth.open(directory, language=language, read_only=read_only)
        try:
            lexical = LexicalLane.open(directory / "lexical", truth, progress=progress)
            vector = VectorLane(
                truth,
                embedder,
                directory=directory / "vector",
                device=device,
                exact_up_to=exact_up_to,
            )
            vector.catch_up()
        except BaseException:
            truth.close()
            raise
        searcher = Searcher(
            truth=truth,
            lexical=lexical,
            vector=vector,
            embedder=embedder,
            fusion=fusion,
            ranking=ranking or Ranking(),
        )
        return cls(
            truth=truth,
            lexical=lexical,
            vector=vector,
            searcher=searcher,
            embedder=embedder,
            merge=merge,
            progress=progress,
        )

    @property
    def vector_lane(self) -> VectorLane:
        """What may be told to give its machine memory back, and to come again."""
        return self._vector

    def add(self, passages: Iterable[Passage]) -> Added:
        """Stores passages, all of them or, when it raises, none.

        Passages with a known id change nothing (see `update`), those that say what another says
        become one with it (see `open` and `split`), and those that look like instructions to a
        model are refused.

        Raises:
            MemoryStoreFailed: They cannot be written.
            InvalidInput: The embedder gave something else than vectors.
        """
        # 1. Before anything is held: making them may take long, or search here.
        accepted, refused = _filtered(passages)
        # 2. Vectors for all that are new.
        known = self._truth.known(accepted)
        fresh = {passage.id: passage for passage in accepted if passage.id not in known}
        vectors = embed(self._embedder, [passage.searchable for passage in fresh.values()])
        vector_of = dict(zip(fresh, vectors, strict=True))
        # 3. Into the truth; the lanes read it there at the next search.
        added = self._truth.add(
            [(passage, vector_of.get(passage.id)) for passage in accepted],
            embedder=self._embedder,
            merge=self._merge,
        )
        self._has_written()
        return replace(added, refused=refused)

    def update(self, passage: Passage) -> None:
        """Puts a passage in the place of the one with its id.

        Raises:
            InvalidInput: There is none, or it looks like instructions to a model.
            MemoryStoreFailed: It cannot be written.
        """
        _, refused = _filtered([passage])
        if refused:
            raise InvalidInput(
                f"passage '{passage.id}' is refused: {refused[0].reason}",
                code="memory.passage-refused",
            )
        (vector,) = embed(self._embedder, [passage.searchable])
        self._truth.update(passage, vector, embedder=self._embedder)
        self._has_written()

    def delete(self, *ids: str) -> int:
        """Removes passages, and those that became one with them; returns how many ids it knew."""
        deleted = self._truth.delete(ids)
        self._has_written()
        return deleted

    def split(self, id: str) -> Passage:  # noqa: A002 - as for `get`
        """Stores a passage by itself that became one with another, as `stats` lists them.

        Raises:
            InvalidInput: None with this id did.
            MemoryStoreFailed: It cannot be written.
        """
        vectors = embed(self._embedder, [one.passage.searchable for one in self._truth.merges(id)])
        vector = vectors[0] if len(vectors) else None
        passage = self._truth.split(id, vector, self._embedder)
        self._has_written()
        return passage

    def get(self, id: str) -> Passage | None:  # noqa: A002 - the word that passages have for it
        """The passage that is known by an id."""
        return self._truth.get(id)

    def search(
        self, query: str, *, limit: int = 4, mode: Mode = "hybrid", where: Filter | None = None
    ) -> Hits:
        """The best `limit` passages for a query, best first; fewer when fewer are relevant.

        Any text is a query; a blank one finds nothing. While the vector lane is away, words alone
        decide, and the hits say why.

        Args:
            query: What is looked for; `"several words"` in quotes, and `title:word`, count extra.
            limit: How many, at most.
            mode: By words and meaning, by words, or by meaning.
            where: Only passages whose metadata, `source` or `title` have these values, or one of
                them where there are several.

        Raises:
            InvalidInput: For an impossible limit, mode or filter.
            MemoryStoreFailed: The store cannot be read.
        """
        _check_limit(limit)
        if mode not in get_args(Mode):
            raise InvalidInput(
                f"no search mode '{mode}'; {did_you_mean(mode, get_args(Mode))}",
                code="memory.unknown-mode",
            )
        wanted = Where.parse(where) if where else None
        # Replies of models do hold halves of surrogate pairs, which nothing below can encode.
        query = query.encode(errors="replace").decode()
        if not query.strip():
            return Hits([])
        hits = self._searcher.search(
            query, limit=limit, mode=mode, where=wanted, until=self._written
        )
        self._see_to_it()
        return hits

    def novelty(self, texts: Iterable[str]) -> float:
        """How much of what these texts say is not stored yet, 0 to 10; see `memory.novelty`.

        Raises:
            MemoryStoreFailed: The vector lane is away, and nothing else can say.
        """
        batch = embed(self._embedder, list(texts))
        self._vector.catch_up()
        nearest = np.array([self._searcher.nearest(vector) for vector in batch], dtype=np.float32)
        return novelty(nearest, unrelated=self._searcher.unrelated())

    def stats(self) -> Stats:
        """What the store holds, and how its lanes are."""
        embedder = self._embedder
        self._vector.catch_up()
        return Stats(
            passages=len(self._truth),
            sequence=self._truth.last_sequence(),
            language=self._truth.language,
            embedder=embedder.name,
            dimensions=embedder.dimensions,
            unembedded=self._truth.count_without_vector(embedder),
            vector_lane=self._vector.kind,
            vector_bytes=self._vector.resident_bytes,
            disk_bytes=_bytes_in(self._truth.directory),
            last_written=self._truth.last_written(),
            merges=tuple(self._truth.merges()),
        )

    def rebuild(self, progress: Progress | None = None) -> None:
        """Makes both lanes again from the truth, and embeds what has no vector.

        Raises:
            MemoryStoreFailed: They cannot be written.
        """
        self._lexical.rebuild(progress)
        if not self._truth.read_only:
            self._vector.embed_missing(stop=Event(), progress=progress)
        self._vector.rebuild(progress)

    def compact(self) -> None:
        """Gives back the room of what was deleted, and of other embedders' vectors."""
        # Before it is forgotten what was removed: or else both lanes would have to begin again.
        self._lexical.catch_up(until=self._truth.last_sequence())
        self._vector.catch_up()
        self._vector.forget_others()
        self._truth.compact(self._embedder)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Has done what is left to do in the background, such as the graph of a large store.

        Returns:
            Whether it is done; False when it takes longer than `timeout_s`, or cannot be done.
        """
        self._vector.catch_up()
        self._see_to_it()
        return self._upkeep.wait(timeout_s) and not self._is_behind

    def close(self) -> None:
        """Gives files and threads back. Nothing is lost when this is never called."""
        self._upkeep.close()
        self._vector.close()
        self._lexical.close()
        self._truth.close()

    def __len__(self) -> int:
        return len(self._truth)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _has_written(self) -> None:
        with self._noting:  # or else a thread could put a lower number in the place of a higher one
            self._written = self._truth.last_sequence()

    # --- in the background -------------------------------------------------------------------

    def _see_to_it(self) -> None:
        """Has done what makes the vector lane whole, or fast, if there is anything."""
        if self._is_behind and not self._truth.read_only:
            self._upkeep.start()

    @property
    def _is_behind(self) -> bool:
        return self._vector.missing > 0 or self._vector.wants_index

    def _tend(self, stop: Event) -> None:
        self._vector.embed_missing(stop=stop, progress=self._progress)
        self._vector.build_index(stop=stop, progress=self._progress)


def _check_limit(limit: object) -> None:
    # numpy's whole numbers are some, too.
    if not isinstance(limit, Integral) or int(limit) < 1:
        raise InvalidInput(
            f"limit is {limit!r}; it must be a whole number, at least 1",
            code="memory.limit-not-positive",
        )


def _bytes_in(directory: Path) -> int:
    """What all files take, as far as they are still there: those of lanes come and go."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(parent, name).stat().st_size
    return total


def _filtered(passages: Iterable[Passage]) -> tuple[list[Passage], tuple[Refusal, ...]]:
    """Those that may be stored, and those that look like instructions to a model."""
    accepted, refused = [], []
    for passage in passages:
        # Not `searchable`: the text begins a sentence of its own.
        suspicion = injected_instruction(f"{passage.title}\n{passage.text}")
        if suspicion is None:
            accepted.append(passage)
        else:
            refused.append(
                Refusal(
                    id=passage.id,
                    title=passage.title,
                    code=suspicion.code,
                    reason=f"{suspicion.reason}: {suspicion.excerpt}",
                )
            )
    return accepted, tuple(refused)
