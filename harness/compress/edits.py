"""Puts the sections that a model returned back into the document; the rest stays byte for byte.

A model returns the sections it was asked for in its own form: in a fence, after a courtesy, with
other numbers or markup in the headings. `edits_in` matches them to the document by their headings,
and `splice` puts them in place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from harness.compress.condense import LEFT_OUT
from harness.compress.markdown import (
    BLANK,
    Section,
    blocks_of,
    closes_fence,
    lines_of,
    matter_of,
    sections_of,
    unpadded,
)
from harness.errors import InvalidInput
from harness.text.folding import folded

_REVISED_TEXT = (
    r"\b(?:revised|rewritten|updated|improved) (?:\S+ ){0,3}"
    r"(?:section|text|version|draft|document|paragraph|passage|introduction)\b"
)
# `Sure! ...:` or `Here is the revised text:` on a line of its own. Not `Here are the steps:`.
COURTESY = re.compile(
    r"\A\s*(?:(?:sure|certainly|of course|okay|absolutely)![^\r\n]*"
    r"|(?:\w+(?: course)?[,.] )?(?:here (?:it is|you go|they are)"
    rf"|(?:here|below)(?: is|['\u2019]s)\b[^\r\n]*{_REVISED_TEXT}[^\r\n]*"
    # Not any words behind it: "The updated version 2.1 of the scheduler brings:" is a draft's own.
    rf"|(?:here|below|the)\b[^\r\n]*{_REVISED_TEXT}"
    r"(?: (?:below|of (?:the|your) (?:section|text|draft|document)"
    r"|(?:as|with|based|incorporating|addressing|that)\b[^\r\n]*))?))"
    r":[*_]*[ \t]*[\r\n]+",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """The changes of a document that a reply asks for, as `splice` takes them."""

    replacements: Mapping[int, str]
    """The new text of sections, by index into `sections_of(document)`, headings included."""
    insertions: Mapping[int, Sequence[str]]
    """Index of a section → the new sections that follow it, in order; -1 for the beginning."""

    def __bool__(self) -> bool:
        """Whether there is anything to apply."""
        return bool(self.replacements or self.insertions)


def edits_in(reply: str, document: str, *, allowed: Collection[int] | None = None) -> Edits:
    """The changed sections of a reply, matched to the document by their headings.

    Only `allowed` sections are replaced, all if None. An unknown heading makes an added section,
    after the one it followed. If no heading matches, there are no edits, except that a single
    section unlike any of the document's is added at the end. Text before the first heading is left
    out, unless the document has one too and `allowed` has 0. A body that is empty, or has new marks
    for text left out, changes nothing.
    """
    sections = sections_of(document)
    titles = [section.title for section in sections if section.level]
    returned = sections_of(unwrapped(reply, titles=titles))
    preferred = frozenset(allowed or ())
    matches = matches_of(returned, sections, preferred=preferred)
    # A preamble has no title to match by, and in a reply it is mostly a courtesy.
    both_have_preamble = all(texts and not texts[0].level for texts in (returned, sections))
    if 0 in preferred and both_have_preamble:
        matches[0] = 0

    replacements: dict[int, str] = {}
    for number, index in sorted(matches.items()):
        section = sections[index]
        body = returned[number].body
        if not section.level:
            body = COURTESY.sub("", body, count=1)
        is_allowed = allowed is None or index in allowed
        is_changed = _lines(body) != _lines(section.body)
        if is_allowed and is_changed and _is_usable(body, instead_of=section.body):
            blank_line = "" if section.heading[-1:] in "\r\n" else "\n\n"
            replacements[index] = section.heading + blank_line + body
    has_new = matches or _is_one_more(returned, sections)
    insertions = _added(returned, sections, matches) if has_new else {}
    return Edits(replacements=replacements, insertions=insertions)


def _lines(body: str) -> list[str]:
    """The lines of a body for comparison: line ends and trailing white space are no change."""
    return [line.rstrip() for line in unpadded(body).splitlines()]


def _is_usable(body: str, *, instead_of: str = "") -> bool:
    """Whether `body` has a text, and no more marks for text left out than `instead_of` has."""
    # A further mark was copied from a shortened text.
    return bool(body.strip(BLANK)) and body.count(LEFT_OUT) <= instead_of.count(LEFT_OUT)


def _is_one_more(returned: Sequence[Section], sections: Sequence[Section]) -> bool:
    """Whether a reply without a known heading has one new section, and no renamed section."""
    headed = [section for section in returned if section.level]
    if len(headed) != 1 or not any(section.level for section in sections):
        return False
    matter = matter_of(headed[0].body)
    return all(2 * len(matter & matter_of(section.body)) < len(matter) for section in sections)


def _added(
    returned: Sequence[Section], sections: Sequence[Section], matches: Mapping[int, int]
) -> dict[int, list[str]]:
    """The new sections, by the index of the section that each follows."""
    insertions: dict[int, list[str]] = {}
    # New sections before the first match go before it; if nothing matches, they go to the end.
    follows = matches[min(matches)] - 1 if matches else len(sections) - 1
    for number, section in enumerate(returned):
        if number in matches:
            follows = matches[number]
        elif section.level and _is_usable(section.body):
            # Not between a section and its subsections, which would become the new one's.
            deeper = (later.level > section.level for later in sections[follows + 1 :])
            follows += sum(takewhile(bool, deeper))
            text = f"{'#' * section.level} {section.title}\n\n{section.body}"
            insertions.setdefault(follows, []).append(text)
    return insertions


# Tried in this order after a text that would run on into the next section: the blank line that a
# paragraph, a table or an HTML tag needs; a comment, which ends an open comment, a declaration, or
# a list that would take in an indented heading; the ends of other kinds of raw HTML.
_CLOSERS = ("\n", "\n\n<!-- -->", "\n</pre>", "\n?>", "\n]]>")
# A stand-in heading behind the last section, which must not stay open either.
_ANY_HEADING = "\n\n# -\n"


def splice(
    document: str,
    replacements: Mapping[int, str],
    *,
    insertions: Mapping[int, Sequence[str]] | None = None,
) -> str:
    """The document with some sections replaced or added, all else byte for byte as it was.

    Replacements go by index into `sections_of(document)`. A section keeps its heading: a heading at
    the beginning of the replacement with the same title, or of no deeper level, is dropped. It also
    keeps the blank lines at its end. What a replacement leaves open (a code fence, an HTML comment)
    is closed, so that the next sections stay sections. Further headings in a replacement stay, and
    make sections of their own. New text gets the line ends of Windows if the document has no other.

    Insertions begin with a heading of `#` marks. They go after the section of that index, in order;
    -1 is before the first, which must have a heading then, and after front matter. If the document
    ends in an open section, such as a code fence, that is closed before an insertion.

    Raises `InvalidInput` if a replacement would empty its section, or take in the one after it.
    """
    sections = sections_of(document)
    added = insertions or {}
    headings = [*(section.heading for section in sections), ""]
    # Front matter belongs to the first heading, and stays the beginning if a section comes first.
    opening = blocks_of(headings[0]) if -1 in added else ()
    front = "".join(b.text for b in takewhile(lambda b: b.kind == "metadata", opening))
    gap = "\n\n" if front and front[-1] not in "\r\n" else ""  # the document ends with it
    texts = [front + gap, _in_a_row(added.get(-1, ()), following=headings[0].removeprefix(front))]
    for index, section in enumerate(sections):
        following = headings[index + 1]
        new = added.get(index, ())
        text = section.text
        if index in replacements:
            behind = "" if new else following  # before an insertion, it is closed below
            text = _replaced(replacements[index], index=index, section=section, following=behind)
        if new:
            text += "" if text.endswith(("\n", "\r")) else "\n\n"
            text = _closed(text, following=sections_of(new[0])[0].heading)
        text = text.removeprefix("" if index else front)
        texts += [text, _in_a_row(new, following=following)]
    text = "".join(texts)
    has_windows_ends = document.count("\n") == document.count("\r\n") > 0
    return re.sub(r"(?<!\r)\n", "\r\n", text) if has_windows_ends else text


def _in_a_row(insertions: Sequence[str], *, following: str) -> str:
    """New sections one after another, each closed before the next and before `following`."""
    headings = [*(sections_of(text)[0].heading for text in insertions), following]
    return "".join(
        _closed(unpadded(text) + ("\n\n" if heading else "\n"), following=heading)
        for text, heading in zip(insertions, headings[1:], strict=True)
    )


def _replaced(replacement: str, *, index: int, section: Section, following: str) -> str:
    """The section's new text: its own heading, the new body, its own end."""
    body = unpadded(_without_heading(replacement, section))
    is_empty_as_before = not (body or section.body.strip())
    if replacement == section.text or is_empty_as_before:
        return section.text
    if not body:
        raise InvalidInput(
            f"the replacement for section {index} ('{section.title}') has no text; "
            "leave the section out of the replacements to keep it as it is",
            code="compress.replacement-without-text",
        )
    blank_line = "" if section.heading[-1:] in "\r\n" else "\n\n"
    end = section.text[len(section.text.rstrip(BLANK)) :]
    return _closed(section.heading + blank_line + body + end, following=following)


