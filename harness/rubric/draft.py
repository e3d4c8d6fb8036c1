"""A draft as checks see it: the text, its parts, and what it may draw on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from harness.compress import Section, sections_of, sentences_of
from harness.rubric.fences import Fence, fences_in

_PROSE = {"paragraph", "item", "quote"}


@dataclass(frozen=True)
class Draft:
    """A text under evaluation. Not slotted: its parts are worked out once, on first use."""

    text: str
    """What was written, in Markdown."""
    task: str
    """What was asked for."""
    sources: tuple[str, ...] = ()
    """What it may rest on."""
    cut: bool = False
    """Whether the reply that it comes from was cut: such a draft passes no loop."""

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """As `sections_of` cuts it; none for a blank text."""
        return sections_of(self.text) if self.text.strip() else ()

    @cached_property
    def parts(self) -> tuple[tuple[int, Section], ...]:
        """The sections that ought to have a text of their own, each with its index in `sections`.

        A heading that is followed at once by a deeper one is a title, and needs none.
        """
        return tuple(
            (index, section)
            for index, section in enumerate(self.sections)
            if section.body.strip() or not self.has_subsections(index)
        )

    @cached_property
    def chapters(self) -> tuple[tuple[int, Section], ...]:
        """What is asked of each section is asked of these: the parts under headings.

        Text above the first heading is none of them, unless there are no headings.
        """
        return tuple(part for part in self.parts if part[1].level) or self.parts

    @cached_property
    def sentences(self) -> tuple[tuple[int, Section, str], ...]:
        """Every sentence, with the section it stands in and that one's index in `sections`.

        Headings, code and tables are not sentences.
        """
        return tuple(
            (index, section, sentence)
            for index, section in enumerate(self.sections)
            for block in section.blocks
            if block.kind in _PROSE
            for sentence in sentences_of(block.text)
        )

    @cached_property
    def fences(self) -> tuple[tuple[int, Section, Fence], ...]:
        """Every block of fenced code, with the section it stands in and that one's index."""
        return tuple(
            (index, section, fence)
            for index, section in enumerate(self.sections)
            for fence in fences_in(section.blocks)
        )

    @cached_property
    def evidence(self) -> str:
        """Task and sources as one text: what a number may come from."""
        return "\n".join((self.task, *self.sources))

    @property
    def has_sources(self) -> bool:
        """Whether there is anything to hold it against but the task."""
        return any(source.strip() for source in self.sources)

    def has_subsections(self, index: int) -> bool:
        """Whether the section is followed by one with a deeper heading."""
        following = self.sections[index + 1 : index + 2]
        return any(section.level > self.sections[index].level for section in following)
