"""The producer's side of the loop: making the next draft from what failed in the last.

Where the findings name sections, only those are rewritten, each in a call of its own, and spliced
back: what was not criticised stays as it was, byte for byte. Otherwise the whole draft is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from harness.compress import Section, condense, sections_of, splice
from harness.errors import InvalidInput, ReplyInvalid
from harness.inference import ChatRequest, Completion, Message
from harness.rubric import Ask, DimensionScore, Draft, Finding

_SOURCES_LIMIT_CHARS = 3_000
"""Of the sources, a section's rewriting sees the sentences nearest to it, up to this length."""

_TEMPERATURE = 0.3
"""Some freedom: a greedy model that failed would say the same again."""

_SYSTEM = "You are a careful editor. You reply with the corrected text alone, without comments."


class Reviser:
    """Revises drafts with the producer model.

    Args:
        ask: Reaches the model.
        model: Tag of the producer's endpoint.
        max_output_tokens: Room for one section, or for the whole text where there are none.
    """

    def __init__(self, *, ask: Ask, model: str, max_output_tokens: int) -> None:
        self._ask = ask
        self._model = model
        self._max_output_tokens = max_output_tokens

    async def revise(
        self, draft: Draft, focus: Sequence[DimensionScore], *, round_number: int
    ) -> str:
        """The next draft.

        Args:
            draft: What to start from.
            focus: The dimensions that failed.
            round_number: Which round it is for; seeds the sampling, so that runs repeat.

        Raises:
            InferenceError: The model gave no revision.
        """
        findings = findings_by_section(draft, focus)
        if not findings:
            return await self._rewrite_whole(draft, focus, round_number)
        sections = sections_of(draft.text)
        async with asyncio.TaskGroup() as group:
            tasks = {
                index: group.create_task(
                    self._rewrite_section(draft, sections[index], found, round_number)
                )
                for index, found in findings.items()
            }
        try:
            return splice(draft.text, {index: task.result() for index, task in tasks.items()})
        except InvalidInput as error:
            raise ReplyInvalid(
                f"the revision cannot be put back into the draft: {error}",
                endpoint=self._model,
                text="\n\n".join(task.result() for task in tasks.values()),
            ) from error

    async def _rewrite_section(
        self, draft: Draft, section: Section, findings: Sequence[Finding], round_number: int
    ) -> str:
        faults = "\n".join(f"- {finding.message}" for finding in findings)
        prompt = (
            f"{_sources_text(draft, section)}"
            f"# Section to correct: {section.title}\n{section.body.strip()}\n\n"
            f"# What is wrong with it\n{faults}\n\n"
            "Write the section again so that nothing of this is wrong any more. Use only facts "
            "from the sources. Reply with the section's text, without its heading."
        )
        return await self._text(prompt, round_number)

    async def _rewrite_whole(
        self, draft: Draft, focus: Sequence[DimensionScore], round_number: int
    ) -> str:
        faults = "\n".join(f"- {score.name}: {score.reason}" for score in focus)
        prompt = (
            f"{_sources_text(draft, None)}"
            f"# Task\n{draft.task}\n\n# Draft\n{draft.text.strip()}\n\n"
            f"# What is wrong with it\n{faults}\n\n"
            "Write the draft again so that nothing of this is wrong any more; keep what is good, "
            "and keep to the task."
        )
        return await self._text(prompt, round_number)

    async def _text(self, prompt: str, round_number: int) -> str:
        completion: Completion = await self._ask(
            ChatRequest(
                model=self._model,
                role="producer",
                messages=(Message("system", _SYSTEM), Message("user", prompt)),
                max_output_tokens=self._max_output_tokens,
                temperature=_TEMPERATURE,
                seed=round_number,
            )
        )
        if not completion.text.strip():
            raise ReplyInvalid("the revision is empty", endpoint=self._model, text=completion.text)
        return completion.text.strip()


def findings_by_section(
    draft: Draft, focus: Sequence[DimensionScore]
) -> dict[int, tuple[Finding, ...]]:
    """The findings of the failed dimensions, by the index of the section they are about.

    Empty when a finding concerns the whole draft, or names a section that is not there: then
    sections alone cannot mend it.
    """
    indexes = {section.title: index for index, section in enumerate(sections_of(draft.text))}
    found: dict[int, list[Finding]] = {}
    for score in focus:
        if not score.findings:
            return {}
        for finding in score.findings:
            if finding.section is None or finding.section not in indexes:
                return {}
            found.setdefault(indexes[finding.section], []).append(finding)
    return {index: tuple(findings) for index, findings in sorted(found.items())}


def _sources_text(draft: Draft, section: Section | None) -> str:
    if not draft.sources:
        return ""
    focus = draft.task if section is None else f"{section.title} {section.body}"
    nearest = condense("\n\n".join(draft.sources), budget_chars=_SOURCES_LIMIT_CHARS, focus=focus)
    return f"# Sources\n{nearest.text}\n\n"
