"""Functions that score outputs, and what they may return."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from numbers import Real
from typing import Any

from harness.errors import EvaluationFailed, InvalidInput, message_of, place_of
from harness.graph.executor import InProcess, Work
from harness.rubric.checks import Match

ScoreFunction = Callable[..., object]
"""Takes the output, and the target if its second parameter is `target`. Returns a number, whether
the output is right, or several of these by name. Plain, in a thread, or async."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """A function that scores outputs."""

    name: str
    function: ScoreFunction
    needs_target: bool
    takes_target: bool

    @property
    def node(self) -> str:
        """The node that calls it."""
        return f"score_{self.name}"

    async def scores(self, output: object, target: object) -> dict[str, float]:
        """The scores of one output, by name: `NAME`, or `NAME.PART` of several.

        Raises:
            EvaluationFailed: The function raised, or returned no finite number.
        """
        arguments = (output, target) if self.takes_target else (output,)
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
        numbers = [v for v in parts.values() if isinstance(v, Real | Decimal)]
        wrong = len(numbers) < len(parts) or not all(map(math.isfinite, numbers))
        if wrong or not parts:
            raise EvaluationFailed(
                f"scorer '{self.name}' returned {result!r:.80}; it must return a finite number, "
                "true or false, or several of these by name",
                code="evaluation.score-invalid",
            )
        return {
            f"{self.name}.{part}" if part else self.name: float(value)
            for part, value in parts.items()
        }


_REST = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


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
    kinds = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    try:
        every = [*inspect.signature(given).parameters.values()]
    except ValueError:  # of some that are built in, nothing is known
        every = []
    parameters = [parameter for parameter in every if parameter.kind in kinds]
    needed = [p for p in every if p.default is p.empty and p.kind not in _REST]
    takes, needs = [p.name for p in parameters[1:2]] == ["target"], len(needed) > 1
    if not parameters or parameters[0].name == "target" or len(needed) > 1 + takes:
        raise InvalidInput(
            f"scorer '{name}' takes {', '.join(p.name for p in parameters) or 'nothing'}; its "
            "parameters are `output`, or `output` and `target`",
            code="evaluation.scorer-arguments",
        )
    return Scorer(name=name, function=given, needs_target=needs, takes_target=takes)
