"""The producer's prompts for revisions.

A prompt begins with the parts that stay the same between rounds, so that a prefix cache serves
them: sources, task, requirements; then the draft; then its findings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from harness.compress import Section, condense, matter_of, passages_of, sections_of
from harness.inference import Message
from harness.rubric import DimensionScore, Draft, Finding, Prompts, Rubric
from harness.rubric.templates import FIELD, OF_WRITING
from harness.text.sentences import sentence_pieces
from harness.wiggum.policy import Round

# The most characters of sources shown for one section, which is a paragraph or two.
_SECTION_SOURCES_CHARS = 1_500
_DRAFT_SOURCES_CHARS = 6_000  # the same for a whole draft
# The share of a shortened draft's characters for sections shown in full; the rest is an outline.
_SHOWN_SHARE = 0.7
_QUOTED_CHARS = 60  # findings quote at least this much of a long sentence
_SHORT_CHARS = 12  # a shorter sentence may occur in a finding by chance
_SHORT_SECTION_CHARS = 500  # a section of fewer is two or three sentences


@dataclass(frozen=True, slots=True)
class FailedDraft:
    """A draft to be revised, with what failed in it, worst first, and all rounds so far."""

    draft: Draft
    focus: Sequence[DimensionScore]
    rounds: Sequence[Round]


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionPrompts:
    """The prompts of one loop's revisions."""

    prompts: Prompts = field(default_factory=Prompts)
    requirements: tuple[str, ...] = ()
    # A draft of more characters is shown as its outline, with the sections to change in full.
    shorten_over: int = 5_000

    @classmethod
    def of(cls, rubric: Rubric) -> Self:
        """The prompts of loops by a rubric."""
        over = rubric.shorten.revise_over
        return cls(prompts=rubric.prompts, requirements=rubric.requirements, shorten_over=over)

    def first(self, draft: Draft) -> str:
        """A prompt for the first draft, with all sources."""
        return self.prompts.filled(
            "draft",
            sources="\n\n".join(draft.sources),
            task=draft.task,
            requirements=_bullets(self.requirements),
        )

    @property
    def told(self) -> tuple[str, ...]:
        """What the producer is told beside task, sources and findings."""
        templates = (self.prompts.in_force[name] for name in OF_WRITING)
        return (*self.requirements, *(FIELD.sub("\n", text) for text in templates))

    def sections(
        self, failed: FailedDraft, findings: Mapping[int, Sequence[str]]
    ) -> dict[int, Message]:
        """One prompt for each section with findings, by index."""
        outline = ""
        if findings and len(failed.draft.text) > self.shorten_over:
            # One outline around all of these sections, so that the calls begin alike.
            outline = self._outline(failed.draft, findings).strip()
        return {
            index: self._section(failed, index, messages, outline=outline)
            for index, messages in findings.items()
        }

    def _section(
        self, failed: FailedDraft, index: int, messages: Sequence[str], *, outline: str
    ) -> Message:
        draft, section = failed.draft, failed.draft.sections[index]
        uncriticized = without_criticized(section.body, messages)
        sentences = (text if text[-1:] in ".?!" else f"{text}." for text in self.requirements)
        return self.prompts.message(
            "section",
            sources=_section_sources(failed, index),
            task=draft.task,
            requirements=_bullets(self.requirements),
            # A small model takes a list of requirements for a list of topics to write about.
            requirements_in_a_line=" ".join(dict.fromkeys(sentences)),
            outline=outline,
            section=section.title or self.prompts.filled("opening"),
            good=uncriticized,
            whole=uncriticized == section.body.strip(),  # no finding quotes a sentence of it
            history=score_history(failed.rounds),
            findings=_bullets(messages),
        )

    def afresh(self, failed: FailedDraft, index: int) -> str:
        """A prompt for one section that shows the sources alone; empty if there are none."""
        # A small model repeats an earlier version, its mistakes included, rather than revise it.
        draft, section = failed.draft, failed.draft.sections[index]
        sources = _section_sources(failed, index)
        if not sources:
            return ""
        return self.prompts.filled(
            "afresh",
            sources=sources,
            section=section.title or draft.task,
            task=draft.task,
            short=len(section.body) < _SHORT_SECTION_CHARS,
        )

    def edits(self, failed: FailedDraft) -> tuple[Message, tuple[int, ...]]:
        """A prompt that asks for sections of the draft; the indices of those it shows in full."""
        draft, sections = failed.draft, failed.draft.sections
        text = draft.text
        in_full = tuple(range(len(sections)))
        titles = ""
        if len(text) > self.shorten_over:
            in_full = _nearest_sections(failed, room=round(self.shorten_over * _SHOWN_SHARE))
            text = self._outline(draft, in_full)
            titles = ", ".join(f"'{sections[i].title}'" for i in in_full if sections[i].level)
        fields = self._fields(failed, text)
        return self.prompts.message("edits", shown=titles, **fields), in_full

    def _outline(self, draft: Draft, in_full: Collection[int]) -> str:
        """A long draft with these sections in full, and the others shortened so that it fits."""
        return condense(
            draft.text,
            sections=in_full,
            budget_chars=self.shorten_over,
            focus=draft.task,
            keep_tail_chars=0,
        )

    def whole(self, failed: FailedDraft) -> Message:
        """A prompt that asks for the whole draft; it begins like the prompt for the first draft."""
        fields = self._fields(failed, failed.draft.text)
        return self.prompts.message("whole", cut=failed.draft.cut, **fields)

    def _fields(self, failed: FailedDraft, text: str) -> dict[str, str]:
        task, sources = failed.draft.task, failed.draft.sources
        return {
            "sources": nearest_sources(sources, to=(task,), limit_chars=_DRAFT_SOURCES_CHARS),
            "task": task,
            "requirements": _bullets(self.requirements),
            "draft": text.strip(),
            "history": score_history(failed.rounds),
            "findings": _bullets(faults_of(failed.focus)),
        }


