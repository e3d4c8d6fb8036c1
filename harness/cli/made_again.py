"""Calls that a command would repeat: their list, and the question whether to repeat them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import click

from harness.cli.consoles import is_attended, say
from harness.cli.tables import first_of
from harness.errors import InvalidInput
from harness.graph.outcome import Rerun
from harness.session import Remake

# Calls that took so much before are not repeated without a question.
_MANY_TOKENS, _MANY_USD = 50_000, 1.0
_MOST_LINES = 20


def is_costly(tokens: int, usd: float | None) -> bool:
    """Whether calls that took so much are repeated only after a question."""
    return tokens >= _MANY_TOKENS or (usd or 0.0) >= _MANY_USD


def listed_again(again: Sequence[Remake]) -> Iterator[str]:
    """A line for each call with its reason and its cost, and one with the sum."""
    lines = [f"{call.node}: {call.reason} ({_took([call])})" for call in again]
    yield from first_of(lines, _MOST_LINES, more="… and {} more")
    # Only the code of nodes knows which requests will be the same, and so have a kept reply.
    most = f"{_took(again)}; at most that is repeated: a request with a kept reply is not sent"
    yield f"Made again: {len(again)} ({most})" if again else "Nothing is made again."


def made_again_because(reruns: Sequence[Rerun]) -> Iterator[str]:
    """A line for each node and reason of calls that were made again; none for nested nodes."""
    outer = [rerun for rerun in reruns if "/" not in rerun.node]
    reasons = Counter((rerun.node.partition("[")[0], rerun.reason) for rerun in outer)
    for (node, reason), count in reasons.most_common(_MOST_LINES):
        calls = f"{count:,} calls of '{node}' were" if count > 1 else f"'{node}' was"
        yield f"{calls} made again: {reason}"


def _took(again: Sequence[Remake]) -> str:
    calls = sum(call.calls for call in again)
    tokens_in = sum(call.input_tokens for call in again)
    tokens_out = sum(call.output_tokens for call in again)
    costs = [call.cost_usd for call in again if call.cost_usd is not None]
    dollars = f", dollars: {sum(costs):.4f}" if costs else ""
    return f"took calls: {calls}, tokens in: {tokens_in:,}, out: {tokens_out:,}{dollars}"


def confirm_again(again: Sequence[Remake]) -> None:
    """Asks whether to repeat the calls if they are costly; raises if the answer is no.

    A call that failed is what the command is repeated for: it does not count.
    """
    unexpected = [call for call in again if not call.failed]
    tokens = sum(call.input_tokens + call.output_tokens for call in unexpected)
    if not is_costly(tokens, sum(call.cost_usd or 0.0 for call in unexpected)):
        return
    say("\n".join(listed_again(again)), err=True)
    if not is_attended() or not click.confirm("Make all that again?", err=True):
        raise InvalidInput(
            "much may be repeated, and that was not confirmed; add --yes to go on anyway",
            code="resume.not-confirmed",
        )
