"""Calls that are known beforehand, and the forecast that they make as they end one by one."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from harness.errors import InvalidInput
from harness.residency.forecast import Forecast, Strand


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A call that will be made."""

    id: str
    """No other job has it."""
    model: str
    """The tag it asks for."""
    call_s: float
    """How long it takes once it is granted."""
    after: tuple[str, ...] = ()
    """Ids of the jobs that must have ended before it comes."""
    arrives_s: float = 0.0
    """It comes no earlier than this, counted from the start."""
    kv_tokens: int = 0
    """What it may come to hold in the model's KV cache."""


def check_jobs(jobs: Sequence[Job]) -> None:
    """Whether all of them can come at all.

    Raises:
        InvalidInput: Two have one id, one waits for a job that is not there, or they wait for each
            other.
    """
    ids = Counter(job.id for job in jobs)
    for job in jobs:
        if ids[job.id] > 1:
            raise InvalidInput(f"two jobs have the id '{job.id}'", code="jobs.duplicate-id")
        for before in job.after:
            if before not in ids:
                raise InvalidInput(
                    f"job '{job.id}' comes after '{before}', which is not there",
                    code="jobs.unknown-job",
                )
    try:
        TopologicalSorter({job.id: job.after for job in jobs}).prepare()
    except CycleError as error:
        circle = "' after '".join(error.args[1])
        raise InvalidInput(f"jobs wait for each other: '{circle}'", code="jobs.cycle") from error


class Chains:
    """Jobs, folded into strands: one after another where nothing branches off between them.

    Args:
        jobs: As `check_jobs` wants them.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._head: dict[str, str] = {}
        self._left: dict[str, list[Job]] = {}
        self._after: dict[str, frozenset[str]] = {}
        self._strands: dict[str, Strand] = {}
        by_id = {job.id: job for job in jobs}
        followers = Counter(before for job in jobs for before in job.after)
        for id_ in TopologicalSorter({job.id: job.after for job in jobs}).static_order():
            job = by_id[id_]
            head = self._continued(job, followers) or id_
            self._head[id_] = head
            self._left.setdefault(head, []).append(job)
            if head == id_:
                self._after[id_] = frozenset(self._head[before] for before in job.after)
        for head in self._left:
            self._fold(head)

    def ended(self, id_: str) -> None:
        """A job has ended: it is not expected any more."""
        head = self._head[id_]
        self._left[head] = [job for job in self._left[head] if job.id != id_]
        self._fold(head)

    def forecast(self) -> Forecast:
        """All that has not ended; nothing else will come."""
        return Forecast(strands=tuple(self._strands.values()), is_complete=True)

    def forecast_at(self, now_s: float) -> Forecast:
        """What has not ended of what has arrived; others may come.

        What comes after something that has not arrived has not either, whatever its own time.
        """
        known: dict[str, Strand] = {}
        for head, strand in self._strands.items():  # each after those that it comes after
            unended = self._after[head] & self._strands.keys()
            if self._left[head][0].arrives_s <= now_s and unended <= known.keys():
                known[head] = strand
        return Forecast(strands=tuple(known.values()))

    def _continued(self, job: Job, followers: Counter[str]) -> str | None:
        """The head of the chain that a job goes on, if it is the only one that comes next there."""
        if len(job.after) != 1 or followers[job.after[0]] != 1:
            return None
        head = self._head[job.after[0]]
        return head if job.arrives_s <= self._left[head][0].arrives_s else None

    def _fold(self, head: str) -> None:
        left = self._left[head]
        if left:
            self._strands[head] = Strand(
                name=head, uses=_stretches(job.model for job in left), after=self._after[head]
            )
        else:
            self._strands.pop(head, None)


def _stretches(models: Iterable[str]) -> tuple[str, ...]:
    """Each stretch of one model once."""
    return tuple(model for model, _ in itertools.groupby(models))
