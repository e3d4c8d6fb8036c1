"""Measures how quickly an endpoint reads and writes, by a run of bursts, for later advice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from pydantic import BaseModel, PositiveFloat, TypeAdapter, ValidationError

from harness.advise.data_tables import DeviceSpec
from harness.advise.model_shape import ModelShape
from harness.advise.rates import Factors, Rates, prompt_flops
from harness.errors import InvalidInput, ServerError
from harness.files import cache_folder, write_whole
from harness.graph import Graph
from harness.inference import ChatRequest, Completion, Endpoint, Message, Usage
from harness.log import log_warning
from harness.session.open_run import OpenRun, RunPlan, open_run
from harness.session.settings import Settings
from harness.trace import events
from harness.trace.intervals import length_ns
from harness.trace.records import Interval

# Each word is one token in most vocabularies. Their order is random, so that a prefix cache has no
# part of a prompt.
_WORDS: Final = ("time", "way", "year", "day", "man", "world", "life", "hand", "eye", "week")
_TASK: Final = "\n\nWrite a very long story in which all of these words occur, one by one."
_FILE: Final = "machine.json"
# A call's reply, its tokens, and when its pieces came, in nanoseconds.
Answer = tuple[Completion, Usage, Sequence[int]]
_FEWEST_TOKENS: Final = 8  # if a burst shows fewer tokens for each reply, it shows no speed
_MOST_OF_MEMORY: Final = 4  # the highest rate of weights to learn, in bandwidths of the device


class Burst(NamedTuple):
    """Calls that are made at once, with prompts of about so many tokens each."""

    sequences: int
    prompt_tokens: int
    output_tokens: int = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBurst:
    """How a burst was answered. A figure is None if it could not be seen."""

    burst: Burst
    prompt_tokens: float  # the mean over the calls, without tokens from a cache
    prefill_tokens_per_s: float | None
    """Over the time in which any prompt was read; with the queue unless the server reports it."""
    ttft_s: float  # the time of the call that waited longest
    at_once: float  # the mean count of replies that were written at the same moment
    context_tokens: float  # the mean context of the replies, in the middle of `_window_ns`
    step_s: float | None  # seconds for one token of each reply under way, by this machine's clock


async def measure_speed(
    settings: Settings,
    endpoint: Endpoint,
    bursts: Sequence[Burst],
    *,
    environment: Mapping[str, str],
    limit_s: float | None,
) -> tuple[str, list[MeasuredBurst]]:
    """Makes the bursts in turn; returns the run's id and the bursts that ended within `limit_s`."""
    # Neither another endpoint nor a cache may answer in place of the measured one.
    alone = endpoint.model_copy(update={"fallback": ()})
    only = {"endpoints": {alone.tag: alone}, "roles": {}, "cache": None, "seed": None}
    settings = settings.model_copy(update=only)
    measured: list[MeasuredBurst] = []
    plan = RunPlan(graph=Graph("measure"), settings=settings)
    async with open_run(plan, environment=environment) as opened:
        # This call loads the model. It has no time limit, since loading may take minutes.
        await _answers(opened, alone.tag, Burst(1, 64, 16))
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                for burst in bursts:
                    with opened.trace.span(events.Measure(burst.sequences)):
                        answers = await _answers(opened, alone.tag, burst)
                    measured.append(measured_burst(burst, answers))
    return opened.trace.run_id, measured


async def _answers(opened: OpenRun, tag: str, burst: Burst) -> list[Answer]:
    async def answer() -> Answer:
        words = random.choices(_WORDS, k=burst.prompt_tokens)  # noqa: S311
        pieces_ns: list[int] = []
        request = ChatRequest(
            model=tag,
            messages=(Message("user", " ".join(words) + _TASK),),
            max_output_tokens=burst.output_tokens,
            # All replies have the same length, or a burst would thin out at its end.
            ignore_eos=True,
            on_piece=lambda: pieces_ns.append(opened.trace.now_ns()),
        )
        reply = await opened.client.chat(request)
        if reply.usage is None:
            problem = "the server reports no token counts, so its speed cannot be measured"
            raise ServerError(problem, endpoint=tag)
        return reply, reply.usage, pieces_ns

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(answer()) for _ in range(burst.sequences)]
    except ExceptionGroup as failed:  # callers expect the error of one call
        raise failed.exceptions[0] from failed
    return [task.result() for task in tasks]


