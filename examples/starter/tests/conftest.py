"""Lets the tests import the pipelines."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.with_name("pipelines")))
