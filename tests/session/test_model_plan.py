"""The plan of a pipeline's models: on the demo's real file, and on servers that nobody calls."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from session_runs import pipeline_of

from harness import Pipeline, Run, load_settings
from harness.advise.plan_command import plan_models
from harness.cli.project_files import load_pipeline
from harness.errors import DoesNotFit
from harness.hardware import Loading, format_bytes, gguf_footprint, read_gguf_header
from harness.hardware.footprint import GPU_CONTEXT_BYTES
from harness.hardware.machine import Gpu
from harness.session import tenancy
from harness.session.models import describe_endpoints, known_endpoints
from harness.session.settings import demo_endpoint
from harness.trace import Tracer

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


TURNS = Pipeline("one")
TURNS.node(models=["planner"])(plan)
TURNS.node(models=["producer"])(text)
LOOP = pipeline_of(draft, name="loop", models=["producer", "evaluator"])
UNSAID = pipeline_of(plan, text)


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


def planned(graph, settings):
    return asyncio.run(plan_models(graph, settings, environment={}))


@pytest.fixture
def plan_of(tmp_path):
    """A plan, by the settings' words."""
    return lambda graph, **how: planned(graph, settings_of(tmp_path, **how))


@pytest.fixture(autouse=True)
def gpus(monkeypatch):
    """What the driver tells, whatever this machine has; none at first."""
    found = []
    monkeypatch.setattr(tenancy, "read_gpus", lambda: tuple(found))
    return found


def rows(plan):
    return {model.tag: model for model in plan.models}


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
    assert (wide.layout.precision, wide.layout.devices) == ("Q4_1", 1)
    assert wide.layout.sequence_bytes == 2 * small.layout.sequence_bytes == 2048 * 23_040
    (machine,) = plan.devices
    assert wide_bytes + small_bytes <= machine.room_bytes


@pytest.mark.parametrize(
    ("keys", "values", "share"),
    [("q8_0", "q8_0", 17 / 32), ("bf16", "f16", 1), ("q8_0", "f16", None), ("q4_0", "q4_0", None)],
)
def test_a_row_has_the_cache_that_the_endpoint_sets_or_no_figures(plan_of, keys, values, share):
    producer = {**SMALL, "cache_type_k": keys, "cache_type_v": values}
    row = rows(plan_of(TURNS, producer=producer, planner=JUDGE))["producer"]
    assert (row.layout and row.layout.sequence_bytes) == (share and share * 1024 * 23_040)
    assert row.need


def test_what_is_pinned_is_counted_though_nobody_asks_it(plan_of):
    plan = plan_of(TURNS, producer=SMALL, planner=JUDGE, kept={**SPARE, "need": "100 MiB"})
    assert (rows(plan)["kept"].roles, rows(plan)["kept"].need) == ((), {"machine": 100 << 20})


UNCOUNTED = {
    "a server's own": ({"url": NOBODY, "model_id": "m"}, False),
    "unsized": ({"backend": "vllm", "url": f"{NOBODY}/v1", "model_id": "m", "manage": True}, True),
}


@pytest.mark.parametrize(("endpoint", "is_problem"), UNCOUNTED.values(), ids=UNCOUNTED)
def test_a_model_of_which_no_size_is_known_is_not_counted(plan_of, endpoint, is_problem):
    row = rows(plan_of(TURNS, producer=SMALL, planner=endpoint))["planner"]
    assert (row.need, row.problem is not None) == ({}, is_problem)


def test_a_model_of_which_a_part_is_on_a_gpu_is_split(plan_of):
    plan = plan_of(TURNS, head=GPU, producer={**ON_GPU, "gpu_layers": 21}, planner=JUDGE)
    row = rows(plan)["producer"]
    assert row.need["gpu0"] > row.need["machine"] > 0


def test_several_gpus_hold_a_model_together_layer_by_layer(plan_of):
    two = GPU + GPU.replace("gpu0", "gpu1")
    plan = plan_of(TURNS, head=two, producer={**SMALL, "device": ["gpu1", "gpu0"]}, planner=JUDGE)
    row = rows(plan)["producer"]
    assert [*row.need] == ["gpu0", "gpu1", "machine"]
    assert min(row.need["gpu0"], row.need["gpu1"]) > GPU_CONTEXT_BYTES > row.need["machine"] > 0


# --- which device ---------------------------------------------------------------------------------

