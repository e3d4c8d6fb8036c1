"""The plan of a pipeline's models: on the demo's real file, and on servers that nobody calls."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from session_runs import codes, pipeline_of, run

from harness import Pipeline, Run, ScriptedBackend, Settings, load_settings
from harness.cli.project_files import load_pipeline
from harness.hardware import Loading, format_bytes, gguf_footprint, parse_bytes, read_gguf_header
from harness.hardware.speed import offload_speedup
from harness.session.model_plan import plan_models
from harness.session.settings import demo_endpoint
from harness.trace import Journal

ROOT = Path(__file__).parents[2]
NOBODY = "http://127.0.0.1:9"
"""The discard port, which nothing listens at."""

found = demo_endpoint()
assert found is not None, "the demo's model is installed for tests"
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
LARGER = {**JUDGE, "model_id": "mistral:7b-instruct-q8_0", "need": "250 MiB"}
SPARE = {**JUDGE, "pin": True}
GPU = '[budget.devices.gpu0]\ncapacity = "1 GiB"\nreserve = "100 MiB"\n'
ON_GPU = {**SMALL, "device": "gpu0"}
TIGHT = "300 MiB"
"""Has room for any two of a small file's model, a wide one's and a judge, but not together."""


async def plan(run: Run, task: str = "Tea.") -> str:
    return await run.chat("planner", task, max_output_tokens=4)


async def text(run: Run, plan: str) -> str:
    return await run.chat("producer", plan, max_output_tokens=4)


async def draft(run: Run, task: str = "Tea.") -> str:
    return (await run.wiggum(task, rubric="brief")).text


def topics() -> list[str]:
    return ["a", "b"]


async def plans(run: Run, topic: str) -> str:
    return await run.chat("planner", topic)


async def texts(run: Run, plan: str) -> str:
    return await run.chat("producer", plan)


async def many(run: Run, task: str = "Tea.") -> str:
    for _ in range(9):
        task = await run.chat("planner", task)
        task = await run.chat("producer", task)
    return task


TURNS, FAN = Pipeline("one"), pipeline_of(topics)
TURNS.node(models=["planner"])(plan)
TURNS.node(models=["producer"])(text)
LOOP = pipeline_of(draft, name="loop", models=["producer", "evaluator"])
MANY = pipeline_of(many, models=["planner", "producer"])
UNSAID = pipeline_of(plan, text)
FAN.node(each={"topic": "topics"}, models=["planner"])(plans)
FAN.node(each={"plan": "plans"}, models=["producer"])(texts)


def settings_of(directory, *, capacity="8 GiB", roles=None, head="", **endpoints):
    """As `harness.toml` in this directory would say it; a value of TOML is one of JSON here."""

    def table(values):
        return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())

    parts = ['traces = "traces"', f'[budget]\ncapacity = "{capacity}"\n', head]
    parts += [f"[roles]\n{table(roles)}"] if roles else []
    parts += [f"[endpoints.{tag}]\n{table(values)}" for tag, values in endpoints.items()]
    path = directory / "harness.toml"
    path.write_text("\n".join(parts))
    return load_settings(path, environment={})


def planned(graph, settings, *, items=4):
    return asyncio.run(plan_models(graph, settings, environment={}, items=items))


@pytest.fixture
def plan_of(tmp_path):
    """A plan, by the settings' words."""
    return lambda graph, *, items=4, **how: planned(
        graph, settings_of(tmp_path, **how), items=items
    )


def rows(plan):
    return {model.tag: model for model in plan.models}


def loads(plan):
    return {model.tag: model.loads for model in plan.models}


def need_of(*, context_tokens=1024, slots=1):
    """Bytes, as the embedded engine loads it."""
    loading = Loading(context_tokens=context_tokens, slots=slots, micro_batch_tokens=128)
    return gguf_footprint(read_gguf_header(FILE), loading).total_bytes


# --- what is taken, and where there is room -------------------------------------------------------


def test_a_row_says_what_a_file_takes_with_its_context_and_slots(plan_of):
    plan = plan_of(TURNS, producer=SMALL, planner=WIDE, spare=SMALL)
    wide, small = plan.models
    assert [(one.tag, one.roles) for one in plan.models] == [
        ("planner", ("planner",)),
        ("producer", ("producer",)),
    ]
    assert wide.need == {"machine": need_of(context_tokens=2048, slots=2)}
    wide_bytes, small_bytes = wide.need["machine"], small.need["machine"]
    assert wide.footprint.total_bytes == wide_bytes
    assert (wide.model, wide.quantization) == (FILE.name, "Q4_1")
    assert (wide.context_tokens, wide.slots) == (2048, 2)
    assert (wide.fit, wide.beside, small.beside) == ("whole", ("producer",), ("planner",))
    assert plan.unused == ("spare",)
    (machine,) = plan.devices
    assert machine.has_room
    assert machine.wanted_bytes == wide_bytes + small_bytes


