"""Which items a mapped node has: how many, and which of its sources' items each takes."""

from __future__ import annotations

import math

from harness.errors import PipelineInvalid
from harness.graph.state import State


def count_items(state: State) -> int | None:
    """How many items there will be; None as long as that is not known.

    Raises:
        PipelineInvalid: It walks lists side by side that differ in length.
    """
    node = state.step.node
    totals = [source.total for source in state.sources]
    known = [total for total in totals if total is not None]
    if node.combine == "product":
        return math.prod(known)
    if len(set(known)) > 1:
        names = [parameter.source for parameter in state.step.mapped]
        listed = ", ".join(
            f"'{name}' has {total}"
            for name, total in zip(names, totals, strict=True)
            if total is not None
        )
        raise PipelineInvalid(
            f"each= walks lists side by side, and they differ in length: {listed}; to take each "
            'with each, say combine="product"',
            code="pipeline.lengths-differ",
            path=node.path,
            line=node.line,
        )
    return known[0] if len(known) == len(totals) else None


def indices_of(state: State, item: int) -> list[int]:
    """Which item of each source an item takes."""
    if state.step.node.combine == "zip":
        return [item] * len(state.sources)
    indices = []
    for source in reversed(state.sources):
        assert source.total is not None, "a product begins when all its sources are whole"
        item, index = divmod(item, source.total)
        indices.append(index)
    return indices[::-1]
