"""The plan of a pipeline's models: on the demo's real file, and on servers that nobody calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import Pipeline, Run, load_settings
from harness.cli.pipeline_file import load_pipeline
from harness.errors import ConfigurationInvalid, SameModel
from harness.hardware import Loading, format_bytes, gguf_footprint, parse_bytes, read_gguf_header
from harness.hardware.speed import offload_speedup
from harness.session.demo_model import demo_endpoint
from harness.session.model_plan import ModelPlan, plan_models
from harness.session.planning.planned_model import PlannedModel
from harness.session.settings import Settings
from harness.trace import Journal

ROOT = Path(__file__).parents[2]
NOBODY = "http://127.0.0.1:9"
"""The discard port, which nothing listens at."""

found = demo_endpoint()
assert found is not None, "the demo's model is installed for tests"
assert found.path is not None
FILE = found.path
BRIEF = load_pipeline(str(ROOT / "examples/brief.py"))

SMALL = {"path": str(FILE), "context_tokens": 1024, "slots": 1}
WIDE = {"path": str(FILE), "context_tokens": 2048, "slots": 2}
JUDGE = {
    "backend": "ollama",
    "url": NOBODY,
    "model_id": "qwen2.5:3b-instruct-q8_0",
    "manage": True,
    "need": "200 MiB",
}

# --- pipelines ------------------------------------------------------------------------------------

turns = Pipeline("turns")


@turns.node
async def plan(run: Run, task: str = "Tea.") -> str:
    return await run.chat("planner", task, max_output_tokens=4)


@turns.node
async def text(run: Run, plan: str) -> str:
    return await run.chat("producer", plan, max_output_tokens=4)


fan = Pipeline("fan")


@fan.node
def topics() -> list[str]:
    return ["a", "b"]


@fan.node(each={"topic": "topics"})
async def plans(run: Run, topic: str) -> str:
    return await run.chat("planner", topic)


@fan.node(each={"one": "plans"})
async def texts(run: Run, one: str) -> str:
    return await run.chat("producer", one)


loop = Pipeline("loop")


@loop.node
async def draft(run: Run, task: str = "Tea.") -> str:
    return (await run.wiggum(task, rubric="brief")).text


# --- settings and plans ---------------------------------------------------------------------------


def settings_of(
    directory: Path,
    *,
    capacity: str = "8 GiB",
    roles: dict[str, Any] | None = None,
    head: str = "",
    **endpoints: dict[str, Any],
) -> Settings:
    """As `harness.toml` in this directory would say it; a value of TOML is one of JSON here."""

    def table(values: dict[str, Any]) -> str:
        return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())

    parts = ['traces = "traces"', head, f"[roles]\n{table(roles)}" if roles else ""]
    parts += [f'[budget]\ncapacity = "{capacity}"\n']
    parts += [f"[endpoints.{tag}]\n{table(values)}" for tag, values in endpoints.items()]
    path = directory / "harness.toml"
    path.write_text("\n".join(parts))
    return load_settings(path, environment={})


def planned(graph: Pipeline, settings: Settings, *, items: int = 4) -> ModelPlan:
    return asyncio.run(plan_models(graph, settings, environment={}, items=items))


def rows(plan: ModelPlan) -> dict[str, PlannedModel]:
    return {model.tag: model for model in plan.models}


def need_of(*, context_tokens: int, slots: int) -> int:
    """Bytes, as the embedded engine loads it."""
    loading = Loading(context_tokens=context_tokens, slots=slots, micro_batch_tokens=128)
    return gguf_footprint(read_gguf_header(FILE), loading).total_bytes


# --- what is taken, and where there is room -------------------------------------------------------


def test_a_row_says_what_a_file_takes_with_its_context_and_slots(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, producer=SMALL, planner=WIDE, spare=SMALL)

    plan = planned(turns, settings)

    wide, small = plan.models
    assert (wide.tag, wide.roles, small.tag, small.roles) == (
        "planner",
        ("planner",),
        "producer",
        ("producer",),
    )
    assert wide.need == {"machine": need_of(context_tokens=2048, slots=2)}
    assert wide.footprint is not None
    assert wide.footprint.total_bytes == wide.need_bytes
    assert (wide.model, wide.quantisation, wide.context_tokens, wide.slots) == (
        FILE.name,
        "Q4_1",
        2048,
        2,
    )
    assert (wide.fit, wide.beside, small.beside) == ("whole", ("producer",), ("planner",))
    assert plan.unused == ("spare",)
    (machine,) = plan.devices
    assert machine.has_room
    assert machine.wanted_bytes == wide.need_bytes + small.need_bytes


def test_two_models_that_do_not_fit_beside_each_other_stand_alone(tmp_path: Path) -> None:
    plan = planned(turns, settings_of(tmp_path, capacity="300 MiB", producer=SMALL, planner=WIDE))

    assert [(model.fit, model.beside) for model in plan.models] == [("whole", ()), ("whole", ())]
    assert not plan.devices[0].has_room
    assert plan.refusals == ()


def test_what_is_pinned_takes_its_room_from_every_pair(tmp_path: Path) -> None:
    both = need_of(context_tokens=1024, slots=1) + parse_bytes("200 MiB")
    pinned = {**JUDGE, "pin": True, "need": "100 MiB"}
    endpoints = {"producer": SMALL, "planner": JUDGE, "kept": pinned}

    with_room = planned(
        turns, settings_of(tmp_path, capacity=f"{both + parse_bytes('100 MiB')} B", **endpoints)
    )
    without = planned(
        turns, settings_of(tmp_path, capacity=f"{both + parse_bytes('99 MiB')} B", **endpoints)
    )

    assert rows(with_room)["producer"].beside == ("planner", "kept")
    assert rows(without)["producer"].beside == ("kept",)


def test_a_pinned_model_is_counted_though_nothing_asks_it(tmp_path: Path) -> None:
    plan = planned(
        turns, settings_of(tmp_path, producer=SMALL, planner=WIDE, kept={**JUDGE, "pin": True})
    )

    kept = rows(plan)["kept"]
    assert (kept.roles, kept.pin, kept.loads) == ((), True, 1)
    assert plan.loads == 3


def test_a_servers_own_model_is_not_counted(tmp_path: Path) -> None:
    server = {"url": f"{NOBODY}/v1", "model_id": "m"}

    plan = planned(turns, settings_of(tmp_path, producer=SMALL, planner=server))

    row = rows(plan)["planner"]
    assert (row.fit, row.is_managed, row.need, row.loads) == ("not counted", False, {}, None)
    assert plan.loads == 1


def test_a_model_of_a_gpu_takes_from_that_one(tmp_path: Path) -> None:
    head = '[budget.devices.gpu0]\ncapacity = "1 GiB"\nreserve = "100 MiB"\n'
    settings = settings_of(tmp_path, head=head, producer={**SMALL, "device": "gpu0"}, planner=JUDGE)

    plan = planned(turns, settings)

    machine, gpu = plan.devices
    assert (gpu.name, gpu.capacity_bytes, gpu.reserve_bytes) == (
        "gpu0",
        parse_bytes("1 GiB"),
        parse_bytes("100 MiB"),
    )
    row = rows(plan)["producer"]
    assert row.fit == "whole"
    assert gpu.wanted_bytes == row.need["gpu0"]
    # What reads the tokens stays with the processor.
    assert machine.wanted_bytes == parse_bytes("200 MiB") + row.need["machine"]


def test_a_model_of_which_a_part_is_on_a_gpu_is_split(tmp_path: Path) -> None:
    head = '[budget.devices.gpu0]\ncapacity = "1 GiB"\n'
    split = {**SMALL, "device": "gpu0", "gpu_layers": 20}
    settings = settings_of(tmp_path, head=head, producer=split, planner=JUDGE)

    row = rows(planned(turns, settings))["producer"]

    assert row.fit == "split"
    assert row.need["gpu0"] > row.need["machine"] > 0


# --- how often what is loaded ---------------------------------------------------------------------


def test_the_predicted_loads_are_those_of_the_run(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, capacity="300 MiB", producer=SMALL, planner=WIDE)
    before = planned(turns, settings)

    result = asyncio.run(turns.run_async({}, settings=settings))

    loads = [
        span
        for span in Journal(result.files.journal).spans()
        if span.name == "load" and "waits_for" not in span.attributes
    ]
    assert before.loads == len(loads) == 2
    assert {model.loads for model in before.models} == {1}
    assert {model.load_time and model.load_time.source for model in before.models} == {"guess"}

    after = planned(turns, settings)

    took = {span.attributes["model"]: (span.end_ns - span.start_ns) / 1e9 for span in loads}
    seen = {model.tag: model.load_time for model in after.models}
    assert {tag: time and (time.seconds, time.source) for tag, time in seen.items()} == {
        tag: (seconds, "measured") for tag, seconds in took.items()
    }
    assert after.load_s == pytest.approx(sum(took.values()))


def test_a_measured_load_is_forgotten_when_the_model_is_loaded_otherwise(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, producer=SMALL, planner=SMALL)
    asyncio.run(turns.run_async({}, settings=settings))

    plan = planned(turns, settings_of(tmp_path, producer=SMALL, planner=WIDE))

    sources = {model.tag: model.load_time and model.load_time.source for model in plan.models}
    assert sources == {"planner": "guess", "producer": "measured"}


@pytest.mark.parametrize("items", [1, 4, 8])
def test_the_items_of_a_node_share_a_load(tmp_path: Path, items: int) -> None:
    settings = settings_of(tmp_path, capacity="300 MiB", producer=SMALL, planner=WIDE)

    plan = planned(fan, settings, items=items)

    assert {model.tag: model.loads for model in plan.models} == {"planner": 1, "producer": 1}
    assert any(f"{items} items" in note for note in plan.notes)


def test_a_loop_of_models_that_have_no_room_together_loads_one_each_turn(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, capacity="300 MiB", producer=SMALL, evaluator=JUDGE)

    plan = planned(loop, settings)

    # Three rounds: a draft, its evaluation, and twice a revision and its evaluation.
    assert {model.tag: model.loads for model in plan.models} == {"producer": 3, "evaluator": 3}
    assert plan.load_s == pytest.approx(
        3 * sum(time.seconds for model in plan.models if (time := model.load_time))
    )


def test_a_loop_of_models_that_have_room_together_loads_each_once(tmp_path: Path) -> None:
    plan = planned(loop, settings_of(tmp_path, producer=SMALL, evaluator=JUDGE))

    assert plan.loads == 2
    assert not any("back and forth" in warning for warning in map(str, plan.warnings))


def test_loops_take_as_many_rounds_as_they_usually_did(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, capacity="300 MiB", producer=SMALL, evaluator=JUDGE)
    settings.traces.mkdir()
    rounds = [{"round": 1}, {"round": 2}]
    line = {
        "run_id": "1",
        "pipeline": "loop",
        "final": "PASS",
        "loops": [{"rubric": "brief", "rounds": rounds}],
    }
    (settings.traces / "runs.jsonl").write_text(json.dumps(line) + "\n")

    assert planned(loop, settings).loads == 4


def test_what_a_node_asks_in_a_loop_of_its_own_is_said_to_be_unknown(tmp_path: Path) -> None:
    pipeline = Pipeline("many")

    @pipeline.node
    async def many(run: Run, task: str = "Tea.") -> str:
        for _ in range(9):
            task = await run.chat("planner", task)
            task = await run.chat("producer", task)
        return task

    settings = settings_of(tmp_path, capacity="300 MiB", producer=SMALL, planner=WIDE)

    plan = planned(pipeline, settings, items=3)

    assert plan.loads == 6
    assert any("by turns, nobody knows how often: it is taken to be 3" in n for n in plan.notes)


def test_of_a_pool_the_largest_is_counted_with(tmp_path: Path) -> None:
    larger = {**JUDGE, "model_id": "mistral:7b-instruct-q8_0", "need": "250 MiB"}
    settings = settings_of(
        tmp_path,
        capacity="300 MiB",
        roles={"producer": "small", "evaluator": ["judge", "larger"]},
        small=SMALL,
        judge=JUDGE,
        larger=larger,
    )

    plan = planned(loop, settings)

    assert {model.tag: model.loads for model in plan.models} == {
        "small": 3,
        "judge": 0,
        "larger": 3,
    }
    assert any("counted with 'larger'" in note for note in plan.notes)


def test_on_a_panel_all_judge_every_draft(tmp_path: Path) -> None:
    larger = {**JUDGE, "model_id": "mistral:7b-instruct-q8_0", "need": "250 MiB"}
    settings = settings_of(
        tmp_path,
        capacity="700 MiB",
        head='[evaluation]\npanel = "mean"\n',
        roles={"producer": "small", "evaluator": ["judge", "larger"]},
        small=SMALL,
        judge=JUDGE,
        larger=larger,
    )

    plan = planned(loop, settings)

    assert {model.tag: model.loads for model in plan.models} == {
        "small": 1,
        "judge": 1,
        "larger": 1,
    }


# --- what is warned of ----------------------------------------------------------------------------


def warned(plan: ModelPlan, words: str) -> str:
    (warning,) = (warning for warning in map(str, plan.warnings) if words in warning)
    return warning


@pytest.mark.parametrize(
    ("model_id", "said"),
    [
        ("qwen2.5:3b-instruct-q4_K_M", "Q4_K_M"),
        ("qwen2.5:3b-instruct-q6_K", "Q6_K"),
        ("qwen2.5:3b-instruct-q8_0", None),
        ("qwen2.5:3b-instruct-fp16", None),
    ],
)
def test_an_evaluator_below_q8_0_is_named_with_its_quantisation(
    tmp_path: Path, model_id: str, said: str | None
) -> None:
    judge = {**JUDGE, "model_id": model_id}

    plan = planned(loop, settings_of(tmp_path, producer=SMALL, evaluator=judge))

    below = [warning for warning in map(str, plan.warnings) if "below Q8_0" in warning]
    assert len(below) == (said is not None)
    assert said is None or f"evaluator 'evaluator' is quantised to {said}" in below[0]


def test_a_producer_below_q8_0_is_not(tmp_path: Path) -> None:
    plan = planned(turns, settings_of(tmp_path, producer=SMALL, planner=JUDGE))

    assert rows(plan)["producer"].quantisation == "Q4_1"
    assert plan.warnings == ()


def test_a_run_that_cannot_help_but_thrash_is_warned_of_with_what_would_help(
    tmp_path: Path,
) -> None:
    settings = settings_of(
        tmp_path, capacity="300 MiB", roles={"evaluator": "judge"}, producer=SMALL, judge=JUDGE
    )

    plan = planned(BRIEF, settings)

    warning = warned(plan, "back and forth")
    too_much = need_of(context_tokens=1024, slots=1) + parse_bytes("200 MiB")
    too_much -= parse_bytes("300 MiB")
    assert "node 'text' goes back and forth between 'judge' and 'producer', 5 turns" in warning
    assert f"{format_bytes(too_much)} too much" in warning
    assert "each round costs two loads, and the run 6 of these two" in warning
    assert "more capacity under [budget]" in warning
    assert "less context_tokens or slots" in warning
    assert "a smaller quantisation" in warning
    assert plan.loads == 6


def test_the_same_file_with_other_settings_is_loaded_twice(tmp_path: Path) -> None:
    plan = planned(turns, settings_of(tmp_path, producer=SMALL, planner=WIDE))

    warning = warned(plan, "want the same weights")
    assert "context_tokens (2048 and 1024), slots (2 and 1)" in warning
    assert "they are loaded twice" in warning


def test_a_copy_of_a_file_has_the_same_weights(tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    copy.symlink_to(FILE)
    plan = planned(
        turns, settings_of(tmp_path, producer=SMALL, planner={**SMALL, "path": str(copy)})
    )

    warning = warned(plan, "want the same weights")
    assert f"(copy.gguf and {FILE.name}): they are loaded twice" in warning


def test_one_endpoint_for_both_roles_is_no_reason_to_warn(tmp_path: Path) -> None:
    settings = settings_of(
        tmp_path, roles={"producer": "small", "planner": "small"}, small=SMALL, other=WIDE
    )

    plan = planned(turns, settings)

    assert plan.warnings == ()
    assert rows(plan)["small"].roles == ("planner", "producer")


def test_ollama_loads_a_model_anew_for_every_change_of_context(tmp_path: Path) -> None:
    longer = {**JUDGE, "context_tokens": 8192}

    plan = planned(turns, settings_of(tmp_path, producer=JUDGE, planner=longer))

    warning = warned(plan, "want the same model of one server")
    assert "context_tokens (8192 and the server's own)" in warning
    assert "Ollama loads it anew" in warning


def test_a_model_of_one_server_that_two_endpoints_manage_is_counted_twice(tmp_path: Path) -> None:
    plan = planned(turns, settings_of(tmp_path, producer=JUDGE, planner=JUDGE))

    assert "both are managed: it is counted twice" in warned(plan, "the same model of one server")


def test_a_part_of_a_model_on_a_gpu_has_its_amdahl_estimate(tmp_path: Path) -> None:
    head = '[budget.devices.gpu0]\ncapacity = "1 GiB"\n'
    part = {**SMALL, "device": "gpu0", "gpu_layers": 21}
    settings = settings_of(tmp_path, head=head, producer=part, planner=JUDGE)

    warning = warned(planned(turns, settings), "is split")

    weights = read_gguf_header(FILE).weights
    on_gpu = sum(weights.layer_bytes[10:]) + weights.output_bytes + weights.shared_bytes
    share = on_gpu / (sum(weights.layer_bytes[:10]) + on_gpu)
    assert "with gpu_layers = 21, 20 of its 30 layers" in warning
    assert f"{offload_speedup(share):.1f} times as fast as without" in warning


@pytest.mark.parametrize("layers", [{}, {"gpu_layers": 31}])
def test_a_model_that_is_whole_on_a_gpu_has_none(tmp_path: Path, layers: dict[str, int]) -> None:
    head = '[budget.devices.gpu0]\ncapacity = "1 GiB"\n'
    whole = {**SMALL, "device": "gpu0", **layers}

    plan = planned(turns, settings_of(tmp_path, head=head, producer=whole, planner=JUDGE))

    assert plan.warnings == ()


def test_a_managed_model_of_unknown_size_has_a_row_that_says_so(tmp_path: Path) -> None:
    unsized = {"backend": "vllm", "url": f"{NOBODY}/v1", "model_id": "m", "manage": True}

    plan = planned(turns, settings_of(tmp_path, producer=SMALL, planner=unsized))

    row = rows(plan)["planner"]
    assert (row.fit, row.need, row.loads) == ("unknown", {}, None)
    assert row.problem is not None
    assert row.problem in warned(plan, "it is not known what 'planner' takes")
    assert plan.loads == 1
    assert plan.refusals == ()


# --- what is refused ------------------------------------------------------------------------------


def test_what_can_never_fit_is_refused_with_the_sum(tmp_path: Path) -> None:
    plan = planned(turns, settings_of(tmp_path, capacity="150 MiB", producer=SMALL, planner=WIDE))

    (refusal,) = map(str, plan.refusals)
    need = format_bytes(need_of(context_tokens=2048, slots=2))
    assert f"model 'planner' needs {need} and the whole budget of 'machine' is 150.0 MiB" in refusal
    assert rows(plan)["planner"].fit == "never"
    assert (plan.loads, plan.load_s) == (None, None)


def test_the_reserve_and_what_is_pinned_stand_in_the_sum(tmp_path: Path) -> None:
    settings = settings_of(
        tmp_path,
        capacity='350 MiB"\nreserve = "50 MiB',
        producer=SMALL,
        planner=SMALL,
        kept={**JUDGE, "pin": True},
    )

    refusals = planned(turns, settings).refusals

    assert any(
        "350.0 MiB less 50.0 MiB in reserve less 200.0 MiB of pinned 'kept'" in one
        for one in map(str, refusals)
    )


def test_what_only_stands_in_may_never_fit(tmp_path: Path) -> None:
    huge = {**JUDGE, "need": "1 GiB"}
    settings = settings_of(
        tmp_path,
        capacity="300 MiB",
        roles={"producer": "small"},
        small={**SMALL, "fallback": ["huge"]},
        huge=huge,
    )

    plan = planned(turns, settings)

    assert plan.refusals == ()
    assert "'huge' never fits: a call that falls back on it fails" in map(str, plan.warnings)
    assert rows(plan)["huge"].others == ("stands in for 'small'",)
    assert plan.loads == 1


def test_of_what_is_pinned_and_never_fits_no_fallback_is_spoken(tmp_path: Path) -> None:
    kept = {**JUDGE, "need": "1 GiB", "pin": True}
    settings = settings_of(
        tmp_path, capacity="300 MiB", roles={"producer": "small"}, small=SMALL, kept=kept
    )

    plan = planned(turns, settings)

    assert any("model 'kept' needs 1.0 GiB" in one for one in map(str, plan.refusals))
    assert not any("falls back" in one for one in map(str, plan.warnings))


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model")

    plan = planned(turns, settings_of(tmp_path, producer=SMALL, planner={"path": str(broken)}))

    (refusal,) = map(str, plan.refusals)
    assert "broken.gguf" in refusal
    assert rows(plan)["planner"].fit == "unknown"


def test_a_role_without_a_model_is_an_error_that_names_the_node(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, one=SMALL, other=WIDE)

    with pytest.raises(ConfigurationInvalid, match="node 'plan' needs 'planner': no model plays"):
        planned(turns, settings)


def test_a_model_that_would_judge_itself_is_refused_as_by_a_run(tmp_path: Path) -> None:
    with pytest.raises(SameModel):
        planned(loop, settings_of(tmp_path, producer=SMALL, evaluator=WIDE))


def test_a_gpu_of_unknown_size_is_an_error(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, producer={**SMALL, "device": "gpu77"}, planner=JUDGE)

    with pytest.raises(ConfigurationInvalid, match=r"\[budget.devices.gpu77\]"):
        planned(turns, settings)


# --- nothing is done ------------------------------------------------------------------------------


def files_in(directory: Path) -> Iterator[str]:
    return (path.name for path in directory.rglob("*"))


def test_a_plan_leaves_nothing_behind(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, producer=SMALL, planner=WIDE)

    planned(BRIEF, settings)

    assert list(files_in(tmp_path)) == ["harness.toml"]
