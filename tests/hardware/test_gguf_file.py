"""Stepping over texts: wherever the guesses lead, it ends where a walk from text to text ends."""

import mmap
import random
import struct

import pytest

from harness.hardware.gguf_file import skip_texts


@pytest.fixture
def mapped(tmp_path):
    """Bytes as a mapped file."""
    maps = []

    def mapped(data):
        path = tmp_path / f"{len(maps)}"
        path.write_bytes(data)
        with path.open("rb") as file:
            maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return maps[-1]

    yield mapped
    for each in maps:
        each.close()


def packed(texts):
    return b"".join(struct.pack("<Q", len(text)) + text for text in texts)


def walk(data, at, count):
    for _ in range(count):
        if at + 8 > len(data):
            return None
        at += 8 + struct.unpack_from("<Q", data, at)[0]
    return at if at <= len(data) else None


WORDS = [b"a", b"the", b" of", b"ing", b"\xe6\x97\xa5", b"word" * 9]
ODD = [b"", b"\0", bytes(7), bytes(8), b"x" + bytes(7) + b"y", struct.pack("<Q", 5), b"x" * 300]


@pytest.mark.parametrize("share", [0, 0.05, 1], ids=lambda share: f"{share:.1%} odd")
def test_texts_of_any_kind_are_stepped_over_to_their_end(mapped, share):
    generator = random.Random(7)
    texts = [generator.choice(ODD if generator.random() < share else WORDS) for _ in range(30_000)]
    data = mapped(b"before" + packed(texts) + b"after")
    for count in (0, 1, 127, 128, 129, 257, 9999, 30_000):
        assert skip_texts(data, 6, count) == walk(data, 6, count)
    assert data[skip_texts(data, 6, 30_000) :] == b"after"


@pytest.mark.parametrize(
    ("size", "number"),
    [(2**20, 0), (2**63, 200), (2**64 - 8, 200), (2**64 - 1, 7777)],
)
def test_a_size_that_leads_beyond_the_file_is_seen_to(mapped, size, number):
    data = bytearray(packed(texts := WORDS * 5000))
    at = len(packed(texts[:number]))
    data[at : at + 8] = struct.pack("<Q", size)
    assert skip_texts(mapped(data), 0, 30_000) == walk(data, 0, 30_000) is None
