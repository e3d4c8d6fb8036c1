"""Outputs that a node changed, although others have them too."""

import pytest
from everything import INPUTS, everything
from graph_runs import Calls, cut, run, run_in_journal
from pydantic import BaseModel
from structlog.testing import capture_logs

from harness.graph import Graph


def test_a_list_that_one_consumer_changes_is_whole_for_those_that_map_over_it():
    graph = Graph("changing")
    calls = Calls()

    @graph.node
    async def texts() -> list[str]:
        return ["a", "b", "c"]

    @graph.node
    async def changed(texts: list[str]) -> int:
        texts.clear()
        return 0

    @graph.node(each={"text": "texts"})
    async def copied(text: str) -> str:
        await calls.take(text, 1)
        return text

    @graph.node
    async def emptied(copied: list[str]) -> int:
        copied.clear()
        return 0

    @graph.node(each={"one": "copied"})
    async def again(one: str) -> str:
        return one

    assert run(graph, parallel_calls=1).outputs["again"] == ["a", "b", "c"]


class Notes(BaseModel):
    lines: list[str]


@pytest.mark.parametrize(
    ("source", "change", "named"),
    [
        pytest.param(lambda: ["a"], lambda value: value.append("b"), ["source"], id="a list"),
        pytest.param(
            lambda: {"a": [1]}, lambda value: value["a"].clear(), ["source"], id="deep in a mapping"
        ),
        pytest.param(
            lambda: Notes(lines=["a"]),
            lambda value: value.lines.append("b"),
            ["source"],
            id="a model",
        ),
        pytest.param(lambda: ["a"], lambda value: [*value, "b"], [], id="a copy"),
        pytest.param(lambda: "a", lambda value: value + "b", [], id="a text"),
    ],
)
def test_an_output_that_a_consumer_changes_is_named(source, change, named):
    graph = Graph("changing")

    async def changer(source) -> None:
        change(source)

    source.__annotations__["return"] = type(source())
    graph.node(name="source")(source)
    graph.node(changer)

    with capture_logs() as logs:
        assert run(graph).status == "finished"

    assert [one["node"] for one in logs] == named


def test_items_and_lists_of_items_that_a_consumer_changes_are_named():
    graph = Graph("changing")

    @graph.node(each={"n": "numbers"})
    async def rows(n: int) -> list[int]:
        return [n]

    @graph.node(each={"row": "rows"})
    async def grown(row: list[int]) -> int:
        if row == [2]:
            row.append(3)
        return 0

    @graph.node(each={"n": "numbers"}, when=lambda n: n > 1)
    async def some(n: int) -> int:
        return n

    @graph.node
    async def sorted_down(some: list[int]) -> int:
        some.sort(reverse=True)
        return 0

    with capture_logs() as logs:
        assert run(graph, {"numbers": [1, 2, 3]}).status == "finished"

    assert [one["node"] for one in logs] == ["rows[1]", "some"]


def test_an_unchanged_run_of_everything_names_nothing(tmp_path):
    with capture_logs() as logs:
        _, path = run_in_journal(tmp_path, everything(Calls()), INPUTS)
        rest = cut(path, 90, tmp_path / "cut")
        run_in_journal(tmp_path, everything(Calls()), INPUTS, resume=rest)

    assert logs == []
