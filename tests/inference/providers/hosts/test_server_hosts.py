"""What is particular to the hosts of vLLM, SGLang, TensorRT-LLM, TabbyAPI and Triton."""

import pytest
from server_hosts import KINDS, ask, cancel
from servers.sglang_memory import SavingSglang
from servers.tabby_models import TabbyServer
from servers.tensorrt_llm_parking import ParkingTensorRtLlm
from servers.triton_repository import TritonRepository
from servers.vllm_sleeping import SleepingVllm

from harness.errors import ModelNotFound
from harness.inference.providers.tensorrt_llm import early_signed_headers, signed_headers

VLLM, SGLANG, TENSORRT = KINDS["vllm"], KINDS["sglang"], KINDS["tensorrt-llm"]
TABBY, TRITON = KINDS["tabbyapi"], KINDS["triton"]

# --- vLLM -----------------------------------------------------------------------------------------


def test_vllm_asleep_has_given_its_share_of_the_gpu_back_and_keeps_its_weights():
    server = SleepingVllm()
    ask(VLLM, server, "unload")
    assert server.gpu_bytes == 0
    assert server.posted() == ["/sleep?level=1&mode=wait"]  # level 2 would throw them away


def test_a_vllm_whose_calls_do_not_end_is_left_awake():
    server = SleepingVllm()
    server.calls_ended.clear()
    error, report = ask(VLLM, server, "unload", "report", load_timeout_s=0.3)
    assert (error.code, report, server.log) == ("model.load-timeout", "there", [])


# --- SGLang ---------------------------------------------------------------------------------------

LET_GO = ["/pause_generation", "/flush_cache", "/release_memory_occupation"]
TAKE = ["/resume_memory_occupation", "/update_weights_from_disk", "/continue_generation"]


def test_sglang_is_paused_before_it_gives_its_memory_back_and_reads_its_weights_again():
    server = SavingSglang()
    ask(SGLANG, server, "unload")
    assert (server.gpu_bytes, server.is_paused, server.weights_are_good) == (0, True, False)

    server = SavingSglang()
    ask(SGLANG, server, "unload", "load")
    assert (server.gpu_bytes, server.is_paused) == (server.share_bytes, False)
    assert server.weights_are_good
    assert server.posted() == LET_GO + TAKE


def test_weights_that_sglang_kept_are_not_read_again():
    server = SavingSglang(cpu_backup=True)
    ask(SGLANG, server, "unload", "load")
    assert server.weights_are_good
    assert "read weights" not in server.log


def test_what_would_end_sglang_if_it_were_asked_twice_it_is_asked_once():
    server = SavingSglang()
    ask(SGLANG, server, *["unload"] * 3, *["load"] * 3)
    assert not server.has_died
    assert server.log == ["unload", "load", "read weights"]


def test_sglang_is_not_asked_for_its_memory_while_a_call_runs():
    server = SavingSglang(busy_for=2)
    ask(SGLANG, server, "unload")
    assert not server.has_died
    assert server.posted() == [LET_GO[0], *[LET_GO[1]] * 3, LET_GO[2]]


def test_an_sglang_whose_calls_do_not_end_goes_on():
    server = SavingSglang(busy_for=10**9)
    error, report = ask(SGLANG, server, "unload", "report", load_timeout_s=0.3)
    assert (error.code, report) == ("model.load-timeout", "there")
    assert (server.is_paused, server.log) == (False, [])


@pytest.mark.parametrize(
    ("page", "answer", "posted"),
    [
        ("/update_weights_from_disk", (400, {"success": False}), [*TAKE[:2], *LET_GO]),
        (TAKE[0], (502, {"error": "Bad gateway"}), TAKE[:1]),  # not to be given back
    ],
    ids=["cannot read its weights", "cannot take its memory"],
)
def test_an_sglang_that_cannot_come_back_is_left_without_its_memory(page, answer, posted):
    server = SGLANG.gone(instead={page: answer})
    error, report = ask(SGLANG, server, "load", "report")
    assert (error.code, error.out_of_memory, report) == ("model.load-failed", False, "gone")
    assert (server.has_died, server.gpu_bytes, server.posted()) == (False, 0, posted)


