"""Runs that go on where they were cut off: what is made again, and what is not."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from everything import INPUTS, calls_left, everything
from graph_runs import Calls, cut, label, outputs_in, reruns, resumed, run, run_in_journal
from pydantic import BaseModel

from harness.errors import RunLimitReached
from harness.graph import Graph


@dataclass(frozen=True)
class Finding:
    topic: str
    words: frozenset[str]


class Verdict(BaseModel):
    score: float
    notes: tuple[float, ...] = ()


@pytest.fixture
def whole(tmp_path):
    """An uninterrupted run of everything: what it gave, and its journal."""
    calls = Calls()
    ended, path = run_in_journal(tmp_path / "whole", everything(calls), INPUTS)
    assert ended.status == "finished"
    assert calls.counts == calls_left()
    return ended, path


# --- cut anywhere --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_cut_at_any_record_goes_on_and_makes_no_finished_call_again(whole, tmp_path):
    ended, path = whole
    lines = len(path.read_bytes().splitlines())
    assert lines > 150

    for kept in range(1, lines + 1):
        calls = Calls()
        rest = cut(path, kept, tmp_path / f"cut{kept}")
        outputs = outputs_in(rest)
        again, _ = run_in_journal(tmp_path, everything(calls), INPUTS, resume=rest)

        assert again.outputs == ended.outputs, kept
        assert again.reruns == (), kept
        assert calls.counts == calls_left(outputs), kept
        assert {*again.reused} <= {label(one) for one in outputs}
        # And once more: now there is nothing left to do.
        calls.clear()
        run_in_journal(tmp_path, everything(calls), INPUTS, resume=rest)
        assert not calls.counts, kept


@pytest.mark.parametrize("seed", range(5))
def test_a_run_cut_again_and_again_comes_to_the_same_end(whole, tmp_path, seed):
    ended, path = whole
    random = Random(seed)
    calls = Calls()
    rest = cut(path, random.randint(1, 60), tmp_path / "cut")

    for part in range(1, 6):
        expected = calls_left(outputs_in(rest))
        calls.clear()
        again, _ = run_in_journal(tmp_path, everything(calls), INPUTS, resume=rest)
        assert again.outputs == ended.outputs
        assert calls.counts == expected
        file = rest.with_suffix(f".{part}.jsonl")
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join(lines[: random.randint(2, len(lines))]))


def test_a_run_is_reused_by_another_process_with_another_order_of_sets(tmp_path):
    script = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parent)!r}]
from pathlib import Path
import test_reuse
from graph_runs import Calls, run_in_journal
calls = Calls()
path = Path(sys.argv[1])
resume = next(path.glob("*Z-????????????.jsonl"), None)
words = set("abcdefgh")
ended, _ = run_in_journal(path, test_reuse.of_sets(calls), {{"words": words}}, resume=resume)
print(ended.outputs["total"], sum(calls.counts.values()), ended.reruns)
"""
    said = [
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    ]

    assert said == ["10 4 ()\n", "10 0 ()\n"]


def of_sets(calls: Calls) -> Graph:
    graph = Graph("sets")

    @graph.node
    async def groups(words: set[str]) -> list[set[str]]:
        calls.note("groups")
        return [words, {"x", "y"}]

    @graph.node(each={"group": "groups"})
    async def sizes(group: set[str]) -> int:
        calls.note("sizes")
        return len(group)

    @graph.node
    async def total(sizes: list[int], words: set[str], groups: list[set[str]]) -> int:
        calls.note("total")
        return sum(sizes)

    return graph


# --- what cannot be reused -----------------------------------------------------------------------


def test_an_output_with_a_secret_in_it_is_made_again(tmp_path):
    calls = Calls()
    graph = Graph("secret")
    secret = "hunter2-hunter2"

    @graph.node
    async def login() -> str:
        calls.note("login")
        return f"token {secret}"

    @graph.node
    async def page(login: str) -> int:
        calls.note("page")
        return len(login)

    first, path = run_in_journal(tmp_path, graph, secrets=(secret,))
    assert secret not in path.read_text()
    calls.clear()
    ended, _ = run_in_journal(tmp_path, graph, secrets=(secret,), resume=path)

    assert ended.outputs == first.outputs
    # Who takes it is as it was: its digest is that of the whole value.
    assert calls.counts == {"login": 1}
    ((node, reason),) = reruns(ended)
    assert node == "login"
    assert "secret" in reason


