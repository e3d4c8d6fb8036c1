"""The log: where warnings go, and what is said with them.

A program that uses `harness` as a library decides where its log goes: what it told structlog to do
with messages holds; otherwise they go to the standard library's logger `harness`, which prints
nothing unless the program told it to. Inside a run, each warning is an instant of its timeline too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import structlog

Listener = Callable[[str, Mapping[str, object]], Mapping[str, object]]
"""Takes a warning's message and details, and gives where it was said: the run, the node."""

_library = logging.getLogger("harness")
_library.addHandler(logging.NullHandler())
_listener: ContextVar[Listener | None] = ContextVar("harness_log_listener", default=None)
_unconfigured: Any = structlog.wrap_logger(
    _library,
    processors=[structlog.processors.KeyValueRenderer(key_order=["event", "code"])],
    wrapper_class=structlog.stdlib.BoundLogger,
)


def log_warning(message: str, *, code: str, **details: object) -> None:
    """Says what a person should know.

    Args:
        message: A fixed phrase, or a notice's.
        code: What it is called by programs.
        details: What varies.
    """
    details = {"code": code, **details}
    _logger().warning(message, **{**_where(message, details), **details})


def log_notice(message: str, *, code: str) -> None:
    """Says what a run's result says too: `in_result` lets a program print it only there."""
    details = {"code": code}
    _logger().warning(message, **{**_where(message, details), **details}, in_result=True)


def log_debug(message: str, **details: object) -> None:
    """Says what only a developer may want to know."""
    _logger().debug(message, **details)


@contextmanager
def warnings_heard_by(listener: Listener) -> Iterator[None]:
    """Has warnings of the block heard, and of the tasks that begin inside it."""
    before = _listener.get()
    _listener.set(listener)
    try:
        yield
    finally:
        _listener.set(before)  # not by a token, which is only valid in the context it was made in


def _where(message: str, details: Mapping[str, object]) -> Mapping[str, object]:
    listener = _listener.get()
    return {} if listener is None else listener(message, details)


def _logger() -> Any:  # noqa: ANN401 - a proxy, of a type that the configuration decides
    return structlog.get_logger("harness") if structlog.is_configured() else _unconfigured
