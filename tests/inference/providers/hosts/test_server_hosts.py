"""What is particular to the hosts of vLLM and Triton."""

import pytest
from server_hosts import KINDS, ask
from servers.triton_repository import TritonRepository
from servers.vllm_sleeping import SleepingVllm

VLLM, TRITON = KINDS["vllm"], KINDS["triton"]

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
