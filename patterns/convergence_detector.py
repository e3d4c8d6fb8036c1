"""G4 Convergence Detector (stall detection): a loop that stalls gets new means, or ends.

    harness run convergence_detector
    harness run convergence_detector --task "…" --set source=@first.md --set more=@second.md

**Problem.** A loop that does not improve still costs a round each time. Raising `max_rounds` only
buys more of the same.

**Forces.** One flat round is chance, two in a row are not. More rounds do not cure a stall: there
is too little to go on, or the model cannot do better. So the first stall adds sources, the second
samples more candidates, the third ends the loop. Only a gain resets the count.

**Costs.** At most three loops (`wiggum_loop`), and one more for each that gained before it stalled;
the third samples four candidates for each revision.

**When not.** With `max_rounds=2` there is nothing to detect.

**In Perfetto.** Each `wiggum` ends with an instant `stop` and its reason: `plateau`, `cycle` and
`regression` are stalls. The counter `composite` is flat before it.
"""

from dataclasses import dataclass

from harness import Pipeline, Rubric, Run

TASK = "In two or three sentences: how long does a cold start take, and what removes it?"
SOURCE = "A cold start means that the weights of the model are read before the first reply."
MORE = (
    "A cold 13B model takes 8 to 15 seconds from disk, against less than 0.2 seconds when warm. "
    "Keeping the model loaded between calls removes the cold start."
)
RUBRIC = Rubric(
    id="figures",
    title="An answer with figures",
    dimensions=[
        {"name": "grounded", "checks": [{"check": "grounded_numbers"}], "floor": 10},
        {"name": "figures", "checks": [{"check": "regex", "pattern": r"\d+", "min": 2}]},
    ],
)
STALLED = {"plateau", "cycle", "regression"}

convergence_detector = Pipeline("convergence-detector")


@dataclass(frozen=True)
class Ended:
    """The best draft, and how each loop ended."""

    text: str
    passed: bool
    loops: list[str]


@convergence_detector.node(models=["producer", "evaluator"])
async def text(run: Run, task: str = TASK, source: str = SOURCE, more: str = MORE) -> Ended:
    """Loops, until one passes, runs out of rounds, or the third has stalled."""
    sources, candidates, stalls = [source], 1, 0
    draft, best, loops = None, 0.0, []
    while stalls < 3:
        result = await run.wiggum(
            task,
            draft=draft,
            sources=sources,
            rubric=RUBRIC,
            candidates=candidates,
            max_rounds=4,
            max_output_tokens=80,
        )
        composite = result.best.verdict.composite
        loops.append(f"{result.stop_reason} at {composite:g}")
        if result.stop_reason not in STALLED:
            break
        stalls = 1 if draft and composite > best else stalls + 1
        draft, best = result.text, max(best, composite)
        sources = [source, more]  # first other means: more to go on
        candidates = 4 if stalls > 1 else 1  # second: more tries
    return Ended(result.text, result.passed, loops)
