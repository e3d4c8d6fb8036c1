"""How many planted bottlenecks the diagnosis names, and whether it leaves healthy runs alone.

    python tests/benchmarks/bench_diagnosis.py [NAME ...] [--json]

The runs are those of `planted_bottlenecks.py`: real pipelines on a paced loopback server and on the
embedded engine, planted by somebody who had not read the rules. Which findings name each of them is
written down here. `named`: one of the first two findings does. `wrong`: the first two name
something else. `late`: a later one names it. `silent`: there is no finding. Of a healthy run, each
finding that is more than a hint is a `false alarm`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import structlog
from planted_bottlenecks import PLANTED, Planted

from harness.analysis import Diagnosis, diagnose
from harness.trace import Journal

AIMS = {"named of 40": 36, "wrong": 0, "false alarm": 0}

NAMED_BY: Mapping[str, Collection[str]] = {}
"""By the name of what was planted, the rules that name it."""


class Row(NamedTuple):
    """What became of one run."""

    name: str
    verdict: str
    findings: list[str]
    """Rules, each with its severity, worst first."""
    seconds: float
    at_work: float
    """The share of the critical path that is put down to models at work."""
    most: list[str]
    """What most of the critical path is put down to, with its share."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("names", nargs="*")
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    rows = [row_of(one) for one in PLANTED if not options.names or one.name in options.names]
    counts = Counter(row.verdict for row in rows)
    if options.json:
        said = {"aims": AIMS, "counts": counts, "rows": [row._asdict() for row in rows]}
        print(json.dumps(said, indent=2))
        return
    for row in rows:
        print(f"{row.name:<30}{row.verdict:<13}{row.seconds:>5.1f} s  {', '.join(row.findings)}")
        print(f"{'':<51}{', '.join(row.most)}")
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))


def row_of(planted: Planted) -> Row:
    with tempfile.TemporaryDirectory() as directory:
        start_s = time.perf_counter()
        journal = planted.run(Path(directory))
        seconds = time.perf_counter() - start_s
        found = diagnose(Journal(journal))
    return Row(
        planted.name,
        verdict_on(planted, found),
        [f"{finding.rule} ({finding.severity})" for finding in found.findings],
        seconds,
        sum(share.share for share in found.time if share.kind in {"decode", "prefill", "embed"}),
        [f"{share.share:.0%} {share.kind}" for share in found.time[:3]],
    )


def verdict_on(planted: Planted, found: Diagnosis) -> str:
    rules = [finding.rule for finding in found.findings]
    if planted.is_healthy:
        is_alarmed = any(finding.severity != "hint" for finding in found.findings)
        return "false alarm" if is_alarmed else "left alone"
    naming = NAMED_BY[planted.name]
    if not rules:
        return "silent"
    if not naming.isdisjoint(rules[:2]):
        return "named"
    return "wrong" if naming.isdisjoint(rules) else "late"


if __name__ == "__main__":
    main()