@pytest.mark.parametrize(
    ("missing_mib", "beside"), [(0, ("planner", "kept")), (1, ("kept",))], ids=["room", "none"]
)
def test_what_is_pinned_takes_its_room_from_every_pair_and_is_counted(plan_of, missing_mib, beside):
    capacity = need_of() + ((300 - missing_mib) << 20)
    kept = {**SPARE, "need": "100 MiB"}
    plan = plan_of(TURNS, capacity=f"{capacity} B", producer=SMALL, planner=JUDGE, kept=kept)
    assert rows(plan)["producer"].beside == beside
    assert (rows(plan)["kept"].roles, loads(plan)["kept"]) == ((), 1)


def test_of_what_is_pinned_and_never_fits_no_fallback_is_spoken(plan_of):
    kept = {**JUDGE, "need": "1 GiB", "pin": True}
    plan = plan_of(TURNS, capacity="300 MiB", planner=SMALL, producer=SMALL, kept=kept)
    assert "'kept'" in " ".join(one.message for one in plan.refusals)
    assert not any("falls back" in one.message for one in plan.warnings)


UNCOUNTED = {
    "a server's own": ({"url": NOBODY, "model_id": "m"}, "not counted", []),
    "unsized": (
        {"backend": "vllm", "url": f"{NOBODY}/v1", "model_id": "m", "manage": True},
        "unknown",
        ["plan.size-unknown"],
    ),
}


@pytest.mark.parametrize(("endpoint", "fit", "warned"), UNCOUNTED.values(), ids=UNCOUNTED)
def test_a_model_of_which_no_size_is_known_is_not_counted(plan_of, endpoint, fit, warned):
    plan = plan_of(TURNS, producer=SMALL, planner=endpoint)
    row = rows(plan)["planner"]
    assert (row.fit, row.need, row.loads, plan.loads) == (fit, {}, None, 1)
    assert codes(plan.warnings) == warned
    assert all(row.problem in one.message for one in plan.warnings)
    assert plan.refusals == ()


def test_a_model_of_which_a_part_is_on_a_gpu_is_split_with_its_amdahl_estimate(plan_of):
    plan = plan_of(TURNS, head=GPU, producer={**ON_GPU, "gpu_layers": 21}, planner=JUDGE)
    row = rows(plan)["producer"]
    assert row.fit == "split"
    assert row.need["gpu0"] > row.need["machine"] > 0
    (warning,) = plan.warnings
    weights = read_gguf_header(FILE).weights
    on_gpu = sum(weights.layer_bytes[10:]) + weights.output_bytes + weights.shared_bytes
    share = on_gpu / (sum(weights.layer_bytes[:10]) + on_gpu)
    assert warning.code == "plan.split"
    assert "gpu_layers = 21, 20 of its 30 layers" in warning.message
    assert f"{offload_speedup(share):.1f} times as fast as without" in warning.message


# --- how often what is loaded ---------------------------------------------------------------------


@pytest.mark.slow
def test_the_predicted_loads_are_those_of_the_run_until_a_model_is_loaded_otherwise(tmp_path):
    settings = settings_of(tmp_path, capacity=TIGHT, producer=SMALL, planner=WIDE)
    before = planned(TURNS, settings)
    result = asyncio.run(TURNS.run_async({}, settings=settings))
    spans = Journal(result.files.journal).spans()
    made = [one for one in spans if one.name == "load" and "waits_for" not in one.attributes]
    assert before.loads == len(made) == 2
    assert {model.loads for model in before.models} == {1}
    assert {model.load_time.source for model in before.models} == {"guess"}

    after = planned(TURNS, settings)
    took = {one.attributes["model"]: (one.end_ns - one.start_ns) / 1e9 for one in made}
    assert {model.tag: model.load_time.seconds for model in after.models} == took
    assert {model.load_time.source for model in after.models} == {"measured"}
    assert after.load_s == pytest.approx(sum(took.values()))

    otherwise = planned(TURNS, settings_of(tmp_path, producer=SMALL, planner=SMALL))
    sources = {model.tag: model.load_time.source for model in otherwise.models}
    assert sources == {"planner": "guess", "producer": "measured"}


POOL = {"roles": {"producer": "small", "evaluator": ["judge", "larger"]}}
POOLED = {"small": SMALL, "judge": JUDGE, "larger": LARGER}
APART = {"capacity": TIGHT, "producer": SMALL, "planner": WIDE}
LOADS = {
    "a node's many items": (FAN, APART, 8, {"planner": 1, "producer": 1}, "all items"),
    "a loop without room for both": (
        LOOP,
        {"capacity": TIGHT, "producer": SMALL, "evaluator": JUDGE},
        3,
        {"producer": 3, "evaluator": 3},
        "assuming 3",
    ),
    "a loop with room for both": (
        LOOP,
        {"producer": SMALL, "evaluator": JUDGE},
        4,
        {"producer": 1, "evaluator": 1},
        "",
    ),
    "a node's own loop": (MANY, APART, 3, {"planner": 3, "producer": 3}, "assuming 3"),
    "a pool, by its largest": (
        LOOP,
        {"capacity": TIGHT, **POOL, **POOLED},
        3,
        {"small": 3, "judge": 0, "larger": 3},
        "'larger'",
    ),
}


