"""The model calls of a run: latencies, tokens, and cost as far as prices are known.

A price is by the token, by the hour, or as a provider lists it. An unknown figure is None, never 0.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from sys import intern
from typing import Literal, TypeVar

from harness.trace.event_forms import without_fields
from harness.trace.events import Chat, Embed, EndpointEvent, ReplyAgain, Request, place_of
from harness.trace.records import Interval, SpanRecord

PHASES = ("overhead", "queue", "load", "prefill", "decode")
"""The phases of a call, in order of time."""

UNRELIABLE = "unreliable"
"""The source of a phase whose beginning or end the process saw too late, since it stood still; and
the attribute of a call that lists its figures with that error."""

_NS_PER_HOUR = 3_600_000_000_000

T = TypeVar("T")
K = TypeVar("K")
N = TypeVar("N", int, float)

PriceBasis = Literal["tokens", "price list", "hours"]
"""The prices in the endpoint's settings, with the cached part of prompts at full price; the price
list that the call was looked up in when it was made; the machine's price for the run's time."""


class Call(Chat, name=Chat.NAME):
    """One attempt to call a model, with the phases inside it.

    Unreliable figures are None; `attributes` are without them, and without label and track.
    """

    node: str | None = None
    # Its time by phase, as far as known.
    phases: Mapping[str, tuple[Interval, ...]] = field(default_factory=dict)
    # The part of its queue spent waiting for a turn among calls to the same model.
    turns: tuple[Interval, ...] = ()
    room: tuple[Interval, ...] = ()  # the part of its queue spent waiting for room in memory
    node_span: int | None = None  # the outermost node call around it; None outside of nodes
    unreliable: frozenset[str] = frozenset()  # phases and figures that the process saw too late

    def phase_ns(self, name: str) -> int:
        """The total length of a phase; 0 if it did not happen."""
        total_ns = 0
        for part in self.phases.get(name, ()):
            total_ns += part.end_ns - part.start_ns
        return total_ns

    @property
    def decode_tokens(self) -> int | None:
        """Tokens of the reply that its decode phase has the time of; None if not counted."""
        if self.output_tokens is None:
            return None
        # The phase lasts from the first token in the stream to the last, so the first is not of it.
        return max(0, self.output_tokens - (self.unstreamed_tokens or 0) - 1)

    @property
    def was_cut(self) -> bool:
        """Whether its reply ended at a limit of its length."""
        return self.finish_reason == "length"

    @property
    def has_unreliable_latency(self) -> bool:
        """Whether a figure, not only a phase, is missing because the process stood still."""
        return not self.unreliable.issubset({"overhead", "queue", "load", "prefill"})


def calls_of(spans: Iterable[SpanRecord]) -> list[Call]:
    """Every call in a run's spans, in the order they began; some two kilobytes each."""
    # All of these have the id of a span as key.
    nodes: dict[int, str] = {}  # → the node that it is in
    node_spans: dict[int, int] = {}  # → the span of the outermost node call around it
    calls: dict[int, Call] = {}
    phases: dict[int, dict[str, tuple[Interval, ...]]] = {}  # call → name of a phase → its times
    waits: dict[tuple[int, str], tuple[Interval, ...]] = {}  # (call, `room` or `turns`) → its times
    unreliable: dict[int, set[str]] = {}  # call → its phases and figures in doubt
    # One pass is enough: a span comes after its parent, and a call's phases after the call.
    for span in spans:
        # 1. A phase of a call; most spans are.
        if span.name in PHASES:
            if span.parent in phases:
                if span.attributes.get("source") == UNRELIABLE:
                    unreliable.setdefault(span.parent, set()).add(span.name)
                interval = Interval(start_ns=span.start_ns, end_ns=span.end_ns)
                call_phases, name = phases[span.parent], intern(span.name)
                call_phases[name] = (*call_phases.get(name, ()), interval)
                if place := place_of(span.attributes):
                    key = span.parent, "room" if place == "memory" else "turns"
                    waits[key] = (*waits.get(key, ()), interval)
            continue
        # 2. The node call that it lies in.
        node = span.attributes.get("node") or (span.parent and nodes.get(span.parent))
        if node:
            nodes[span.id] = str(node)
            # The parent's if it has one, so that spans in nested node calls have the outermost.
            node_spans[span.id] = node_spans.get(span.parent or 0, span.id)
        # 3. A call, whose phases are still to come.
        if span.name == Chat.NAME:
            phases[span.id] = {}
            doubtful = span.attributes.get(UNRELIABLE)
            if isinstance(doubtful, list | tuple):
                unreliable[span.id] = {*map(str, doubtful)}
            # A figure in doubt is left out here, so that it is unknown to every reader.
            left_out = {"label", "track", *unreliable.get(span.id, ())}
            attributes = {k: value for k, value in span.attributes.items() if k not in left_out}
            calls[span.id] = Call.read(
                span._replace(attributes=attributes),
                attributes=without_fields(Call, attributes),
                node=nodes.get(span.id),
                phases=phases[span.id],
                node_span=node_spans.get(span.id),
            )
    # 4. What was known only from the phases, after the call was read.
    for (call_id, name), times in waits.items():
        calls[call_id].learn(**{name: times})
    for call_id, figures in unreliable.items():
        calls[call_id].learn(unreliable=frozenset(figures))
    return [*calls.values()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Percentiles of durations.

    The 95th and the 99th are by nearest rank: the smallest value that at least that many of 100 do
    not exceed. With fewer than 20 values, both are None.
    """

    count: int
    p50_ns: int  # the median, as everywhere: of an even number of values, between the middle two
    p95_ns: int | None
    p99_ns: int | None
    max_ns: int


LEAST_FOR_TAILS = 20  # fewest values for percentiles beside the median


def percentiles_of(values_ns: Iterable[int | None]) -> Percentiles | None:
    """The percentiles of the known values; None if there are none."""
    values = sorted(value for value in values_ns if value is not None)
    if not values:
        return None
    has_tail = len(values) >= LEAST_FOR_TAILS
    return Percentiles(
        count=len(values),
        p50_ns=round(statistics.median(values)),
        p95_ns=_nearest_rank(values, 95) if has_tail else None,
        p99_ns=_nearest_rank(values, 99) if has_tail else None,
        max_ns=values[-1],
    )


def _nearest_rank(ascending: list[int], percent: int) -> int:
    # The rank rounded up, in whole numbers: 0.95 is no fraction that a float can hold.
    rank = -(-percent * len(ascending) // 100)
    return ascending[rank - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGroup:
    """Some of a run's calls.

    Latencies and the decoding speed cover the calls that a model answered well. Tokens also count
    those that came before a call failed or was cancelled, as far as known. The times in `…_ns` are
    sums over all attempts, so parallel calls each count.
    """

    name: str | None  # the model's tag, the node or the role; None for calls that have none
    calls: int  # all attempts
    refused: int  # calls that a limit of the run did not let begin; in no other figure
    failed: int
    cancelled: int
    unfinished: int  # attempts that were under way when the run was killed
    from_cache: int  # calls that an earlier call's reply answered: no model was asked
    answered_by: Mapping[str, int]  # name of the model in the reply → answered calls
    cut: int  # replies cut at a limit of output or context
    uncounted: int  # answered calls whose server counted no tokens: their tokens are in no figure
    unreliable: int  # calls whose latencies are in no figure, since the process stood still
    ttft: Percentiles | None  # time to first token, without waits before the request is sent
    itl_mean: Percentiles | None  # inter-token latency, of the calls' means
    itl_max_ns: int | None  # the longest wait between two tokens of one reply
    duration: Percentiles | None
    input_tokens: int  # prompt tokens, cached ones included
    cached_tokens: int | None  # prompt tokens from a prefix cache; None if never reported
    cached_share: float | None  # from 0 to 1, of the calls whose server reports it
    # By the providers' price lists, minus the cost of writing to their caches; None if unknown.
    cache_saved_usd: float | None
    output_tokens: int  # completion tokens, reasoning included
    draft_tokens: int | None  # proposed by a draft model; None if never reported
    accepted_tokens: int | None  # proposed tokens that the model accepted
    accepted_share: float | None  # the accepted share, from 0 to 1; None if nothing was proposed
    advisory_schemas: int  # calls whose schema was only described in the prompt
    ignored_schemas: int  # calls whose schema the server ignored
    dropped: tuple[str, ...]  # fields that the model or its server refuses, left out of calls
    # Tokens after the first, over their time; without reasoning that was not streamed.
    decode_tokens_per_s: float | None
    # The part around the server's engine: client, network, front end. If the server does not report
    # both its queue and its prefill, it is included in one of them.
    overhead_ns: int
    queue_ns: int  # waits for a place; a wait that a server does not report is in prefill
    load_ns: int
    prefill_ns: int
    decode_ns: int


def grouped(items: Iterable[T], by: Callable[[T], K]) -> dict[K, list[T]]:
    """Key → the items for which `by` returns it, in their order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(by(item), []).append(item)
    return groups


def group_calls(
    calls: Iterable[Call], by: Callable[[Call], str | None], *, whole: CallGroup | None = None
) -> tuple[CallGroup, ...]:
    """A group for each name that `by` returns, in order; `whole` is that of all calls, if known."""
    groups = grouped(calls, by)
    # The only group has the figures of `whole`, which take long to compute.
    if whole and len(groups) == 1:
        return (replace(whole, name=next(iter(groups))),)
    return tuple(call_group(members, name=name) for name, members in groups.items())


def answered_by_model(calls: Iterable[Call]) -> dict[str, list[Call]]:
    """Tag of an endpoint → the calls that its model answered."""
    answered = (call for call in calls if call.status == "ok" and not call.from_cache)
    return grouped(answered, by=lambda call: call.model)


def call_group(calls: Sequence[Call], *, name: str | None = None) -> CallGroup:
    """The figures of these calls; calls that were refused are only counted."""
    refused = sum(call.was_refused for call in calls)
    calls = [call for call in calls if not call.was_refused]
    asked = [call for call in calls if not call.from_cache]
    done = [call for call in asked if call.status == "ok"]
    statuses = [call.status for call in calls]
    # The share is of the calls whose server reports it.
    known_prompt_tokens = sum(c.input_tokens or 0 for c in done if c.cached_tokens is not None)
    cached = known_sum(call.cached_tokens for call in done)
    drafted = known_sum(call.draft_tokens for call in done)
    accepted = known_sum(call.accepted_tokens for call in done)
    schemas = [call.schema for call in done]
    return CallGroup(
        name=name,
        calls=len(calls),
        refused=refused,
        failed=statuses.count("error"),
        cancelled=statuses.count("cancelled"),
        unfinished=statuses.count("unfinished"),
        from_cache=sum(call.from_cache for call in calls),
        answered_by=Counter(call.model_id for call in done if call.model_id),
        cut=sum(call.was_cut for call in done),
        uncounted=sum(call.output_tokens is None for call in done),
        unreliable=sum(call.has_unreliable_latency for call in done),
        ttft=percentiles_of(call.ttft_ns for call in done),
        itl_mean=percentiles_of(call.itl_mean_ns for call in done),
        itl_max_ns=max(filter(None, (call.itl_max_ns for call in done)), default=None),
        duration=percentiles_of(call.duration_ns for call in done),
        input_tokens=sum(call.charged_input_tokens or 0 for call in asked),
        cached_tokens=cached,
        cached_share=_share(cached, known_prompt_tokens),
        cache_saved_usd=known_sum(call.cache_saved_usd for call in done),
        output_tokens=sum(call.output_tokens or 0 for call in asked),
        draft_tokens=drafted,
        accepted_tokens=accepted,
        accepted_share=_share(accepted, drafted),
        advisory_schemas=schemas.count("advisory"),
        ignored_schemas=schemas.count("ignored"),
        dropped=tuple(dict.fromkeys(name for call in done for name in call.dropped)),
        decode_tokens_per_s=_decode_rate(done),
        **{f"{name}_ns": sum(call.phase_ns(name) for call in calls) for name in PHASES},
    )


def _decode_rate(done: Sequence[Call]) -> float | None:
    """Decoded tokens a second of the calls whose decode phase is known; None without such calls."""
    total_ns = total_tokens = 0
    for call in done:
        decode_ns, tokens = call.phase_ns("decode"), call.decode_tokens
        if decode_ns > 0 and "decode" not in call.unreliable and tokens is not None:
            total_ns += decode_ns
            total_tokens += tokens
    return total_tokens / (total_ns / 1e9) if total_ns else None


def known_sum(figures: Iterable[N | None]) -> N | None:
    """The sum of the figures that are known, such as counts by a server; None if none is."""
    known = [figure for figure in figures if figure is not None]
    return sum(known) if known else None


def _share(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    """The cost of one model."""

    model: str
    basis: tuple[PriceBasis, ...]  # the source of the price; empty if unknown
    usd: float | None
    unpriced_calls: int  # calls that failed on the way, or are not in the price list
    output_tokens: int
    # None when either is unknown or there are no tokens.
    usd_per_million_output_tokens: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """The cost of a run."""

    models: tuple[ModelCost, ...]  # in the order of their first calls
    usd: float | None  # dollars, of all models whose cost is known; None if no cost is known
    usd_per_million_output_tokens: float | None  # for the output tokens of those models
    unpriced_models: tuple[str, ...]


def cost_of(
    calls: Sequence[Request], endpoints: Iterable[EndpointEvent], *, run_ns: int
) -> RunCost:
    """Adds up what calls and machines cost.

    A machine is paid for the whole run, busy or not, if it was called at all, and once for each
    endpoint with a price: of two endpoints on one machine, only one should have it. The calls are
    all of a run's, embeddings included, but not replies from the cache.
    """
    prices = {price.model: price for price in endpoints}
    models = tuple(
        _model_cost(model, group, prices.get(model), run_ns=run_ns)
        for model, group in grouped(calls, by=lambda call: call.model).items()
    )
    priced = [m for m in models if m.usd is not None]
    # None and not 0: a run of unknown price is not free.
    usd = known_sum(m.usd for m in models)
    return RunCost(
        models=models,
        usd=usd,
        usd_per_million_output_tokens=_per_million(usd, sum(m.output_tokens for m in priced)),
        unpriced_models=tuple(m.model for m in models if m.usd is None),
    )


def charges_of(calls: Iterable[Request], endpoints: Iterable[EndpointEvent]) -> dict[int, float]:
    """What calls cost by their tokens, in dollars by span id; without those of unknown price."""
    usd_of = pricing(endpoints)
    return {call.id: usd for call in calls if (usd := usd_of(call)) is not None}


def pricing(
    endpoints: Iterable[EndpointEvent],
) -> Callable[[Request | ReplyAgain], float | None]:
    """A function for what a call cost by its tokens, in dollars; None if its price is unknown."""
    prices = {price.model: price for price in endpoints}

    def usd_of(call: Request | ReplyAgain) -> float | None:
        charge = _charge(call, prices.get(call.model))
        return None if charge is None else charge[1]

    return usd_of


def _model_cost(
    model: str, calls: Sequence[Request], prices: EndpointEvent | None, *, run_ns: int
) -> ModelCost:
    usd_by_basis: dict[PriceBasis, float] = {}
    unpriced = sum(call.was_sent and not call.was_free for call in calls)
    for call in calls:
        charge = _charge(call, prices)
        if charge is not None:
            basis, usd_of_call = charge
            usd_by_basis[basis] = usd_by_basis.get(basis, 0.0) + usd_of_call
            unpriced -= 1
    if prices is not None and prices.usd_per_hour is not None:
        if not usd_by_basis:
            unpriced = 0  # The hours are all there is to pay.
        usd_by_basis["hours"] = prices.usd_per_hour * run_ns / _NS_PER_HOUR
    usd = sum(usd_by_basis.values()) if usd_by_basis else None
    tokens = sum(call.output_tokens or 0 for call in calls if call.status == "ok")
    return ModelCost(
        model=model,
        basis=tuple(usd_by_basis),
        usd=usd,
        unpriced_calls=unpriced,
        output_tokens=tokens,
        usd_per_million_output_tokens=_per_million(usd, tokens),
    )


def _charge(
    call: Request | ReplyAgain, prices: EndpointEvent | None
) -> tuple[PriceBasis, float] | None:
    """What one call cost by its tokens, in dollars: by the settings, else by the price list."""
    prompt_tokens, reply_tokens = call.input_tokens, call.output_tokens
    if isinstance(call, Embed):
        reply_tokens = 0
    elif isinstance(call, Request) and prompt_tokens is None:
        prompt_tokens, reply_tokens = call.prompt_estimate, reply_tokens or 0
    per_input = prices.usd_per_million_input_tokens if prices else None
    per_output = prices.usd_per_million_output_tokens if prices else None
    # One of the two prices alone is ignored: it would give a part of the cost as the whole.
    if per_input is None or per_output is None:
        return None if call.cost_usd is None else ("price list", call.cost_usd)
    if prompt_tokens is None or reply_tokens is None:
        return None
    return "tokens", (prompt_tokens * per_input + reply_tokens * per_output) / 1e6


def _per_million(usd: float | None, tokens: int) -> float | None:
    return usd / tokens * 1e6 if usd is not None and tokens else None
