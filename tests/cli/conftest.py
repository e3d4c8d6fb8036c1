"""Lets these tests import the servers of `tests/residency` that load models."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from judging import DRAFTS, RUBRIC

sys.path.append(str(Path(__file__).parents[1] / "residency"))


@pytest.fixture
def drafts(tmp_path: Path) -> Path:
    """A directory with drafts, and a rubric for them."""
    for name, text in {"notes.yaml": RUBRIC, **DRAFTS}.items():
        (tmp_path / name).write_text(text)
    return tmp_path
