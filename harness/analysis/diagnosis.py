"""Diagnoses a run: asks every rule, and drops findings that another finding explains."""

from __future__ import annotations

from collections.abc import Iterable

from harness.analysis.facts import Observed, observe
from harness.analysis.finding import SEVERITIES, Diagnosis, Finding, counted, said_ns
from harness.analysis.rules import RULES
from harness.analysis.rules_failures import reached_own_limit
from harness.analysis.run_report import Targets, goodput_of
from harness.errors import Notice
from harness.trace.calls import percentiles_of
from harness.trace.journal_reader import Journal


def diagnose(journal: Journal) -> Diagnosis:
    """The findings of a run, and what could not be examined."""
    observed = observe(journal)
    findings = _findings(observed)
    return Diagnosis(
        run_id=journal.started.run_id,
        status=journal.ended.status if journal.ended else "unfinished",
        duration_ns=observed.run.duration_ns,
        time=observed.shares,
        speed_limits=observed.limits,
        findings=findings,
        unexplained=slowness(observed)
        if not any(RULES[finding.rule].slows_replies for finding in findings)
        else None,
        remarks=remarks(observed),
        not_examined=not_examined(observed),
    )


def _findings(observed: Observed) -> tuple[Finding, ...]:
    found = [one for code, rule in RULES.items() if (one := rule.finding(code, observed))]
    unexplained = [one for one in found if not any(_explains(other, one) for other in found)]
    return tuple(
        sorted(unexplained, key=lambda f: (SEVERITIES.index(f.severity), -(f.lost_ns or 0)))
    )


def _explains(cause: Finding, finding: Finding) -> bool:
    return (
        cause.rule in RULES[finding.rule].explained_by
        and cause.severity != "hint"
        and finding.model in {None, cause.model}
    )


def slowness(observed: Observed) -> Notice | None:
    """How slow calls were, in a sentence; None if most met the targets, or none can be judged."""
    targets = Targets()
    goodput = goodput_of(observed.calls, targets=targets, run_ns=observed.run.duration_ns)
    slow = goodput.missed - goodput.failed
    if slow <= goodput.met:
        return None
    answered = [call for call in observed.calls if call.status == "ok"]
    first = _median(call.ttft_ns for call in answered)
    between = _median(call.itl_mean_ns for call in answered)
    return Notice(
        code="diagnosis.slowness-unexplained",
        message=f"{slow} of {goodput.met + slow} calls took longer than "
        f"{said_ns(targets.ttft_ns)} to their first token or {said_ns(targets.itl_ns)} from token "
        f"to token: {first} and {between} in the median.",
    )


def remarks(observed: Observed) -> tuple[Notice, ...]:
    """Facts that may be intended, a sentence for each."""
    return tuple(
        Notice(
            code="diagnosis.replies-cut",
            message=f"{len(cut)} of {counted(len(calls), 'reply', 'replies')} by '{model}' reached "
            "max_output_tokens.",
        )
        for model, calls in observed.by_model().items()
        if (cut := [call for call in calls if call.was_cut and reached_own_limit(call)])
    )


def not_examined(observed: Observed) -> tuple[Notice, ...]:
    """What could not be examined, a phrase for each."""
    answered = [call for calls in observed.by_model().values() for call in calls]
    missing = []
    if len(answered) > 1 and not observed.texts:
        missing.append(
            Notice(
                code="diagnosis.texts-not-recorded",
                message="which calls of one function need each other, and where prompts were the "
                'same: no texts were recorded ([trace] content = "full" in harness.toml records '
                "them)",
            )
        )
    if answered and all(call.ttft_ns is None for call in answered):
        missing.append(
            Notice(
                code="diagnosis.latency-unknown",
                message="how fast replies came: no call's time to its first token is known",
            )
        )
    return tuple(missing)


def _median(durations_ns: Iterable[int | None]) -> str:
    found = percentiles_of(durations_ns)
    return said_ns(found.p50_ns) if found else "unknown"
