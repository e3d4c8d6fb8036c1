"""Headers with something wrong in them."""

import struct

HUGE = [0, 1, 255, 2**16, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


def mutated(data, generator, donors):
    """One to three edits of a header, the first 64 bytes being edited more often than others."""
    data = bytearray(data)
    for _ in range(generator.randint(1, 3)):
        if len(data) < 16:
            break
        end = len(data) if generator.random() < 0.8 else 64
        at = generator.randrange(min(len(data), end) - 8)
        match generator.randrange(7):
            case 0:  # a bit is flipped
                data[at] ^= 1 << generator.randrange(8)
            case 1:  # a byte is set
                data[at] = generator.choice([0, 1, 8, 9, 32, 34, 123, 127, 128, 255])
            case 2:  # what may be a length is set
                data[at : at + 8] = struct.pack("<Q", generator.choice(HUGE))
            case 3:  # what surely looks like a length of eight bytes is set
                at = max(data.find(bytes(7), at) - 1, 0)
                data[at : at + 8] = struct.pack("<Q", generator.choice(HUGE))
            case 4:  # it ends early
                del data[at:]
            case 5:  # something comes in, of another header or of none
                donor = generator.choice(donors)
                start = generator.randrange(len(donor))
                data[at:at] = donor[start : start + generator.randint(1, 64)]
            case 6:  # something is left out
                del data[at : at + generator.randint(1, 32)]
    return bytes(data)
