"""What nodes return, as a journal has it: written, read again, and refused if that would differ."""

import asyncio
import collections
import dataclasses
import datetime
import decimal
import enum
import itertools
import json
import math
import re
import threading
import uuid
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, NewType
from zoneinfo import ZoneInfo

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, JsonValue, PrivateAttr, RootModel, SecretStr
from typing_extensions import TypedDict

from harness.graph.annotations import described
from harness.graph.values import ValueForm, digest, digest_of_all, plain_json, value_form
from harness.session.result import CallResult
from harness.trace import dump_json

NAN = math.nan
UserId = NewType("UserId", str)


class Colour(enum.Enum):
    RED = "red"


class Tone(enum.StrEnum):
    PLAIN = "plain"


class Paint(enum.Enum):
    RED = (255, 0, 0)


class Answer(BaseModel):
    text: str
    share: float = 0.5


class LongAnswer(Answer):
    pages: int = 3


@dataclasses.dataclass
class Note:
    text: str
    share: float = 1.0
    tags: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass
class Bag:
    numbers: set[int]


class Pair(NamedTuple):
    left: int
    right: str


class Options(TypedDict):
    depth: int


class Text(str):
    __slots__ = ()


def came_back(form, value):
    """Through a journal's line and out again."""
    line = orjson.dumps({"value": orjson.Fragment(form.encode(value))})
    return form.restore(orjson.loads(line)["value"])


def same(value, back):
    """As `repr` has it, in which NaN is NaN, 1 is not True and a tuple is no list."""
    return repr(back) == repr(value)


# --- values without an annotation ----------------------------------------------------------------

ODD_TEXT = st.text(st.characters(exclude_categories=()))
JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ODD_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("$json"), inner),
)


@given(JSON_LIKE)
def test_whatever_python_reads_from_json_comes_back_as_it_was_from_strict_json(value):
    def refuse(constant):
        raise AssertionError(constant)

    form = ValueForm(object)

    assert same(value, came_back(form, value))
    assert same(value, form.restore(form.encode(value)))
    data = ValueForm(Any).encode(value)
    assert b"\n" not in data
    json.loads(data, parse_constant=refuse)
    assert orjson.dumps(orjson.loads(data)) == data


@pytest.mark.parametrize(
    ("value", "data"),
    [
        pytest.param("日本語", '"日本語"', id="text"),
        pytest.param({"a": [1, 2.5, None, True]}, '{"a":[1,2.5,null,true]}', id="nested"),
        pytest.param([NAN, 1.0], r'{"$json":"[NaN, 1.0]"}', id="NaN"),
        pytest.param(-math.inf, '{"$json":"-Infinity"}', id="infinity"),
        pytest.param(2**64, '{"$json":"18446744073709551616"}', id="more than 64 bits"),
        pytest.param("a\ud800", r'{"$json":"\"a\\ud800\""}', id="half of a surrogate pair"),
        pytest.param({"$json": "1"}, r'{"$json":"{\"$json\": \"1\"}"}', id="what looks wrapped"),
        pytest.param({"$json": 1}, r'{"$json":"{\"$json\": 1}"}', id="what looks wrapped too"),
        pytest.param({"$json": "1", "b": 2}, '{"$json":"1","b":2}', id="what does not quite"),
    ],
)
def test_a_plain_value_is_written_as_its_json(value, data):
    assert ValueForm(object).encode(value).decode() == data
    assert plain_json(orjson.loads(data)) == orjson.loads(dump_json(value))


def nested(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


# --- values of a type ----------------------------------------------------------------------------

SIMPLE = [str, int, float, bool, None, bytes, complex, UserId, Colour, Tone, decimal.Decimal]
OTHERS = [uuid.UUID, datetime.date, datetime.datetime, datetime.timedelta, PurePosixPath]
UNIONS = [str | None, int | str, Literal["a", 1], list[Colour] | None, Answer | None]
LISTS = [list[str], list[int | None], list[list[int] | None], list[bytes], Sequence[int]]
TUPLES = [tuple[int, str], tuple[int, ...], Pair, collections.deque[int]]
SETS = [set[str], frozenset[int], list[set[int]]]
MAPPINGS = [dict[str, float], dict[int, str], dict[Colour, int], dict[str, int | str], Options]
CLASSES = [Answer, list[Answer], Note, list[Note]]
VALUES = {
    str: ODD_TEXT,
    decimal.Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    PurePosixPath: st.text("ab/.").map(PurePosixPath),
    Sequence[int]: st.lists(st.integers()),
    Answer: st.builds(Answer, text=st.text(), share=st.floats()),
    Note: st.builds(Note, text=st.text(), share=st.floats(allow_nan=False)),
}
VALUES[list[Note]] = st.lists(VALUES[Note], max_size=2)


@pytest.mark.parametrize(
    "annotation",
    [*SIMPLE, *OTHERS, *UNIONS, *LISTS, *TUPLES, *SETS, *MAPPINGS, *CLASSES],
    ids=described,
)
@settings(max_examples=settings().max_examples // 4)
@given(data=st.data())
def test_values_of_a_type_come_back_and_are_written_the_same_again(annotation, data):
    values = (
        VALUES if annotation in VALUES else {annotation: st.from_type(annotation or type(None))}
    )
    value = data.draw(values[annotation])
    form = ValueForm(annotation)

    back = came_back(form, value)

    assert back == value or same(value, back)
    assert type(back) is type(value)
    assert form.encode(back) == form.encode(value)
    assert same(back, form.restore(form.encode(value)))


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, True),
        (int, 2**70),
        (dict[str, float | None], {"a": True, "b": 1, "c": 1.0, "d": None}),
        (list[list[int]], [[1, False]]),
        (list, [1, "a"]),
        (dict, {"a": [1]}),
        (Annotated[list[str], Field(min_length=1)], ["a"]),
        (JsonValue, {"a": [1, 2.5, None, "x", NAN]}),
        (Answer | LongAnswer, LongAnswer(text="a")),
        (re.Pattern, re.compile("a+")),
        (list[float], [-0.0]),
        (tuple[decimal.Decimal, ...], (decimal.Decimal("1.50"), decimal.Decimal("1E+2"))),
    ],
    ids=lambda part: described(part) if not isinstance(part, list | tuple | dict) else None,
)
def test_a_value_of_its_annotation_comes_back_as_it_was(annotation, value):
    form = ValueForm(annotation)

    assert same(value, came_back(form, value))


