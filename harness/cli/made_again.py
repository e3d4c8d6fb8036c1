"""Calls that a command would repeat: what is said of them, and the question before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import click

from harness.cli.consoles import is_attended
from harness.errors import InvalidInput
from harness.graph.outcome import Rerun
from harness.session import Remake

# From so much on, taken when it was made before, nothing is made again without being asked.
_MANY_TOKENS, _MANY_USD = 50_000, 1.0
_MOST = 20


def is_costly(tokens: int, usd: float | None) -> bool:
    """Whether calls that took so much are repeated only after a question."""
    return tokens >= _MANY_TOKENS or (usd or 0.0) >= _MANY_USD


def listed_again(again: Sequence[Remake]) -> Iterator[str]:
    """Lines about the calls: each with its reason and its cost, and the sum."""
    for call in again[:_MOST]:
        yield f"{call.node}: {call.reason} ({_took([call])})"
    if len(again) > _MOST:
        yield f"… and {len(again) - _MOST:,} more"
    yield f"Made again: {len(again)} ({_took(again)})" if again else "Nothing is made again."


def made_again_because(reruns: Sequence[Rerun]) -> Iterator[str]:
    """A line for each reason why calls of the run's own nodes were made again."""
    top = [rerun for rerun in reruns if "/" not in rerun.node]
    reasons = Counter((rerun.node.partition("[")[0], rerun.reason) for rerun in top)
    for (node, reason), count in reasons.most_common(_MOST):
        calls = f"{count:,} calls of '{node}' were" if count > 1 else f"'{node}' was"
        yield f"{calls} made again: {reason}"


def _took(again: Sequence[Remake]) -> str:
    calls, tokens_in, tokens_out = (
        sum(getattr(call, name) for call in again)
        for name in ("calls", "input_tokens", "output_tokens")
    )
    usd = [call.cost_usd for call in again if call.cost_usd is not None]
    cost = f", dollars: {sum(usd):.4f}" if usd else ""
    return f"took calls: {calls}, tokens in: {tokens_in:,}, out: {tokens_out:,}{cost}"


def confirm_again(again: Sequence[Remake]) -> None:
    """Asks whether to repeat the calls, if they are costly."""
    tokens = sum(call.input_tokens + call.output_tokens for call in again)
    if not is_costly(tokens, sum(call.cost_usd or 0.0 for call in again)):
        return
    click.echo("\n".join(listed_again(again)), err=True)
    if not is_attended() or not click.confirm("Make all that again?", err=True):
        raise InvalidInput(
            "much would be repeated, and that was not confirmed; add --yes to go on anyway",
            code="resume.not-confirmed",
        )
