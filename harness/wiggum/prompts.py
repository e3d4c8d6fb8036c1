"""What the producer is told when it revises.

A prompt runs from what stays the same between rounds to what changes, so that a prefix cache serves
its beginning: sources, task, requirements; then the draft; then what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from harness.compress import Section, condense_around, matter_of, passages_of, sections_of
from harness.compress.markdown import sentence_pieces
from harness.rubric import DimensionScore, Draft, Finding
from harness.wiggum.policy import Round

_SECTION_SOURCES_CHARS = 1_500
"""How much of the sources is shown for one section, the nearest first: a section is a paragraph or
two."""

_DRAFT_SOURCES_CHARS = 6_000
"""The same for a whole draft."""

_SHOWN_SHARE = 0.7
"""Of the characters shown of a long draft, the share for whole sections that no finding names."""

_QUOTED_CHARS = 60
"""Findings quote at least this much of a long sentence."""

_SHORT_CHARS = 12
"""A shorter sentence may occur in a finding by chance."""

_SHORT_SECTION_CHARS = 500
"""A section of fewer characters is two or three sentences."""

_BREAKS_OFF = "It breaks off before its end: be brief enough to come to it."


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionPrompts:
    """The prompts of one loop's revisions."""

    requirements: tuple[str, ...]
    shorten_over: int
    """A draft of more characters is shown as its outline, with what is to be changed in full."""

    def sections(
        self, draft: Draft, findings: Mapping[int, Sequence[str]], rounds: Sequence[Round]
    ) -> dict[int, str]:
        """One prompt for each section with findings, by index."""
        around = ""
        if findings and len(draft.text) > self.shorten_over:
            # Around all of them at once: then the calls begin alike.
            view = condense_around(
                draft.text,
                sections=findings.keys(),
                budget_chars=self.shorten_over,
                focus=draft.task,
            )
            around = f"The whole answer, shortened where it says […]:\n{view.text.strip()}\n\n"
        return {
            index: self._section(draft, index, messages, rounds, around=around)
            for index, messages in findings.items()
        }

    def _section(
        self,
        draft: Draft,
        index: int,
        messages: Sequence[str],
        rounds: Sequence[Round],
        *,
        around: str,
    ) -> str:
        section = draft.sections[index]
        name = section.title or "the opening"
        sources = _section_sources(draft, index, rounds)
        close = " that stay close to the words of the sources" if draft.sources else ""
        good = _uncriticised(section.body, messages)
        called = "An earlier version of a" if good == section.body.strip() else "What is good in a"
        earlier = f"{called} text about {name}:\n{good}" if good else ""
        keep = "Keep what is good. " if good else ""
        return (
            f"{sources}Part of an answer to: {draft.task}{self._asked_in_passing}\n\n"
            f"{around}{_paragraph(earlier)}{_paragraph(score_history(rounds))}"
            f"What was wrong with the earlier version:\n{_bullets(messages)}\n\n"
            f"{keep}Write about {name} again, in whole sentences{close}, and nothing else."
        )

    def afresh(self, draft: Draft, index: int, rounds: Sequence[Round]) -> str:
        """A prompt for one section that shows the sources alone; empty if there are none.

        A small model repeats an earlier version, its mistakes included, rather than revise it.
        """
        section = draft.sections[index]
        sources = _section_sources(draft, index, rounds)
        if not sources:
            return ""
        length = (
            "in two or three sentences" if len(section.body) < _SHORT_SECTION_CHARS else "again"
        )
        return (
            f"{sources}Write about {section.title or draft.task} {length}. "
            "Use only the words of the text above."
        )

    def edits(
        self, draft: Draft, focus: Sequence[DimensionScore], rounds: Sequence[Round]
    ) -> tuple[str, tuple[int, ...]]:
        """A prompt that asks for sections of the draft, and which of them it shows in full."""
        sections = draft.sections
        shown = tuple(range(len(sections)))
        text, note = draft.text, ""
        if len(text) > self.shorten_over:
            shown = _nearest_sections(draft, focus, room=round(self.shorten_over * _SHOWN_SHARE))
            view = condense_around(
                text, sections=shown, budget_chars=self.shorten_over, focus=draft.task
            )
            text = view.text
            titles = ", ".join(f"'{sections[i].title}'" for i in shown if sections[i].level)
            note = (
                "It is shortened where it says […]; of the sections that are there, "
                f"only these may be changed: {titles}. "
            )
        prompt = (
            f"{self._opening(draft)}"
            f"An earlier version:\n{text.strip()}\n\n"
            f"{_paragraph(score_history(rounds))}"
            f"What is wrong with it:\n{_bullets(listed(focus))}\n\n"
            "Write again only the sections that must change for that, each whole and under its "
            "own heading as it stands above; leave out those that are good. Where a section is "
            f"missing, write the one before it again and then the new one. {note}"
            "Keep to the task, and write the text itself: nothing about it or about the task."
        )
        return prompt, shown

    def whole(self, draft: Draft, focus: Sequence[DimensionScore], rounds: Sequence[Round]) -> str:
        """A prompt that asks for the whole draft; it begins like the prompt for the first draft."""
        breaks_off = [_BREAKS_OFF] if draft.cut else []
        return (
            f"{self._opening(draft)}"
            f"An earlier version:\n{draft.text.strip()}\n\n"
            f"{_paragraph(score_history(rounds))}"
            "Write it again, and nothing else: the text itself, and nothing about it or about the "
            "task; keep to the task, and keep what is good. "
            "Avoid what was wrong with the earlier version:\n"
            f"{_bullets([*listed(focus), *breaks_off])}"
        )

    def _opening(self, draft: Draft) -> str:
        sources = _sources(draft, (draft.task,), _DRAFT_SOURCES_CHARS)
        return f"{sources}{draft.task}\n\n{self._asked}"

    @property
    def _asked(self) -> str:
        if not self.requirements:
            return ""
        return f"What the text must be like:\n{_bullets(self.requirements)}\n\n"

    @property
    def _asked_in_passing(self) -> str:
        """The same in one line: a small model takes a list for what to write about."""
        if not self.requirements:
            return ""
        sentences = (text if text[-1:] in ".?!" else f"{text}." for text in self.requirements)
        return f" All of it must be like this: {' '.join(dict.fromkeys(sentences))}"


