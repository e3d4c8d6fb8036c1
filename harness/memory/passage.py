"""What the store keeps, and what a search gives back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A piece of text worth recalling. Raises `InvalidInput` for one that cannot be stored."""

    text: str
    """What is recalled."""
    title: str = ""
    """Heading or headline; it counts in both lanes."""
    source: str = ""
    """Where the text comes from: a URL, a path, the name of a run."""
    quality: float | None = None
    """How good it was judged to be, 0 to 10; None when nobody judged."""
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Anything else the caller wants back; never searched."""

    def __post_init__(self) -> None:
        if not self.searchable.strip():
            raise InvalidInput("a passage has neither title nor text; leave it out")
        if self.quality is not None and not 0 <= self.quality <= 10:
            raise InvalidInput(f"quality is {self.quality}; it must lie between 0 and 10")
        for name, value in (("text", self.text), ("title", self.title), ("source", self.source)):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise InvalidInput(
                    f"a passage's {name} holds half of a surrogate pair at character "
                    f"{error.start}, which no file can hold; decode it with errors='replace'"
                ) from error

    @property
    def id(self) -> str:
        """32 hexadecimal digits of source, title and text: equal content has an equal id."""
        # JSON keeps the three apart; a plain join would let "a" + "bc" meet "ab" + "c".
        content = json.dumps([self.source, self.title, self.text]).encode()
        return hashlib.blake2b(content, digest_size=16).hexdigest()

    @property
    def searchable(self) -> str:
        """What both lanes read."""
        # A blank, not a line break: small embedders have a vector for "\n" and average it in.
        return f"{self.title} {self.text}" if self.title else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One passage that a search found."""

    passage: Passage
    """What was found."""
    score: float
    """What it was ranked by: the fused score, or the lane's own in a search of one lane."""
    lexical: float | None
    """BM25 score; None when the lexical lane was not asked or did not propose it."""
    vector: float | None
    """Cosine to the query, -1 to 1; None when the vector lane was not asked."""
    rank: int
    """Place among the hits, from 1."""
