"""What a run's result is, and what is said where there is none."""

from __future__ import annotations

import pytest
from session_runs import GOOD, codes, line_of, pipeline_of, refused, run, settings_of

from harness import Pipeline, Run, ScriptedBackend


@pytest.fixture
def settings(tmp_path):
    return settings_of(tmp_path)


def essay(*, wanted, result=None):
    """Two nodes, the last of which may be skipped."""
    pipeline = Pipeline("essay", result=result)

    @pipeline.node
    def answer(task: str) -> str:
        return task.upper()

    @pipeline.node(when=lambda answer: wanted and answer)
    def note(answer: str) -> str:
        return f"note on {answer}"

    return pipeline


def test_the_result_is_that_of_the_last_node_or_of_the_one_that_is_named(settings):
    inputs = {"task": "tea"}

    assert run(essay(wanted=True), settings, inputs).result == "note on TEA"
    named = run(essay(wanted=False, result="answer"), settings, inputs)
    assert (named.result, codes(named.warnings)) == ("TEA", [])


def test_a_result_is_of_a_node_that_there_is(settings):
    with refused("pipeline.result-unknown"):
        run(essay(wanted=True, result="anwser"), settings, {"task": "tea"})


def test_a_run_whose_result_was_skipped_says_so_also_when_it_is_read_again(settings):
    skipped = run(essay(wanted=False), settings, {"task": "tea"})
    again = run(essay(wanted=False), settings, resume="latest")

    assert skipped.result is None
    assert codes(skipped.warnings) == codes(again.warnings) == ["run.result-skipped"]
    assert line_of(skipped)["final"] == "SKIPPED"


def test_the_result_of_a_nested_pipeline_can_be_named(settings):
    async def outer(run: Run, task: str) -> object:
        return (await run.call(essay(wanted=True, result="answer"), task=task)).result

    assert run(pipeline_of(outer), settings, {"task": "tea"}).result == "TEA"


async def judged(run: Run, task: str) -> str:
    return (await run.wiggum(task, sources=[GOOD], rubric="answer")).text


async def asked(run: Run, task: str) -> str:
    return await run.chat("producer", task)


@pytest.mark.parametrize(("node", "final"), [(judged, "PASS"), (asked, "DONE")])
def test_only_what_was_judged_passes(settings, node, final):
    backends = {"producer": ScriptedBackend([GOOD])}

    result = run(pipeline_of(node), settings, {"task": "cold starts?"}, backends=backends)

    assert line_of(result)["final"] == final


def test_a_result_is_shown_in_a_line(settings):
    result = run(essay(wanted=True), settings, {"task": "tea " * 1000})
    assert result.run_id in repr(result)
    assert len(repr(result)) < 250
