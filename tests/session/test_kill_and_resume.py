import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("kill_and_resume.py")
TESTS = SCRIPT.parents[1]


def test_killed_runs_end_as_others_do_and_ask_nothing_twice(tmp_path):
    # make test-nightly kills 200 runs.
    ended = subprocess.run(
        [sys.executable, SCRIPT, tmp_path, "4", "--json"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS / 'inference'}"},
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    tally = json.loads(ended.stdout)
    assert tally["sound"]
    assert tally["kills"] >= 4
    assert max(map(int, tally["parts"])) >= 3
