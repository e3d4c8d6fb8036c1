"""Which calls had to wait for which others.

A call needs an earlier one when arrows lead from a span around that one to a span around this: from
node to node, from draft to verdict to revision. Inside one function there are no arrows; there it
needs the calls whose replies its prompt holds something of, as far as texts were recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.trace.calls import Call
from harness.trace.diagnosis.observed import Observed
from harness.trace.diagnosis.texts import needed_replies


def needed_calls(observed: Observed, calls: Sequence[Call]) -> list[set[int]]:
    """For each call, the positions of those before it that it needs, or may for all we know.

    Args:
        observed: The run.
        calls: In the order they began; takes time in proportion to their number squared.
    """
    around = [frozenset(_around(observed, call)) for call in calls]
    waited_for = [_waited_for(observed, spans) for spans in around]
    quoted = _quoted(observed, calls)
    return [
        {
            earlier
            for earlier in range(number)
            if not around[earlier].isdisjoint(waited_for[number])
            or earlier in quoted[number]
            or _same_function_unread(observed, calls[earlier], call)
            or _same_prompt(calls[earlier], call)
        }
        for number, call in enumerate(calls)
    ]


def _around(observed: Observed, call: Call) -> Iterator[int]:
    """The spans that a call is in."""
    span = observed.parents.get(call.id)
    while span is not None:
        yield span
        span = observed.parents.get(span)


def _waited_for(observed: Observed, spans: frozenset[int]) -> set[int]:
    """The spans that arrows lead from to these, directly or by way of others."""
    found: set[int] = set()
    open_ends = list(spans)
    while open_ends:
        for source in observed.sources.get(open_ends.pop(), ()):
            if source not in found:
                found.add(source)
                open_ends.append(source)
    return found


def _quoted(observed: Observed, calls: Sequence[Call]) -> list[set[int]]:
    prompts = [observed.text(call, "prompt_sha256") or "" for call in calls]
    replies = [observed.text(call, "reply_sha256") or "" for call in calls]
    return needed_replies(prompts, replies)


def _same_function_unread(observed: Observed, earlier: Call, later: Call) -> bool:
    """Two calls by one function, whose texts are not known: they may depend on each other."""
    return observed.parents.get(earlier.id) == observed.parents.get(later.id) and (
        observed.text(earlier, "reply_sha256") is None
        or observed.text(later, "prompt_sha256") is None
    )


def _same_prompt(earlier: Call, later: Call) -> bool:
    """The same question again is asked because of what the first answer was."""
    prompt = later.attributes.get("prompt_sha256")
    return prompt is not None and prompt == earlier.attributes.get("prompt_sha256")
