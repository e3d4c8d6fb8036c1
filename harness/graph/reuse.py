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

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import orjson

from harness.graph.executor import Executor, InProcess
from harness.graph.fingerprint import Fingerprint
from harness.graph.outcome import Asked, Asker, Log, Rerun, Skipped
from harness.graph.plan import Step
from harness.graph.policies import Default
from harness.graph.state import NO_DIGEST, CallOutput, Places, StepCall, Use
from harness.graph.values import ValueForm, digest, leave_unset
from harness.text_store import TextStore
from harness.trace import NodeOutput, Tracer, events
from harness.trace.records import CutBy, label_of

OUTPUT_CACHE = "outputs.sqlite"
"""The name of the file of outputs for nodes with a `Cache`, among the runs."""
_ENDED_TOO_EARLY: Mapping[CutBy, str] = {
    "limit": "a limit of the run ended its revise loop",
    "failure": "a failed call ended its revise loop, and may succeed now",
}
# Outputs in a cache for one code and the same inputs, of different models for example.
_MOST_ENTRIES = 16

Changes = Callable[[Mapping[str, str], Mapping[str, Mapping[str, str]]], Sequence[str]]
"""Says in words which models, rubrics or settings have changed since an earlier call used them, by
their digests by name, and their properties by digest, as far as these are recorded."""


class CallOutcome(NamedTuple):
    """How a call ended."""

    value: object  # its output, or `Skipped` or `Blocked` in its place
    digest: str = NO_DIGEST


class Earlier:
    """Outputs by node and item, of a run's journal or of a call's earlier attempts.

    Of several outputs for one call, the last valid one counts, so a change that is taken back
    costs nothing. `codes` has the parts of functions, models and rubrics by their digests.
    """

    def __init__(
        self,
        outputs: Iterable[NodeOutput] = (),
        codes: Mapping[str, Mapping[str, str]] | None = None,
        *,
        continues: Collection[CutBy] = (),
    ) -> None:
        self._outputs: defaultdict[tuple[str, int | None], list[NodeOutput]] = defaultdict(list)
        self._parts_by_digest = codes or {}
        # A call is made again if one of these ended a loop in it too early.
        self.continues = continues
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
    ) -> CallOutcome | str | None:
        """The earlier output of a call; or the reason why it is invalid; or None if there is none.

        Records in the call what the output used. `path` is the node's path in the earlier part of
        the run, if the node was renamed.
        """
        reasons: list[Sequence[str]] = []
        for output in reversed(self._outputs.get((path or call.state.path, call.item), ())):
            invalid = _policy_change(output, call) or change_between(
                output, call, changes, parts=self._parts_by_digest
            )
            restored = invalid or _restored(output, call.step.form)
            if isinstance(restored, CallOutcome):
                if not self.goes_on(output):
                    return _taken(output, restored, call)
                call.before = call.before or output
                restored = [_ENDED_TOO_EARLY[output.cut_by]]
            reasons.append(restored)
        # Of the output that differs least, since a change that was taken back is no reason.
        return min(reasons, key=len)[0] if reasons else None

    def goes_on(self, output: NodeOutput | None) -> bool:
        """Whether the call of an output is made again, since a loop in it goes on."""
        return output is not None and output.is_cut and output.cut_by in self.continues

    @property
    def uses(self) -> list[Mapping[str, str]]:
        """What the calls used, as digests by name; calls that used the same are listed once."""
        outputs = chain.from_iterable(self._outputs.values())
        sets_of_uses = (tuple(sorted(output.uses.items())) for output in outputs if output.uses)
        return [dict(uses) for uses in dict.fromkeys(sets_of_uses)]

    def renamed(self, plan: Sequence[Step], prefix: str) -> dict[str, str]:
        """The renamed nodes of a graph: path now → path in the earlier part of the run."""
        codes = {prefix + step.node.name: step.code.digest for step in plan}
        before = self._codes_by_prefix.get(prefix, {})
        # A new node is a missing one, renamed, if both have the same code and no third node has it.
        missing = _path_by_code({path: code for path, code in before.items() if path not in codes})
        new = _path_by_code({path: code for path, code in codes.items() if path not in before})
        return {path: missing[code] for code, path in new.items() if code in missing}

    @cached_property
    def _codes_by_prefix(self) -> dict[str, dict[str, str]]:
        """For each graph's prefix of paths: path of a node with outputs → digest of its code."""
        codes: dict[str, dict[str, str]] = {}
        for outputs in self._outputs.values():
            last = outputs[-1]
            prefix, slash, _ = last.node.rpartition("/")
            codes.setdefault(prefix + slash, {})[last.node] = last.code or ""
        return codes


