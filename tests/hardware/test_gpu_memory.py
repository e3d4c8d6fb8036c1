# ruff: noqa: N802 - the stand-in has NVML's names
"""Where there is a GPU, its sizes are the driver's; elsewhere a small stand-in plays the driver."""

import sys
from types import SimpleNamespace

import pytest

from harness.hardware.gpu_memory import gpus_by, read_gpus

GIB = 1 << 30


class Nvml:
    """A driver with these GPUs, as `pynvml` shows it; None for one that does not tell."""

    class NVMLError(Exception):
        pass

    def __init__(self, *gpus, has_driver=True):
        self._gpus = gpus
        self._has_driver = has_driver
        self.open = 0

    def nvmlInit(self):
        if not self._has_driver:
            raise self.NVMLError("NVML Shared Library Not Found")
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, number):
        return number

    def nvmlDeviceGetMemoryInfo(self, handle):
        if self._gpus[handle] is None:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(total=self._gpus[handle])


LARGE, SMALL = 80 * GIB, 24 * GIB


@pytest.mark.parametrize(
    ("nvml", "gpus"),
    [
        pytest.param(
            Nvml(LARGE, SMALL), {"gpu0": LARGE, "gpu1": SMALL}, id="each has its number for a name"
        ),
        pytest.param(Nvml(None, SMALL), {"gpu1": SMALL}, id="also beside one that does not tell"),
        pytest.param(Nvml(LARGE, has_driver=False), {}, id="no driver"),
    ],
)
def test_the_driver_tells_of_its_gpus_and_is_closed_again(nvml, gpus):
    assert gpus_by(nvml) == gpus
    assert nvml.open == 0


def test_without_the_package_there_are_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as where it cannot be imported
    assert read_gpus() == {}
