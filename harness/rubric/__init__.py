"""Rubrics: their files, their checks, the evaluator's prompt, and verdicts."""

from harness.rubric.draft import Draft
from harness.rubric.evaluator import Ask, Evaluator
from harness.rubric.finding import Finding
from harness.rubric.library import load_rubric
from harness.rubric.load import load_rubric_file
from harness.rubric.rubric import Dimension, Rubric, Scale
from harness.rubric.schema import rubric_schema
from harness.rubric.verdict import DimensionScore, Verdict, half_up, reach_verdict

__all__ = [
    "Ask",
    "Dimension",
    "DimensionScore",
    "Draft",
    "Evaluator",
    "Finding",
    "Rubric",
    "Scale",
    "Verdict",
    "half_up",
    "load_rubric",
    "load_rubric_file",
    "reach_verdict",
    "rubric_schema",
]
