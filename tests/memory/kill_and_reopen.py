"""Kills processes that write to one store and read from it, reopens it, and looks for what is lost.

    python tests/memory/kill_and_reopen.py DIRECTORY KILLS [postgres]

Two processes add, update and delete passages, a third one searches, and all three are killed
(SIGKILL) at a random moment; now and then a file of an index is then deleted or damaged. After each
kill the store is opened again:

- what was acknowledged is there, and both indexes find it, in its last wording alone;
- what was not is there as a whole, or not at all;
- what was deleted is found by neither index.

With `postgres`, the store is on a server of its own, which crashes and is started again in the
middle: a writer that is told so asks what became of its write.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar

# Before numpy is loaded, as these processes fork.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import postgres
from stored import Letters

from harness.errors import MemoryStoreFailed
from harness.memory import MemoryStore, Passage, Place

LONGEST_LIFE_S = 0.6
CACHE = Path(sys.argv[1]) / "cache"
FULL_LOOK_EVERY = 20
"""Kills; in between, only what is new since the last kill is looked for one by one."""

T = TypeVar("T")
Versions = dict[str, int | None]
"""Of passages, by their ids; None when it was deleted."""


def opened(place: Place | str) -> MemoryStore:
    return MemoryStore.open(place, embedder=Letters(), cache=CACHE)


def passage(id_: str, version: int) -> Passage:
    """One that no other passage and no other version has a word in common with."""
    letters = random.Random(f"{id_} {version}")
    words = ["".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=9)) for _ in range(12)]
    return Passage(
        id=id_, text=" ".join(words), title=f"{id_} at {version}", metadata={"v": version}
    )


# --- what is killed --------------------------------------------------------------------------


def write(place: Place | str, log: Path, *, name: str, life: int, alive: dict[str, int]) -> None:
    """Adds and deletes for ever, and logs what it will do and what it has done."""
    chance = random.Random(f"{name} {life}")
    mine = {id_: version for id_, version in alive.items() if id_.startswith(name)}
    said = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    store = persistent(lambda: opened(place))
    for number in count():
        kind = chance.choices(("add", "delete"), (6, 2))[0] if mine else "add"
        changes: Versions
        if kind == "add":
            changes = {f"{name}-{life}-{number}-{i}": 1 for i in range(chance.choice((1, 1, 5)))}
        else:
            changes = {chance.choice(sorted(mine)): None}
        os.write(said, json.dumps(["will", changes]).encode() + b"\n")
        for id_, version in changes.items():
            if version is None:
                persistent(lambda: store.delete(id_))  # noqa: B023
                assert persistent(lambda: store.get(id_)) is None  # noqa: B023
                del mine[id_]
            else:
                mine[id_] = version
        if kind == "add":
            added = persistent(lambda: store.add([passage(id_, 1) for id_ in changes]))  # noqa: B023
            assert {*added.new, *added.known} == set(changes)
        os.write(said, json.dumps(["done", changes]).encode() + b"\n")
        if chance.random() < 0.3:
            persistent(lambda: store.search(passage(next(iter(changes)), 1).text, limit=2))  # noqa: B023


def persistent(act: Callable[[], T]) -> T:
    """Makes a call again whose server was lost, as its error says."""
    while True:
        try:
            return act()
        except MemoryStoreFailed as error:
            if not error.code.startswith("memory.server-"):
                raise
            time.sleep(0.05)


def read(place: Place | str, *, life: int, alive: dict[str, int]) -> None:
    """Searches for ever; what is found is whole."""
    chance = random.Random(f"reader {life}")
    known = sorted(alive.items()) or [("w0-0-1-0", 1)]
    store = persistent(lambda: opened(place))
    while True:
        words = passage(*chance.choice(known)).text
        for hit in persistent(lambda: store.search(words, limit=3)):  # noqa: B023
            assert hit.text == passage(hit.id, int(hit.passage.metadata["v"])).text, hit


def damage(directory: Path, chance: random.Random) -> None:
    """Deletes or spoils a file of an index, or a whole index, in three of ten cases."""
    files = [*directory.glob("**/lexical/*")]
    if not files or chance.random() > 0.3:
        return
    path = chance.choice(sorted(files))
    kind = chance.choice(("delete", "truncate", "flip", "empty the index"))
    content = bytearray(path.read_bytes())
    if kind == "empty the index":
        shutil.rmtree(path.parent)
    elif kind == "delete" or not content:
        path.unlink()
    else:
        at = chance.randrange(len(content))
        content[at] ^= 1 << chance.randrange(8)
        path.write_bytes(content[:at] if kind == "truncate" else content)


# --- what must be there ----------------------------------------------------------------------


def check(place: Place | str, expected: Versions, pending: Versions, touched: set[str]) -> Versions:
    """Looks for all that was touched; returns what came of what was under way."""
    with opened(place) as store:
        became: Versions = {}
        for id_, version in pending.items():
            found = store.get(id_)
            became[id_] = None if found is None else int(found.metadata["v"])
            assert became[id_] in (expected.get(id_), version), f"{id_} is at {became[id_]}"
        versions = expected | became
        alive = sum(version is not None for version in versions.values())
        assert len(store) == alive, f"{len(store)} passages, not {alive}"
        for id_ in touched & versions.keys():
            wanted = passage(id_, versions[id_] or 1)
            found = store.get(id_)
            assert (found and found.text) == (versions[id_] and wanted.text), f"{id_} is {found}"
            for mode in ("lexical", "vector"):
                hits = store.search(wanted.searchable, limit=1, mode=mode)
                assert hits.fallback is None, hits.fallback
                is_found = [hit.id for hit in hits] == [id_]
                assert is_found == (versions[id_] is not None), f"{id_} by {mode}: {hits}"
    return became


def in_a_process(act: Callable[[], object], faults: Path, *, result: Path | None = None) -> int:
    """Runs something in a fork of this process; what it raises becomes a line in a file."""
    pid = os.fork()
    if pid:
        return pid
    try:
        returned = act()
        if result is not None:
            result.write_text(json.dumps(returned))
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - the process ends with it
        with faults.open("a") as file:
            file.write(f"{type(error).__name__}: {error}\n")
        os._exit(1)


def kill_and_reopen(
    directory: Path, kills: int, server: postgres.Server | None = None
) -> dict[str, object]:
    """Returns what was done and what went wrong."""
    store, faults, became = (directory / name for name in ("store", "faults", "became"))
    place = server.url("kills") if server else store
    longest_s = LONGEST_LIFE_S * (4 if server else 1)  # opening takes longer, too
    directory.mkdir(parents=True, exist_ok=True)
    chance = random.Random(1)
    expected: Versions = {}
    acknowledged = 0
    for life in range(kills):
        # 1. Let them live, for a while.
        log = directory / f"log-{life}"
        log.touch()
        alive = {id_: version for id_, version in expected.items() if version is not None}
        acts: list[Callable[[], object]] = [
            partial(write, place, log, name=name, life=life, alive=alive) for name in ("w0", "w1")
        ]
        acts.append(partial(read, place, life=life, alive=alive))
        pids = [in_a_process(act, faults) for act in acts]
        time.sleep(chance.uniform(0.02, longest_s))
        if server and life == kills // 2:
            server.stop(signal.SIGQUIT)
            server.start()
            time.sleep(longest_s)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
        # 2. Know what they were promised, and look.
        pending: Versions = {}
        touched = set()
        for line in log.read_text().splitlines():
            stage, changes = json.loads(line)
            touched |= changes.keys()
            if stage == "will":
                pending |= changes
            else:
                expected |= {id_: pending.pop(id_) for id_ in changes}
                acknowledged += len(changes)
        damage(CACHE if server else store, chance)
        if life % FULL_LOOK_EVERY == FULL_LOOK_EVERY - 1 or life == kills - 1:
            touched |= expected.keys()
        became.unlink(missing_ok=True)
        look = partial(check, place, expected, pending, touched)
        os.waitpid(in_a_process(look, faults, result=became), 0)
        if not became.exists():
            break
        expected |= json.loads(became.read_text())
    return {
        "kills": life + 1,
        "acknowledged_writes": acknowledged,
        "faults": faults.read_text().splitlines() if faults.exists() else [],
    }


if __name__ == "__main__":
    where, often = Path(sys.argv[1]), int(sys.argv[2])
    if "postgres" in sys.argv[3:]:
        if reason := postgres.missing():
            sys.exit(print(f"skipped: {reason}"))
        with postgres.server(durable=True) as running:
            result = kill_and_reopen(where, often, running)
    else:
        result = kill_and_reopen(where, often)
    print(json.dumps(result, indent=2))
    sys.exit(bool(result["faults"]))
