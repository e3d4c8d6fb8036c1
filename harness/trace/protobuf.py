"""The wire format of protocol buffers, as far as writing needs it.

https://protobuf.dev/programming-guides/encoding/: a message is a sequence of fields, each a tag
(field number and wire type) and a value. The library for it builds a message object for every
packet, which takes several times as long as the packet itself.
"""

from __future__ import annotations

import struct

_DIGIT = 1 << 14
SHORT_VARINTS = [bytes([n]) if n < 128 else bytes([n & 127 | 128, n >> 7]) for n in range(_DIGIT)]
"""The varints of the integers below 2**14, by integer: to look one up is faster than to call."""
_MORE = [bytes([n & 127 | 128, n >> 7 | 128]) for n in range(_DIGIT)]
_UINT64 = (1 << 64) - 1


def varint(number: int) -> bytes:
    """An integer, seven bits a byte; negative ones as 64 bits of two's complement."""
    if 0 <= number < _DIGIT:
        return SHORT_VARINTS[number]
    number &= _UINT64
    digits = b""
    while number >= _DIGIT:
        digits += _MORE[number & _DIGIT - 1]
        number >>= 14
    return digits + SHORT_VARINTS[number]


def tag(field: int, wire_type: int) -> bytes:
    """What stands before a value."""
    return varint(field << 3 | wire_type)


def integer(field: int, number: int) -> bytes:
    """A field of type int64, uint64, bool or enum."""
    return tag(field, 0) + varint(number)


def text(field: int, value: str) -> bytes:
    """A field of type string."""
    return message(field, value.encode("utf-8", "replace"))


def message(field: int, body: bytes) -> bytes:
    """A field that holds a message, or bytes."""
    return tag(field, 2) + varint(len(body)) + body


def fixed64(field: int, number: int) -> bytes:
    """A field of type fixed64."""
    return tag(field, 1) + struct.pack("<Q", number)


def double(field: int, number: float) -> bytes:
    """A field of type double."""
    return tag(field, 1) + struct.pack("<d", number)
