"""What a store does on other file systems, and for who may not write its own."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.errors import MemoryStoreFailed
from harness.memory.passage import Passage
from harness.memory.truth import Truth

SOMEONE = 65_534
"""A user who owns nothing."""

# All that is imported is so before the user changes: the interpreter's own files may be root's.
ELSEWHERE = f"""
import json, os, sys
from pathlib import Path
from harness.errors import HarnessError
from harness.memory.truth import Truth

if os.getuid() == 0:
    os.setuid({SOMEONE})
truth = None
for line in sys.stdin:
    try:
        if truth is None:
            truth = Truth.open(Path(sys.argv[1]))
        said = [passage.text for _, passage in truth.passages_between(0, truth.last_sequence())]
    except HarnessError as error:
        said = [str(error)]
    print(json.dumps(said), flush=True)
"""


@contextmanager
def elsewhere(directory: Path) -> Iterator[Callable[[], list[str]]]:
    """What another process sees, of a user who may not write what is ours, whenever asked."""
    process = subprocess.Popen(
        [sys.executable, "-c", ELSEWHERE, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def look() -> list[str]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("look\n")
        process.stdin.flush()
        texts: list[str] = json.loads(process.stdout.readline())
        return texts

    try:
        yield look
    finally:
        process.communicate()


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that anyone can reach; pytest's own are for their owner alone."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory
    directory.chmod(0o755)
    shutil.rmtree(directory)


def put(directory: Path, *texts: str) -> None:
    """Stores texts, and lets go of the file."""
    truth = Truth.open(directory)
    truth.add([(Passage(text=text, id=text), None) for text in texts], embedder=None, merge=False)
    truth.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root writes what another may not")
def test_who_may_not_write_sees_what_is_written_later(public):
    put(public, *(f"one {n}" for n in range(200)))

    with elsewhere(public) as look:
        assert len(look()) == 200
        truth = Truth.open(public)
        truth.delete([f"one {n}" for n in range(150)])
        truth.add([(Passage(text="two"), None)], embedder=None)
        assert look() == [*(f"one {n}" for n in range(150, 200)), "two"]
        truth.close()
        put(public, "three")
        assert look()[-2:] == ["two", "three"]


@contextmanager
def small_disk(directory: Path, *, size_bytes: int) -> Iterator[None]:
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(directory)]
    if (
        shutil.which("mount") is None
        or subprocess.run(mount, check=False, capture_output=True).returncode
    ):
        pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def test_a_read_only_file_system_is_read(tmp_path):
    disk = tmp_path / "disk"
    with small_disk(disk, size_bytes=4_000_000):
        put(disk, "one")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        truth = Truth.open(disk)
        assert truth.read_only
        assert truth.get("one").text == "one"
        with pytest.raises(MemoryStoreFailed, match="open for reading only"):
            truth.delete(["one"])
        truth.close()
        with pytest.raises(MemoryStoreFailed, match="Read-only file system"):
            Truth.open(disk / "new")


def test_a_full_disk_stores_nothing_loses_nothing_and_is_over_once_there_is_room(tmp_path):
    disk = tmp_path / "disk"
    with small_disk(disk, size_bytes=3_000_000):
        truth = Truth.open(disk)
        truth.add([(Passage(text="before", id="before"), None)], embedder=None)
        (disk / "else").write_bytes(bytes(1_000_000))
        many = [(Passage(text=f"{n} " * 5000), None) for n in range(200)]
        with pytest.raises(MemoryStoreFailed, match=r"nothing was stored|has room"):
            truth.add(many, embedder=None, merge=False)
        assert len(truth) == 1
        assert truth.get("before").text == "before"

        (disk / "else").unlink()
        truth.add(many[:5], embedder=None, merge=False)
        truth.close()
        truth = Truth.open(disk)
        assert len(truth) == 6
        truth.close()


def test_any_text_may_be_asked_for_as_an_id(tmp_path):
    put(tmp_path, "one", "?")
    truth = Truth.open(tmp_path)
    for id_ in ("\ud800", "\0", ""):
        assert truth.get(id_) is None
        assert truth.delete([id_]) == 0
    assert len(truth) == 2
    truth.close()
