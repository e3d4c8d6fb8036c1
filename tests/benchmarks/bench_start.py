"""How long it takes to get going: importing the library, asking for help, running the demo.

    python tests/benchmarks/bench_start.py [--json] [--runs 5] [--demo]

Each figure is the median of several processes, beside the bare interpreter in the same run. With
`--demo` the demo is timed too, on the real model (without its installation: `time make demo` in a
fresh clone shows that).
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--runs", type=int, default=5)
    arguments.add_argument("--demo", action="store_true")
    options = arguments.parse_args()

    rows: list[tuple[str, Callable[[], float], float | None]] = [
        ("bare interpreter, ms", lambda: wall_ms("-c", "pass"), None),
        ("import harness, by -X importtime, ms", lambda: import_ms("import harness"), 120),
        (
            "from harness import Pipeline, Run, chat, by -X importtime, ms",
            lambda: import_ms("from harness import Pipeline, Run, chat"),
            None,
        ),
        ("harness --help, ms", lambda: wall_ms("-m", "harness", "--help"), 300),
    ]
    if options.demo:
        rows.append(("harness run examples/brief.py, ms", demo_ms, 40_000))

    results = [
        {
            "figure": name,
            "median": round(statistics.median(measure() for _ in range(options.runs)), 1),
            "limit": limit,
        }
        for name, measure, limit in rows
    ]
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for row in results:
        limit = "" if row["limit"] is None else f"limit {row['limit']:g}"
        print(f"{row['figure']:<64}{row['median']:>10}  {limit}")


def wall_ms(*arguments: str, cwd: Path = ROOT) -> float:
    """One process of this interpreter, from start to end."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, cwd=cwd)
    return (time.perf_counter() - start) * 1000


def import_ms(statement: str) -> float:
    """The sum of all import times that are above those of a bare interpreter."""
    return max(0.0, summed_ms(statement) - summed_ms("pass"))


def summed_ms(statement: str) -> float:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", statement],
        check=True,
        capture_output=True,
        text=True,
    )
    own = re.findall(r"import time:\s+(\d+) \|", done.stderr)
    return sum(map(int, own)) / 1000


def demo_ms() -> float:
    with tempfile.TemporaryDirectory() as directory:
        example: Sequence[str] = ("-m", "harness", "run", str(ROOT / "examples/brief.py"))
        return wall_ms(*example, cwd=Path(directory))


if __name__ == "__main__":
    main()
