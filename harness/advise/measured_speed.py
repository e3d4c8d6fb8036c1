"""How quickly an endpoint reads and writes, by bursts of calls: a run, kept for later advice."""

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

# A token each in most vocabularies; in any order, so that no prefix cache has them.
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
    prompt_tokens: float
    """The mean over the calls, without tokens from a cache."""
    prefill_tokens_per_s: float | None
    """Over all prompts, while any was read; with its queue unless the server reports it."""
    ttft_s: float
    """The time of the call that waited longest."""
    at_once: float
    context_tokens: float
    """The context of each such call, in the middle of the time when all were written."""
    step_s: float | None
    """How long a token of each took, by our clock, while all were written, or at least some."""


async def measure_speed(
    settings: Settings,
    endpoint: Endpoint,
    bursts: Sequence[Burst],
    *,
    environment: Mapping[str, str],
    limit_s: float | None,
) -> tuple[str, list[MeasuredBurst]]:
    """The run's id, and the bursts, one after the other, that ended within `limit_s`."""
    # No other endpoint and no cache may answer in place of the measured one.
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
            # All replies of one length, or a burst would thin out at its end.
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
    """What the calls of one burst say together."""
    computed = sum(usage.input_tokens - (usage.cached_tokens or 0) for _, usage, _ in answers)
    read_ns = length_ns(
        Interval(start_ns=phase.start_ns, end_ns=phase.end_ns)
        for call, _, _ in answers
        for phase in call.phases
        if phase.name == "prefill"
    )

    # Replies are compared while all are written. If that hardly was, some waited for a place.
    written = [(usage, at) for _, usage, at in answers if len(at) > 1]
    ends_ns = [at[-1] for _, at in written] or [0]
    from_ns, to_ns = max((at[0] for _, at in written), default=0), min(ends_ns)
    if (to_ns - from_ns) * 4 < max(ends_ns) - from_ns:
        from_ns, to_ns = 0, max(ends_ns)
    tokens = 0.0
    contexts, writing = [], []
    for usage, at in written:
        inside = [n for n, ns in enumerate(at) if from_ns <= ns <= to_ns]
        if not inside:
            continue
        # The first piece has one token; of the others, each may have several.
        piece_tokens = (usage.output_tokens - 1) / (len(at) - 1)
        tokens += (len(inside) - 1) * piece_tokens
        contexts.append(usage.input_tokens + (inside[0] + inside[-1]) / 2 * piece_tokens)
        writing.append(Interval(start_ns=at[inside[0]], end_ns=at[inside[-1]]))
    writing_ns = length_ns(writing)
    is_enough = writing_ns > 0 and tokens >= 8 * len(written)  # fewer have no speed
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
    """What one runtime reached on one device, with models of one family. None is unknown."""

    device: str
    runtime: str
    family: str
    weights_bytes_per_s: _Rate | None
    """The rate of reading weights, with the overhead of a step in it."""
    cache_bytes_per_s: _Rate | None
    flops_per_s: _Rate | None
    """The rate that it would have with weights of 16 bits."""
    model: str
    run_id: str

    def factors_on(self, device: DeviceSpec) -> Factors:
        """The rates as shares of the device's, which for this machine are measured each time."""
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
    # Compute by the longest prompt.
    long = max(alone, key=lambda burst: burst.prompt_tokens)
    if long.prefill_tokens_per_s:
        flops = long.prefill_tokens_per_s * prompt_flops(model, round(long.prompt_tokens))
    steps = sorted((burst.context_tokens, burst.step_s) for burst in alone if burst.step_s)
    if steps:
        # The cache by how much longer a token takes with the longest context than with the
        # shortest. What is left of the shortest's time is the weights' reading, on a CPU without
        # the token's products.
        (few, rest_s), (many, slow_s) = steps[0], steps[-1]
        few_bytes, many_bytes = (model.sequence_kv_bytes(round(tokens)) for tokens in (few, many))
        if slow_s > rest_s and many_bytes > few_bytes:
            cache = (many_bytes - few_bytes) / (slow_s - rest_s)
            rest_s -= few_bytes / cache
        if flops and not device.is_gpu:
            rest_s -= 2 * model.active_parameters / flops
        # Four times the device's own speed at most: where weights are fetched meanwhile, hardly
        # anything is left of the time.
        least_s = model.active_bytes / device.memory_bytes_per_s / 4
        weights = model.active_bytes / max(rest_s, least_s)
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
    """Figure → `(predicted, measured)`: the arithmetic's value for a burst, and the burst's."""
    tokens, at_once = round(measured.prompt_tokens), max(1, round(measured.at_once))
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
    """All that was measured on this machine; nothing, with a warning, if its file is damaged."""
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
    """What was measured there of the model's family, with this runtime or any; else of another."""
    candidates = [
        learned
        for learned in learned_factors(environment).values()
        if learned.device == device.name and (runtime or learned.runtime) == learned.runtime
    ]
    # Ids of runs begin with their time: of equals, the latest.
    return max(candidates, key=lambda row: (row.family == model.family, row.run_id), default=None)


def keep_factors(learned: LearnedRates, environment: Mapping[str, str]) -> None:
    """Writes them down, in place of those of the same before; warns if it cannot."""
    key = f"{learned.device} {learned.runtime} {learned.family}"
    stored = learned_factors(environment) | {key: learned}
    try:
        write_whole(cache_folder(environment) / _FILE, _STORED.dump_json(stored, indent=2))
    except InvalidInput as error:
        log_warning("later advice will not use these rates", code=error.code, error=str(error))
