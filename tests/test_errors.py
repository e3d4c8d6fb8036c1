"""Errors carry the facts that their classes name, from the moment they are made."""

import importlib
import runpy
from pathlib import Path

import pytest

import harness
from harness.errors import InvalidInput, MemoryStoreFailed, ReplyFiltered, did_you_mean, place_of


def test_an_error_is_made_with_the_facts_that_its_class_needs_and_with_no_others():
    with pytest.raises(TypeError, match="MemoryStoreFailed needs 'path'"):
        MemoryStoreFailed("it failed")
    with pytest.raises(TypeError, match="ReplyFiltered needs 'text'"):
        ReplyFiltered("it was withheld", finish_reason="filter")  # the base class names it
    with pytest.raises(TypeError, match="InvalidInput has no 'file'"):
        InvalidInput("it is not usable", file="a.toml")
    assert InvalidInput("it is not usable", line=3).path is None
    error = MemoryStoreFailed("it failed", path=Path("store"))
    assert (str(error), error.statement) == ("store: it failed", "it failed")


def test_the_place_of_an_error_is_in_the_users_file_also_beside_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(harness.errors, "__file__", str(tmp_path / "harness/errors.py"))
    (tmp_path / "harness_tea.py").write_text("def brew(call): call()\n")
    brew = runpy.run_path(str(tmp_path / "harness_tea.py"))["brew"]
    with pytest.raises(TypeError) as caught:
        brew(None)
    assert place_of(caught.value) == " (harness_tea.py:1)"
    with pytest.raises(ModuleNotFoundError) as caught:
        brew(lambda: importlib.import_module("no_such_module"))
    assert place_of(caught.value).startswith(f" ({Path(__file__).name}:")


@pytest.mark.parametrize(
    ("name", "known", "message"),
    [
        ("ehco.py", ["two.py", "router", "two.py"], "known: router, two.py"),
        ("ehco.py", ["two.py", "echo.py"], "did you mean 'echo.py'?"),
        ("ehco.py", ["two.py", "echo"], "did you mean 'echo'?"),
        ("echo", ["two.py", "echo.py"], "did you mean 'echo.py'?"),
        ("gpt-4.1", ["gpt-4.1-mini", "o3"], "did you mean 'gpt-4.1-mini'?"),
        ("scores.neer", ["near.neer.x", "scores.near"], "did you mean 'scores.near'?"),
    ],
)
def test_only_near_names_are_proposed(name, known, message):
    assert did_you_mean(name, known) == message
