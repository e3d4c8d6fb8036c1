"""A draft as checks see it: its text, sections, sentences and fenced code."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import orjson

from harness.compress import Section, sections_of
from harness.compress.markdown import Block, blocks_of, lines_of, tokens_of, without_marks
from harness.inference.request import as_texts
from harness.text.languages import Language
from harness.text.sentences import sentences_of
from harness.text.words import terms

_PROSE = {"paragraph", "item", "quote"}


# Not slotted, so that its parts are computed once, on first use.
@dataclass(frozen=True)
class Draft:
    """A text under evaluation."""

    text: str
    """The draft, in Markdown."""
    task: str
    """What the draft was written for."""
    sources: tuple[str, ...] = ()
    """Texts that the draft may rely on."""
    source_sections: tuple[str, ...] = ()
    """The heading of the section that each source belongs to, or an empty text; empty if none
    belongs to a section."""
    told: tuple[str, ...] = ()
    """Texts that a loop gave the producer beside task and sources; none may stand in the draft."""
    cut: bool = False
    """Whether the reply was cut; such a draft does not pass a loop."""
    language: Language | None = None
    """The language that the rubric asks for; None if it does not say."""
    targets: tuple[str, ...] = ()
    """Right answers, in different words; empty if none is known."""

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """The sections, as `sections_of` cuts them; empty for a blank text."""
        return sections_of(self.text) if self.text.strip() else ()

    @cached_property
    def parts(self) -> tuple[tuple[int, Section], ...]:
        """The sections that need a text of their own, each with its index in `sections`."""
        # A heading that is followed at once by a deeper one is a title, and needs none.
        return tuple(
            (index, section)
            for index, section in enumerate(self.sections)
            if section.body.strip() or not self.has_subsections(index)
        )

    @cached_property
    def chapters(self) -> tuple[tuple[int, Section], ...]:
        """The sections that "each section" means in checks: the parts under headings."""
        # Text above the first heading counts only if there are no headings.
        return tuple(part for part in self.parts if part[1].level) or self.parts

    @cached_property
    def sentences(self) -> tuple[tuple[int, Section, str], ...]:
        """Every sentence, with its section and the section's index in `sections`."""
        # Headings, code and tables are not sentences.
        return tuple(
            (index, section, sentence)
            for index, section in enumerate(self.sections)
            for block in section.blocks
            if block.kind in _PROSE
            for sentence in sentences_of(visible_text((block,)), self.language)
        )

    @cached_property
    def likely_language(self) -> Language | None:
        """The rubric's language, else the likeliest one; None if the text is too short to tell."""
        if self.language is None and letter_bytes(self.visible) >= ENOUGH_BYTES:
            return language_of(self.visible)
        return self.language

    @cached_property
    def visible(self) -> str:
        """The text as a reader sees it: see `visible_text`."""
        return visible_text(blocks_of(self.text))

    @cached_property
    def fences(self) -> tuple[tuple[int, Section, Fence], ...]:
        """Every block of fenced code, with its section and the section's index."""
        return tuple(
            (index, section, fence)
            for index, section in enumerate(self.sections)
            for fence in fences_in(section.body)
        )

    @cached_property
    def evidence(self) -> str:
        """Task and sources as one text, in which numbers are looked up."""
        return "\n".join((self.task, *self.sources))

    @property
    def sha256(self) -> str:
        """Digest of text, task, sources and targets."""
        parts: list[object] = [self.text, self.task, *self.sources, *self.source_sections]
        parts += [self.targets] if self.targets else []
        return hashlib.sha256(orjson.dumps(parts)).hexdigest()

    def own_sources(self, index: int) -> tuple[str, ...]:
        """The sources that belong to one section; empty if none does."""
        title = terms(self.sections[index].title or "")
        # Not strict: there are no headings at all if sources were given as a list.
        sources = zip(self.sources, self.source_sections, strict=False)
        return tuple(source for source, heading in sources if title and terms(heading) == title)

    @property
    def has_sources(self) -> bool:
        """Whether it has any source that is not blank."""
        return any(source.strip() for source in self.sources)

    def finding(self, message: str, index: int | None, *, code: str) -> Finding:
        """A finding about the section with this index in `sections`; None for the whole draft."""
        title = None if index is None else self.sections[index].title
        return Finding(message, title, index, code=code)

    def has_subsections(self, index: int) -> bool:
        """Whether the section is followed by one with a deeper heading."""
        following = self.sections[index + 1 : index + 2]
        return any(section.level > self.sections[index].level for section in following)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of a draft, in words that a reviser can act on."""

    message: str
    """What is wrong, and what would be right."""
    section: str | None = None
    """Title of the section it concerns, for people; None for the whole draft."""
    section_index: int | None = None
    """The index of the section in `sections_of(draft)`, since titles may repeat; None for the whole
    draft."""
    code: str = ""
    """The kind of fault, for programs, such as `check.too-few`; empty if it comes from a model or
    from a function of the user's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """One block of fenced code."""

    language: str
    """The first word behind the opening fence, in lower case: `python`, `json`; or empty."""
    code: str
    closed: bool
    """Whether there is a closing fence, and no other fence is opened before it."""


