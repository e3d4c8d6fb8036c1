"""`harness rubric prompts`: prints the prompts of a rubric, without asking a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from harness.cli.arguments import config_option
from harness.cli.consoles import Command, say
from harness.cli.rubric_command import own_rubrics, read_named
from harness.cli.rubric_scoring import task_in
from harness.files import read_text, writing
from harness.inference import Message
from harness.rubric import DimensionScore, Draft, Finding, Rubric, RubricFile, reach_verdict
from harness.rubric.prompt import asked_of, judge_messages, repair_messages, shown
from harness.rubric.scoring import checked_score
from harness.rubric.templates import SHIPPED
from harness.wiggum import Round
from harness.wiggum.prompts import FailedDraft, RevisionPrompts, place_of


@click.command(cls=Command)
@click.argument("rubric")
@click.option("--draft", metavar="FILE", help="The draft to judge and revise.")
@click.option("--task", default="(the task)", help="@FILE reads it from a file.")
@click.option("--sources", multiple=True, metavar="FILE", help="May be repeated.")
@click.option(
    "--write",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Copy the templates that ship here.",
)
@config_option
def prompts(
    rubric: str,
    *,
    draft: str | None,
    task: str,
    sources: tuple[str, ...],
    write: Path | None,
    config: Path | None,
) -> None:
    """Print the prompts of RUBRIC, a name or a file; no model is asked.

    The checks' findings on the draft are real; texts in (parentheses) stand for a model's replies,
    and for options left out. Revisions are shown as in a third round.
    """
    file = read_named(rubric, own_rubrics(config))
    if write is not None:
        # Never over a copy that someone has edited.
        with writing(write), write.open("xb") as copy:
            copy.write(SHIPPED.read_bytes())
        say(f"{write}: a copy to edit; name it in a rubric: 'prompts: {write.name}'")
        return
    example = Draft(
        text=read_text("draft", Path(draft)) if draft else "# (A heading)\n\n(Its text.)\n",
        task=task_in(task),
        sources=tuple(read_text("source", Path(name)) for name in sources) or ("(A source.)",),
        language=file.rubric.language,
    )
    # All of them before the first is printed, as one may fail.
    for name, messages in list(_filled(file.rubric, example)):
        length = sum(len(message.content) for message in messages)
        origins = _origins(file, _TEMPLATES.get(name, (name,)))
        say(f"=== {name}: {length:,} characters ({origins})")
        say("\n\n".join(message.content for message in messages) + "\n")


def _filled(rubric: Rubric, draft: Draft) -> Iterator[tuple[str, Sequence[Message]]]:
    """Pairs of a prompt's name and its messages, filled in for the draft."""
    yield from _revision_prompts(rubric, draft)
    if dimensions := asked_of(rubric, draft):
        dimensions = dimensions if rubric.judge == "joint" else dimensions[:1]
        messages = judge_messages(rubric, dimensions, draft, shown=shown(rubric, draft))
        yield "judge", messages
        yield "judge_repair", repair_messages(rubric, dimensions, asked=messages, reply="")[-1:]


def _revision_prompts(rubric: Rubric, draft: Draft) -> Iterator[tuple[str, Sequence[Message]]]:
    checked = (checked_score(dimension, draft, rubric) for dimension in rubric.checked)
    scores = [score for score in checked if isinstance(score, DimensionScore)]
    scores += _judged(rubric, draft)
    focus = [
        score for score in scores if rubric.shared(score.name, score.score) < rubric.focus_below
    ]
    verdict = reach_verdict(rubric, scores)
    # Two earlier rounds: some fields are filled in from the second revision on.
    rounds = [Round(number=number, draft=draft.text, verdict=verdict) for number in (1, 2)]
    failed = FailedDraft(draft, focus, rounds)
    revision = RevisionPrompts.of(rubric)
    messages_by_section: dict[int | None, list[str]] = {}
    for score in focus:
        for finding in score.findings:
            section = place_of(finding, draft.sections)
            messages_by_section.setdefault(section, []).append(finding.message)
    index = next((section for section in messages_by_section if section is not None), 0)
    findings = messages_by_section.get(index, ["(What is wrong.)"])
    yield "draft", [Message("user", revision.first(draft))]
    yield "section", [revision.sections(failed, {index: findings})[index]]
    yield "afresh", [Message("user", revision.afresh(failed, index))]
    yield "edits", [revision.edits(failed)[0]]
    yield "whole", [revision.whole(failed)]


def _judged(rubric: Rubric, draft: Draft) -> list[DimensionScore]:
    """Lowest scores, with a finding of a model in the first section that has a heading and text."""
    under = (i for i, part in enumerate(draft.sections) if part.level and part.body.strip())
    index = next(under, 0)
    finding = Finding("(What the evaluator found.)", draft.sections[index].title, index)
    return [
        DimensionScore(
            name=dimension.name,
            score=rubric.scale_of(dimension.name).min,
            source="judged",
            reason="(Why it is not higher.)",
            findings=(finding,),
        )
        for dimension in rubric.judged
    ]


# Prompts that are made of several templates.
_TEMPLATES = {"judge": ("judge_system", "judge", "judge_dimension", "judge_source")}


def _origins(file: RubricFile, names: Sequence[str]) -> str:
    """Where the rubric changes these templates, as `FILE:LINE`; or that it changes none."""
    changed = file.rubric.prompts.own
    places = [file.written.at(("prompts", name)) for name in names if name in changed]
    return ", ".join(f"{place.path}:{place.line}" for place in places) or "as it ships"
