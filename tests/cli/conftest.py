"""What several tests of the command need."""

from __future__ import annotations

from pathlib import Path

import pytest
from judging import DRAFTS, RUBRIC


@pytest.fixture
def drafts(tmp_path: Path) -> Path:
    """A directory with drafts, and a rubric for them."""
    for name, text in {"notes.yaml": RUBRIC, **DRAFTS}.items():
        (tmp_path / name).write_text(text)
    return tmp_path
