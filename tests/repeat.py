"""Repeats the fast tests that depend on the machine, to find those that fail now and then.

    python tests/repeat.py [--passes 200] [--workers 2] [--seed 0] [TEST ...]

Chosen are tests that start a process or a thread, connect a socket, or wait by the real clock: the
first pass runs all and notices which. Each pass runs them in a process of its own, forked after the
tests were collected, in an order drawn by the seed. Ends with the tests that failed, how often, and
the last output of each; exit code 1 if there are any.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import selectors
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import pytest

_EVENTS = {"os.fork", "os.posix_spawn", "socket.bind", "socket.connect", "subprocess.Popen"}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--passes", type=int, default=200)
    arguments.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("tests", nargs="*")
    options = arguments.parse_args()
    # Not a TemporaryDirectory: a process that a test forks would remove it when it ends.
    directory = tempfile.mkdtemp(prefix="harness-repeat-")
    try:
        repeater = Repeater(
            passes=options.passes,
            workers=options.workers,
            seed=options.seed,
            directory=Path(directory),
        )
        without = [f"-pno:{plugin}" for plugin in ("cacheprovider", "terminal", "xdist")]
        kept = ["-o", "addopts=", "-o", "tmp_path_retention_policy=none"]
        pytest.main([*without, *kept, "-m", "not slow", *options.tests], plugins=[repeater])
        return repeater.report()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@dataclass(eq=False)  # pytest keeps plugins in sets
class Repeater:
    """A plugin that replaces pytest's one pass by many, each in a fork."""

    passes: int
    workers: int
    seed: int
    directory: Path
    current: str | None = None
    """The test that is running."""
    chosen: set[str] = field(default_factory=set)
    log: Path | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        # 1. All tests, to see which depend on the machine.
        modules: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in session.items:
            modules[item.nodeid.split("::")[0]].append(item)
        self._watch()
        self._side_by_side([list(modules.values())[n :: self.workers] for n in range(self.workers)])
        taken_s: dict[str, float] = defaultdict(float)
        for line in self._lines():
            taken_s[line["test"].split("::")[0]] += line["seconds"]
            if line["depends"]:
                self.chosen.add(line["test"])
        print(f"{len(self.chosen)} of {len(session.items)} tests depend on the machine", flush=True)
        # 2. These again and again, whole modules to a worker, the long ones first.
        shares: list[list[list[pytest.Item]]] = [[] for _ in range(self.workers)]
        loads = [0.0] * self.workers
        for name, items in sorted(modules.items(), key=lambda one: -taken_s[one[0]]):
            if again := [item for item in items if item.nodeid in self.chosen]:
                least = loads.index(min(loads))
                loads[least] += taken_s[name]
                shares[least].append(again)
        # It takes seconds, and each pass would pay for it again. Before pytest has begun, nothing
        # may be imported.
        from harness.inference.providers.litellm import import_litellm

        import_litellm()
        for number in range(1, self.passes):
            began = time.monotonic()
            self._side_by_side(shares, seed=self.seed * 1_000_000 + number)
            failed = sum(line["outcome"] == "failed" for line in self._lines())
            said = f"pass {number + 1} of {self.passes}: {time.monotonic() - began:.0f} s"
            print(f"{said}, {failed} failed so far", flush=True)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.current = item.nodeid
        try:
            return (yield)
        finally:
            self.current = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.log is None or (report.when == "call") is (report.outcome == "skipped"):
            return
        if report.when == "call" or report.failed:
            line = {
                "test": report.nodeid,
                "outcome": report.outcome,
                "seconds": report.duration,
                "depends": report.nodeid in self.chosen,
                "output": str(report.longrepr)[-4_000:] if report.failed else "",
            }
            with self.log.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def report(self) -> int:
        """Prints what failed."""
        runs: dict[str, list[str]] = defaultdict(list)
        failures: dict[str, list[str]] = defaultdict(list)
        for line in self._lines():
            runs[line["test"]].append(line["outcome"])
            if line["outcome"] == "failed":
                failures[line["test"]].append(line["output"])
        for test, outputs in sorted(failures.items()):
            print(f"\n{test}: failed {len(outputs)} of {len(runs[test])} times\n{outputs[-1]}")
        repeated = sum(len(outcomes) for outcomes in runs.values())
        print(f"{repeated} runs of {len(runs)} tests; tests that failed: {len(failures)}")
        return int(bool(failures) or not runs)

    def _watch(self) -> None:
        def heard(event: str, _: object) -> None:
            if event in _EVENTS and self.current is not None:
                self.chosen.add(self.current)

        def noting(function, waits):
            def noted(*args, **options):
                if self.current is not None and waits(*args):
                    self.chosen.add(self.current)
                return function(*args, **options)

            return noted

        sys.addaudithook(heard)
        time.sleep = noting(time.sleep, lambda _: True)
        threading.Thread.start = noting(threading.Thread.start, lambda _: True)  # type: ignore[method-assign]
        selector = selectors.DefaultSelector
        selector.select = noting(selector.select, lambda _, timeout=None: (timeout or 0) > 0)

    def _side_by_side(
        self, shares: Sequence[Sequence[Sequence[pytest.Item]]], *, seed: int | None = None
    ) -> None:
        """Runs each share's modules in a process of its own, and waits for all."""
        children = []
        for number, share in enumerate(shares):
            sys.stdout.flush()
            if not (child := os.fork()):
                self.log = self.directory / f"{number}.jsonl"
                os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.mkdtemp(dir=self.directory)
                gc.freeze()  # what the parent left open is not this test's fault
                ended = 1
                try:
                    _run(share, seed)
                    ended = 0
                except BaseException:  # noqa: BLE001 - whatever it is, this process ends here
                    traceback.print_exc(file=sys.__stderr__)
                finally:
                    os._exit(ended)
            children.append(child)
        for child in children:
            _, status = os.waitpid(child, 0)
            if status:
                raise RuntimeError(f"a pass ended early, with status {status}")

    def _lines(self) -> Iterator[dict]:
        for log in self.directory.glob("*.jsonl"):
            yield from map(json.loads, log.read_text().splitlines())


def _run(modules: Sequence[Sequence[pytest.Item]], seed: int | None) -> None:
    order = [list(items) for items in modules]
    if seed is not None:
        drawn = random.Random(seed)
        drawn.shuffle(order)
        for items in order:
            drawn.shuffle(items)
    items = [item for module in order for item in module]
    for item, following in zip_longest(items, items[1:]):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


if __name__ == "__main__":
    sys.exit(main())
