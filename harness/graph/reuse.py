"""Reuse of outputs: where they are found, when they are still valid, and how they are recorded.

Before a call, its output is looked up in three places: in an earlier attempt of the call that its
graph is nested in, in earlier parts of the run, and, for a node with a `Cache`, among the outputs
of other runs. It is found by the call's name (in a cache, by code and inputs), and is valid if the
identity of the call is unchanged and its text is complete. A renamed node is recognized by its
code.

The identity of a call is its code, its inputs, and what it used beside these: models, rubrics,
settings. `change_between` compares two, for resumed runs, batches and rehearsals alike.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson

from harness.graph.executor import Executor, InProcess
from harness.graph.fingerprint import Fingerprint
from harness.graph.outcome import Asker, Log, Rerun, Skipped
from harness.graph.state import NO_DIGEST, CallOutput, Places, StepCall, Use
from harness.graph.values import ValueForm, digest
from harness.text_store import TextStore
from harness.trace import NodeOutput, Tracer, events
from harness.trace.records import label_of

Found = tuple[object, str]
"""An output, or `Skipped`, and its digest."""


OUTPUT_CACHE = "outputs.sqlite"
"""The name of the file of outputs for nodes with a `Cache`, among the runs."""
_MOST_KEPT = 16
"""Outputs of one code and the same inputs in a cache, of different models for example."""

Changes = Callable[[Mapping[str, str], Mapping[str, Mapping[str, str]]], str | None]
"""The first change since an earlier call used these, in words; None without one. It is told the
digests of what was used, by name, and the properties by digest, as far as they are recorded."""


class Earlier:
    """Outputs by node and item, of a run's journal or of a call's earlier attempts.

    Of several outputs for one call, the last valid one counts, so a change that is taken back
    costs nothing. `codes` has the parts of a node's code, or of what it used, by digest.
    """

    def __init__(
        self,
        outputs: Iterable[NodeOutput] = (),
        codes: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._outputs: defaultdict[tuple[str, int | None], list[NodeOutput]] = defaultdict(list)
        self._codes = codes or {}
        for output in outputs:
            self.add(output)

    def add(self, output: NodeOutput) -> None:
        """Adds an output, which counts before all earlier ones of its call."""
        self._outputs[output.node, output.item].append(output)

    def last(self, node: str, item: int | None) -> NodeOutput | None:
        """The last output of a call, valid or not."""
        outputs = self._outputs.get((node, item))
        return outputs[-1] if outputs else None

    def find(
        self, call: StepCall, path: str | None = None, *, changes: Changes | None = None
    ) -> Found | str | None:
        """The earlier output of a call; or the reason why it is invalid; or None if there is none.

        The call gets what the output used. `path` is its node's path when the output was made, if
        it was another.
        """
        reason = None
        for output in reversed(self._outputs.get((path or call.state.path, call.item), ())):
            change = change_between(output, call, changes, parts=self._codes)
            outcome = change or _restored(output, call.step.form)
            if not isinstance(outcome, str):
                call.uses.update({name: Use(use) for name, use in (output.uses or {}).items()})
                return outcome
            reason = reason or outcome
        return reason

    @property
    def uses(self) -> list[Mapping[str, str]]:
        """The uses of the calls, each set once."""
        sets = (
            output.uses for outputs in self._outputs.values() for output in outputs if output.uses
        )
        return [dict(key) for key in {tuple(sorted(uses.items())): None for uses in sets}]

    def renamed(self, codes: Mapping[str, str]) -> dict[str, str]:
        """The nodes of a graph that had another name: their paths then, by their paths now.

        `codes` has the digests of all nodes' code, by path.
        """
        # All paths of a graph have the same prefix, so any of them tells it.
        before = self._codes_by_graph.get(next(iter(codes), "").rpartition("/")[0], {})
        # A new node is one that is gone if both have the same code, and no other such node has it.
        gone = _by_code({path: code for path, code in before.items() if path not in codes})
        new = _by_code({path: code for path, code in codes.items() if path not in before})
        return {path: gone[code] for code, path in new.items() if code in gone}

    @cached_property
    def _codes_by_graph(self) -> dict[str, dict[str, str]]:
        """The digests of the code of nodes with outputs, by path, for each prefix of paths."""
        changes: dict[str, dict[str, str]] = {}
        for outputs in self._outputs.values():
            last = outputs[-1]
            changes.setdefault(last.node.rpartition("/")[0], {})[last.node] = last.code or ""
        return changes


def change_between(
    output: NodeOutput,
    call: StepCall,
    changes: Changes | None,
    *,
    parts: Mapping[str, Mapping[str, str]],
) -> str | None:
    """What differs between the call that gave an output and this one, in words; None if nothing."""
    code, inputs = call.step.code, call.taken.inputs
    if output.code != code.digest:
        changed_parts = code.changes_since(parts.get(output.code or "", {}))
        return f"its code changed: {changed_parts}" if changed_parts else "its code changed"
    changed = [name for name, digest in inputs.items() if output.inputs.get(name) != digest]
    changed += [name for name in output.inputs if name not in inputs]
    if changed:
        names = " and ".join(f"'{name}'" for name in changed)
        return f"its input{'s' * (len(changed) > 1)} {names} changed"
    # In doubt there is a change: two values without a digest look equal above.
    unknown = next((name for name, digest in inputs.items() if digest == NO_DIGEST), None)
    if unknown is not None:
        return (
            f"its input '{unknown}' cannot be written to the journal, and so not compared; a "
            "method code_parts() of its class can return what tells it from others"
        )
    # Without a `run`, a function reaches no model, rubric or setting.
    if changes is None or not call.step.node.takes_run:
        return None
    if output.uses is None:
        return "an earlier version made its output, and did not record which models it used"
    return changes(output.uses, parts)


def _by_code(codes: Mapping[str, str]) -> dict[str, str]:
    """For each code that only one node has, that node's path."""
    count = Counter(codes.values())
    return {code: path for path, code in codes.items() if code and count[code] == 1}


