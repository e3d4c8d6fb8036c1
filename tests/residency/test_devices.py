# ruff: noqa: N802 - the stand-in has NVML's names
"""Where there is a GPU, its sizes are the driver's; elsewhere a small stand-in plays the driver."""

import importlib.util
import subprocess
import sys
from types import SimpleNamespace

import pytest

from harness.residency.devices import DeviceMemory, gpus_by, read_gpus

GIB = 1 << 30

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("pynvml") is None, reason="needs nvidia-ml-py"
)


class Nvml:
    """A driver with these GPUs, as `pynvml` shows it; None for one that does not tell."""

    class NVMLError(Exception):
        pass

    def __init__(self, *gpus, has_driver=True, loses_gpus=False):
        self._gpus = gpus
        self._has_driver = has_driver
        self._loses_gpus = loses_gpus
        self.open = 0

    def nvmlInit(self):
        if not self._has_driver:
            raise self.NVMLError("NVML Shared Library Not Found")
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        if self._loses_gpus:
            raise self.NVMLError("Unknown Error")
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, number):
        return number

    def nvmlDeviceGetMemoryInfo(self, handle):
        if self._gpus[handle] is None:
            raise self.NVMLError("Not Supported")
        total, free = self._gpus[handle]
        return SimpleNamespace(total=total, free=free, used=total - free)


def test_each_gpu_has_its_number_for_a_name():
    nvml = Nvml((80 * GIB, 70 * GIB), (24 * GIB, 1 * GIB))

    assert gpus_by(nvml) == (
        DeviceMemory(name="gpu0", total_bytes=80 * GIB, free_bytes=70 * GIB),
        DeviceMemory(name="gpu1", total_bytes=24 * GIB, free_bytes=1 * GIB),
    )
    assert nvml.open == 0


def test_a_gpu_that_does_not_tell_is_left_out_and_the_others_keep_their_names():
    [gpu] = gpus_by(Nvml(None, (8 * GIB, 8 * GIB)))

    assert gpu.name == "gpu1"


def test_without_a_driver_there_are_none():
    assert gpus_by(Nvml((8 * GIB, 8 * GIB), has_driver=False)) == ()


def test_a_driver_that_fails_is_closed_again():
    nvml = Nvml((8 * GIB, 8 * GIB), loses_gpus=True)

    assert gpus_by(nvml) == ()
    assert nvml.open == 0


def test_without_the_package_there_are_none(tmp_path):
    # One that cannot be imported, whatever is installed.
    (tmp_path / "pynvml.py").write_text("raise ImportError('not for this machine')\n")
    script = (
        f"import sys; sys.path[:0] = {[str(tmp_path), *sys.path]!r}\n"
        "from harness.residency.devices import read_gpus; print(read_gpus())"
    )

    run = [sys.executable, "-c", script]
    output = subprocess.run(run, capture_output=True, text=True, check=True).stdout

    assert output == "()\n"


def test_what_there_is_on_this_machine_is_no_error():
    assert all(0 <= gpu.free_bytes <= gpu.total_bytes for gpu in read_gpus())


@needs_package
def test_the_real_package_has_what_is_asked_of_it():
    import pynvml

    for name in (
        "NVMLError",
        "nvmlDeviceGetCount",
        "nvmlDeviceGetHandleByIndex",
        "nvmlDeviceGetMemoryInfo",
        "nvmlInit",
        "nvmlShutdown",
    ):
        assert callable(getattr(pynvml, name))