@pytest.mark.parametrize("unanswered", ["/resume_memory_occupation", "/continue_generation"])
def test_an_sglang_whose_load_is_cancelled_is_paused_before_it_lets_go_again(unanswered):
    """Where it goes on already, calls of others run."""
    server = SGLANG.gone(unanswered={unanswered})

    def calls_run():
        server.busy_for = 2 if unanswered == "/continue_generation" else 0

    assert cancel(SGLANG, server, server.keeps_waiting.wait, then=calls_run) == "gone"
    assert (server.has_died, server.gpu_bytes) == (False, 0)


# --- TensorRT-LLM ---------------------------------------------------------------------------------


def test_tensorrt_llms_requests_are_signed_as_its_first_versions_wanted_too():
    server = ParkingTensorRtLlm(signs="body")
    assert ask(TENSORRT, server, "unload", "report", "load") == ["done", "gone", "done"]
    assert server.log == ["unload", "load"]


def test_a_signature_is_as_the_documentation_computes_it():
    headers = signed_headers(
        "secret",
        method="POST",
        path="/release_memory",
        body=b'{"tags":["model"]}',
        now_s=lambda: 1_795_334_702.9,
        nonce=lambda: "0123456789abcdef" * 2,
    )

    # printf '%s\n' trtllm-runtime-control-v1 POST /release_memory 1795334702 0123456789abcdef0123…
    # and the body behind it, through `openssl dgst -sha256 -hmac secret`.
    signature = "d553b576d0c245911e7c6cbcd400fd3dc8fcebe6306321be7d011e31a9071db8"
    assert headers == {
        "x-trtllm-runtime-control-auth": f"sha256={signature}",
        "x-trtllm-runtime-control-timestamp": "1795334702",
        "x-trtllm-runtime-control-nonce": "0123456789abcdef" * 2,
    }
    signature = "f9e66e179b6747ae54108f82f8ade8b3c25d76fd30afde6c395822c530196169"
    assert early_signed_headers("secret") == {
        "x-trtllm-runtime-control-auth": f"sha256={signature}"
    }


def test_a_host_waits_while_tensorrt_llm_moves_its_memory():
    server = ParkingTensorRtLlm(on_the_move_for=2)
    assert ask(TENSORRT, server, "unload", "report") == ["done", "gone"]
    assert server.posted() == ["/release_memory"]


# --- TabbyAPI -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "report", "log"),
    [
        ("load", "there", ["unload llama", "load qwen"]),
        ("unload", "gone", []),
        ("report", "gone", []),
    ],
)
def test_another_model_of_tabbyapis_makes_way_for_a_load_alone(action, report, log):
    server = TabbyServer(loaded="llama")
    assert ask(TABBY, server, action, "report")[1] == report
    assert server.log == log


def test_a_load_that_tabbyapi_refuses_leaves_another_model_where_it_is():
    server = TabbyServer(folders=("llama",), loaded="llama")
    assert [type(error) for error in ask(TABBY, server, "load")] == [ModelNotFound]
    assert (server.loaded, server.log) == ("llama", [])


# --- Triton ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [TRITON, KINDS["triton-openai"]], ids=["kserve", "openai"])
def test_other_models_of_tritons_are_left_as_they_are(kind):
    server = TritonRepository(ready={"m", "tokens"})
    ask(kind, server, "unload")
    assert server.ready == {"tokens"}


def test_what_an_ensemble_is_made_of_comes_and_goes_with_it():
    server = TritonRepository()
    assert ask(TRITON, server, "load", "report", model_id="chain") == ["done", "there"]
    assert server.ready == {"chain", "m", "tokens"}

    assert ask(TRITON, server, "unload", "report", model_id="chain") == ["done", "gone"]
    assert server.ready == set()


def test_unloading_from_triton_waits_until_the_calls_under_way_have_ended():
    server = TritonRepository(ready={"m"}, leaves_after=3)
    ask(TRITON, server, "unload")
    assert server.unloading == {"m": 0}
    assert [one.path for one in server.asked].count("/v2/repository/index") >= 4
