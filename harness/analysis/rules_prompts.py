"""Rules about prompts: how long they took to read, and how much of them was read again."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.analysis.finding import Observation, Observations, ns_text, span_ids
from harness.analysis.observed import (
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
from harness.analysis.rules import SAME_PART_FIRST, SHORTER_PROMPTS, Remedy, rule
from harness.analysis.speed_limits import computed_tokens
from harness.analysis.time_budget import times_in
from harness.inference.providers import Aim, provider_named
from harness.inference.providers.provider import ALWAYS
from harness.trace.calls import Call
from harness.trace.intervals import length_ns, mean_depths, parts_within

# For shorter prompts, a prefix cache gains too little.
LONG_PROMPT_TOKENS = 256
# The reading of such a prompt takes long, whatever runs beside it.
VERY_LONG_TOKENS = 2048
# If calls queue for a larger share of the time to their first token, prompts are not what is slow.
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
def prefill_bound(observed: Observed, model: str, calls: Sequence[Call]) -> Observations:
    """Long prompts, read one after another without much queue, and slowly."""
    timed = _with_known_prefill(observed, calls)
    lost_ns = length_ns(times_in("prefill", timed))
    # One or two calls count only if reading their prompts took half of the run.
    if len(timed) < LEAST_COMPARED and lost_ns < MOSTLY * observed.run.duration_ns:
        return
    ttft_ns = statistics.median(call.ttft_ns or 0 for call in timed)
    tokens = statistics.median(map(computed_tokens, timed))
    waited_ns = sum(call.ttft_ns or 0 for call in timed)
    queued_ns = sum(queue.duration_ns for queue in queues_in_server(observed, timed).values())
    prefill_ns = sum(call.phase_ns("prefill") for call in timed)
    decode_ns = sum(call.phase_ns("decode") for call in timed)
    if (
        ttft_ns < LONG_NS
        or tokens < LONG_PROMPT_TOKENS
        or queued_ns > LITTLE_QUEUE * waited_ns
        or prefill_ns < MOSTLY * (prefill_ns + decode_ns)
        or fixed_wait_ns(observed, calls) > MOSTLY * ttft_ns  # `cold-start` reports it
    ):
        return
    slowest_first = sorted(timed, key=lambda call: call.ttft_ns or 0, reverse=True)
    # Over the time in which any prompt was read: prompts that are read together share it.
    rate = sum(map(computed_tokens, timed)) / (max(1, lost_ns) / 1e9)
    # If neither the server nor the prompts' lengths tell, the wait may have another reason.
    is_reported = provider_named(observed.server(model).backend).timings is ALWAYS
    lengths, waits_ns = [*map(computed_tokens, timed)], [call.ttft_ns or 0 for call in timed]
    is_certain = is_reported or max(lengths) > 2 * min(lengths) or max(waits_ns) > 2 * min(waits_ns)
    doubt = " All are about as long: a fixed wait before the first token would look the same."
    yield Observation(
        severity="warning" if is_certain else "hint",
        seen=f"Calls to '{model}' wait {ns_text(ttft_ns)} in the median for their first token: it "
        f"reads prompts of {tokens:.0f} tokens at {rate:.0f} tokens/s ({observed.share(lost_ns)})."
        f"{'' if is_certain else doubt}",
        spans=span_ids(slowest_first),
        lost_ns=lost_ns,
    )


def fixed_wait_ns(observed: Observed, calls: Sequence[Call]) -> float:
    """The part of a model's times to first token that does not grow with its prompts' lengths.

    It is 0 if the prompts are all long or all short. `calls` are all to one model.
    """
    timed = [call for call in calls if call.ttft_ns and not observed.hidden_tokens(call)]
    known = _with_known_prefill(observed, timed)
    long = [call for call in known if computed_tokens(call) >= LONG_PROMPT_TOKENS]
    tokens = statistics.median(map(computed_tokens, long)) if long else 0
    # A short prompt may wait for a long one beside it. Of the others, the quickest has waited for
    # no other call, nor for the model to be loaded.
    short = [call for call in timed if 0 < 2 * computed_tokens(call) <= tokens]
    beside = parts_within(short, (call for call in calls if 2 * computed_tokens(call) > tokens))
    apart = [call for call, parts in zip(short, beside, strict=True) if not parts]
    if len(apart) < SEVERAL:
        return 0
    quickest = min(apart, key=lambda call: call.ttft_ns or 0)
    fixed_ns, read_tokens = quickest.ttft_ns or 0, computed_tokens(quickest)
    grown_ns = max(0, statistics.median(call.ttft_ns or 0 for call in long) - fixed_ns)
    return max(0, fixed_ns - grown_ns * read_tokens / (tokens - read_tokens))


def _with_known_prefill(observed: Observed, calls: Sequence[Call]) -> list[Call]:
    """The calls whose time to the first token is known to go into reading their prompts."""
    timed = [c for c in calls if c.ttft_ns and c.input_tokens and not observed.was_held_back(c)]
    if not timed or reports_queue(observed, calls):
        return timed
    # The time to the first token may hide an unreported queue, but not of a call that ran alone.
    inferred = queues_in_server(observed, calls)
    return [
        call
        for call, depth in zip(timed, mean_depths(timed), strict=True)
        if depth <= ALONE or (call.id not in inferred and _input_tokens(call) >= VERY_LONG_TOKENS)
    ]


def _input_tokens(call: Call) -> int:
    return call.input_tokens or 0


# If the server cached no more of a prompt, it was the chat template at most.
LITTLE_CACHED = 0.2
# A prompt was read whole if a token took at least this share of the slowest reading of a token.
READ_WHOLE = 0.7
# If reading the repeated part of a prompt took less, it may have been the way to the server.
LEAST_READING_NS = 100_000_000
# A call's predecessor is looked for among so many calls before it.
LOOKED_BACK = 32


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
            Aim.KEEP_PREFIXES,
            "see whether the server has a prefix cache, and whether it is on",
        )
    },
    explains=("prefill",),
)
@per_model
def drifting_prefix(observed: Observed, model: str, calls: Sequence[Call]) -> Observations:
    """Prompts were read again: they differ early, or the server kept nothing of them."""
    # 1. Prompts that follow a similar one, and that the server has not served from its cache.
    pairs = [
        (before, call)
        for before, call in _successive(calls)
        if (call.cached_tokens or 0) <= LITTLE_CACHED * _input_tokens(call)
    ]
    compared = _compared(observed, pairs)
    # The texts of the first calls are known; these calls stand for all.
    scale = len(pairs) / max(1, len(compared))
    # 2. Prompts that have much in common, but not from the beginning.
    drifted = [
        _Reread(call, like, like.shared_share - like.prefix_share)
        for call, like in compared
        if like.shared_share >= MOSTLY and like.prefix_share < MOSTLY * like.shared_share
    ]
    # 3. Prompts that begin alike.
    long = [call for call in calls if _input_tokens(call) >= LONG_PROMPT_TOKENS]
    # Time per token; the prompt that was read most slowly was most surely read whole.
    slowest_ns = max((c.phase_ns("prefill") / _input_tokens(c) for c in long), default=0.0)
    uncached = [
        _Reread(call, like, like.prefix_share)
        for call, like in compared
        if like.prefix_share >= MOSTLY and _was_read_whole(call, slowest_ns)
    ]
    for case, rereads in ("", drifted), ("uncached", uncached):
        if len(rereads) < SEVERAL:
            continue
        lost_ns = scale * _reread_ns(calls, rereads, fixed_wait_ns(observed, calls))
        is_counted = _counts_cached(rereads)
        lost = f"{'' if is_counted else 'at most '}{observed.share(lost_ns)}"
        prefix = f"{statistics.median(reread.likeness.prefix_share for reread in rereads):.0%}"
        shared = f"{statistics.median(reread.likeness.shared_share for reread in rereads):.0%}"
        if case == "uncached":
            fault = f"began with the same {prefix} of their text as the one answered just before, "
            fault += f"and by its {'count' if is_counted else 'pace'} the server kept next to "
            fault += f"nothing of it. Reading it again took {lost}"
        else:
            fault = f"shared {shared} of their text with the one before, but differed after the "
            fault += f"first {prefix}. Reading the rest again took {lost}. The first difference: "
            fault += rereads[0].likeness.difference
        yield Observation(
            case=case,
            severity="warning" if case == "uncached" or is_counted else "hint",
            seen=f"{len(rereads)} prompts to '{model}' {fault}.",
            spans=span_ids(reread.call for reread in rereads),
            lost_ns=lost_ns,
        )


class _Reread(NamedTuple):
    """A call whose server read again what it had read before."""

    call: Call
    likeness: Likeness
    share: float  # the part of the prompt that was read again


def _was_read_whole(call: Call, slowest_ns: float) -> bool:
    """Whether the server says so of an uncached prompt, or read a token as slowly as any."""
    least_ns = READ_WHOLE * slowest_ns * _input_tokens(call)
    return call.cached_tokens is not None or 0 < least_ns <= call.phase_ns("prefill")


def _counts_cached(rereads: Sequence[_Reread]) -> bool:
    """Whether the server says what it cached, at least of some prompts."""
    return any(reread.call.cached_tokens is not None for reread in rereads)


def _successive(calls: Sequence[Call]) -> list[tuple[Call, Call]]:
    """Each call with a long prompt, after the last call whose prompt had been read before it."""
    pairs = []
    for number, call in enumerate(calls):
        if _input_tokens(call) < LONG_PROMPT_TOKENS:
            continue
        for before in reversed(calls[max(0, number - LOOKED_BACK) : number]):
            # Another role or node has other prompts.
            is_alike = (before.role, before.node) == (call.role, call.node)
            if is_alike and _was_read_before(before, call):
                pairs.append((before, call))
                break
    return pairs


def _was_read_before(before: Call, call: Call) -> bool:
    if before.end_ns <= call.start_ns:
        return True
    # Side by side, the first tokens must be well apart: prompts read together end together.
    before_ns, call_ns = first_token_ns(before), first_token_ns(call)
    if before_ns is None or call_ns is None:
        return False
    return before_ns + LEAST_LOST_NS <= call_ns


def _reread_ns(calls: Sequence[Call], rereads: Sequence[_Reread], fixed_ns: float) -> float:
    """How long the server read what it had read before; `calls` are all to the model."""
    reading = times_in("prefill", [reread.call for reread in rereads])
    read_ns = length_ns(reading) * statistics.fmean(reread.share for reread in rereads)
    if _counts_cached(rereads):
        return read_ns
    # Without a count of cached tokens, the time to the first token may have other reasons than
    # reading. Each token counts with the quickest reading of a token in any call, if that is long.
    read_ns_of = [(c, c.phase_ns("prefill") - fixed_ns) for c in calls if c.input_tokens]
    token_ns = max(0, min(read_ns / _input_tokens(call) for call, read_ns in read_ns_of))
    least_ns = [token_ns * _input_tokens(reread.call) * reread.share for reread in rereads]
    return min(read_ns, sum(least_ns)) if max(least_ns) >= LEAST_READING_NS else 0


def _compared(
    observed: Observed, pairs: Iterable[tuple[Call, Call]]
) -> list[tuple[Call, Likeness]]:
    """The later call of each pair, and how much of its prompt the earlier one has."""
    compared = []
    for earlier, later in pairs:
        earlier_prompt, later_prompt = observed.prompt(earlier), observed.prompt(later)
        if earlier_prompt is not None and later_prompt is not None:
            compared.append((later, likeness(earlier_prompt, later_prompt)))
    return compared


# A prompt quotes a reply if it shares so many characters in a row with it: about four words.
WINDOW_CHARS = 24
# Only replies shorter than this, such as a decision, a label or a name, are divided into pieces.
SHORT_CHARS = 8 * WINDOW_CHARS
# A prompt may hold a piece of fewer characters by chance.
LEAST_PIECE = 4
_PIECE_ENDS = re.compile(r'[\n,;:."{}\[\]]')
# In the journal, calls of tools and reasoning follow a reply's text, and begin so.
_AFTER_TEXT = "\n\n["
# Shorter pieces are not worth caching: two of vLLM's blocks of 16 tokens of four characters.
BLOCK_CHARS = 128
_EXCERPT_CHARS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """How much of a text another one has as well."""

    prefix_share: float  # the part up to the first difference: what a prefix cache can serve
    shared_share: float  # the part that stands anywhere in both: it could come first, in the cache
    difference: str


def likeness(earlier: str, later: str) -> Likeness:
    """How much of the later text the earlier one has."""
    pairs = zip(earlier, later, strict=False)
    shorter = min(len(earlier), len(later))
    prefix_chars = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
    # Blocks of the earlier text begin at every character, so that a shift hides nothing; blocks of
    # the later text do not overlap, so that each character counts once.
    blocks_before = _windows(earlier, BLOCK_CHARS)
    starts = range(0, len(later) - BLOCK_CHARS + 1, BLOCK_CHARS)
    repeated = sum(later[start : start + BLOCK_CHARS] in blocks_before for start in starts)
    length = max(1, len(later))
    return Likeness(
        prefix_share=prefix_chars / length,
        shared_share=max(prefix_chars / length, repeated / max(1, len(starts))),
        difference=f"{_excerpt(earlier, prefix_chars)!r} became {_excerpt(later, prefix_chars)!r}",
    )


def needed_replies(prompts: Sequence[str], replies: Sequence[str]) -> list[set[int]]:
    """For each prompt, the positions of the earlier calls whose replies it holds parts of."""
    window_origins: dict[str, _TextOrigin] = {}
    piece_origins: dict[str, _TextOrigin] = {}
    needed: list[set[int]] = []
    for number, (prompt, reply) in enumerate(zip(prompts, replies, strict=True)):
        # 1. The earlier replies in this prompt. Models like to repeat their prompts, so a text is
        #    from a reply only if it is here more often than in the prompt of that reply.
        windows = _windows(prompt)
        needed.append(set())
        for window in windows.keys() & window_origins.keys():
            if windows[window] > window_origins[window].times_in_prompt:
                needed[number].update(window_origins[window].calls)
        for piece, origin in piece_origins.items():
            if prompt.count(piece) > origin.times_in_prompt:
                needed[number].update(origin.calls)
        # 2. The parts of this reply that later prompts may hold.
        text = reply.partition(_AFTER_TEXT)[0].strip()
        if len(text) >= WINDOW_CHARS:
            this_call = (number,)  # one object for all the windows of a reply, to save memory
            for window in _windows(text):
                first = _TextOrigin(windows[window], this_call)
                window_origins[window] = _joined(window_origins.get(window), first)
        if len(text) < SHORT_CHARS:
            # A short reply counts whole, and so do its pieces, such as a value of its JSON.
            for piece in pieces_of(text):
                first = _TextOrigin(prompt.count(piece), (number,))
                piece_origins[piece] = _joined(piece_origins.get(piece), first)
    return needed


def pieces_of(reply: str) -> set[str]:
    """Parts of a reply that a prompt may hold alone; the whole reply if all parts are too short."""
    pieces = {piece.strip() for piece in _PIECE_ENDS.split(reply)}
    long = {piece for piece in pieces if len(piece) >= LEAST_PIECE}
    return long or {reply} - {""}


class _TextOrigin(NamedTuple):
    """Where a text comes from that calls replied with."""

    times_in_prompt: int  # how often the prompt of the first of these calls has the text
    calls: tuple[int, ...]


def _joined(earlier: _TextOrigin | None, later: _TextOrigin) -> _TextOrigin:
    if earlier is None:
        return later
    return _TextOrigin(earlier.times_in_prompt, earlier.calls + later.calls)


def _windows(text: str, chars: int = WINDOW_CHARS) -> Counter[str]:
    """How often each stretch of so many characters occurs in the text."""
    return Counter(text[i : i + chars] for i in range(len(text) - chars + 1))


def _excerpt(text: str, position: int) -> str:
    """A few characters of the line around a position."""
    start = max(text.rfind("\n", 0, position) + 1, position - _EXCERPT_CHARS)
    line_end = text.find("\n", position)
    end = len(text) if line_end == -1 else line_end
    return text[start : min(position + _EXCERPT_CHARS, end)]