def without_criticized(body: str, messages: Sequence[str]) -> str:
    """A section's text without the sentences that a finding quotes."""
    remarks = " ".join(" ".join(message.split()) for message in messages)
    remaining = []
    for piece in sentence_pieces(body):
        quotation = " ".join(piece.split())[:_QUOTED_CHARS]
        if len(quotation) < _SHORT_CHARS or quotation not in remarks:
            remaining.append(piece)
    return "".join(remaining).strip()


def _first_version(failed: FailedDraft, index: int) -> Section:
    """The section as it was first written. In every round, sources are chosen by this text."""
    # Other sources may be nearer to its new text, but then no two prompts would begin alike.
    # It is found by title and occurrence, since earlier rounds may have more or fewer sections.
    sections = failed.draft.sections
    title = sections[index].title
    number = sum(section.title == title for section in sections[:index])
    for round_ in failed.rounds:
        namesakes = [s for s in sections_of(round_.draft) if s.title == title]
        if number < len(namesakes):
            return namesakes[number]
    return sections[index]


def _nearest_sections(failed: FailedDraft, *, room: int) -> tuple[int, ...]:
    """Indices of the sections to show in full, of `room` characters if possible.

    Findings cite some; of the others those that share most words with the findings come first.
    """
    sections = failed.draft.sections
    texts = [section.text for section in sections]
    order = _by_nearness(texts, to=[" ".join(faults_of(failed.focus))])
    # At least one section is shown, also if it is longer than there is room.
    chosen = list(cited(failed.focus, sections)) or order[:1]
    room -= sum(len(texts[index]) for index in chosen)
    chosen += _fitting(texts, [index for index in order if index not in chosen], room=room)
    return tuple(sorted(chosen))


def _section_sources(failed: FailedDraft, index: int) -> str:
    first = _first_version(failed, index)
    sources = failed.draft.own_sources(index) or failed.draft.sources
    about = (first.title, first.body)
    return nearest_sources(sources, to=about, limit_chars=_SECTION_SOURCES_CHARS)


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in dict.fromkeys(lines))


# The most findings of checks shown for one section: more would bury the first. Findings of
# evaluators are few, and all are shown.
_CHECKED_SHOWN = 4


def located(
    focus: Sequence[DimensionScore], sections: Sequence[Section]
) -> dict[int, tuple[str, ...]]:
    """Section index → the findings about it; empty if rewriting single sections cannot help."""
    source_by_message: dict[int, dict[str, str]] = {}
    for score in focus:
        if not score.findings:
            return {}
        for finding in score.findings:
            index = place_of(finding, sections)
            if index is None:
                return {}
            source_by_message.setdefault(index, {}).setdefault(finding.message, score.source)
    findings = {}
    for index, sources in sorted(source_by_message.items()):
        checked = [message for message, source in sources.items() if source == "checked"]
        left_out = checked[_CHECKED_SHOWN:]
        findings[index] = tuple(message for message in sources if message not in left_out)
    return findings


