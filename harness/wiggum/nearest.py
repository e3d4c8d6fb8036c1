"""Which sources a revision is shown: those nearest to the text at hand, whole."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.compress import condense

# Words of four letters and more carry the matter.
_WORD = re.compile(r"\w{4,}")


def nearest_sources(sources: Sequence[str], *, to: Sequence[str], limit_chars: int) -> str:
    """The sources that share the most words with some texts, nearest first, as one text.

    Sources are whole, and each once, as long as they fit: fragments of many mislead a small model
    more than the whole of one. Only a nearest source that is itself too long is condensed. When
    all fit they stay in their order, whatever they are to bear on: prompts that begin with them
    then begin alike, and a prefix cache serves that.

    Args:
        sources: All there are.
        to: What they should bear on, what counts most first: a later text only decides between
            sources that are equally near to the earlier ones.
        limit_chars: How long the result may be, about.
    """
    every = list(dict.fromkeys(sources))
    if sum(len(source) for source in every) <= limit_chars:
        return "\n\n".join(every)
    wanted = [_words(text) for text in to]
    words_of = {source: _words(source) for source in every}
    by_nearness = sorted(
        words_of,
        key=lambda source: [len(words & words_of[source]) for words in wanted],
        reverse=True,
    )
    chosen: list[str] = []
    for source in by_nearness:
        room = limit_chars - sum(len(text) for text in chosen)
        if len(source) <= room:
            chosen.append(source)
        elif not chosen:
            chosen.append(condense(source, budget_chars=limit_chars, focus=" ".join(to)).text)
    return "\n\n".join(chosen)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))