def measured_burst(burst: Burst, answers: Sequence[Answer]) -> MeasuredBurst:
    """The figures of a burst, from all its calls."""
    computed = sum(usage.input_tokens - (usage.cached_tokens or 0) for _, usage, _ in answers)
    phases = [phase for call, _, _ in answers for phase in call.phases if phase.name == "prefill"]
    prefill_ns = length_ns([Interval(start_ns=p.start_ns, end_ns=p.end_ns) for p in phases])
    ttfts_ns = [(call.first_token_ns or call.sent_ns) - call.sent_ns for call, _, _ in answers]
    at_once, context_tokens, step_s = _decoding(answers)
    return MeasuredBurst(
        burst=burst,
        prompt_tokens=computed / len(answers),
        prefill_tokens_per_s=computed * 1e9 / prefill_ns if prefill_ns else None,
        ttft_s=max(ttfts_ns) / 1e9,
        at_once=at_once,
        context_tokens=context_tokens,
        step_s=step_s,
    )


def _decoding(answers: Sequence[Answer]) -> tuple[float, float, float | None]:
    """`at_once`, `context_tokens` and `step_s` of a burst; 0 and None if too few tokens came."""
    # A reply that came in one piece shows no time between tokens.
    written = [(usage, pieces_ns) for _, usage, pieces_ns in answers if len(pieces_ns) > 1]
    if not written:
        return 0.0, 0.0, None
    start_ns, end_ns = _window_ns([pieces_ns for _, pieces_ns in written])
    tokens = 0.0
    contexts: list[float] = []
    spans: list[Interval] = []
    for usage, pieces_ns in written:
        inside = [number for number, ns in enumerate(pieces_ns) if start_ns <= ns <= end_ns]
        if not inside:
            continue
        first, last = inside[0], inside[-1]
        # The first piece of a reply is one token; each further piece may be several.
        tokens_of_piece = (usage.output_tokens - 1) / (len(pieces_ns) - 1)
        tokens += (last - first) * tokens_of_piece
        contexts.append(usage.input_tokens + (first + last) / 2 * tokens_of_piece)
        spans.append(Interval(start_ns=pieces_ns[first], end_ns=pieces_ns[last]))
    context_tokens = sum(contexts) / len(contexts)
    decode_ns = length_ns(spans)
    if not decode_ns or tokens < _FEWEST_TOKENS * len(written):
        return 0.0, context_tokens, None
    at_once = sum(span.duration_ns for span in spans) / decode_ns
    # A step gives each reply under way one token, so steps = tokens / at_once.
    return at_once, context_tokens, at_once * decode_ns / tokens / 1e9


def _window_ns(written: Sequence[Sequence[int]]) -> tuple[int, int]:
    """The window in which all replies are written, from the times of each reply's pieces.

    From the last reply's first piece to the first reply's last piece; if that is under a quarter of
    the time to the very last piece, since some calls waited for a place, everything.
    """
    start_ns = max(pieces_ns[0] for pieces_ns in written)
    end_ns = min(pieces_ns[-1] for pieces_ns in written)
    last_ns = max(pieces_ns[-1] for pieces_ns in written)
    if end_ns - start_ns < (last_ns - start_ns) / 4:
        return min(pieces_ns[0] for pieces_ns in written), last_ns
    return start_ns, end_ns


class LearnedRates(BaseModel):
    """The rates that a runtime reached on a device with a model; a rate is None if unknown."""

    device: str
    runtime: str
    family: str
    weights_bytes_per_s: PositiveFloat | None  # all overhead of a step counts as reading, too
    cache_bytes_per_s: PositiveFloat | None
    flops_per_s: PositiveFloat | None  # that the device would reach with weights of 16 bits
    model: str
    run_id: str

    def factors_on(self, device: DeviceSpec) -> Factors:
        """The rates as shares of the device's limits; 1 for an unknown rate."""
        memory, flops = device.memory_bytes_per_s, device.flops_per_s
        return Factors(
            bandwidth=self.weights_bytes_per_s / memory if self.weights_bytes_per_s else 1.0,
            compute=self.flops_per_s / flops if self.flops_per_s and flops else 1.0,
            cache=self.cache_bytes_per_s and self.cache_bytes_per_s / memory,
        )


