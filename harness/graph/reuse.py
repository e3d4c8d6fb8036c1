"""Reuse of outputs: where they are found, when they are still valid, and how they are recorded.

Before a call, its output is looked up in three places: in an earlier attempt of the call that its
graph is nested in, in earlier parts of the run, and, for a node with a `Cache`, among the outputs
of other runs. It is found by the call's name (in a cache, by code and inputs), and is valid if the
digests of its code and of each input are unchanged and its text is complete. A renamed node is
recognized by its code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Protocol

import orjson

from harness.graph.outcome import Log, Rerun, Skipped
from harness.graph.state import NO_DIGEST, Call, Given, label_of
from harness.graph.values import ValueForm, digest
from harness.trace import NodeOutput, Tracer

Found = tuple[object, str]
"""An output, or `Skipped`, and its digest."""


class OutputCache(Protocol):
    """Outputs of nodes over many runs."""

    async def find(self, key: str, *, max_age_s: float | None) -> bytes | None:
        """The output of this key, as JSON; None if there is none, or it is too old."""
        ...

    def keep(self, key: str, value: bytes) -> None:
        """Stores an output, with a delay."""
        ...


class Earlier:
    """Outputs by node and item, of a run's journal or of a call's earlier attempts.

    Of two outputs for one call, the later counts. `codes` has for each digest of a node's code the
    digests of its parts.
    """

    def __init__(
        self,
        outputs: Iterable[NodeOutput] = (),
        codes: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._outputs = {(one.node, one.item): one for one in outputs}
        self._codes = codes or {}

    def add(self, output: NodeOutput) -> None:
        """Adds an output, or replaces it."""
        self._outputs[output.node, output.item] = output

    def find(self, call: Call, path: str | None = None) -> Found | str | None:
        """The earlier output of a call; or the reason why it is invalid; or None if there is none.

        `path` is its node's path when the output was made, if it was another.
        """
        output = self._outputs.get((path or call.state.path, call.item))
        if output is None:
            return None
        return self._change_since(output, call) or _restored(output, call.step.form)

    def renamed(self, codes: Mapping[str, str]) -> dict[str, str]:
        """The nodes of a graph that had another name: their paths then, by their paths now.

        A new node is one that is gone if both have the same code, and no other such node has it.
        `codes` has the digests of all nodes' code, by path.
        """
        before = self._codes_by_graph.get(next(iter(codes), "").rpartition("/")[0], {})
        gone = _by_code({path: code for path, code in before.items() if path not in codes})
        new = _by_code({path: code for path, code in codes.items() if path not in before})
        return {path: gone[code] for code, path in new.items() if code in gone}

    @cached_property
    def _codes_by_graph(self) -> dict[str, dict[str, str]]:
        """The digests of the code of nodes with outputs, by path, for each prefix of paths."""
        found: dict[str, dict[str, str]] = {}
        for one in self._outputs.values():
            found.setdefault(one.node.rpartition("/")[0], {})[one.node] = one.code or ""
        return found

    def _change_since(self, output: NodeOutput, call: Call) -> str | None:
        code, inputs = call.step.code, call.taken.inputs
        if output.code != code.digest:
            parts = code.changes_since(self._codes.get(output.code or "", {}))
            return f"its code changed: {parts}" if parts else "its code changed"
        changed = [name for name, digest in inputs.items() if output.inputs.get(name) != digest]
        changed += [name for name in output.inputs if name not in inputs]
        if changed:
            names = " and ".join(f"'{name}'" for name in changed)
            return f"its input{'s' * (len(changed) > 1)} {names} changed"
        unknown = next((name for name, digest in inputs.items() if digest == NO_DIGEST), None)
        if unknown is not None:
            return f"its input '{unknown}' cannot be written to the journal, and so not compared"
        return None


def _by_code(codes: Mapping[str, str]) -> dict[str, str]:
    """For each code that only one node has, that node's path."""
    count = Counter(codes.values())
    return {code: path for path, code in codes.items() if code and count[code] == 1}


