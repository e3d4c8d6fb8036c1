import asyncio
import collections
import dataclasses
import datetime
import decimal
import enum
import json
import math
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Sequence,
)
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, NewType

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    InstanceOf,
    JsonValue,
    RootModel,
    computed_field,
    field_serializer,
    field_validator,
)
from typing_extensions import TypedDict

from harness.graph.annotations import described
from harness.graph.values import ValueForm, digest, digest_of_all, value_form

# The same examples in every run: a red test is a fault, never luck.
steady = settings(derandomize=True, deadline=None)
NAN = math.nan
UserId = NewType("UserId", str)


class Colour(enum.Enum):
    RED = "red"


class Tone(enum.StrEnum):
    PLAIN = "plain"


class Answer(BaseModel):
    text: str
    share: float = 0.5


class LongAnswer(Answer):
    pages: int = 3


class Named(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(alias="full-name")

    @computed_field
    def initial(self) -> str:
        return self.name[0]


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class Words(RootModel[set[str]]): ...


class Shelf(BaseModel):
    words: Words
    title: str

    @field_serializer("title")
    def split(self, title: str) -> list[str]:
        return title.split()

    @field_validator("title", mode="before")
    @classmethod
    def join(cls, title: object) -> object:
        return " ".join(title) if isinstance(title, list) else title


class Handler(BaseModel):
    function: Callable[[], str]


@dataclasses.dataclass
class Note:
    text: str
    share: float = 1.0
    tags: set[str] = dataclasses.field(default_factory=set)


class Pair(NamedTuple):
    left: int
    right: str


class Options(TypedDict):
    depth: int


class Text(str):
    __slots__ = ()


def words_of(part):
    """For the ids of tests: not every value has a `repr`."""
    return part[:40] if isinstance(part, str) else ""


def came_back(form, value):
    """Through a journal's line and out again."""
    line = orjson.dumps({"value": orjson.Fragment(form.encode(form.check(value)))})
    return form.restore(orjson.loads(line)["value"])


def same(value, back):
    """As `repr` has it, in which NaN is NaN, 1 is not True and a tuple is no list."""
    return repr(back) == repr(value)


# --- values without an annotation ----------------------------------------------------------------

ODD_TEXT = st.text(st.characters(exclude_categories=()))
JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ODD_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(ODD_TEXT | st.just("$json"), inner),
)


@steady
@given(JSON_LIKE)
def test_whatever_python_reads_from_json_comes_back_as_it_was(value):
    form = ValueForm(object)

    assert same(value, came_back(form, value))
    assert same(value, form.restore(form.encode(value)))


@steady
@given(JSON_LIKE)
def test_a_written_value_is_strict_json_on_one_line_and_reads_the_same_when_written_again(value):
    def refuse(constant):
        raise AssertionError(constant)

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
        pytest.param({"$json": "1", "b": 2}, '{"$json":"1","b":2}', id="what does not quite"),
    ],
)
def test_a_plain_value_is_written_as_its_json(value, data):
    assert ValueForm(object).encode(value).decode() == data


