"""Runs of small pipelines on scripted models, and what is looked up of them afterwards."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
from sample_runs import load_run

from harness import NodeFailed, Pipeline, ScriptedBackend, Settings
from harness.errors import HarnessError

GOOD = (
    "A cold start takes 8 to 15 s from disk. Keeping the model loaded between calls removes it, "
    "so the next call begins at once and needs less than 0.2 s."
)
"""Passes the rubric `answer`, with this source."""
SOURCE = GOOD + " The server must read the weights from disk."
BAD = "It takes 900 years."

ONE_QUESTION = """\
title: One question
pass_at: 8
repeats: 1
dimensions:
  - name: length
    checks: [{ check: words, min: 1, max: 5000 }]
  - name: relevance
    weight: 3
    judge: Is the task answered?
"""


class Charging(ScriptedBackend):
    """Says what its replies cost: a quarter of a dollar each."""

    async def chat(self, request):
        return replace(await super().chat(request), cost_usd=0.25)


class Calls:
    """What nodes did; no part of their code, as a list would be."""

    def __init__(self):
        self.made = []

    def note(self, call):
        """Takes it down; says how many there are."""
        self.made.append(call)
        return len(self.made)


def settings_of(tmp_path, **tables):
    """Settings whose runs are written beside whatever else a test makes."""
    return Settings.model_validate({"traces": tmp_path / "traces", **tables})


def pipeline_of(*functions, name="one", limits=None, **policies):
    """A pipeline of these nodes, in this order."""
    pipeline = Pipeline(name, limits=limits)
    for function in functions:
        pipeline.node(**policies)(function)
    return pipeline


def idle():
    """A pipeline that calls no model."""

    def step() -> str:
        return ""

    return pipeline_of(step, name="idle")


def run(pipeline, settings, inputs=None, *, backends=None, **how):
    """Runs it; on a producer that says nothing, where no models are given."""
    if backends is None:
        backends = {} if settings.endpoints else {"producer": ScriptedBackend([])}
    return asyncio.run(
        pipeline.run_async(inputs or {}, settings=settings, backends=backends, **how)
    )


def fail(pipeline, settings, inputs=None, **how):
    """The error of a run that fails; its result is one of its attributes."""
    with pytest.raises(NodeFailed) as caught:
        run(pipeline, settings, inputs, **how)
    return caught.value


@contextmanager
def refused(code):
    """Expects an error with this code, or a node that failed of one."""
    with pytest.raises(HarnessError) as caught:
        yield caught
    error = caught.value
    while isinstance(error, NodeFailed) and error.__cause__ is not None:
        error = error.__cause__
    assert error.code == code


def codes(notices):
    return [one.code for one in notices]


def spans_of(result, name):
    """The attributes of the record's spans of one name."""
    return [
        dict(one.attributes) for one in load_run(result.files.journal).spans if one.name == name
    ]


def instants_of(result, name):
    record = load_run(result.files.journal)
    return [dict(one.attributes) for one in record.instants if one.name == name]


def lines_of(settings):
    """The audit log of all runs."""
    return [json.loads(line) for line in (settings.traces / "runs.jsonl").read_text().splitlines()]


def line_of(result):
    """The run's own, the last."""
    return json.loads(result.files.audit_log.read_text().splitlines()[-1])
