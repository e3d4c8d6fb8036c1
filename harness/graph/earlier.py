"""What calls gave before, and whether it still holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.graph.state import NO_DIGEST
from harness.trace import NodeOutput


class Earlier:
    """Outputs by node and item: those that a run's journal has, or of a call's earlier attempts.

    Args:
        outputs: In the order of the journal: of two for one call, the later counts.
    """

    def __init__(self, outputs: Iterable[NodeOutput] = ()) -> None:
        self._outputs = {(one.node, one.item): one for one in outputs}

    def add(self, output: NodeOutput) -> None:
        """A further one."""
        self._outputs[output.node, output.item] = output

    def find(self, node: str, item: int | None) -> NodeOutput | None:
        """What a call gave; None if it did not come to its end."""
        return self._outputs.get((node, item))


def change_since(output: NodeOutput, *, inputs: Mapping[str, str], code: str) -> str | None:
    """Why an output does not hold any more; None if it does.

    Args:
        output: As recorded.
        inputs: The digests of what the call takes now.
        code: The digest of its function's code now.
    """
    if output.code != code:
        return "its code changed"
    changed = [name for name, digest in inputs.items() if output.inputs.get(name) != digest]
    changed += [name for name in output.inputs if name not in inputs]
    if changed:
        names = " and ".join(f"'{name}'" for name in changed)
        return f"its input {names} changed" if len(changed) == 1 else f"its inputs {names} changed"
    unknown = [name for name, digest in inputs.items() if digest == NO_DIGEST]
    if unknown:
        return f"its input '{unknown[0]}' cannot be written to the journal, and so not compared"
    return None
