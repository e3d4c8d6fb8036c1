"""The producer's side of the loop: making the next draft from what failed in the last.

Where the findings name sections, only those are rewritten, each in a call of its own, and spliced
back: what was not criticised stays as it was, byte for byte. Otherwise, and without headings, the
whole draft is.

Prompts run from what stays the same between rounds to what does not, so that a prefix cache serves
their beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from harness.compress import sections_of, sentences_of, splice
from harness.errors import InvalidInput, ReplyInvalid
from harness.inference import ChatRequest, Completion, Message
from harness.rubric import Ask, DimensionScore, Draft, Finding
from harness.wiggum.nearest import nearest_sources

_SECTION_SOURCES_CHARS = 1_500
"""How much of the sources the rewriting of one section sees, those nearest to it: a section is a
paragraph or two."""

_DRAFT_SOURCES_CHARS = 6_000
"""The same for the rewriting of a whole draft."""

_CHARS_PER_TOKEN = 2
"""Low, so that a draft written again is not cut off; in English there are about four."""

_TEMPERATURE = 0.3
"""Some freedom: a greedy model that failed would say the same again."""

_FREQUENCY_PENALTY = 0.2
"""Small models that write something again fall into saying one thing for ever."""

_FINDINGS_SHOWN = 4
"""More would bury the first under the rest."""


class Reviser:
    """Revises the drafts of a loop with the producer model.

    Args:
        ask: Reaches the model.
        model: Tag of the producer's endpoint.
        requirements: What the rubric asks of a draft. A draft written again whole is reminded of
            all of them, lest it lose on one dimension what it gains on another.
        max_output_tokens: Room for one section. Rewritten whole, a draft has room for its own
            length at least.
    """

    def __init__(
        self, *, ask: Ask, model: str, requirements: Sequence[str], max_output_tokens: int
    ) -> None:
        self._ask = ask
        self._model = model
        self._requirements = tuple(requirements)
        self._max_output_tokens = max_output_tokens
        # By sources, index and title: a section that is written again sees the same ones each time,
        # though others may be nearer to its new text.
        self._shown: dict[tuple[tuple[str, ...], int, str], str] = {}

    async def revise(
        self, draft: Draft, focus: Sequence[DimensionScore], *, round_number: int
    ) -> str:
        """The next draft.

        Args:
            draft: What to start from.
            focus: The dimensions that failed.
            round_number: Which round it is for; seeds the sampling, so that runs repeat.

        Raises:
            InferenceError: The model gave no revision, or none for one of several sections.
        """
        findings = findings_by_section(focus)
        sections = sections_of(draft.text)
        if not findings or not any(section.level for section in sections):
            return await self._rewrite_whole(draft, focus, round_number)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {
                    index: group.create_task(
                        self._rewrite_section(draft, index, found, round_number)
                    )
                    for index, found in findings.items()
                }
        except ExceptionGroup as failed:
            # One failed call ends the round; the first says why.
            raise failed.exceptions[0] from None
        try:
            return splice(draft.text, {index: task.result() for index, task in tasks.items()})
        except InvalidInput as error:
            raise ReplyInvalid(
                f"the revision cannot be put back into the draft: {error}",
                endpoint=self._model,
                text="\n\n".join(task.result() for task in tasks.values()),
            ) from error

    async def _rewrite_section(
        self, draft: Draft, index: int, findings: Sequence[Finding], round_number: int
    ) -> str:
        section = sections_of(draft.text)[index]
        place = (draft.sources, index, section.title)
        if place not in self._shown:
            self._shown[place] = _sources(
                draft, (section.title, section.body), _SECTION_SOURCES_CHARS
            )
        prompt = (
            f"Part of an answer to: {draft.task}\n\n"
            f"{self._shown[place]}"
            f"An earlier version of a text about {section.title}:\n{section.body.strip()}\n\n"
            f"Write about {section.title} again, and nothing else, in whole sentences"
            f"{' that stay close to the words of the sources' if draft.sources else ''}. "
            "Avoid what was wrong with the earlier version:\n"
            f"{_listed(finding.message for finding in findings)}"
        )
        return await self._text(prompt, round_number, max_output_tokens=self._max_output_tokens)

    async def _rewrite_whole(
        self, draft: Draft, focus: Sequence[DimensionScore], round_number: int
    ) -> str:
        # As the first draft was asked for, up to the earlier version.
        prompt = (
            f"{_sources(draft, (draft.task,), _DRAFT_SOURCES_CHARS)}"
            f"{draft.task}\n\n"
            f"What the text must be like:\n{_listed(self._requirements, most=None)}\n\n"
            f"An earlier version:\n{draft.text.strip()}\n\n"
            "Write it again, and nothing else; keep to the task, and keep what is good. "
            "Avoid what was wrong with the earlier version:\n"
            f"{_listed(f'{score.name}: {score.reason}' for score in focus)}"
        )
        room = max(self._max_output_tokens, len(draft.text) // _CHARS_PER_TOKEN)
        return await self._text(prompt, round_number, max_output_tokens=room)

    async def _text(self, prompt: str, round_number: int, *, max_output_tokens: int) -> str:
        completion: Completion = await self._ask(
            ChatRequest(
                model=self._model,
                role="producer",
                messages=(Message("user", prompt),),
                max_output_tokens=max_output_tokens,
                temperature=_TEMPERATURE,
                frequency_penalty=_FREQUENCY_PENALTY,
                seed=round_number,
            )
        )
        text = completion.text.strip()
        if completion.finish_reason == "length":
            text = without_broken_end(text)
        if not text:
            raise ReplyInvalid("the revision is empty", endpoint=self._model, text=completion.text)
        return text


def without_broken_end(text: str) -> str:
    """A reply that the token limit cut, without the sentence it was cut in.

    Left as it is when that would leave nothing, or when the cut is inside a code fence: the rubric
    says then that it breaks off.
    """
    sentences = sentences_of(text)
    if len(sentences) < 2 or text.count("```") % 2:
        return text
    return text[: text.rindex(sentences[-1])].rstrip()


def findings_by_section(focus: Sequence[DimensionScore]) -> dict[int, tuple[Finding, ...]]:
    """The findings of the failed dimensions, by the index of the section they are about.

    Empty when a dimension failed without findings, or one concerns the whole draft: then sections
    alone cannot mend it.
    """
    found: dict[int, list[Finding]] = {}
    for score in focus:
        if not score.findings:
            return {}
        for finding in score.findings:
            if finding.section_index is None:
                return {}
            found.setdefault(finding.section_index, []).append(finding)
    return {index: tuple(findings) for index, findings in sorted(found.items())}


def _sources(draft: Draft, about: Sequence[str], limit_chars: int) -> str:
    if not draft.sources:
        return ""
    return f"{nearest_sources(draft.sources, to=about, limit_chars=limit_chars)}\n\n"


def _listed(lines: Iterable[str], *, most: int | None = _FINDINGS_SHOWN) -> str:
    """The first `most`, each once; all when None."""
    return "\n".join(f"- {line}" for line in list(dict.fromkeys(lines))[:most])