def faults_of(focus: Sequence[DimensionScore]) -> tuple[str, ...]:
    """All faults of a draft: for each dimension the reason, then what to change."""
    lines: list[str] = []
    for score in focus:
        if score.reason or not score.findings:
            lines.append(f"{score.name}: {score.reason or f'{score.score:g}, which is too low'}")
        for finding in score.findings:
            # A check's reason already contains its findings.
            if finding.message not in score.reason:
                place = f" (in '{finding.section}')" if finding.section else ""
                lines.append(f"{score.name}{place}: {finding.message}")
    return tuple(dict.fromkeys(lines))


def cited(focus: Sequence[DimensionScore], sections: Sequence[Section]) -> tuple[int, ...]:
    """Indices of the sections that findings are about, in order."""
    places = {place_of(finding, sections) for score in focus for finding in score.findings}
    return tuple(sorted(place for place in places if place is not None))


def score_history(rounds: Sequence[Round]) -> str:
    """The scores of the rounds so far, on one scale, a line each; empty for a single round."""
    if len(rounds) < 2:
        return ""
    return "\n".join(
        f"- round {round_.number}: "
        + ", ".join(f"{score.name} {score.points:g}" for score in round_.verdict.scores)
        for round_ in rounds
    )


def place_of(finding: Finding, sections: Sequence[Section]) -> int | None:
    """Index of the section that a finding is about; None for the whole draft."""
    index, title = finding.section_index, finding.section
    if index is None:
        return None
    if index < len(sections) and title in (None, sections[index].title):
        return index
    # A finding from an earlier round has the index that its section had in that draft, so that only
    # the title can find it.
    namesakes = [number for number, section in enumerate(sections) if section.title == title]
    return namesakes[0] if len(namesakes) == 1 else None


_PASSAGE_CHARS = 600


def nearest_sources(sources: Sequence[str], *, to: Sequence[str], limit_chars: int) -> str:
    """The sources that share the most words with the texts `to`, nearest first, as one text.

    A later text of `to` only decides between sources that are equally near to the earlier ones. The
    result is about `limit_chars` long at most.
    """
    distinct = list(dict.fromkeys(sources))
    # If all fit, they stay in their order, so that prompts begin alike for a prefix cache.
    if sum(len(source) for source in distinct) <= limit_chars:
        return "\n\n".join(distinct)
    order = _by_nearness(distinct, to=to)
    nearest = distinct[order[0]]
    # Whole sources only: fragments of many mislead a small model more than the whole of one.
    if len(nearest) > limit_chars:
        distinct[order[0]] = _nearest_passages(nearest, to=to, limit_chars=limit_chars)
    return "\n\n".join(distinct[index] for index in _fitting(distinct, order, room=limit_chars))


def _nearest_passages(source: str, *, to: Sequence[str], limit_chars: int) -> str:
    """The passages of a source that share the most words with some texts, in their order."""
    most_chars = min(_PASSAGE_CHARS, limit_chars)
    passages = [f"{passage.text}\n\n" for passage in passages_of(source, max_chars=most_chars)]
    chosen = _fitting(passages, _by_nearness(passages, to=to), room=limit_chars)
    return "".join(passages[index] for index in sorted(chosen)).rstrip("\n")


def _by_nearness(texts: Sequence[str], *, to: Sequence[str]) -> list[int]:
    """Indices of the texts, from the one on that shares most words with the texts `to`."""
    matters = [matter_of(text) for text in to]
    shared = [[len(words & matter) for matter in matters] for words in map(matter_of, texts)]
    return sorted(range(len(texts)), key=lambda index: shared[index], reverse=True)


def _fitting(texts: Sequence[str], order: Iterable[int], *, room: int) -> list[int]:
    """Indices in this order, of the texts that fit into so many characters."""
    chosen = []
    for index in order:
        if len(texts[index]) <= room:
            chosen.append(index)
            room -= len(texts[index])
    return chosen
