"""Goodput: the tokens that came as fast as somebody who waits for them wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.trace.calls import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What a call has to keep to."""

    ttft_ns: int = 500_000_000
    """The longest time to first token."""
    itl_ns: int = 50_000_000
    """The longest inter-token latency, as a mean over the reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """How much of what a run's calls gave met the targets.

    As in DistServe (Zhong et al. 2024), a call meets them or does not, with all its tokens. A reply
    in one piece has no inter-token latency and is judged by its first token alone. A call whose
    latencies are not known is neither met nor missed; nor is one that did not end well, of whose
    tokens nothing is known. Waits before a request is sent are not in its time to first token.
    """

    targets: Targets
    """What was asked."""
    met: int
    """Calls that met both targets."""
    missed: int
    """Calls that did not."""
    unknown: int
    """Calls that count as neither."""
    throughput_tokens_per_s: float | None
    """Output tokens of all calls over the run's time; None when the run took none."""
    tokens_per_s: float | None
    """The goodput: of the calls that met the targets, likewise; None when all are unknown."""
    efficiency: float | None
    """Goodput over throughput, from 0 to 1. The tokens of unknown calls are in neither here."""


def goodput_of(calls: Sequence[Call], *, targets: Targets, run_ns: int) -> Goodput:
    """Judges each call.

    Args:
        calls: All of a run's.
        targets: What they are judged by.
        run_ns: How long the run took.
    """
    done = [call for call in calls if call.status == "ok"]
    judged = [call for call in done if _is_known(call)]
    met = [call for call in judged if _meets(call, targets)]
    judged_tokens = _output_tokens(judged)
    seconds = run_ns / 1e9
    return Goodput(
        targets=targets,
        met=len(met),
        missed=len(judged) - len(met),
        unknown=len(calls) - len(judged),
        throughput_tokens_per_s=_output_tokens(done) / seconds if seconds else None,
        tokens_per_s=_output_tokens(met) / seconds if seconds and judged else None,
        efficiency=_output_tokens(met) / judged_tokens if judged_tokens else None,
    )


def _is_known(call: Call) -> bool:
    """Whether it can be judged. What came in one piece took no time from first token to last."""
    in_one_piece = call.phase_ns("decode") == 0
    return call.ttft_ns is not None and (in_one_piece or call.count("itl_mean_ns") is not None)


def _meets(call: Call, targets: Targets) -> bool:
    ttft_ns, itl_ns = call.ttft_ns, call.count("itl_mean_ns")
    assert ttft_ns is not None, "only then is it judged"
    return ttft_ns <= targets.ttft_ns and (itl_ns is None or itl_ns <= targets.itl_ns)


def _output_tokens(calls: Sequence[Call]) -> int:
    return sum(call.count("output_tokens") or 0 for call in calls)
