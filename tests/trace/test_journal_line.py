import functools
import json
import pathlib
from typing import NamedTuple

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.trace import (
    Content,
    CounterSet,
    Flow,
    Flows,
    Instant,
    NodeOutput,
    RunEnded,
    RunStarted,
    SpanEnded,
    SpanRecord,
    SpanStarted,
)
from harness.trace.journal_line import decode, dump_json, encode, line_start, seal

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)
OF_TYPE = {
    "int": st.integers(1, 2**31),
    "str": st.text(),
    "float": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63 - 1),
    "object": JSON_VALUES,
    "bool": st.booleans(),
    "SpanStatus": st.sampled_from(["ok", "error", "cancelled", "unfinished"]),
    "RunEnd": st.sampled_from(["ok", "error", "cancelled", "waiting", "stopped"]),
    "CutBy": st.sampled_from(["limit", "failure"]),
    "tuple[int, ...]": st.lists(st.integers(1, 9)).map(tuple),
    "Sequence[Sequence[str]]": st.lists(st.lists(st.text())),
    "Mapping[str, str]": st.dictionaries(st.text(), st.text()),
    "Attributes": st.dictionaries(st.text(), JSON_VALUES),
}
"""By a field's annotation, what may be in it."""
WHOLE = [
    RunStarted(1, "20260102T030405Z-00", "essay", 5, 6, 7, 9, 2),
    SpanStarted(1, 2, "chat", 3, {"a": 1}),
    SpanEnded(1, 2, "error", "X: y", {"a": 1}),
    SpanRecord(1, 2, "chat", 3, 4, "error", "X: y", {"a": 1}),
    Instant(1, "stop", 2, {"a": 1}),
    CounterSet("queue", "calls", 1, 2.5, 3, "model qwen"),
    Flow("draft", 1, 2),
    Flows("output", (1, 2), 3),
    Content("f00d", "a text"),
    NodeOutput("plan", 1, None, {"task": "d16e"}, "c0de", "no task", "7e87", {})._replace(
        is_default=True, is_of_run=True, unset=[["to"]], is_cut=True, cut_by="failure"
    ),
    RunEnded(1, "error", "X: y"),
]
"""Every field of every class, at no default."""
KINDS = pytest.mark.parametrize("whole", WHOLE, ids=lambda record: type(record).__name__)


def annotations(record: NamedTuple) -> dict[str, tuple[str, bool]]:
    """The type of every field, and whether it may be nothing."""
    said = {name: type(record).__annotations__[name].__forward_arg__ for name in record._fields}
    return {name: (one.removesuffix(" | None"), one.endswith("None")) for name, one in said.items()}


def reread(line: bytes) -> NamedTuple:
    return decode(seal(line, 3))


@KINDS
@given(data=st.data())
def test_a_record_reads_back_as_it_was_written(whole, data):
    values = {
        name: data.draw(st.none() | OF_TYPE[kind] if is_optional else OF_TYPE[kind], label=name)
        for name, (kind, is_optional) in annotations(whole).items()
    }
    record = type(whole)(**values)

    line = encode(record)

    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")
    assert line.startswith(line_start(type(record)))
    assert reread(line) == record
    assert type(reread(line)) is type(record)


@KINDS
def test_a_field_that_a_later_version_added_is_left_out(whole):
    later = json.loads(encode(whole)) | {"energy_j": 12}

    assert reread(json.dumps(later).encode() + b"\n") == whole


def test_what_is_as_usual_is_not_written():
    assert encode(SpanEnded(3, 8)) == b'{"kind":"end","id":3,"time_ns":8}\n'
    # Of an output, nothing is a value.
    output = b'{"kind":"output","node":"plan","item":2,"value":null}\n'
    assert encode(NodeOutput("plan", 2, None)) == output
    assert reread(output) == NodeOutput("plan", 2, None)


def test_a_value_that_is_encoded_already_stands_as_it_is():
    value = orjson.Fragment(b'{"a":[1,2]}')
    # A lone surrogate takes the way on which values are looked at one by one.
    for skipped, read in ((None, None), ("no \ud800", "no ?")):
        output = NodeOutput("plan", None, value, skipped=skipped)
        assert reread(encode(output)) == NodeOutput("plan", None, {"a": [1, 2]}, skipped=read)


