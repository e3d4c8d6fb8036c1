"""Measures how quickly an endpoint reads and writes, by a run of bursts, for later advice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from harness.advise.data_tables import DeviceSpec
from harness.advise.model_shape import ModelShape
from harness.advise.rates import Factors, Rates, prompt_flops
from harness.errors import InvalidInput, ServerError
from harness.files import cache_folder, write_whole
from harness.graph import Graph
from harness.inference import ChatRequest, Completion, Endpoint, Message, Usage
from harness.log import log_warning
from harness.session.open_run import OpenRun, open_run
from harness.session.settings import Settings
from harness.trace import events
from harness.trace.intervals import length_ns
from harness.trace.records import Interval

# Each is one token in most vocabularies. Prompts have them at random, against prefix caches.
_WORDS: Final = ("time", "way", "year", "day", "man", "world", "life", "hand", "eye", "week")
_TASK: Final = "\n\nWrite a very long story in which all of these words occur, one by one."
_FILE: Final = "machine.json"


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
    """Over all prompts, while any was read; with the queue unless the server reports it."""
    ttft_s: float  # the time of the call that waited longest
    at_once: float  # the mean count of replies that were written at the same moment
    context_tokens: float  # the mean context of these, in the middle of that time
    step_s: float | None
    """The time for a token of each reply, by our clock, while all (or else some) were written."""


async def measure_speed(
    settings: Settings,
    endpoint: Endpoint,
    bursts: Sequence[Burst],
    *,
    environment: Mapping[str, str],
    limit_s: float | None,
) -> tuple[str, list[MeasuredBurst]]:
    """Makes the bursts one after the other; returns the run's id, and those ended in `limit_s`."""
    # Neither another endpoint nor a cache may answer in place of the measured one.
    alone = endpoint.model_copy(update={"fallback": ()})
    only = {"endpoints": {alone.tag: alone}, "roles": {}, "cache": None, "seed": None}
    settings = settings.model_copy(update=only)
    measured: list[MeasuredBurst] = []
    async with open_run(settings, Graph("measure"), environment=environment) as opened:
        # Outside the time limit: loading may take minutes.
        await _answers(opened, alone.tag, Burst(1, 64, 16))
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                for burst in bursts:
                    with opened.trace.span(events.Measure(burst.sequences)):
                        answers = await _answers(opened, alone.tag, burst)
                    measured.append(measured_burst(burst, answers))
    return opened.trace.run_id, measured


Answer = tuple[Completion, Usage, Sequence[int]]
"""A call's reply, its tokens, and when its pieces came, in nanoseconds."""


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
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return [task.result() for task in tasks]


def measured_burst(burst: Burst, answers: Sequence[Answer]) -> MeasuredBurst:
    """The figures of a burst, from all its calls."""
    # 1. Prompts.
    computed = sum(usage.input_tokens - (usage.cached_tokens or 0) for _, usage, _ in answers)
    read_ns = length_ns(
        Interval(start_ns=phase.start_ns, end_ns=phase.end_ns)
        for call, _, _ in answers
        for phase in call.phases
        if phase.name == "prefill"
    )

    # 2. The time in which all replies were written. If it is short, as some waited for a place, the
    #    time in which any was written.
    written = [(usage, pieces_ns) for _, usage, pieces_ns in answers if len(pieces_ns) > 1]
    ends_ns = [pieces_ns[-1] for _, pieces_ns in written] or [0]
    from_ns = max((pieces_ns[0] for _, pieces_ns in written), default=0)
    to_ns = min(ends_ns)
    if (to_ns - from_ns) * 4 < max(ends_ns) - from_ns:
        from_ns = 0
        to_ns = max(ends_ns)

    # 3. The tokens that came in this time.
    tokens = 0.0
    contexts, writing = [], []
    for usage, pieces_ns in written:
        inside = [n for n, ns in enumerate(pieces_ns) if from_ns <= ns <= to_ns]
        if not inside:
            continue
        # The first piece has one token; each of the others may have several.
        piece_tokens = (usage.output_tokens - 1) / (len(pieces_ns) - 1)
        tokens += (len(inside) - 1) * piece_tokens
        contexts.append(usage.input_tokens + (inside[0] + inside[-1]) / 2 * piece_tokens)
        writing.append(Interval(start_ns=pieces_ns[inside[0]], end_ns=pieces_ns[inside[-1]]))
    writing_ns = length_ns(writing)
    is_enough = writing_ns > 0 and tokens >= 8 * len(written)  # fewer tokens show no speed
    at_once = sum(span.duration_ns for span in writing) / writing_ns if is_enough else 0.0
    first_ns = [(call.first_token_ns or call.sent_ns) - call.sent_ns for call, _, _ in answers]
    return MeasuredBurst(
        burst=burst,
        prompt_tokens=computed / len(answers),
        prefill_tokens_per_s=computed * 1e9 / read_ns if read_ns else None,
        ttft_s=max(first_ns) / 1e9,
        at_once=at_once,
        context_tokens=sum(contexts) / max(len(contexts), 1),
        step_s=at_once * writing_ns / tokens / 1e9 if is_enough else None,
    )


