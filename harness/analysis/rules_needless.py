"""Rules about work that brought nothing, and about where the time went beside models."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from harness.analysis.facts import Observed, Round
from harness.analysis.finding import Evidence, Found, named, said_ns
from harness.analysis.time_budget import TimeKind, TimeShare
from harness.trace.calls import Call

LARGE_SHARE = 0.4
"""Of the critical path: so much time is worth a finding whatever it went into."""

FAR_SLOWER = 3.0
"""Times as long a token as another model's."""

_LEAST_TOKENS = 16


def repeated_calls(observed: Observed) -> Found | None:
    """A model was asked the same by several node calls, and said the same.

    A call that samples is not meant: the same prompt, and another reply. Nor are calls of one node
    call, which asked for them.
    """
    asked: dict[tuple[object, ...], list[Call]] = {}
    for call in observed.calls:
        prompt, reply = (call.attributes.get(f"{name}_sha256") for name in ("prompt", "reply"))
        if call.status == "ok" and not call.from_cache and prompt and reply:
            asked.setdefault((call.model, prompt, reply), []).append(call)
    again = [
        call
        for calls in asked.values()
        for call in calls[1:]
        if call.node_span != calls[0].node_span
    ]
    lost_ns = sum(call.duration_ns for call in again)
    if not again or not observed.matters(lost_ns):
        return None
    return Found(
        model=again[0].model,
        seen=f"{len(again)} calls in {named(str(call.node) for call in again)} asked what another "
        f"node had asked before, word for word, and got the same reply ({observed.said(lost_ns)}).",
        evidence=Evidence.of(again, repeated_calls=len(again)),
        lost_ns=lost_ns,
    )


def idle_rounds(observed: Observed) -> Found | None:
    """Rounds of loops after the best one: what they wrote was not returned."""
    idle = [one for rounds in observed.rounds.values() for one in rounds[_best(rounds) + 1 :]]
    revised = sum(len(rounds) - 1 for rounds in observed.rounds.values())
    lost_ns = sum(one.duration_ns for one in idle)
    if 2 * len(idle) <= revised or not observed.matters(lost_ns):
        return None
    return Found(
        seen=f"{len(idle)} of {revised} revisions scored no higher than a draft before them, which "
        f"was returned in their place ({observed.said(lost_ns)}).",
        evidence=Evidence.of(idle, idle_revisions=len(idle), revisions=revised),
        lost_ns=lost_ns,
    )


def _best(rounds: Sequence[Round]) -> int:
    return max(range(len(rounds)), key=lambda number: rounds[number].composite)


def slow_code(observed: Observed) -> Found | None:
    """A node's own code, or what it waited for beside models, took much of the critical path."""
    share = _large(observed, "code")
    if share is None or share.node is None:
        return None
    spans = [step.span for step in observed.path.steps if step.node == share.node]
    return Found(
        seen=f"Nodes' own code, and what it waited for, took {observed.said(share.duration_ns)}, "
        f"most of it in '{share.node}': no model worked for it meanwhile.",
        evidence=Evidence(spans=tuple(spans[:1]), figures={"code_s": share.duration_ns / 1e9}),
        lost_ns=share.duration_ns,
    )


def slow_embedding(observed: Observed) -> Found | None:
    """Embedding texts took much of the critical path."""
    share = _large(observed, "embed")
    if share is None:
        return None
    return Found(
        seen=f"Embedding texts took {observed.said(share.duration_ns)}, in "
        f"{len(observed.embeddings)} calls.",
        evidence=Evidence(figures={"embed_s": share.duration_ns / 1e9}),
        lost_ns=share.duration_ns,
    )


def _large(observed: Observed, kind: TimeKind) -> TimeShare | None:
    shares = observed.time.shares(observed.path, observed.calls, run=observed.run)
    return next((one for one in shares if one.kind == kind and one.share >= LARGE_SHARE), None)


def slower_model(observed: Observed) -> Found | None:
    """Most of the path waited for one model's replies, and another writes far more quickly.

    A hint: a judge may be slower than a producer on purpose.
    """
    pace_ns = dict(_paces_ns(observed))
    if len(pace_ns) < 2:
        return None
    slow = max(pace_ns, key=pace_ns.__getitem__)
    quick = min(pace_ns, key=pace_ns.__getitem__)
    calls = observed.by_model()[slow]
    writing_ns = sum(call.phase_ns("decode") for call in calls)
    steps = {step.span for step in observed.path.steps}
    on_path_ns = sum(call.phase_ns("decode") for call in calls if call.node_span in steps)
    lost_ns = on_path_ns * (1 - pace_ns[quick] / pace_ns[slow])
    if (
        pace_ns[slow] < FAR_SLOWER * pace_ns[quick]
        or on_path_ns < LARGE_SHARE * observed.run.duration_ns
    ):
        return None
    return Found(
        severity="hint",
        model=slow,
        seen=f"The run waited for '{slow}' to write ({said_ns(writing_ns)}). Its tokens came "
        f"{said_ns(pace_ns[slow])} apart, those of '{quick}' {said_ns(pace_ns[quick])}.",
        evidence=Evidence.of(calls, itl_ms=pace_ns[slow] / 1e6, other_itl_ms=pace_ns[quick] / 1e6),
        lost_ns=min(lost_ns, observed.run.duration_ns),
    )


def _paces_ns(observed: Observed) -> Iterator[tuple[str, float]]:
    """Each model and how far apart its tokens came."""
    for model, calls in observed.by_model().items():
        paces = [
            call.phase_ns("decode") / (tokens - 1)
            for call in calls
            if (tokens := call.count("output_tokens") or 0) >= _LEAST_TOKENS
            and call.phase_ns("decode")
        ]
        if paces:
            yield model, statistics.median(paces)


def timed_out_attempts(observed: Observed) -> Found | None:
    """Attempts of nodes that their own timeout ended: what their calls had written is lost."""
    cut = [observed.nodes[span] for span in observed.timed_out]
    lost_ns = sum(one.duration_ns for one in cut)
    if not cut or not observed.matters(lost_ns):
        return None
    names = named(observed.node_names[span] for span in observed.timed_out)
    return Found(
        seen=f"The timeout of {names} ended {len(cut)} attempts "
        f"({observed.said(lost_ns)}); what their calls had written is lost.",
        evidence=Evidence(
            spans=tuple(observed.timed_out[:20]), figures={"attempts": float(len(cut))}
        ),
        lost_ns=lost_ns,
    )
