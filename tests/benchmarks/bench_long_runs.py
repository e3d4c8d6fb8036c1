"""What report, diagnosis, timeline and page take of a run of many short calls.

    python tests/benchmarks/bench_long_runs.py [--calls 85000] [--json]

32 nodes at a time with four calls each, at a server that reports its queue.
Each command runs in a process of its own; its processor time counts, since a busy
machine falsifies the other time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import bench_trace
from figures import Figure, print_figures

JOBS = {
    "trace report": "aim ≤ 10",
    "trace diagnose": "aim ≤ 10",
    "trace export": "aim ≤ 12",
    "view": "aim ≤ 10",
}
SHORT = {"PROMPT_CHARS": 60, "REPLY_CHARS": 40, "AT_ONCE": 32}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--calls", type=int, default=85_000)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    print_figures(figures(chosen.calls), as_json=chosen.json)


def figures(calls: int) -> Iterator[Figure]:
    vars(bench_trace).update(SHORT)
    with tempfile.TemporaryDirectory() as directory:
        journal = Path(directory, "20260102T030405Z-00.jsonl")
        made = bench_trace.write_model_run(journal, calls * (100 + 2_300))
        yield Figure("calls", made)
        yield Figure("journal, MB", journal.stat().st_size / 1e6)
        for job, aim in JOBS.items():
            has_file = job in {"trace export", "view"}
            output = ["--output", str(Path(directory, "made"))] if has_file else []
            seconds, memory_mb = taken([*job.split(), str(journal), *output])
            yield Figure(f"harness {job}, s of the processor", seconds, aim)
            yield Figure(f"harness {job}, peak memory, MB", memory_mb, "aim ≤ 300")


def taken(arguments: list[str]) -> tuple[float, float]:
    """Seconds of the processor and megabytes of a command."""
    command = [sys.executable, "-m", "harness", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, arguments
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1000


if __name__ == "__main__":
    main()
