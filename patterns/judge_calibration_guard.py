"""C5 Judge Calibration Guard (judge validation): a judge that misreads known drafts is not asked.

    harness run judge_calibration_guard
    harness run judge_calibration_guard --role evaluator=TAG    # TAG from your harness.toml

Without an evaluator, the guard tests the rubric's checks.

**Problem.** A judge gives a number for everything. After an update of its server, its prompt or its
quantization, the numbers mean something else, and nothing says so.

**Forces.** Only drafts that people scored can show this. They must be few, because each costs a
judgment in every run, and both good and bad, or a judge that gives 9 to everything passes.

**Costs.** a + 1 evaluations for a anchors, each 1 call with an evaluator, up to `repeats` of them
near the threshold. Without one, no call.

**When not.** As a proof: four anchors find a broken judge, not a slightly wrong one. A threshold
with an error rate takes thirty labels (`harness rubric tune`). `harness rubric noise` measures
scatter, `harness rubric compare` two evaluators.

**In Perfetto.** `node judged` has an `evaluate` for each anchor. If the guard refuses, an instant
`skip` takes the place of `node verdict`. On `evaluate`, `borderline` says whether noise may have
decided.
"""

from statistics import fmean

from harness import Pipeline, Run, Skipped

TASK = "How long does a cold start take?"
SOURCE = "A cold start of a 13B model takes 8 to 15 seconds from disk, a warm one 0.2 seconds."
GOOD = "From disk a cold start of a 13B model takes 8 to 15 seconds, a warm one takes 0.2 seconds."
DRAFT = "A cold start of a 13B model takes between 8 and 15 seconds from disk, a warm one only 0.2."
ANCHORS = {  # drafts that people have scored from 0 to 10
    f"{GOOD} So keep the model in memory if calls come often.": 9.0,
    f"{GOOD} That is a long time for a person who waits for a reply.": 8.5,
    "It takes 90 seconds on most machines of 2019, as Smith found in 14 tests.": 4.0,
    "It depends. It depends. It depends on the": 2.5,
}

judge_calibration_guard = Pipeline("judge-calibration-guard")


async def score(run: Run, draft: str) -> float:
    """The judge's composite."""
    verdict = await run.evaluate(draft, rubric="answer", task=TASK, sources=[SOURCE])
    return verdict.composite


@judge_calibration_guard.node(models=["producer", "evaluator"])
async def judged(run: Run, anchors: dict[str, float] = ANCHORS) -> list[float]:
    """What the judge gives to drafts that people know."""
    return [await score(run, draft) for draft in anchors]


@judge_calibration_guard.node
def objections(judged: list[float], anchors: dict[str, float] = ANCHORS) -> list[str]:
    """Why this judge is not to be trusted; empty if nothing speaks against it."""
    found = []
    by_people = sorted(zip(anchors.values(), judged, strict=True))
    bad, good = by_people[: len(anchors) // 2], by_people[len(anchors) // 2 :]
    if max(given for _, given in bad) >= min(given for _, given in good):
        found.append("it gives a bad anchor as much as a good one")
    offset = fmean(given - human for human, given in by_people)
    if abs(offset) > 1.5:
        found.append(f"its scores lie {offset:+.1f} points from people's")
    return found


@judge_calibration_guard.node(when=lambda objections: not objections)
async def verdict(run: Run, draft: str = DRAFT) -> float:
    """The score that counts."""
    return await score(run, draft)


@judge_calibration_guard.node
def outcome(objections: list[str], verdict: float | Skipped) -> str:
    """The score, or why there is none."""
    refused = f"not judged: {'; '.join(objections)}"
    return refused if isinstance(verdict, Skipped) else f"{verdict:g} of 10"