def test_a_set_is_written_the_same_whatever_its_order():
    one, other = {0, 8}, {8, 0}
    assert [*one] != [*other]  # which collide

    for annotation, wrap in (
        (set[int], set),
        (list[Bag], lambda numbers: [Bag(numbers)]),
        (dict[str, RootModel[set[int]]], lambda numbers: {"a": RootModel[set[int]](numbers)}),
        (set[frozenset[int]], lambda numbers: {frozenset(numbers), frozenset({1})}),
    ):
        form = ValueForm(annotation)
        assert form.encode(wrap(one)) == form.encode(wrap(other)), annotation


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (list[str], "abc"),
        (str, 3),
        (str, None),
        (str, Text("a")),
        (tuple[int, ...], [1]),
        (Literal[1], True),
        (Answer, {"text": "a"}),
        (list[Answer], [Answer(text="a"), "b"]),
        (Annotated[list[str], Field(min_length=2)], ["a"]),
    ],
)
def test_a_value_of_another_type_is_refused(annotation, value):
    with pytest.raises(TypeError) as caught:
        ValueForm(annotation).encode(value)

    for said in (type(value).__name__, repr(value), f"annotation says {described(annotation)}"):
        assert said in str(caught.value)


def test_the_result_of_a_call_returned_whole_is_refused_with_the_remedy():
    whole = CallResult(outputs={"a": "b"}, result="b")
    with pytest.raises(TypeError, match=r"returned a CallResult .*; return its \.result"):
        ValueForm(str).encode(whole)


def test_what_was_not_awaited_or_can_be_read_once_is_refused_with_the_remedy():
    coroutine = asyncio.sleep(0)
    with pytest.raises(TypeError, match="await"):
        ValueForm(str).encode(coroutine)
    coroutine.close()
    with pytest.raises(TypeError, match="return a list"):
        ValueForm(list[int]).encode(number for number in range(3))


@pytest.mark.parametrize("annotation", [list[int], str, object])
def test_what_can_be_read_once_is_refused_unread_since_it_may_never_end(annotation):
    endless = itertools.count()
    with pytest.raises(TypeError, match="only once"):
        ValueForm(annotation).encode(endless)
    assert next(endless) == 0


class Unreadable:
    def __repr__(self):
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    ("annotation", "value"),
    [(int, Unreadable()), (list[int], [1, Unreadable()]), (object, {"a": Unreadable()})],
)
def test_a_value_whose_repr_raises_is_refused_as_others_are(annotation, value):
    with pytest.raises(TypeError, match=r"<Unreadable>|<list>"):
        ValueForm(annotation).encode(value)


def ring():
    value = [1]
    value += [value, value]
    return value


class Counted(BaseModel):
    _seen: int = PrivateAttr(default=0)


class Login(BaseModel):
    key: SecretStr


@dataclasses.dataclass
class Recent:
    lines: deque[str]


@dataclasses.dataclass
class Event:
    text: str | None = None
    day: datetime.date | None = None
    at: datetime.datetime | None = None


DAY = datetime.date(2026, 1, 1)
# A day later it is 24 hours later by its zone, and 23 by its offset.
NOON = datetime.datetime(2026, 3, 28, 12, tzinfo=ZoneInfo("Europe/Oslo"))


def counted(seen):
    value = Counted()
    value._seen = seen
    return value


