"""`harness rubric score` as a rubric's author meets it: tables or JSON, and exit codes."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from scripted_judge import Scores, reply_to
from servers.emulated import Answer, Asked, Emulated
from servers.openai_server import event

from harness.trace import load_run

COMMAND = Path(sys.executable).with_name("harness")

RUBRIC = """\
title: Notes
pass_at: 8
repeats: 1
dimensions:
  - name: length
    checks: [{ check: words, min: 5, max: 40 }]
  - name: clear
    weight: 3
    floor: 4
    judge: Is it clear?
"""

DRAFTS = {
    "good.md": "Keeping the model loaded between calls removes the cold start.\n",
    "fair.md": "The model is kept loaded, which helps with all sorts of things.\n",
    "poor.md": "Things happen and are then kept as they were before that, or not.\n",
}
SCORES = {"good": 9.0, "fair": 7.0, "poor": 3.0}
"""By the draft; the composites are (10 + 3 * score) / 4, rounded: 9.3, 7.8 and 4.8."""


def by_draft(prompt: str) -> float:
    """What the judge gives to the draft that it is shown."""
    name = next(name for name, text in DRAFTS.items() if text.strip() in prompt)
    return SCORES[name.removesuffix(".md")]


@dataclass
class Judge(Emulated):
    """A server of OpenAI's protocol whose model judges."""

    score: Callable[[str], Scores] = field(kw_only=True)
    """By the conversation so far."""

    async def respond(self, asked: Asked, answer: Answer) -> None:
        """Answers one request."""
        if not asked.path.endswith("/chat/completions"):
            await answer.json({"error": {"message": "Not Found"}}, status=404)
            return
        prompt = "\n".join(message["content"] for message in asked.body["messages"])
        schema = asked.body["response_format"]["json_schema"]["schema"]
        text = reply_to(schema, self.score(prompt), reason="It could say how much.")
        await answer.start("text/event-stream")
        for delta, finish in (({"content": text}, None), ({}, "stop")):
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            await answer.send(event({"model": "judge", "choices": [choice]}))
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        await answer.send(event({"model": "judge", "choices": [], "usage": usage}))
        await answer.send(b"data: [DONE]\n\n")
        await answer.end()


