"""From a journal to findings: every rule is asked, and what another one explains is left out."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from harness.analysis.facts import Observed, observe
from harness.analysis.finding import SEVERITIES, Diagnosis, Finding, said_ns
from harness.analysis.rules_client import idle_device, max_concurrency, serial_client
from harness.analysis.rules_decoding import (
    bandwidth_bound,
    kv_pressure,
    preemptions,
    rejected_drafts,
    slow_decode,
)
from harness.analysis.rules_failures import (
    dropped_fields,
    failed_calls,
    failed_run,
    fallbacks,
    out_of_memory_at_start,
    out_of_memory_later,
    out_of_reach,
    retries,
    schema_not_enforced,
)
from harness.analysis.rules_prompts import (
    drifting_prefix,
    prefill_bound,
    resent_history,
    uncached_prefix,
)
from harness.analysis.rules_waiting import (
    behind_prefill,
    budget_wait,
    cold_start,
    convoy,
    queueing,
    swap_thrash,
    tail,
)
from harness.analysis.run_report import Targets, goodput_of
from harness.errors import Notice
from harness.trace.journal_reader import Journal

Rule = Callable[[Observed], Finding | None]

RULES: Mapping[str, Rule] = {
    "out-of-memory-at-start": out_of_memory_at_start,
    "out-of-memory-later": out_of_memory_later,
    "out-of-reach": out_of_reach,
    "failed-calls": failed_calls,
    "failed-run": failed_run,
    "retries": retries,
    "fallbacks": fallbacks,
    "schema-not-enforced": schema_not_enforced,
    "dropped-fields": dropped_fields,
    "cold-start": cold_start,
    "swap-thrash": swap_thrash,
    "budget-wait": budget_wait,
    "queueing": queueing,
    "behind-prefill": behind_prefill,
    "convoy": convoy,
    "tail": tail,
    "prefill-bound": prefill_bound,
    "drifting-prefix": drifting_prefix,
    "uncached-prefix": uncached_prefix,
    "resent-history": resent_history,
    "kv-pressure": kv_pressure,
    "preemptions": preemptions,
    "bandwidth-bound": bandwidth_bound,
    "slow-decode": slow_decode,
    "rejected-drafts": rejected_drafts,
    "max-concurrency": max_concurrency,
    "serial-client": serial_client,
    "idle-device": idle_device,
}
"""Every rule, by the name that its findings bear."""

_EXPLAINED_BY: Mapping[str, frozenset[str]] = {
    "failed-run": frozenset(
        {"failed-calls", "out-of-memory-at-start", "out-of-memory-later", "out-of-reach"}
    ),
    "fallbacks": frozenset({"out-of-reach"}),
    "budget-wait": frozenset({"swap-thrash"}),
    "queueing": frozenset({"convoy"}),
    "tail": frozenset({"convoy", "queueing", "behind-prefill"}),
    "prefill-bound": frozenset({"drifting-prefix", "uncached-prefix", "resent-history"}),
    "uncached-prefix": frozenset({"resent-history"}),
    "resent-history": frozenset({"drifting-prefix"}),
    "slow-decode": frozenset({"bandwidth-bound", "kv-pressure", "preemptions"}),
}
"""What is not worth saying, of a model or the whole run, when one of these was found of it: they
name the cause."""


_NO_MATTER_OF_SPEED = frozenset(
    {
        "out-of-memory-at-start",
        "out-of-memory-later",
        "failed-calls",
        "failed-run",
        "out-of-reach",
        "retries",
        "fallbacks",
        "schema-not-enforced",
        "dropped-fields",
        "cold-start",
        "swap-thrash",
        "budget-wait",
        "max-concurrency",
        "serial-client",
    }
)
"""Rules about what is not in a call's time to the first token, nor between its tokens."""


def diagnose(journal: Journal) -> Diagnosis:
    """What was wrong with a run, and what cannot be told of it."""
    observed = observe(journal)
    findings = _findings(observed)
    return Diagnosis(
        run_id=journal.started.run_id,
        status=observed.ended.status if observed.ended else "unfinished",
        findings=findings,
        unexplained=slowness(observed)
        if all(finding.rule in _NO_MATTER_OF_SPEED for finding in findings)
        else None,
        not_examined=not_examined(observed),
    )


def _findings(observed: Observed) -> tuple[Finding, ...]:
    found = [finding for rule in RULES.values() if (finding := rule(observed)) is not None]
    unexplained = [one for one in found if not any(_explains(other, one) for other in found)]
    return tuple(
        sorted(unexplained, key=lambda f: (SEVERITIES.index(f.severity), -(f.lost_ns or 0)))
    )


def _explains(cause: Finding, finding: Finding) -> bool:
    return (
        cause.rule in _EXPLAINED_BY.get(finding.rule, ())
        and cause.severity != "hint"
        and finding.model in {None, cause.model}
    )


def slowness(observed: Observed) -> Notice | None:
    """How slow calls were, in a sentence; None when most met the targets, or none can be judged."""
    targets = Targets()
    goodput = goodput_of(observed.calls, targets=targets, run_ns=observed.run.duration_ns)
    if goodput.missed <= goodput.met:
        return None
    answered = [call for call in observed.calls if call.status == "ok"]
    first = _median([ns for call in answered if (ns := call.ttft_ns) is not None])
    between = _median([ns for call in answered if (ns := call.count("itl_mean_ns"))])
    return Notice(
        code="diagnosis.slowness-unexplained",
        message=f"{goodput.missed} of {goodput.met + goodput.missed} calls took longer than "
        f"{said_ns(targets.ttft_ns)} to their first token or {said_ns(targets.itl_ns)} from token "
        f"to token: {first} and {between} in the median.",
    )


def not_examined(observed: Observed) -> tuple[Notice, ...]:
    """What was not looked at, a phrase for each."""
    answered = [call for calls in observed.by_model().values() for call in calls]
    missing = []
    if len(answered) > 1 and not observed.texts:
        missing.append(
            Notice(
                code="diagnosis.texts-not-recorded",
                message="which calls of one function need each other, and where prompts were the "
                'same: no texts were recorded ([trace] content = "full" in harness.toml does)',
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


def _median(durations_ns: Sequence[int]) -> str:
    return said_ns(statistics.median(durations_ns)) if durations_ns else "unknown"