def _without_heading(replacement: str, section: Section) -> str:
    """The replacement without the section's own heading or front matter, if it begins with that."""
    first = next(iter(sections_of(replacement)), section)
    same_title = first.title.casefold() == section.title.casefold()
    is_own = section.heading and (same_title or first.level <= section.level)
    return replacement.removeprefix(first.heading) if is_own else replacement


def _closed(text: str, *, following: str) -> str:
    """The text with what it leaves open closed, so that `following` is read as a heading.

    The closer of a fence, of HTML or of a list goes before the blank lines at the end.
    """
    following = following or _ANY_HEADING
    fence = blocks_of(text)[-1].fence  # empty unless it ends in fenced code
    body = text.rstrip(BLANK)
    for closer in ("", f"\n{fence}", *_CLOSERS):  # most texts need none
        closed = body + closer + text[len(body) :]
        # The parser decides: the next section must come out as it would by itself.
        if sections_of(closed + following)[-1].text == following.lstrip("\n"):
            return closed
    raise InvalidInput(
        "a replacement could not be closed: it nests lists so deeply that it would take in the "
        "section after it; nest it less deeply",
        code="compress.nested-too-deeply",
    )


# `1.`, `2.3`, `(a)`, `IV)`, `Section 4:`; not the bare number of `3 reasons` or `2024 results`.
_NUMBERING = re.compile(
    r"\A(?:(?:section|chapter|part|step)\s+\d+(?:\.\d+)*\s*[-–—:.)]*\s+"  # noqa: RUF001
    r"|\(?(?:\d+(?:\.\d+)*|[a-z]|[ivxl]+)[.):]+\s+"
    r"|\d+(?:\.\d+)+\s+)"
)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


