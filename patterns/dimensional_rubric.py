"""C2 Dimensional Rubric (analytic rubric): the scores of single dimensions steer the revision.

    harness run dimensional_rubric
    harness run dimensional_rubric --set draft=@brief.md --set source=@notes.md

**Problem.** “6.8 of 10, please improve” makes a model rewrite everything, also the good parts.

**Forces.** A composite decides whether a draft passes; it cannot say what to change. A dimension
can, if it is about something visible and its finding names a place. Dimensions that code checks
cost nothing and never drift.

**Costs.** c calls for each failed section and each round, for c candidates (4 in the rubric
`brief`); 1 more for each evaluation with an evaluator. Sections that passed cost nothing.

**When not.** For texts that are right or wrong as a whole, such as a number or a class.

**In Perfetto.** Each `revise` has the dimensions that it works on as its `focus`, and each
dimension is a counter beside `composite`. `harness trace rounds` shows the same as a table.
"""

from dataclasses import dataclass

from harness import Draft, Pipeline, Run

SOURCE = """\
Keep-alive is how long a server keeps a model in memory after the last call. Ollama keeps one for
5 minutes. A longer time saves loads and holds the memory for nobody else.

A slot is a place for one call in the batch of a server. With 4 slots four replies are written side
by side, and the context is divided among them. More slots do not make a single reply faster.

Quantization stores weights with fewer bits. A file of 8 bits has half the size of one of 16 bits.
Below 4 bits, answers become noticeably worse.
"""
DRAFT = """\
## Keep-alive

Keep-alive is how long a server keeps a model in memory after the last call. Ollama keeps one for
5 minutes. A longer time saves loads and holds the memory for nobody else.

## Slots

A slot is a place for one call in the batch of a server. With 4 slots four replies are written side
by side, and the context is divided among them.

## Quantization

TODO: write about quantization.
"""

dimensional_rubric = Pipeline("dimensional-rubric")


@dataclass(frozen=True)
class Steered:
    """The best draft, the scores of the first and the best, and the sections that changed."""

    text: str
    first: dict[str, float]
    best: dict[str, float]
    changed: list[str]


@dimensional_rubric.node(models=["producer", "evaluator"])
async def text(run: Run, draft: str = DRAFT, source: str = SOURCE) -> Steered:
    """Revises what failed; the rest stays byte for byte."""
    task = "A brief on three settings of a model server."
    result = await run.wiggum(
        task, draft=draft, sources=[source], rubric="brief", max_rounds=3, max_output_tokens=80
    )
    before = {section.text for section in Draft(draft, task=task).sections}
    after = Draft(result.text, task=task).sections
    changed = [section.title for section in after if section.text not in before]
    first, best = result.rounds[0].verdict, result.best.verdict
    return Steered(result.text, first.vector, best.vector, changed)
