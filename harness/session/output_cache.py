"""Outputs of nodes over many runs, for those with a `Cache`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from harness.errors import ConfigurationInvalid, Notice
from harness.inference import TextStore

OUTPUT_CACHE = "outputs.sqlite"
"""The file's name, among the runs."""


class StoredOutputs:
    """Outputs by key, in a file that is opened when a node first asks for one.

    Where it cannot be opened, nodes are called as without it, and that is said once.

    Args:
        path: The file.
        warn: Told why it cannot be opened.
        clean: Takes secrets out of a text; an output that holds any is not kept.
        wall_s: Unix time, in seconds.
    """

    def __init__(
        self,
        path: Path,
        *,
        warn: Callable[[Notice], None],
        clean: Callable[[str], str] = str,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._clean = clean
        self._warn = warn
        self._wall_s = wall_s
        self._cache: TextStore | None = None
        self._was_opened = False

    async def find(self, key: str, *, max_age_s: float | None) -> bytes | None:
        """See `harness.graph.OutputCache`."""
        cache = self._opened()
        text = await cache.find(key) if cache is not None else None
        if text is None:
            return None
        stored_s, _, value = text.partition("\n")
        if max_age_s is not None and self._wall_s() - float(stored_s) > max_age_s:
            return None
        return value.encode()

    def keep(self, key: str, value: bytes) -> None:
        """See `harness.graph.OutputCache`."""
        cache = self._opened()
        if cache is not None:
            cache.keep(key, f"{self._wall_s()}\n{value.decode()}")

    async def aclose(self) -> None:
        """Writes what is still to be written."""
        if self._cache is not None:
            await self._cache.aclose()

    def _opened(self) -> TextStore | None:
        if not self._was_opened:
            self._was_opened = True
            try:
                self._cache = TextStore(self._path, clean=self._clean)
            except ConfigurationInvalid as error:
                self._warn(
                    Notice(
                        code="cache.outputs-not-kept",
                        message=f"outputs are not kept for other runs: {error}",
                    )
                )
        return self._cache
