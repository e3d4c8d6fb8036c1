"""`harness memory add`: passages stored as they are read, and what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from harness.cli.consoles import say
from harness.cli.passage_files import Found, Given, bytes_of, passages_in
from harness.errors import HarnessError
from harness.memory import Added, MemoryStore, Progress, Refusal

_BATCH = 500
"""Passages stored together: durable once they are, so that little is lost when it is interrupted.
On two cores that is a tenth of a second's work, most of it the embedder's."""


class Tally:
    """What became of passages so far."""

    def __init__(self) -> None:
        self.new = 0
        self.known = 0
        self.merged = 0
        self.refused: list[Refusal] = []

    def count(self, added: Added) -> None:
        """Counts a batch."""
        self.new += len(added.new)
        self.known += len(added.known)
        self.merged += len(added.merged)
        self.refused += added.refused

    def as_json(self, store: MemoryStore) -> dict[str, object]:
        """All of it, for scripts."""
        return {
            "new": self.new,
            "known": self.known,
            "merged": self.merged,
            "refused": [asdict(one) for one in self.refused],
            "passages": len(store),
        }

    def print_refused(self) -> None:
        """Says on standard error what was not stored, and why."""
        for one in self.refused:
            say(f"harness: refused '{one.title or one.id}': {one.reason}", err=True)

    def print_counts(self, store: MemoryStore) -> None:
        """Says in one line what was done."""
        parts = {
            "new": self.new,
            "known already": self.known,
            "merged (harness memory stats lists them)": self.merged,
            "refused": len(self.refused),
        }
        said = ", ".join(f"{count:,} {what}" for what, count in parts.items() if count)
        say(f"{said or 'nothing to add'}; {len(store):,} passages in the store")


def add_all(
    store: MemoryStore,
    files: Sequence[Path | None],
    given: Given,
    *,
    jsonl: bool,
    progress: Progress,
    tally: Tally,
) -> None:
    """Stores the passages of files; what was stored when something is wrong with one stays.

    Args:
        store: Where.
        files: What is read; see `passages_in`.
        given: What holds for passages that do not say it themselves.
        jsonl: Whether all are JSON Lines.
        progress: Told how much is done.
        tally: Counts what became of them, as it does.

    Raises:
        InvalidInput: A file, or a line of one, is not usable.
        MemoryStoreFailed: The store cannot be written.
    """
    total = bytes_of(files)
    for batch in _batches(passages_in(files, given, jsonl=jsonl)):
        tally.count(store.add(found.passage for found in batch))
        if total:
            progress("adding", batch[-1].read_bytes, total)
    # What else is to be done, such as a large store's graph, would be left to the next command.
    store.wait()


def _batches(found: Iterable[Found]) -> Iterator[list[Found]]:
    """In batches; the last one also when reading fails, which is then heard of."""
    batch: list[Found] = []
    try:
        for one in found:
            batch.append(one)
            if len(batch) == _BATCH:
                yield batch
                batch = []
    except HarnessError:
        if batch:
            yield batch
        raise
    if batch:
        yield batch
