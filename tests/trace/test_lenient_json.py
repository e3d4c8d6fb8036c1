import functools
import json
import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.trace.journal_line import dump_json


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
