"""The evaluator: checks first, then the model for what only a reader can judge."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from harness.errors import ConfigurationInvalid, EvaluationFailed
from harness.inference import ChatRequest, Completion
from harness.rubric.draft import Draft
from harness.rubric.finding import Finding
from harness.rubric.judge import judge_messages, judge_schema, read_judgement
from harness.rubric.rubric import Dimension, Rubric
from harness.rubric.verdict import DimensionScore, Verdict, half_up, reach_verdict

Ask = Callable[[ChatRequest], Awaitable[Completion]]
"""How a model is asked; the session's shim."""

_ATTEMPTS = 2
_ROOM_TOKENS = 1024
_ROOM_TOKENS_PER_DIMENSION = 256
"""A reason of the greatest length, its score, and the JSON around them."""


class Evaluator:
    """Scores drafts by one rubric.

    Args:
        rubric: What to score by.
        ask: Reaches the evaluator model.
        model: Tag of its endpoint; None when there is none.

    Raises:
        ConfigurationInvalid: The rubric needs a judge and there is no evaluator model.
    """

    def __init__(self, rubric: Rubric, *, ask: Ask, model: str | None) -> None:
        self.rubric = rubric
        self._ask = ask
        self._model = model
        if model is None and (needed := [d.name for d in rubric.judged if not d.optional]):
            raise ConfigurationInvalid(
                f"rubric '{rubric.id}' has dimensions that a model must judge "
                f"({', '.join(needed)}), and no evaluator is configured; name one under [roles] in "
                "harness.toml, or give an endpoint in HARNESS_ENDPOINTS the tag 'evaluator'"
            )

    async def evaluate(self, draft: Draft) -> Verdict:
        """One verdict.

        Raises:
            EvaluationFailed: The evaluator model gave no valid scores.
            InferenceError: It could not be asked.
        """
        checked = [
            check_dimension(d, draft, self.rubric) for d in self.rubric.dimensions if d.checks
        ]
        judged = self.rubric.judged
        if not judged or self._model is None:
            return reach_verdict(
                self.rubric, checked, unjudged=tuple(dimension.name for dimension in judged)
            )
        scores, compressed = await self._judge(draft, judged)
        return reach_verdict(
            self.rubric, [*checked, *scores], evaluator=self._model, compressed=compressed
        )

    async def _judge(
        self, draft: Draft, judged: tuple[Dimension, ...]
    ) -> tuple[tuple[DimensionScore, ...], bool]:
        assert self._model is not None
        messages, compressed = judge_messages(self.rubric, judged, draft)
        attempt = 1
        while True:
            completion = await self._ask(
                ChatRequest(
                    model=self._model,
                    role="evaluator",
                    messages=messages,
                    max_output_tokens=_ROOM_TOKENS + _ROOM_TOKENS_PER_DIMENSION * len(judged),
                    # The first try is greedy; a second greedy one would only fail again.
                    temperature=0.0 if attempt == 1 else 0.3,
                    seed=attempt,
                    reply_schema=judge_schema(self.rubric, judged),
                )
            )
            try:
                return read_judgement(completion.text, self.rubric, judged), compressed
            except EvaluationFailed:
                if attempt == _ATTEMPTS:
                    raise
            attempt += 1


def check_dimension(dimension: Dimension, draft: Draft, rubric: Rubric) -> DimensionScore:
    """The score of a dimension by its checks: their mean, on the rubric's scale."""
    grades = [check.grade(draft) for check in dimension.checks]
    share = sum(grade.share for grade in grades) / len(grades)
    findings: tuple[Finding, ...] = tuple(f for grade in grades for f in grade.findings)
    scale = rubric.scale
    return DimensionScore(
        name=dimension.name,
        score=half_up(scale.min + share * (scale.max - scale.min), scale.step, start=scale.min),
        source="checked",
        reason="; ".join(f"{f.section}: {f.message}" if f.section else f.message for f in findings),
        findings=findings,
    )
