"""Rules about prompts: how long they took to read, and how much of them was read again."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.analysis.facts import (
    ALONE,
    LEAST_COMPARED,
    LEAST_LOST_NS,
    LONG_NS,
    MOSTLY,
    SEVERAL,
    Observed,
    first_token_ns,
    per_model,
    queues_in_server,
    reports_queue,
)
from harness.analysis.finding import Expected, Observation, ns_text, span_ids
from harness.analysis.rules import SAME_PART_FIRST, SHORTER_PROMPTS, Remedy, rule
from harness.analysis.speed_limits import computed_tokens
from harness.analysis.time_budget import times_in
from harness.inference.providers import Aim
from harness.trace.calls import Call
from harness.trace.intervals import length_ns, mean_depths

# Shorter prompts gain nothing from a prefix cache worth telling.
LONG_PROMPT_TOKENS = 256

VERY_LONG_TOKENS = 2048
"""Prompts whose reading is what takes the time, in company too."""

# More queue than this share of the time to the first token, and the prompt is not what is slow.
LITTLE_QUEUE = 0.2


@rule(
    "prefill-bound",
    "Prefill bound: the time goes into reading long prompts, not into writing.",
    "L4b",
    SHORTER_PROMPTS,
    SAME_PART_FIRST,
    Aim.READ_PROMPTS_FASTER,
    explains=("prefill",),
    explained_by=("drifting-prefix",),
)
@per_model
def prefill_bound(observed: Observed, model: str, calls: Sequence[Call]) -> Observation | None:
    """Long prompts, read one after another without much queue, and slowly."""
    timed = [c for c in calls if c.ttft_ns and c.input_tokens and not observed.was_held_back(c)]
    if timed and not reports_queue(observed, calls):
        # A queue may hide in the time to the first token, but not of a call without company.
        company = mean_depths(timed)
        inferred = queues_in_server(observed, calls)
        timed = [
            call
            for call, depth in zip(timed, company, strict=True)
            if depth <= ALONE
            or (call.id not in inferred and _input_tokens(call) >= VERY_LONG_TOKENS)
        ]
    lost_ns = length_ns(times_in("prefill", timed))
    # Fewer calls than three count if reading them took more than half of the run.
    if len(timed) < LEAST_COMPARED and lost_ns < MOSTLY * observed.run.duration_ns:
        return None
    ttft_ns = statistics.median(call.ttft_ns or 0 for call in timed)
    tokens = statistics.median(map(computed_tokens, timed))
    waited_ns = sum(call.ttft_ns or 0 for call in timed)
    queued_ns = sum(queue.duration_ns for queue in queues_in_server(observed, timed).values())
    prefill_ns, decode_ns = (
        sum(call.phase_ns(name) for call in timed) for name in ("prefill", "decode")
    )
    if (
        ttft_ns < LONG_NS
        or tokens < LONG_PROMPT_TOKENS
        or queued_ns > LITTLE_QUEUE * waited_ns
        or prefill_ns < MOSTLY * (prefill_ns + decode_ns)
        or not observed.matters(lost_ns)
    ):
        return None
    slowest = sorted(timed, key=lambda call: call.ttft_ns or 0, reverse=True)
    # The rate at which all prompts that are read together are read.
    rate = sum(map(computed_tokens, timed)) / (max(1, lost_ns) / 1e9)
    return Observation(
        seen=f"Calls to '{model}' wait {ns_text(ttft_ns)} in the median for their first token: it "
        f"reads prompts of {tokens:.0f} tokens at {rate:.0f} tokens/s ({observed.share(lost_ns)}).",
        spans=span_ids(slowest),
        lost_ns=lost_ns,
    )


def _input_tokens(call: Call) -> int:
    return call.input_tokens or 0


# Less of a prompt than this was cached: about nothing, a chat template apart.
LITTLE_CACHED = 0.2

READ_WHOLE = 0.7
"""From this share of the slowest reading on, a prompt was read whole."""

# The least time for reading a prompt's repeated part; less may be the way to the server.
LEAST_READING_NS = 100_000_000

LOOKED_BACK = 32
"""Calls before one among which its predecessor is looked for."""


@rule(
    "drifting-prefix",
    "The prefix drifts: a cache serves a prompt up to its first difference from an earlier one, "
    "and here something varies near the beginning.",
    "L6",
    "put what varies (a time, a number, a name, a question) after what stays the same",
    "keep the system prompt and the order of sources fixed from call to call",
    cases={
        "uncached": Remedy(
            "The server kept nothing: its prefix cache is off, too small, or was used by other "
            "calls in between.",
            "L4b",
            (Aim.KEEP_PREFIXES, "see whether the server has a prefix cache, and whether it is on"),
        ),
    },
    explains=("prefill",),
)
@per_model
def drifting_prefix(observed: Observed, model: str, calls: Sequence[Call]) -> Observation | None:
    """Prompts were read again: they differ early, or the server kept nothing of them."""
    # 1. What a cache could have served of each prompt, and did not.
    long = [call for call in calls if _input_tokens(call) >= LONG_PROMPT_TOKENS]
    # Per token: the slowest was most surely read whole.
    slowest_ns = max((c.phase_ns("prefill") / _input_tokens(c) for c in long), default=0.0)
    pairs = [pair for pair in _successive(calls) if _uncached(pair[1])]
    compared = _compared(observed, pairs)
    # 2. Those that have much in common, but not from the beginning; those that began alike.
    drifted = [
        (call, like, like.shared_share - like.prefix_share)
        for call, like in compared
        if like.shared_share >= MOSTLY and like.prefix_share < MOSTLY * like.shared_share
    ]
    same = [
        (call, like, like.prefix_share)
        for call, like in compared
        if like.prefix_share >= MOSTLY
        # Its server says so, or it was read about as slowly as any: nothing of it was cached.
        and (
            call.cached_tokens is not None
            or call.phase_ns("prefill") >= READ_WHOLE * slowest_ns * _input_tokens(call) > 0
        )
    ]
    # 3. The first of both that cost enough.
    for case, again in ("", drifted), ("uncached", same):
        shares = [(call, share) for call, _, share in again]
        # The first calls, whose texts are known, stand for all.
        lost_ns = len(pairs) / max(1, len(compared)) * _read_again_ns(calls, shares)
        if len(again) < SEVERAL or not observed.matters(lost_ns):
            continue
        prefix_share = statistics.median(like.prefix_share for _, like, _ in again)
        shared_share = statistics.median(like.shared_share for _, like, _ in again)
        counts = [call.cached_tokens for call, _ in shares if call.cached_tokens is not None]
        tokens = sum(_input_tokens(call) for call, _ in shares)
        is_told, cached = bool(counts), f"{sum(counts)} of their {tokens} tokens were cached"
        if len(counts) < len(shares):
            cached = "what was cached of them the server does not say"
        lost = f"{'' if is_told else 'at most '}{observed.share(lost_ns)}"
        return Observation(
            case=case,
            severity="warning" if case or is_told else "hint",
            seen=f"{len(again)} prompts to '{model}' "
            + (
                f"began with the same {prefix_share:.0%} of their text as the one answered just "
                f"before, and {cached}. Reading it again took {lost}."
                if case
                else f"shared {shared_share:.0%} of their text with the one before, but differed "
                f"after the first {prefix_share:.0%}; {cached}. Reading the rest again took {lost}."
                f" The first difference is at {again[0][1].difference}."
            ),
            spans=span_ids(call for call, _ in shares),
            expected=_cached_before(shares) if is_told else None,
            lost_ns=lost_ns,
        )
    return None


def _successive(calls: Sequence[Call]) -> list[tuple[Call, Call]]:
    """Each call with a long prompt, after the last one whose prompt had been read before it."""
    pairs = []
    for number, later in enumerate(calls):
        first_ns = first_token_ns(later)
        if _input_tokens(later) < LONG_PROMPT_TOKENS:
            continue
        for call in reversed(calls[max(0, number - LOOKED_BACK) : number]):
            # Answered before this was sent or, of calls side by side, with a first token well
            # before: prompts that are read together are answered together. Another role or node
            # has other prompts.
            if (call.role, call.node) == (later.role, later.node) and (
                call.end_ns <= later.start_ns or _well_before(first_token_ns(call), first_ns)
            ):
                pairs.append((call, later))
                break
    return pairs


def _well_before(earlier_ns: int | None, later_ns: int | None) -> bool:
    if earlier_ns is None or later_ns is None:
        return False
    return earlier_ns + LEAST_LOST_NS <= later_ns


def _read_again_ns(calls: Sequence[Call], again: Sequence[tuple[Call, float]]) -> float:
    """How long the server read what it had read before, by the share of each prompt."""
    reading = times_in("prefill", [call for call, _ in again])
    read_ns = length_ns(reading) * (statistics.fmean(share for _, share in again) if again else 0)
    if any(call.cached_tokens is not None for call, _ in again):
        return read_ns
    # Where a server says nothing of its cache, the time to the first token may have other reasons:
    # the quickest reading of a token among all its calls counts for each, if that is long.
    paces = [c.phase_ns("prefill") / _input_tokens(c) for c in calls if c.input_tokens]
    again_ns = [min(paces, default=0) * _input_tokens(call) * share for call, share in again]
    return min(read_ns, sum(again_ns)) if max(again_ns, default=0) >= LEAST_READING_NS else 0


def _cached_before(shares: Sequence[tuple[Call, float]]) -> Expected:
    """Without the time that reading these shares of the prompts took; medians."""
    read = [((call.ttft_ns or 0) / 1e9, call.phase_ns("prefill") * s / 1e9) for call, s in shares]
    before_s = statistics.median(ttft_s for ttft_s, _ in read)
    after_s = statistics.median(max(0.0, ttft_s - again_s) for ttft_s, again_s in read)
    return Expected("time to first token of these calls", before_s, after_s, "s")


def _compared(
    observed: Observed, pairs: Iterable[tuple[Call, Call]]
) -> list[tuple[Call, Likeness]]:
    """The later call of each pair, and how much of its prompt the earlier one has."""
    compared = []
    for earlier, later in pairs:
        texts = [observed.prompt(call) for call in (earlier, later)]
        if texts[0] is not None and texts[1] is not None:
            compared.append((later, likeness(texts[0], texts[1])))
    return compared


def _uncached(call: Call) -> bool:
    return (call.cached_tokens or 0) <= LITTLE_CACHED * _input_tokens(call)


# A prompt that shares so many characters in a row with a reply has them from it: four words.
WINDOW_CHARS = 24

# Up to here a reply's pieces are looked for: a decision, a label, a name.
SHORT_CHARS = 8 * WINDOW_CHARS

# Characters of a piece that is no chance.
LEAST_PIECE = 4

_PIECES = re.compile(r'[\n,;:."{}\[\]]')
_BESIDE = "\n\n["
"""So begins what the journal keeps of a reply behind its text: calls of tools, reasoning."""

# Shorter pieces that two prompts share are not worth caching: two of vLLM's blocks of 16 tokens, at
# four characters each.
BLOCK_CHARS = 128

_SHOWN_CHARS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """How much of a text another one has as well."""

    prefix_share: float
    """The part up to the first difference: what a prefix cache can serve."""
    shared_share: float
    """All that stands in both, wherever: what it could serve, with that part in front."""
    difference: str


def likeness(earlier: str, later: str) -> Likeness:
    """How much of the later text the earlier one has."""
    pairs = enumerate(zip(earlier, later, strict=False))
    shorter = min(len(earlier), len(later))
    prefix_chars = next((at for at, (a, b) in pairs if a != b), shorter)
    # At any place of the earlier text, so that a shift hides nothing; in the later one block by
    # block, so that each character counts once.
    blocks_before = _windows(earlier, BLOCK_CHARS)
    blocks = range(0, len(later) - BLOCK_CHARS + 1, BLOCK_CHARS)
    repeated = sum(later[i : i + BLOCK_CHARS] in blocks_before for i in blocks)
    length = max(1, len(later))
    return Likeness(
        prefix_share=prefix_chars / length,
        shared_share=max(prefix_chars / length, repeated / max(1, len(blocks))),
        difference=_difference(earlier, later, prefix_chars),
    )


def needed_replies(prompts: Sequence[str], replies: Sequence[str]) -> list[set[int]]:
    """Which earlier calls' replies each prompt holds something of, by position."""
    owners: dict[str, _Said] = {}
    short: dict[str, _Said] = {}
    needed: list[set[int]] = []
    for number, (prompt, reply) in enumerate(zip(prompts, replies, strict=True)):
        parts = _windows(prompt)
        # More often than the prompt had it that first led to it: models like to repeat what they
        # were given.
        quoted = [owners[w].by for w in parts.keys() & owners.keys() if parts[w] > owners[w].given]
        quoted += [it.by for piece, it in short.items() if prompt.count(piece) > it.given]
        needed.append(set().union(*quoted))
        text = reply.partition(_BESIDE)[0].strip()
        if len(text) >= WINDOW_CHARS:
            alone = (number,)  # one object for all the windows of a reply
            for window in _windows(text):
                it = owners.get(window)
                owners[window] = it.also(number) if it else _Said(parts[window], alone)
        # A short reply counts whole, and so do its pieces, such as a value of its JSON.
        for piece in pieces_of(text) if len(text) < SHORT_CHARS else ():
            it = short.get(piece)
            short[piece] = it.also(number) if it else _Said(prompt.count(piece), (number,))
    return needed


