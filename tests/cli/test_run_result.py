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
from rich.console import Console

from harness import Pipeline, Run, ScriptedBackend, Settings
from harness.cli.consoles import json_object
from harness.cli.rounds import changes, print_rounds, rounds_as_json
from harness.cli.run_result import print_failure, print_result, result_fields, spent_line
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


def test_a_report_has_the_text_the_rounds_what_was_asked_to_change_the_models_and_the_files(
    result: RunResult,
) -> None:
    masks = {
        str(result.files.journal.parent): "traces",
        result.run_id: "RUN",
        r"\d+\.\d s": "0.0 s",
        r" [^ ]+ (view|trace \w+) RUN .*": r" harness \1 RUN",
    }
    assert_shown("run report", shown(result), masks=masks)


def test_the_rounds_of_a_recorded_run_have_all_that_its_report_shortens(result: RunResult) -> None:
    journal = Journal(result.files.journal)

    assert_shown("trace rounds", printed(partial(print_rounds, journal), width=100))
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


def test_figures_say_how_they_were_come_by(result: RunResult) -> None:
    tokens = {"input_tokens": 1_200, "output_tokens": 90, "estimated_calls": 1}
    spent = Spent(calls=3, **tokens, cost_usd=0.0125, unpriced_calls=1)
    said = (
        "The run took 0.0 s; calls: 3; tokens in: about 1,200, out: about 90; dollars: 0.0125, "
        "without 1 of the calls, whose price is unknown."
    )
    failed = replace(result, status="failed", spent=spent)
    assert said in " ".join(printed(partial(print_failure, failed)).split())


def test_what_was_tried_again_is_said_to_people_and_to_scripts(result: RunResult) -> None:
    again = replace(result, retries={"findings[2]": 2, "writer": 1})
    said = shown(again)
    assert [name for name in ("findings[2]: 2", "writer: 1") if name not in said] == []
    assert as_json(again)["retries"] == again.retries


def test_a_resumed_run_says_what_was_not_asked_again(result: RunResult) -> None:
    resumed = replace(result, parts=2, replies_used_again=3)
    assert "3 replies" in shown(resumed)
    assert "All 2 parts of the run took" in spent_line(resumed)
    assert "none of them" not in shown(resumed)
    assert as_json(resumed)["replies_used_again"] == 3


def test_the_result_is_printed_apart_from_all_the_rest(result: RunResult) -> None:
    out, aside = (Console(file=io.StringIO(), width=200) for _ in range(2))
    print_result(result, out, aside)
    assert isinstance(out.file, io.StringIO)
    assert out.file.getvalue() == f"{result.result}\n"


def test_every_reason_to_stop_has_words(result: RunResult) -> None:
    for reason in get_args(StopReason):
        loop = replace(result.loops[0], stop_reason=reason, stop_detail="what there is to say")
        assert f"Stopped: {reason} (" in shown(replace(result, loops=(loop,)))


def test_json_has_what_each_round_changed_and_took(result: RunResult) -> None:
    loop = as_json(result)["loops"][0]
    first, second = loop["rounds"]
    assert loop["spent"]["calls"] == 1
    assert (first["base_round"], first["changed_chars"]) == (None, 0)
    assert (second["base_round"], second["spent"]["calls"]) == (1, 1)
    assert second["changed_chars"] == len(first["draft"]) + len(second["draft"])
    assert second["judges"] is None
    assert (second["unjudged"], second["gates"]) == (["relevance"], [])


def test_paths_are_not_folded_and_markup_in_a_text_is_printed_as_it_is(result: RunResult) -> None:
    text = shown(replace(result, result="[bold]x[/bold] ]"), width=60)
    assert f"{result.files.journal}, .json, .pftrace" in text
    assert "[bold]x[/bold] ]" in text
