"""The vector lane: the cosines of all passages to a query, as far as there is room for them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from threading import Event, Lock
from typing import get_args

from harness.errors import InvalidInput, did_you_mean
from harness.memory.embedder import Embedder, Vectors, embed
from harness.memory.truth import Progress, Truth
from harness.memory.vector import hnsw, torch_matrix
from harness.memory.vector.approximate import Approximate
from harness.memory.vector.matrix import Rows
from harness.memory.vector.reader import Device, Held, Reader

EXACT_UP_TO = 64_000
"""How many vectors are compared each with every query: so many of 256 numbers take 2.0 ms on one
core. A graph of them takes 0.3 ms, and misses up to 1 in 100 of the best ten; the figures are those
of `tests/benchmarks/bench_vector_search.py`."""

# A graph is made again when so much has come and gone since, of all that it has.
_MOST_CHANGED = 0.2


class VectorLane:
    """The vectors of one embedder, read from the truth. May be used from any thread.

    It is away as long as passages are without a vector, and from `evict` to `restore`; who searches
    does without, and can say why.

    Args:
        truth: Has the vectors.
        embedder: Whose vectors, and who makes those that are missing.
        directory: For the graph of a large store; made when there is one.
        device: Where they are searched. On a GPU they are all compared, however many.
        exact_up_to: Beyond it a graph is made.
    """

    def __init__(
        self,
        truth: Truth,
        embedder: Embedder,
        *,
        directory: Path,
        device: Device = "cpu",
        exact_up_to: int = EXACT_UP_TO,
    ) -> None:
        if device not in get_args(Device):
            raise InvalidInput(
                f"no device '{device}'; {did_you_mean(device, get_args(Device))}",
                code="memory.unknown-device",
            )
        if device == "cuda":
            torch_matrix.check(device)
        self._truth = truth
        self._embedder = embedder
        self._directory = directory
        self._reader = Reader(
            truth, embedder, directory=directory, device=device, exact_up_to=exact_up_to
        )
        self._device = device
        self._exact_up_to = exact_up_to
        # One thread at a time reads the truth, and this may take long.
        self._updating = Lock()
        # What a search reads is one reference, exchanged whole, under a lock that is held for no
        # longer than that: evicting waits for nobody.
        self._switching = Lock()
        self._held: Held | None = None
        self._eviction: _Eviction | None = None
        self._position = 0
        self._growth_bytes = 0
        self._last_bytes = 0
        self._row_bytes = 8 + 4 * embedder.dimensions

    # --- what it is --------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What it is called in the trace."""
        return f"vectors of {self._truth.directory.name}"

    @property
    def unavailable(self) -> str | None:
        """Why it cannot be asked; None when it can."""
        if (eviction := self._eviction) is not None:
            return f"evicted: {eviction.reason}"
        if missing := self.missing:
            passages = "passage is" if missing == 1 else "passages are"
            never = ", and nothing can be written here" if self._truth.read_only else ""
            return f"{missing:,} {passages} still to be embedded{never}"
        return None if self._held is not None else "its vectors are not read yet"

    @property
    def missing(self) -> int:
        """How many passages had no vector at the last `catch_up`."""
        return self._reader.missing

    @property
    def kind(self) -> str:
        """`exact`, `hnsw`, or why it cannot be asked."""
        held = self._held
        return self.unavailable or ("hnsw" if isinstance(held, Approximate) else "exact")

    @property
    def resident_bytes(self) -> int:
        """What it takes now, on its device."""
        held = self._held
        return 0 if held is None else held.nbytes

    @property
    def needed_bytes(self) -> int:
        """What it takes, or will take when it is back."""
        return self.resident_bytes or self._last_bytes + self._growth_bytes

    # --- searching ---------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Reads what the truth has beyond what this has read, unless it is evicted.

        Raises:
            MemoryStoreFailed: The truth cannot be read.
        """
        last = self._truth.last_sequence()
        if self._held is None:
            self._growth_bytes = (last - self._position) * self._row_bytes
        elif last == self._position and not self.missing:
            return
        if self._eviction is not None:
            return  # not even to wait for who restores it
        with self._updating:
            if self._eviction is None:
                self._install(*self._reader.read(self._held, self._position), since=None)

    def search(
        self,
        query: Vectors,
        *,
        limit: int,
        including: Collection[int] = (),
        within: Rows | None = None,
    ) -> dict[int, float] | None:
        """Sequence number to cosine of the best `limit` passages, best first.

        Args:
            query: (d,) float32 of unit length.
            limit: How many.
            including: Numbers that are scored too, wherever they stand.
            within: The numbers that may be found, growing; all when None.

        Returns:
            None when it is away.
        """
        held = self._held
        if held is None or self.missing:
            return None
        found = held.search(query, limit=limit, including=including, within=within)
        if not found and within is None and len(held):
            # Only a store that somebody opened with another embedder, and compacted, has a graph
            # and no vectors.
            self._begin_again()
            return None
        return found

    # --- making what is missing --------------------------------------------------------------

    def embed_missing(
        self, *, stop: Event, batch: int = 256, progress: Progress | None = None
    ) -> None:
        """Embeds all passages that have no vector, keeps these in the truth, and reads them.

        Args:
            stop: Ends it after a batch; the rest is still to be done then.
            batch: How many are embedded and kept at a time.
            progress: Told how many are done.

        Raises:
            MemoryStoreFailed: They cannot be kept.
            InvalidInput: The embedder gave something else than vectors.
        """
        done, after = 0, 0
        total = self._truth.count_without_vector(self._embedder)
        while not stop.is_set():
            rows = self._truth.without_vector(self._embedder, batch, after=after)
            if not rows:
                break
            vectors = embed(self._embedder, [passage.searchable for _, passage in rows])
            self._truth.put_vectors(self._embedder, [number for number, _ in rows], vectors)
            after = rows[-1][0]
            done += len(rows)
            if progress is not None:
                progress("embedding passages", min(done, total), total)
        self.catch_up()

    @property
    def wants_index(self) -> bool:
        """Whether `build_index` would make searches faster."""
        held = self._held
        if held is None or self.missing or self._device != "cpu" or self._truth.read_only:
            return False
        if isinstance(held, Approximate):
            return held.changed > _MOST_CHANGED * held.graph.count
        return len(held) > self._exact_up_to

    def build_index(self, *, stop: Event, progress: Progress | None = None) -> None:
        """Makes a graph of all vectors, if it `wants_index`. Searches go on meanwhile.

        Args:
            stop: Ends it, as does evicting; nothing has changed then.
            progress: Told how many vectors are in.

        Raises:
            MemoryStoreFailed: It cannot be written.
        """
        self.catch_up()
        held = self._held
        made = held.graph.position if isinstance(held, Approximate) else 0
        if self.wants_index and hnsw.newest(self._directory, self._embedder) > made:
            self._read_anew(since=None)  # another process has made one
        if not self.wants_index:
            return
        position, total = self._position, len(self)

        def went_on(done: int) -> bool:
            if progress is not None:
                progress("indexing vectors", min(done, total), total)
            return not stop.is_set() and self._eviction is None

        vectors = self._reader.vectors(0, position)
        if hnsw.write(
            self._directory, self._embedder, position=position, vectors=vectors, went_on=went_on
        ):
            self._read_anew(since=None)

    def rebuild(self, progress: Progress | None = None) -> None:
        """Reads everything from the truth again, and makes a large store's graph again.

        Raises:
            MemoryStoreFailed: The truth cannot be read, or the graph not be written.
        """
        self._begin_again()
        self.build_index(stop=Event(), progress=progress)

    def forget_others(self) -> None:
        """Deletes the graphs of other embedders, before the truth forgets their vectors."""
        hnsw.forget(self._directory, but=self._embedder)

    # --- giving way --------------------------------------------------------------------------

    def evict(self, reason: str) -> None:
        """Gives its memory back, at once; a search that is going on ends as it began."""
        with self._switching:
            if self._held is not None:
                self._last_bytes, self._growth_bytes = self._held.nbytes, 0
            self._eviction = _Eviction(reason)
            self._held = None
        if self._device == "cuda":
            torch_matrix.give_back()

    def restore(self) -> None:
        """Reads its vectors again. When it raises, it is as it was.

        Raises:
            MemoryStoreFailed: The truth cannot be read.
        """
        if (eviction := self._eviction) is not None:
            self._read_anew(since=eviction)

    def close(self) -> None:
        """Gives its memory back; nothing can be searched after it."""
        self.evict("closed")
        self._last_bytes = self._growth_bytes = 0

    def __len__(self) -> int:
        held = self._held
        return 0 if held is None else len(held)

    # --- reading the truth -------------------------------------------------------------------

    def _begin_again(self) -> None:
        hnsw.forget(self._directory, but=None)
        self._reader.trust_nothing()
        self._read_anew(since=None)

    def _read_anew(self, *, since: _Eviction | None) -> None:
        with self._updating:
            if self._eviction is since:
                self._install(*self._reader.read(None, 0), since=since)

    def _install(self, held: Held, position: int, *, since: _Eviction | None) -> None:
        """Takes what was read, unless it was evicted meanwhile: again, if it was before."""
        with self._switching:
            if self._eviction is since:
                self._held, self._position, self._eviction = held, position, None


class _Eviction:
    """One of perhaps several: each is itself, whatever its reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
