"""Policies: how a node's calls are made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, Literal, get_args

from harness.errors import InvalidInput
from harness.hardware import parse_bytes


@dataclass(frozen=True, slots=True)
class Retry:
    """Repeats calls of a node that raised.

    A call is not repeated after `InvalidInput` or a reached limit, which would only fail again; nor
    after it yielded an item, since other nodes may have used the item. Finished work inside the
    node (`run.call`, `run.map`) is kept. Its own calls to models are repeated with another seed,
    and at temperature 0.3 in place of 0, to get another reply. If a reply was not of the requested
    type, the model is told why.

    Raises:
        InvalidInput: A number is out of range.
    """

    attempts: int = 3
    """Number of calls, including the first."""
    first_delay_s: float = field(default=0.5, kw_only=True)
    """Pause before the second call; it doubles before each further call."""
    longest_delay_s: float = field(default=30.0, kw_only=True)
    on: tuple[type[Exception], ...] = field(default=(Exception,), kw_only=True)

    def __post_init__(self) -> None:
        if not (_is_whole(self.attempts) and self.attempts >= 1):
            raise InvalidInput(
                f"Retry(attempts={self.attempts!r}); give a whole number, 1 or more: the first "
                "call counts",
                code="pipeline.attempts-not-positive",
            )
        try:
            isinstance(None, self.on)
        except TypeError:
            raise InvalidInput(
                f"Retry(on={self.on!r}); write a tuple of errors, such as on=(OSError,)",
                code="pipeline.option-invalid",
            ) from None
        _check_not_negative("Retry", "first_delay_s", self.first_delay_s)
        _check_not_negative("Retry", "longest_delay_s", self.longest_delay_s)

    def delay_s(self, error: Exception, *, attempt: int) -> float | None:
        """Seconds to wait after attempt number `attempt`, counted from 1; None to give up."""
        if attempt >= self.attempts or not isinstance(error, self.on):
            return None
        # Capped: a power beyond what a float holds would raise.
        return min(self.longest_delay_s, self.first_delay_s * 2.0 ** min(attempt - 1, 1000))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeout:
    """Time limits of each attempt of a call, not counting the time that a person takes to answer.

    Raises:
        InvalidInput: A number is out of its range.
    """

    total_s: float | None = None
    idle_s: float | None = None
    """Longest time without a sign of life: a request sent or answered, a piece of a reply, an item,
    or `run.beat()`. Waiting in this process does not count: for a place at the endpoint, a model's
    load, room within the limits, the next attempt of a nested call."""

    def __post_init__(self) -> None:
        for name in ("total_s", "idle_s"):
            limit = getattr(self, name)
            # Not `limit <= 0`, which would let NaN pass.
            if limit is not None and not (_is_real(limit) and limit > 0):
                raise InvalidInput(
                    f"Timeout({name}={limit!r}); it must be a number, and more than 0",
                    code="pipeline.timeout-not-positive",
                )


@dataclass(frozen=True, slots=True)
class Concurrency:
    """The limit on calls of one node at the same time.

    Raises:
        InvalidInput: It is less than 1.
    """

    limit: int
    """Over all items of the node; each run of a nested pipeline counts separately."""

    def __post_init__(self) -> None:
        if not (_is_whole(self.limit) and self.limit >= 1):
            raise InvalidInput(
                f"a node cannot have {self.limit!r} calls at once; give Concurrency(…), or "
                "max_parallel of run.map, a whole number, 1 or more",
                code="pipeline.concurrency-not-positive",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Reuses a node's output from an earlier run with the same code and inputs.

    Raises:
        InvalidInput: A number is out of its range.
    """

    max_age_s: float | None = None
    """Older outputs are not used; None accepts any age."""

    def __post_init__(self) -> None:
        if self.max_age_s is not None:
            _check_not_negative("Cache", "max_age_s", self.max_age_s)

    def takes(self, *, age_s: float) -> bool:
        """Whether an output of this age is used."""
        return self.max_age_s is None or age_s <= self.max_age_s


@dataclass(frozen=True, slots=True)
class Default:
    """`on_error=Default(value)`: replaces the output of a failed node."""

    value: object
    """As the node would return it. For a node that yields items: a list, added to the items it
    yielded."""


OnError = Literal["fail", "skip"] | Default
"""What follows when a node's last attempt raised: it fails and its dependants do not run, its
output is `Skipped`, or its output is a value."""


