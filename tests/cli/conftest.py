"""Lets these tests import the servers of `tests/residency` that load models."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "residency"))
