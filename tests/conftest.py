"""Fixtures that more than one layer's tests use."""

from __future__ import annotations

import pytest
from demo import DemoRun, run_demo


@pytest.fixture(scope="session")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    """The demo on the real model: takes about 20 s, once."""
    return run_demo(tmp_path_factory.mktemp("demo"))
