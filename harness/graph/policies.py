"""What a node's author says about how its calls are made, beside what they compute."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from harness.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Retry:
    """Calling a node again that raised.

    What would only fail again is not tried again: a mistake that a person made (`InvalidInput`),
    and a limit that is reached. Nor is a node that yields its items one by one: others may have
    gone on with those that it gave. What finished inside of a node (`run.call`, `run.map`) is not
    made again; what the node asks models itself is: with another seed, and at a temperature
    of 0.3 where that was 0, since the model would say the same again. What was wrong with a reply
    that was not of the type asked for, the model is told.

    Raises:
        InvalidInput: A number is out of its range.
    """

    attempts: int = 3
    """Calls in all, the first included."""
    first_delay_s: float = field(default=0.5, kw_only=True)
    """Before the second call; twice as long before each further one."""
    longest_delay_s: float = field(default=30.0, kw_only=True)
    """No wait is longer."""
    on: tuple[type[Exception], ...] = field(default=(Exception,), kw_only=True)
    """What is worth another call."""

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidInput(
                f"Retry(attempts={self.attempts}); the first call is one of them",
                code="pipeline.attempts-not-positive",
            )
        _check_not_negative("Retry", "first_delay_s", self.first_delay_s)
        _check_not_negative("Retry", "longest_delay_s", self.longest_delay_s)

    def delay_s(self, error: Exception, *, attempt: int) -> float | None:
        """How long to wait before the next call, in seconds; None to give up.

        Args:
            error: What the call ended in.
            attempt: Which call that was, counted from 1.
        """
        if attempt >= self.attempts or not isinstance(error, self.on):
            return None
        # Capped: a power beyond what a float holds would raise.
        return min(self.longest_delay_s, self.first_delay_s * 2.0 ** min(attempt - 1, 1000))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeout:
    """How long a call of a node may take, each attempt anew; what a person takes does not count.

    Raises:
        InvalidInput: A number is out of its range.
    """

    total_s: float | None = None
    """From its start to its end."""
    idle_s: float | None = None
    """Without a sign of life: a piece of a reply, a request to a model that is sent or answered, an
    item, or `run.beat()`. What is waited for on this side does not count: a place at the endpoint,
    a model that loads, room within the limits, the next attempt of what is nested in it."""

    def __post_init__(self) -> None:
        for name in ("total_s", "idle_s"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise InvalidInput(
                    f"Timeout({name}={limit:g}); it must be more than 0",
                    code="pipeline.timeout-not-positive",
                )


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How many calls of a node may be under way at once.

    Raises:
        InvalidInput: It allows none.
    """

    limit: int
    """Of all its items; in nested pipelines, of each of them."""

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise InvalidInput(
                f"Concurrency({self.limit}) would let no call begin; give 1 or more",
                code="pipeline.concurrency-not-positive",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """What a node returned in an earlier run is its output, where code and inputs are the same.

    Raises:
        InvalidInput: A number is out of its range.
    """

    max_age_s: float | None = None
    """Older outputs are made anew; none is too old when left out."""

    def __post_init__(self) -> None:
        if self.max_age_s is not None:
            _check_not_negative("Cache", "max_age_s", self.max_age_s)


@dataclass(frozen=True, slots=True)
class Default:
    """`on_error=Default(value)`: what a node that failed is taken to have returned."""

    value: object
    """As the node would return it; of one that yields its items one by one, the list of those that
    come behind what it gave."""


OnError = Literal["fail", "skip"] | Default
"""What becomes of a node whose last attempt raised: it fails, and its dependants are not
run; its output is `Skipped`; or it is a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """How a node's calls are made; what is None is as the pipeline has it, or else is not."""

    retry: Retry | None = None
    """Whether what raised is called again."""
    timeout: Timeout | None = None
    """How long a call may take."""
    cache: Cache | None = None
    """Whether outputs of earlier runs will do."""
    concurrency: Concurrency | None = None
    """How many calls at once."""
    on_error: OnError | None = None
    """What becomes of it when all attempts raised."""
    models: tuple[str, ...] | None = None
    """The roles that it uses; None when it does not say."""

    def over(self, defaults: Policies) -> Policies:
        """These where they say something, and else the others."""
        return Policies(
            retry=self.retry or defaults.retry,
            timeout=self.timeout or defaults.timeout,
            cache=self.cache or defaults.cache,
            concurrency=self.concurrency or defaults.concurrency,
            on_error=self.on_error or defaults.on_error,
            models=self.models if self.models is not None else defaults.models,
        )

    def mistake(self) -> str | None:
        """What was written in place of a policy, and what to write; None when there is nothing."""
        for name, (kind, example) in _WRITTEN.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                return f"{name}={value!r} is no policy; write one, such as {name}={example}"
        if isinstance(self.on_error, Default) or self.on_error in (None, "fail", "skip"):
            return None
        return f'on_error={self.on_error!r} is no policy; write "fail", "skip" or Default(a value)'


_WRITTEN = {
    "retry": (Retry, "Retry(3)"),
    "timeout": (Timeout, "Timeout(total_s=30)"),
    "cache": (Cache, "Cache()"),
    "concurrency": (Concurrency, "Concurrency(4)"),
}

NO_POLICIES = Policies()
"""Of a node that says nothing."""


def _check_not_negative(owner: str, name: str, value: float) -> None:
    if not value >= 0:
        raise InvalidInput(
            f"{owner}({name}={value:g}); it cannot be less than 0", code="pipeline.policy-negative"
        )
