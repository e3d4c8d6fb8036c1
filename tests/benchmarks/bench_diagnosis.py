"""How many planted bottlenecks the diagnosis names, and whether it leaves healthy runs alone.

    python tests/benchmarks/bench_diagnosis.py [NAME ...] [--json]

The runs are those of `planted_bottlenecks.py` and `more_planted_bottlenecks.py`: real pipelines on
a paced loopback server and on the embedded engine, planted by people who had not read the rules.
Which findings name each of them is written down here. `named`: one of the first two findings does.
`wrong`: the first two name something else. `late`: a later one names it. `stated`: no finding does,
but the first of what the critical path is put down to. `silent`: no finding. Of a healthy run, each
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
from more_planted_bottlenecks import PLANTED as MORE_PLANTED
from planted_bottlenecks import PLANTED, Planted

from harness.analysis import Diagnosis, diagnose
from harness.trace import Journal

AIMS = {"named of 40": 36, "wrong": 0, "false alarm": 0}

NAMED_BY: Mapping[str, Collection[str]] = {
    "stamp-before-handbook": {"drifting-prefix"},
    "limit-left-at-one": {"max-parallel"},
    "server-with-one-slot": {"queueing"},
    "blocking-fetch": {"client-lag"},
    "loop-instead-of-map": {"serial-client"},
    "slow-search-tool": {"slow-code"},
    "one-long-chapter": {"straggler"},
    "essays-for-labels": (),
    "more-than-the-quota": {"retries"},
    "dead-primary": {"retries", "out-of-reach"},
    "cold-model": {"cold-start"},
    "two-models-in-turn": {"swap-thrash"},
    "cut-and-continued": {"drifting-prefix"},
    "padded-batches": (),
    "embeds-one-by-one": {"serial-client"},
    "filter-comes-last": (),
    "stalled-replies": {"reply-gap", "preemptions"},
    "slow-deduplication": {"slow-code"},
    "conversation-read-again": {"drifting-prefix"},
    "repeatable-left-on": {"queueing", "drifting-prefix"},
    # of more_planted_bottlenecks.py
    "slow-evaluator": {"slow-decode"},
    "rounds-gain-nothing": (),
    "verdict-asked-again": (),
    "eight-candidates": (),
    "checker-evicts-prefix": {"drifting-prefix"},
    "library-embedded-each-run": (),
    "twenty-passages-recalled": {"prefill-bound"},
    "kv-cache-too-small": {"queueing", "preemptions"},
    "window-slides-each-turn": {"drifting-prefix"},
    "quota-of-tokens": {"retries"},
    "timeout-too-short": {"retries", "failed-calls", "node-retries"},
    "one-slow-server": (),
    "drive-between-stages": {"client-lag", "slow-code"},
    "stages-in-step": {"unused-dependency"},
    "long-chain-begins-last": {"max-parallel"},
    "unloaded-between-calls": {"cold-start", "swap-thrash"},
    "tokenizes-whole-history": {"client-lag", "slow-code"},
    "limiter-of-former-provider": {"slow-code"},
    "more-than-server-bears": {"queueing", "slow-decode"},
    "rambles-until-full": {"filled-context"},
}
"""By the name of what was planted, the rules that name it; none where no rule could. Written down
before the runs were diagnosed; rules that were made afterwards were added."""

STATED_BY: Mapping[str, Collection[str]] = {
    "slow-search-tool": {"code"},
    "slow-deduplication": {"code"},
    "blocking-fetch": {"client lag"},
    "more-than-the-quota": {"retry"},
    "dead-primary": {"retry"},
    "embeds-one-by-one": {"embed"},
    "limit-left-at-one": {"turn"},
    "server-with-one-slot": {"queue"},
    "slow-evaluator": {"decode"},
    "library-embedded-each-run": {"embed"},
    "quota-of-tokens": {"retry"},
    "timeout-too-short": {"failed"},
    "drive-between-stages": {"code", "client lag"},
    "tokenizes-whole-history": {"code", "client lag"},
    "limiter-of-former-provider": {"code"},
    "long-chain-begins-last": {"place"},
}
"""What most of the critical path is put down to, where that says as much."""


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
    rows = [
        row_of(one)
        for one in [*PLANTED, *MORE_PLANTED]
        if not options.names or one.name in options.names
    ]
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
    naming = set(NAMED_BY[planted.name])
    if not naming.isdisjoint(rules):
        return "late" if naming.isdisjoint(rules[:2]) else "named"
    if rules:
        return "wrong"
    stated = found.time[0].kind if found.time else ""
    return "stated" if stated in STATED_BY.get(planted.name, ()) else "silent"


if __name__ == "__main__":
    main()
