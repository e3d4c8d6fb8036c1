"""Where a call's time went, from our clock and whatever the server reports."""

from __future__ import annotations

from harness.inference.completion import Phase
from harness.inference.wire.openai_reply import LlamaTimings, VllmMetrics

_NS_PER_MS = 1_000_000


def call_phases(
    *,
    sent_ns: int,
    first_token_ns: int | None,
    done_ns: int,
    timings: LlamaTimings | None = None,
    metrics: VllmMetrics | None = None,
) -> tuple[Phase, ...]:
    """The phases of a streamed call, back to back from `sent_ns` to `done_ns`.

    Decoding is measured, from the first token to the last. What went before it is split by what
    the server reported: llama-server says how long the prompt took, so the rest was queueing; vLLM
    says how long the call queued, so the rest was prefill. With neither, all of it counts as
    prefill, marked derived, since a queue may hide in it.

    Args:
        sent_ns: When the request was sent.
        first_token_ns: When the first token arrived; None if none did.
        done_ns: When the reply was whole.
        timings: llama-server's.
        metrics: vLLM's.
    """
    first_ns = done_ns if first_token_ns is None else first_token_ns
    if timings is not None:
        # The server's and our clock may disagree by the network's delay: stay inside the call.
        split_ns = max(sent_ns, first_ns - round(timings.prompt_ms * _NS_PER_MS))
        queue = Phase(name="queue", start_ns=sent_ns, end_ns=split_ns, source="derived")
        prefill = Phase(name="prefill", start_ns=split_ns, end_ns=first_ns, source="reported")
    elif metrics is not None and metrics.queue_time_ms is not None:
        split_ns = min(first_ns, sent_ns + round(metrics.queue_time_ms * _NS_PER_MS))
        queue = Phase(name="queue", start_ns=sent_ns, end_ns=split_ns, source="reported")
        prefill = Phase(name="prefill", start_ns=split_ns, end_ns=first_ns, source="derived")
    else:
        queue = Phase(name="queue", start_ns=sent_ns, end_ns=sent_ns, source="derived")
        prefill = Phase(name="prefill", start_ns=sent_ns, end_ns=first_ns, source="derived")
    decode = Phase(name="decode", start_ns=first_ns, end_ns=done_ns, source="measured")
    return tuple(phase for phase in (queue, prefill, decode) if phase.end_ns > phase.start_ns)
