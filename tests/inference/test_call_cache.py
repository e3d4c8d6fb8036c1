import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from structlog.testing import capture_logs

from harness.errors import ConfigurationInvalid
from harness.inference.around.call_cache import CallCache


def written(path, **texts):
    """Keeps these texts there, and closes the file."""

    async def main():
        cache = CallCache(path)
        for key, text in texts.items():
            cache.keep(key, text)
        await cache.aclose()

    asyncio.run(main())


def found(path, *keys):
    async def main():
        cache = CallCache(path)
        texts = [await cache.find(key) for key in keys]
        await cache.aclose()
        return texts

    return asyncio.run(main())


def test_what_is_kept_is_found_at_once_and_by_the_next_process(tmp_path):
    async def main():
        cache = CallCache(tmp_path / "cache" / "calls.sqlite")
        assert await cache.find("a") is None
        cache.keep("a", "old")
        cache.keep("a", "new")
        assert await cache.find("a") == "new"
        cache.keep("b", "at the last moment")
        await cache.aclose()

    asyncio.run(main())
    assert found(tmp_path / "cache" / "calls.sqlite", "a", "b") == ["new", "at the last moment"]


def test_without_a_file_it_lasts_as_long_as_it_is_open():
    async def main():
        cache = CallCache(None)
        cache.keep("a", "text")
        assert await cache.find("a") == "text"
        await cache.aclose()

    asyncio.run(main())


WRITER = """
import asyncio, sys
from pathlib import Path
from harness.inference.around.call_cache import CallCache

async def main(path, name):
    print("ready", flush=True)
    sys.stdin.readline()
    cache = CallCache(Path(path))
    for number in range(100):
        cache.keep(f"{name}{number}", "x" * 1000)
        assert await cache.find(f"{name}{number}")
    await cache.aclose()

asyncio.run(main(*sys.argv[1:]))
"""


def test_processes_that_make_and_fill_one_file_at_the_same_time_lose_nothing(tmp_path):
    path = tmp_path / "calls.sqlite"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, path, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in "abc"
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        _, said = writer.communicate(timeout=60)
        assert (writer.returncode, said) == (0, "")

    assert None not in found(path, *(f"{name}{number}" for name in "abc" for number in range(100)))


def test_what_is_known_is_found_while_another_process_writes(tmp_path):
    async def main():
        cache = CallCache(tmp_path / "calls.sqlite")
        cache.keep("a", "text")
        assert await cache.find("a") == "text"
        with closing(sqlite3.connect(tmp_path / "calls.sqlite")) as other:
            other.execute("BEGIN EXCLUSIVE")
            assert await cache.find("a") == "text"
        await cache.aclose()

    asyncio.run(main())


def database(path, *statements):
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


def no_database(path):
    path.write_bytes(b"Dear diary, " * 100)


def another_programs(path):
    database(path, "CREATE TABLE song (title TEXT)")


def another_programs_that_says_so(path):
    database(path, "PRAGMA application_id = 1234")


def a_newer_one(path):
    written(path, a="text")
    database(path, "PRAGMA user_version = 2")


def a_directory(path):
    path.mkdir()


def a_cut_one(path):
    written(path, **{f"key{number}": "x" * 1000 for number in range(100)})
    path.write_bytes(path.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (no_database, "is no call cache, or a damaged one (file is not a database); delete it"),
        (a_cut_one, "is no call cache, or a damaged one (database disk image is malformed)"),
        (another_programs, "is another program's database; name another file"),
        (another_programs_that_says_so, "is another program's database; name another file"),
        (a_newer_one, "was written by a newer harness (version 2; this one reads up to 1)"),
        (a_directory, "cannot be opened (unable to open database file); name a file that can"),
    ],
    ids=lambda value: value.__name__.replace("_", " ") if callable(value) else "",
)
def test_a_file_that_is_no_call_cache_is_said_to_be_none_and_left_alone(tmp_path, make, says):
    path = tmp_path / "calls.sqlite"
    make(path)
    before = path.read_bytes() if path.is_file() else None

    with pytest.raises(ConfigurationInvalid) as caught:
        CallCache(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert says in str(caught.value)
    assert caught.value.path == path
    assert before is None or path.read_bytes() == before


def test_a_place_that_cannot_be_made_is_said_to_be_none(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigurationInvalid, match="cannot be opened"):
        CallCache(tmp_path / "file" / "calls.sqlite")


def test_an_empty_file_becomes_a_cache(tmp_path):
    path = tmp_path / "calls.sqlite"
    path.write_bytes(b"")

    written(path, a="text")
    assert found(path, "a") == ["text"]


def test_what_goes_wrong_later_fails_no_call_and_is_said_once(tmp_path):
    path = tmp_path / "calls.sqlite"

    async def main():
        cache = CallCache(path)
        database(path, "DROP TABLE reply")
        cache.keep("a", "text")
        cache.keep("b", "text")
        assert await cache.find("a") is None
        await cache.aclose()

    with capture_logs() as logs:
        asyncio.run(main())
    assert logs == [
        {
            "event": "a reply cannot be kept in the call cache",
            "log_level": "warning",
            "path": str(path),
            "error": "no such table: reply",
        }
    ]