def _uncriticised(body: str, messages: Sequence[str]) -> str:
    """A section's text without the sentences that a finding quotes.

    A small model repeats what it has read twice.
    """
    remarks = " ".join(" ".join(message.split()) for message in messages)
    return "".join(
        piece
        for piece in sentence_pieces(body)
        if len(said := " ".join(piece.split())[:_QUOTED_CHARS]) < _SHORT_CHARS
        or said not in remarks
    ).strip()


def _first_version(draft: Draft, index: int, rounds: Sequence[Round]) -> Section:
    """The section as it was first written: sources are chosen by this text in every round.

    Others may be nearer to its new text, but then no two prompts would begin alike.
    """
    title = draft.sections[index].title
    number = sum(section.title == title for section in draft.sections[:index])
    for one in rounds:
        namesakes = [s for s in sections_of(one.draft) if s.title == title]
        if number < len(namesakes):
            return namesakes[number]
    return draft.sections[index]


def _nearest_sections(
    draft: Draft, focus: Sequence[DimensionScore], *, room: int
) -> tuple[int, ...]:
    """The sections to show in full: the cited ones, then as many others as there is room for.

    Those that share the most words with the findings come first; at least one is shown.
    """
    sections = draft.sections
    chosen = list(cited(focus, sections))
    wanted = matter_of(" ".join(listed(focus)))
    by_nearness = sorted(
        range(len(sections)), key=lambda i: len(wanted & matter_of(sections[i].text)), reverse=True
    )
    room -= sum(len(sections[index].text) for index in chosen)
    for index in by_nearness:
        length = len(sections[index].text)
        if index not in chosen and (length <= room or not chosen):
            chosen.append(index)
            room -= length
    return tuple(sorted(chosen))


