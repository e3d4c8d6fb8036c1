"""Errors carry the facts that their classes name, from the moment they are made."""

import pytest

from harness.errors import InvalidInput, MemoryStoreFailed, ReplyFiltered


def test_an_error_is_made_with_the_facts_that_its_class_needs_and_with_no_others():
    with pytest.raises(TypeError, match="MemoryStoreFailed needs 'path'"):
        MemoryStoreFailed("it failed")
    with pytest.raises(TypeError, match="ReplyFiltered needs 'text'"):
        ReplyFiltered("it was withheld", finish_reason="filter")  # the base class names it
    with pytest.raises(TypeError, match="InvalidInput has no 'file'"):
        InvalidInput("it is not usable", file="a.toml")
    assert InvalidInput("it is not usable", line=3).path is None
