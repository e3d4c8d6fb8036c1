"""Rules about endpoints that could not answer, and others that did in their place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from harness.trace.calls import Call
from harness.trace.diagnosis.failures import cause_of, kind_of, out_of_reach_calls
from harness.trace.diagnosis.finding import Evidence, Finding, counted, named, said_ns
from harness.trace.diagnosis.intervals import length_ns
from harness.trace.diagnosis.observed import Observed

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
