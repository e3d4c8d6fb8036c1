"""JSON as models write it: in prose, in fences, with trailing commas, half of it missing.

Read for what it says, not for whether it is right: what comes out is only ever a part of the text,
and nothing raises. In linear time, since a reply may be a megabyte of braces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_MOST_NESTED = 24
_MOST_RETRIES = 40
"""Braces in prose may open nothing. Each is tried over again from the next character, up to this
many, or a text of open quotes would be read to its end from each of them."""

_LONGEST_TEXT = 20_000
"""What is open for longer was never a string."""

# Possessive where white space is skipped: to give it back a character at a time takes squared time.
_BLANK = re.compile(r"\s*+(?://[^\n]*+\n\s*+)*+")
_OPEN = re.compile(r"[{\[]")
_QUOTED_KEY = re.compile(r"[\"'\u201c]([^{}\n]{0,100}?)[\"'\u201d](?=\s*+:)")
_BARE_KEY = re.compile(r"[^\W\d][\w .-]{0,80}")
_COLON = re.compile(r"\s*+[:=]\s*+")
# Up to what ends a value that is not quoted: `8`, `true`, and also `8/10`, not `8 // a "comment"`.
_BARE_VALUE = re.compile(r"[^\s,{}\[\]\"](?:[^,{}\[\]\"\n/]|/(?!/))*+")
_CLOSING = {'"': '"', "'": "'", "\u201c": "\u201d"}
# A quote ends its string where JSON goes on behind it; else the model forgot to escape it.
_TEXT_ENDS = re.compile(
    r"\s*+(?:[}\]]|\Z|,\s*+(?:[\"'\u201c{\[}\]]|\Z|-?\d|(?:true|false|null)\b|[^\W\d]\w{0,80}+\s*+:))"
    # The comma may be missing, where the next line is a key.
    r"|[ \t]*+\r?\n\s*+[\"'\u201c]\w[\w .-]{0,80}+[\"'\u201d]\s*+:"
)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A text, a number, `true`, `null`: as it is written, without quotes."""

    text: str
    start: int
    """Where it begins in the whole text."""
    end: int
    """Where it ends."""

    @property
    def unescaped(self) -> str:
        """For people to read."""
        return _unescaped(self.text)


@dataclass(slots=True)
class Node:
    """An object or a list, as far as it could be read."""

    start: int
    end: int = 0
    members: list[tuple[str, Value]] = field(default_factory=list)
    """Of an object: keys may occur twice."""
    items: list[Value] = field(default_factory=list)
    """Of a list."""


Value = Leaf | Node


def nodes_in(text: str) -> Iterator[Node]:
    """The objects and lists of a text that have something in them, in order, not overlapping."""
    position, retries = 0, 0
    while opening := _OPEN.search(text, position):
        reader = _Reader(text)
        node = reader.node(opening.start(), depth=0)
        node.end = reader.position
        if node.members or node.items:
            yield node
        elif not reader.whole and retries < _MOST_RETRIES:
            retries += 1
            reader.position = opening.end()
        position = max(reader.position, opening.end())


class _Reader:
    """Reads one value, and stops where it no longer can."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.position = 0
        self.whole = True
        """Whether all that was opened has been closed."""

    def node(self, start: int, *, depth: int) -> Node:
        node = Node(start)
        closing = "}" if self._text[start] == "{" else "]"
        self.position = start + 1
        if depth == _MOST_NESTED:
            self.whole = False
        while self.whole:
            self._skip_blank()
            if self._text.startswith(closing, self.position):
                self.position += 1
                break
            if self._text.startswith(",", self.position):
                self.position += 1
            elif closing == "}":
                self._member(node, depth)
            else:
                self._item(node, depth)
        node.end = self.position
        return node

    def _member(self, node: Node, depth: int) -> None:
        key = self._matched(_QUOTED_KEY) or self._matched(_BARE_KEY)
        colon = _COLON.match(self._text, self.position)
        if key is None or colon is None:
            self.whole = False
            return
        self.position = colon.end()
        value = self._value(depth)
        if value is not None:
            node.members.append((key.unescaped.strip("\"'\u201c\u201d"), value))

    def _item(self, node: Node, depth: int) -> None:
        value = self._value(depth)
        if value is not None:
            node.items.append(value)

    def _value(self, depth: int) -> Value | None:
        self._skip_blank()
        if _OPEN.match(self._text, self.position):
            return self.node(self.position, depth=depth + 1)
        value = self._quoted() or self._matched(_BARE_VALUE)
        # What the end of the text cuts may have been longer: `1` of `10`.
        if value is None or self.position >= len(self._text):
            self.whole = False
            return None
        return value

    def _quoted(self) -> Leaf | None:
        closing = _CLOSING.get(self._text[self.position : self.position + 1])
        if closing is None:
            return None
        start = self.position + 1
        limit = min(start + _LONGEST_TEXT, len(self._text))
        end = self._text.find(closing, start, limit)
        while end != -1:
            if not self._is_escaped(end) and _TEXT_ENDS.match(self._text, end + 1):
                self.position = end + 1
                return Leaf(self._text[start:end], start, end)
            end = self._text.find(closing, end + 1, limit)
        self.position = limit
        return None

    def _is_escaped(self, position: int) -> bool:
        before = position
        while self._text[before - 1] == "\\":
            before -= 1
        return (position - before) % 2 == 1

    def _matched(self, pattern: re.Pattern[str]) -> Leaf | None:
        found = pattern.match(self._text, self.position)
        if found is None:
            return None
        self.position = found.end()
        text = found[0].rstrip()
        return Leaf(text, found.start(), found.start() + len(text))

    def _skip_blank(self) -> None:
        blank = _BLANK.match(self._text, self.position)
        self.position = blank.end() if blank else self.position


_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_SHORT = {"n": "\n", "t": "\t", "r": "", "b": "", "f": ""}


def _unescaped(text: str) -> str:
    def meant(found: re.Match[str]) -> str:
        if found[1]:
            return chr(int(found[1], 16))
        return _SHORT.get(found[2], found[2])

    if "\\" not in text:
        return text
    # Half a pair of surrogates is no text.
    text = _ESCAPE.sub(meant, text)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
