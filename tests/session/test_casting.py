"""Who plays what in a run, and that its record, its line and its result say so."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from harness import Pipeline, Run, RunResult, ScriptedBackend, Settings, load_run, load_settings
from harness.errors import ConfigurationInvalid, SameFamily, SameModel
from harness.inference import ChatRequest

ENDPOINTS = """
[endpoints.qwen]
url = "http://127.0.0.1:1/v1"
model_id = "qwen2.5:7b"

[endpoints.qwen3]
url = "http://127.0.0.1:2/v1"
model_id = "qwen3:8b-q4_K_M"

[endpoints.llama]
url = "http://127.0.0.1:3/v1"
model_id = "llama3.1:8b"

[endpoints.mistral]
url = "http://127.0.0.1:4/v1"
model_id = "mistral:7b"

[endpoints.ours]
url = "http://127.0.0.1:5/v1"
model_id = "our-judge"
"""


POOL = """
[roles]
producer = "qwen"
evaluator = ["llama", " ", "qwen3", "mistral", "qwen"]
"""


def settings_of(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "harness.toml"
    path.write_text(f'traces = "traces"\n{text}{ENDPOINTS}')
    return load_settings(path, environment={})


def idle(tmp_path: Path, text: str, *, task: str = "") -> RunResult:
    """A run that calls no model."""
    pipeline = Pipeline("idle")

    @pipeline.node
    def step(task: str) -> str:
        return task

    with capture_logs():
        return asyncio.run(pipeline.run_async({"task": task}, settings=settings_of(tmp_path, text)))


def said(result: RunResult, name: str) -> list[dict[str, object]]:
    """The attributes of the record's instants of one name."""
    record = load_run(result.files.journal)
    return [dict(one.attributes) for one in record.instants if one.name == name]


def line_of(result: RunResult) -> dict[str, object]:
    line: dict[str, object] = json.loads(result.files.audit_log.read_text().splitlines()[-1])
    return line


# --- separation ------------------------------------------------------------------------------


