"""Byte counts in and out of text."""

import pytest

from harness.hardware import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("count", "text"),
    [
        pytest.param(1023, "1023 B", id="below a KiB"),
        pytest.param(2**20 - 1, "1.0 MiB", id="rounds up into the next unit"),
        pytest.param(70 * 10**9, "65.2 GiB", id="70 GB are 65.2 GiB"),
        pytest.param(5000 * 2**40, "5000.0 TiB", id="the largest unit"),
    ],
)
def test_a_byte_count_is_written_in_binary_units(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("size", "count"),
    [
        pytest.param(8_589_934_592, 8 * 2**30, id="a number"),
        pytest.param("8589934592", 8 * 2**30, id="a number as text"),
        pytest.param("8GB", 8 * 10**9, id="GB is 10**9"),
        pytest.param(" 512 mib ", 512 * 2**20, id="lower case, spaces around"),
        pytest.param("1.1 GB", 1_100_000_000, id="a fraction, exactly"),
        pytest.param("1.5 B", 1, id="a fraction of a byte is dropped"),
    ],
)
def test_a_size_that_a_person_wrote_is_read(size, count):
    assert parse_bytes(size) == count


@pytest.mark.parametrize(
    "size", ["", "eight GiB", "8 G", "-1 GiB", -1, "1e9 B", "1.5", "GiB", "8 iB", "٣ GiB", "³"]
)
def test_a_size_of_another_form_is_refused(size):
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(size)