def change_between(
    output: NodeOutput,
    call: StepCall,
    changes: Changes | None,
    *,
    parts: Mapping[str, Mapping[str, str]],
) -> Sequence[str]:
    """What differs between the call that gave an output and `call`, in words."""
    code, inputs = call.step.code, call.inputs.digests
    reasons: list[str] = []
    if output.code != code.digest:
        changed_parts = code.changes_since(parts.get(output.code or "", {}))
        reasons.append("its code changed" + (f": {changed_parts}" if changed_parts else ""))
    changed = [name for name, digest in inputs.items() if output.inputs.get(name) != digest]
    changed += [name for name in output.inputs if name not in inputs]
    if changed:
        names = " and ".join(f"'{name}'" for name in changed)
        reasons.append(f"its input{'s' * (len(changed) > 1)} {names} changed")
    # Two values without a digest look equal above, but may differ.
    unknown = [name for name, digest in inputs.items() if digest == NO_DIGEST]
    if unknown and not changed:
        reasons.append(
            f"its input '{unknown[0]}' cannot be written to the journal, and so not compared; a "
            "method code_parts() of its class can return what tells it from others"
        )
    # Without a `run` of its own, a function may use that of a call around it, or none.
    if output.uses is None and changes is not None and call.step.node.takes_run:
        reasons += ["an earlier version made its output, and did not record which models it used"]
    return [*reasons, *(changes(output.uses, parts) if changes and output.uses else ())]


def _policy_change(output: NodeOutput, call: StepCall) -> Sequence[str]:
    """Says that a call that failed would have another outcome by its node's present `on_error`."""
    on_error = call.step.policies.on_error
    if output.skipped is not None:
        is_same = on_error == "skip"
    elif output.is_default and isinstance(on_error, Default):
        # Behind the items that a generating node gave, its default is no output of its own.
        is_same = call.step.item_form is not None or (
            digest(call.step.form.encode(on_error.value)) == output.digest
        )
    else:
        is_same = not output.is_default
    return () if is_same else ["it failed, and its on_error changed"]


def _path_by_code(codes: Mapping[str, str]) -> dict[str, str]:
    """Digest of a node's code → the node's path, for each code that only one node has."""
    count = Counter(codes.values())
    return {code: path for path, code in codes.items() if code and count[code] == 1}


def _taken(output: NodeOutput, outcome: CallOutcome, call: StepCall) -> CallOutcome:
    """The outcome, which stands for the call; the call gets what is known of the output."""
    call.uses.update({name: Use(use) for name, use in (output.uses or {}).items()})
    call.is_of_run = output.is_of_run
    call.cut_by = output.cut_by if output.is_cut else None
    call.passed = output.passed
    return outcome


def _restored(output: NodeOutput, form: ValueForm) -> CallOutcome | Sequence[str]:
    """A recorded output as a value, with its digest; or the reason why that is impossible."""
    if output.skipped is not None:
        return CallOutcome(Skipped(reason=output.skipped))
    try:
        value = form.restore(output.value)
        # A secret is masked in the journal's text, but not in the digest.
        if digest(form.encode(value)) == output.digest:
            leave_unset(value, output.unset)
            return CallOutcome(value, output.digest)
    except (TypeError, ValueError):
        pass  # the masked text may not even be read
    return ["the journal does not hold its whole output; a secret may have been left out"]


