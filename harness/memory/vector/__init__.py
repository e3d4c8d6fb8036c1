"""The vector lane: passages by meaning, exactly while they are few, then by way of a graph."""

from harness.memory.vector.lane import EXACT_UP_TO, VectorLane
from harness.memory.vector.reader import Device

__all__ = ["EXACT_UP_TO", "Device", "VectorLane"]
