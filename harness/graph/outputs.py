"""What the calls of a run gave: found where it was given before, and written down."""

from __future__ import annotations

from collections.abc import Mapping, Set

import orjson

from harness.graph.earlier import Earlier
from harness.graph.outcome import Rerun, Skipped
from harness.graph.perform import Given
from harness.graph.schedule import Taken
from harness.graph.shared import Shared
from harness.graph.state import NO_DIGEST, State
from harness.graph.values import digest
from harness.trace import NodeOutput


class Outputs:
    """Those of one graph.

    Args:
        shared: Knows the journal, what earlier parts of the run gave, and the cache.
        attempts: What earlier attempts of the call that the graph is nested in gave; None if that
            is called only once.
        nodes: The paths of the graph's nodes.
    """

    def __init__(self, shared: Shared, attempts: Earlier | None, nodes: Set[str]) -> None:
        self._nodes = nodes
        self._shared = shared
        self._attempts = attempts
        self._has_earlier = shared.earlier is not None or attempts is not None

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
            self._shared.log.reused[state.label(item)] = None
            self._shared.tracer.instant("reuse", node=state.path, item=item)
        return found

    async def keep(
        self, state: State, item: int | None, taken: Taken, given: Given
    ) -> tuple[object, str]:
        """Writes an output down; returns when it is as safe as the run asks for."""
        given_digest = digest(given.data)
        if given.span:
            state.note_span(item, given.span)
            self._keep_for_attempts(state, item, taken, given.data, given_digest)
            cache = self._shared.cache
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
        step, log = state.step, self._shared.log
        if step.code not in log.codes:
            log.codes.add(step.code)
            self._shared.tracer.instant("code", code=step.code, parts=step.says.parts)
        self._shared.tracer.output(
            state.path,
            None if data is None else orjson.Fragment(data),
            item=item,
            inputs=taken.inputs,
            code=state.step.code,
            digest=digest,
            skipped=skipped,
        )
        await self._shared.tracer.persisted()

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
        earlier, log = self._shared.earlier, self._shared.log
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
        step, cache = state.step, self._shared.cache
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
