"""Values of a memory store: passages, filters, hits and reports."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from harness.errors import InvalidInput
from harness.text.folding import composed

Scalar = str | int | float | bool
"""What a passage's metadata may hold."""

# A passage's own fields. No metadata may have such a name, so that filters are unambiguous.
RESERVED = ("id", "text", "title", "source", "quality", "created")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The place of a passage in a conversation. Raises `InvalidInput` if it is none.

    Filters read its fields as metadata: `{"conversation": "standup", "position": {">": 10}}`.
    """

    conversation: str
    position: int
    """The turn's number in the conversation: one more than that of the turn before it."""
    speaker: str = ""
    """Searched like the text."""

    def __post_init__(self) -> None:
        if not self.conversation or type(self.position) is not int or not _is_finite(self.position):
            raise InvalidInput(
                f"a turn has conversation {self.conversation!r} and position {self.position!r}; "
                "it needs a name and a whole number",
                code="passage.turn-invalid",
            )
        for name in ("conversation", "speaker"):
            object.__setattr__(self, name, _plain(getattr(self, name), name))

    @property
    def fields(self) -> dict[str, Scalar]:
        """The values by name, as filters read them."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A piece of text worth recalling. Raises `InvalidInput` if it cannot be stored."""

    text: str
    title: str = ""
    """Heading or headline; both indexes read it."""
    source: str = ""
    """Where the text comes from: a URL, a path, the name of a run."""
    quality: float | None = None
    """A judgement, 0 to 10; None if there is none."""
    created: datetime | None = None
    """With a time zone; None for the time of storing."""
    metadata: Mapping[str, Scalar] = field(default_factory=dict, hash=False)
    """Anything else to return, or to filter by; never searched."""
    turn: Turn | None = None
    """Its conversation and place there; None if it is no turn of a conversation."""
    id: str = ""
    """If left out: 32 hexadecimal digits made from source, title, text and turn, so that equal
    content has an equal id."""

    def __post_init__(self) -> None:
        for name in ("text", "title", "source", "id"):
            object.__setattr__(self, name, _plain(getattr(self, name), name))
        if not self.searchable.strip():
            raise InvalidInput(
                "a passage has neither title nor text; leave it out", code="passage.empty"
            )
        if self.quality is not None and not 0 <= self.quality <= 10:
            raise InvalidInput(
                f"quality is {self.quality}; it must lie between 0 and 10",
                code="passage.quality-out-of-range",
            )
        if self.created is not None and self.created.utcoffset() is None:
            raise InvalidInput(
                f"created is {self.created}; it must have a time zone", code="passage.no-time-zone"
            )
        for key, value in self.metadata.items():
            _check_metadata(key, value)
        # A copy, so that later changes to the caller's mapping don't reach the passage.
        object.__setattr__(self, "metadata", dict(self.metadata))
        if not self.id:
            turn = self.turn.fields.values() if self.turn else ()
            passage_id = _digest([self.source, self.title, self.text, *turn])
            object.__setattr__(self, "id", passage_id)

    @property
    def searchable(self) -> str:
        """The text that both indexes read: a turn's speaker, title and text."""
        # A blank, not a line break: small embedders have a vector for "\n" and average it in.
        text = f"{self.title} {self.text}" if self.title else self.text
        return f"{self.turn.speaker}: {text}" if self.turn and self.turn.speaker else text

    @property
    def words(self) -> tuple[str, ...]:
        """Title and text, and a turn's place: passages with equal words are merged."""
        # Only Unicode's forms (NFC) and white space around a text make no difference. No list of
        # signs or empty words would be safe in all languages, and the indentation of a program is
        # its meaning. The place of a turn counts, since "Yes" may be said twice.
        turn = map(str, self.turn.fields.values()) if self.turn else ()
        return composed(self.title).strip(), composed(self.text).strip(), *turn

    @property
    def words_number(self) -> int:
        """64 bits, equal for passages with the same words, and by chance for others."""
        content = "\0".join(self.words).encode()
        return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), signed=True)


def _digest(content: list[Scalar]) -> str:
    # Of JSON, which separates the values: a plain join would be the same for "a", "bc" as for "ab",
    # "c".
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()