Placement = Literal["pack", "spread"]
# Field of `Resources` → its type, and an example of a value.
_RESOURCE_KINDS: Any = (
    ("custom", Mapping, '{"license": 1}'),
    ("accelerator_type", str | None, '"A100"'),
    ("runtime_env", Mapping | None, '{"pip": ["polars"]}'),
    ("max_retries", Integral, "2"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What each call of a node reserves on its worker, if `[execution] engine` has workers.

    Raises:
        InvalidInput: A number is less than 0, `memory` is not a size, `gpus` is above 1 and not
            whole, or another value is of the wrong kind.
    """

    cpus: float = 1
    gpus: float = 0
    memory: int | str = 0
    """Bytes, or a text such as "8 GiB"; 0 to reserve none."""
    custom: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Amounts of other resources, by the names that machines were started with."""
    accelerator_type: str | None = None
    """The kind of GPU, as the engine calls it, such as "A100"."""
    runtime_env: Mapping[str, Any] | None = field(default=None, hash=False)
    """What is installed and set for the node on a worker, as the engine takes it."""
    placement: Placement = "pack"
    """Whether calls fill a machine before the next, or spread over machines."""
    max_retries: int = 2
    """How many workers a call may lose before the next lost one makes it fail."""

    def __post_init__(self) -> None:
        for name in ("cpus", "gpus", "max_retries"):
            _check_not_negative("Resources", name, getattr(self, name))
        for name, kind, example in _RESOURCE_KINDS:
            if not isinstance(value := getattr(self, name), kind):
                raise InvalidInput(
                    f"Resources({name}={value!r}); write one such as {name}={example}",
                    code="pipeline.resources-invalid",
                )
        for name, amount in self.custom.items():
            if name.lower() in {"cpu", "gpu", "memory"}:
                raise InvalidInput(
                    f"Resources(custom=…) has '{name}'; write cpus=, gpus= and memory= for these",
                    code="pipeline.resources-invalid",
                )
            _check_not_negative("Resources", f"custom: {name}", amount)
        if self.placement not in get_args(Placement):
            raise InvalidInput(
                f'Resources(placement={self.placement!r}); write "pack" or "spread"',
                code="pipeline.resources-invalid",
            )
        if self.gpus > 1 and self.gpus % 1:
            raise InvalidInput(
                f"Resources(gpus={self.gpus:g}); give a share of one GPU, or a whole number",
                code="pipeline.gpus-not-whole",
            )
        try:
            parse_bytes(self.memory)
        except ValueError as error:
            problem = f"Resources(memory=…): {error}"
            raise InvalidInput(problem, code="pipeline.memory-not-a-size") from error

    @property
    def memory_bytes(self) -> int:
        """The memory in bytes, whichever way it was written."""
        return parse_bytes(self.memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """All policies of a node or pipeline; None takes the pipeline's, or the default."""

    retry: Retry | None = None
    timeout: Timeout | None = None
    cache: Cache | None = None
    concurrency: Concurrency | None = None
    on_error: OnError | None = None
    models: tuple[str, ...] | None = None
    """The only roles that it uses, in the order of their first calls; None if undeclared."""
    on: Resources | None = None
    """What a worker must have to run it; None for a node that runs with the pipeline."""

    def over(self, defaults: Policies) -> Policies:
        """These policies, with those of `defaults` in place of None."""
        values = {policy.name: getattr(self, policy.name) for policy in fields(self)}
        return replace(defaults, **{k: value for k, value in values.items() if value is not None})

    def mistake(self) -> str | None:
        """A message about a value that is no policy; None if all are policies."""
        for name, (kind, example) in _EXAMPLES.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                return f"{name}={value!r} is no policy; write one, such as {name}={example}"
        if isinstance(self.on_error, Default) or self.on_error in (None, "fail", "skip"):
            return None
        return f'on_error={self.on_error!r} is no policy; write "fail", "skip" or Default(a value)'


# Policy → its class, and how to write one.
_EXAMPLES = {
    "retry": (Retry, "Retry(3)"),
    "timeout": (Timeout, "Timeout(total_s=30)"),
    "cache": (Cache, "Cache()"),
    "concurrency": (Concurrency, "Concurrency(4)"),
    "on": (Resources, "Resources(cpus=2)"),
}

NO_POLICIES = Policies()


def _is_whole(value: object) -> bool:
    # Also a number of NumPy, 3.0, and as many as are wanted.
    return isinstance(value, Integral) or (
        isinstance(value, float) and (value.is_integer() or value == math.inf)
    )


def _is_real(value: object) -> bool:
    return isinstance(value, Real)


def _check_not_negative(owner: str, name: str, value: float) -> None:
    if not (_is_real(value) and value >= 0):
        raise InvalidInput(
            f"{owner}({name}={value!r}); it must be a number, and cannot be less than 0",
            code="pipeline.policy-negative",
        )
