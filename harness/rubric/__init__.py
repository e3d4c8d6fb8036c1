"""Rubrics: their files, their checks, the evaluator that judges by them, and verdicts."""

from harness.rubric.advice import RubricAdvice, advice_on, how_to_make_optional
from harness.rubric.checks.function import Refuse
from harness.rubric.draft import Draft, Finding, Sources, by_section
from harness.rubric.evaluator import Evaluator
from harness.rubric.judge import Ask
from harness.rubric.load import (
    ChosenRubric,
    RubricFile,
    at_any_threshold,
    directories,
    known_rubrics,
    load_rubric,
    read_rubric,
    with_prompts,
)
from harness.rubric.noise import Noise, load_noise, measured_noise, write_noise
from harness.rubric.rubric import Dimension, Prompts, Rubric, rubric_schema
from harness.rubric.verdict import Checked, DimensionScore, Scored, Verdict, reach_verdict

__all__ = [
    "Ask",
    "Checked",
    "ChosenRubric",
    "Dimension",
    "DimensionScore",
    "Draft",
    "Evaluator",
    "Finding",
    "Noise",
    "Prompts",
    "Refuse",
    "Rubric",
    "RubricAdvice",
    "RubricFile",
    "Scored",
    "Sources",
    "Verdict",
    "advice_on",
    "at_any_threshold",
    "by_section",
    "directories",
    "how_to_make_optional",
    "known_rubrics",
    "load_noise",
    "load_rubric",
    "measured_noise",
    "reach_verdict",
    "read_rubric",
    "rubric_schema",
    "with_prompts",
    "write_noise",
]
