"""What no rule can tell of a run: why its calls were slow, and what was not recorded."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from harness.errors import Notice
from harness.trace.diagnosis.finding import said_ns
from harness.trace.diagnosis.observed import Observed
from harness.trace.report.goodput import Targets, goodput_of


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
