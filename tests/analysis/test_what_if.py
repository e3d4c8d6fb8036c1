"""The nodes of a run as a weighted graph, against networkx and by hand."""

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.what_if import Change, Schedule
from harness.errors import InvalidInput
from harness.trace import Flow, Interval, SpanRecord

MS = 1_000_000


def schedule(
    nodes: list[tuple[str, int, int, list[int]]],
    *,
    max_parallel: int | None = None,
    end_ms: int | None = None,
    waits_ms: dict[int, int] | None = None,
) -> Schedule:
    """Of nodes by name, begin, end, and the numbers from 1 of those that each needed."""
    spans, flows = [], []
    for number, (name, start_ms, ends_ms, needs) in enumerate(nodes, start=1):
        attributes: dict[str, object] = {"node": name}
        if waits_ms and number in waits_ms:
            attributes["place_wait_ns"] = waits_ms[number] * MS
        times = (start_ms * MS, ends_ms * MS)
        spans.append(SpanRecord(number, None, "node", *times, "ok", None, attributes))
        flows += [Flow("output", need, number) for need in needs]
    last_ms = end_ms or max((ends_ms for _, _, ends_ms, _ in nodes), default=0)
    run = Interval(start_ns=0, end_ns=last_ms * MS)
    return Schedule(spans, flows, run=run, max_parallel=max_parallel)


DIAMOND = schedule(
    [
        ("plan", 0, 100, []),
        ("slow", 100, 500, [1]),
        ("quick", 110, 200, [1]),
        ("sum", 510, 600, [2, 3]),
    ],
    end_ms=650,
)


def after_ms(of: Schedule, change: str) -> float:
    return of.what_if(of.parsed(change)).after_ns / MS


def test_slack_is_how_much_later_a_call_could_have_ended() -> None:
    found = {one.node: one.slack_ns / MS for one in DIAMOND.slack()}
    # Between the slow one and the sum there were 10 ms that nobody needed.
    assert found == {"plan": 10, "slow": 10, "quick": 310, "sum": 0}


@pytest.mark.parametrize(
    ("change", "expected_ms"),
    [
        ("slow*1", 650),
        ("slow*0.5", 450),
        ("slow*0", 350),  # then the quick one is the slowest
        ("slow-100ms", 550),
        ("slow+1s", 1650),
        ("quick*0", 650),
        ("quick+400ms", 750),
        ("slow*0.5, sum-50ms", 400),
        ("plan*0, sum*0", 460),
    ],
)
def test_a_change_moves_everything_behind_it(change: str, expected_ms: float) -> None:
    assert after_ms(DIAMOND, change) == pytest.approx(expected_ms)


def test_with_more_places_what_waited_for_one_begins_at_once() -> None:
    nodes = [("item", 100 * (n // 2), 100 * (n // 2) + 100, []) for n in range(6)]
    waits_ms = {n + 1: 100 * (n // 2) for n in range(6)}
    run = schedule(nodes, max_parallel=2, waits_ms=waits_ms)
    assert after_ms(run, "max_parallel=2") == 300
    assert after_ms(run, "max_parallel=3") == 200
    assert after_ms(run, "max_parallel=none") == 100
    assert after_ms(run, "max_parallel=1") == 600
    assert after_ms(run, "max_parallel=3, item*0.5") == 100


def test_what_is_nested_lies_in_the_call_around_it() -> None:
    run = schedule([("outer", 0, 300, []), ("outer/inner", 10, 200, [])])
    assert [one.node for one in run.slack()] == ["outer"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("slow", "what-if.not-a-change"),
        ("slow*2s", "what-if.not-a-change"),
        ("slow+2", "what-if.not-a-change"),
        ("slow*-1", "what-if.not-a-change"),
        ("", "what-if.not-a-change"),
        ("slo*2", "what-if.unknown-node"),
    ],
)
def test_what_is_no_change_is_refused(change: str, code: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        DIAMOND.parsed(change)
    assert raised.value.code == code


def test_a_run_without_nodes_stays_as_long_as_it_was() -> None:
    run = schedule([], end_ms=100)
    assert run.slack() == ()
    assert run.what_if(Change()).after_ns == 100 * MS


@given(st.data())
def test_without_waits_a_run_takes_as_long_as_networkx_says_its_longest_path_is(
    data: st.DataObject,
) -> None:
    graph = networkx.DiGraph()
    ends_ms: list[int] = []
    nodes = []
    took_ms = data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=12))
    for number, took in enumerate(took_ms):
        needs = data.draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        start = max((ends_ms[need] for need in needs), default=0)
        ends_ms.append(start + took)
        nodes.append((f"n{number}", start, start + took, [need + 1 for need in needs]))
        graph.add_node(number)
        graph.add_weighted_edges_from((need, number, took_ms[need]) for need in needs)
    # Spans are numbered as they begin.
    order = sorted(range(len(nodes)), key=lambda n: (nodes[n][1], n))
    place = {n: at for at, n in enumerate(order, start=1)}
    run = schedule([(*nodes[n][:3], [place[need - 1] for need in nodes[n][3]]) for n in order])
    changed = data.draw(st.integers(0, len(nodes) - 1))
    factor = data.draw(st.sampled_from([0, 0.5, 1, 2, 3]))

    found = run.what_if(run.parsed(f"n{changed}*{factor}")).after_ns / MS

    for source, target in graph.edges:
        graph[source][target]["weight"] = took_ms[source] * (factor if source == changed else 1)
    last = len(nodes)
    graph.add_weighted_edges_from(
        (number, last, took * (factor if number == changed else 1))
        for number, took in enumerate(took_ms)
    )
    assert found == pytest.approx(networkx.dag_longest_path_length(graph), abs=1e-6)
    on_path = {one.node for one in run.slack() if one.slack_ns == 0}
    assert on_path