@dataclass(frozen=True)
class Done:
    """What the command did."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def result(self) -> Any:
        return json.loads(self.stdout)

    @property
    def text(self) -> str:
        """Without line breaks."""
        return " ".join(self.stdout.split())


@dataclass
class Unwilling(Judge):
    """Refuses to judge the fair draft."""

    async def respond(self, asked: Asked, answer: Answer) -> None:
        """Answers one request."""
        if DRAFTS["fair.md"].strip() not in str(asked.body):
            await super().respond(asked, answer)
            return
        await answer.json({"error": {"message": "I would rather not."}}, status=400)


@dataclass
class Slow(Judge):
    """Never judges the fair draft."""

    waits: asyncio.Event = field(default_factory=asyncio.Event)
    """That it was asked to."""

    async def respond(self, asked: Asked, answer: Answer) -> None:
        """Answers one request."""
        if DRAFTS["fair.md"].strip() not in str(asked.body):
            await super().respond(asked, answer)
            return
        self.waits.set()
        await answer.hold()


async def start(
    *arguments: str, cwd: Path, endpoints: Mapping[str, Any] | None = None
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        COMMAND,
        "rubric",
        *arguments,
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HARNESS_ENDPOINTS": json.dumps(endpoints or {})},
        stdout=PIPE,
        stderr=PIPE,
    )


async def end(process: asyncio.subprocess.Process) -> Done:
    async with asyncio.timeout(120):
        stdout, stderr = await process.communicate()
    assert process.returncode is not None
    return Done(process.returncode, stdout.decode(), stderr.decode())


async def harness(*arguments: str, cwd: Path, endpoints: Mapping[str, Any] | None = None) -> Done:
    return await end(await start(*arguments, cwd=cwd, endpoints=endpoints))


def endpoint_of(server: Judge) -> dict[str, Any]:
    return {"url": f"{server.root}/v1", "model_id": "judge", "structured": "enforced"}


def alone(*arguments: str, cwd: Path) -> Done:
    """Without an evaluator."""
    return asyncio.run(harness(*arguments, cwd=cwd))


def judged(
    *arguments: str, cwd: Path, score: Callable[[str], Scores] = by_draft
) -> tuple[Done, int]:
    """With one; and how many requests it got."""

    async def run() -> tuple[Done, int]:
        async with Judge(score=score) as server:
            endpoints = {"evaluator": endpoint_of(server)}
            done = await harness(*arguments, cwd=cwd, endpoints=endpoints)
            return done, len(server.asked)

    return asyncio.run(run())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "notes.yaml").write_text(RUBRIC)
    for name, text in DRAFTS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


# --- with an evaluator -----------------------------------------------------------------------


def test_each_draft_is_told_its_scores_why_not_more_and_whether_it_passed(project: Path) -> None:
    done, _ = judged(
        "score", "notes.yaml", "good.md", "poor.md", "--task", "Be clear.", cwd=project
    )
    assert done.returncode == 0, done.stderr
    assert "It could say how much." in done.text
    assert "Composite 9.3: passed (needed: 8)." in done.text
    assert "Composite 4.8: not passed (needed: 8, and clear 3 is below its floor 4)." in done.text
    assert "Judged by evaluator." in done.text
    assert "Side by side" in done.text


def test_another_threshold_is_told_draft_by_draft_without_another_call(project: Path) -> None:
    drafts = list(DRAFTS)
    done, calls = judged("score", "notes.yaml", *drafts, "--pass-at", "7", cwd=project)
    assert "Pass at 8, as the rubric has it: 1 of 3; at 7: 2 of 3." in done.text
    assert "fair.md (7.8) would pass." in done.text
    assert calls == len(drafts)


def test_a_floor_still_fails_a_draft_whatever_the_threshold(project: Path) -> None:
    done, _ = judged("score", "notes.yaml", *DRAFTS, "--pass-at", "4", cwd=project)
    assert "at 4: 2 of 3." in done.text
    assert "poor.md (4.8) still would not: clear is below its floor." in done.text


def test_json_is_one_object_with_what_was_found_of_each_draft(project: Path) -> None:
    arguments = ("score", "notes.yaml", *DRAFTS, "--pass-at", "7", "--json")
    done, _ = judged(*arguments, cwd=project)
    result = done.result
    assert [one["draft"] for one in result["drafts"]] == list(DRAFTS)
    assert [one["composite"] for one in result["drafts"]] == [9.3, 7.8, 4.8]
    assert [one["passed"] for one in result["drafts"]] == [True, False, False]
    assert [one["passes_at"] for one in result["drafts"]] == [True, True, False]
    assert result["drafts"][0]["judges"]["evaluators"] == ["evaluator"]
    assert result["drafts"][2]["below_floor"] == ["clear"]
    assert (result["rubric"], result["pass_at"], result["other_pass_at"]) == ("notes", 8, 7)
    assert len(result["rubric_sha256"]) == 64


def test_scoring_leaves_a_run_like_any_other(project: Path) -> None:
    done, _ = judged("score", "notes.yaml", "good.md", "--json", cwd=project)
    record = load_run(project / done.result["journal"])
    assert record.ended is not None
    assert record.ended.status == "ok"
    (evaluation,) = [span for span in record.spans if span.name == "evaluate"]
    calls = [span for span in record.spans if span.name == "chat"]
    assert [call.parent for call in calls] == [evaluation.id]
    assert len((project / "traces/runs.jsonl").read_text().splitlines()) == 1


def test_sources_and_task_reach_the_evaluator(project: Path) -> None:
    (project / "task.txt").write_text("Explain cold starts.")
    (project / "a.md").write_text("Source A says 8 s.")
    (project / "b.md").write_text("Source B says 15 s.")

    def score(prompt: str) -> float:
        wanted = ("Explain cold starts.", "Source A says 8 s.", "Source B says 15 s.")
        return 9.0 if all(text in prompt for text in wanted) else 1.0

    given = ("--task", "@task.txt", "--sources", "a.md", "--sources", "b.md")
    done, _ = judged("score", "notes.yaml", "good.md", *given, "--json", cwd=project, score=score)
    assert done.result["drafts"][0]["passed"] is True


def test_a_draft_that_cannot_be_judged_is_named_and_the_others_are_scored(project: Path) -> None:
    def score(prompt: str) -> float:
        return 999.0 if DRAFTS["fair.md"].strip() in prompt else 9.0

    done, _ = judged("score", "notes.yaml", *DRAFTS, "--json", cwd=project, score=score)
    assert done.returncode == 1
    found = {one["draft"]: one["error"] for one in done.result["drafts"]}
    assert found["good.md"] is None
    assert found["poor.md"] is None
    assert found["fair.md"]


@pytest.mark.parametrize("command", ["score", "noise"])
def test_a_call_that_fails_on_one_draft_leaves_what_the_others_got(
    project: Path, command: str
) -> None:
    async def run() -> Done:
        async with Unwilling(score=by_draft) as server:
            endpoints = {"evaluator": endpoint_of(server)}
            given = ("notes.yaml", "good.md", "poor.md", "fair.md", "--json")
            return await harness(command, *given, cwd=project, endpoints=endpoints)

    done = asyncio.run(run())
    assert done.returncode == 1
    good, poor, fair = (one["error"] for one in done.result["drafts"])
    assert (good, poor) == (None, None)
    assert "I would rather not." in fair


@pytest.mark.parametrize("command", ["score", "noise"])
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"]
)
def test_interrupted_it_closes_the_run_as_far_as_it_came(
    project: Path, command: str, number: signal.Signals, code: int
) -> None:
    async def run() -> Done:
        async with Slow(score=by_draft) as server:
            endpoints = {"evaluator": endpoint_of(server)}
            given = ("notes.yaml", "good.md", "fair.md")
            process = await start(command, *given, cwd=project, endpoints=endpoints)
            async with asyncio.timeout(60):
                await server.waits.wait()
            process.send_signal(number)
            return await end(process)

    done = asyncio.run(run())
    assert (done.returncode, done.stdout, done.stderr.strip()) == (code, "", "interrupted")
    (journal,) = (project / "traces").glob("2*.jsonl")
    record = load_run(journal)
    assert record.ended is not None
    assert record.ended.status == "cancelled"
    name = "evaluate" if command == "score" else "measure noise"
    assert [span.status for span in record.spans if span.name == name] == ["ok", "cancelled"]


# --- without one -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "why"),
    [
        pytest.param((), "no evaluator model is configured", id="no evaluator"),
        pytest.param(("--checks-only",), "--checks-only was given", id="--checks-only"),
    ],
)
def test_without_an_evaluator_the_checks_are_scored_and_what_was_not_judged_is_said(
    project: Path, more: tuple[str, ...], why: str
) -> None:
    done = alone("score", "notes.yaml", *DRAFTS, *more, cwd=project)
    assert done.returncode == 0, done.stderr
    assert f"Not judged, since {why}: clear." in done.text
    assert "Composite 10.0: of the checks alone; whether it passes is not known" in done.text
    as_json = alone("score", "notes.yaml", "good.md", *more, "--json", cwd=project).result
    (draft,) = as_json["drafts"]
    assert (draft["passed"], draft["unjudged"]) == (None, ["clear"])


def test_checks_only_asks_no_model_though_there_is_one(project: Path) -> None:
    done, calls = judged("score", "notes.yaml", "good.md", "--checks-only", cwd=project)
    assert (done.returncode, calls) == (0, 0)


def test_a_check_that_shuts_a_floor_decides_without_a_judge(project: Path) -> None:
    text = RUBRIC.replace("    checks: [{ check: words, min: 5, max: 40 }]", FLOORED)
    (project / "notes.yaml").write_text(text)
    (project / "short.md").write_text("Too short.\n")
    done = alone("score", "notes.yaml", "short.md", "--json", cwd=project)
    assert done.result["drafts"][0]["passed"] is False


FLOORED = "    floor: 5\n    checks: [{ check: words, min: 500, max: 4000 }]"


def test_a_rubric_that_counts_without_a_judge_decides_without_one(project: Path) -> None:
    done = alone("score", "answer", "good.md", "--sources", "good.md", "--json", cwd=project)
    assert done.result["drafts"][0]["passed"] in {True, False}


# --- mistakes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["nots", "good.md"], "there is no rubric 'nots'", id="no such rubric"),
        pytest.param(["broken.yaml", "good.md"], "broken.yaml:3: ", id="broken rubric"),
        pytest.param(["notes.yaml", "none.md"], "none.md: draft cannot be read", id="no draft"),
        pytest.param(["notes.yaml", "empty.md"], "empty.md: draft is empty", id="empty draft"),
        pytest.param(
            ["notes.yaml", "good.md", "--sources", "none.md"],
            "none.md: source cannot be read",
            id="no source",
        ),
        pytest.param(
            ["notes.yaml", "good.md", "--task", "@none.txt"],
            "none.txt: task cannot be read",
            id="no task",
        ),
        pytest.param(
            ["notes.yaml", "good.md", "--pass-at", "11"], "outside the rubric's scale", id="scale"
        ),
        pytest.param(
            ["notes.yaml", "good.md", "--pass-at", "7,5"],
            "'7,5' is not a number, such as 8 or 7.5",
            id="decimal comma",
        ),
        pytest.param(
            ["judged.yaml", "good.md", "--checks-only"], "leaves nothing to score", id="no checks"
        ),
        pytest.param(["judged.yaml", "good.md"], "no evaluator is configured", id="no evaluator"),
        pytest.param(
            ["notes.yaml", "good.md", "--role", "evaluator=x"], "no endpoint is called", id="role"
        ),
        pytest.param(["notes.yaml"], "DRAFT", id="nothing to score"),
    ],
)
def test_what_is_not_usable_is_said_with_exit_code_2(
    project: Path, arguments: list[str], said: str
) -> None:
    (project / "broken.yaml").write_text("title: X\ndimensions:\n  - nmae: a\n")
    (project / "judged.yaml").write_text(
        "title: X\ndimensions:\n  - name: clear\n    judge: Is it?\n"
    )
    (project / "empty.md").write_text(" \n")
    done = alone("score", *arguments, cwd=project)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_what_is_not_usable_is_said_as_json_too(project: Path) -> None:
    done = alone("score", "nots", "good.md", "--json", cwd=project)
    assert done.returncode == 2
    assert done.result["error"]["type"] == "RubricInvalid"
    assert "there is no rubric 'nots'" in done.result["error"]["message"]


def test_an_evaluator_out_of_reach_is_exit_code_1_and_says_so_as_json_too(project: Path) -> None:
    dead = {"evaluator": {"url": "http://127.0.0.1:9/v1", "model_id": "judge"}}
    done = asyncio.run(
        harness("score", "notes.yaml", "good.md", "--json", cwd=project, endpoints=dead)
    )
    assert done.returncode == 1
    assert "nothing answers at http://127.0.0.1:9/v1" in done.stderr
    assert done.result["error"]["type"] == "EndpointUnreachable"
