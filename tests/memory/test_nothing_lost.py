import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("kill_and_reopen.py")


def test_what_was_acknowledged_outlives_its_writers(tmp_path):
    # make test-nightly kills 200 times.
    ended = subprocess.run(
        [sys.executable, SCRIPT, tmp_path, "12", "--json"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    tally = json.loads(ended.stdout)
    assert tally["faults"] == []
    assert tally["kills"] == 12
    assert tally["acknowledged_writes"] > 50
