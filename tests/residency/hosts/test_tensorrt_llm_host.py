import asyncio

import pytest
from server_hosts import KINDS, host_at
from servers.tensorrt_llm_parking import KEY, ParkingTensorRtLlm

from harness.errors import AuthenticationFailed, ConfigurationInvalid, LoadFailed
from harness.residency.host import HostReport
from harness.residency.hosts.runtime_control_auth import early_signed_headers, signed_headers

TENSORRT = KINDS["tensorrt-llm"]
THERE, GONE = HostReport(resident=True), HostReport(resident=False)


@pytest.mark.parametrize("signs", ["request", "body"])
def test_requests_are_signed_as_either_version_wants(signs):
    async def main():
        server = ParkingTensorRtLlm(signs=signs)
        async with server, host_at(server.root, TENSORRT) as host:
            await host.unload()
            parked = await host.report(), server.gpu_bytes
            await host.load()
            return parked, await host.report(), server.log

    assert asyncio.run(main()) == ((GONE, 0), THERE, ["unload", "load"])


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


def test_no_two_requests_have_the_same_nonce():
    headers = [signed_headers(KEY, method="GET", path="/memory_status") for _ in range(50)]

    assert len({one["x-trtllm-runtime-control-nonce"] for one in headers}) == 50


def test_a_wrong_key_is_an_error_that_names_the_setting_and_not_the_key():
    async def main():
        server = ParkingTensorRtLlm()
        async with server, host_at(server.root, TENSORRT, control_key="not-the-key") as host:
            for action in (host.load, host.unload, host.report):
                with pytest.raises(AuthenticationFailed, match="control_key_env") as caught:
                    await action()
                assert "not-the-key" not in str(caught.value)
            return server.log

    assert asyncio.run(main()) == []


@pytest.mark.parametrize("key", [None, ""])
def test_without_a_key_it_cannot_be_managed(key):
    async def main():
        async with host_at("http://127.0.0.1:1", TENSORRT, control_key=key or None):
            pass

    with pytest.raises(ConfigurationInvalid, match="TRTLLM_RUNTIME_CONTROL_API_KEY"):
        asyncio.run(main())


def test_a_host_waits_while_the_server_moves_its_memory():
    async def main():
        server = ParkingTensorRtLlm(on_the_move_for=2)
        async with server, host_at(server.root, TENSORRT) as host:
            await host.unload()
            return await host.report(), server

    report, server = asyncio.run(main())

    assert report == GONE
    assert server.posted() == ["/release_memory"]


def test_one_that_somebody_else_is_parking_is_waited_for_and_then_woken():
    async def main():
        server = ParkingTensorRtLlm()
        async with server, host_at(server.root, TENSORRT) as host:
            server.state, server._moves_to, server.on_the_move_for = "parking", "parked", 2
            moving = await host.report()
            await host.load()
            return moving, await host.report(), server.log

    assert asyncio.run(main()) == (GONE, THERE, ["load"])


def test_one_without_sleep_mode_says_how_to_start_it():
    async def main():
        server = ParkingTensorRtLlm(sleep_mode=False)
        async with server, host_at(server.root, TENSORRT) as host:
            for action in (host.load, host.unload, host.report):
                with pytest.raises(LoadFailed, match="--enable_sleep_mode"):
                    await action()

    asyncio.run(main())


def test_without_room_it_has_failed_and_must_be_started_anew():
    async def main():
        server = ParkingTensorRtLlm(state="parked", has_room=False)
        async with server, host_at(server.root, TENSORRT) as host:
            with pytest.raises(LoadFailed, match="CUDA_ERROR_OUT_OF_MEMORY") as caught:
                await host.load()
            assert caught.value.out_of_memory
            with pytest.raises(LoadFailed, match="has to be started anew"):
                await host.load()
            return await host.report()

    assert asyncio.run(main()) == GONE
