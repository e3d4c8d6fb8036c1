"""Kills processes that write to one store and read from it, reopens it, and looks for what is lost.

    python tests/memory/kill_and_reopen.py DIRECTORY KILLS

Two processes add, update and delete passages, a third one searches, and all three are killed
(SIGKILL) at a random moment; now and then a file of a lane is then deleted or damaged. After each
kill the store is opened again:

- what was acknowledged is there, and both lanes find it, in its last wording alone;
- what was not is there as a whole, or not at all;
- what was deleted is found by neither lane.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

# Before numpy is loaded, as these processes fork.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

from stored import Letters

from harness.memory import MemoryStore, Passage

WRITERS = 2
LONGEST_LIFE_S = 0.6
FULL_LOOK_EVERY = 20
"""Kills; in between, only what is new since the last kill is looked for one by one."""


def opened(directory: Path) -> MemoryStore:
    # So few that a graph comes and goes, too.
    return MemoryStore.open(directory, embedder=Letters(), exact_up_to=40)


def wording(id_: str, version: int) -> str:
    """A text that no other passage and no other version has a word in common with."""
    words = random.Random(f"{id_} {version}")
    return " ".join("".join(words.choices("abcdefghijklmnopqrstuvwxyz", k=9)) for _ in range(12))


def passage(id_: str, version: int) -> Passage:
    return Passage(
        id=id_, text=wording(id_, version), title=f"{id_} at {version}", metadata={"v": version}
    )


@dataclass
class Expected:
    """What the store must hold, by all that was acknowledged."""

    versions: dict[str, int] = field(default_factory=dict)
    """Of each passage that is there."""
    deleted: set[str] = field(default_factory=set)
    pending: dict[str, int | None] = field(default_factory=dict)
    """What was under way when its process was killed: the version to be, None for a deletion."""
    touched: set[str] = field(default_factory=set)
    """Since the last kill."""
    acknowledged: int = 0

    def read(self, log: Path) -> None:
        """Takes in what a writer logged before it was killed."""
        self.touched = set()
        for line in log.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                break
            stage, *changes = line.split()
            for change in changes:
                id_, _, version = change.partition("=")
                wanted = int(version) if version else None
                self.touched.add(id_)
                if stage == "will":
                    self.pending[id_] = wanted
                else:
                    self.settle(id_, self.pending.pop(id_))
                    self.acknowledged += 1

    def settle(self, id_: str, version: int | None) -> None:
        if version is None:
            self.versions.pop(id_, None)
            self.deleted.add(id_)
        else:
            self.versions[id_] = version


def write(directory: Path, log: Path, *, slot: int, life: int, versions: dict[str, int]) -> None:
    """Adds, updates and deletes for ever, in turn with the others."""
    chance = random.Random(f"{slot} {life}")
    mine = {id_: version for id_, version in versions.items() if id_.startswith(f"w{slot}-")}
    said = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    store = opened(directory)
    number = 0
    while True:
        kind = chance.choices(("add", "update", "delete"), (6, 3, 1))[0] if mine else "add"
        if kind == "add":
            number += 1
            changes = {f"w{slot}-{life}-{number}-{i}": 1 for i in range(chance.choice((1, 1, 5)))}
        else:
            id_ = chance.choice(sorted(mine))
            changes = {id_: mine[id_] + 1 if kind == "update" else None}
        line = " ".join(f"{id_}={'' if v is None else v}" for id_, v in changes.items())
        os.write(said, f"will {line}\n".encode())
        if kind == "add":
            added = store.add([passage(id_, 1) for id_ in changes])
            assert added.new == tuple(changes), added
        elif kind == "update":
            store.update(passage(id_, changes[id_]))
        else:
            assert store.delete(id_) == 1
        os.write(said, f"done {line}\n".encode())
        for id_, version in changes.items():
            if version is None:
                del mine[id_]
            else:
                mine[id_] = version
        if chance.random() < 0.3:
            store.search(wording(next(iter(changes)), 1), limit=2)


def read(directory: Path, *, life: int, versions: dict[str, int]) -> None:
    """Searches for ever; what is found is whole."""
    chance = random.Random(f"reader {life}")
    known = sorted(versions.items()) or [("w0-0-1-0", 1)]
    store = opened(directory)
    while True:
        for hit in store.search(wording(*chance.choice(known)), limit=3):
            assert hit.text == wording(hit.id, int(hit.passage.metadata["v"])), hit


def check(directory: Path, expected: Expected, *, everything: bool) -> dict[str, int | None]:
    """Looks for all that must be there; returns what came of what was under way."""
    became: dict[str, int | None] = {}
    with opened(directory) as store:
        for id_, version in expected.pending.items():
            found = store.get(id_)
            before = expected.versions.get(id_)
            now = None if found is None else int(found.metadata["v"])
            assert now in (before, version), f"{id_} is at {now}, not at {before} or {version}"
            became[id_] = now
        versions = {**expected.versions, **{i: v for i, v in became.items() if v is not None}}
        for id_ in (i for i, v in became.items() if v is None):
            versions.pop(id_, None)
        assert len(store) == len(versions), f"{len(store)} passages, not {len(versions)}"
        looked_at = versions if everything else expected.touched & versions.keys()
        for id_ in looked_at:
            wanted = passage(id_, versions[id_])
            found = store.get(id_)
            assert found is not None, f"{id_} is lost"
            assert found.text == wanted.text, f"{id_} is {found}"
            for mode in ("lexical", "vector"):
                hits = store.search(wanted.searchable, limit=1, mode=mode)
                assert hits.fallback is None, hits.fallback
                assert [hit.id for hit in hits] == [id_], f"{id_} is not found by {mode}: {hits}"
            if versions[id_] > 1:
                old = store.search(wording(id_, versions[id_] - 1), limit=1, mode="lexical")
                assert not old, f"{id_} is found by what it said before: {old}"
        for id_ in expected.deleted if everything else expected.deleted & expected.touched:
            for mode in ("lexical", "vector"):
                hits = store.search(passage(id_, 1).searchable, limit=3, mode=mode)
                assert id_ not in {hit.id for hit in hits}, f"{id_} was deleted, and found"
    return became


def check_and_tell(directory: Path, expected: Expected, became: Path, *, everything: bool) -> None:
    """Writes what `check` returns."""
    became.write_text(json.dumps(check(directory, expected, everything=everything)))


def damage(directory: Path, chance: random.Random) -> str | None:
    """Deletes or spoils a file of a lane, or a whole lane, in three of ten cases."""
    files = [path for lane in ("lexical", "vector") for path in directory.glob(f"{lane}/*")]
    if not files or chance.random() > 0.3:
        return None
    path = chance.choice(sorted(files))
    kind = chance.choice(("delete", "truncate", "flip", "empty the lane"))
    if kind == "delete":
        path.unlink()
    elif kind == "empty the lane":
        shutil.rmtree(path.parent)
    else:
        content = bytearray(path.read_bytes())
        if not content:
            return None
        at = chance.randrange(len(content))
        if kind == "truncate":
            del content[at:]
        else:
            content[at] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
    return kind


def in_a_process(act: Callable[[], object], faults: Path) -> int:
    """Runs something in a fork of this process; what it raises becomes a line in a file."""
    pid = os.fork()
    if pid:
        return pid
    try:
        act()
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - the process ends with it
        with faults.open("a") as file:
            file.write(f"{type(error).__name__}: {error}\n")
        os._exit(1)


def kill_and_reopen(directory: Path, kills: int) -> dict[str, object]:
    """Returns what was done and what went wrong."""
    store, faults = directory / "store", directory / "faults"
    directory.mkdir(parents=True, exist_ok=True)
    chance = random.Random(1)
    expected = Expected()
    damaged: Counter[str] = Counter()
    for life in range(kills):
        # 1. Let them live, for a while.
        log = directory / f"log-{life}"
        log.touch()
        versions = dict(expected.versions)
        acts: list[Callable[[], object]] = [
            partial(write, store, log, slot=slot, life=life, versions=versions)
            for slot in range(WRITERS)
        ]
        acts.append(partial(read, store, life=life, versions=versions))
        pids = [in_a_process(act, faults) for act in acts]
        time.sleep(chance.uniform(0.02, LONGEST_LIFE_S))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
        # 2. Know what they were promised, and look.
        expected.read(log)
        if kind := damage(store, chance):
            damaged[kind] += 1
        everything = life % FULL_LOOK_EVERY == FULL_LOOK_EVERY - 1 or life == kills - 1
        became = directory / "became"
        became.unlink(missing_ok=True)
        look = partial(check_and_tell, store, expected, became, everything=everything)
        os.waitpid(in_a_process(look, faults), 0)
        if not became.exists():
            break
        for id_, version in json.loads(became.read_text()).items():
            expected.settle(id_, version)
        expected.pending = {}
    return {
        "kills": life + 1,
        "acknowledged_writes": expected.acknowledged,
        "passages": len(expected.versions),
        "deleted": len(expected.deleted),
        "damaged_lanes": dict(damaged),
        "faults": faults.read_text().splitlines() if faults.exists() else [],
    }


if __name__ == "__main__":
    result = kill_and_reopen(Path(sys.argv[1]), int(sys.argv[2]))
    print(json.dumps(result, indent=2))
    sys.exit(bool(result["faults"]))
