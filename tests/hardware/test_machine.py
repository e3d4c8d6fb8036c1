# ruff: noqa: N802 - the stand-in has NVML's names
"""What this machine has, and what NVIDIA's driver tells of GPUs; a stand-in plays the driver."""

import os
import sys
from types import SimpleNamespace

import pytest

from harness.hardware.capacity import core_count, memory_bytes
from harness.hardware.machine import memory_bytes_per_s, opened_gpus, read_gpus

GIB = 1 << 30


class Nvml:
    """A driver with these GPUs, as `pynvml` shows it; None for one that does not tell."""

    NVML_CLOCK_MEM = 2

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
        return SimpleNamespace(total=self._gpus[handle], used=GIB)

    def nvmlDeviceGetName(self, _handle):
        return "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetMemoryBusWidth(self, _handle):
        return 5120

    def nvmlDeviceGetMaxClockInfo(self, _handle, clock):
        assert clock == self.NVML_CLOCK_MEM
        return 2619

    def nvmlDeviceGetUtilizationRates(self, _handle):
        return SimpleNamespace(gpu=100, memory=40)

    def nvmlDeviceGetPowerUsage(self, _handle):
        raise self.NVMLError("Not Supported")


LARGE, SMALL = 80 * GIB, 24 * GIB


@pytest.mark.parametrize(
    ("nvml", "sizes"),
    [
        pytest.param(
            Nvml(LARGE, SMALL), {"gpu0": LARGE, "gpu1": SMALL}, id="each has its number for a name"
        ),
        pytest.param(
            Nvml(None, SMALL), {"gpu0": None, "gpu1": SMALL}, id="also beside one that shares"
        ),
        pytest.param(Nvml(LARGE, has_driver=False), {}, id="no driver"),
    ],
)
def test_the_driver_tells_of_its_gpus_and_is_closed_again(nvml, sizes, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert {gpu.name: gpu.capacity_bytes for gpu in read_gpus()} == sizes
    assert nvml.open == 0


def test_bandwidth_is_what_the_makers_sheet_says_of_an_h100(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(LARGE))
    (gpu,) = read_gpus()
    assert gpu.memory_bytes_per_s == pytest.approx(3.35e12, rel=0.01)
    assert gpu.product == "NVIDIA H100 80GB HBM3"


def test_a_state_lacks_what_the_driver_does_not_tell(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(LARGE))
    with opened_gpus() as gpus:
        assert gpus is not None
        state = gpus.state(0)
    assert (state.busy, state.used_bytes) == (1.0, GIB)
    assert state.power_w is None


def test_without_the_package_there_are_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as where it cannot be imported
    assert read_gpus() == ()


def test_memory_is_quicker_than_a_disk_and_slower_than_a_gpu() -> None:
    assert 10**9 < memory_bytes_per_s() < 2 * 10**12


def test_it_is_measured_once() -> None:
    assert memory_bytes_per_s() == memory_bytes_per_s()


def test_this_process_has_a_core() -> None:
    assert core_count() >= 1


GROUPS_ABOVE = {  # the group of a service, and a slice above it that has the lower limits
    "proc/self/cgroup": "0::/machine.slice/judge.service",
    "sys/fs/cgroup/machine.slice/judge.service/memory.max": "max",
    "sys/fs/cgroup/machine.slice/judge.service/cpu.max": "max 100000",
    "sys/fs/cgroup/machine.slice/memory.max": "1048576",
    "sys/fs/cgroup/machine.slice/cpu.max": "150000 100000",
}
OWN_ROOT = {  # what a container sees of version 2
    "proc/self/cgroup": "0::/",
    "sys/fs/cgroup/memory.max": "1048576",
    "sys/fs/cgroup/cpu.max": "190000 100000",
}
VERSION_1 = {  # the container's group is mounted as the root; its name is the machine's
    "proc/self/cgroup": "9:name=systemd:/docker/f0\n4:memory:/docker/f0\n1:cpu,cpuacct:/docker/f0",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "1048576",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
}
UNLIMITED = {
    "proc/self/cgroup": "4:memory:/\n1:cpu,cpuacct:/\n0::/",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
}


@pytest.mark.parametrize("files", [GROUPS_ABOVE, OWN_ROOT, VERSION_1])
def test_a_container_has_what_its_groups_may_use(tmp_path, files):
    write_files(tmp_path, files)
    assert memory_bytes(tmp_path) == 1 << 20
    assert core_count(tmp_path) == 1  # the quota rounded down, and never none


@pytest.mark.parametrize("files", [UNLIMITED, {}])
def test_without_limits_a_process_has_the_machine(tmp_path, files):
    write_files(tmp_path, files)
    assert memory_bytes(tmp_path) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert core_count(tmp_path) == len(os.sched_getaffinity(0))


def write_files(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