class MisledCall(NamedTuple):
    """A call that failed in an earlier part of the run, perhaps because of its models' replies."""

    variation: int  # of the replies that it had, as `NodeCall.variation`
    code: str | None  # the digest of its code; None if other code would fail with these replies too

    def next_variation(self, code: str) -> int:
        """The number of the replies that its next call gets: those that it had, or others."""
        # People mend code that failed, and need not pay again. The same code would fail again.
        return self.variation + (self.code in {None, code})


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
    misled: Mapping[str, MisledCall] = field(default_factory=dict)
    """The calls that failed last in earlier parts of the run, by label."""
    cache: TextStore | None = None
    """The outputs of all runs, for nodes with a `Cache`."""
    changes: Changes | None = None
    """Compares what calls used beside their code and inputs; None if no call can use anything."""
    answers: dict[Asked, object] = field(default_factory=dict)
    """People's answers to questions of earlier parts, as `Answers`; grows."""
    asker: Asker | None = None
    asking: threading.Lock = field(default_factory=threading.Lock)  # held by a plain asker
    log: Log = field(default_factory=Log)
    on_repeat: Callable[[str], object] = lambda _: None
    """Called with the label of each call that is repeated, by itself or within another."""
    on_kept: Callable[[str], object] = lambda _: None
    """Called with that of each whose output a further attempt of a call around it takes again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Finds and writes the outputs of one graph's calls."""

    shared: Shared
    attempts: Earlier | None
    """Outputs of earlier attempts of the call that the graph is nested in; None if it is called
    only once."""
    renamed: Mapping[str, str]
    """The renamed nodes: path now → path in earlier parts of the run."""

    async def find(self, call: StepCall) -> CallOutcome | None:
        """Finds a stored output, and records its reuse; None if the call must be made."""
        # 1. An earlier attempt of the call that the graph is nested in.
        if self.attempts is not None:
            stored = self.attempts.find(call)
            if isinstance(stored, CallOutcome):
                # Not recorded as reused, since this part of the run made the call.
                self.shared.on_kept(call.label)
                return stored
        # 2. An earlier part of the run, perhaps under another name.
        outcome = self._find_in_earlier_part(call)
        # 3. Another run.
        if outcome is None and call.step.policies.cache is not None:
            outcome = await self._find_in_cache(call)
        if outcome is not None:
            self.shared.log.reused[call.label] = None
            self.shared.tracer.instant(events.Reuse(node=call.state.path, item=call.item))
        return outcome

    def _find_in_earlier_part(self, call: StepCall) -> CallOutcome | None:
        """A valid output of an earlier part; records why another one is invalid."""
        if self.shared.earlier is None:
            return None
        earlier_path = self.renamed.get(call.state.path)
        stored = self.shared.earlier.find(call, earlier_path, changes=self.shared.changes)
        if isinstance(stored, CallOutcome):
            if earlier_path is not None:
                self.shared.log.renamed[call.label] = label_of(earlier_path, call.item)
            return stored
        # A node with the same code as a missing one, but with other inputs, was not renamed: it is
        # new, so its call is no rerun.
        if stored is not None and earlier_path is None:
            self.shared.log.reruns[Rerun(node=call.label, reason=stored)] = None
        return None

    async def keep(
        self, call: StepCall, output: CallOutput, *, is_default: bool = False
    ) -> CallOutcome:
        """Writes an output; returns when it is as safe as the run requires."""
        unset = call.step.form.unset(output.value)
        record = record_of(call, output.data)._replace(is_default=is_default, unset=unset)
        # Without a span, the output is a default or from the cache, and not for other attempts or
        # runs.
        if output.span:
            call.state.note_span(call.item, output.span)
            if self.attempts is not None:
                self.attempts.add(record._replace(value=orjson.loads(output.data)))
            await self._keep_in_cache(call, output.data, unset)
        await self.write(call, record)
        return CallOutcome(output.value, record.digest or NO_DIGEST)

    async def keep_before(self, call: StepCall) -> CallOutcome | None:
        """Writes again what a call had before its loop went on, and it failed; None if nothing."""
        output = call.before
        outcome = output and _restored(output, call.step.form)
        if output is None or not isinstance(outcome, CallOutcome):
            return None
        self.shared.log.drop_skips_in(call.label)
        await self.write(call, output._replace(node=call.state.path))
        return _taken(output, outcome, call)

    async def write(self, call: StepCall, record: NodeOutput) -> None:
        """Writes a record that `record_of` made, with the parts of the call's code and uses."""
        parts_to_write: list[Fingerprint | Use] = [call.step.code, *call.uses.values()]
        for item in parts_to_write:
            # Written once a run, since many calls use the same and the parts are long.
            if item.parts and item.digest not in self.shared.log.codes:
                self.shared.log.codes.add(item.digest)
                self.shared.tracer.instant(events.CodeEvent(code=item.digest, parts=item.parts))
        self.shared.tracer.output(record)
        await self.shared.tracer.persisted()

    async def _find_in_cache(self, call: StepCall) -> CallOutcome | None:
        cache = self.shared.cache
        policy = call.step.policies.cache
        key = _cache_key(call)
        if cache is None or policy is None or key is None:
            return None
        # The key is of code and inputs, so only what was used beside them is left to compare.
        changes = self.shared.changes
        # Under the key are the keys of entries, the newest first: one for each set of models used.
        for entry in _parsed(await cache.find(key)) or ():
            stored = _parsed(await cache.find(entry))
            if stored is None or not policy.takes(age_s=time.time() - stored["stored_s"]):
                continue
            try:
                value = call.step.form.restore(stored["value"])
            except (TypeError, ValueError):
                continue
            leave_unset(value, stored.get("unset"))
            if changes is None or not changes(stored["uses"], {}):
                call.uses.update({name: Use(use) for name, use in stored["uses"].items()})
                return await self.keep(call, CallOutput(value, call.step.form.encode(value), 0))
        return None

    async def _keep_in_cache(self, call: StepCall, data: bytes, unset: object) -> None:
        """Stores an output with what its call used, and its key by code and inputs."""
        cache, key = self.shared.cache, _cache_key(call)
        if cache is None or key is None or call.is_of_run:
            return
        uses = _digests(call.uses)
        entry = digest(orjson.dumps([key, sorted(uses.items())]))
        older = [stored for stored in _parsed(await cache.find(key)) or () if stored != entry]
        cache.keep(key, orjson.dumps([entry, *older[: _MOST_ENTRIES - 1]]).decode())
        stored = {"uses": uses, "value": orjson.Fragment(data), "stored_s": time.time()}
        cache.keep(entry, orjson.dumps(stored | {"unset": unset}).decode())