def _restored(output: NodeOutput, form: ValueForm) -> Found | str:
    if output.skipped is not None:
        return Skipped(reason=output.skipped), NO_DIGEST
    try:
        value = form.restore(output.value)
        if digest(form.encode(value)) == output.digest:
            return value, output.digest
    except (TypeError, ValueError):
        pass  # as below
    return "the journal does not hold its whole output; a secret may have been left out"


class Outputs:
    """Finds and writes the outputs of one graph's calls.

    `earlier` is None in the run's first part. `attempts` has outputs of earlier attempts of the
    call that the graph is nested in, and is None if that is called only once. `renamed` has the
    paths that renamed nodes had in earlier parts, by their paths now.
    """

    def __init__(
        self,
        *,
        tracer: Tracer,
        log: Log,
        earlier: Earlier | None,
        cache: OutputCache | None,
        attempts: Earlier | None,
        renamed: Mapping[str, str],
    ) -> None:
        self._tracer = tracer
        self._log = log
        self._earlier = earlier
        self._cache = cache
        self._attempts = attempts
        self._renamed = renamed

    async def find(self, call: Call) -> Found | None:
        """An output for which the call need not be made; None if it must be made."""
        if self._attempts is not None:
            found = self._attempts.find(call)
            if isinstance(found, tuple):
                return found  # not logged: it was when it was made
        before = self._renamed.get(call.state.path)
        found = None if self._earlier is None else self._earlier.find(call, before)
        if before is not None and isinstance(found, tuple):
            self._log.renamed[call.label] = label_of(before, call.item)
        elif before is not None:
            found = None  # the same code with other inputs is another node
        if isinstance(found, str):
            self._log.reruns[Rerun(node=call.label, reason=found)] = None
            found = None
        if found is None and call.step.policies.cache is not None:
            found = await self._find_in_cache(call)
        if found is not None:
            self._log.reused[call.label] = None
            self._tracer.instant("reuse", node=call.state.path, item=call.item)
        return found

    async def keep(self, call: Call, given: Given) -> Found:
        """Writes an output; returns when it is as safe as the run requires."""
        given_digest = digest(given.data)
        if given.span:
            call.state.note_span(call.item, given.span)
            if self._attempts is not None:
                self._attempts.add(
                    NodeOutput(
                        call.state.path,
                        call.item,
                        orjson.loads(given.data),
                        call.taken.inputs,
                        call.step.code.digest,
                        digest=given_digest,
                    )
                )
            key = self._cache_key(call)
            if self._cache is not None and key is not None:
                self._cache.keep(key, given.data)
        await self.record(call, data=given.data, digest=given_digest)
        return given.value, given_digest

    async def record(
        self,
        call: Call,
        *,
        data: bytes | None = None,
        digest: str | None = None,
        skipped: str | None = None,
    ) -> None:
        """Writes a call's output to the journal, with the digests of its code and inputs."""
        code = call.step.code
        if code.digest not in self._log.codes:
            self._log.codes.add(code.digest)
            self._tracer.instant("code", code=code.digest, parts=code.parts)
        self._tracer.output(
            call.state.path,
            None if data is None else orjson.Fragment(data),
            item=call.item,
            inputs=call.taken.inputs,
            code=code.digest,
            digest=digest,
            skipped=skipped,
        )
        await self._tracer.persisted()

    async def _find_in_cache(self, call: Call) -> Found | None:
        cache, policy, key = self._cache, call.step.policies.cache, self._cache_key(call)
        if cache is None or policy is None or key is None:
            return None
        data = await cache.find(key, max_age_s=policy.max_age_s)
        if data is None:
            return None
        try:
            value = call.step.form.restore(orjson.loads(data))
        except (TypeError, ValueError):
            return None
        return await self.keep(call, Given(value, data, 0))

    def _cache_key(self, call: Call) -> str | None:
        """None if its output is not cached, or one of its inputs cannot be compared."""
        inputs = call.taken.inputs
        if call.step.policies.cache is None or NO_DIGEST in inputs.values():
            return None
        return digest(orjson.dumps([call.step.code.digest, sorted(inputs.items())]))