def matches_of(
    returned: Sequence[Section], sections: Sequence[Section], *, preferred: Collection[int]
) -> dict[int, int]:
    """Index in `returned` → index in `sections`, for each section that both have.

    Of several sections with one heading, `preferred` ones come first, then those after the previous
    match.
    """
    matches: dict[int, int] = {}
    # From the surest likeness on: what must be equal, and how many sections may have it.
    passes: tuple[tuple[Callable[[Section], Hashable], int], ...] = (
        (_level_and_title, 1),
        # The heading may have another level, and then other numbers.
        (lambda section: plain_title(section.title), 1),
        (lambda section: _NUMBERING.sub("", plain_title(section.title)), 1),
        # Sections of one heading come back in their order.
        (_level_and_title, len(sections)),
    )
    for key_of, most in passes:
        keys = [key_of(section) if section.level else None for section in sections]
        previous = -1  # the index in `sections` of the match before
        for number, section in enumerate(returned):
            if section.level and number not in matches:
                key, matched = key_of(section), set(matches.values())
                unmatched = [i for i, k in enumerate(keys) if k == key and i not in matched]
                candidates = [index for index in unmatched if index in preferred] or unmatched
                if 0 < len(candidates) <= most:
                    later = (index for index in candidates if index > previous)
                    matches[number] = next(later, candidates[0])
            previous = matches.get(number, previous)
    return matches


def _level_and_title(section: Section) -> Hashable:
    return section.level, plain_title(section.title)


def plain_title(title: str) -> str:
    """A title for comparison: without case, markup and the punctuation at its end."""
    return folded(re.sub(r"[*_`~\\]", "", _LINK.sub(r"\1", title))).rstrip(" :.#")


# --- a fence around a reply ---

_OPENING_FENCE = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})[ \t]*(?P<label>[^`\r\n]*?)[ \t\r\n]*")


def unwrapped(reply: str, *, titles: Collection[str]) -> str:
    """The content of a fence around a reply; the reply itself if it has no such fence.

    The fence must say Markdown or begin with one of these headings, and none may be outside it.
    """
    lines = lines_of(reply)
    fences = ((number, _OPENING_FENCE.fullmatch(line)) for number, line in enumerate(lines))
    start, opening = next((fence for fence in fences if fence[1] is not None), (0, None))
    if opening is None or opening["label"].casefold() not in {"", "md", "markdown"}:
        return reply
    # The parser cannot find the fence's end: it takes a nested fence of as many backticks for it.
    fence = opening["fence"]
    closing = [n for n, line in enumerate(lines) if n > start and closes_fence(line, fence)]
    end = closing[-1] if closing else len(lines)
    inside = "".join(lines[start + 1 : end])
    outside = "".join([*lines[:start], "\n", *lines[end + 1 :]])
    plain_titles = {plain_title(title) for title in titles}
    first = next((section.title for section in sections_of(inside)), "")
    begins = bool(opening["label"]) or plain_title(first) in plain_titles - {""}
    outer_titles = {plain_title(s.title) for s in sections_of(outside) if s.level}
    return inside if begins and plain_titles.isdisjoint(outer_titles) else reply
