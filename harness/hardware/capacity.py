"""The memory and the cores that this process may use: the machine's, or its container's share.

A container sees all pages and cores of its machine. Who goes by them is killed for the memory, or
writes tokens forty times slower (ollama/ollama#17916): Linux's control groups have the limits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def memory_bytes(root: Path = ROOT) -> int:
    """Physical memory, whether free or in use, or the lowest limit of a group if that is lower."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for group in _groups("memory", root):
        words = [*_words(group / "memory.max"), *_words(group / "memory.limit_in_bytes")]
        limits += [int(word) for word in words if word.isdigit()]  # not "max"
    return min(limits)


def core_count(root: Path = ROOT) -> int:
    """Cores that threads may use at once, by the affinity of the process and its groups' quotas.

    A quota is rounded down: llama.cpp's threads wait for each other at each step, and one more than
    the quota makes all wait until it is renewed.
    """
    cores: list[float] = [os.cpu_count() or 1]
    if hasattr(os, "sched_getaffinity"):
        cores.append(len(os.sched_getaffinity(0)))
    for group in _groups("cpu", root):
        quota = [*_words(group / "cpu.max"), *_words(group / "cpu.cfs_quota_us")]
        words = [*quota, *_words(group / "cpu.cfs_period_us")]
        # Without a quota, the first word is "max" or -1.
        if len(words) == 2 and all(word.isdigit() for word in words):
            cores.append(int(words[0]) / int(words[1]))
    return max(1, int(min(cores)))


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """The folders of this process's control group and of all groups above it."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, group = line.split(":", 2)
        mount = root / "sys/fs/cgroup"
        if controllers:  # version 1, in which each controller has groups of its own
            if controller not in controllers.split(","):
                continue
            mount /= controller
        # A container's own group is usually mounted where the machine has the root. Then the paths
        # of its name are missing here, and the mount itself has the limits.
        names = Path(group).parts[1:]
        for depth in range(len(names), -1, -1):
            yield mount.joinpath(*names[:depth])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _words(path: Path) -> list[str]:
    return [word for line in _lines(path) for word in line.split()]