def pieces_of(reply: str) -> set[str]:
    """Parts of a reply that a prompt may have alone; the whole reply, if it is shorter than one."""
    pieces = {piece.strip() for piece in _PIECES.split(reply)}
    long = {piece for piece in pieces if len(piece) >= LEAST_PIECE}
    return long or {reply} - {""}


class _Said(NamedTuple):
    """A piece of text that calls replied with."""

    given: int
    """How often the prompt had it that first led to it."""
    by: tuple[int, ...]

    def also(self, number: int) -> _Said:
        """And by a later call."""
        return _Said(self.given, (*self.by, number))


def _windows(text: str, chars: int = WINDOW_CHARS) -> Counter[str]:
    """How often each stretch of so many characters occurs; 0 for others."""
    return Counter(text[i : i + chars] for i in range(len(text) - chars + 1))


def _difference(earlier: str, later: str, at: int) -> str:
    line = later.count("\n", 0, at) + 1
    column = at - (later.rfind("\n", 0, at) + 1) + 1
    before, after = (_shown(text, at) for text in (earlier, later))
    return f"line {line}, character {column}: {before!r} became {after!r}"


def _shown(text: str, at: int) -> str:
    start = max(text.rfind("\n", 0, at) + 1, at - _SHOWN_CHARS)
    end = text.find("\n", at)
    return text[start : min(at + _SHOWN_CHARS, len(text) if end == -1 else end)]
