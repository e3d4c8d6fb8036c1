"""When a call was sent and first answered, and what it waited for before and after that."""

from __future__ import annotations

from collections.abc import Sequence

from harness.trace.calls import Call, Interval
from harness.trace.diagnosis.intervals import depths, length_ns, parts_within, union
from harness.trace.diagnosis.observed import Observed


def first_token_ns(call: Call) -> int | None:
    """When the first token came; None where the phases do not tell."""
    if decode := call.phases.get("decode"):
        return decode[0].start_ns
    if prefill := call.phases.get("prefill"):
        return prefill[-1].end_ns  # a reply of one token is not decoded
    return None


def ttft(call: Call) -> Interval | None:
    """From sending the call to its first token; None where that is not known."""
    end_ns = first_token_ns(call)
    if end_ns is None or call.ttft_ns is None:
        return None
    return Interval(start_ns=end_ns - call.ttft_ns, end_ns=end_ns)


def waits_before_sending(call: Call) -> list[Interval]:
    """What it queued for in this process: its turn, and room in memory for its model."""
    sent = ttft(call)
    return [q for q in _queues(call) if sent is None or q.start_ns < sent.start_ns]


def busy_ns(call: Call) -> int:
    """How long the model's server had it: without loading, and without waiting to be sent."""
    waits = union([*waits_before_sending(call), *call.phases.get("load", ())])
    return call.duration_ns - sum(wait.duration_ns for wait in waits)


def decoding(calls: Sequence[Call]) -> list[Interval]:
    """When each was being answered."""
    return [interval for call in calls for interval in call.phases.get("decode", ())]


def queues_in_server(observed: Observed, calls: Sequence[Call]) -> dict[int, Interval]:
    """What calls waited in their server before it took them up, by their spans.

    Llama.cpp and vLLM report it. Of another server it is inferred: a call queued if most of the
    time to its first token passed while the server's `waiting` counter was above 0 or, without
    that, while it was answering as many other calls as it ever did, one of which had to end first.

    Args:
        observed: The run.
        calls: All to one server.
    """
    sent = {call.id: one for call in calls if (one := ttft(call)) is not None}
    queues = {
        call.id: queue
        for call in calls
        for queue in _queues(call)
        if call.id in sent and queue.start_ns >= sent[call.id].start_ns
    }
    if queues or not sent:
        return queues
    model = calls[0].model
    if observed.highest(model, "waiting") is None:
        full = _full_house(calls)
    else:
        full = observed.while_counter(model, "waiting", lambda waiting: waiting > 0)
    waits = zip(sent.items(), parts_within(sent.values(), full), strict=True)
    return {
        number: Interval(start_ns=one.start_ns, end_ns=parts[-1].end_ns)
        for (number, one), parts in waits
        if length_ns(parts) > one.duration_ns / 2
    }


def tells_of_queues(observed: Observed, calls: Sequence[Call]) -> bool:
    """Whether a queue at the server of these calls would be known, and not just be inferred."""
    if observed.highest(calls[0].model, "waiting") is not None:
        return True
    return any(queue not in waits_before_sending(c) for c in calls for queue in _queues(c))


def _queues(call: Call) -> Sequence[Interval]:
    return call.phases.get("queue", ())


def _full_house(calls: Sequence[Call]) -> list[Interval]:
    """While as many calls were being answered as ever were at once."""
    levels = depths(decoding(calls))
    seats = max((depth for _, depth in levels), default=0)
    return [stretch for stretch, depth in levels if depth == seats]
