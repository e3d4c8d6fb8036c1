from harness.hardware.machine import core_count, memory_bytes_per_s


def test_memory_is_quicker_than_a_disk_and_slower_than_a_gpu() -> None:
    assert 10**9 < memory_bytes_per_s() < 2 * 10**12


def test_it_is_measured_once() -> None:
    assert memory_bytes_per_s() == memory_bytes_per_s()


def test_this_process_has_a_core() -> None:
    assert core_count() >= 1
