"""What Inspect AI makes of the rows of `tests/rubric/calibration/test_score_figures.py`.

pip install inspect_ai && python tests/benchmarks/figures_of_inspect.py
"""

import sys
from pathlib import Path

from inspect_ai.scorer import (
    SampleScore,
    Score,
    at_least,
    max_score,
    mean,
    mean_score,
    median_score,
    mode_score,
    pass_at,
    stderr,
)

sys.path += map(
    str, (Path(__file__).parents[1] / "rubric" / "calibration", Path(__file__).parents[2])
)

REDUCERS = {
    "mean": mean_score(),
    "median": median_score(),
    "mode": mode_score(),
    "max": max_score(),
    "at_least_2": at_least(2),
    "at_least_2:0.5": at_least(2, 0.5),
    "pass_at_1": pass_at(1),
    "pass_at_2": pass_at(2),
    "pass_at_2:0.5": pass_at(2, 0.5),
    "pass_at_3": pass_at(3),
}


def main() -> None:
    from test_score_figures import ROWS

    for name, reduce in REDUCERS.items():
        scores = [
            SampleScore(
                score=reduce([Score(value=float(value)) for value in epochs]),
                sample_id=row,
                sample_metadata={"group": group},
            )
            for row, (group, epochs) in ROWS.items()
        ]
        figures = (mean()(scores), stderr()(scores), stderr(cluster="group")(scores))
        print(name, *(round(float(figure), 6) for figure in figures))


if __name__ == "__main__":
    main()
