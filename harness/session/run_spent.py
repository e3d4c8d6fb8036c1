"""What a whole run took, over all its parts, by its journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from harness.inference import Spent, most_tokens_of_messages
from harness.trace import Call, Content, Instant, Journal, SpanRecord, calls_of
from harness.trace.calls import charges_of, cost_of, priced_asides

_PAID = ("embed", "schema probe")
"""Spans of what models are asked beside chats, and charge for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpent(Spent):
    """What a run's calls to models took; those to embed, and attempts that failed, are calls too.

    As the beginning of a later part's `Spending` it is what the run's limits have counted so far.
    """

    total_usd: float | None = None
    """Dollars, with machines that are paid by the hour; None when no price is known."""
    cached_calls: int = 0
    """Beside `calls`: answered by the cache, so that no model was asked."""
    lost_calls: int = 0
    """Of `calls`, those that were under way when the run was killed: what they took is not known,
    and of their tokens only the prompt's are here, estimated, where the run records texts."""


def run_spent(journal: Journal) -> RunSpent:
    """Adds up what a run took.

    Args:
        journal: Of a run that is over, however it ended.

    Raises:
        JournalInvalid: A line in the middle is not a record.
    """
    chats: list[SpanRecord] = []
    asides: list[SpanRecord] = []
    endpoints: list[Instant] = []
    for item in journal.items():
        if isinstance(item, SpanRecord) and item.name == "chat":
            chats.append(item)
        elif isinstance(item, SpanRecord) and item.name in _PAID:
            asides.append(item)
        elif isinstance(item, Instant) and item.name == "endpoint":
            endpoints.append(item)
    calls = calls_of(chats)
    sent = [
        call for call in (*calls, *priced_asides(asides)) if call.was_sent and not call.from_cache
    ]
    charges = charges_of(sent, endpoints)
    uncounted = [c for c in sent if c.status != "ok" or c.count("input_tokens") is None]
    return RunSpent(
        calls=len(sent),
        input_tokens=sum(call.count("input_tokens") or 0 for call in sent)
        + _most_prompt_tokens(uncounted, journal),
        output_tokens=sum(call.count("output_tokens") or 0 for call in sent),
        cost_usd=sum(charges.values()) if charges else None,
        time_ns=journal.duration_ns,
        estimated_calls=len(uncounted),
        unpriced_calls=len(sent) - len(charges),
        total_usd=cost_of(sent, endpoints, run_ns=journal.duration_ns).usd,
        cached_calls=sum(call.from_cache for call in calls),
        lost_calls=sum(call.status == "unfinished" for call in sent),
    )


def _most_prompt_tokens(calls: Sequence[Call], journal: Journal) -> int:
    """Of the prompts of calls whose tokens nobody counted, as far as the journal has them."""
    prompts = Counter(str(call.attributes.get("prompt_sha256")) for call in calls)
    # Each once: a text may stand in the files of several parts and processes.
    tokens = {
        item.sha256: most_tokens_of_messages(item.text, messages=1)
        for item in (journal.items() if prompts else ())
        if isinstance(item, Content) and item.sha256 in prompts
    }
    return sum(tokens[prompt] * times for prompt, times in prompts.items() if prompt in tokens)
