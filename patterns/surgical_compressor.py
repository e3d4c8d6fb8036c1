"""C3 Surgical Compressor (context compression): a long draft is shortened, never rephrased.

    harness run surgical_compressor

**Problem.** A draft that outgrows the context is judged by its first pages, and rewritten from its
own summary: anything missing in the summary is lost.

**Forces.** Evaluator and reviser need different parts. The evaluator must see all headings and the
most telling sentences. The reviser needs the criticized sections in full, and only the topics of
the others. The revised section goes back into the full draft, in place of the old one.

**Costs.** c calls, for c candidates, for each failed section, with a prompt of at most
`revise_over` characters of the draft. Shortening takes no model.

**When not.** While drafts fit. The scores of a shortened and a whole draft cannot be compared.

**In Perfetto.** `evaluate` says whether it was `compressed`. Under `revise`, `prompt_chars` of the
call stays small while the draft grows; `harness trace show` prints its outline.
"""

from harness import Draft, Pipeline, Rubric, Run

RUBRIC = Rubric(
    id="handbook",
    title="A page of a handbook",
    shorten={"evaluate_over": 1_000, "revise_over": 1_000},
    dimensions=[
        {"name": "length", "checks": [{"check": "section_words", "min": 12, "max": 90}]},
        {"name": "done", "floor": 10, "checks": [{"check": "excludes", "phrases": ["TODO"]}]},
    ],
)
SOURCE = "Ask the night shift before a restart. A restart takes four minutes, and queues are kept."
DRAFT = """\
## Deploying

Merge on the main branch, and the build begins. It takes nine minutes. When it is green, the new
version goes to one machine of ten, and after an hour to the others. During that hour, look at the
share of errors of the one machine. If it is twice that of the others, the new version stays there
and nobody is called. The build of the day before is kept beside it.

## Going back

Every version is kept for thirty days. Choose the one before in the console and confirm. Going back
takes as long as a restart of all machines. Say in the channel why, and which version is bad. A
version that was taken back is never deployed again; its successor has another number.

## Restarting

TODO: who must be asked, and how long it takes.

## Reading logs

Logs are kept for two weeks. Search by the number of the request, which is in every line. Lines of
level error also go to the channel of the team on duty. A line that comes more than a hundred times
a minute is shown once, with its count. Logs of the night job stand in a folder of their own.

## On duty

Two people share a week. Whoever is called writes down what was done, in the same night. In the
morning the two decide whether the handbook must be changed. After three calls in one night, the
next day is free. Weeks are planned for half a year; swap them among yourselves.
"""

surgical_compressor = Pipeline("surgical-compressor")


@surgical_compressor.node(models=["producer", "evaluator"])
async def page(run: Run, draft: str = DRAFT, source: str = SOURCE) -> dict[str, object]:
    """The revised page, and which of its sections are as they were."""
    task = "A page for people on duty."
    result = await run.wiggum(task, draft=draft, sources=[source], rubric=RUBRIC, candidates=2)
    before = [section.text for section in Draft(draft, task=task).sections]
    after = Draft(result.text, task=task).sections
    same = [section.title for section in after if section.text in before]
    return {"text": result.text, "unchanged": same, "stopped": result.stop_reason}
