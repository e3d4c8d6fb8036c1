"""What calls gave before, and whether it still holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from harness.graph.fingerprint import Code
from harness.graph.state import NO_DIGEST
from harness.trace import NodeOutput


class Earlier:
    """Outputs by node and item: those that a run's journal has, or of a call's earlier attempts.

    Args:
        outputs: In the order of the journal: of two for one call, the later counts.
        codes: By the digest of a node's code, those of its parts.
    """

    def __init__(
        self,
        outputs: Iterable[NodeOutput] = (),
        codes: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._outputs = {(one.node, one.item): one for one in outputs}
        self._codes = codes or {}
        self._by_code: dict[tuple[str | None, int | None], list[NodeOutput]] | None = None

    def add(self, output: NodeOutput) -> None:
        """A further one."""
        self._outputs[output.node, output.item] = output

    def find(self, node: str, item: int | None) -> NodeOutput | None:
        """What a call gave; None if it did not come to its end."""
        return self._outputs.get((node, item))

    def find_renamed(
        self, node: str, item: int | None, *, code: str, inputs: Mapping[str, str], there: Set[str]
    ) -> NodeOutput | None:
        """What a call of the same code and inputs gave, under a name that no node has any more.

        Args:
            node: Its path now.
            item: Which item of it.
            code: The digest of its code.
            inputs: Those of what it takes.
            there: The paths of all nodes that the graph has now.
        """
        if self._by_code is None:
            self._by_code = {}
            for one in self._outputs.values():
                self._by_code.setdefault((one.code, one.item), []).append(one)
        for one in self._by_code.get((code, item), ()):
            is_beside = one.node.rpartition("/")[0] == node.rpartition("/")[0]
            if is_beside and one.node not in there and one.inputs == inputs:
                return one
        return None

    def change_since(
        self, output: NodeOutput, *, inputs: Mapping[str, str], code: Code
    ) -> str | None:
        """Why an output does not hold any more; None if it does.

        Args:
            output: As recorded.
            inputs: The digests of what the call takes now.
            code: Its function's now.
        """
        if output.code != code.digest:
            parts = code.changes_since(self._codes.get(output.code or "", {}))
            return f"its code changed: {parts}" if parts else "its code changed"
        changed = [name for name, digest in inputs.items() if output.inputs.get(name) != digest]
        changed += [name for name in output.inputs if name not in inputs]
        if changed:
            names = " and ".join(f"'{name}'" for name in changed)
            return f"its input{'s' * (len(changed) > 1)} {names} changed"
        unknown = [name for name, digest in inputs.items() if digest == NO_DIGEST]
        if unknown:
            return f"its input '{unknown[0]}' cannot be written to the journal, and so not compared"
        return None