def test_a_run_says_what_its_two_models_are_to_each_other(tmp_path: Path) -> None:
    result = idle(tmp_path, '[roles]\nproducer = "qwen"\nevaluator = "llama"')
    assert result.separation is not None
    assert (result.separation.producer, result.separation.evaluator) == ("qwen", "llama")
    assert result.separation.relation == "different"
    assert result.warnings == ()
    assert line_of(result)["separation"] == "different"
    (separation,) = said(result, "separation")
    assert separation["producer"] == {
        "model": "qwen",
        "weights": "qwen-2.5-7b",
        "family": "qwen",
        "quantisation": None,
        "source": "name",
    }


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param('[roles]\nproducer = "qwen"\nevaluator = "qwen"', SameModel, id="one model"),
        pytest.param(
            '[roles]\nproducer = "qwen"\nevaluator = "qwen3"', SameFamily, id="one family"
        ),
        pytest.param(
            '[roles]\nproducer = "qwen"\nevaluator = ["qwen", "qwen3"]',
            ConfigurationInvalid,
            id="an empty pool",
        ),
        pytest.param(
            '[endpoints.a]\nurl = "http://h/v1"\nfallback = ["lama"]',
            ConfigurationInvalid,
            id="an unknown fallback",
        ),
    ],
)
def test_what_the_settings_tell_to_be_wrong_leaves_no_files(
    tmp_path: Path, text: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        idle(tmp_path, text)
    assert not (tmp_path / "traces").exists()


def test_relatives_that_are_allowed_are_stamped_on_every_result(tmp_path: Path) -> None:
    text = '[separation]\nsame_family = "allow"\n[roles]\nproducer = "qwen"\nevaluator = "qwen3"'
    result = idle(tmp_path, text)
    assert result.separation is not None
    assert result.separation.relation == "family"
    assert line_of(result)["separation"] == "family"
    assert [one["relation"] for one in said(result, "separation")] == ["family"]


def test_warnings_are_in_the_log_the_record_the_line_and_the_result(tmp_path: Path) -> None:
    pipeline = Pipeline("idle")

    @pipeline.node
    def step() -> str:
        return ""

    text = '[separation]\nsame_family = "allow"\n[roles]\nproducer = "ours"\nevaluator = "qwen3"'
    with capture_logs() as logs:
        result = asyncio.run(pipeline.run_async({}, settings=settings_of(tmp_path, text)))
    family, bits = result.warnings
    assert "nothing tells the family of 'ours'" in family
    assert "quantised to Q4_K_M" in bits
    assert [log["event"] for log in logs if log["log_level"] == "warning"] == [family, bits]
    assert [one["message"] for one in said(result, "warning")] == [family, bits]
    assert line_of(result)["warnings"] == [family, bits]


def test_a_run_without_an_evaluator_has_nothing_to_say(tmp_path: Path) -> None:
    result = idle(tmp_path, '[roles]\nproducer = "ours"')
    assert (result.separation, result.evaluator_draw, result.warnings) == (None, None, ())
    assert line_of(result)["separation"] is None
    assert said(result, "separation") == []


def test_scripted_backends_are_kept_apart_by_their_tags_and_warn_of_nothing(tmp_path: Path) -> None:
    pipeline = Pipeline("scripted")

    @pipeline.node
    async def step(run: Run) -> str:
        return await run.chat("evaluator", await run.chat("producer", "x"))

    with capture_logs() as logs:
        result = asyncio.run(
            pipeline.run_async(
                {},
                settings=Settings(
                    traces=tmp_path / "traces", roles={"producer": "writer", "evaluator": "judge"}
                ),
                backends={tag: ScriptedBackend([tag]) for tag in ("writer", "judge")},
            )
        )
    assert result.result == "judge"
    assert result.separation is not None
    assert result.separation.relation == "different"
    assert (result.warnings, logs) == ((), [])


# --- the pool --------------------------------------------------------------------------------


def test_a_run_draws_its_evaluator_by_its_task(tmp_path: Path) -> None:
    # The MD5 of "task-1" is even, that of "1" is odd.
    for task, evaluator in (("task-1", "llama"), ("1", "mistral")):
        result = idle(tmp_path, POOL, task=task)
        assert result.separation is not None
        assert result.separation.evaluator == evaluator
        assert line_of(result)["evaluator_model"] == evaluator
        assert line_of(result)["evaluator_seed"] == task
        (drawn,) = said(result, "evaluator drawn")
        assert (drawn["evaluator"], drawn["seed"]) == (evaluator, task)
        assert drawn["pool"] == ["llama", "mistral"]
        assert drawn["excluded"] == {
            "qwen3": "it and the producer 'qwen' are of one family (qwen)",
            "qwen": "is the producer",
        }
        assert result.evaluator_draw is not None
        assert drawn["pool_sha256"] == result.evaluator_draw.pool_sha256


def test_the_settings_seed_goes_before_the_task_and_without_both_it_is_the_runs_id(
    tmp_path: Path,
) -> None:
    seeded = idle(tmp_path, POOL + '[separation]\npool_seed = "week 7"\n', task="task-1")
    assert seeded.evaluator_draw is not None
    assert seeded.evaluator_draw.seed == "week 7"
    bare = idle(tmp_path, POOL)
    assert bare.evaluator_draw is not None
    assert bare.evaluator_draw.seed == bare.run_id


def test_the_drawn_evaluator_is_who_is_asked(tmp_path: Path) -> None:
    pipeline = Pipeline("asking")

    @pipeline.node
    async def step(run: Run, task: str) -> str:
        return await run.chat("evaluator", task)

    def answer(request: ChatRequest) -> str:
        return request.model

    result = asyncio.run(
        pipeline.run_async(
            {"task": "task-1"},
            settings=Settings(
                traces=tmp_path / "traces", roles={"producer": "p", "evaluator": ("a", "b", "c")}
            ),
            backends={tag: ScriptedBackend(answer) for tag in "pabc"},
        )
    )
    assert result.result == "c", "md5 of the task modulo three is two"


def test_a_task_that_may_not_be_recorded_is_not_recorded_as_a_seed(tmp_path: Path) -> None:
    result = idle(tmp_path, POOL + '[trace]\ncontent = "hash"\n', task="our secret plan")
    assert b"our secret plan" not in result.files.journal.read_bytes()
    assert b"our secret plan" not in result.files.audit_log.read_bytes()
    assert line_of(result)["evaluator_seed"] is None


# --- settings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[separation]\nsame_familly = 'allow'\n", "did you mean 'same_family'"),
        ("[separation]\nsame_family = 'maybe'\n", "'refuse' or 'allow'"),
        ("[separation]\npool_hash = 'sha'\n", "'modulo' or 'rendezvous'"),
        ("[separation]\npool_seed = ''\n", "separation.pool_seed"),
        ("[seperation]\n", "did you mean 'separation'"),
        ("[roles]\nevaluator = [1]\n", "roles.evaluator: must be a string"),
    ],
)
def test_a_mistake_in_the_settings_names_what_is_allowed(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigurationInvalid) as caught:
        settings_of(tmp_path, text)
    assert message in str(caught.value)
