"""`harness memory add`: passages stored as they are read, and what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click

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

    def told(self, store: MemoryStore, *, as_json: bool) -> dict[str, object]:
        """Says what was done, unless that is for scripts, and what was refused; returns it all."""
        for refusal in self.refused:
            click.echo(
                f"harness: refused '{refusal.title or refusal.id}': {refusal.reason}", err=True
            )
        if not as_json:
            self._print(store)
        return {
            "new": self.new,
            "known": self.known,
            "merged": self.merged,
            "refused": [
                {"id": one.id, "title": one.title, "reason": one.reason} for one in self.refused
            ],
            "passages": len(store),
        }

    def _print(self, store: MemoryStore) -> None:
        parts = {
            "new": self.new,
            "known already": self.known,
            "merged with near duplicates": self.merged,
            "refused": len(self.refused),
        }
        said = ", ".join(f"{count:,} {what}" for what, count in parts.items() if count)
        click.echo(f"{said or 'nothing to add'}; {len(store):,} passages in the store")


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
