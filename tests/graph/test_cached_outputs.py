"""Outputs of other runs, for nodes that say that these will do."""

from dataclasses import dataclass

from graph_runs import Calls, as_read, label, resumed, run

from harness.graph import Cache, Default, Graph
from harness.trace import Tracer


@dataclass(frozen=True)
class Finding:
    topic: str
    letters: frozenset[str]


class Client:
    """What has no form in JSON."""


class Kept:
    """A cache of outputs in memory."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.asked: list[float | None] = []

    async def find(self, key: str, *, max_age_s: float | None) -> bytes | None:
        self.asked.append(max_age_s)
        return self.values.get(key)

    def keep(self, key: str, value: bytes) -> None:
        self.values[key] = value


def cached(calls, *, ending="", options=None):
    graph = Graph("cached")

    @graph.node(each={"text": "texts"}, cache=Cache(max_age_s=60), **(options or {}))
    async def page(text: str) -> Finding:
        calls.note(text)
        return Finding(text + ending, frozenset(text))

    @graph.node
    async def uncached(page: list[Finding]) -> int:
        calls.note("uncached")
        return len(page)

    return graph


def test_outputs_of_other_runs_will_do_where_a_node_says_so():
    calls, cache = Calls(), Kept()
    first = run(cached(calls), {"texts": ["a", "b"]}, cache=cache)
    assert (calls.counts, first.reused) == ({"a": 1, "b": 1, "uncached": 1}, ())
    calls.clear()

    records: list[object] = []
    ended = run(
        cached(calls), {"texts": ["b", "a", "c"]}, cache=cache, tracer=Tracer(records.append)
    )

    assert calls.counts == {"c": 1, "uncached": 1}
    assert ended.reused == ("page[0]", "page[1]")
    assert [one.topic for one in ended.outputs["page"]] == ["b", "a", "c"]
    assert set(cache.asked) == {60}
    # They are in this run's journal too: it can be resumed without the cache.
    assert [label(one) for one in as_read(records)][:2] == ["page[0]", "page[1]"]
    calls.clear()
    again, _ = resumed(cached(calls), records, {"texts": ["b", "a", "c"]})
    assert not calls.counts
    assert again.outputs == ended.outputs


def test_a_cache_holds_for_one_code():
    calls, cache = Calls(), Kept()
    run(cached(calls), {"texts": ["a"]}, cache=cache)
    ended = run(cached(calls, ending="!"), {"texts": ["a"]}, cache=cache)

    assert calls.counts["a"] == 2
    assert ended.reused == ()


def test_what_the_cache_has_of_another_type_is_made_anew():
    calls, cache = Calls(), Kept()
    run(cached(calls), {"texts": ["a"]}, cache=cache)
    cache.values = dict.fromkeys(cache.values, b'{"other": 1}')

    ended = run(cached(calls), {"texts": ["a"]}, cache=cache)

    assert ended.status == "finished"
    assert calls.counts["a"] == 2


def test_failures_defaults_and_what_cannot_be_told_apart_are_not_kept():
    cache = Kept()
    graph = Graph("uncached", cache=Cache())

    @graph.node(on_error=Default("instead"))
    async def replaced() -> str:
        raise RuntimeError("no")

    @graph.node(on_error="skip")
    async def left_out() -> str:
        raise RuntimeError("no")

    @graph.node
    async def of_client(client) -> str:
        return "page"

    run(graph, {"client": Client()}, cache=cache)

    assert not cache.values
