"""Who plays what in a run, and that its record, its line and its result say so."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import AsyncExitStack

import pytest
from servers.pages import Pages
from session_runs import codes, instants_of, line_of, pipeline_of, refused, run, spans_of
from structlog.testing import capture_logs

from harness import Run, ScriptedBackend, Settings, load_settings
from harness.errors import SameFamily, SameModel
from harness.inference import Endpoint
from harness.session.separation import drawn_evaluator

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
POOL = 'producer = "qwen"\nevaluator = ["llama", " ", "qwen3", "mistral", "qwen"]\n'
PANEL = POOL + '[evaluation]\npanel = "median"\n'
EXCLUDED = {
    "qwen3": "it and the producer 'qwen' are of one family (qwen)",
    "qwen": "is the producer",
}
JUDGING = ["producer", "evaluator"]
ALLOWED = '[separation]\nsame_family = "allow"\n'


def judged():
    """A pipeline that may judge, and calls no model."""

    async def step(run: Run) -> str:
        return ""

    return pipeline_of(step, models=JUDGING)


def cast(tmp_path, roles, *, task="", head="", judges=True):
    """A run that calls no model, and may judge, by these lines under `[roles]`."""

    async def step(run: Run, task: str) -> str:
        return task

    path = tmp_path / "harness.toml"
    path.write_text(f'traces = "traces"\n{head}[roles]\n{roles}{ENDPOINTS}')
    settings = load_settings(path, environment={})
    with capture_logs() as logs:
        models = JUDGING if judges else ["producer"]
        result = run(pipeline_of(step, models=models), settings, {"task": task})
    cast.logs = logs
    return result


# --- separation ------------------------------------------------------------------------------


def test_a_run_says_what_its_two_models_are_to_each_other(tmp_path):
    result = cast(tmp_path, 'producer = "qwen"\nevaluator = "llama"\n')
    assert result.separation.producer == "qwen"
    assert result.separation.evaluators == {"llama": "different"}
    assert result.warnings == ()
    assert line_of(result)["separation"] == result.separation.relation == "different"
    (separation,) = instants_of(result, "separation")
    assert separation["producer"] == {
        "model": "qwen",
        "weights": "qwen-2.5-7b",
        "family": "qwen",
        "quantization": None,
        "source": "name",
    }


def test_warnings_are_in_the_log_the_record_the_line_and_the_result(tmp_path):
    result = cast(tmp_path, 'producer = "ours"\nevaluator = "qwen3"\n', head=ALLOWED)
    assert codes(result.warnings) == ["separation.family-unknown", "separation.evaluator-low-bit"]
    said = [{"code": one.code, "message": str(one)} for one in result.warnings]
    assert "'ours'" in said[0]["message"]
    assert "Q4_K_M" in said[1]["message"]
    assert [{"code": log["code"], "message": log["event"]} for log in cast.logs] == said
    assert instants_of(result, "warning") == said
    assert line_of(result)["warnings"] == said


WRONG = {
    "one model": ('producer = "qwen"\nevaluator = "qwen"\n', "roles.same-model"),
    "an empty pool": ('producer = "qwen"\nevaluator = ["qwen", "qwen3"]\n', "roles.pool-empty"),
    "a panel of one name": (
        'producer = "qwen"\nevaluator = "llama"\n[evaluation]\npanel = "mean"\n',
        "roles.panel-without-pool",
    ),
}


@pytest.mark.parametrize(("roles", "code"), WRONG.values(), ids=WRONG)
def test_what_the_settings_tell_to_be_wrong_leaves_no_files(tmp_path, roles, code):
    with refused(code):
        cast(tmp_path, roles)
    assert not (tmp_path / "traces").exists()


def test_scripted_backends_are_kept_apart_by_their_tags_and_warn_of_nothing(tmp_path):
    async def step(run: Run) -> str:
        return await run.chat("evaluator", await run.chat("producer", "x"))

    settings = Settings(traces=tmp_path, roles={"producer": "writer", "evaluator": "judge"})
    backends = {tag: ScriptedBackend([tag]) for tag in ("writer", "judge")}
    with capture_logs() as logs:
        result = run(pipeline_of(step), settings, backends=backends)
    assert (result.result, result.separation.relation) == ("judge", "different")
    assert (result.warnings, logs) == ((), [])


async def ask_judge(run: Run) -> str:
    return await run.chat("evaluator", "x")


async def judging(run: Run) -> str:
    await run.chat("producer", "first")
    return await ask_judge(run)


async def judging_itself(run: Run) -> str:
    return await run.chat("evaluator", "x")


async def writing(run: Run) -> str:
    return await run.chat("producer", "first")


@pytest.mark.parametrize(
    ("node", "declared", "refusal"),
    [
        pytest.param(writing, None, (None, 1), id="nobody judges"),
        pytest.param(writing, ["producer"], (None, 1), id="nobody does by its declaration"),
        pytest.param(writing, JUDGING, ("roles.same-model", 0), id="somebody may, it says"),
        pytest.param(judging_itself, None, ("roles.same-model", 0), id="its code names the role"),
        pytest.param(judging, None, ("roles.same-model", 1), id="a helper judges"),
    ],
)
@pytest.mark.parametrize("evaluator", ["same", ("same",)], ids=["one", "a pool"])
def test_one_model_for_both_roles_is_refused_where_it_judges(
    tmp_path, node, declared, refusal, evaluator
):
    code, calls = refusal
    writer = ScriptedBackend(["Said."])
    roles = {"producer": "same", "evaluator": evaluator}
    settings = Settings(traces=tmp_path, roles=roles)
    pipeline = pipeline_of(node, models=declared)
    if code is None:
        result = run(pipeline, settings, backends={"same": writer})
        assert (result.result, result.separation, codes(result.warnings)) == ("Said.", None, [])
    else:
        with refused(code if evaluator == "same" else "roles.pool-empty"):
            run(pipeline, settings, backends={"same": writer})
    assert len(writer.requests) == calls


def test_where_nothing_is_judged_no_family_is_missed(tmp_path):
    result = cast(tmp_path, 'producer = "ours"\nevaluator = "qwen3"\n', judges=False)
    assert (result.warnings, result.separation) == ((), None)


# --- the word of servers ---------------------------------------------------------------------


def llama_server(path):
    return Pages(pages={"/props": {"model_path": path, "model_ftype": "Q8_0"}})


def among(tmp_path, *servers, evaluator="e", key=None, fallback=(), **tables):
    """A run that calls no model: producer `p`, and `e` and so on at servers that say this."""

    async def main():
        async with AsyncExitStack() as stack:
            endpoints = {}
            for tag, server in zip("pefghi", servers, strict=False):
                await stack.enter_async_context(server)
                fields = {
                    "url": f"{server.root}/v1",
                    "backend": "llamacpp",
                    "model_id": f"our-{tag}",
                }
                fields |= {"api_key_env": key, "fallback": fallback if tag == "e" else ()}
                endpoints[tag] = Endpoint.model_validate({"tag": tag, **fields})
            settings = Settings.model_validate(
                {
                    "traces": tmp_path / "traces",
                    "endpoints": endpoints,
                    "roles": {"producer": "p", "evaluator": evaluator},
                    **tables,
                }
            )
            return await judged().run_async({}, settings=settings)

    with capture_logs():
        return asyncio.run(main())


def records_of(tmp_path):
    files = [path for path in (tmp_path / "traces").rglob("*") if path.is_file()]
    return "".join(path.read_bytes().decode("utf-8", "replace") for path in files)


def test_two_llama_servers_over_one_file_end_the_run_before_the_first_call(tmp_path):
    servers = llama_server("/home/ann/our-own.gguf"), llama_server("/srv/bob/our-own.gguf")
    with pytest.raises(SameModel, match=r"our-own\.gguf"):
        among(tmp_path, *servers)
    asked = {one.path.partition("?")[0] for server in servers for one in server.asked}
    assert asked == {"/props"}
    assert "our-own.gguf" in records_of(tmp_path)
    assert not {"ann", "bob"} & set(re.findall(r"\w+", records_of(tmp_path)))


def test_a_fallback_is_asked_too(tmp_path):
    paths = ("Qwen3-8B", "Llama-3.1-8B", "Qwen2.5-7B")
    with pytest.raises(SameFamily, match="e -> f"):
        among(tmp_path, *(llama_server(f"/m/{path}.gguf") for path in paths), fallback=("f",))


@pytest.mark.slow  # it waits for five seconds
def test_servers_that_do_not_tell_are_asked_at_once_and_hold_nothing_up(tmp_path):
    began = time.monotonic()
    result = among(tmp_path, Pages("silent"), Pages("silent"))
    assert time.monotonic() - began < 9, "five seconds for both, not for each"
    (separation,) = instants_of(result, "separation")
    assert (separation["relation"], separation["evaluator"]["source"]) == ("unknown", "name")
    (asked,) = spans_of(result, "ask servers")
    assert (asked["models"], asked["told"]) == (["p", "e"], [])


def test_a_server_is_asked_with_its_endpoints_key_and_not_without(tmp_path, monkeypatch):
    servers = llama_server("/m/Qwen3-8B.gguf"), llama_server("/m/Llama-3.1-8B.gguf")
    monkeypatch.delenv("OUR_KEY", raising=False)
    with refused("endpoint.key-not-set"):
        among(tmp_path, *servers, key="OUR_KEY")
    assert [server.asked for server in servers] == [[], []]
    monkeypatch.setenv("OUR_KEY", "sk-secret-1")
    among(tmp_path, *servers, key="OUR_KEY")
    for server in servers:
        assert server.asked[0].headers["authorization"] == "Bearer sk-secret-1"


# --- the pool, and the panel -----------------------------------------------------------------


def test_a_run_draws_its_evaluator_by_its_task(tmp_path):
    # The MD5 of "task-1" is even, that of "1" is odd.
    for task, evaluator in (("task-1", "llama"), ("1", "mistral")):
        result = cast(tmp_path, POOL, task=task)
        assert list(result.separation.evaluators) == [evaluator]
        assert line_of(result)["evaluator_model"] == evaluator
        (drawn,) = instants_of(result, "evaluator drawn")
        assert (drawn["evaluator"], drawn["seed"]) == (evaluator, task)
        assert (drawn["pool"], drawn["excluded"]) == (["llama", "mistral"], EXCLUDED)


def test_the_settings_seed_goes_before_the_task_and_without_both_it_is_the_runs_id(tmp_path):
    head = '[separation]\npool_seed = "week 7"\n'
    assert cast(tmp_path, POOL, task="task-1", head=head).evaluator_pool.seed == "week 7"
    bare = cast(tmp_path, POOL)
    assert bare.evaluator_pool.seed == bare.run_id


def test_a_task_that_may_not_be_recorded_is_not_recorded_as_a_seed(tmp_path):
    cast(tmp_path, POOL, task="our secret plan", head='[trace]\ncontent = "hash"\n')
    assert "our secret plan" not in records_of(tmp_path)


def test_the_drawn_evaluator_is_who_is_asked(tmp_path):
    async def step(run: Run, task: str) -> str:
        return await run.chat("evaluator", task)

    settings = Settings(traces=tmp_path, roles={"producer": "p", "evaluator": ("a", "b", "c")})
    backends = {tag: ScriptedBackend(lambda request: request.model) for tag in "pabc"}
    result = run(pipeline_of(step), settings, {"task": "task-1"}, backends=backends)
    assert result.result == "c", "md5 of the task modulo three is two"


def test_a_panel_is_the_whole_pool_without_the_producers_kin(tmp_path):
    result = cast(tmp_path, PANEL, task="task-1")
    panel = result.evaluator_pool
    assert (panel.members, panel.combine) == (("llama", "mistral"), "median")
    assert panel.excluded == EXCLUDED
    assert panel.drawn is None
    assert result.separation.evaluators == {"llama": "different", "mistral": "different"}
    assert line_of(result)["evaluator_model"] == "llama, mistral"
    (seated,) = instants_of(result, "evaluator panel")
    assert (seated["evaluators"], seated["combine"]) == (["llama", "mistral"], "median")
    assert seated["excluded"] == EXCLUDED
    separations = instants_of(result, "separation")
    assert [one["evaluator"]["model"] for one in separations] == ["llama", "mistral"]


ROOTS = ("Qwen2.5-7B-AWQ", "Llama-3.1-8B", "Qwen3-8B", "gemma-3-4b")
MEAN = {"evaluation": {"panel": "mean"}}


def pooled(tmp_path, *roots, **tables):
    """A run whose producer has Qwen 2.5, and whose pool of `e`, `f`, … has these."""
    servers = [llama_server(f"/m/{root}.gguf") for root in ("Qwen2.5-7B", *roots)]
    return among(tmp_path, *servers, evaluator=tuple("efgh"[: len(roots)]), **tables)


@pytest.mark.parametrize(
    "tables",
    [*({"separation": {"pool_seed": seed}} for seed in "ab"), MEAN],
    ids=["a draw", "another", "a panel"],
)
def test_whom_their_servers_show_to_be_kin_of_the_producer_does_not_judge(tmp_path, tables):
    result = pooled(tmp_path, *ROOTS, **tables)
    chosen = result.evaluator_pool
    assert chosen.excluded == {
        "e": "it and the producer 'p' are the same model, as their servers say",
        "g": "it and the producer 'p' are of one family (qwen), as their servers say",
    }
    assert chosen.members == ("f", "h")
    if chosen.drawn:
        expected = drawn_evaluator(("f", "h"), tables["separation"]["pool_seed"])
        assert chosen.drawn == expected, "the same seed, the same draw"
        assert result.separation.evaluators == {chosen.drawn: "different"}
        (drawn,) = instants_of(result, "evaluator drawn")
        assert drawn["excluded"] == chosen.excluded


def test_a_panel_of_one_model_twice_is_warned_of(tmp_path):
    warnings = pooled(tmp_path, "Llama-3.1-8B", "Llama-3.1-8B-Q4_0", **MEAN).warnings
    (said,) = [one.message for one in warnings if one.code == "panel.same-model"]
    assert "'e'" in said
    assert "'f'" in said


# --- roles without a model -----------------------------------------------------------------------


async def reads_and_plans(run: Run) -> None:
    for role in ("producer", "reader", "reader", "planner"):
        await run.chat(role, "x")


@pytest.mark.parametrize(
    ("given", "told"), [({"producer": "a"}, ["reader", "planner"]), ({}, [])], ids=["some", "none"]
)
def test_a_role_that_the_producers_model_plays_is_told_once_where_others_are_given(
    tmp_path, given, told
):
    backends = {given.get("producer", "producer"): ScriptedBackend(["A reply."] * 4)}
    settings = Settings(traces=tmp_path, roles=given)
    result = run(pipeline_of(reads_and_plans), settings, backends=backends)
    assert [one.code for one in result.warnings] == ["roles.played-by-producer"] * len(told)
    assert [one.message.split("'")[1] for one in result.warnings] == told


def test_a_backend_given_in_code_goes_before_the_files_model(tmp_path):
    async def text(run: Run) -> str:
        return await run.chat("producer", "x")

    path = tmp_path / "harness.toml"
    path.write_text(f'traces = "traces"\n[roles]\nproducer = "qwen"\n{ENDPOINTS}')
    settings = load_settings(path, environment={})
    backends = {"producer": ScriptedBackend(["By script."])}
    assert run(pipeline_of(text, models=["producer"]), settings, backends=backends).result == (
        "By script."
    )


def test_a_misspelt_role_that_no_node_declares_is_refused_at_its_call(tmp_path):
    async def judged(run: Run) -> str:
        return await run.chat("evalutor", "Is it good?")

    backend = ScriptedBackend(["Very."])
    with refused("roles.misspelt"):
        run(pipeline_of(judged), Settings(traces=tmp_path), backends={"producer": backend})
    assert backend.requests == []
