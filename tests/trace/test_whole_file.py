import os
import threading

import pytest

from harness.trace.timelines.whole_file import whole_file


def test_a_file_takes_its_name_when_it_is_whole(tmp_path):
    path = tmp_path / "run.json"
    path.write_bytes(b"the last one")

    with whole_file(path) as file:
        file.write(b"the next")
        assert path.read_bytes() == b"the last one"
        file.write(b" one")

    assert path.read_bytes() == b"the next one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_fails_half_way_leaves_what_was_there(tmp_path):
    path = tmp_path / "run.json"
    path.write_bytes(b"the last one")

    def fail():
        with whole_file(path) as file:
            file.write(b"the next")
            raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        fail()

    assert path.read_bytes() == b"the last one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match="missing"), whole_file(tmp_path / "missing" / "run.json"):
        pass


def test_two_that_write_the_same_file_do_not_mix(tmp_path):
    path = tmp_path / "run.json"

    with whole_file(path) as first, whole_file(path) as second:
        first.write(b"first" * 1000)
        second.write(b"second")

    assert path.read_bytes() == b"first" * 1000
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_regular_file_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()

    with whole_file(pipe) as file:
        file.write(b"a timeline")

    reader.join()
    assert read == [b"a timeline"]
    assert pipe.is_fifo()
