"""Rules about calls that failed, and calls that were made again."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.facts import Observed, Server, length_ns, per_model
from harness.analysis.finding import MOST_SPANS, Evidence, Finding, Layer, counted, named, said_ns
from harness.analysis.remedies import ENFORCING, Aim, moves
from harness.trace.calls import Call
from harness.trace.records import RunEnded

LEAST_RETRIES = 2
"""One retry is what retries are for."""
LEAST_UNREACHED = 3
"""Calls that found no server: fewer may be a server that was just restarted."""

_OUT_OF_MEMORY = re.compile(
    # llama.cpp and CUDA; Ollama; vLLM; the embedded engine, which does not say why it fails to load
    r"out of memory|(?:failed to|unable to|cannot) allocate|requires more system memory"
    r"|no available memory|less than desired \w+ memory|^DoesNotFit|^ModelFileInvalid: .* memory",
    re.IGNORECASE | re.DOTALL,
)

_OR_DAMAGED = " Or the file is damaged: llama.cpp does not say which."

_MORE_BUDGET = ("raise [budget] capacity in harness.toml, if the machine has more memory",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What stands behind a class of error."""

    meaning: str
    layer: Layer
    move: tuple[str, ...]
    aim: Aim | None = None

    def moves(self, server: Server) -> tuple[str, ...]:
        """What to change at this server."""
        at_server = moves(self.aim, server) if self.aim else ()
        return (*(move.format(tag=server.tag) for move in self.move), *at_server)


_CAUSES: Mapping[str, Cause] = {
    "RateLimited": Cause(
        meaning="The account is at its limit of calls or tokens a minute.",
        layer="L5",
        move=("make fewer calls at once", "have the account's limit raised"),
    ),
    "Overloaded": Cause(
        meaning="The server was loading, or had more calls than it takes.",
        layer="L4a",
        move=("begin when the server has loaded", "make fewer calls at once"),
        aim="answer more at once",
    ),
    "ContextOverflow": Cause(
        meaning="Prompt and reply together are longer than the model's context.",
        layer="L6",
        move=("shorten the prompt, or lower max_output_tokens",),
        aim="longer context",
    ),
    "CallTimeout": Cause(
        meaning="The reply took longer than the endpoint's timeout_s.",
        layer="L3",
        move=("lower max_output_tokens, or raise timeout_s under [endpoints.{tag}]",),
    ),
    "EndpointUnreachable": Cause(
        meaning="Nothing answered: the server was not started, has gone, or is somewhere else.",
        layer="L3",
        move=("see the server's log for why it ended", "check url under [endpoints.{tag}]"),
    ),
    "AuthenticationFailed": Cause(
        meaning="The server refused the key.",
        layer="L5",
        move=("check api_key_env under [endpoints.{tag}]",),
    ),
    "ModelNotFound": Cause(
        meaning="The server has no model of that name.",
        layer="L5",
        move=("check model_id under [endpoints.{tag}]",),
    ),
    "ModelFileInvalid": Cause(
        meaning="The model's file is not there, or is no whole GGUF.",
        layer="L2",
        move=("check path under [endpoints.{tag}]",),
    ),
}
_OTHER_CAUSE = Cause(
    meaning="The server failed, or the connection to it broke.",
    layer="L3",
    move=("see the server's log for that moment",),
)


def cause_of(reason: str) -> Cause:
    """What stands behind errors of this class."""
    return _CAUSES.get(reason, _OTHER_CAUSE)


def kind_of(call: Call) -> str:
    """Class of the error that ended a call."""
    return (call.error or "").partition(":")[0]


UNREACHED = frozenset({"EndpointUnreachable", "CircuitOpen"})
"""Errors of calls that no server received. Runs of earlier versions have the second."""


def out_of_reach_calls(observed: Observed) -> dict[str, list[Call]]:
    """By endpoint, the calls that did not reach it; one or two missed calls are left out."""
    missed: defaultdict[str, list[Call]] = defaultdict(list)
    for call in observed.calls:
        if call.status == "error" and kind_of(call) in UNREACHED:
            missed[call.model].append(call)
    return {model: calls for model, calls in missed.items() if len(calls) >= LEAST_UNREACHED}


