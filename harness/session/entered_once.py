"""Blocks that are entered once: contextlib's own fail with an error about an attribute."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from harness.errors import InvalidInput

P = ParamSpec("P")
T = TypeVar("T")


def entered_once(
    open_block: Callable[P, AbstractAsyncContextManager[T]],
) -> Callable[P, AbstractAsyncContextManager[T]]:
    """Has the blocks of this function of `harness` say so when they are entered again."""

    @wraps(open_block)
    def opening(*args: P.args, **options: P.kwargs) -> AbstractAsyncContextManager[T]:
        return _AsyncOpening(open_block(*args, **options), open_block.__name__)

    return opening


def entered_once_sync(
    open_block: Callable[P, AbstractContextManager[T]],
) -> Callable[P, AbstractContextManager[T]]:
    """As `entered_once`, for blocks without an event loop."""

    @wraps(open_block)
    def opening(*args: P.args, **options: P.kwargs) -> AbstractContextManager[T]:
        return _SyncOpening(open_block(*args, **options), open_block.__name__)

    return opening


class _Opening:
    def __init__(self, block: Any, name: str) -> None:  # noqa: ANN401 - of either kind
        self._block, self._name = block, name
        self._was_entered = False

    def _enter(self) -> None:
        if self._was_entered:
            raise InvalidInput(
                f"this block of harness.{self._name}() was entered before, and opens nothing "
                f"again; call harness.{self._name}() again",
                code="session.entered-again",
            )
        self._was_entered = True


class _AsyncOpening(_Opening, AbstractAsyncContextManager[T]):
    async def __aenter__(self) -> T:
        self._enter()
        entered: T = await self._block.__aenter__()
        return entered

    async def __aexit__(self, *error: Any) -> bool | None:  # noqa: ANN401
        suppressed: bool | None = await self._block.__aexit__(*error)
        return suppressed


class _SyncOpening(_Opening, AbstractContextManager[T]):
    def __enter__(self) -> T:
        self._enter()
        entered: T = self._block.__enter__()
        return entered

    def __exit__(self, *error: Any) -> bool | None:  # noqa: ANN401
        suppressed: bool | None = self._block.__exit__(*error)
        return suppressed
