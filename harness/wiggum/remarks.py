"""What is said against a draft, as its reviser is told."""

from __future__ import annotations

from collections.abc import Sequence

from harness.compress import Section
from harness.rubric import DimensionScore, Finding
from harness.wiggum.round import Round

_CHECKED_SHOWN = 4
"""Of what checks find in one section: more would bury the first under the rest. What evaluators
say is told in full: there is little of it, and each said it for a reason."""


def located(
    focus: Sequence[DimensionScore], sections: Sequence[Section]
) -> dict[int, tuple[str, ...]] | None:
    """What is said against single sections, by their index, each thing once.

    None when something concerns the whole draft, or a dimension failed without findings: sections
    one by one cannot mend that.
    """
    told: dict[int, dict[str, DimensionScore]] = {}
    for score in focus:
        if not score.findings:
            return None
        for finding in score.findings:
            index = place_of(finding, sections)
            if index is None:
                return None
            told.setdefault(index, {}).setdefault(finding.message, score)
    return {index: tuple(_shown(messages)) for index, messages in sorted(told.items())}


def listed(focus: Sequence[DimensionScore]) -> tuple[str, ...]:
    """All that is said against a draft: for each dimension why not more, and what to change."""
    lines: list[str] = []
    for score in focus:
        if score.reason or not score.findings:
            lines.append(f"{score.name}: {score.reason or f'{score.score:g}, which is too low'}")
        for finding in score.findings:
            if finding.message not in score.reason:
                place = f" (in '{finding.section}')" if finding.section else ""
                lines.append(f"{score.name}{place}: {finding.message}")
    return tuple(dict.fromkeys(lines))


def cited(focus: Sequence[DimensionScore], sections: Sequence[Section]) -> tuple[int, ...]:
    """The sections that something is said against, in order."""
    places = {place_of(finding, sections) for score in focus for finding in score.findings}
    return tuple(sorted(place for place in places if place is not None))


def score_history(rounds: Sequence[Round]) -> str:
    """How the rounds so far were scored, a line for each.

    Empty for a single one: what is said against that draft tells it all.
    """
    if len(rounds) < 2:
        return ""
    lines = [
        f"- round {one.number}: "
        + ", ".join(f"{name} {score:g}" for name, score in one.verdict.vector.items())
        for one in rounds
    ]
    return "Scores so far:\n" + "\n".join(lines)


def place_of(finding: Finding, sections: Sequence[Section]) -> int | None:
    """The section of these that a finding is about; None for the whole draft.

    A finding that was carried over from an earlier draft has that one's numbers: then its title
    decides, if only one section has it.
    """
    index, title = finding.section_index, finding.section
    if index is None:
        return None
    if index < len(sections) and title in (None, sections[index].title):
        return index
    namesakes = [number for number, section in enumerate(sections) if section.title == title]
    return namesakes[0] if len(namesakes) == 1 else None


def _shown(messages: dict[str, DimensionScore]) -> list[str]:
    checked = [text for text, score in messages.items() if score.source == "checked"]
    return [text for text in messages if text not in checked[_CHECKED_SHOWN:]]
