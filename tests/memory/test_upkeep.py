import gc
import subprocess
import sys
import weakref
from threading import Event

import pytest
from structlog.testing import capture_logs

from harness.errors import EndpointUnreachable
from harness.memory.upkeep import Upkeep


class Work:
    """Goes on until it is let go; counts how often it began."""

    def __init__(self, raises=None):
        self.begun, self.may_end = Event(), Event()
        self.times = 0
        self.raises = raises

    def __call__(self, stop):
        self.times += 1
        self.begun.set()
        while not (stop.is_set() or self.may_end.wait(0.01)):
            pass
        if self.raises is not None:
            raise self.raises


def test_one_thing_is_done_at_a_time_and_again_when_there_is_more():
    work = Work()
    upkeep = Upkeep(work)
    assert upkeep.wait(0)  # for nothing
    upkeep.start()
    upkeep.start()
    assert not upkeep.wait(0.05)

    work.may_end.set()
    assert upkeep.wait(30)
    assert work.times == 1
    upkeep.start()
    assert upkeep.wait(30)
    assert work.times == 2


@pytest.mark.parametrize(
    "error",
    [EndpointUnreachable("nobody is there", endpoint="words"), ConnectionError("nobody is there")],
    ids=["one of ours", "one of an embedder's own"],
)
def test_what_fails_is_a_warning_and_is_left_alone_for_a_while(error):
    work = Work(raises=error)
    work.may_end.set()
    upkeep = Upkeep(work)
    with capture_logs() as logs:
        upkeep.start()
        assert upkeep.wait(30)
        upkeep.start()
        assert upkeep.wait(30)

    assert work.times == 1
    (warning,) = logs
    assert (warning["log_level"], warning["error"]) == ("warning", type(error).__name__)
    assert "nobody is there" in warning["reason"]


def test_closing_ends_it_for_good_and_what_that_breaks_is_no_warning():
    work = Work(raises=RuntimeError("the store is closed"))
    upkeep = Upkeep(work)
    upkeep.start()
    assert work.begun.wait(30)
    with capture_logs() as logs:
        upkeep.close()

    assert upkeep.wait(0)
    upkeep.start()
    assert work.times == 1
    assert logs == []


def test_what_is_done_is_forgotten():
    work = Work()
    work.may_end.set()
    upkeep = Upkeep(work)
    upkeep.start()
    assert upkeep.wait(30)

    gone = weakref.ref(upkeep)
    del upkeep
    gc.collect()
    assert gone() is None


ENDING = """
from harness.memory.upkeep import Upkeep

def work(stop):
    begun.set()
    stop.wait()
    print("kept what was finished", flush=True)

from threading import Event
begun = Event()
Upkeep(work).start()
begun.wait()
"""


def test_the_interpreters_end_stops_it_and_waits_for_what_it_has_to_say():
    ended = subprocess.run(
        [sys.executable, "-c", ENDING],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert (ended.stdout, ended.stderr) == ("kept what was finished\n", "")
