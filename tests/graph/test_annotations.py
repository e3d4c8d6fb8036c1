import collections
import dataclasses
import enum
import typing
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Hashable,
    Iterable,
    Mapping,
    Sequence,
    Sized,
)
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict

import pytest
import typing_extensions
from pydantic import BaseModel, Field

from harness.graph.annotations import asks_for, described, fits, item_of
from harness.graph.outcome import Skipped

# As older code writes them; under these names the linter lets them be.
OLDER_LIST, OLDER_OPTIONAL, OLDER_UNION = typing.List, typing.Optional, typing.Union  # noqa: UP006
T = typing.TypeVar("T")
P = typing.ParamSpec("P")
UserId = NewType("UserId", str)
Lines = typing_extensions.TypeAliasType("Lines", list[str])
Json = typing_extensions.TypeAliasType("Json", str | int | list["Json"] | dict[str, "Json"] | None)


class Answer(BaseModel):
    text: str


class LongAnswer(Answer):
    pages: int


class Box(BaseModel, Generic[T]):
    content: T


class Crate(Generic[T]): ...


class ByNumber(dict[int, T]): ...


class Names(list[str]): ...


@dataclasses.dataclass
class Note:
    text: str


class Pair(NamedTuple):
    left: int
    right: str


class Options(TypedDict):
    depth: int


class Limits(typing_extensions.TypedDict):
    depth: int


class Colour(enum.StrEnum):
    RED = "red"


class Speaker(typing.Protocol):
    def speak(self) -> str: ...


class Ducks:
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("produced", "wanted"),
    [
        (str, str),
        (int, Any),
        (Any, int),
        (object, int),
        (int, object),
        (None, str | None),
        (str, str | None),
        (str | None, str),
        (OLDER_UNION[int, str], float | bytes),
        (bool, int),
        (int, float),
        (int, bool),
        (Answer, LongAnswer),
        (Colour, str),
        (str, Literal["a", "b"]),
        (Literal["a"], str),
        (bytes, Sequence[int]),
        (Literal["a", 1], Literal["a"]),
        (int, Annotated[float, "a share"]),
        (str, UserId),
        (list, list[str]),
        (list[int | str], list[str]),
        (list[str], Sequence[str]),
        (Names, list[str]),
        (Names, Sequence[int]),
        (Iterable[str], Sized),
        (tuple[int, str], tuple[float, str]),
        (tuple[int, ...], tuple[int, int]),
        (tuple[int, int], tuple[float, ...]),
        (tuple[int, ...], tuple[()]),
        (tuple[()], tuple[int, ...]),
        (Pair, tuple[int, str]),
        (tuple[int, str], Sequence[int | str]),
        (dict[str, int], Mapping[str, float]),
        (collections.Counter[str], dict[str, int]),
        (ByNumber[str], dict[int, str]),
        (Options, dict[str, int]),
        (dict[str, Any], Options),
        (Limits, Options),
        (Crate[int], Crate[float]),
        (Crate[T], Crate[int]),
        (Box[int], Box[float]),
        (Answer, Speaker),
        (Speaker, int),
        (tuple[int], Hashable),
        (T, int),
        (int, T),
        (P, int),
        (Callable[[int], str], int),
        (int, Callable[..., object]),
        (typing.Callable, str),
        ("Answer", int),
        (len, int),
        (Lines, Sequence[str]),
        (Json, list[int]),
        (str, Json),
        (type[int], type),
        (Generator[str, None, None], Iterable[str]),
    ],
    ids=described,
)
def test_what_may_go_together_fits(produced, wanted):
    assert fits(produced, wanted)


@pytest.mark.parametrize(
    ("produced", "wanted"),
    [
        (str, int),
        (None, str),
        (str, float),
        (str | None, int),
        (Literal["a"], Literal["b"]),
        (Literal[1], Literal[True]),
        (int, Literal["a"]),
        (Literal["a"], int),
        (Annotated[str, "a name"], Annotated[int, "a number"]),
        (UserId, int),
        (str, Sequence[int]),
        (list[list[int]], list[list[str]]),
        (Iterable[int], str),
        (list[str], tuple[str, ...]),
        (Sequence[str], set[str]),
        (tuple[int, str], tuple[int]),
        (tuple[int, ...], tuple[int, str]),
        (tuple[int, str], Sequence[str]),
        (dict[str, int], Mapping[str, str]),
        (dict[str, int], Iterable[int]),
        (Answer, dict[str, str]),
        (Note, dict),
        (Options, list[str]),
        (Box[int], Box[str]),
        (Lines, list[int]),
        (float, Json),
    ],
    ids=described,
)
def test_what_can_never_go_together_does_not_fit(produced, wanted):
    assert not fits(produced, wanted)


def test_what_is_nested_without_end_fits():
    numbers, texts = int, str
    for _ in range(5000):
        numbers, texts = list[numbers], list[texts]

    assert fits(numbers, texts)


@pytest.mark.parametrize(
    ("annotation", "item"),
    [
        (list[int], int),
        (list, object),
        (Sequence[str], str),
        (Iterable[Answer], Answer),
        (tuple[str, ...], str),
        (tuple[int, str], int | str),
        (Pair, object),
        (Names, object),
        (collections.deque[int], int),
        (range, object),
        (AsyncIterator[str], str),
        (list[str] | None, str),
        (list[str] | tuple[int, ...], str | int),
        (list[str | Skipped], str | Skipped),
        (Annotated[list[int], Field(min_length=1)], int),
        (Lines, str),
        (Ducks, object),
        (Any, object),
        (Sized, object),
        (str, None),
        (bytes, None),
        (int | None, None),
        (Literal["abc"], None),
        (set[str], None),
        (dict[str, int], None),
        (Answer, None),
    ],
    ids=described,
)
def test_an_item_of_what_can_be_walked_through_in_order_has_an_annotation(annotation, item):
    assert item_of(annotation) == item


@pytest.mark.parametrize(
    ("annotation", "asked"),
    [
        (Skipped, True),
        (str | Skipped, True),
        (OLDER_OPTIONAL[Skipped], True),
        (Annotated[str | Skipped, "a text"], True),
        (Annotated[Skipped, "a gap"] | None, True),
        (str, False),
        (object, False),
        (Any, False),
        (list[str | Skipped], False),
        (item_of(list[str | Skipped]), True),
    ],
    ids=described,
)
def test_a_class_is_asked_for_only_by_its_name(annotation, asked):
    assert asks_for(annotation, Skipped) is asked


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (list[str], "list[str]"),
        (OLDER_OPTIONAL[str], "str | None"),
        (Annotated[list[Answer], Field(min_length=1)], "list[Answer]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (tuple[()], "tuple[()]"),
        (Literal["a", 1], "Literal['a', 1]"),
        (Callable[[int], str], "Callable[[int], str]"),
        (Callable[..., str], "Callable[..., str]"),
        (dict[str, list[int] | None], "dict[str, list[int] | None]"),
        (Box[int], "Box[int]"),
        (Lines, "Lines"),
        (T, "T"),
        (None, "None"),
        (type(None), "None"),
    ],
    ids=str,
)
def test_an_annotation_is_described_in_few_words(annotation, text):
    assert described(annotation) == text
