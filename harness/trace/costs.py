"""What a run cost, as far as prices are known: by the token, by the hour, or as a provider lists.

What is not known is None, never 0. Replies from the cache of calls cost nothing, and are not to be
among the calls here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from harness.trace.calls import Call
from harness.trace.records import Attributes, Instant, SpanRecord

PriceBasis = Literal["tokens", "price list", "hours"]
"""The prices in the endpoint's settings, with the cached part of prompts at full price; the price
list that the call was looked up in when it was made; the machine's price for the run's time."""

_NS_PER_HOUR = 3_600_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    """What one model cost."""

    model: str
    basis: tuple[PriceBasis, ...]
    """What the figure is of; empty when no price is known."""
    usd: float | None
    unpriced_calls: int
    """Calls that may have cost something which is not in it: they failed on the way, or the price
    list did not know them."""
    output_tokens: int
    usd_per_million_output_tokens: float | None
    """None when either is unknown or there are no tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """What a run cost."""

    models: tuple[ModelCost, ...]
    """Those that were called, in that order, and those paid by the hour that were not."""
    usd: float | None
    """Dollars, of all models whose cost is known; None if no cost is known."""
    usd_per_million_output_tokens: float | None
    """For the output tokens of those models."""
    unpriced_models: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prices:
    """What an endpoint's settings say; each is None when they say nothing."""

    usd_per_hour: float | None = None
    usd_per_million_input_tokens: float | None = None
    usd_per_million_output_tokens: float | None = None

    @classmethod
    def of(cls, attributes: Attributes) -> Self:
        return cls(
            usd_per_hour=_number(attributes.get("usd_per_hour")),
            usd_per_million_input_tokens=_number(attributes.get("usd_per_million_input_tokens")),
            usd_per_million_output_tokens=_number(attributes.get("usd_per_million_output_tokens")),
        )


def cost_of(calls: Sequence[Call], endpoints: Iterable[Instant], *, run_ns: int) -> RunCost:
    """Adds up what calls and machines cost.

    A machine is paid for the whole run, busy or not, if it was called at all, and once for each
    endpoint with a price: of two endpoints on one machine, only one should have it.

    Args:
        calls: All that a run asked models, to embed included.
        endpoints: The `endpoint` instants, which hold the prices.
        run_ns: How long the run took.
    """
    prices = {str(one.attributes.get("model")): _Prices.of(one.attributes) for one in endpoints}
    models = tuple(
        _model_cost(
            model,
            [call for call in calls if call.model == model],
            prices.get(model, _Prices()),
            run_ns=run_ns,
        )
        for model in dict.fromkeys(call.model for call in calls)
    )
    priced = [one for one in models if one.usd is not None]
    usd = sum(one.usd or 0.0 for one in priced) if priced else None
    return RunCost(
        models=models,
        usd=usd,
        usd_per_million_output_tokens=_per_million(usd, sum(one.output_tokens for one in priced)),
        unpriced_models=tuple(one.model for one in models if one.usd is None),
    )


def charges_of(calls: Iterable[Call], endpoints: Iterable[Instant]) -> dict[int, float]:
    """What calls cost by their tokens, in dollars, by span; without those whose price is unknown.

    Args:
        calls: As for `cost_of`.
        endpoints: As for `cost_of`.
    """
    prices = {str(one.attributes.get("model")): _Prices.of(one.attributes) for one in endpoints}
    charges = ((call.id, _charge(call, prices.get(call.model, _Prices()))) for call in calls)
    return {span: charge[1] for span, charge in charges if charge is not None}


def priced_asides(spans: Iterable[SpanRecord]) -> Iterator[Call]:
    """Those that providers charge for, as if they were calls: tokens are counted for nothing."""
    for span in spans:
        if span.name != "count tokens":
            none_written = {"output_tokens": 0} if span.name == "embed" else {}
            yield Call(
                id=span.id,
                start_ns=span.start_ns,
                end_ns=span.end_ns,
                model=str(span.attributes.get("model")),
                role=None,
                node=None,
                status=span.status,
                error=span.error,
                attributes={**none_written, **span.attributes},
            )


def _model_cost(model: str, calls: Sequence[Call], prices: _Prices, *, run_ns: int) -> ModelCost:
    by_basis: dict[PriceBasis, float] = {}
    unpriced = sum(call.was_sent for call in calls)
    for call in calls:
        charge = _charge(call, prices)
        if charge is not None:
            basis, charged = charge
            by_basis[basis] = by_basis.get(basis, 0.0) + charged
            unpriced -= 1
    if prices.usd_per_hour is not None:
        if not by_basis:
            unpriced = 0  # the hours are all there is to pay
        by_basis["hours"] = prices.usd_per_hour * run_ns / _NS_PER_HOUR
    usd = sum(by_basis.values()) if by_basis else None
    tokens = sum(call.count("output_tokens") or 0 for call in calls if call.status == "ok")
    return ModelCost(
        model=model,
        basis=tuple(by_basis),
        usd=usd,
        unpriced_calls=unpriced,
        output_tokens=tokens,
        usd_per_million_output_tokens=_per_million(usd, tokens),
    )


def _charge(call: Call, prices: _Prices) -> tuple[PriceBasis, float] | None:
    """What one call cost by its tokens: by the settings, else by the list.

    One price of the two alone tells nothing: what it gives would pass for the whole.
    """
    if call.status != "ok":
        return None
    asked, answered = call.count("input_tokens"), call.count("output_tokens")
    per_asked = prices.usd_per_million_input_tokens
    per_answered = prices.usd_per_million_output_tokens
    if per_asked is None or per_answered is None:
        listed = _number(call.attributes.get("cost_usd"))
        return None if listed is None else ("price list", listed)
    if asked is None or answered is None:
        return None
    return "tokens", (asked * per_asked + answered * per_answered) / 1e6


def _per_million(usd: float | None, tokens: int) -> float | None:
    return usd / tokens * 1e6 if usd is not None and tokens else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
