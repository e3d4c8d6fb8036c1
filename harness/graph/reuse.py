"""What the calls of a run gave: found where it was given before, and written down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Protocol

import orjson

from harness.graph.fingerprint import Code
from harness.graph.outcome import Log, Rerun, Skipped
from harness.graph.schedule import Taken
from harness.graph.state import NO_DIGEST, Blocked, Given, State
from harness.graph.values import ValueForm, digest
from harness.trace import NodeOutput, Tracer


class OutputCache(Protocol):
    """Outputs of nodes over many runs."""

    async def find(self, key: str, *, max_age_s: float | None) -> bytes | None:
        """The output of this key, as JSON, if there is one that is not too old."""
        ...

    def keep(self, key: str, value: bytes) -> None:
        """Stores an output, soon."""
        ...


class Outputs:
    """Those of one graph.

    Args:
        tracer: Writes the journal.
        log: Told what was reused, and what was made again.
        earlier: What earlier parts of the run gave; None in its first part.
        cache: What earlier runs gave, for nodes with a `Cache`.
        attempts: What earlier attempts of the call that the graph is nested in gave; None if that
            is called only once.
        nodes: The paths of the graph's nodes.
    """

    def __init__(
        self,
        *,
        tracer: Tracer,
        log: Log,
        earlier: Earlier | None,
        cache: OutputCache | None,
        attempts: Earlier | None,
        nodes: Set[str],
    ) -> None:
        self._tracer = tracer
        self._log = log
        self._earlier = earlier
        self._cache = cache
        self._attempts = attempts
        self._nodes = nodes
        self._has_earlier = earlier is not None or attempts is not None

    async def find(self, state: State, item: int | None, taken: Taken) -> tuple[object, str] | None:
        """What a call need not be made for, with its digest; None if it must be made.

        Of an earlier attempt, of an earlier part of the run, or of another run: the first that
        holds.
        """
        policy = state.step.policies.cache
        if not self._has_earlier and policy is None:
            return None
        attempts = self._attempts
        output = None if attempts is None else attempts.find(state.path, item)
        known = _known(attempts, output, state, taken) if attempts and output else None
        if known is not None and not isinstance(known, str):
            return known  # and nothing is said: it was when it was made
        found = self._found_earlier(state, item, taken)
        if found is None and policy is not None:
            found = await self._found_in_cache(state, item, taken, policy.max_age_s)
        if found is not None:
            self._log.reused[state.label(item)] = None
            self._tracer.instant("reuse", node=state.path, item=item)
        return found

    async def keep(
        self, state: State, item: int | None, taken: Taken, given: Given
    ) -> tuple[object, str]:
        """Writes an output down; returns when it is as safe as the run asks for."""
        given_digest = digest(given.data)
        if given.span:
            state.note_span(item, given.span)
            self._keep_for_attempts(state, item, taken, given.data, given_digest)
            cache = self._cache
            if state.step.policies.cache is not None and cache is not None:
                key = cache_key(state.step.code, taken.inputs)
                if key is not None:
                    cache.keep(key, given.data)
        await self.record(state, item, taken, data=given.data, digest=given_digest)
        return given.value, given_digest

    async def record(
        self,
        state: State,
        item: int | None,
        taken: Taken,
        *,
        data: bytes | None = None,
        digest: str | None = None,
        skipped: str | None = None,
    ) -> None:
        """Takes down in the journal what a call gave, and what it was made of."""
        step, log = state.step, self._log
        if step.code not in log.codes:
            log.codes.add(step.code)
            self._tracer.instant("code", code=step.code, parts=step.says.parts)
        self._tracer.output(
            state.path,
            None if data is None else orjson.Fragment(data),
            item=item,
            inputs=taken.inputs,
            code=state.step.code,
            digest=digest,
            skipped=skipped,
        )
        await self._tracer.persisted()

    def _keep_for_attempts(
        self, state: State, item: int | None, taken: Taken, data: bytes, digest: str
    ) -> None:
        if self._attempts is not None:
            value, code = orjson.loads(data), state.step.code
            self._attempts.add(
                NodeOutput(state.path, item, value, taken.inputs, code, digest=digest)
            )

    def _found_earlier(
        self, state: State, item: int | None, taken: Taken
    ) -> tuple[object, str] | None:
        earlier, log = self._earlier, self._log
        if earlier is None:
            return None
        output = earlier.find(state.path, item)
        if output is None:
            code, inputs = state.step.code, taken.inputs
            output = earlier.find_renamed(
                state.path, item, code=code, inputs=inputs, there=self._nodes
            )
            if output is None:
                return None
            log.renamed[state.label(item)] = label_of(output)
        known = _known(earlier, output, state, taken)
        if not isinstance(known, str):
            return known
        log.reruns[Rerun(node=state.label(item), reason=known)] = None
        return None

    async def _found_in_cache(
        self, state: State, item: int | None, taken: Taken, max_age_s: float | None
    ) -> tuple[object, str] | None:
        step, cache = state.step, self._cache
        key = None if cache is None else cache_key(step.code, taken.inputs)
        if cache is None or key is None:
            return None
        data = await cache.find(key, max_age_s=max_age_s)
        if data is None:
            return None
        try:
            value = step.form.restore(orjson.loads(data))
        except (TypeError, ValueError):
            return None
        return await self.keep(state, item, taken, Given(value, data, 0))


def label_of(output: NodeOutput) -> str:
    """The label of the call that gave an output."""
    return output.node if output.item is None else f"{output.node}[{output.item}]"


def _known(
    earlier: Earlier, output: NodeOutput, state: State, taken: Taken
) -> tuple[object, str] | str:
    """An output as it was when it was recorded, with its digest; or why it does not hold."""
    form = state.step.form
    change = earlier.change_since(output, inputs=taken.inputs, code=state.step.says)
    if change is not None:
        return change
    if output.skipped is not None:
        return Skipped(reason=output.skipped), NO_DIGEST
    try:
        value = form.restore(output.value)
        if digest(form.encode(value)) == output.digest:
            return value, output.digest
    except (TypeError, ValueError):
        pass  # as below
    return "the journal does not hold its output whole: a secret was left out, say"


def cache_key(code: str, inputs: Mapping[str, str]) -> str | None:
    """What an output is kept under over many runs; None where an input cannot be told by it."""
    if NO_DIGEST in inputs.values():
        return None
    return digest(orjson.dumps([code, sorted(inputs.items())]))


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


_UNCHANGING = frozenset({str, int, float, bool, bytes, type(None), Skipped, Blocked})


def changed_outputs(states: Iterable[State]) -> Iterator[str]:
    """The calls whose outputs are not any more what the journal has, by their labels.

    Args:
        states: Those of a run that is over.
    """
    for state in states:
        if not state.step.mapped:
            if _is_changed(state.outcome, state.step.form, state.digest):
                yield state.path
        elif state.items is not None and isinstance(state.outcome, list):
            for item, value in enumerate(state.items):
                if _is_changed(value, state.step.form, state.digests[item]):
                    yield state.label(item)
        if state.step.gives_items and state.has_changed_lists():
            yield state.path


def _is_changed(value: object, form: ValueForm, written: str) -> bool:
    if type(value) in _UNCHANGING:
        return False
    try:
        return digest(form.encode(value)) != written
    except TypeError:
        return True
