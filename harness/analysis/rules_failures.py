"""Rules about calls that failed, and calls that were made again."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Sequence

from harness.analysis.facts import Observed, per_model
from harness.analysis.finding import MOST_SPANS, Evidence, Expected, Found, counted, named, said_ns
from harness.errors import NodeTimedOut
from harness.inference.providers import Aim
from harness.inference.providers.error_replies import context_overflow
from harness.trace import events
from harness.trace.calls import Call
from harness.trace.intervals import length_ns
from harness.trace.records import error_class

LEAST_RETRIES = 2
"""A single retry is normal."""
LEAST_UNREACHED = 3
"""Calls that found no server: fewer may be a server that was just restarted."""

_OUT_OF_MEMORY = re.compile(
    # llama.cpp and CUDA; Ollama; vLLM; the embedded engine, which does not say why it fails to load
    r"out of memory|(?:failed to|unable to|cannot) allocate|requires more system memory"
    r"|no available memory|less than desired \w+ memory|^DoesNotFit|^ModelFileInvalid: .* memory",
    re.IGNORECASE | re.DOTALL,
)

_OR_DAMAGED = " Or the file is damaged: the engine does not say which."
_MORE_BUDGET = "raise [budget] capacity in harness.toml, if the machine has more memory"


UNREACHED = "EndpointUnreachable"
"""The error of a call that no server received."""


def out_of_reach_calls(observed: Observed) -> dict[str, list[Call]]:
    """By endpoint, the calls that did not reach it; one or two missed calls are left out."""
    missed: defaultdict[str, list[Call]] = defaultdict(list)
    for call in observed.calls:
        if call.status == "error" and error_class(call.error) == UNREACHED:
            missed[call.model].append(call)
    return {model: calls for model, calls in missed.items() if len(calls) >= LEAST_UNREACHED}


def out_of_memory_at_start(observed: Observed) -> Found | None:
    """A model could not be brought into memory: not one call to it came through before."""
    failed = [c for c in _out_of_memory(observed) if not _answered_before(observed, c)]
    if not failed:
        return None
    server = observed.server(failed[0].model)
    return Found(
        severity="error",
        model=server.model,
        seen=f"'{server.model}' was never loaded; its first call ended with: {failed[0].error}"
        + (_OR_DAMAGED if error_class(failed[0].error) == "ModelFileInvalid" else ""),
        evidence=Evidence.of(failed, failed_calls=len(failed)),
        first=(_MORE_BUDGET,) if server.is_in_process else (),
        lost_ns=length_ns(failed),
    )


def out_of_memory_later(observed: Observed) -> Found | None:
    """A model that had been answering ran out of memory."""
    failed = [c for c in _out_of_memory(observed) if _answered_before(observed, c)]
    if not failed:
        return None
    server = observed.server(failed[0].model)
    before = [c for c in observed.by_model()[server.model] if c.end_ns <= failed[0].start_ns]
    return Found(
        severity="error",
        model=server.model,
        seen=f"After {counted(len(before), 'call')} that succeeded, '{server.model}' ran out of "
        f"memory {counted(len(failed), 'time')}: {failed[0].error}",
        evidence=Evidence.of(failed, failed_calls=len(failed), calls_before=len(before)),
        lost_ns=length_ns(failed),
    )


def retries(observed: Observed) -> Found | None:
    """Calls were refused and retried, and the pauses took time."""
    pauses = observed.retries
    lost_ns = length_ns(one.pause for one in pauses)
    if len(pauses) < LEAST_RETRIES or not observed.matters(lost_ns):
        return None
    reasons = Counter(pause.reason for pause in pauses)
    (reason, _), *_ = reasons.most_common()
    (model, _), *_ = Counter(p.model for p in pauses if p.reason == reason).most_common()
    listed = ", ".join(f"{count} for {name}" for name, count in reasons.most_common())
    failed = [c for c in observed.calls if c.status == "error" and c.model == model]
    return Found(
        model=model,
        case=reason,
        seen=f"Calls were retried {len(pauses)} times ({listed}), most of them to '{model}'; the "
        f"pauses took {observed.said(lost_ns)}.",
        evidence=Evidence.of(failed, retries=len(pauses), pauses_s=lost_ns / 1e9),
        lost_ns=lost_ns,
    )


def failed_calls(observed: Observed) -> Found | None:
    """Calls failed for good, of something else than memory or an endpoint that was out of reach."""
    over = observed.outlived
    failed = [c for c in observed.calls if c.status == "error" and not _ran_out(c)]
    failed = [call for call in failed if not over(call.end_ns)]
    retries = [retry for retry in observed.retries if not over(retry.time_ns)]
    fallbacks = [other for other in observed.seen[events.Fallback] if not over(other.time_ns)]
    final = Counter((call.model, error_class(call.error)) for call in failed)
    final -= Counter((str(retry.model), retry.reason) for retry in retries)
    final -= Counter((observed.failed(other), other.reason) for other in fallbacks)
    for model in out_of_reach_calls(observed):
        del final[model, UNREACHED]
    if not final:
        return None
    ((model, kind), count), *_ = final.most_common()
    shown = [call for call in failed if (call.model, error_class(call.error)) == (model, kind)]
    return Found(
        severity="error",
        model=model,
        case=kind,
        seen=f"{counted(sum(final.values()), 'call')} failed for good; {count} of '{model}' with "
        f"this: {shown[-1].error}",
        evidence=Evidence.of(shown, failed_calls=sum(final.values())),
        wanted=(wanted := _context_for(shown) if kind == "ContextOverflow" else None),
        expected=Expected("such failures", count, 0, "calls") if wanted else None,
    )


def _context_for(calls: Sequence[Call]) -> tuple[Aim, str] | None:
    """For each prompt and the reply that was allowed; None where they are unsaid.

    A server that refuses a prompt says how long it is.
    """
    needed = []
    for call in calls:
        room, asked = call.max_output_tokens, call.input_tokens
        if asked is None:
            asked = context_overflow(call.error or "", endpoint=call.model).prompt_tokens
        if asked is None or room is None:
            return None
        needed.append(asked + room)
    return Aim.LONGER_CONTEXT, f"{max(needed):,} tokens"


def failed_run(observed: Observed) -> Found | None:
    """The run did not come to its end."""
    ended = observed.journal.ended
    if ended is not None and ended.status != "error":
        return None
    if ended is not None:
        nodes = [one.id for one in observed.nodes.values() if one.status == "error"]
        return Found(
            severity="error",
            seen=f"The run ended with: {ended.error}",
            evidence=Evidence(
                spans=tuple(nodes[:MOST_SPANS]), figures={"failed_nodes": len(nodes)}
            ),
        )
    unfinished = (call for call in observed.calls if call.status == "unfinished")
    open_calls = [call for call in unfinished if not observed.outlived(call.end_ns)]
    return Found(
        severity="hint",
        case="unfinished",
        seen="The journal has no end"
        + (f", and {counted(len(open_calls), 'call')} had not ended." if open_calls else "."),
        evidence=Evidence.of(open_calls, open_calls=len(open_calls)),
    )


def _out_of_memory(observed: Observed) -> list[Call]:
    return [call for call in observed.calls if call.status == "error" and _ran_out(call)]


def _ran_out(call: Call) -> bool:
    return _OUT_OF_MEMORY.search(call.error or "") is not None


def _answered_before(observed: Observed, call: Call) -> bool:
    answered = observed.by_model().get(call.model, ())
    return any(one.end_ns <= call.end_ns for one in answered)


def fallbacks(observed: Observed) -> Found | None:
    """Calls were answered by another model than the one that was meant."""
    if not observed.seen[events.Fallback]:
        return None
    (model, _), *_ = Counter(map(observed.failed, observed.seen[events.Fallback])).most_common()
    of_model = [one for one in observed.seen[events.Fallback] if observed.failed(one) == model]
    reasons = Counter(one.reason for one in of_model)
    listed = ", ".join(f"{count} for {name}" for name, count in reasons.most_common())
    (reason, _), *_ = reasons.most_common()
    failed = _failed(observed, model, reasons)
    lost_ns = length_ns(failed)
    return Found(
        model=model,
        case=reason,
        seen=f"{counted(len(of_model), 'call')} to '{model}' went to "
        f"{named(one.to for one in of_model)} instead ({listed}), after {observed.said(lost_ns)} "
        "in calls that failed. The replies come from another model, which writes and judges "
        "differently.",
        evidence=Evidence.of(failed, fallbacks=len(of_model)),
        lost_ns=lost_ns,
    )


def out_of_reach(observed: Observed) -> Found | None:
    """An endpoint could not be reached several times."""
    failures = out_of_reach_calls(observed)
    if not failures:
        return None
    model = max(failures, key=lambda tag: len(failures[tag]))
    failed, others = failures[model], [tag for tag in failures if tag != model]
    is_back = [call for call in observed.calls if call.model == model][-1].status == "ok"
    replaced = sum(observed.failed(one) == model for one in observed.seen[events.Fallback])
    since_ns, until_ns = failed[0].start_ns, failed[-1].end_ns
    return Found(
        severity="warning" if is_back or replaced >= len(failed) else "error",
        model=model,
        case="replaced" if replaced else "",
        seen=f"'{model}' could not be reached from {said_ns(since_ns - observed.run.start_ns)} "
        "into the run "
        + (f"until {said_ns(until_ns - observed.run.start_ns)}" if is_back else "to its end")
        + f". {counted(len(failed), 'call')} to it failed, of which {replaced} went to another "
        "endpoint." + (f" The same holds for {named(others)}." if others else ""),
        evidence=Evidence.of(failed, failed_calls=len(failed), fallbacks=replaced),
        lost_ns=length_ns(failed),
    )


def _failed(observed: Observed, model: str, reasons: Container[str]) -> list[Call]:
    return [
        call
        for call in observed.calls
        if call.status == "error" and call.model == model and error_class(call.error) in reasons
    ]


_DECIDING = frozenset({"temperature", "top_p", "top_k", "min_p", "frequency_penalty"})
"""Fields that affect the text, as does the seed of a sampled reply. The other fields only ask for
information."""


@per_model
def schema_not_enforced(_observed: Observed, model: str, calls: Sequence[Call]) -> Found | None:
    """Replies had a schema that nothing enforced."""
    loose = [call for call in calls if call.schema in {"advisory", "ignored"}]
    if not loose:
        return None
    is_ignored = any(call.schema == "ignored" for call in loose)
    return Found(
        severity="warning" if is_ignored else "hint",
        seen=f"{counted(len(loose), 'call')} to '{model}' had a schema, "
        + ("which the server ignored." if is_ignored else "which the server did not enforce."),
        evidence=Evidence.of(loose, unenforced_calls=len(loose)),
    )


@per_model
def filled_context(_observed: Observed, model: str, calls: Sequence[Call]) -> Found | None:
    """Replies were cut because the context was full; a set max_output_tokens may intend that."""
    cut = [call for call in calls if call.was_cut and not reached_own_limit(call)]
    if not cut:
        return None
    return Found(
        severity="warning" if 2 * len(cut) > len(calls) else "hint",
        seen=f"{len(cut)} of {counted(len(calls), 'reply', 'replies')} by '{model}' were cut off "
        "because the model's context was full.",
        evidence=Evidence.of(cut, cut_replies=len(cut), replies=len(calls)),
        wanted=(wanted := _context_for(cut)),
        expected=Expected("cut replies", len(cut), 0, "calls") if wanted else None,
    )


def reached_own_limit(call: Call) -> bool:
    """Whether a reply that was cut is as long as its call allows, as far as that is known."""
    most, wrote = call.max_output_tokens, call.output_tokens
    return most is not None and (wrote is None or wrote >= most)


@per_model
def dropped_fields(observed: Observed, model: str, calls: Sequence[Call]) -> Found | None:
    """Calls were sent without fields that the model or its server refuses."""
    without = [call for call in calls if call.dropped]
    if not without:
        return None
    names = tuple(dict.fromkeys(name for call in without for name in call.dropped))
    unrepeatable = any(map(_is_left_to_the_model, without))
    by_settings = [name for name in names if name in observed.server(model).drop]
    return Found(
        severity="warning" if unrepeatable else "hint",
        seen=f"{len(without)} of {len(calls)} calls to '{model}' were sent without {named(names)}: "
        + (
            "its settings say so."
            if len(by_settings) == len(names)
            else "the model, or its server, refuses them."
        ),
        evidence=Evidence.of(without, calls_without=len(without), calls=len(calls)),
        first=(f"take {named(by_settings)} out of drop under [endpoints.{model}]",)
        if by_settings
        else (),
    )


def _is_left_to_the_model(call: Call) -> bool:
    """Whether the same call may be answered otherwise, since it lacked a field."""
    is_greedy = call.temperature == 0
    return not _DECIDING.isdisjoint(call.dropped) or ("seed" in call.dropped and not is_greedy)


def timed_out_attempts(observed: Observed) -> Found | None:
    """Attempts of nodes that their own timeout ended: what their calls had written is lost."""
    cut = [one for one in observed.nodes.values() if one.error_class == NodeTimedOut.__name__]
    lost_ns = sum(one.duration_ns for one in cut)
    if not cut or not observed.matters(lost_ns):
        return None
    names = named(one.node for one in cut)
    return Found(
        seen=f"The timeout of {names} ended {len(cut)} attempts "
        f"({observed.said(lost_ns)}); what their calls had written is lost.",
        evidence=Evidence.of(cut, attempts=float(len(cut))),
        lost_ns=lost_ns,
    )
