"""Fixtures that more than one layer's tests use."""

from __future__ import annotations

import signal

import pytest
from demo import DemoRun, run_demo


def pytest_configure() -> None:
    """Lets the processes that tests start be interrupted.

    Whoever runs the tests in the background may have Ctrl-C ignored, and what is ignored stays
    ignored in every process below.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    """The demo on the real model: takes about 20 s, once."""
    return run_demo(tmp_path_factory.mktemp("demo"))
