"""Where a call's time went, from our clock and whatever the server reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.inference.completion import Phase, PhaseName, PhaseSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTimings:
    """What a server says of a call's time; None for what it does not say."""

    queue_ns: int | None = None
    """How long it waited for a place."""
    load_ns: int | None = None
    """How long the model took to load for it."""
    prefill_ns: int | None = None
    """How long the prompt took, as far as it was computed."""
    decode_ns: int | None = None
    """How long the reply took."""


def call_phases(
    *,
    sent_ns: int,
    first_token_ns: int | None,
    done_ns: int,
    reported: ServerTimings | None = None,
    came_whole: bool = False,
) -> tuple[Phase, ...]:
    """The phases of a call, back to back from `sent_ns` to `done_ns`.

    Decoding is measured, from the first token to the last. Of a reply that came in one piece it is
    what the server reports, or else all that is not known to be something else.

    What went before it is split by what the server reported, and of what is left over there is one
    phase, marked derived: if prefill was reported (llama-server, Ollama), it was queueing; else,
    even where queueing was reported (vLLM), it was prefill. With nothing reported all of it counts
    as prefill, and a queue may hide in it.

    Args:
        sent_ns: When the request was sent.
        first_token_ns: When the first token arrived; None if none was seen to.
        done_ns: When the reply was whole.
        reported: What the server says.
        came_whole: Whether the reply came in one piece.
    """
    known = reported or ServerTimings()
    decoding: PhaseSource = "measured"
    if first_token_ns is not None:
        first_ns = first_token_ns
    elif came_whole and known.decode_ns is not None:
        first_ns, decoding = max(sent_ns, done_ns - known.decode_ns), "reported"
    elif came_whole:
        told_ns = (known.queue_ns or 0) + (known.load_ns or 0) + (known.prefill_ns or 0)
        first_ns, decoding = min(done_ns, sent_ns + told_ns), "derived"
    else:
        first_ns = done_ns
    phases = (
        *_before_first_token(sent_ns, first_ns, known),
        Phase(name="decode", start_ns=first_ns, end_ns=done_ns, source=decoding),
    )
    return tuple(phase for phase in phases if phase.end_ns > phase.start_ns)


def _before_first_token(sent_ns: int, first_ns: int, known: ServerTimings) -> Iterator[Phase]:
    # The server's and our clock may disagree by the network's delay: stay inside the call. Backward
    # from the first token: what the server does not tell of lies at the call's beginning.
    end_ns = first_ns
    backwards: list[Phase] = []

    def put(name: PhaseName, duration_ns: int | None, source: PhaseSource) -> None:
        nonlocal end_ns
        if duration_ns is None:
            return
        start_ns = max(sent_ns, end_ns - duration_ns)
        backwards.append(Phase(name=name, start_ns=start_ns, end_ns=end_ns, source=source))
        end_ns = start_ns

    if known.prefill_ns is None:
        told_ns = (known.queue_ns or 0) + (known.load_ns or 0)
        put("prefill", max(0, first_ns - sent_ns - told_ns), "derived")
    else:
        put("prefill", known.prefill_ns, "reported")
    put("load", known.load_ns, "reported")
    put("queue", known.queue_ns, "reported")
    put("queue", end_ns - sent_ns, "derived")
    return reversed(backwards)
