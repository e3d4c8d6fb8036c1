"""Two documents compared: where their figures differ, what both speak of, what only one says.

    harness run examples/compare.py [--task "…"] [--set left=@a.md --set right=@b.md]

Each claim looks for its nearest in the other document; code compares the figures of the two. The
planner chooses the difference that decides the task. An evaluator model may want the whole better;
no revision passes `rubrics/comparison.yaml` that makes a figure up, or loses one.
"""

import re
from pathlib import Path
from typing import Literal

from harness import Draft, Passage, Pipeline, Run

TASK = "Which machine serves more users at once, and what does it cost?"
HERE = Path(__file__).parent
LEFT = (HERE / "documents/alder-w1.md").read_text(encoding="utf-8")
RIGHT = (HERE / "documents/birch-s2.md").read_text(encoding="utf-8")
Pairs = list[tuple[Passage, Passage]]

compare = Pipeline("compare")


@compare.node(models=[])
async def claims(run: Run, left: str = LEFT, right: str = RIGHT) -> list[Passage]:
    """Every sentence, under its heading and a name of its own: of one title, one is recalled."""
    kept: list[Passage] = []
    for name, document in {"A": left, "B": right}.items():
        for _, section, sentence in Draft(document, task="").sentences:
            title = f"{section.title} ({name}{len(kept) + 1})"
            kept += await run.remember(" ".join(sentence.split()), title=title, source=name)
    return kept


@compare.node(each={"claim": "claims"}, models=[])
async def nearest(run: Run, claim: Passage) -> Passage | None:
    """What the other document says on the matter; hits with lower scores are on other matters."""
    hits = [hit for hit in await run.recall(claim.searchable, limit=50) if hit.score > 0.5]
    return next((hit.passage for hit in hits if hit.passage.source != claim.source), None)


@compare.node
def pairs(claims: list[Passage], nearest: list[Passage | None]) -> Pairs:
    """The claims of A and B that are nearest to each other."""
    found = list(zip(claims, nearest, strict=True))
    return [(a, b) for a, b in found if b and a.source == "A" and (b, a) in found]


@compare.node(models=["planner"])
async def best(run: Run, pairs: Pairs, task: str = TASK) -> Pairs:
    """The differences nearest to the task, and the one that decides it first."""
    apart = {a: (a, b) for a, b in pairs if figures(a) != figures(b)}
    near = [hit.passage for hit in await run.recall(task, limit=50) if hit.passage in apart][:6]
    texts = tuple(a.text for a in near) or ("",)
    question = "\n".join([*texts, "", f"Which of these lines decides this: {task}"])
    first = await run.chat("planner", question, returns=Literal[texts])
    return [apart[a] for a in sorted(near, key=lambda a: a.text != first)]


@compare.node(models=["producer", "evaluator"])
async def text(run: Run, claims: list[Passage], pairs: Pairs, best: Pairs, task: str = TASK) -> str:
    """The comparison."""
    both = "- **{0.title}**\n  - A: “{0.text}”\n  - B: “{1.text}”"
    paired = {one for pair in pairs for one in pair}
    parts = {
        "In short": [both.format(*pair) for pair in best],
        "Where figures differ": [both.format(a, b) for a, b in pairs if figures(a) != figures(b)],
        "What both speak of": [both.format(a, b) for a, b in pairs if figures(a) == figures(b)],
        "What only one says": [f"- {a.source}: “{a.text}”" for a in claims if a not in paired],
    }
    draft = "\n\n".join("\n".join([f"## {title}", *lines]) for title, lines in parts.items())
    sources = [line for lines in parts.values() for line in lines]
    rubric = HERE / "rubrics/comparison.yaml"
    return (await run.wiggum(task, draft=draft, sources=sources, rubric=rubric, max_rounds=2)).text


def figures(claim: Passage) -> set[str]:
    return set(re.findall(r"\d+(?:[.,]\d+)*", claim.text))