def learn(
    model: ModelShape,
    device: DeviceSpec,
    bursts: Sequence[MeasuredBurst],
    *,
    runtime: str,
    run_id: str,
) -> LearnedRates:
    """The rates that explain the bursts of a single call, of which there is at least one."""
    alone = [burst for burst in bursts if burst.burst.sequences == 1]
    longest = max(alone, key=lambda burst: burst.prompt_tokens)
    flops = None
    if longest.prefill_tokens_per_s:
        flops = longest.prefill_tokens_per_s * prompt_flops(model, round(longest.prompt_tokens))
    # A CPU's step also takes the time of the token's products; a GPU computes while it reads.
    computing_s = 2 * model.active_parameters / flops if flops and not device.is_gpu else 0.0
    weights, cache = _reading_rates(model, device, alone, computing_s=computing_s)
    flops_with_weights = device.flops_with(model.quantization)
    # Stored for weights of 16 bits, since `factors_on` divides by the device's rate for these.
    if flops and flops_with_weights and device.flops_per_s:
        flops *= device.flops_per_s / flops_with_weights
    return LearnedRates(
        device=device.name,
        runtime=runtime,
        family=model.family,
        weights_bytes_per_s=weights,
        flops_per_s=flops,
        cache_bytes_per_s=cache,
        model=model.title,
        run_id=run_id,
    )


def _reading_rates(
    model: ModelShape, device: DeviceSpec, alone: Sequence[MeasuredBurst], *, computing_s: float
) -> tuple[float | None, float | None]:
    """Bytes a second of weights, and of KV caches; a rate is None if the bursts do not show it."""
    steps = sorted((burst.context_tokens, burst.step_s) for burst in alone if burst.step_s)
    if not steps:
        return None, None
    # 1. The cache, by how much longer a step takes with the longest context than with the shortest.
    short_context, short_step_s = steps[0]
    long_context, long_step_s = steps[-1]
    short_bytes = model.sequence_kv_bytes(round(short_context))
    long_bytes = model.sequence_kv_bytes(round(long_context))
    cache = None
    weights_s = short_step_s
    if long_step_s > short_step_s and long_bytes > short_bytes:
        cache = (long_bytes - short_bytes) / (long_step_s - short_step_s)
        weights_s -= short_bytes / cache
    # 2. The weights, by what is left of the shortest step without its cache and its products.
    weights_s -= computing_s
    # Hardly anything is left, or less than nothing, if a server computes while it reads.
    least_s = model.active_bytes / device.memory_bytes_per_s / _MOST_OF_MEMORY
    return model.active_bytes / max(weights_s, least_s), cache


def predicted_of(measured: MeasuredBurst, rates: Rates) -> dict[str, tuple[float, float]]:
    """Figure → its value by the formulas of `rates`, and its measured value, for a burst."""
    tokens = round(measured.prompt_tokens)
    at_once = max(1, round(measured.at_once))
    step_s = rates.step_s(tokens=round(measured.context_tokens), sequences=at_once)
    figures = {}
    if measured.step_s:
        figures["decode, tokens/s"] = measured.at_once / step_s, measured.at_once / measured.step_s
    prefill_per_s = rates.prefill_tokens_per_s(tokens)
    prefill_s = rates.prefill_s(tokens)
    if prefill_per_s and prefill_s and measured.prefill_tokens_per_s:
        figures["prefill, tokens/s"] = (prefill_per_s, measured.prefill_tokens_per_s)
        # Prompts that come at once are read one after the other.
        last_s = measured.burst.sequences * prefill_s + step_s
        figures["TTFT of the last, s"] = (last_s, measured.ttft_s)
    return figures


_STORED = TypeAdapter(dict[str, LearnedRates])


def learned_rates(environment: Mapping[str, str]) -> dict[str, LearnedRates]:
    """Key → rates, all that were measured on this machine; empty if their file is damaged."""
    path = cache_folder(environment) / _FILE
    try:
        return _STORED.validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as error:
        problem = "what was measured of this machine cannot be read, and is not used; measure again"
        log_warning(problem, code="advise.factors-unreadable", path=str(path), error=str(error))
        return {}


def learned_for(
    environment: Mapping[str, str], device: DeviceSpec, model: ModelShape, *, runtime: str | None
) -> LearnedRates | None:
    """The latest rates on a device, with any runtime if None, of the model's family if possible."""
    candidates = [
        learned
        for learned in learned_rates(environment).values()
        if learned.device == device.name and runtime in {None, learned.runtime}
    ]
    # The id of a run begins with its time, so the highest is the latest.
    return max(candidates, key=lambda row: (row.family == model.family, row.run_id), default=None)


def keep_rates(learned: LearnedRates, environment: Mapping[str, str]) -> None:
    """Stores rates in place of earlier ones with the same key; warns if they cannot be written."""
    key = f"{learned.device} {learned.runtime} {learned.family}"
    stored = learned_rates(environment) | {key: learned}
    try:
        write_whole(cache_folder(environment) / _FILE, _STORED.dump_json(stored, indent=2))
    except InvalidInput as error:
        log_warning("later advice will not use these rates", code=error.code, error=str(error))
