"""Functions that score outputs, and what they may return."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import takewhile
from numbers import Real
from types import MappingProxyType
from typing import Any

from harness.errors import EvaluationFailed, InvalidInput, message_of, place_of
from harness.graph.executor import InProcess, Work
from harness.rubric.checks import Match

ScoreFunction = Callable[..., object]
"""Takes the output, then `target` and `row`, a mapping of its columns, if its next parameters have
these names. Returns a number, whether the output is right, None for no score, or several of these
by name. Plain, in a thread, or async."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """A function that scores outputs."""

    name: str
    function: ScoreFunction
    # With other fields than these, scores of earlier versions would not hold: see `Batch`.
    needs_target: bool
    takes_target: bool

    @property
    def takes(self) -> tuple[str, ...]:
        """What it takes behind the output: `target`, `row`, or both."""
        names = [parameter.name for parameter in _parameters(self.function, _BY_PLACE)]
        return tuple(takewhile({"target", "row"}.__contains__, names[1:]))

    @property
    def node(self) -> str:
        """The node that calls it."""
        return f"score_{self.name}"

    async def scores(
        self, output: object, target: object, row: Mapping[str, object] = MappingProxyType({})
    ) -> dict[str, float | None]:
        """The scores of one output, by name: `NAME`, or `NAME.PART` of several; None for no score.

        Raises:
            EvaluationFailed: The function raised, or returned no finite number.
        """
        # Each scorer has a mapping of its own, which it may change.
        beside = {"target": target, "row": dict(row)}
        arguments = (output, *(beside[name] for name in self.takes))
        try:
            result: Any = await InProcess().call(
                Work(self.node, partial(self.function, *arguments), {})
            )
        except Exception as error:
            raise EvaluationFailed(
                f"scorer '{self.name}' raised {type(error).__name__}: {message_of(error)}"
                f"{place_of(error)}",
                code="evaluation.scorer-raised",
            ) from error
        parts = dict(result) if isinstance(result, Mapping) else {"": result}
        for part, value in parts.items():
            if getattr(value, "shape", None) == ():  # a number of NumPy or PyTorch
                parts[part] = value.item()
        scores = [value for value in parts.values() if value is not None]
        numbers = [v for v in scores if isinstance(v, Real | Decimal)]
        wrong = len(numbers) < len(scores) or not all(map(_is_finite, numbers))
        if wrong or not parts:
            raise EvaluationFailed(
                f"scorer '{self.name}' returned {result!r:.80}; it must return a finite number, "
                "true or false, None for no score, or several of these by name",
                code="evaluation.score-invalid",
            )
        return {
            f"{self.name}.{part}" if part else self.name: None if value is None else float(value)
            for part, value in parts.items()
        }


def _is_finite(number: Real | Decimal) -> bool:
    with suppress(OverflowError):  # an integer beyond any float
        return math.isfinite(number)
    return False


_BY_PLACE = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
_NAMED = _BY_PLACE | {inspect.Parameter.KEYWORD_ONLY}


def scorers_of(given: Sequence[str | ScoreFunction]) -> tuple[Scorer, ...]:
    """Functions, and `equal`, `includes`, `number` and `number:TOLERANCE` by name.

    Raises:
        InvalidInput: One is no function, has no name, or takes other arguments; or two have the
            same name.
    """
    scorers = tuple(map(_scorer, given))
    refuse_twice([scorer.name for scorer in scorers])
    return scorers


def refuse_twice(names: Sequence[str]) -> None:
    """Refuses two scorers, or a scorer and a rubric, of one name."""
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidInput(
            f"two scorers are called '{twice[0]}'; rename one", code="evaluation.scorer-twice"
        )


def _scorer(given: str | ScoreFunction) -> Scorer:
    if isinstance(given, str):
        kind, _, tolerance = given.partition(":")
        try:
            given = Match(kind, float(tolerance or 0))  # type: ignore[arg-type]  # it checks
        except (ValueError, InvalidInput) as error:
            raise InvalidInput(
                f"there is no scorer '{given}'; write equal, includes, number, number:0.01 for a "
                "tolerance, or give a function",
                code="evaluation.scorer-unknown",
            ) from error
    name = getattr(given, "__name__", "")
    if not callable(given) or not name.isidentifier():
        raise InvalidInput(
            f"scorer {given!r:.80} is no function with a name; define it by def",
            code="evaluation.scorer-unknown",
        )
    names = [parameter.name for parameter in _parameters(given, _BY_PLACE)]
    needed = [p.name for p in _parameters(given, _NAMED) if p.default is p.empty]
    needs_target, takes_target = "target" in needed, "target" in names[1:2]
    scorer = Scorer(name=name, function=given, needs_target=needs_target, takes_target=takes_target)
    if not names or names[0] == "target" or len(needed) > 1 + len(scorer.takes):
        raise InvalidInput(
            f"scorer '{name}' takes {', '.join(names) or 'nothing'}; its parameters are `output`, "
            "and behind it `target`, `row` or both",
            code="evaluation.scorer-arguments",
        )
    return scorer


def _parameters(function: ScoreFunction, kinds: Set[object]) -> list[inspect.Parameter]:
    try:
        return [p for p in inspect.signature(function).parameters.values() if p.kind in kinds]
    except ValueError:  # of some that are built in, nothing is known
        return []
