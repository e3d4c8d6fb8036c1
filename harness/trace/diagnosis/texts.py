"""What two prompts have in common, and whether a prompt holds what an earlier call replied.

Texts are compared by windows of characters, not by words: not every script has spaces. Everything
takes time in proportion to the texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

WINDOW_CHARS = 24
"""A prompt that shares so many characters in a row with a reply has them from it: four words."""

BLOCK_CHARS = 128
"""Shorter pieces that two prompts share are not worth caching: two of vLLM's blocks of 16 tokens,
at four characters each."""

_SHOWN_CHARS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """How much of a text another one has as well."""

    prefix_share: float
    """The part up to the first difference: what a prefix cache can serve."""
    shared_share: float
    """All that stands in both, wherever: what it could serve, with that part in front."""
    difference: str
    """The first difference, for people."""


def likeness(earlier: str, later: str) -> Likeness:
    """How much of the later text the earlier one has."""
    pairs = enumerate(zip(earlier, later, strict=False))
    shorter = min(len(earlier), len(later))
    prefix_chars = next((at for at, (one, other) in pairs if one != other), shorter)
    seen = _windows(earlier, BLOCK_CHARS)
    blocks = range(0, len(later) - BLOCK_CHARS + 1, BLOCK_CHARS)
    found = sum(later[i : i + BLOCK_CHARS] in seen for i in blocks)
    length = max(1, len(later))
    return Likeness(
        prefix_share=prefix_chars / length,
        shared_share=max(prefix_chars / length, found / max(1, len(blocks))),
        difference=_difference(earlier, later, prefix_chars),
    )


def needed_replies(prompts: Sequence[str], replies: Sequence[str]) -> list[set[int]]:
    """Which earlier calls' replies each prompt holds something of, by position.

    A reply counts as used where the prompt has a window of it more often than the prompt had that
    first led to it: models like to repeat what they were given. A reply shorter than a window
    counts whole.

    Args:
        prompts: In the order they were sent.
        replies: What each was answered with.
    """
    owners: dict[str, _Said] = {}
    short: dict[str, _Said] = {}
    needed: list[set[int]] = []
    for number, (prompt, reply) in enumerate(zip(prompts, replies, strict=True)):
        here = _windows(prompt)
        quoted = [owners[w].by for w in here.keys() & owners.keys() if here[w] > owners[w].given]
        quoted += [it.by for said, it in short.items() if prompt.count(said) > it.given]
        needed.append(set().union(*quoted))
        said = reply.strip()
        if len(said) >= WINDOW_CHARS:
            for window in _windows(said):
                owners.setdefault(window, _Said(given=here[window])).by.add(number)
        elif said:
            short.setdefault(said, _Said(given=prompt.count(said))).by.add(number)
    return needed


@dataclass(slots=True, kw_only=True)
class _Said:
    """A piece of text that calls replied with."""

    given: int
    """How often the prompt had it that first led to it."""
    by: set[int] = field(default_factory=set)
    """Their positions."""


def _windows(text: str, chars: int = WINDOW_CHARS) -> Counter[str]:
    """How often each stretch of so many characters occurs; 0 for those that do not."""
    return Counter(text[i : i + chars] for i in range(len(text) - chars + 1))


def _difference(earlier: str, later: str, at: int) -> str:
    line = later.count("\n", 0, at) + 1
    column = at - (later.rfind("\n", 0, at) + 1) + 1
    before, after = (_shown(text, at) for text in (earlier, later))
    return f"line {line}, character {column}: {before!r} became {after!r}"


def _shown(text: str, at: int) -> str:
    """What stands around a place, on its line."""
    start = max(text.rfind("\n", 0, at) + 1, at - _SHOWN_CHARS)
    end = text.find("\n", at)
    return text[start : min(at + _SHOWN_CHARS, len(text) if end == -1 else end)]