def _sources(draft: Draft, about: Sequence[str], limit_chars: int) -> str:
    if not draft.sources:
        return ""
    return f"{nearest_sources(draft.sources, to=about, limit_chars=limit_chars)}\n\n"


def _section_sources(draft: Draft, index: int, rounds: Sequence[Round]) -> str:
    first = _first_version(draft, index, rounds)
    return _sources(draft, (first.title, first.body), _SECTION_SOURCES_CHARS)


def _paragraph(text: str) -> str:
    return f"{text}\n\n" if text else ""


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in dict.fromkeys(lines))


_CHECKED_SHOWN = 4
"""How many findings of checks are told about one section: more would bury the first. Findings of
evaluators are few, and all are told."""


def located(
    focus: Sequence[DimensionScore], sections: Sequence[Section]
) -> dict[int, tuple[str, ...]] | None:
    """The findings about each section, by index, each once.

    None if one concerns the whole draft, or a dimension failed without findings: rewriting single
    sections cannot mend that.
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
    """All that is wrong with a draft: for each dimension the reason, then what to change."""
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
    """The sections that findings are about, in order."""
    places = {place_of(finding, sections) for score in focus for finding in score.findings}
    return tuple(sorted(place for place in places if place is not None))


def score_history(rounds: Sequence[Round]) -> str:
    """The scores of the rounds so far, one line each; empty for a single round."""
    if len(rounds) < 2:
        return ""
    lines = [
        f"- round {one.number}: "
        + ", ".join(f"{name} {score:g}" for name, score in one.verdict.vector.items())
        for one in rounds
    ]
    return "Scores so far:\n" + "\n".join(lines)


def place_of(finding: Finding, sections: Sequence[Section]) -> int | None:
    """The section that a finding is about; None for the whole draft.

    A finding that was carried over has the index it had in an earlier draft: if its title does not
    fit, the only section with that title is meant.
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


_PASSAGE_CHARS = 600


def nearest_sources(sources: Sequence[str], *, to: Sequence[str], limit_chars: int) -> str:
    """The sources that share the most words with some texts, nearest first, as one text.

    Sources are whole as long as they fit: fragments of many mislead a small model more than the
    whole of one. If the nearest source alone is too long, its nearest passages are shown. If all
    sources fit they stay in their order, so that prompts begin alike for a prefix cache.

    Args:
        sources: All there are.
        to: What they should bear on. A later text only decides between sources that are equally
            near to the earlier ones.
        limit_chars: How long the result may be, about.
    """
    every = list(dict.fromkeys(sources))
    if sum(len(source) for source in every) <= limit_chars:
        return "\n\n".join(every)
    wanted = [matter_of(text) for text in to]
    by_nearness = sorted(every, key=partial(_nearness, wanted), reverse=True)
    chosen: list[str] = []
    for source in by_nearness:
        room = limit_chars - sum(len(text) for text in chosen)
        if len(source) <= room:
            chosen.append(source)
        elif not chosen:
            chosen.append(_nearest_passages(source, wanted, limit_chars))
    return "\n\n".join(chosen)


def _nearest_passages(source: str, wanted: Sequence[frozenset[str]], limit_chars: int) -> str:
    """The passages that share the most words with some texts, in the order of the source."""
    passages = [one.text for one in passages_of(source, max_chars=min(_PASSAGE_CHARS, limit_chars))]
    by_nearness = sorted(
        range(len(passages)), key=lambda index: _nearness(wanted, passages[index]), reverse=True
    )
    chosen: list[int] = []
    for index in by_nearness:
        room = limit_chars - sum(len(passages[other]) + 2 for other in chosen)
        if len(passages[index]) <= room:
            chosen.append(index)
    return "\n\n".join(passages[index] for index in sorted(chosen))


def _nearness(wanted: Sequence[frozenset[str]], text: str) -> list[int]:
    words = matter_of(text)
    return [len(words & others) for others in wanted]