def test_a_record_with_odd_values_keeps_everything_else():
    odd = {"score": float("nan"), "seed": 2**70, "model": "ü", "kind": {1}}

    assert reread(encode(SpanStarted(3, None, "chat \ud800", 5, odd))) == SpanStarted(
        3, None, "chat ?", 5, {"score": None, "seed": str(2**70), "model": "ü", "kind": "{1}"}
    )


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"no json", id="not JSON"),
        pytest.param(b"[1]", id="not an object"),
        pytest.param(b"{}", id="no kind"),
        pytest.param(b'{"kind":["run"]}', id="kind is no text"),
        pytest.param(b'{"kind":"end","id":1}', id="field missing"),
        pytest.param(b'{"kind":"end","id":1,"time_ns":2}', id="no checksum"),
        pytest.param(b'{"kind":"end","id":1,"time_ns":2}}', id="more than an object"),
        pytest.param(b"\xff", id="not UTF-8"),
    ],
)
def test_what_is_no_record_is_a_value_error(line):
    with pytest.raises(ValueError, match=r"^not (a journal record|JSON)"):
        decode(line)


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def ring() -> list[object]:
    rings: list[object] = [1]
    rings += [rings, {"again": rings}]
    return rings


def nested(levels: int) -> list[object]:
    innermost: list[object] = []
    return functools.reduce(lambda inner, _: [inner], range(levels), innermost)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        pytest.param("日本語\n🐣", "日本語\n🐣", id="any script"),
        pytest.param(float("nan"), None, id="NaN"),
        pytest.param([float("-inf"), "\ud800"], [None, "?"], id="infinity beside a surrogate"),
        pytest.param(2**64, "18446744073709551616", id="one larger"),
        pytest.param(10**5000, "<int>", id="more digits than Python prints"),
        pytest.param((1, True, None), [1, True, None], id="tuple"),
        pytest.param({1: "a", None: "b"}, {"1": "a", "null": "b"}, id="keys that are no text"),
        pytest.param(pathlib.PurePosixPath("/a"), "PurePosixPath('/a')", id="any object"),
        pytest.param([object, "\ud800"], ["<class 'object'>", "?"], id="object by a surrogate"),
        pytest.param(Mute(), "<Mute>", id="object that cannot say what it is"),
        pytest.param(np.array([[1, 2]]), [[1, 2]], id="numpy array"),
        pytest.param([np.float64(0.1), "\ud800"], [0.1, "?"], id="numpy float by a surrogate"),
        pytest.param(ring(), [1, "…", {"again": "…"}], id="what contains itself"),
    ],
)
def test_every_value_is_written_in_some_form(value, written):
    assert json.loads(dump_json(value)) == written


def test_what_lies_too_deep_is_cut_off():
    written = dump_json(nested(5000))

    assert written == b"[" * 100 + '"…"'.encode() + b"]" * 100


ODD_TEXT = st.text(st.characters(exclude_categories=()))
ODD_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    ODD_TEXT,
    st.binary(),
    st.complex_numbers(),
    st.builds(Mute),
)
ODD_VALUES = st.recursive(
    ODD_SCALARS,
    lambda inner: st.one_of(
        st.lists(inner), st.frozensets(ODD_SCALARS), st.dictionaries(ODD_SCALARS, inner)
    ),
)


@given(ODD_VALUES)
def test_whatever_it_is_given_it_writes_one_line_of_strict_json(value):
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    written = dump_json(value)

    assert b"\n" not in written
    json.loads(written, parse_constant=refuse)


@pytest.mark.parametrize("number", [1, 7])
def test_a_line_in_which_any_bit_changed_is_no_record(number):
    line = seal(encode(SpanRecord(2, 1, "chat", 11, 19)), number)
    assert decode(line, number=number) == SpanRecord(2, 1, "chat", 11, 19)

    for place in range(len(line) - 2):
        for bit in range(7):
            changed = bytearray(line)
            changed[place] ^= 1 << bit
            with pytest.raises(ValueError):  # noqa: PT011 - any reason will do
                decode(bytes(changed), number=number)