def note_in_itself():
    note = Note("a")
    note.tags = [note]
    return note


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (object, (1, 2), "a tuple"),
        (object, {"a": [0, {1}]}, "a set ({1}) at ['a'][1]"),
        (object, {1: "a"}, "an int (1) would come back as '1'"),
        (list[Any], [{"x": {None: 1}}], "at [0]['x'] would come back as 'None'"),
        (dict[str, object], {"a": object}, "a type (<class 'object'>) at ['a']"),
        (object, iter([1]), "a list_iterator"),
        (object, ring(), "Circular reference"),
        (object, nested(201), "recursion limit"),
        (object, 10**5000, "4300 digits"),
        (Answer, LongAnswer(text="a"), "a LongAnswer"),
        (Sequence[int], (1, 2), "come back as [1, 2]"),
        (deque[int], deque([1], maxlen=2), "(deque([1], maxlen=2)) would come back as deque([1])"),
        (Recent, Recent(deque(["a"], maxlen=2)), "maxlen=2)) at lines would come back as deque(["),
        (defaultdict[str, int], defaultdict(lambda: 5), "come back as defaultdict(<class 'int'>"),
        (defaultdict[str, int], defaultdict(None, a=1), "(defaultdict(None, {'a': 1}))"),
        (Counted, counted(5), "an int (5) at _seen would come back as 0"),
        (Login, Login(key="k9"), "at key would come back as another that looks the same"),
        (dict[int | str, str], {1: "a", "1": "b"}, "come back as {'1': 'b'}"),
        (Note, Note("a\ud800"), "surrogate"),
        (Note, note_in_itself(), "journal"),
        (str | datetime.date, datetime.date(2026, 1, 1), "a date"),
        (Any, memoryview(b"x"), "; return a value that JSON can hold whole"),
        (datetime.datetime, NOON, "return a datetime in UTC, and the name of its zone as a text"),
        (Event, Event(at=NOON), "at at would come back as datetime.datetime(2026, 3, 28, 12"),
        (set[datetime.datetime], {NOON}, "ZoneInfo(key='Europe/Oslo')"),
        (dict[datetime.time, int], {NOON.timetz(): 1}, "datetime.time(12, 0)"),
        (datetime.datetime, NOON.replace(month=10, day=25, hour=2, fold=1), "fold=1"),
    ],
    ids=lambda part: part if isinstance(part, str) and part.isascii() else "",
)
def test_what_would_not_come_back_as_it_was_is_not_written(annotation, value, said):
    with pytest.raises(TypeError) as caught:
        ValueForm(annotation).encode(value)

    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("annotation", "value", "followed"),
    [
        (str | datetime.date, DAY, [(datetime.date, DAY), (Event, Event(day=DAY))]),
        (datetime.date | str, "2026-01-01", [(str, "2026-01-01")]),
        (list[str | datetime.date], ["a", DAY], [(list[Event], [Event("a"), Event(day=DAY)])]),
        (Any, Note("a"), [(Note, Note("a"))]),
        (object, {1: "a"}, [(dict[int, str], {1: "a"})]),
        (Event, Event(at=NOON), [(Event, Event("Europe/Oslo", at=NOON.astimezone(datetime.UTC)))]),
    ],
    ids=["a date", "a text like one", "both", "any", "keys", "a zone"],
)
def test_the_remedy_for_a_union_that_json_does_not_tell_apart_helps(annotation, value, followed):
    with pytest.raises(TypeError, match=r"alone, or return a dataclass with a field|in UTC"):
        ValueForm(annotation).encode(value)

    for remedy, same in followed:
        assert ValueForm(remedy).restore(ValueForm(remedy).encode(same)) == same


@pytest.mark.parametrize(
    "annotation",
    [
        Callable[[int], str],
        threading.Thread,
        str | threading.Thread,
        Hashable,
        Iterable[int],
        AsyncIterator[int],
        Paint,
        list[Paint],
        list["Missing"],  # noqa: F821
    ],
    ids=described,
)
def test_an_annotation_of_what_no_journal_can_hold_is_refused(annotation):
    for make in (ValueForm, value_form):
        with pytest.raises(TypeError) as caught:
            make(annotation)
        shown = described(annotation)
        assert str(caught.value).startswith(shown) or isinstance(annotation, type(Literal[1]))


def test_the_remedy_of_an_enum_is_about_its_values():
    with pytest.raises(TypeError, match="give its members texts or numbers as values"):
        ValueForm(list[Paint])


@pytest.mark.parametrize(
    ("annotation", "data"),
    [(int, b'"a"'), (list[str], b"[1]"), (Answer, b'{"share":1.0}'), (tuple[int], b'["a"]')],
)
def test_what_was_written_of_another_annotation_is_not_restored(annotation, data):
    with pytest.raises(TypeError, match=r"where its annotation says|is not read as"):
        ValueForm(annotation).restore(data)


# --- digests -------------------------------------------------------------------------------------


def test_digests_of_lists_differ_by_their_items_and_by_their_order():
    one, two = digest(b"1"), digest(b"2")
    lists = [[], [one], [two], [one, two], [two, one], [one, one, two]]

    assert len({digest_of_all(digests) for digests in lists} | {one, two}) == len(lists) + 2