def fences_in(markdown: str) -> Iterator[Fence]:
    """The fenced code of a text, in lists and quotations too, in order."""
    for token in tokens_of(markdown) if re.search("```|~~~", markdown) else ():
        if token.type == "fence" and token.map:
            language, *_ = (*token.info.lower().split(), "")
            start, end = token.map
            # A whole block has two lines more than its content: the two fences.
            has_end = end - start - 1 > len(lines_of(token.content))
            # A fence that opens inside another, as long as that one, tells that its end was left
            # out: what was meant for prose stands in code from there on.
            opens = re.search(
                rf"(?m)^ {{0,3}}{token.markup}{token.markup[0]}*[ \t]*[\w{{]", token.content
            )
            yield Fence(
                language=language.strip("{}."), code=token.content, closed=has_end and opens is None
            )


# Numerals and bullets of other scripts, which CommonMark does not take for those of items.
_ITEM = re.compile(
    r"(?m)^[ \t]*(?:(?![0-9])\d{1,2}[.)\uff0e\u3001-]|\d{1,2}\u3001|[(\uff08]\d{1,2}[)\uff09]"
    r"|[一二三四五六七八九十]{1,3}\u3001|[\u2460-\u2473\u2022\u30fb]|\u2013[ \t])[^\n]*"
)

Sources = Sequence[str] | Mapping[str, str | Sequence[str]]
"""Texts to rely on; as a mapping, by the heading of the section that they belong to."""


def by_section(sources: Sources) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Sources, and the heading that each belongs to; no headings if they are no mapping."""
    if not isinstance(sources, Mapping):
        return as_texts(sources), ()
    pairs = [(text, title) for title, texts in sources.items() for text in as_texts(texts)]
    return tuple(text for text, _ in pairs), tuple(title for _, title in pairs)


def items_of_scripts(block: Block) -> list[str]:
    """The list items of a paragraph with the numerals or bullets of another script."""
    items: list[str] = _ITEM.findall(block.text) if block.kind == "paragraph" else []
    # A single line with a dash may be speech or a name.
    return [] if len(items) == 1 and items[0].lstrip()[0] == "\u2013" else items


def visible_text(blocks: Iterable[Block]) -> str:
    """Blocks as a reader sees them: without front matter, and without unseen marks but in code."""
    return "".join(
        block.text if block.kind == "code" else without_marks(block.text)
        for block in blocks
        if block.kind != "metadata"
    )


_TITLE = r"(?:(?:[ \t\r]+\n?|\n)[ \t]*(?:\"[^\"\n]*\"|'[^'\n]*'))?"  # no blank line before it
# Behind the text of a link or in a line of its own, and around any text. Not in code, which a
# reader sees: it is matched first.
_ADDRESS_OR_TAG = re.compile(
    r"(?P<code>(?<!`)`++[^`]++`++)"
    rf"|(?<=\])\((?>(?:[^()\s]|\([^()\s]*\))*){_TITLE}\)"
    rf"|^ {{0,3}}\[[^\^\]\n][^\]\n]*\]:[ \t]*\S++{_TITLE}[ \t\r]*$"
    r"|</?[A-Za-z][\w-]*+(?:\s[^<>]*+)?/?>",
    re.MULTILINE,
)


def without_addresses(markdown: str) -> str:
    """A text without the addresses of its links and without tags, which no reader sees."""
    return _ADDRESS_OR_TAG.sub(r"\g<code>", markdown)


ENOUGH_BYTES = 100
"""Bytes of letters in UTF-8: about 17 words of English, or 33 characters of Chinese."""
# Languages that may be taken for each other in a text of any length.
_ALIKE = (frozenset({"bs", "hr", "sr"}), frozenset({"nn", "no"}), frozenset({"id", "ms"}))


def letter_bytes(text: str) -> int:
    """The length of a text's letters in UTF-8: the longer, the surer is its language."""
    # Not their number: a letter of Chinese tells more than one of English, and has more bytes.
    return len("".join(filter(str.isalpha, text)).encode("utf-8", "replace"))


def language_of(text: str) -> Language:
    """The likeliest language of a text, which is a guess under `ENOUGH_BYTES`."""
    # Imported at the first use: it takes half a second to load its model.
    import py3langid  # noqa: PLC0415

    # It knows others too, by codes of three letters, for which no check or dictionary is made.
    ranked: list[Language] = [code for code, _ in py3langid.rank(text) if len(code) == 2]
    return ranked[0]


def same_language(a: str, b: str) -> bool:
    """Whether two languages are one, or close relatives such as Croatian and Serbian."""
    return a == b or any({a, b} <= alike for alike in _ALIKE)
