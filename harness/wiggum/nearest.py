"""Which sources a revision is shown: those nearest to the text at hand, whole."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from harness.compress import matter_of, passages_of

_PASSAGE_CHARS = 600
"""About as much as is said in one go."""


def nearest_sources(sources: Sequence[str], *, to: Sequence[str], limit_chars: int) -> str:
    """The sources that share the most words with some texts, nearest first, as one text.

    Sources are whole, and each once, as long as they fit: fragments of many mislead a small model
    more than the whole of one. Only of a nearest source that is itself too long there are the
    nearest passages, each whole. When all fit they stay in their order, whatever they are to bear
    on: prompts that begin with them then begin alike, and a prefix cache serves that.

    Args:
        sources: All there are.
        to: What they should bear on, what counts most first: a later text only decides between
            sources that are equally near to the earlier ones.
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
    """The passages of a source that share the most words with some texts, in their order."""
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
    """How many words a text shares with each of some others."""
    words = matter_of(text)
    return [len(words & others) for others in wanted]
