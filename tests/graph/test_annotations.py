import collections
import dataclasses
import enum
import typing
from collections.abc import (
    AsyncGenerator,
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


# What is returned; what it may be taken as, since a value of it might be one; and what never.
TAKEN_AS = [
    (
        str,
        [str, str | None, Literal["a", "b"], UserId, Sequence[str], Json, str | Skipped],
        [int, None, float, list[str], Sequence[int], Answer],
    ),
    (
        int,
        [Any, object, float, complex, bool, Annotated[float, "a share"], T, Callable[..., object]],
        [str, Literal["a"]],
    ),
    (Any, [int], []),
    (object, [int], []),
    (None, [None, str | None], [str]),
    (str | None, [str, OLDER_OPTIONAL[int]], [int, int | float]),
    (OLDER_UNION[int, str], [float | bytes], []),
    (bool, [int, float], []),
    (float, [complex], [int, Json]),
    (LongAnswer, [Answer], []),
    (Answer, [LongAnswer, Speaker], [dict[str, str], str, Note]),
    (Colour, [str], []),
    (Literal["a"], [str], [Literal["b"], int]),
    (Literal["a", 1], [Literal["a"]], []),
    (Literal[Colour.RED], [Colour], []),
    (Annotated[int, Field(gt=3)], [int], []),
    (UserId, [str], [int]),
    (list, [list[str]], []),
    (list[str], [list, Sequence[str], Iterable[object]], [str, tuple[str, ...], list[Answer]]),
    (list[int], [list[float]], [list[str], Sequence[str]]),
    (list[int | str], [list[str]], []),
    (Names, [list[str], Sequence[int]], []),
    (Sequence[str], [list[str], str], [set[str]]),
    (bytes, [Sequence[int]], []),
    (Iterable[str], [Sized], []),
    (set[str], [collections.abc.Set[str]], [list[str]]),
    (
        tuple[int, str],
        [tuple[float, str], Sequence[int | str]],
        [tuple[int, int], tuple[int], Sequence[str]],
    ),
    (tuple[int, ...], [tuple[int, int], tuple[()]], [tuple[int, str]]),
    (tuple[int, int], [tuple[float, ...]], []),
    (tuple[()], [tuple[int, ...]], []),
    (tuple, [tuple[int, str]], []),
    (Pair, [tuple[int, str], tuple], []),
    (
        dict[str, int],
        [Mapping[str, float], Iterable[str]],
        [dict[int, int], Mapping[str, str], Iterable[int]],
    ),
    (dict, [dict[str, int]], []),
    (collections.Counter[str], [dict[str, int]], []),
    (ByNumber[str], [dict[int, str]], []),
    (Options, [dict[str, int], Mapping[str, Any]], [Answer, list[str]]),
    (dict[str, Any], [Options], []),
    (Limits, [Options], [Answer]),
    (Crate[int], [Crate[float], Crate], [Crate[str]]),
    (Crate[T], [Crate[int]], []),
    (Box[int], [Box[float], Box[Any], Box], [Box[str], Answer]),
    (Speaker, [int], []),
    (tuple[int], [Hashable], []),
    (T, [int], []),
    (P, [int], []),
    (Callable[[int], str], [int], []),
    (typing.Callable, [str], []),
    ("Answer", [int], []),
    (len, [int], []),
    (Lines, [Sequence[str], Lines], [list[int]]),
    (Json, [Json, list[int]], []),
    (type[int], [type], []),
    (Generator[str, None, None], [Iterable[str]], []),
    (complex, [], [float]),
    (Literal[1], [], [Literal[True]]),
    (Annotated[str, "a name"], [], [Annotated[int, "a number"]]),
    (list[list[int]], [], [list[list[str]]]),
    (Iterable[int], [], [str]),
    (tuple[str, ...], [], [list[str]]),
    (dict[str, str], [], [Answer]),
    (Note, [], [dict]),
]


@pytest.mark.parametrize(
    ("produced", "wanted", "may_fit"),
    [
        (produced, wanted, may_fit)
        for produced, fitting, unfit in TAKEN_AS
        for may_fit, several in ((True, fitting), (False, unfit))
        for wanted in several
    ],
    ids=lambda part: None if isinstance(part, bool) else described(part),
)
def test_what_may_go_together_fits_and_nothing_else(produced, wanted, may_fit):
    assert fits(produced, wanted) is may_fit


def test_what_is_nested_without_end_fits():
    numbers, texts = int, str
    for _ in range(5000):
        numbers, texts = list[numbers], list[texts]

    assert fits(numbers, texts)


NO_LISTS = [str, bytes, int, None, int | None, Literal["abc"], Options, Answer, Note]


@pytest.mark.parametrize(
    ("item", "annotations"),
    [
        (int, [list[int], collections.deque[int], Annotated[list[int], Field(min_length=1)]]),
        (str, [Sequence[str], tuple[str, ...], list[str] | None, Lines]),
        (str, [AsyncIterator[str], AsyncGenerator[str, None], Generator[str, None, None]]),
        (Answer, [Iterable[Answer]]),
        (int | str, [tuple[int, str]]),
        (str | int, [list[str] | tuple[int, ...]]),
        (str | Skipped, [list[str | Skipped]]),
        (object, [list, tuple, Pair, Names, range, Ducks, Any, object, T, Sized]),
        (None, [*NO_LISTS, set[str], frozenset, dict[str, int]]),
    ],
)
def test_an_item_of_what_can_be_walked_through_in_order_has_an_annotation(item, annotations):
    assert [item_of(one) for one in annotations] == [item] * len(annotations)


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
