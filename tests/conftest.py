"""Fixtures that more than one layer's tests use."""

from __future__ import annotations

import os
import signal

import pytest
from demo import DemoRun, run_demo
from hypothesis import settings

# In the fast tier a few examples, the same ones each time; `make test-nightly` tries many new ones.
# A loaded machine is no reason to fail.
settings.register_profile("fast", max_examples=25, derandomize=True, deadline=None)
settings.register_profile("all", max_examples=100, derandomize=True, deadline=None)
settings.register_profile("nightly", max_examples=10_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


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
