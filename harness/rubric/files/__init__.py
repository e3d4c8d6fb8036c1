"""Rubric files: reading them, what they take from one another, advice to their authors."""

from harness.rubric.files.advice import Advice, advice_on
from harness.rubric.files.library import directories, known_rubrics
from harness.rubric.files.load import (
    RubricFile,
    load_rubric,
    load_rubric_file,
    read_rubric,
)
from harness.rubric.files.presets import PRESETS
from harness.rubric.files.schema import rubric_schema

__all__ = [
    "PRESETS",
    "Advice",
    "RubricFile",
    "advice_on",
    "directories",
    "known_rubrics",
    "load_rubric",
    "load_rubric_file",
    "read_rubric",
    "rubric_schema",
]
