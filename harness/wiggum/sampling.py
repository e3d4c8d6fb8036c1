"""Candidates: one call, made several times, each time with a seed of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from harness.errors import LASTING, HarnessError, InferenceError, LimitReached, ReplyEmpty
from harness.inference import ChatRequest, Completion, Message
from harness.rubric import Ask
from harness.trace import Tracer, events
from harness.wiggum.ratchet import Candidate

# The distance between the seeds of two candidates; a loop has fewer rounds.
_SEED_STEP = 1_000
# The distance between the first seeds of loops in runs with successive seeds.
_SEEDS_OF_A_LOOP = 1_000 * _SEED_STEP
# The temperature of all candidates but the first, so that they differ.
_VARIED_TEMPERATURE = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledPlace:
    """What candidates are sampled for: a draft, or one of its sections."""

    request: ChatRequest  # for the first candidate
    # Makes a text of a reply, and says whether it was cut; no text if the reply is of no use.
    read: Callable[[Completion], tuple[str, bool]]
    base_seed: int  # the seeds of the other candidates are counted from it
    section: int | None = None  # index of the section; None for the whole draft
    afresh: str = ""  # another prompt, for every second candidate; empty for none
    # Whether a candidate makes further ones needless; not called for a single candidate.
    is_enough: Callable[[Candidate], bool] = lambda _: False


def first_seed(run_seed: int | None) -> int:
    """The first seed of a loop's calls, derived from the seed of its run."""
    return (run_seed or 0) * _SEEDS_OF_A_LOOP


async def sample(
    places: Sequence[SampledPlace],
    *,
    times: int,
    at_once: int | None = None,
    ask: Ask,
    tracer: Tracer,
) -> tuple[Candidate, ...]:
    """The candidates of all places, in order: at most `times` for each, fewer after one is enough.

    `at_once` is the number of calls that the model answers at once; None makes all calls at once.

    Raises `InferenceError` if all calls failed, or one did where each is made once, and
    `LimitReached` without room for them.
    """
    sampling = _Sampling(len(places), times=times, at_once=at_once, ask=ask, tracer=tracer)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(sampling.candidates_for(place)) for place in places]
    except ExceptionGroup as failed:
        # The first error says why.
        error: Exception = failed
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        raise error from None
    candidates = tuple(candidate for task in tasks for candidate in task.result())
    # If only some calls failed, their errors are no more than recorded.
    if sampling.errors and len(sampling.errors) == len(candidates):
        raise sampling.errors[0]
    return candidates


class _Sampling:
    """The calls for candidates of several places, which share what the model answers at once."""

    def __init__(
        self, places: int, *, times: int, at_once: int | None, ask: Ask, tracer: Tracer
    ) -> None:
        self.errors: list[HarnessError] = []  # of calls that failed, as far as they are excused
        # A call that is made only once raises, which ends the round; an empty reply does not, since
        # other sections may have text.
        self._excused = ReplyEmpty if times == 1 else (InferenceError, LimitReached)
        self._times = times
        self._ask = ask
        self._tracer = tracer
        # Places beyond `at_once` wait, so that the calls for one place follow each other: their
        # prompts begin with the same sources, which a prefix cache serves.
        self._room = asyncio.Semaphore(at_once or places or 1)
        # The calls for a place are made in waves, so large that all places together keep the model
        # busy: two at a time for each of 3 places where it answers 6. A candidate that is enough
        # saves the waves after it.
        self._wave = times if at_once is None else max(1, at_once // max(1, places))

    async def candidates_for(self, place: SampledPlace) -> list[Candidate]:
        """The candidates of one place, in order."""
        candidates: list[Candidate] = []
        latest: list[Candidate] = []
        async with self._room:
            while (
                len(candidates) < self._times
                # After a lasting error, the next call would fail in the same way, at any place.
                and not any(isinstance(error, LASTING) for error in self.errors)
                and not any(map(place.is_enough, latest))
            ):
                first = len(candidates) + 1
                numbers = range(first, min(first + self._wave, self._times + 1))
                # Every second candidate has the prompt `afresh`. Equal prompts follow each other,
                # for prefix caches.
                order = (*numbers[::2], *numbers[1::2]) if place.afresh else numbers
                async with asyncio.TaskGroup() as group:
                    tasks = {n: group.create_task(self._candidate(place, n)) for n in order}
                latest = [tasks[number].result() for number in numbers]
                candidates += latest
        return candidates

    async def _candidate(self, place: SampledPlace, number: int) -> Candidate:
        """A candidate; if its call failed, without text and with the error."""
        request = _varied(place, number)
        begun = events.CandidateEvent(label=f"candidate {number}", number=number, seed=request.seed)
        with self._tracer.span(begun) if self._times > 1 else nullcontext() as span:
            blank = Candidate(
                number=number,
                section=place.section,
                seed=request.seed,
                span=None if span is None else span.id,
            )
            try:
                text, cut = place.read(await self._ask(request))
            except self._excused as error:
                self.errors.append(error)
                if span is not None:
                    span.set(detail=self._tracer.excerpt(str(error)))
                return replace(blank, error=str(error))
            return replace(blank, text=text, cut=cut)


def _varied(place: SampledPlace, number: int) -> ChatRequest:
    """The request for a candidate. The first is made like a single one; others must differ."""
    request = place.request
    if number > 1:
        seed = place.base_seed + (number - 1) * _SEED_STEP
        request = replace(request, seed=seed, temperature=_VARIED_TEMPERATURE)
    if place.afresh and number % 2 == 0:
        request = replace(request, messages=(Message("user", place.afresh),))
    return request
