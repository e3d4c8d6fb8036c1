"""The demo run on the real model, made once for all tests that look at it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class DemoRun:
    """What `harness run examples/brief.py --json` printed and left."""

    result: dict[str, Any]
    directory: Path

    @property
    def journal(self) -> Path:
        return self.directory / self.result["files"]["journal"]

    @property
    def chrome_trace(self) -> Path:
        return self.directory / self.result["files"]["chrome_trace"]


def run_demo(directory: Path, *options: str, example: str = "brief", **environment: str) -> DemoRun:
    """Runs an example in a directory of its own, as a person would."""
    shutil.copytree(ROOT / "examples", directory / "examples", dirs_exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "harness", "run", f"examples/{example}.py", "--json", *options],
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return DemoRun(json.loads(done.stdout), directory)


def made_once(
    folders: pytest.TempPathFactory, name: str, make: Callable[[Path], DemoRun]
) -> DemoRun:
    """A run that the first process to want it makes, in a folder of that name, for all."""
    shared = folders.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    directory, result = shared / name, shared / f"{name}.json"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.is_file():
            directory.mkdir(exist_ok=True)
            result.write_text(json.dumps(make(directory).result))
        return DemoRun(json.loads(result.read_text()), directory)