def out_of_memory_at_start(observed: Observed) -> Finding | None:
    """A model could not be brought into memory: not one call to it came through before."""
    failed = [c for c in _out_of_memory(observed) if not _answered_before(observed, c)]
    if not failed:
        return None
    server = observed.server(failed[0].model)
    return Finding(
        rule="out-of-memory-at-start",
        severity="error",
        model=server.tag,
        seen=f"'{server.tag}' never came into memory; its first call ended with: {failed[0].error}",
        evidence=Evidence.of(failed, failed_calls=len(failed)),
        meaning="Out of memory at start: weights, KV cache for the whole context, and buffers are "
        "taken before the first call, and there is no room for them."
        + (_OR_DAMAGED if kind_of(failed[0]) == "ModelFileInvalid" else ""),
        layer="L3",
        move=(
            *moves("fit at start", server),
            *(_MORE_BUDGET if server.backend == "embedded" else ()),
            "use smaller weights",
        ),
        lost_ns=length_ns(failed),
    )


def out_of_memory_later(observed: Observed) -> Finding | None:
    """A model that had been answering ran out of memory."""
    failed = [c for c in _out_of_memory(observed) if _answered_before(observed, c)]
    if not failed:
        return None
    server = observed.server(failed[0].model)
    before = [c for c in observed.by_model()[server.tag] if c.end_ns <= failed[0].start_ns]
    return Finding(
        rule="out-of-memory-later",
        severity="error",
        model=server.tag,
        seen=f"After {counted(len(before), 'call')} that came through, '{server.tag}' ran out of "
        f"memory {counted(len(failed), 'time')}: {failed[0].error}",
        evidence=Evidence.of(failed, failed_calls=len(failed), calls_before=len(before)),
        meaning="Out of memory later: what grows from call to call is the KV cache, with the "
        "length of prompts and the number of calls at once.",
        layer="L3",
        move=(
            *moves("fit later", server),
            "cap what a call can take: fewer passages, a lower max_output_tokens",
        ),
        lost_ns=length_ns(failed),
    )


def retries(observed: Observed) -> Finding | None:
    """Calls were refused and made again, and the pauses took time."""
    pauses = observed.retries
    lost_ns = length_ns(pauses)
    if len(pauses) < LEAST_RETRIES or not observed.matters(lost_ns):
        return None
    reasons = Counter(pause.reason for pause in pauses)
    (reason, _), *_ = reasons.most_common()
    (model, _), *_ = Counter(p.model for p in pauses if p.reason == reason).most_common()
    listed = ", ".join(f"{count} for {name}" for name, count in reasons.most_common())
    failed = [c for c in observed.calls if c.status == "error" and c.model == model]
    server = observed.server(model)
    cause = cause_of(reason)
    return Finding(
        rule="retries",
        severity="warning",
        model=model,
        seen=f"Calls had to be made again {len(pauses)} times ({listed}), most of them to "
        f"'{model}'; the pauses took {observed.said(lost_ns)}.",
        evidence=Evidence.of(failed, retries=len(pauses), pauses_s=lost_ns / 1e9),
        meaning=cause.meaning,
        layer=cause.layer,
        move=cause.moves(server),
        lost_ns=lost_ns,
    )


def failed_calls(observed: Observed) -> Finding | None:
    """Calls failed for good, of something else than memory or an endpoint that was out of reach."""
    over = observed.outlived
    failed = [c for c in observed.calls if c.status == "error" and not _ran_out(c)]
    failed = [call for call in failed if not over(call.end_ns)]
    retries = [retry for retry in observed.retries if not over(retry.start_ns)]
    fallbacks = [other for other in observed.fallbacks if not over(other.time_ns)]
    final = Counter((call.model, kind_of(call)) for call in failed)
    final -= Counter((retry.model, retry.reason) for retry in retries)
    final -= Counter((other.failed, other.reason) for other in fallbacks)
    for model in out_of_reach_calls(observed):
        for reason in UNREACHED:
            del final[model, reason]
    if not final:
        return None
    ((model, kind), count), *_ = final.most_common()
    shown = [call for call in failed if (call.model, kind_of(call)) == (model, kind)]
    cause = cause_of(kind)
    return Finding(
        rule="failed-calls",
        severity="error",
        model=model,
        seen=f"{counted(sum(final.values()), 'call')} failed for good; {count} of '{model}' with "
        f"this: {shown[-1].error}",
        evidence=Evidence.of(shown, failed_calls=sum(final.values())),
        meaning=cause.meaning,
        layer=cause.layer,
        move=cause.moves(observed.server(model)),
    )


