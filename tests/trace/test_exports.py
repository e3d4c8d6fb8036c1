from typing import get_args

from harness.trace import TIMELINES, TimelineFormat


def test_every_format_has_an_ending_of_its_own_and_a_writer():
    assert set(TIMELINES) == set(get_args(TimelineFormat))
    endings = [ending for ending, _ in TIMELINES.values()]
    assert len(set(endings)) == len(endings)
    assert ".jsonl" not in endings
