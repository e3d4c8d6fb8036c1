"""Diagnoses a run: asks every rule, and drops findings that another finding explains."""

from __future__ import annotations

from collections.abc import Iterator

from harness.analysis import (  # noqa: F401 - each puts its rules into the table
    rules_client,
    rules_decoding,
    rules_failures,
    rules_prompts,
    rules_waiting,
)
from harness.analysis.finding import SEVERITIES, Diagnosis, RunFinding, counted, quoted
from harness.analysis.observed import Observed
from harness.analysis.rules import RULES
from harness.analysis.rules_failures import reached_own_limit
from harness.errors import Notice
from harness.trace import events
from harness.trace.journal_reader import Journal
from harness.wiggum import loops_in


def diagnose(journal: Journal) -> Diagnosis:
    """The findings of a run, and what else it shows."""
    observed = Observed(journal)
    findings = findings_of(observed)
    explained = {kind for finding in findings for kind in RULES[finding.rule].explains}
    # The shares stand in the order of their lengths.
    unexplained = [share for share in observed.shares if share.kind not in explained]
    return Diagnosis(
        run_id=journal.started.run_id,
        status=journal.ended.status if journal.ended else "unfinished",
        duration_ns=observed.run.duration_ns,
        time=observed.shares,
        speed_limits=observed.limits,
        findings=findings,
        checked=tuple(RULES),
        unexplained=unexplained[0] if unexplained else None,
        remarks=tuple(_remarks(observed)),
    )


def findings_of(observed: Observed) -> tuple[RunFinding, ...]:
    """The findings of all rules, worst first, without those that another finding explains."""
    results = [rule.finding(code, observed) for code, rule in RULES.items()]
    findings = [finding for finding in results if finding is not None]
    # A hint may be wrong, so it hides nothing.
    certain = [(finding.rule, finding.model) for finding in findings if finding.severity != "hint"]
    causes = [
        f
        for f in findings
        if not any(c in RULES[f.rule].explained_by and f.model in {None, m} for c, m in certain)
    ]
    return tuple(sorted(causes, key=lambda f: (SEVERITIES.index(f.severity), -(f.lost_ns or 0))))


def _remarks(observed: Observed) -> Iterator[Notice]:
    # An engine that the run started is one of the programs that take the cores.
    has_engine = any(server.is_in_process for server in observed.servers.values())
    if observed.is_starved and not has_engine:
        yield Notice(
            code="diagnosis.foreign-load",
            message="Other programs kept this machine busy: "
            f"{observed.machine_load:.0%} of its cores were in use while calls ran, and this "
            f"process took {observed.process_cores:.2f} of one. Times may be longer for it.",
        )
    if observed.calls and all(call.from_cache for call in observed.calls):
        yield Notice(
            code="diagnosis.from-cache",
            message=f"No model was asked: all {counted(len(observed.calls), 'call')} were answered "
            "from the cache.",
        )
    loops = [loop.rounds for loop in loops_in(observed.recorded) if loop.rounds]
    failed = [rounds for rounds in loops if not any(r.passed for r in rounds)]
    if failed:
        scores = ", ".join(f"{r.composite:.3g}" for r in failed[0])
        yield Notice(
            code="diagnosis.loops-not-passed",
            message=f"{len(failed)} of {counted(len(loops), 'loop')} had no draft that "
            f"passed; of the first, the {counted(len(failed[0]), 'round')} scored {scores} points.",
        )
    # Each part of a resumed run takes the outputs of all parts before it.
    if reused := {(reuse.node, reuse.item): None for reuse in observed.recorded[events.Reuse]}:
        yield Notice(
            code="diagnosis.outputs-reused",
            message=f"{counted(len(reused), 'call')} of {quoted(node for node, _ in reused)} took "
            "the output of an earlier run, or of an earlier part of this one.",
        )
    for model, calls in observed.by_model.items():
        if cut := [call for call in calls if call.was_cut and reached_own_limit(call)]:
            yield Notice(
                code="diagnosis.replies-cut",
                message=f"{len(cut)} of {counted(len(calls), 'reply', 'replies')} by '{model}' "
                "reached max_output_tokens.",
            )
    answered = [call for calls in observed.by_model.values() for call in calls]
    if len(answered) > 1 and not observed.texts:
        yield Notice(
            code="diagnosis.texts-not-recorded",
            message="Which calls of one function need each other, and where prompts were the same, "
            'was not examined: no texts were recorded ([trace] content = "full" in harness.toml '
            "records them).",
        )
    if answered and all(call.ttft_ns is None for call in answered):
        yield Notice(
            code="diagnosis.latency-unknown",
            message="How fast replies came was not examined: no call's time to its first token is "
            "known.",
        )