def nested(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("levels", [200, 150])
def test_a_deep_value_comes_back(levels):
    assert same(nested(levels), came_back(ValueForm(object), nested(levels)))


# --- values of a type ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, "a"),
        (str, "a\ud800"),
        (int, 3),
        (int, True),
        (int, 2**70),
        (float, 0.1),
        (float, 3),
        (float, NAN),
        (float, -math.inf),
        (None, None),
        (type(None), None),
        (bool, False),
        (str | None, None),
        (int | str, "1"),
        (Literal["a", 1], 1),
        (UserId, "ann"),
        (list, [1, "a"]),
        (list[str], ["a", "\udfff"]),
        (list[float], [1, 2.5, NAN]),
        (list[list[int] | None], [[1], None]),
        (dict, {"a": [1]}),
        (dict[str, Any], {"a": {"b": None}}),
        (dict[str, int | str], {"a": 1, "b": "2"}),
        (Annotated[list[str], Field(min_length=1)], ["a"]),
        (JsonValue, {"a": [1, 2.5, None, "x", NAN]}),
        (Sequence[int], [1, 2]),
        (tuple[int, str], (1, "a")),
        (tuple[int, ...], (1, 2**70)),
        (tuple, ("a", [1])),
        (Pair, Pair(1, "a")),
        (set[str], {"b"}),
        (frozenset[int], frozenset({1})),
        (collections.deque[int], collections.deque([1])),
        (dict[int, str], {1: "a", -2: "b"}),
        (dict[Colour, int], {Colour.RED: 1}),
        (Options, {"depth": 3}),
        (Answer, Answer(text="a")),
        (Answer, Answer(text="a", share=NAN)),
        (Answer | None, None),
        (list[Answer], [Answer(text="a"), Answer(text="b", share=math.inf)]),
        (Answer | LongAnswer, LongAnswer(text="a")),
        (Named, Named.model_validate({"full-name": "Ann"})),
        (Words, Words({"a"})),
        (Shelf, Shelf(words=Words({"a"}), title="of oak")),
        (Open, Open.model_validate({"more": [1]})),
        (Note, Note("a", NAN, {"x"})),
        (list[Note], [Note("a")]),
        (Colour, Colour.RED),
        (Tone, Tone.PLAIN),
        (Literal[Tone.PLAIN], Tone.PLAIN),
        (str | datetime.date, "2026-01-01"),
        (str | Colour, "green"),
        (list[Colour] | None, [Colour.RED]),
        (datetime.date, datetime.date(2026, 1, 1)),
        (datetime.timedelta, datetime.timedelta(hours=1.5)),
        (decimal.Decimal, decimal.Decimal("1.10")),
        (uuid.UUID, uuid.UUID(int=5)),
        (PurePosixPath, PurePosixPath("/a/b")),
        (complex, 1 + 2j),
        (bytes, b"\xff\x00"),
        (list[bytes], [b"\xff"]),
        (re.Pattern, re.compile("a+")),
    ],
    ids=lambda part: described(part) if not isinstance(part, list | tuple | dict) else None,
)
def test_a_value_of_its_annotation_comes_back_as_it_was(annotation, value):
    form = ValueForm(annotation)

    assert form.check(value) is value
    assert same(value, came_back(form, value))
    assert same(value, form.restore(form.encode(value)))


TYPES = {
    str: ODD_TEXT,
    int: st.integers(),
    float: st.floats(),
    list[int | None]: st.lists(st.integers() | st.none()),
    dict[str, float]: st.dictionaries(ODD_TEXT, st.floats()),
    dict[int, str]: st.dictionaries(st.integers(), st.text()),
    tuple[int, ...]: st.lists(st.integers()).map(tuple),
    set[str]: st.sets(st.text()),
    list[set[int]]: st.lists(st.sets(st.integers())),
    Answer: st.builds(Answer, text=st.text(), share=st.floats()),
    list[Note]: st.lists(
        st.builds(Note, text=st.text(), share=st.floats(allow_nan=False), tags=st.sets(st.text()))
    ),
    bytes: st.binary(),
    datetime.datetime: st.datetimes(),
    decimal.Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    uuid.UUID: st.uuids(),
}


@pytest.mark.parametrize("annotation", TYPES, ids=described)
@settings(steady, max_examples=60)
@given(data=st.data())
def test_values_of_a_type_come_back_and_are_written_the_same_again(annotation, data):
    value = data.draw(TYPES[annotation])
    form = ValueForm(annotation)

    back = came_back(form, value)

    assert back == value or same(value, back)
    assert type(back) is type(value)
    assert form.encode(back) == form.encode(value)


def test_an_int_among_floats_of_a_dataclass_comes_back_as_the_equal_float():
    back = came_back(ValueForm(Note), Note("a", 3))

    assert back == Note("a", 3)
    assert type(back.share) is float


def test_a_time_zone_comes_back_as_its_offset():
    moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

    back = came_back(ValueForm(datetime.datetime), moment)

    assert back == moment
    assert back.isoformat() == moment.isoformat()


SETS = """
from dataclasses import dataclass
from pydantic import RootModel
from harness.graph.values import ValueForm
@dataclass
class Bag:
    words: set[str]
Words = RootModel[set[str]]
words = {"ant", "bee", "cat", "dog", "eel", "fox"}
print(ValueForm(set[str]).encode(words), ValueForm(list[Bag]).encode([Bag(words)]))
print(ValueForm(dict[str, Words]).encode({"a": Words(words)}))
print(ValueForm(set[frozenset[str]]).encode({frozenset(words), frozenset({"gnu"})}))
"""


