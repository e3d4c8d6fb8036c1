"""What is particular to the host of vLLM."""

from server_hosts import KINDS, ask
from servers.vllm_sleeping import SleepingVllm

VLLM = KINDS["vllm"]


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