@pytest.mark.parametrize("case", LOADS)
def test_loads_are_predicted(tmp_path, case):
    graph, how, items, expected, noted = LOADS[case]
    plan = planned(graph, settings_of(tmp_path, **how), items=items)
    assert loads(plan) == expected
    assert plan.loads == sum(expected.values())
    assert any(noted in note for note in plan.notes)
    by_turns = graph is not FAN and 3 in expected.values()
    assert ("plan.takes-turns" in codes(plan.warnings)) == by_turns
    assert plan.load_s == pytest.approx(
        sum(model.loads * model.load_time.seconds for model in plan.models)
    )


def test_without_a_declaration_the_last_run_says_what_is_asked(tmp_path):
    settings = settings_of(tmp_path, producer=SMALL, planner=WIDE, spare=JUDGE)
    before = planned(UNSAID, settings)
    assert (before.loads, before.unused, loads(before)["producer"]) == (None, (), None)
    assert rows(before)["producer"].need == {"machine": need_of()}
    assert any("order of calls is unknown" in note for note in before.notes)

    replies = {tag: ScriptedBackend(["a"]) for tag in ("planner", "producer")}
    run(UNSAID, Settings(traces=settings.traces), backends=replies)
    after = planned(UNSAID, settings)
    assert (after.loads, after.unused) == (2, ("spare",))
    assert loads(after) == {"planner": 1, "producer": 1}


# --- what is warned of ----------------------------------------------------------------------------


def test_a_run_that_cannot_help_but_thrash_is_warned_of_with_what_would_help(plan_of):
    plan = plan_of(BRIEF, capacity=TIGHT, roles={"evaluator": "judge"}, producer=SMALL, judge=JUDGE)
    (warning,) = [one for one in plan.warnings if one.code == "plan.takes-turns"]
    too_much = need_of() + parse_bytes("200 MiB") - parse_bytes(TIGHT)
    facts = ("'text'", "'producer' and 'judge', 8 turns", f"{format_bytes(too_much)} too much")
    remedies = ("the run 8 of these two", "[budget]", "context_tokens or slots")
    assert [fact for fact in (*facts, *remedies) if fact not in warning.message] == []
    assert plan.loads == 8


SAME = {
    "a file with other settings": (
        WIDE,
        SMALL,
        "plan.weights-twice",
        ["context_tokens (2048 and 1024), slots (2 and 1)"],
    ),
    "managed twice": (JUDGE, JUDGE, "plan.managed-twice", [JUDGE["model_id"]]),
}


@pytest.mark.parametrize(("planner", "producer", "code", "facts"), SAME.values(), ids=SAME)
def test_one_model_that_two_endpoints_lead_to_is_warned_of(
    tmp_path, planner, producer, code, facts
):
    plan = planned(TURNS, settings_of(tmp_path, producer=producer, planner=planner))
    (warning,) = plan.warnings
    assert warning.code == code
    assert [fact for fact in facts if fact not in warning.message] == []


# --- what is refused ------------------------------------------------------------------------------

SMALL_IS_ALL = {"capacity": TIGHT, "roles": {"producer": "small"}}
REFUSED = {
    "too large": (
        {"capacity": "150 MiB", "producer": SMALL, "planner": WIDE},
        "'planner'",
        [format_bytes(need_of(context_tokens=2048, slots=2)), "150.0 MiB"],
    ),
    "too large beside the reserve and what is pinned": (
        {"capacity": '350 MiB"\nreserve = "50 MiB', "producer": SMALL, "planner": SMALL}
        | {"kept": SPARE},
        "'planner'",
        ["350.0 MiB", "50.0 MiB", "200.0 MiB of pinned 'kept'"],
    ),
}


@pytest.mark.parametrize(("how", "model", "facts"), REFUSED.values(), ids=REFUSED)
def test_what_can_never_fit_is_refused_with_the_sum(tmp_path, how, model, facts):
    plan = planned(TURNS, settings_of(tmp_path, **how))
    said = [one.message for one in plan.refusals if one.code == "budget.does-not-fit"]
    assert any(model in one and all(fact in one for fact in facts) for one in said)
    assert rows(plan)[model.strip("'")].fit == "never"
    assert (plan.loads, plan.load_s) == (None, None)
    assert "plan.never-fits" not in codes(plan.warnings)


def test_what_only_stands_in_may_never_fit(plan_of):
    small, huge = {**SMALL, "fallback": ["huge"]}, {**JUDGE, "need": "1 GiB"}
    plan = plan_of(TURNS, **SMALL_IS_ALL, small=small, huge=huge)
    assert (plan.refusals, codes(plan.warnings)) == ((), ["plan.never-fits"])
    assert rows(plan)["huge"].others == ("stands in for 'small'",)
    assert plan.loads == 1


def test_a_plan_leaves_nothing_behind(plan_of, tmp_path):
    plan_of(BRIEF, producer=SMALL, planner=WIDE)
    assert [path.name for path in tmp_path.rglob("*")] == ["harness.toml"]
