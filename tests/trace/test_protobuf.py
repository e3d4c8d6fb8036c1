import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sample_runs import steady

from harness.trace.protobuf import double, fixed64, integer, message, tag, text, varint

INT64 = st.integers(-(2**63), 2**63 - 1)


def read_varint(data):
    """As the encoding is described: seven bits a byte, the lowest first."""
    number = 0
    for place, byte in enumerate(data):
        number |= (byte & 127) << 7 * place
        if byte < 128:
            return number, data[place + 1 :]
    raise AssertionError("the last byte says that more follow")


@pytest.mark.parametrize(
    ("number", "encoded"),
    # https://protobuf.dev/programming-guides/encoding/#varints and #signed-ints
    [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (150, "9601"), (-2, "feffffffffffffffff01")],
)
def test_varints_are_as_their_description_has_them(number, encoded):
    assert varint(number).hex() == encoded


@steady
@given(INT64 | st.integers(0, 2**64 - 1))
@example(2**14 - 1)
@example(2**14)
@example(2**28 - 1)
@example(2**28)
@example(2**64 - 1)
def test_every_integer_of_64_bits_reads_back(number):
    encoded = varint(number)

    assert read_varint(encoded) == (number % 2**64, b"")
    assert len(encoded) == max(1, -(-(number % 2**64).bit_length() // 7))  # and none is padded


@steady
@given(st.integers(1, 2**29 - 1), INT64)
def test_an_integer_is_a_tag_and_a_varint(field, number):
    key, rest = read_varint(integer(field, number))

    assert (key >> 3, key & 7) == (field, 0)
    assert read_varint(rest) == (number % 2**64, b"")
    assert tag(field, 0) == varint(field << 3)


@steady
@given(st.integers(1, 2**29 - 1), st.text() | st.just("x" * 20_000))
def test_a_text_is_a_tag_a_length_and_its_utf_8(field, value):
    key, rest = read_varint(text(field, value))
    length, data = read_varint(rest)

    assert (key >> 3, key & 7) == (field, 2)
    assert (length, data) == (len(data), value.encode("utf-8", "replace"))
    assert text(field, value) == message(field, value.encode("utf-8", "replace"))


def test_a_lone_surrogate_is_written_as_a_question_mark():
    assert text(1, "\ud800") == text(1, "?")


@steady
@given(st.integers(1, 2**29 - 1), st.integers(0, 2**64 - 1), st.floats())
def test_numbers_of_fixed_length_are_little_endian(field, number, real):
    for encoded, form, value in (
        (fixed64(field, number), "<Q", number),
        (double(field, real), "<d", real),
    ):
        key, rest = read_varint(encoded)
        assert (key >> 3, key & 7) == (field, 1)
        assert rest == struct.pack(form, value)