class Client:
    """What has no form in JSON."""


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(Client(), id="an object"),
        pytest.param([Client()], id="an object in a list"),
        pytest.param(float, id="a class"),
    ],
)
def test_what_takes_an_input_that_cannot_be_written_down_is_made_again(given):
    calls = Calls()
    graph = Graph("client")

    @graph.node
    async def page(client) -> str:
        calls.note("page")
        return "page"

    @graph.node
    async def after(page: str) -> str:
        calls.note("after")
        return page

    _, records = resumed(graph, [], {"client": given})
    calls.clear()
    ended, _ = resumed(graph, records, {"client": given})

    assert calls.counts == {"page": 1}
    assert reruns(ended) == [
        ("page", "its input 'client' cannot be written to the journal, and so not compared")
    ]


def test_an_input_that_can_be_read_only_once_is_not_read_to_compare_it():
    graph = Graph("once")

    @graph.node
    async def total(numbers) -> int:
        return sum(numbers)

    assert run(graph, {"numbers": iter([1, 2, 3])}).outputs == {"total": 6}


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        pytest.param(float, 2, id="an int for a float"),
        pytest.param(tuple[float, ...], (1, 2.5), id="ints within a tuple"),
        pytest.param(list[float], [1, 2.5], id="ints within a list"),
        pytest.param(Verdict, Verdict(score=1, notes=(2,)), id="ints within a model"),
        pytest.param(float, float("nan"), id="not a number"),
        pytest.param(int, 10**30, id="a long integer"),
        pytest.param(frozenset[str], frozenset("abc"), id="a set"),
        pytest.param(bytes, b"\xff\x00", id="bytes"),
        pytest.param(dict[int, str], {2: "b", 1: "a"}, id="a mapping of numbers"),
        pytest.param(Finding, Finding("a", frozenset("xyz")), id="a dataclass"),
        pytest.param(object, {"b": 1, "a": [None, True]}, id="a mapping in its order"),
    ],
)
def test_values_of_every_kind_are_reused_and_so_is_what_takes_them(annotation, value):
    calls = Calls()
    graph = Graph("kinds")

    async def source():
        calls.note("source")
        return value

    async def after(source) -> bool:
        calls.note("after")
        return True

    source.__annotations__["return"] = annotation
    graph.node(source)
    graph.node(after)

    first, records = resumed(graph, [])
    assert first.status == "finished", first.failures
    calls.clear()
    ended, _ = resumed(graph, records)

    assert not calls.counts, reruns(ended)
    assert ended.reused == ("source", "after")
    assert repr(ended.outputs["source"]) == repr(value) or ended.outputs == first.outputs


# --- failures, limits ----------------------------------------------------------------------------


def test_what_failed_is_made_again_and_nothing_else():
    calls = Calls()
    graph = Graph("failing")
    luck = Calls()

    @graph.node(each={"n": "numbers"})
    async def inverse(n: int) -> float:
        calls.note(f"inverse {n}")
        if not n and not luck.counts:
            raise ZeroDivisionError
        return 1 / (n or 1)

    @graph.node
    async def total(inverse: list[float]) -> float:
        calls.note("total")
        return sum(inverse)

    ended, records = resumed(graph, [], {"numbers": [1, 0, 2]})
    assert ended.status == "failed"
    calls.clear()
    luck.counts["now"] = 1
    ended, _ = resumed(graph, records, {"numbers": [1, 0, 2]})

    assert ended.outputs["total"] == 2.5
    assert calls.counts == {"inverse 0": 1, "total": 1}


def test_what_was_left_out_is_listed_in_every_part():
    graph = Graph("failing")

    @graph.node(each={"n": "numbers"}, on_error="skip")
    async def inverse(n: int) -> float:
        return 1 / n

    @graph.node(each={"one": "inverse"})
    async def rounded(one: float) -> int:
        return round(one)

    first, records = resumed(graph, [], {"numbers": [1, 0]})
    second, _ = resumed(graph, records, {"numbers": [1, 0]})

    assert [one.node for one in first.skips] == ["inverse[1]", "rounded[1]"]
    assert second.skips == first.skips
    assert set(second.reused) == {"inverse[0]", "inverse[1]", "rounded[0]"}


def test_what_a_limit_stopped_is_made_when_the_run_goes_on():
    calls = Calls()
    budget = Calls()
    graph = Graph("limited")

    @graph.node(each={"n": "numbers"}, on_error="skip")
    async def paid(n: int) -> int:
        calls.note(f"paid {n}")
        if n > 1 and not budget.counts:
            raise RunLimitReached("no money left", limit="cost")
        return n

    ended, records = resumed(graph, [], {"numbers": [1, 2]})
    assert ended.status == "stopped"
    calls.clear()
    budget.counts["more"] = 1
    ended, _ = resumed(graph, records, {"numbers": [1, 2]})

    assert ended.outputs == {"paid": [1, 2]}
    assert calls.counts == {"paid 2": 1}
