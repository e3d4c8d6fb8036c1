"""Takes Markdown documents apart: blocks, sections and passages.

The blocks partition the text: joined, they are the document, character for character. CommonMark,
with tables, decides what a block is: a `#` in a code fence is code, and a heading in a list belongs
to the list. Front matter is a block of its own, and so is what only the tools of a site read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from html import unescape
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from harness.text.languages import HANGUL, UNSPACED
from harness.text.sentences import sentence_pieces
from harness.text.words import in_twos

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

PAIR = f"[{UNSPACED}{HANGUL}]{{2}}"
"""A word of a script without blanks, as `in_twos` makes them."""
_MATTER = re.compile(rf"\w{{4,}}|{PAIR}")


def matter_of(text: str) -> frozenset[str]:
    """Case-folded words of at least four letters, and pairs of a script without blanks."""
    return frozenset(_MATTER.findall(in_twos(text.casefold())))


BlockKind = Literal["heading", "paragraph", "item", "code", "table", "quote", "metadata", "other"]

_KINDS: dict[str, BlockKind] = {
    "heading_open": "heading",
    "paragraph_open": "paragraph",
    "list_item_open": "item",
    "fence": "code",
    "code_block": "code",
    "table_open": "table",
    "blockquote_open": "quote",
}

# Front matter of site generators: YAML or TOML between marks; pandoc's title; JSON with a text
# behind it.
_FRONT_MATTER = re.compile(
    r"""(?x) \ufeff? (?:
    (?P<marks> --- | \+\+\+ ) [ \t]*\r?\n (?=[\w"'\[#-])
    (?: (?: [\w"'.][^\n:=]*[:=][^\n]*             # a key and its value
        | [ \t][^\n]* | -[ \t][^\n]*              # a line that goes on, an item
        | [#\[\]{}][^\n]* | \r? ) \n )+?          # a comment, a table, brackets, a blank line
    (?: (?P=marks) | \.\.\. ) [ \t]* (?: \r?\n | \Z )
    | %[ \t][^\n]*\n (?: %[^\n]*\n ){0,2} (?=\r?\n)
    | \{ (?=[^{}]*"(?:title|date)":) [ \t]*\r?\n (?: [ \t][^\n]*\n )+ \} [ \t]*\r?\n (?=\s*\S)
    )"""
)
# What MDX imports and exports, unless it ends as a sentence or may be a program's own code.
_MODULE = re.compile(
    r"(?s)\s*(?:import (?:[^.'\"]+ from )?(['\"])[^'\"\n]+\1;?\s*)*"
    r"(?:\Z|export (?:[*{]|(?:const|let|default) (?!function|class|async))(?!.*[.!?]\s*\Z))"
)
# Marks without a text, but not in code spans. With one class at its front, `re` is quick.
_UNSEEN = re.compile(
    r"""(?msx) [<{%:*^] (?<!`.) (?:
    (?<=<) !--.*? (?:-->|\Z)                                        # a comment of HTML
    | (?<=%) (?<!\S%) %[^%]+%% (?!\S)                               # a comment of Obsidian
    | (?<=\{) (?: /\* | % | \{[%<] ) [^{}]* \}\}?                   # an include, a comment of MDX
    | (?<=\{) (?: : | [ \t]*[#.][\w-] ) [^{}\n]* \} (?=[ \t\r]*$)   # attributes
    | (?<=:) (?<!\S:) ::+[ \t]* (?: \{[^{}\n]*\} | [\w-]* )         # a container's fence: `:::note`
    | (?<=\*) (?<![^\n]\*) \[[^]\n]+\]:[^\n]*                       # an abbreviation
    | (?<=\^) (?<!\S\^) (?=[\w-]*[a-z]) [\w-]{3,} (?=[ \t\r]*$)     # the name of a block
    )"""
)
_WIKI_LINK = re.compile(r"\[\[(?:[^\[\]|\n]*\|)?([^\[\]|\n]+)\]\]")
# The line ends of CommonMark. `str.splitlines` knows more (form feed, U+2028 and others) and would
# number lines differently from the parser.
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")
# The white space of blank lines; a form feed, for example, is text to CommonMark.
BLANK = " \t\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block of a document, with the blank lines that follow it."""

    kind: BlockKind
    """An `item` is one item of a list; `metadata` is front matter, or a paragraph that no reader
    sees; `other` is HTML, a rule, link definitions, blank lines."""
    text: str
    """Verbatim. Blank lines at the document's beginning belong to its first block."""
    level: int = 0
    """1 to 6 for a heading, 0 for the rest."""
    label: str = ""
    """The title of a heading, or the info string of fenced code."""
    fence: str = ""
    """The backticks or tildes that open fenced code; else empty."""


def blocks_of(markdown: str) -> tuple[Block, ...]:
    """The top-level blocks of a document, in order."""
    lines = lines_of(markdown)
    blocks: dict[int, Block] = {}  # by first line, still without text
    line = 0
    if front := _FRONT_MATTER.match(markdown):
        blocks[0] = Block(kind="metadata", text="")
        line = len(lines_of(front[0]))
        # Blank lines in its place keep the parser's line numbers true.
        markdown = "\n" * line + markdown[front.end() :]
    for start, end, block in [*_parsed(markdown), (len(lines), len(lines), None)]:
        # The parser is silent about link definitions: a block from the first line with a text on.
        unparsed = (number for number in range(line, start) if lines[number].strip(BLANK))
        if (first := next(unparsed, None)) is not None:
            blocks[first] = Block(kind="other", text="")
        if block is not None:
            blocks[start] = block
        line = end
    if lines and not blocks:
        blocks[0] = Block(kind="other", text="")
    # Each block reaches to the next; the first also takes the blank lines before it.
    starts = [*blocks, len(lines)]
    starts[0] = 0
    return tuple(
        replace(block, text="".join(lines[start:end]))
        for block, (start, end) in zip(blocks.values(), pairwise(starts), strict=True)
    )


def lines_of(text: str) -> list[str]:
    """The lines of a text with their ends, as CommonMark counts them."""
    return _LINE.findall(text)


def closes_fence(line: str, fence: str) -> bool:
    """Whether a line closes code that `fence` opened: of its sign, as long at least, no label."""
    line = line.strip()
    return line.startswith(fence) and not line.strip(fence[0])


def unpadded(text: str) -> str:
    """A text without leading blank lines and trailing white space."""
    return re.sub(r"\A(?:[ \t]*[\r\n])+", "", text.rstrip(BLANK))


def _parsed(markdown: str) -> Iterator[tuple[int, int, Block]]:
    """First line, line after the last, and block without its text, as the parser reports them."""
    tokens = tokens_of(markdown)
    for index, token in enumerate(tokens):
        # Lists are split into items, so that these can be kept or dropped one by one.
        is_item = token.level == 1 and token.type == "list_item_open"
        is_other = token.level == 0 and not token.type.endswith("_list_open")
        if token.map is None or not (is_item or is_other):
            continue
        kind = _KINDS.get(token.type, "other")
        content = tokens[index + 1].content if kind in {"heading", "paragraph"} else ""
        visible = " ".join(without_marks(content).split())
        block = Block(kind=kind, text="")
        if kind == "heading":
            block = replace(block, level=int(token.tag[1:]), label=visible)
        elif token.type == "fence":
            block = replace(block, label=token.info.strip(), fence=token.markup)
        elif content and not visible:  # a paragraph of comments or tags alone
            block = replace(block, kind="metadata")
        yield token.map[0], token.map[1], block


def tokens_of(markdown: str) -> list[Token]:
    """What the parser reports, in order; inline markup is not parsed."""
    return _parser(inline=False).parse(markdown)


@cache
def _parser(*, inline: bool) -> MarkdownIt:
    # Imported at first use: it takes 45 ms, and many runs never parse a document.
    from markdown_it import MarkdownIt  # noqa: PLC0415

    # Beyond the nesting limit, 20 in the preset, the parser skips the rest of the document,
    # headings included.
    parser = MarkdownIt("commonmark", {"maxNesting": 100}).enable(["table", "strikethrough"])
    # Inline markup is most of the work of a parse.
    return parser if inline else parser.disable("inline")


def without_marks(block: str) -> str:
    """A block, which must not be code, without what only tools of sites or notes read."""
    return "" if _MODULE.match(block) else _UNSEEN.sub("", block)


_MARKUP = re.compile(r"[*_~`\[<>&\\|]|^[ \t]*(?:[#=+-]|\d+[.)])", re.MULTILINE)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_BEHIND_BRACKET = re.compile(r"\][(:\[]")  # without one, no bracket is of a link
_BRACKET = "\ue05b"  # in the place of "[": a character for private use


@lru_cache(maxsize=32)  # each phrase check of a rubric asks for the same sections
def shown_text(markdown: str) -> str:
    """The text that a reader sees of a document: without marks, tags and addresses."""
    if not _MARKUP.search(markdown):
        return markdown
    text = _WIKI_LINK.sub(r"\1", markdown)
    # The parser takes seconds for thousands of brackets, which a model may write that loops.
    is_plain = not _BEHIND_BRACKET.search(text)
    if is_plain:
        text = text.replace("[", _BRACKET)
    shown = "\n\n".join(map(_shown, _parser(inline=True).parse(text)))
    return shown.replace(_BRACKET, "[") if is_plain else shown


def _shown(token: Token) -> str:
    match token.type:
        case "inline":
            return "".join(map(_shown, token.children or ()))
        case "softbreak" | "hardbreak":
            return "\n"
        case "th_close" | "td_close":
            return "|"  # no phrase reaches over it
        case "html_block":
            return unescape(_TAG.sub("", token.content))
        case "html_inline":
            return ""
    return token.content


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading and the text below it, up to the next heading of any level."""

    title: str
    """The heading's text, inline markup included; empty before the first heading."""
    level: int
    """1 to 6; 0 for the text before the first heading."""
    heading: str
    """The heading's lines and the blank lines after it, verbatim."""
    blocks: tuple[Block, ...]
    """Below the heading."""

    @property
    def body(self) -> str:
        """The text below the heading, verbatim: `heading` and this are the section."""
        return "".join(block.text for block in self.blocks)

    @property
    def text(self) -> str:
        """Heading and body, verbatim."""
        return self.heading + self.body


def sections_of(markdown: str) -> tuple[Section, ...]:
    """The sections of a document, in order; their texts, joined, are the document.

    Headings are CommonMark's, underlined ones included, at the top level of the document: not
    inside code, lists or quotes. Text before the first heading is a section of level 0; an empty
    document has no sections. Front matter goes before the first section's heading.
    """
    blocks = blocks_of(markdown)
    start = next((n for n, b in enumerate(blocks) if b.kind != "metadata"), len(blocks))
    front, blocks = "".join(block.text for block in blocks[:start]), blocks[start:]
    starts = [index for index, block in enumerate(blocks) if block.kind == "heading" or index == 0]
    sections = [_section(blocks[start:end]) for start, end in pairwise([*starts, len(blocks)])]
    if front:
        first = sections[0] if sections else Section(title="", level=0, heading="", blocks=())
        sections[:1] = [replace(first, heading=front + first.heading)]
    return tuple(sections)


def _section(blocks: tuple[Block, ...]) -> Section:
    first = blocks[0]
    if first.kind != "heading":
        return Section(title="", level=0, heading="", blocks=blocks)
    return Section(title=first.label, level=first.level, heading=first.text, blocks=blocks[1:])


# --- passages ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """One passage of a document."""

    title: str
    """The headings above it, outermost first: `Guide > Install > Windows`."""
    text: str
    """Verbatim, without its heading and the blank lines around it."""


def passages_of(markdown: str, *, max_chars: int = 900) -> tuple[Excerpt, ...]:
    """The passages of a document for a memory store, in order: its text without the headings.

    A passage never crosses a heading. Within a section, paragraphs, list items, code and tables
    are packed together up to `max_chars`. A longer one is cut: paragraphs at sentence ends, the
    rest at line ends, a longer sentence or line between words, or anywhere if it has no space.
    Pieces of cut code keep only the fence they contain.
    """
    excerpts: list[Excerpt] = []
    above: list[Section] = []
    for section in sections_of(markdown):
        above = [*(s for s in above if s.level < section.level), section]
        title = " > ".join(s.title for s in above if s.title)
        texts = filter(str.strip, _packed(section.blocks, max_chars))
        excerpts += [Excerpt(title=title, text=text) for text in texts]
    return tuple(excerpts)


def _packed(blocks: Iterable[Block], max_chars: int) -> Iterator[str]:
    """The blocks, without metadata, as texts of at most `max_chars`, each as long as possible."""
    text = ""
    for block in blocks:
        if block.kind == "metadata":
            continue
        for piece in pieces_of(block, max_chars):
            if text and len(text) + len(piece.rstrip(BLANK)) > max_chars:
                yield unpadded(text)
                text = ""
            text += piece
    yield unpadded(text)


def pieces_of(block: Block, max_chars: int) -> list[str]:
    """The block if it fits; otherwise its sentences or lines, cut if they do not fit."""
    if len(unpadded(block.text)) <= max_chars:
        return [block.text]
    pieces = sentence_pieces(block.text) if block.kind == "paragraph" else lines_of(block.text)
    # As many characters as possible, up to a space if there is one, and the white space after them.
    part = re.compile(
        rf".{{1,{max_chars}}}(?=[{BLANK}]|\Z)[{BLANK}]*|.{{1,{max_chars}}}", re.DOTALL
    )
    return [text for piece in pieces for text in part.findall(piece)]