_Rate = Annotated[float, Field(gt=0)]


class LearnedRates(BaseModel):
    """The rates that a runtime reached on a device, with models of a family; None if unknown."""

    device: str
    runtime: str
    family: str
    weights_bytes_per_s: _Rate | None
    """The rate of reading weights, with the overhead of a step in it."""
    cache_bytes_per_s: _Rate | None
    flops_per_s: _Rate | None  # the rate that the device would have with weights of 16 bits
    model: str
    run_id: str

    def factors_on(self, device: DeviceSpec) -> Factors:
        """The rates as shares of the device's own, which are measured anew for this machine."""
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
    """The rates that explain calls made one at a time."""
    alone = [burst for burst in bursts if burst.burst.sequences == 1]
    flops = cache = weights = None
    # 1. Compute, by the longest prompt.
    long = max(alone, key=lambda burst: burst.prompt_tokens)
    if long.prefill_tokens_per_s:
        flops = long.prefill_tokens_per_s * prompt_flops(model, round(long.prompt_tokens))
    steps = sorted((burst.context_tokens, burst.step_s) for burst in alone if burst.step_s)
    if steps:
        # 2. The cache, by how much longer a token takes with the longest context than with the
        #    shortest.
        short_context, step_s = steps[0]
        long_context, long_step_s = steps[-1]
        short_bytes = model.sequence_kv_bytes(round(short_context))
        long_bytes = model.sequence_kv_bytes(round(long_context))
        weights_s = step_s
        if long_step_s > step_s and long_bytes > short_bytes:
            cache = (long_bytes - short_bytes) / (long_step_s - step_s)
            weights_s -= short_bytes / cache
        # 3. The weights, by the time that is left of the shortest context's, on a CPU also without
        #    the token's products.
        if flops and not device.is_gpu:
            weights_s -= 2 * model.active_parameters / flops
        # At most four times the device's own speed: if weights are fetched while others are
        # computed, hardly any time is left for them.
        least_s = model.active_bytes / device.memory_bytes_per_s / 4
        weights = model.active_bytes / max(weights_s, least_s)
    if flops and (with_weights := device.flops_with(model.quantization)) and device.flops_per_s:
        flops *= device.flops_per_s / with_weights
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


def predicted_of(measured: MeasuredBurst, rates: Rates) -> dict[str, tuple[float, float]]:
    """Figure → its value by the formulas of `rates`, and the measured one, for a burst."""
    tokens = round(measured.prompt_tokens)
    at_once = max(1, round(measured.at_once))
    step_s = rates.step_s(tokens=round(measured.context_tokens), sequences=at_once)
    figures = {}
    if measured.step_s:
        figures["decode, tokens/s"] = measured.at_once / step_s, measured.at_once / measured.step_s
    prefill_per_s, prefill_s = rates.prefill_tokens_per_s(tokens), rates.prefill_s(tokens)
    if prefill_per_s and prefill_s and measured.prefill_tokens_per_s:
        figures["prefill, tokens/s"] = prefill_per_s, measured.prefill_tokens_per_s
        last_s = measured.burst.sequences * prefill_s + step_s
        figures["TTFT of the last, s"] = last_s, measured.ttft_s
    return figures


_STORED = TypeAdapter(dict[str, LearnedRates])


def learned_factors(environment: Mapping[str, str]) -> dict[str, LearnedRates]:
    """All rates measured on this machine; none, with a warning, if their file is damaged."""
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
    """The latest rates on a device with this or any runtime, of the model's family if possible."""
    candidates = [
        learned
        for learned in learned_factors(environment).values()
        if learned.device == device.name and (runtime or learned.runtime) == learned.runtime
    ]
    # Ids of runs begin with their time.
    return max(candidates, key=lambda row: (row.family == model.family, row.run_id), default=None)


def keep_factors(learned: LearnedRates, environment: Mapping[str, str]) -> None:
    """Stores rates in place of earlier ones with the same key; warns if they cannot be written."""
    key = f"{learned.device} {learned.runtime} {learned.family}"
    stored = learned_factors(environment) | {key: learned}
    try:
        write_whole(cache_folder(environment) / _FILE, _STORED.dump_json(stored, indent=2))
    except InvalidInput as error:
        log_warning("later advice will not use these rates", code=error.code, error=str(error))
