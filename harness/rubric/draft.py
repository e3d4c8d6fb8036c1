"""A draft as checks see it: the text, its parts, and what it may draw on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from harness.compress import Section, sections_of, sentences_of


@dataclass(frozen=True)
class Draft:
    """A text under evaluation. Not slotted: its parts are worked out once, on first use."""

    text: str
    """What was written, in Markdown."""
    task: str
    """What was asked for."""
    sources: tuple[str, ...] = ()
    """What it may rest on."""

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """The parts under each heading; a blank preamble is left out."""
        return tuple(s for s in sections_of(self.text) if s.level > 0 or s.text.strip())

    @cached_property
    def sentences(self) -> tuple[tuple[Section, str], ...]:
        """Every sentence, with the section it stands in; headings are not sentences."""
        return tuple(
            (section, sentence)
            for section in self.sections
            for sentence in sentences_of(section.body)
        )

    @cached_property
    def evidence(self) -> str:
        """Task and sources as one text, in lower case: what a word or number may come from."""
        return "\n".join((self.task, *self.sources)).lower()