def failed_run(observed: Observed) -> Finding | None:
    """The run did not come to its end."""
    ended = observed.ended
    if ended is not None and ended.status != "error":
        return None
    if ended is not None:
        return _failed_of_itself(observed, ended)
    unfinished = (call for call in observed.calls if call.status == "unfinished")
    open_calls = [call for call in unfinished if not observed.outlived(call.end_ns)]
    return Finding(
        rule="failed-run",
        severity="hint",
        model=None,
        seen="The journal has no end"
        + (f", and {counted(len(open_calls), 'call')} had none yet." if open_calls else "."),
        evidence=Evidence.of(open_calls, open_calls=len(open_calls)),
        meaning="The process was killed, or the run is still going.",
        layer="L6",
        move=("see what ended the process: its terminal, or the system's log",),
    )


def _failed_of_itself(observed: Observed, ended: RunEnded) -> Finding:
    nodes = observed.failed_nodes
    return Finding(
        rule="failed-run",
        severity="error",
        model=None,
        seen=f"The run ended with: {ended.error}",
        evidence=Evidence(spans=tuple(nodes[:MOST_SPANS]), figures={"failed_nodes": len(nodes)}),
        meaning="An error that is no model call's stopped the run.",
        layer="L6",
        move=("mend what the error names, and run it again",),
    )


def _out_of_memory(observed: Observed) -> list[Call]:
    return [call for call in observed.calls if call.status == "error" and _ran_out(call)]


def _ran_out(call: Call) -> bool:
    return _OUT_OF_MEMORY.search(call.error or "") is not None


def _answered_before(observed: Observed, call: Call) -> bool:
    answered = observed.by_model().get(call.model, ())
    return any(one.end_ns <= call.end_ns for one in answered)


_ANOTHER = "name an endpoint to ask instead: fallback under [endpoints.{tag}] in harness.toml"


def fallbacks(observed: Observed) -> Finding | None:
    """Calls were answered by another model than the one that was meant."""
    if not observed.fallbacks:
        return None
    (model, _), *_ = Counter(one.failed for one in observed.fallbacks).most_common()
    of_model = [one for one in observed.fallbacks if one.failed == model]
    reasons = Counter(one.reason for one in of_model)
    listed = ", ".join(f"{count} for {name}" for name, count in reasons.most_common())
    (reason, _), *_ = reasons.most_common()
    failed = _failed(observed, model, reasons)
    lost_ns = length_ns(failed)
    cause = cause_of(reason)
    return Finding(
        rule="fallbacks",
        severity="warning",
        model=model,
        seen=f"{counted(len(of_model), 'call')} to '{model}' went to "
        f"{named(one.to for one in of_model)} instead ({listed}), after "
        f"{observed.said(lost_ns)} in calls that failed.",
        evidence=Evidence.of(failed, fallbacks=len(of_model)),
        meaning=f"{cause.meaning} What came back is another model's: it writes and judges in its "
        "own way.",
        layer=cause.layer,
        move=cause.moves(observed.server(model)),
        lost_ns=lost_ns,
    )


