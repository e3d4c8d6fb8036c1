"""Texts by key in a file that one process appends to, and a later one goes on with."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import orjson

from harness.threads import to_its_end
from harness.trace.journal_line import dump_json, seal, sealed_number


class ReplyLog:
    """Texts by key; a killed process loses none that was kept.

    A text is a line with a checksum, in a private file that is made when there is the first: for a
    short run, a database costs more than all the rest. A line that was cut or damaged is left out.
    Without a path, texts stay in memory.

    `troubled` is told once why texts cannot be kept, or how many were damaged.
    """

    def __init__(self, path: Path | None, *, troubled: Callable[[str], None]) -> None:
        self._path = path
        self._troubled = troubled
        self._descriptor: int | None = None
        self._size = 0
        self._is_usable = True
        self._is_read = False
        self._reading = asyncio.Lock()
        self._places: dict[str, tuple[int, int]] = {}
        """By key, where the latest line of it begins, and its length."""
        self._texts: dict[str, str] = {}
        """By key, if there is no file."""

    async def find(self, key: str) -> str | None:
        """The text of this key; None when there is none."""
        if self._path is None:
            return self._texts.get(key)
        async with self._reading:
            if not self._is_read:
                # Opened by the loop, as by `keep`: two would not know where it ends.
                if self._is_there():
                    self._places = {**await to_its_end(self._read), **self._places}
                self._is_read = True
        place = self._places.get(key)
        if place is None or self._descriptor is None:
            return None
        start, length = place
        line = os.pread(self._descriptor, length, start)
        kept = orjson.loads(line) if sealed_number(line) else {}
        return str(kept["text"]) if kept.get("key") == key else None

    def keep(self, texts: Mapping[str, str]) -> None:
        """Keeps texts; when this returns, a killed process does not lose them."""
        if self._path is None:
            self._texts.update(texts)
            return
        if not self._is_usable or not texts:
            return
        try:
            descriptor = self._opened()
            for key, text in texts.items():
                line = seal(dump_json({"key": key, "text": text}) + b"\n", 1)
                self._places[key] = self._size, len(line)
                self._size += len(line)
                while line:
                    line = line[os.write(descriptor, line) :]
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _opened(self) -> int:
        if self._descriptor is None:
            assert self._path is not None
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            self._size = os.fstat(self._descriptor).st_size
            if self._size and os.pread(self._descriptor, 1, self._size - 1) != b"\n":
                # What a kill cut off must not spoil the next line.
                self._size += os.write(self._descriptor, b"\n")
        return self._descriptor

    def _is_there(self) -> bool:
        """Whether earlier parts of the run left a file, which is open then."""
        assert self._path is not None
        try:
            return self._path.exists() and bool(self._opened())
        except OSError as error:
            self._fail(error)
            return False

    def _fail(self, error: OSError) -> None:
        if self._is_usable:
            self._is_usable = False
            self._troubled(str(error))

    def _read(self) -> dict[str, tuple[int, int]]:
        """The places of what earlier parts of the run kept."""
        places: dict[str, tuple[int, int]] = {}
        assert self._path is not None
        start = damaged = 0
        try:
            with self._path.open("rb") as file:
                for line in file:
                    if sealed_number(line) is not None:
                        places[orjson.loads(line)["key"]] = start, len(line)
                    elif line.endswith(b"}\n"):  # a kill may have cut off others
                        damaged += 1
                    start += len(line)
        except OSError as error:
            self._fail(error)
        if damaged:
            self._troubled(f"{damaged} of its lines are damaged")
        return places
