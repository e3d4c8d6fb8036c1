"""`harness evaluate`: a data set in; scores, figures and failures out."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from command import COMMAND, ENVIRONMENT, harness, serving
from golden import assert_shown
from servers.openai_dialects import DIALECTS
from servers.openai_server import OpenAIServer

QA = """\
from harness import Evaluation, Pipeline

flow = Pipeline("flow")

@flow.node
def answer(question: str) -> str:
    return {"2+2": "4", "3+3": "5"}[question]

def near(output, target):
    if target == "9":
        raise ValueError("nine")
    return 1 - abs(int(output) - int(target)) / 10

qa = Evaluation(
    flow, dataset="q.csv", rubric="right", scorers=[near], epochs=2, reduce="mean", name="qa"
)
"""
RIGHT = """\
title: Right
pass_at: 8
dimensions:
  - name: right
    checks: [{ check: target, match: number }]
"""
ROWS = "id,question,target\na,2+2,4\nb,3+3,6\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "qa.py").write_text(QA)
    (tmp_path / "flow.py").write_text(QA.partition("qa = ")[0])
    (tmp_path / "rubrics").mkdir()
    (tmp_path / "rubrics" / "right.yaml").write_text(RIGHT)
    (tmp_path / "q.csv").write_text(ROWS)
    return tmp_path


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_evaluation_of_a_file_is_run_and_goes_on(project: Path) -> None:
    done = harness("evaluate", "qa.py", cwd=project)
    assert_shown("evaluate", "two epochs", done)
    again = harness("evaluate", "qa.py", cwd=project)
    assert_shown("evaluate", "nothing left to do", again)
    more = harness("evaluate", "qa.py", "--epochs", "3", "--json", cwd=project).json
    assert (more["done"], more["kept"], more["epochs"]) == (6, 4, 3)
    assert len(lines(project / "evaluations" / "qa.jsonl")) == 6


def test_options_replace_what_the_file_says(project: Path) -> None:
    (project / "other.csv").write_text("id,q,answer,kind\nx,2+2,4,sums\n")
    done = harness(
        *("evaluate", "qa.py", "--dataset", "other.csv", "--columns", "question=q"),
        *("--columns", "target=answer", "--epochs", "1", "--category", "kind"),
        *("--output", "o.csv", "--json"),
        cwd=project,
    )
    assert done.exit_code == 0, done.stderr
    near = next(score for score in done.json["scores"] if score["name"] == "near")
    assert near["categories"]["sums"]["mean"] == 1.0


def test_a_pipeline_is_evaluated_without_an_evaluation(project: Path) -> None:
    command = ("evaluate", "flow.py", "--dataset", "q.csv", "--output", "o.jsonl", "--json")
    done = harness(*command, "--score", "number", "--score", "equal", cwd=project)
    assert done.exit_code == 0, done.stderr
    assert [score["name"] for score in done.json["scores"]] == ["number", "equal"]
    rescored = harness(*command, "--rubric", "right", "--rescore", cwd=project).json
    assert rescored["scores"][0]["name"] == "right"


def test_a_prompt_needs_no_python(project: Path) -> None:
    with serving(OpenAIServer(dialect=DIALECTS["vllm"])) as server:
        (project / "harness.toml").write_text(
            f'[endpoints.writer]\nbackend = "vllm"\nurl = "{server.url}"\n'
            '[roles]\nproducer = "writer"\n'
        )
        done = harness(
            *("evaluate", "--dataset", "q.csv", "--prompt", "What is {question}?"),
            *("--score", "includes", "--epochs", "2", "--json"),
            cwd=project,
        )
    assert (done.exit_code, done.json["done"]) == (0, 4)
    assert done.json["output"] == "evaluations/prompt.jsonl"


def test_another_prompt_says_how_many_outputs_leave_the_file(project: Path) -> None:
    rows = ("--dataset", "q.csv", "--score", "includes", "--epochs", "2")
    with serving(OpenAIServer(dialect=DIALECTS["vllm"])) as server:
        (project / "harness.toml").write_text(
            f'[endpoints.writer]\nbackend = "vllm"\nurl = "{server.url}"\n'
            '[roles]\nproducer = "writer"\n'
        )

        def leaving(prompt: str, *options: str) -> bool:
            done = harness("evaluate", *rows, "--prompt", prompt, *options, cwd=project)
            assert done.exit_code == 0
            said = "prompts that are not given now, which leave it: 4"
            return said in done.stderr and "batch.outputs-leave" in done.stderr

        first, second = "What is {question}?", "{question} = ?"
        assert not leaving(first)
        assert not leaving(second, "--output", "second.jsonl")
        assert leaving(second, "--dry-run")
        assert leaving(second)
        assert not leaving(second), "nothing of the first is there any more"
        assert leaving(first)


def test_a_scorer_that_raises_leaves_the_other_scores(project: Path) -> None:
    (project / "q.csv").write_text(ROWS.replace("b,3+3,6", "b,3+3,9"))
    done = harness("evaluate", "qa.py", "--epochs", "1", cwd=project)
    assert_shown("evaluate", "a scorer that raises", done)


def test_a_scorer_that_blocks_does_not_outlive_an_interruption(project: Path) -> None:
    stops = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(100)"
    blocked = QA.replace('    if target == "9":', f"    {stops}\n    if target:")
    (project / "qa.py").write_text(blocked)
    command = [COMMAND, "evaluate", "qa.py"]
    done = subprocess.run(command, cwd=project, env=ENVIRONMENT, check=False, timeout=60)
    assert done.returncode == 130


@pytest.mark.parametrize(
    "command",
    [
        "",
        "qa.py --prompt x",
        "--prompt x --prompt y --dataset q.csv --score equal",
        "qa.py --rubric right --rubric strict",
        "flow.py --score number",
        "flow.py --dataset q.csv",
        "flow.py --dataset q.csv --score best",
        "qa.py --reduce pass_at_5",
        "qa.py --rescore",
        "qa.py --columns target=nope",
        "qa.py --columns question=quest",
    ],
)
def test_a_mistake_is_told_before_anything_runs(project: Path, command: str) -> None:
    refused = harness("evaluate", *command.split(), cwd=project)
    assert refused.exit_code == 2
    assert_shown("evaluate", f"refused: {command}", refused.stderr)
    assert not (project / "traces").exists()


def test_rows_without_a_target_are_named_by_line(project: Path) -> None:
    (project / "q.csv").write_text("id,question,target\na,2+2,4\nb,3+3,\n")
    refused = harness("evaluate", "qa.py", cwd=project)
    assert_shown("evaluate", "a row without a target", refused)


def test_a_dry_run_says_what_would_be_made_and_scored(project: Path) -> None:
    def dry_run() -> list[int]:
        plan = harness("evaluate", "qa.py", "--dry-run", "--json", cwd=project).json
        return [plan[name] for name in ("kept", "new", "unscored")]

    assert_shown("evaluate", "a dry run", harness("evaluate", "qa.py", "--dry-run", cwd=project))
    assert dry_run() == [0, 4, 4]
    harness("evaluate", "qa.py", cwd=project)
    assert dry_run() == [4, 0, 0]
    right = project / "rubrics" / "right.yaml"
    right.write_text(RIGHT.replace("number", "equal"))
    assert dry_run() == [4, 0, 4]


def test_rescoring_says_first_how_much_is_judged_and_by_whom(project: Path) -> None:
    (project / "harness.toml").write_text(
        '[roles]\nevaluator = "away"\n[endpoints.away]\nurl = "http://127.0.0.1:9/v1"\n'
        'model_id = "m"\nretry = { max_attempts = 1 }\n'
    )
    clear = RIGHT.replace("Right", "Clear").replace("checks: [{ check: target", "judge: Is it\n#")
    (project / "rubrics" / "clear.yaml").write_text(clear)
    harness("evaluate", "qa.py", cwd=project)
    command = ("evaluate", "qa.py", "--rubric", "clear", "--rescore")
    foreseen = harness(*command, "--dry-run", cwd=project)
    judged = harness(*command, "--json", cwd=project)
    assert "To be judged by away: 4.\n" in foreseen.stdout
    assert "To be judged by away: 4.\n" in judged.stderr
    assert judged.exit_code == 1
    settings = (project / "harness.toml").read_text()
    far = settings.partition("[endpoints.away]")[2].replace('"m"', '"n"')
    panel = settings.replace('"away"', '["away", "far"]\n[evaluation]\npanel = "mean"')
    (project / "harness.toml").write_text(f"{panel}[endpoints.far]{far}")
    foreseen = harness(*command, "--dry-run", cwd=project)
    assert "To be judged by away and far: 4.\n" in foreseen.stdout


def test_two_evaluations_are_compared_row_by_row(project: Path) -> None:
    rows = "".join(f"{n},2+2,{4 + n % 2}\n" for n in range(20))
    (project / "q.csv").write_text(f"id,question,target\n{rows}")
    harness("evaluate", "qa.py", "--output", "a.jsonl", cwd=project)
    (project / "qa.py").write_text(QA.replace('"2+2": "4"', '"2+2": "5"'))
    harness("evaluate", "qa.py", "--output", "b.csv", cwd=project)
    compared = harness("rubric", "compare", "a.jsonl", "b.csv", cwd=project)
    assert_shown("rubric compare", "two evaluations", compared)
    figures = harness("rubric", "compare", "a.jsonl", "b.csv", "--json", cwd=project).json
    assert figures["shifts"]["near"]["mean"]["first"] == pytest.approx(0.95)
    assert figures["shifts"]["near"]["mean"]["difference"]["low"] < 0
    unknown = harness("rubric", "compare", "a.jsonl", "b.csv", "--reduce", "best", cwd=project)
    assert unknown.exit_code == 2
    # As drafts, by the rubric, with labels that stand in the data set.
    labels = "".join(f"{n},2+2,{4 + n % 2},{'yes' if n % 2 else 'no'}\n" for n in range(20))
    (project / "q.csv").write_text(f"id,question,target,accept\n{labels}")
    harness("evaluate", "qa.py", "--output", "c.jsonl", cwd=project)
    tuned = harness("rubric", "tune", "right", "c.jsonl", "--json", cwd=project)
    assert tuned.exit_code == 0, tuned.stderr


def test_the_list_of_runs_shows_the_scores(project: Path) -> None:
    harness("evaluate", "qa.py", cwd=project)
    shown = harness("runs", cwd=project).text
    assert "evaluate qa" in shown
    assert "near 0.95" in shown