def record_of(
    call: StepCall, data: bytes | None = None, *, skipped: str | None = None
) -> NodeOutput:
    """The journal's record of a call: its output as JSON, or why it was skipped."""
    return NodeOutput(
        node=call.state.path,
        item=call.item,
        value=None if data is None else orjson.Fragment(data),
        inputs=call.inputs.digests,
        code=call.step.code.digest,
        skipped=skipped,
        digest=None if data is None else digest(data),
        uses=_digests(call.uses) if call.step.node.takes_run or call.uses else None,
        is_of_run=call.is_of_run,
        is_cut=call.cut_by is not None,
        cut_by=call.cut_by or "limit",
        passed=call.passed,
    )


def _cache_key(call: StepCall) -> str | None:
    """A key of the call's code and inputs; None if it is not cached or an input has no digest."""
    inputs = call.inputs.digests
    if call.step.policies.cache is None or NO_DIGEST in inputs.values():
        return None
    return digest(orjson.dumps(["with its age", call.step.code.digest, sorted(inputs.items())]))


def _digests(uses: Mapping[str, Use]) -> dict[str, str]:
    return {name: use.digest for name, use in uses.items()}


def _parsed(text: str | None) -> Any:  # noqa: ANN401 - JSON
    return None if text is None else orjson.loads(text)