def _check_metadata(key: object, value: object) -> None:
    if not isinstance(key, str) or not key or key in RESERVED:
        raise InvalidInput(
            f"a passage's metadata has a field {key!r}; its name must be a text, and none of "
            f"{', '.join(RESERVED)}",
            code="passage.field-name",
        )
    _plain(key, "metadata")
    # No filter and no JSON can hold other numbers. The message leaves the value out, since Python
    # refuses to write the digits of a very long number.
    if not isinstance(value, Scalar) or not _is_finite(value):
        raise InvalidInput(
            f"metadata '{key}' is of type {type(value).__name__}; it must be a text, a finite "
            "number or a boolean",
            code="passage.field-type",
        )
    if isinstance(value, str):
        _plain(value, f"metadata '{key}'")


def _is_finite(value: Scalar) -> bool:
    try:
        return isinstance(value, str) or math.isfinite(value)
    except OverflowError:
        # An int beyond any float, whose digits Python will not write either.
        return False


def _plain(value: object, name: str) -> str:
    """The value as a `str` and of no subclass; raises unless it can be written in UTF-8."""
    if not isinstance(value, str):
        raise InvalidInput(
            f"a passage's {name} is {value!r}; it must be a text", code="passage.field-type"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"a passage's {name} holds half of a surrogate pair at character {error.start}, which "
            "no file can hold; decode it with errors='replace'",
            code="passage.not-encodable",
        ) from error
    # A member of an enum has a `repr` of its own, of which a row's checksum would be made.
    return str.__str__(value)


# --- filters ---------------------------------------------------------------------------------

Filter = Mapping[str, Scalar | Collection[Scalar]]
"""A caller's filter: `{"topic": "otters", "year": [2024, 2025], "stars": {">=": 3}}`."""

_OWN_FIELDS = ("source", "title")

WantedTags = tuple[tuple[str, ...], ...]
"""A parsed filter: for each name, the tags of which a passage must have one.

A tag is a short text of fixed length, made from a name and a value. A passage has a tag for each
field that it can be filtered by: a row in the primary store, a term in the lexical index.
"""

Bounds = tuple[tuple[str, float], ...]
"""Comparisons that a number must satisfy, such as `((">=", 2024), ("<", 2026))`."""

_COMPARISONS = (">", ">=", "<", "<=")


def wanted_tags(where: Filter, tags_within: Callable[[str, Bounds], Sequence[str]]) -> WantedTags:
    """Parses a filter. `2` and `2.0` are equal; booleans are not numbers.

    Args:
        where: The filter.
        tags_within: Looks up stored numbers: takes the tag of a name and bounds, and returns the
            tags of the numbers with this name that satisfy all bounds.

    Raises:
        InvalidInput: No passage can have such a field, or such a value.
    """
    groups: list[tuple[str, ...]] = []
    for name, condition in where.items():
        _check_field(name)
        if isinstance(condition, Mapping):
            groups.append(tuple(tags_within(_name_tag(name), _bounds(name, condition))))
        else:
            groups.append(tuple(_tag(name, value) for value in _values(name, condition)))
    return tuple(groups)


def _bounds(name: str, comparisons: Mapping[Any, Any]) -> Bounds:
    _check_not_empty(name, comparisons)
    for comparison, value in comparisons.items():
        if comparison not in _COMPARISONS or isinstance(_scalar(name, value), str | bool):
            raise InvalidInput(
                f"the filter '{name}' asks for {comparison!r}: {value!r}; a range has some of "
                f"{', '.join(_COMPARISONS)}, each with a number",
                code="filter.range",
            )
    return tuple((comparison, float(value)) for comparison, value in comparisons.items())


def tags_of(passage: Passage) -> list[str]:
    """A tag of 32 hexadecimal digits for each field that the passage can be filtered by."""
    return [
        _tag("source", passage.source),
        _tag("title", passage.title),
        *(_tag(name, value) for name, value in _fields_of(passage)),
    ]


def amounts_of(passage: Passage) -> list[tuple[str, float, str]]:
    """The numbers by whose range it can be found: the tag of the name, the number, and its tag."""
    return [
        (_name_tag(name), float(value), _tag(name, value))
        for name, value in _fields_of(passage)
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]


