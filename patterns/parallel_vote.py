"""Parallel vote (self-consistency): one question, n sampled answers, the majority counts.

    harness run parallel_vote
    harness run parallel_vote --set review="…" --set votes=9

**Problem.** A single answer to a borderline question is a coin toss, and nothing in it says so.

**Forces.** Votes of one model share its mistakes: they show how sure it is, not whether it is
right. They need a temperature and different seeds, or you count n equal answers.

**Costs.** n calls of the same prompt. Side by side they take about the time of one, if the server
has the slots; its prefix cache reads the prompt once.

**When not.** For free text, which has no majority: score drafts by a rubric (`wiggum_loop`). For
judgments without a shared bias: `llm_panel`.

**In Perfetto.** `ballots/ballot[0]` to `[4]` in lanes one above the other. If the model has one
slot, their calls wait in `queue` and are written one by one. The counter `share` is the share of
the majority.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from harness import Pipeline, Run

REVIEW = "The sound is good for the price. The left side died after two weeks, though."
Mood = Literal["positive", "negative"]

parallel_vote = Pipeline("parallel-vote")


@dataclass(frozen=True)
class Vote:
    """The majority's answer, and its share."""

    answer: Mood
    share: float
    count: dict[str, int]


@parallel_vote.node(models=["producer"])
async def ballots(run: Run, review: str = REVIEW, votes: int = 5) -> list[Mood]:
    """The same prompt, each time with a seed of its own."""

    async def ballot(seed: int) -> Mood:
        return await run.chat(
            "producer",
            f"Review: {review}\n\nIs the review positive or negative on the whole?",
            returns=Mood,
            temperature=0.8,
            seed=seed,
        )

    return await run.map(ballot, range(votes))


@parallel_vote.node
async def majority(run: Run, ballots: list[Mood]) -> Vote:
    """Counted by code; of equals, the one that was named first."""
    count = Counter(ballots)
    answer, most = count.most_common(1)[0]
    run.counter("share", 100 * most / len(ballots), unit="%")
    return Vote(answer, most / len(ballots), dict(count))
