"""Near-duplicates: which passages say what another already says, in almost the same words.

A text is the set of its runs of three words. MinHash finds those that may overlap without looking
at all of them (Broder 1997, "On the resemblance and containment of documents"; bands and rows as
in Leskovec, Rajaraman and Ullman, "Mining of Massive Datasets", section 3.4), and the sets
themselves decide. With 8 bands of 4 rows, 99.98 % of pairs with a similarity of 0.9 share a band,
and 1 % of those with 0.2 do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

LEAST_SIMILARITY = 0.9
"""From where on two texts are near-duplicates."""

BANDS = 8
_ROWS = 4
_RUN = 3

# Letters that are written without blanks between words are words each: Japanese and Chinese.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
# Between words: white space and what only parts sentences. Not `\W`, which would leave out the
# vowels of many scripts, and that C++ is not C#, and < not >.
_BETWEEN = (
    r"\s!\"'()*,\-./:;?\[\\\]_`{}"
    "\u00a1\u00ab\u00bb\u00bf\u2010-\u205e\u3001-\u301f\uff01-\uff0f\uff1a\uff1b\uff1f"
)
_WORD = re.compile(rf"[^{_BETWEEN}{_UNSPACED}]+|[{_UNSPACED}]")

_NUMBER = re.compile(r"\d+")

# At a time, so that their runs stay in the processor's cache.
_TEXTS_AT_A_TIME = 256


def _mixed(number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of it depends on every bit that came (the end of splitmix64)."""
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))


# Bands are stored, so these are the same for ever: the sequence that splitmix64 gives, and no
# generator of numpy, which may give others in its next version.
_RANDOM = _mixed(np.arange(1, 68, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
_FACTORS = _RANDOM[:32] | np.uint64(1)
_OFFSETS = _RANDOM[32:64]
_PLACES = _RANDOM[64:] | np.uint64(1)


def bands_of(texts: Sequence[str]) -> NDArray[np.int64]:
    """(n, 8) numbers; texts that are near-duplicates have at least one in common."""
    parts = [
        _bands(texts[start : start + _TEXTS_AT_A_TIME])
        for start in range(0, len(texts), _TEXTS_AT_A_TIME)
    ]
    return np.concatenate(parts) if parts else np.empty((0, BANDS), dtype=np.int64)


def similarity(first: str, second: str) -> float:
    """Of the words in runs of three, as sets: 0 to 1 (Jaccard).

    Texts of fewer than three words are one run each, so they are alike or not.
    """
    ours, theirs = _runs(_words(first)), _runs(_words(second))
    return len(ours & theirs) / len(ours | theirs)


def same_numbers(first: str, second: str) -> bool:
    """Whether both name the same numbers: the revenue of another year is another fact."""
    return set(_NUMBER.findall(first)) == set(_NUMBER.findall(second))


def _bands(texts: Sequence[str]) -> NDArray[np.int64]:
    # 1. A number for each word, with at least three to a text; two more, for the runs that begin
    # with the last words and belong to no text.
    numbers: list[int] = []
    counts = np.empty(len(texts), dtype=np.int64)
    for place, text in enumerate(texts):
        words = _words(text)
        numbers += [crc32(word.encode()) for word in words]
        numbers += [0] * (_RUN - len(words))
        counts[place] = max(len(words), _RUN)
    numbers += [0] * (_RUN - 1)
    # 2. A number for each run; arithmetic is modulo 2^64 throughout.
    word = np.array(numbers, dtype=np.uint64)
    length = len(word) - _RUN + 1
    run = _mixed(sum(word[i : i + length] * _PLACES[i] for i in range(_RUN)))
    # 3. Where each text's runs begin, and where they end; `reduceat` takes both in turn.
    ends = np.cumsum(counts)
    edges = np.stack([ends - counts, ends - _RUN + 1], axis=1).ravel()
    # 4. The least number of each text under 32 orders.
    least = np.stack(
        [
            np.minimum.reduceat(run * factor + offset, edges)[::2]
            for factor, offset in zip(_FACTORS, _OFFSETS, strict=True)
        ]
    ).reshape(BANDS, _ROWS, len(texts))
    # 5. One number for the four of a band, and of which band it is.
    band = np.arange(BANDS, dtype=np.uint64)[:, np.newaxis]
    for row in range(_ROWS):
        band = _mixed(band + least[:, row])
    return band.T.view(np.int64)


def _words(text: str) -> list[str]:
    folded = text.casefold()
    # What has no words, such as "!!!" or a formula, is alike only when it is the same.
    return _WORD.findall(folded) or [folded.strip()]


def _runs(words: list[str]) -> set[tuple[str, ...]]:
    return {tuple(words[i : i + _RUN]) for i in range(max(1, len(words) - _RUN + 1))}
