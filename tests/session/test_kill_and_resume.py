import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
def test_killed_runs_end_as_others_do_and_ask_nothing_twice(tmp_path):
    # make test-nightly kills 200 runs.
    ended = run_script("kill_and_resume.py", tmp_path, 4)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    tally = json.loads(ended.stdout)
    assert tally["sound"]
    assert tally["kills"] >= 4
    assert max(map(int, tally["parts"])) >= 2


@pytest.mark.slow
def test_killed_batches_lose_no_row_and_pay_none_twice(tmp_path):
    # What a kill leaves behind, an output with fewer lines than the journal, is in test_batch.py.
    ended = run_script("kill_batches.py", tmp_path, 10)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    tally = json.loads(ended.stdout)
    assert tally["sound"]
    assert tally["kills"] >= 10
    assert tally["parts"] >= 3


def run_script(name, tmp_path, count):
    return subprocess.run(
        [sys.executable, TESTS / "session" / name, tmp_path, str(count), "--json"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}:{TESTS / 'inference'}"},
    )