AUTO = {**SMALL, "device": "auto"}
BOTH = {"writer": AUTO, "judge": AUTO}
CHOSEN = {
    "by order": ("", {"writer": AUTO, "other": AUTO}, {"writer": "gpu0", "other": "machine"}),
    "the evaluator first": ("", BOTH, {"writer": "machine", "judge": "gpu0"}),
    "what is pinned as well": (
        "",
        {"writer": {**AUTO, "pin": True}, "judge": AUTO},
        {"writer": "gpu0", "judge": "machine"},
    ),
    "the highest priority": (
        "",
        {"writer": AUTO, "other": {**AUTO, "priority": 2}},
        {"writer": "machine", "other": "gpu0"},
    ),
    "beside another on the GPU": (
        "",
        {"writer": AUTO, "other": ON_GPU},
        {"writer": "machine", "other": "gpu0"},
    ),
    "beside a server's": (
        "",
        {"writer": AUTO, "other": {**JUDGE, "device": "gpu0", "need": "300 MiB"}},
        {"writer": "machine", "other": "gpu0"},
    ),
    "never on what only a server knows": (
        GPU.replace("gpu0", "a100"),
        {"writer": AUTO, "other": ON_GPU},
        {"writer": "machine", "other": "gpu0"},
    ),
    "never over several": (
        GPU.replace("gpu0", "gpu1"),
        {"writer": {**AUTO, "context_tokens": 32768}},
        {"writer": "machine"},
    ),
    "the file is missing": ("", {"writer": {**AUTO, "path": "no.gguf"}}, {"writer": "gpu0"}),
}


@pytest.mark.parametrize(("more", "endpoints", "chosen"), CHOSEN.values(), ids=CHOSEN)
def test_auto_is_decided_when_a_session_opens(tmp_path, more, endpoints, chosen):
    roles = {"evaluator": "judge"} if "judge" in endpoints else {}
    found = known_endpoints(settings_of(tmp_path, head=GPU + more, roles=roles, **endpoints))
    assert {tag: one.device for tag, one in found.items()} == chosen
    records = []
    describe_endpoints(found, Tracer(records.append))
    said = {one.attributes["model"]: one.attributes["device"] for one in records}
    assert said == chosen


def test_gpus_of_the_driver_need_no_table(tmp_path, gpus):
    gpus += [
        Gpu(name="gpu0", capacity_bytes=None, memory_bytes_per_s=None),  # shares the machine's
        Gpu(name="gpu1", capacity_bytes=1 << 30, memory_bytes_per_s=None),
    ]
    found = known_endpoints(settings_of(tmp_path, writer=AUTO, other=AUTO))
    assert [one.device for one in found.values()] == ["gpu1", "machine"]


# --- who is asked --------------------------------------------------------------------------------


def test_of_nodes_that_do_not_say_whom_they_ask_any_endpoint_may_be(tmp_path):
    settings = settings_of(tmp_path, producer=SMALL, planner=WIDE, spare=JUDGE)
    before = planned(UNSAID, settings)
    assert list(rows(before)) == ["producer", "planner", "spare"]
    assert rows(before)["producer"].need == {"machine": need_of()}


def test_a_loop_asks_the_whole_pool(tmp_path):
    roles = {"producer": "small", "evaluator": ["judge", "larger"]}
    endpoints = {"small": SMALL, "judge": JUDGE, "larger": LARGER}
    plan = planned(LOOP, settings_of(tmp_path, roles=roles, **endpoints))
    judges = dict.fromkeys(["judge", "larger"], ("evaluator",))
    assert {tag: one.roles for tag, one in rows(plan).items()} == {"small": ("producer",)} | judges


# --- what is refused ------------------------------------------------------------------------------

SMALL_IS_ALL = {"capacity": TIGHT, "roles": {"producer": "small"}}
REFUSED = {
    "too large": (
        {"capacity": "150 MiB", "producer": SMALL, "planner": WIDE},
        "planner",
        [format_bytes(need_of(context_tokens=2048, slots=2)), "150.0 MiB"],
    ),
    "too large beside the reserve and what is pinned": (
        {"capacity": '350 MiB"\nreserve = "50 MiB', "producer": SMALL, "planner": SMALL}
        | {"kept": SPARE},
        "planner",
        ["350.0 MiB", "50.0 MiB", "200.0 MiB of pinned 'kept'"],
    ),
}


@pytest.mark.parametrize(("how", "model", "facts"), REFUSED.values(), ids=REFUSED)
def test_what_can_never_fit_is_refused_with_the_sum(tmp_path, how, model, facts):
    with pytest.raises(DoesNotFit) as caught:
        planned(TURNS, settings_of(tmp_path, **how))
    assert caught.value.model == model
    assert all(fact in str(caught.value) for fact in facts)


def test_what_only_stands_in_may_never_fit(plan_of):
    small, huge = {**SMALL, "fallback": ["huge"]}, {**JUDGE, "need": "1 GiB"}
    plan = plan_of(TURNS, **SMALL_IS_ALL, small=small, huge=huge)
    assert "'huge' needs 1.0 GiB" in rows(plan)["huge"].problem


def test_a_plan_leaves_nothing_behind(plan_of, tmp_path):
    plan_of(BRIEF, producer=SMALL, planner=WIDE)
    assert [path.name for path in tmp_path.rglob("*")] == ["harness.toml"]
