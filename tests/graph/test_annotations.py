import collections
import dataclasses
import enum
import typing
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict

import pytest
import typing_extensions
from pydantic import BaseModel, Field

from harness.graph.annotations import described, fits, item_of, members_of
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


@dataclasses.dataclass
class Note:
    text: str


class Pair(NamedTuple):
    left: int
    right: str


class Options(TypedDict):
    depth: int


class Colour(enum.StrEnum):
    RED = "red"


# What is returned; what it may be taken as, since a value of it might be one; and what never.
TAKEN_AS = [
    (str, [str | None, Literal["a"], UserId, Sequence[str], Json], [int, None, list[str], Answer]),
    (int, [object, complex, bool, Annotated[float, "a share"], T], [str, Literal["a"]]),
    (Any, [int], []),
    (None, [str | None], [str]),
    (str | None, [str, OLDER_OPTIONAL[int]], [int, int | float]),
    (LongAnswer, [Answer], [dict[str, str], Note]),
    (Answer, [LongAnswer], [str]),
    (Colour, [str], []),
    (Literal["a", 1], [str, int, Literal["b"]], [bytes, list[Literal["a"]]]),
    (Literal[1] | None, [int, Literal[2], None], [Literal["a"]]),
    (Literal[Colour.RED], [Colour, Literal["red"]], [Literal[1]]),
    (dict[str, Literal["a"]], [dict[str, str]], [dict[str, Literal[1]]]),
    (Annotated[int, Field(gt=3)], [int], [Annotated[str, "a name"]]),
    (UserId, [str], [int]),
    (list[str], [list, Iterable[object]], [str, tuple[str, ...], list[Answer]]),
    (list[int | str], [list[str]], [list[list[str]]]),
    (Sequence[str], [list[str], str], [set[str]]),
    (bytes, [Sequence[int]], []),
    (
        tuple[int, str],
        [tuple[float, str], Sequence[int], tuple, tuple[int | str, ...]],
        [tuple[str, str], tuple[int], tuple[int, str, int], tuple[int, ...]],
    ),
    (
        tuple[int, ...],
        [tuple[int, int], tuple[()], tuple[bool, ...]],
        [tuple[str, ...], tuple[int, str]],
    ),
    (tuple[()], [tuple[int, ...]], []),
    (Pair, [tuple[int, str], tuple], []),
    (dict[str, int], [Mapping[str, float], Iterable[str]], [dict[int, int], list[str]]),
    (collections.Counter[str], [dict[str, int]], []),
    (Options, [Mapping[str, Any], Options], []),
    (dict[str, Any], [Options], []),
    (Box[int], [Box[float], Box, BaseModel], [Answer]),
    (Callable[[int], str], [int], []),
    ("Answer", [int], []),
    (Lines, [Sequence[str], Lines], [list[int]]),
    (Json, [Json, list[int]], []),
    (Generator[str, None, None], [Iterable[str]], []),
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
        (int, [list[int], Annotated[list[int], Field(min_length=1)]]),
        (str, [Sequence[str], tuple[str, ...], list[str] | None, Lines]),
        (str, [AsyncIterator[str], AsyncGenerator[str, None]]),
        (int | str, [tuple[int, str]]),
        (str | int, [list[str] | tuple[int, ...]]),
        (str | Skipped, [list[str | Skipped]]),
        (object, [list, tuple, Pair, Any, object, T]),
        (None, [*NO_LISTS, set[str], dict[str, int], range, collections.deque[int]]),
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
        (Annotated[Skipped, "a gap"] | None, True),
        (object, False),
        (list[str | Skipped], False),
        (item_of(list[str | Skipped]), True),
    ],
    ids=described,
)
def test_a_class_is_asked_for_only_by_its_name(annotation, asked):
    assert (Skipped in members_of(annotation)) is asked
