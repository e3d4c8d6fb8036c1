"""Models inside this process, as hosts."""

from __future__ import annotations

from typing import Protocol

from harness.residency.host import HostReport


class Engine(Protocol):
    """A backend that loads its model itself."""

    @property
    def is_loaded(self) -> bool:
        """Whether calls can begin."""
        ...

    async def load(self) -> None:
        """Makes the model resident."""
        ...

    async def unload(self) -> None:
        """Gives its memory back."""
        ...


class EngineHost:
    """The model of a backend that loads it from a file.

    llama.cpp says nowhere but in its log what it has allocated: a report has no sizes, and what is
    computed from the file's header stands, which is within 2 MiB of that log.

    A load that has begun goes on to its end, whatever `load_timeout_s` is: nothing can stop it.

    Args:
        engine: The backend; whoever made it closes it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def load(self) -> None:
        """Loads it, unless it is loaded; see `Host.load`.

        Raises:
            ModelFileInvalid: The file is missing or llama.cpp refuses it.
            LoadFailed: There is no memory for it.
        """
        if self._engine.is_loaded:
            return
        # An engine that has died still holds what it had.
        await self._engine.unload()
        await self._engine.load()

    async def unload(self) -> None:
        """Gives its memory back; a call that is under way is cut off."""
        await self._engine.unload()

    async def report(self) -> HostReport:
        """Whether it is loaded, and its engine alive."""
        return HostReport(resident=self._engine.is_loaded)

    async def aclose(self) -> None:
        """Does nothing: the backend is closed by whoever made it."""
