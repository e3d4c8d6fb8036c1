"""The report of a run, as a person reads it and as a script does."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import pytest
from golden import assert_shown, printed

from harness import Pipeline, Run, ScriptedBackend, Settings
from harness.cli.consoles import Shown, json_object
from harness.cli.rounds import changes, print_rounds, rounds_as_json
from harness.cli.run_result import print_failure, print_result, result_fields, spent_line
from harness.graph.outcome import Rerun
from harness.inference import Spent
from harness.session import RunResult
from harness.trace import Journal
from harness.wiggum.policy import StopReason

GOOD = "The server must read the weights from disk before it can process the prompt, in 8 s or so."


def as_json(result: RunResult) -> Any:
    return json.loads(json_object(result_fields(result)))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    pipeline = Pipeline("answering")

    @pipeline.node
    async def text(run: Run) -> str:
        draft = "It takes 900 years."
        return (await run.wiggum("Why?", sources=[GOOD], rubric="answer", draft=draft)).text

    return asyncio.run(
        pipeline.run_async(
            {},
            settings=Settings(traces=tmp_path_factory.mktemp("traces")),
            backends={"producer": ScriptedBackend([GOOD])},
        )
    )


def shown(result: RunResult, *, width: int = 100) -> str:
    return printed(lambda console: print_result(result, console, console), width=width)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("/there/bin/harness", "bin/harness trace"),
        ("/my place/bin/harness", "my place/bin/harness' trace"),
        ("/there/__main__.py", "-m harness trace"),
    ],
)
def test_the_next_steps_are_typed_as_the_command_was(
    result: RunResult, program: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sys.argv", [program])

    assert said in " ".join(shown(result).split())


SPENT = Spent(
    calls=3, input_tokens=1_200, output_tokens=90, estimated_calls=1, cost_usd=0.0125,
    unpriced_calls=1,
)  # fmt: skip
CHANGED: dict[str, dict[str, Any]] = {
    "whole": {},
    "tried again": {"retries": {"findings[2]": 2, "writer": 1}},
    "resumed": {"parts": 2, "replies_used_again": 3},
    "its one call made again": {
        "parts": 2,
        "reruns": (Rerun(node="text", reason="rubric 'answer' changed"),),
    },
    "markup in its text": {"result": "[bold]x[/bold] ]"},
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_report_has_the_text_the_rounds_what_was_asked_to_change_the_models_and_the_files(
    result: RunResult, case: str
) -> None:
    text = shown(replace(result, **CHANGED[case]))
    assert_shown("run report", case, text, masks=masks(result))


def test_a_failed_run_says_what_was_spent_and_how_its_figures_were_come_by(
    result: RunResult,
) -> None:
    failed = replace(result, status="failed", spent=SPENT)
    text = printed(partial(print_failure, failed))
    assert_shown("run report", "failed", text, masks=masks(result))


def test_an_endpoint_whose_server_changed_its_model_is_counted_by_what_answered(
    result: RunResult,
) -> None:
    (use,) = result.models
    assert use.answered_by == {"producer": 1}
    changed = replace(use, answered_by={"first": 400, "second [b]": 200})
    line = spent_line(replace(result, models=(changed,)))
    assert "Answered by producer ('first': 400, 'second [b]': 200)." in line
    assert "Other calls" not in line
    spent = replace(result.spent, calls=result.spent.calls + 3)
    assert "Other calls: 3 (probes" in spent_line(replace(result, spent=spent))


def masks(result: RunResult) -> dict[str, str]:
    return {
        str(result.files.journal.parent): "traces",
        r"\d+\.\d s": "0.0 s",
        r"\S+( -m harness)? (view|trace \w+) \S*\d+T.*": r"harness \2 RUN",
    }


def test_the_rounds_of_a_recorded_run_have_all_that_its_report_shortens(result: RunResult) -> None:
    journal = Journal(result.files.journal)

    assert_shown("trace rounds", "two rounds", printed(partial(print_rounds, journal), width=100))
    (loop,) = rounds_as_json(journal)
    said = as_json(result)["loops"][0]
    as_written = json.loads(json.dumps(loop, default=str))
    for one, other in zip(as_written["rounds"], said["rounds"], strict=True):
        assert one == {name: value for name, value in other.items() if name != "spent"}


def test_what_changed_is_told_by_section_where_the_sections_are_the_same() -> None:
    before, after = "# A\n\none\n\n# B\n\ntwo\n", "# A\n\none\n\n# B\n\nthree\n"

    assert changes(before, after) == [("B", "two\n", "three\n")]
    assert changes(before, "# A\n\none\n") == [(None, before, "# A\n\none\n")]
    assert str(changes(before, after)[0].shown(chars=4)) == "B\n- two\n+ …"


def test_a_long_change_is_shown_from_where_it_begins():
    same = " ".join(f"word{n}" for n in range(30))
    (change,) = changes(f"# A\n\n{same} is old.\n", f"# A\n\n{same} is new, and longer.\n")

    assert str(change.shown(chars=60)) == (
        "A\n- … word27 word28 word29 is old.\n+ … word27 word28 word29 is new, and longer."
    )
    assert "word0 word1" in str(change.shown())


def test_json_says_what_was_tried_or_not_asked_again(result: RunResult) -> None:
    assert as_json(replace(result, retries={"writer": 1}))["retries"] == {"writer": 1}
    assert as_json(replace(result, replies_used_again=3))["replies_used_again"] == 3


def test_the_result_is_printed_apart_from_all_the_rest(result: RunResult) -> None:
    out, aside = (Shown(file=io.StringIO(), width=200) for _ in range(2))
    print_result(result, out, aside)
    assert isinstance(out.file, io.StringIO)
    assert out.file.getvalue() == f"{result.result}\n"


def test_every_reason_to_stop_has_words(result: RunResult) -> None:
    loops = [
        replace(result.loops[0], stop_reason=reason, stop_detail="what there is to say")
        for reason in get_args(StopReason)
    ]
    lines = shown(replace(result, loops=tuple(loops))).splitlines()
    stops = [line for line in lines if line.startswith("Stopped: ")]
    assert len(stops) == len(loops)
    assert_shown("run report", "reasons to stop", "\n".join(stops))


def test_json_has_what_each_round_changed_and_took(result: RunResult) -> None:
    loop = as_json(result)["loops"][0]
    first, second = loop["rounds"]
    assert loop["spent"]["calls"] == 1
    assert (first["base_round"], first["changed_chars"]) == (None, 0)
    assert (second["base_round"], second["spent"]["calls"]) == (1, 1)
    assert second["changed_chars"] == len(first["draft"]) + len(second["draft"])
    assert second["judges"] is None
    assert (second["unjudged"], second["gates"]) == (["relevance"], [])


def test_paths_are_not_folded(result: RunResult) -> None:
    assert f"{result.files.journal}, .json, .pftrace" in shown(result, width=60)


def test_failed_calls_are_not_told_as_some_of_those_that_reached_a_server(
    result: RunResult,
) -> None:
    (model,) = result.models
    unreached = replace(
        result,
        spent=replace(result.spent, calls=0),
        models=(replace(model, calls=140, failed=140),),
    )
    assert "calls: 0;" in spent_line(unreached)
    assert "Failed calls: 140." in spent_line(unreached)
    assert "of the calls" not in spent_line(unreached)
