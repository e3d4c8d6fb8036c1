"""Rules about needless work, and about time spent outside models."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from harness.analysis.facts import Observed, Round
from harness.analysis.finding import Evidence, Found, counted, named, said_ns
from harness.trace.calls import Call

LARGE_SHARE = 0.4
"""Of the critical path: so much time is worth a finding whatever it went into."""

FAR_SLOWER = 3.0
"""Times as long a token as another model's."""

_LEAST_TOKENS = 16

_ASKED = ("prompt_sha256", "temperature", "seed")

_LEAST_CANDIDATES = 3


def repeated_calls(observed: Observed) -> Found | None:
    """Several node calls asked a model the same, without leaving anything to chance.

    Samples are not meant: the same prompt at a temperature above 0. Nor are calls of one node call,
    which asked for them.
    """
    asked: dict[tuple[object, ...], list[Call]] = {}
    for call in observed.calls:
        prompt, temperature, seed = map(call.attributes.get, _ASKED)
        if call.status == "ok" and not call.from_cache and prompt and temperature == 0:
            asked.setdefault((call.model, str(prompt), str(seed)), []).append(call)
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
        seen=f"{len(again)} calls in {named(str(call.node) for call in again)} repeated another "
        f"node's prompt, word for word and at temperature 0 ({observed.said(lost_ns)}).",
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
        seen=f"{len(idle)} of {revised} revisions scored no higher than an earlier draft, which "
        f"was returned in their place ({observed.said(lost_ns)}).",
        evidence=Evidence.of(idle, idle_revisions=len(idle), revisions=revised),
        lost_ns=lost_ns,
    )


def _best(rounds: Sequence[Round]) -> int:
    return max(range(len(rounds)), key=lambda number: rounds[number].composite)


def candidates_alike(observed: Observed) -> Found | None:
    """Candidates among which the checks saw no difference, wherever there were several."""
    alike = [of for of in observed.candidates.values() if len(of) >= _LEAST_CANDIDATES]
    count = sum(map(len, alike))
    made_ns = sum(one.duration_ns for one in observed.candidate_spans)
    lost_ns = made_ns * (count - len(alike)) / max(1, len(observed.candidate_spans))
    if not alike or any(len({*scores}) > 1 for scores in alike) or not observed.matters(lost_ns):
        return None
    return Found(
        seen=f"The checks gave {count} candidates equal scores; {len(alike)} of them were taken "
        f"({observed.said(lost_ns)} for the others).",
        evidence=Evidence.of(observed.candidate_spans, candidates=count),
        lost_ns=lost_ns,
    )


def slow_code(observed: Observed) -> Found | None:
    """A node's own code, or what it waited for beside models, took much of the critical path.

    A hint: only its author knows whether it has to be there, and can be quicker.
    """
    functions = Counter(lag.function for lag in observed.lags if lag.function)
    kinds = {"code", "client lag"} if functions else {"code"}
    taken = [one for one in observed.shares if one.kind in kinds]
    taken_ns = sum(one.duration_ns for one in taken)
    if sum(one.share for one in taken) < LARGE_SHARE or not observed.matters(taken_ns):
        return None
    names = [one.node for one in taken if one.node] or [step.node for step in observed.path.steps]
    if not names:
        return None
    spans = [step.span for step in observed.path.steps if step.node in names[:1]]
    where = "".join(f", in the function '{name}'" for name, _ in functions.most_common(1))
    return Found(
        severity="hint",
        seen=f"Nodes' own code, with its waits, took {observed.said(taken_ns)}, most of it in "
        f"{named(names[:1])}{where}: no model worked for it in that time.",
        evidence=Evidence(spans=tuple(spans[:1]), figures={"code_s": taken_ns / 1e9}),
        lost_ns=taken_ns,
    )


def slow_embedding(observed: Observed) -> Found | None:
    """Embedding texts took much of the critical path."""
    share = next((one for one in observed.shares if one.kind == "embed"), None)
    if share is None or share.share < LARGE_SHARE or not observed.matters(share.duration_ns):
        return None
    return Found(
        seen=f"Embedding texts took {observed.said(share.duration_ns)}, in "
        f"{counted(len(observed.embeddings), 'call')}.",
        evidence=Evidence(figures={"embed_s": share.duration_ns / 1e9}),
        lost_ns=share.duration_ns,
    )


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
        or not observed.matters(lost_ns)
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