def test_a_set_is_written_the_same_in_every_process():
    written = {
        subprocess.run(
            [sys.executable, "-c", SETS],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(written) == 1
    assert '["ant","bee","cat","dog","eel","fox"]' in written.pop()


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (list[str], "abc", "returned a str ('abc'), where its annotation says list[str]"),
        (int, "3", "returned a str ('3'), where its annotation says int"),
        (str, 3, "returned an int (3), where its annotation says str"),
        (bool, 1, "returned an int (1), where its annotation says bool"),
        (str, None, "returned a NoneType (None), where its annotation says str"),
        (None, 1, "returned an int (1), where its annotation says None"),
        (str, Text("a"), "returned a Text ('a'), where its annotation says str"),
        (
            str,
            ["word " * 100],
            (
                "returned a list (['word word word word wo...rd word word word word ']), "
                "where its annotation says str"
            ),
        ),
        (list[int], (1, 2), "returned a tuple ((1, 2)), where its annotation says list[int]"),
        (tuple[int, ...], [1], "returned a list ([1]), where its annotation says tuple[int, ...]"),
        (Literal["a"], "b", "returned a str ('b'), where its annotation says Literal['a']"),
        (Literal[1], True, "returned a bool (True), where its annotation says Literal[1]"),
        (str | None, 1, "returned an int (1), where its annotation says str | None"),
        (
            Answer,
            {"text": "a"},
            "returned a dict ({'text': 'a'}), where its annotation says Answer",
        ),
        (
            list[Answer],
            [Answer(text="a"), "b"],
            (
                "returned a list ([Answer(text='a', share=0.5), 'b']), where its annotation says "
                "list[Answer]: [1]: Input should be a valid dictionary or instance of Answer"
            ),
        ),
        (
            Annotated[list[str], Field(min_length=2)],
            ["a"],
            "returned a list (['a']), where its annotation says list[str]",
        ),
    ],
    ids=words_of,
)
def test_a_value_of_another_type_is_refused(annotation, value, message):
    with pytest.raises(TypeError) as caught:
        ValueForm(annotation).check(value)

    assert str(caught.value).startswith(message)


def test_what_was_not_awaited_is_refused_with_a_question():
    async def text(): ...

    coroutine = text()
    with pytest.raises(TypeError, match=r"returned a coroutine .* says str; is an await missing\?"):
        ValueForm(str).check(coroutine)
    coroutine.close()


def test_a_generator_where_a_list_is_due_is_refused_with_the_remedy():
    with pytest.raises(TypeError, match=r"list\[int\]; it can be read only once, so return a list"):
        ValueForm(list[int]).check(number for number in range(3))


def ring():
    value = [1]
    value += [value, value]
    return value


async def stream():
    yield 1


UNWRITTEN = "its output cannot be written to the journal: "
ANNOTATE = "; annotate the return type with what it is"


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (object, (1, 2), f"a tuple would not come back as one{ANNOTATE}"),
        (
            object,
            {"a": [0, {1}]},
            f"a set at ['a'][1] would not come back as one{ANNOTATE}",
        ),
        (object, Answer(text="a"), f"an Answer would not come back as one{ANNOTATE}"),
        (object, [Tone.PLAIN], f"a Tone at [0] would not come back as one{ANNOTATE}"),
        (
            object,
            collections.OrderedDict(a=1),
            f"an OrderedDict would not come back as one{ANNOTATE}",
        ),
        (object, {1: "a"}, f"a mapping has a key that is no str (1){ANNOTATE}"),
        (
            list[Any],
            [{"x": {None: 1}}],
            f"a mapping at [0]['x'] has a key that is no str (None){ANNOTATE}",
        ),
        (dict[str, object], {"a": object}, f"a type at ['a'] would not come back as one{ANNOTATE}"),
        (object, iter([1]), "a list_iterator can be read only once; return a list"),
        (object, {"a": (n for n in "ab")}, "a generator at ['a'] can be read only once; return a"),
        (object, ring(), "it contains itself, or is more than 200 levels deep"),
        (object, nested(201), "it contains itself, or is more than 200 levels deep"),
        (object, 10**5000, "Exceeds the limit (4300 digits) for integer string conversion"),
        (
            Answer,
            LongAnswer(text="a"),
            (
                "a LongAnswer (LongAnswer(text='a', share=0.5, pages=3)) would come back as "
                f"Answer(text='a', share=0.5){ANNOTATE}"
            ),
        ),
        (
            Sequence[int],
            (1, 2),
            f"a tuple ((1, 2)) would come back as [1, 2]{ANNOTATE}",
        ),
        (
            tuple[Any, ...],
            ({1: 2},),
            f"a tuple (({{1: 2}},)) would come back as ({{'1': 2}},){ANNOTATE}",
        ),
        (
            dict[tuple[int, int], str],
            {(1, 2): "a"},
            "what is written is not read as dict[tuple[int, int], str]: ['1,2']['[key]']: Input",
        ),
        (
            Note,
            Note("a\ud800"),
            "what is written is not read as Note: a text in it has half of a surrogate pair",
        ),
        (
            str | datetime.date,
            datetime.date(2026, 1, 1),
            f"a date (datetime.date(2026, 1, 1)) would come back as '2026-01-01'{ANNOTATE}",
        ),
    ],
    ids=words_of,
)
def test_what_would_not_come_back_as_it_was_is_not_written(annotation, value, message):
    form = ValueForm(annotation)
    form.check(value)

    with pytest.raises(TypeError) as caught:
        form.encode(value)

    assert str(caught.value).startswith(UNWRITTEN + message)


