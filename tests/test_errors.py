"""Errors carry the facts that their classes name, from the moment they are made."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import DoesNotFit, InvalidInput, MemoryStoreFailed, ReplyFiltered


@pytest.mark.parametrize(
    ("kind", "facts", "lacking"),
    [
        pytest.param(MemoryStoreFailed, {}, "path", id="its own, in its message"),
        pytest.param(DoesNotFit, {"model": "m", "need_bytes": 2}, "capacity_bytes", id="its own"),
        pytest.param(ReplyFiltered, {"finish_reason": "filter"}, "text", id="of its base"),
    ],
)
def test_an_error_without_a_fact_that_its_class_needs_is_not_made(
    kind: type, facts: dict[str, object], lacking: str
) -> None:
    with pytest.raises(TypeError, match=rf"{kind.__name__} needs '{lacking}'"):
        kind("it failed", **facts)


def test_a_fact_that_no_class_names_is_refused() -> None:
    with pytest.raises(TypeError, match="InvalidInput has no 'file'"):
        InvalidInput("it is not usable", file="a.toml")


def test_what_has_a_default_may_be_left_out() -> None:
    assert InvalidInput("it is not usable").path is None
    assert str(InvalidInput("it is not usable", path=Path("a"), line=3)) == "a:3: it is not usable"