def out_of_reach(observed: Observed) -> Finding | None:
    """An endpoint could not be reached several times."""
    failures = out_of_reach_calls(observed)
    if not failures:
        return None
    model = max(failures, key=lambda tag: len(failures[tag]))
    failed, others = failures[model], [tag for tag in failures if tag != model]
    is_back = [call for call in observed.calls if call.model == model][-1].status == "ok"
    replaced = sum(one.failed == model for one in observed.fallbacks)
    cause = cause_of("EndpointUnreachable")
    since_ns, until_ns = failed[0].start_ns, failed[-1].end_ns
    return Finding(
        rule="out-of-reach",
        severity="warning" if is_back or replaced >= len(failed) else "error",
        model=model,
        seen=f"'{model}' could not be reached from "
        f"{said_ns(since_ns - observed.run.start_ns)} into the run on, "
        + (f"until {said_ns(until_ns - observed.run.start_ns)}" if is_back else "to its end")
        + f". {counted(len(failed), 'call')} to it failed, of which {replaced} went to another "
        "endpoint." + (f" So it was with {named(others)}." if others else ""),
        evidence=Evidence.of(failed, failed_calls=len(failed), fallbacks=replaced),
        meaning=cause.meaning,
        layer=cause.layer,
        move=(
            *cause.moves(observed.server(model)),
            *(() if replaced else (_ANOTHER.format(tag=model),)),
        ),
        lost_ns=length_ns(failed),
    )


def _failed(observed: Observed, model: str, reasons: Container[str]) -> list[Call]:
    return [
        call
        for call in observed.calls
        if call.status == "error" and call.model == model and kind_of(call) in reasons
    ]


_DECIDING = frozenset({"temperature", "top_p", "top_k", "min_p", "frequency_penalty"})
"""Fields that decide what is written, as does the seed of a reply that is not greedy. Without the
others, something is only not told."""


@per_model
def schema_not_enforced(observed: Observed, model: str, calls: Sequence[Call]) -> Finding | None:
    """Replies were to match a schema, and nothing but the model's goodwill saw to it."""
    loose = [call for call in calls if call.attributes.get("schema") in {"advisory", "ignored"}]
    if not loose:
        return None
    is_ignored = any(call.attributes["schema"] == "ignored" for call in loose)
    server = observed.servers.get(model)
    enforcing = None if server is None else ENFORCING.get(server.backend)
    return Finding(
        rule="schema-not-enforced",
        severity="warning" if is_ignored else "hint",
        model=model,
        seen=f"{counted(len(loose), 'call')} to '{model}' had a schema, "
        + (
            "of which the server took no notice."
            if is_ignored
            else "to which the server did not hold the reply."
        ),
        evidence=Evidence.of(loose, unenforced_calls=len(loose)),
        meaning="Nothing but the model's goodwill: it is told of the schema in words, at the end "
        "of each prompt, and may still reply with something else.",
        layer="L3",
        move=(
            *(() if enforcing is None else (enforcing.format(tag=model),)),
            "take a server that enforces schemas: llama-server, vLLM and SGLang do",
            f'structured = "enforced" under [endpoints.{model}], if only the test call went wrong',
        ),
    )


@per_model
def dropped_fields(observed: Observed, model: str, calls: Sequence[Call]) -> Finding | None:
    """Calls were sent without fields that the model or its server refuses."""
    without = [call for call in calls if call.dropped]
    if not without:
        return None
    names = tuple(dict.fromkeys(name for call in without for name in call.dropped))
    unrepeatable = any(map(_is_left_to_the_model, without))
    by_settings = [name for name in names if name in observed.server(model).drop]
    return Finding(
        rule="dropped-fields",
        severity="warning" if unrepeatable else "hint",
        model=model,
        seen=f"{len(without)} of {len(calls)} calls to '{model}' were sent without {named(names)}.",
        evidence=Evidence.of(without, calls_without=len(without), calls=len(calls)),
        meaning=(
            "Its settings say so."
            if len(by_settings) == len(names)
            else "The model, or its server, refuses them."
        )
        + (
            " It samples in its own way: the run cannot be repeated as it was."
            if unrepeatable
            else " What is written does not depend on them."
        ),
        layer="L5",
        move=(
            *(
                (f"take {named(by_settings)} out of drop under [endpoints.{model}]",)
                if by_settings
                else ()
            ),
            "take a model or a server that accepts them",
        ),
    )


def _is_left_to_the_model(call: Call) -> bool:
    """Whether the same call may be answered otherwise, since it lacked a field."""
    is_greedy = call.attributes.get("temperature") == 0
    return not _DECIDING.isdisjoint(call.dropped) or ("seed" in call.dropped and not is_greedy)
