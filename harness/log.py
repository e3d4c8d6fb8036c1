"""The log: warnings and debug messages.

A program that uses `harness` as a library decides where its log goes: to structlog if that is
configured, otherwise to the standard library's logger `harness`, which prints nothing by default.
Inside a run, each warning is also an instant of its timeline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import structlog

Listener = Callable[[str, Mapping[str, object]], Mapping[str, object]]
"""Takes a warning's message and details; returns its origin: the run, the node."""

_library = logging.getLogger("harness")
# Without a handler, logging itself would print warnings to standard error.
_library.addHandler(logging.NullHandler())
_listener: ContextVar[Listener | None] = ContextVar("harness_log_listener", default=None)
_unconfigured: Any = structlog.wrap_logger(
    _library,
    processors=[structlog.processors.KeyValueRenderer(key_order=["event", "code"])],
    wrapper_class=structlog.stdlib.BoundLogger,
)


def log_warning(message: str, *, code: str, **details: object) -> None:
    """Logs a warning with its origin: the run, the node."""
    facts = {"code": code, **details}
    listener = _listener.get()
    origin = {} if listener is None else listener(message, facts)
    _logger().warning(message, **{**origin, **facts})


def log_debug(message: str, **details: object) -> None:
    """Logs a message for developers; no timeline has it."""
    _logger().debug(message, **details)


@contextmanager
def warnings_heard_by(listener: Listener) -> Iterator[None]:
    """Passes warnings of the block, and of tasks that begin inside it, to the listener."""
    outer_listener = _listener.get()
    _listener.set(listener)
    try:
        yield
    finally:
        # Not by a token, which is valid only in its own context.
        _listener.set(outer_listener)


def _logger() -> Any:  # noqa: ANN401 - a proxy, of a type that the configuration decides
    return structlog.get_logger("harness") if structlog.is_configured() else _unconfigured
