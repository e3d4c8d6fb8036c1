"""Rubrics: their files, their checks, the evaluator that judges by them, and verdicts."""

from harness.rubric.checks.function import Refuse
from harness.rubric.draft import Draft
from harness.rubric.files import load_rubric, load_rubric_file, rubric_schema
from harness.rubric.finding import Finding
from harness.rubric.judging.evaluator import Evaluator
from harness.rubric.judging.judge import Ask
from harness.rubric.judging.noise import Noise, load_noise, measured_noise, write_noise
from harness.rubric.judging.settled import Rescore
from harness.rubric.rubric import Cap, Dimension, JudgeMode, Rubric, Scale, Shortening
from harness.rubric.verdict import (
    Combine,
    DimensionScore,
    Judges,
    Shortened,
    Verdict,
    half_up,
    reach_verdict,
)

__all__ = [
    "Ask",
    "Cap",
    "Combine",
    "Dimension",
    "DimensionScore",
    "Draft",
    "Evaluator",
    "Finding",
    "JudgeMode",
    "Judges",
    "Noise",
    "Refuse",
    "Rescore",
    "Rubric",
    "Scale",
    "Shortened",
    "Shortening",
    "Verdict",
    "half_up",
    "load_noise",
    "load_rubric",
    "load_rubric_file",
    "measured_noise",
    "reach_verdict",
    "rubric_schema",
    "write_noise",
]