def _restored(output: NodeOutput, form: ValueForm) -> Found | str:
    if output.skipped is not None:
        return Skipped(reason=output.skipped), NO_DIGEST
    try:
        value = form.restore(output.value)
        # Secrets are masked in the journal, and the digest is of the text before that.
        if digest(form.encode(value)) == output.digest:
            return value, output.digest
    except (TypeError, ValueError):
        pass  # as below
    return "the journal does not hold its whole output; a secret may have been left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The surroundings of every call of a run, nested graphs included."""

    run_of: Callable[[Any], object]
    """Makes the `run` of the nodes that take one."""
    tracer: Tracer
    executor: Executor = field(default_factory=InProcess)
    places: Places = field(default_factory=lambda: Places(None))
    earlier: Earlier | None = None
    """Outputs of earlier parts of the run, to be reused where they are valid; None in the first."""
    cache: TextStore | None = None
    """The outputs of all runs, for nodes with a `Cache`."""
    changes: Changes | None = None
    """None if no call can use anything beside its code and inputs."""
    answers: dict[tuple[str, str], object] = field(default_factory=dict)
    """People's answers to questions of earlier parts, as `Answers`; grows."""
    asker: Asker | None = None
    log: Log = field(default_factory=Log)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Finds and writes the outputs of one graph's calls."""

    shared: Shared
    attempts: Earlier | None
    """Outputs of earlier attempts of the call that the graph is nested in; None if it is called
    only once."""
    renamed: Mapping[str, str]
    """The paths that renamed nodes had in earlier parts, by their paths now."""

    async def find(self, call: StepCall) -> Found | None:
        """An output for which the call need not be made; None if it must be made."""
        # 1. An earlier attempt of the call that the graph is nested in.
        if self.attempts is not None:
            stored = self.attempts.find(call)
            if isinstance(stored, tuple):
                return stored  # not logged: it was when it was made
        # 2. An earlier part of the run, perhaps under another name.
        before = self.renamed.get(call.state.path)
        stored = None
        if self.shared.earlier is not None:
            stored = self.shared.earlier.find(call, before, changes=self.shared.changes)
        if before is not None and isinstance(stored, tuple):
            self.shared.log.renamed[call.label] = label_of(before, call.item)
        elif before is not None:
            stored = None  # the same code with other inputs is another node
        if isinstance(stored, str):
            self.shared.log.reruns[Rerun(node=call.label, reason=stored)] = None
            stored = None
        # 3. Another run.
        if stored is None and call.step.policies.cache is not None:
            stored = await self._find_in_cache(call)
        if stored is not None:
            self.shared.log.reused[call.label] = None
            self.shared.tracer.instant(events.Reuse(node=call.state.path, item=call.item))
        return stored

    async def keep(self, call: StepCall, output: CallOutput) -> Found:
        """Writes an output; returns when it is as safe as the run requires."""
        record = record_of(call, output.data)
        # Without a span it is a default, or from the cache: not for other attempts or runs.
        if output.span:
            call.state.note_span(call.item, output.span)
            if self.attempts is not None:
                self.attempts.add(record._replace(value=orjson.loads(output.data)))
            await self._keep_in_cache(call, output.data)
        await self.write(call, record)
        return output.value, record.digest or NO_DIGEST

    async def write(self, call: StepCall, record: NodeOutput) -> None:
        """Writes a call's output, of `record_of`, with the parts of what it used."""
        parts: list[Fingerprint | Use] = [call.step.code, *call.uses.values()]
        for used in parts:
            # Written once a run, since many calls use the same and the parts are long.
            if used.parts and used.digest not in self.shared.log.codes:
                self.shared.log.codes.add(used.digest)
                self.shared.tracer.instant(events.CodeEvent(code=used.digest, parts=used.parts))
        self.shared.tracer.output(**record._asdict())
        await self.shared.tracer.persisted()

    async def _find_in_cache(self, call: StepCall) -> Found | None:
        cache, policy, key = self.shared.cache, call.step.policies.cache, _cache_key(call)
        if cache is None or policy is None or key is None:
            return None
        # By the key, code and inputs are the same: what was used beside them is left to compare.
        changes = self.shared.changes if call.step.node.takes_run else None
        # Under the key are the keys of entries, the newest first: one for each set of models used.
        for entry in _read(await cache.find(key)) or ():
            stored = _read(await cache.find(entry))
            if stored is None or not policy.takes(age_s=time.time() - stored["stored_s"]):
                continue
            try:
                value = call.step.form.restore(stored["value"])
            except (TypeError, ValueError):
                continue
            if changes is None or changes(stored["uses"], {}) is None:
                call.uses.update({name: Use(use) for name, use in stored["uses"].items()})
                return await self.keep(call, CallOutput(value, call.step.form.encode(value), 0))
        return None

    async def _keep_in_cache(self, call: StepCall, data: bytes) -> None:
        """Stores an output with what its call used, and its key by code and inputs."""
        cache, key = self.shared.cache, _cache_key(call)
        if cache is None or key is None:
            return
        uses = _digests(call.uses)
        entry = digest(orjson.dumps([key, sorted(uses.items())]))
        entries = [stored for stored in _read(await cache.find(key)) or () if stored != entry]
        cache.keep(key, orjson.dumps([entry, *entries[: _MOST_KEPT - 1]]).decode())
        stored = {"uses": uses, "value": orjson.Fragment(data), "stored_s": time.time()}
        cache.keep(entry, orjson.dumps(stored).decode())


def record_of(
    call: StepCall, data: bytes | None = None, *, skipped: str | None = None
) -> NodeOutput:
    """The record of a call's output, as JSON, or of why there is none."""
    return NodeOutput(
        call.state.path,
        call.item,
        None if data is None else orjson.Fragment(data),
        call.taken.inputs,
        call.step.code.digest,
        skipped,
        None if data is None else digest(data),
        _digests(call.uses) if call.step.node.takes_run else None,
    )


def _cache_key(call: StepCall) -> str | None:
    """None if its output is not cached, or one of its inputs cannot be compared."""
    inputs = call.taken.inputs
    if call.step.policies.cache is None or NO_DIGEST in inputs.values():
        return None
    return digest(orjson.dumps(["with its age", call.step.code.digest, sorted(inputs.items())]))


def _digests(uses: Mapping[str, Use]) -> dict[str, str]:
    return {name: use.digest for name, use in uses.items()}


def _read(text: str | None) -> Any:  # noqa: ANN401 - JSON
    return None if text is None else orjson.loads(text)
