"""Candidates: one call, made several times at once, each time with a seed of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from harness.errors import HarnessError, InferenceError, LimitReached
from harness.inference import ChatRequest, Completion, Message
from harness.rubric import Ask
from harness.trace import Tracer
from harness.wiggum.ratchet import Candidate

_SEED_STEP = 1_000
"""Between the seeds of two candidates; a loop has fewer rounds."""

_SEEDS_OF_A_LOOP = 1_000 * _SEED_STEP
"""Between the first seeds of loops in runs with successive seeds."""

_VARIED_TEMPERATURE = 0.6
"""Of all candidates but the first, so that they differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What candidates are sampled for: a draft, or one of its sections."""

    request: ChatRequest
    """As it is sent for the first candidate."""
    read: Callable[[Completion], tuple[str, bool]]
    """Makes a text of a reply, and says whether it was cut; no text if the reply is of no use."""
    base_seed: int
    """The seeds of the other candidates are counted from it."""
    section: int | None = None
    """Index of the section; None for the whole draft."""
    afresh: str = ""
    """Another prompt, for every second candidate; empty for none."""


def first_seed(run_seed: int | None) -> int:
    """What the seeds of a loop's calls are counted from, by the seed of its run."""
    return (run_seed or 0) * _SEEDS_OF_A_LOOP


async def sample(
    places: Sequence[Place], *, times: int, ask: Ask, tracer: Tracer
) -> tuple[Candidate, ...]:
    """The candidates of all places, in order; all are asked for at once.

    Raises:
        InferenceError: All calls failed; or one did, where each is made once.
        LimitReached: There was no room for them.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {
                (index, number): group.create_task(
                    _once(place, ask) if times == 1 else _one(place, number, ask, tracer)
                )
                for index, place in enumerate(places)
                for number in _order(place, times)
            }
    except ExceptionGroup as failed:
        # One failed call ends the round; the first says why.
        raise failed.exceptions[0] from None
    found = [tasks[key].result() for key in sorted(tasks)]
    errors = [error for _, error in found if error is not None]
    if len(errors) == len(found):
        raise errors[0]
    return tuple(candidate for candidate, _ in found)


def _order(place: Place, times: int) -> Sequence[int]:
    """The numbers of the candidates; equal prompts after each other, for caches of prefixes."""
    numbers = range(1, times + 1)
    return (*numbers[::2], *numbers[1::2]) if place.afresh else numbers


async def _once(place: Place, ask: Ask) -> tuple[Candidate, HarnessError | None]:
    text, cut = place.read(await ask(place.request))
    return Candidate(number=1, section=place.section, text=text, cut=cut), None


async def _one(
    place: Place, number: int, ask: Ask, tracer: Tracer
) -> tuple[Candidate, HarnessError | None]:
    """One of several candidates, and the error of its call if that failed."""
    request = place.request
    if number > 1:
        seed = place.base_seed + (number - 1) * _SEED_STEP
        request = replace(request, seed=seed, temperature=_VARIED_TEMPERATURE)
    if place.afresh and number % 2 == 0:
        request = replace(request, messages=(Message("user", place.afresh),))
    with tracer.span(
        "candidate", label=f"candidate {number}", number=number, seed=request.seed
    ) as span:
        blank = Candidate(number=number, section=place.section, seed=request.seed, span=span.id)
        try:
            text, cut = place.read(await ask(request))
            return replace(blank, text=text, cut=cut), None
        except (InferenceError, LimitReached) as error:
            span.set(detail=tracer.excerpt(str(error)))
            return replace(blank, error=str(error)), error