def test_a_stream_is_not_written():
    streaming = stream()

    with pytest.raises(TypeError, match="an async_generator can be read only once; return a list"):
        ValueForm(object).encode(streaming)
    asyncio.run(streaming.aclose())


def test_a_dataclass_that_contains_itself_is_not_written():
    note = Note("a")
    note.tags = [note]

    with pytest.raises(TypeError, match="cannot be written to the journal: "):
        ValueForm(Note).encode(note)


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (Callable[[int], str], "Callable[[int], str] cannot be written to a journal"),
        (list[Callable[..., int]], "list[Callable[..., int]] cannot be written to a journal"),
        (threading.Thread, "Thread cannot be written to a journal and read back; return a text"),
        (str | threading.Thread, "str | Thread cannot be written to a journal"),
        (InstanceOf[threading.Thread], "Thread cannot be written to a journal"),
        (Handler, "Handler cannot be written to a journal"),
        (dict[str, Handler], "dict[str, Handler] cannot be written to a journal"),
        (type[int], "type[int] cannot be written to a journal"),
        (Hashable, "Hashable cannot be written to a journal"),
        (object.__class__, "type cannot be written to a journal"),
        (
            Iterable[int],
            "Iterable[int] cannot be written to a journal and read back; return a list",
        ),
        (
            Iterator[int],
            "Iterator[int] cannot be written to a journal and read back; return a list",
        ),
        (Generator[int, None, None], "Generator[int, None, None] cannot be written to a journal"),
        (AsyncIterator[int], "AsyncIterator[int] cannot be written to a journal and read back;"),
        (Literal[Colour.RED], "Literal[<Colour.RED: 'red'>] cannot be written to a journal"),
        (range, "range cannot be written to a journal"),
        ("Missing", "Missing names something that is not defined"),
        (list["Missing"], "list[Missing] names something that is not defined"),  # noqa: F821
    ],
    ids=lambda part: described(part)[:30],
)
def test_an_annotation_of_what_no_journal_can_hold_is_refused(annotation, message):
    for make in (ValueForm, value_form):
        with pytest.raises(TypeError) as caught:
            make(annotation)
        assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("annotation", "data"),
    [(int, b'"a"'), (list[str], b"[1]"), (Answer, b'{"share":1.0}'), (tuple[int], b'["a"]')],
    ids=words_of,
)
def test_what_was_written_of_another_annotation_is_not_restored(annotation, data):
    with pytest.raises(TypeError, match=r"where its annotation says|is not read as"):
        ValueForm(annotation).restore(data)


# --- forms and digests ---------------------------------------------------------------------------


def test_a_form_is_made_once_for_an_annotation():
    assert value_form(list[Answer]) is value_form(list[Answer])
    assert value_form(Literal[1]) is not value_form(Literal[True])


def test_an_annotation_without_a_hash_has_a_form_too():
    annotation = Annotated[list[int], {"more": []}]

    assert value_form(annotation).check([1]) == [1]


def test_a_digest_names_what_is_written():
    texts = [b"1", b"2", b'"1"', b"[1]", b"[]"]
    digests = [digest(text) for text in texts]

    assert len({*digests}) == len(texts)
    assert digest(b"1") == digests[0]
    assert all(re.fullmatch("[0-9a-f]{32}", text) for text in digests)


def test_the_digest_of_a_list_is_that_of_its_items_in_their_order():
    one, two = digest(b"1"), digest(b"2")
    lists = [[], [one], [two], [one, two], [two, one], [one, one, two]]

    assert len({digest_of_all(digests) for digests in lists} | {one, two}) == len(lists) + 2
    assert digest_of_all(iter([one, two])) == digest_of_all([one, two])
