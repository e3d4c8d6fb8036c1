"""Distributions that a test installs: folders of metadata on the path, with their entry points."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Distribution = Callable[[str, str], None]


def installer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Distribution:
    """Installs a distribution by name and entry points; its modules are files of `tmp_path`."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "added", raising=False)

    def install(name: str, entry_points: str) -> None:
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entry_points)

    return install
