"""What is recorded of the machine, with a model that is loaded from a file."""

import asyncio
import json
from contextlib import nullcontext

import pytest
from real_engines import small_endpoint

from harness.hardware.machine import Gpu
from harness.inference import Endpoint
from harness.session import monitoring
from harness.session.models import open_models
from harness.session.monitoring import KEPT, record_machine_speed
from harness.session.settings import Settings
from harness.trace import Instant, Tracer


@pytest.fixture
def measured(monkeypatch):
    """How often memory was measured; it is said to give 10 GB a second."""
    times = []
    monkeypatch.setattr(
        monitoring, "memory_bytes_per_s", lambda: times.append(1) or 10_000_000_000.4
    )
    return times


def recorded(directory, *, endpoint=None, file=None, run_id="run", **changes):
    """The attributes of what is recorded, by name."""
    records = []
    tracer = Tracer(records.append)
    tracer.run_id = run_id
    endpoint = endpoint or small_endpoint(**changes)

    async def file_of(_endpoint):
        return file

    how = {"directory": directory, "tracer": tracer, "file_of": file_of}
    asyncio.run(record_machine_speed([endpoint], **how))
    return {one.name: one.attributes for one in records if isinstance(one, Instant)}


def test_weights_and_the_speed_of_memory_are_recorded(tmp_path, measured):
    said = recorded(tmp_path)
    assert 50_000_000 < said["weights"]["active_bytes"] < 100_000_000
    assert said["machine"]["memory_bytes_per_s"] == 10_000_000_000
    assert said["machine"]["source"] == "measured"


def test_memory_is_measured_once_until_the_machine_is_started_again(tmp_path, measured):
    assert recorded(tmp_path) == recorded(tmp_path)
    assert len(measured) == 1
    kept = json.loads((tmp_path / KEPT).read_text())
    (tmp_path / KEPT).write_text(json.dumps({**kept, "boot_id": "another"}))
    recorded(tmp_path)
    assert len(measured) == 2
    (tmp_path / KEPT).write_text("damaged")
    recorded(tmp_path)
    assert len(measured) == 3


def test_a_directory_that_cannot_be_written_costs_nothing(tmp_path, measured):
    (tmp_path / "file").write_text("")
    assert "machine" in recorded(tmp_path / "file")


@pytest.mark.parametrize("fails", [False, True], ids=["ended well", "failed"])
def test_the_machine_is_measured_after_a_run_that_ended_well_alone(tmp_path, measured, fails):
    tracer = Tracer(lambda _record: None)
    tracer.run_id = "run"

    async def main():
        how = {"settings": Settings(traces=tmp_path), "environment": {}, "tracer": tracer}
        async with open_models({"m": small_endpoint(tag="m")}, required=["m"], **how):
            if fails:
                raise KeyError

    with pytest.raises(KeyError) if fails else nullcontext():
        asyncio.run(main())
    assert len(measured) == (not fails)


@pytest.mark.parametrize(
    "how",
    [{"run_id": ""}, {"device": "gpu0", "gpu_layers": 3}, {"device": {"gpu0": 1.0, "gpu1": 1.0}}],
    ids=["no record", "partly on a GPU", "on several GPUs"],
)
def test_nothing_is_recorded_without_a_run_or_of_a_split_model(tmp_path, measured, how):
    assert recorded(tmp_path, **how) == {}


def test_of_a_gpu_its_driver_says_how_fast_its_memory_is(tmp_path, measured, monkeypatch):
    gpu = Gpu(name="gpu0", capacity_bytes=80 << 30, memory_bytes_per_s=3352 * 10**9)
    monkeypatch.setattr(monitoring, "read_gpus", lambda: (gpu,))
    said = recorded(tmp_path, device="gpu0")
    assert said["weights"]["device"] == said["machine"]["device"] == "gpu0"
    assert said["machine"]["memory_bytes_per_s"] == 3352 * 10**9
    assert said["machine"]["source"] == "nominal"
    assert not measured


def server(**fields):
    return Endpoint(tag="m", backend="llamacpp", url="http://127.0.0.1:9/v1", **fields)


def test_a_server_counts_if_it_is_known_where_its_model_is(tmp_path, measured):
    file = small_endpoint().path
    said = recorded(tmp_path, endpoint=server(device="machine"), file=file)
    assert said["weights"]["active_bytes"] == recorded(tmp_path)["weights"]["active_bytes"]
    assert recorded(tmp_path, endpoint=server(device="machine")) == {}
    assert recorded(tmp_path, endpoint=server(), file=file) == {}
    assert recorded(tmp_path, endpoint=server(device="machine"), file=tmp_path / "no.gguf") == {}