def _fields_of(passage: Passage) -> Iterator[tuple[str, Scalar]]:
    yield from passage.metadata.items()
    if passage.turn is not None:
        yield from passage.turn.fields.items()


def _values(name: str, condition: object) -> tuple[Scalar, ...]:
    """The values of a condition, which is one value or several."""
    values: tuple[object, ...] = (condition,)
    if isinstance(condition, Collection) and not isinstance(condition, str | bytes | bytearray):
        values = tuple(condition)
    _check_not_empty(name, values)
    return tuple(_scalar(name, value) for value in values)


def _check_field(name: object) -> None:
    if not isinstance(name, str) or not name or (name in RESERVED and name not in _OWN_FIELDS):
        raise InvalidInput(
            f"a filter cannot ask for {name!r}; it can ask for a field of the metadata, or for "
            f"{' or '.join(repr(field) for field in _OWN_FIELDS)}",
            code="filter.unknown-field",
        )


def _check_not_empty(name: str, values: Collection[object]) -> None:
    if not values:
        raise InvalidInput(
            f"the filter '{name}' has no value; leave it out, or give it one",
            code="filter.no-value",
        )


def _scalar(name: str, value: object) -> Scalar:
    if not isinstance(value, Scalar) or not _is_finite(value):
        raise InvalidInput(
            f"the filter '{name}' asks for a value of type {type(value).__name__}; it must be a "
            "text, a finite number or a boolean, or a list of these",
            code="filter.value-type",
        )
    return value


# Cached, since passages that are added together share most names and many values.
@lru_cache(maxsize=4096)
def _name_tag(name: str) -> str:
    return _digest([name])


# By type, since True == 1, but the two are different to a filter.
@lru_cache(maxsize=4096, typed=True)
def _tag(name: str, value: Scalar) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 2 and 2.0 are equal, and so have the same tag
    return _digest([name, value])


# --- what comes back -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A passage that a search found."""

    passage: Passage
    rank: int
    """From 1."""
    score: float
    """Relevance and quality in one figure, 0 to 1; hits are ranked by it."""
    fused: float
    """Relevance, 0 to 1: the fused scores of both indexes, or the score of the one that was
    asked."""
    lexical: float | None
    """BM25 score; None if the lexical index was not asked or did not find the passage."""
    vector: float | None
    """Cosine to the query, -1 to 1; None if the vector index was not asked or had no answer."""
    reranked: float | None = None
    """The reranker's score, by which hits are then ranked; None without one."""

    @property
    def id(self) -> str:
        """The passage's id."""
        return self.passage.id

    @property
    def text(self) -> str:
        """The passage's text."""
        return self.passage.text

    @property
    def title(self) -> str:
        """The passage's title."""
        return self.passage.title


class Hits(list[Hit]):
    """The hits of a search, best first.

    Attributes:
        fallback: Why words alone decided although meaning was asked for; None if all is well.
        none_match: Whether no passage satisfies the filter.
    """

    def __init__(self, hits: list[Hit], *, fallback: str | None = None) -> None:
        super().__init__(hits)
        self.fallback = fallback
        self.none_match = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """A passage that was not stored, since a stored one has the same words."""

    id: str
    into: str
    """Id of the stored passage, which stays as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A passage that was not stored."""

    id: str
    title: str
    code: str
    """`injection.hidden-characters`, or `passage.guard-refused` for a guard of one's own."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """The result of adding passages."""

    new: tuple[str, ...] = ()
    """Ids of passages that are stored now."""
    known: tuple[str, ...] = ()
    """Ids that were stored before, or came twice: nothing has changed."""
    merged: tuple[Merge, ...] = ()
    """Passages with the words of a stored one."""
    refused: tuple[Refusal, ...] = ()
    """Passages with invisible characters, or refused by a guard; see `harness.memory.guard`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """The contents of a store, and the state of its indexes."""

    passages: int
    language: str
    """The language whose words the lexical index stems."""
    embedder: str
    dimensions: int
    unembedded: int
    """Passages that have no vector of this embedder yet."""
    vector_bytes: int
    """Memory that the vector index takes."""
    disk_bytes: int
    """The size of all files in the directory; for PostgreSQL, its tables and the indexes here."""
