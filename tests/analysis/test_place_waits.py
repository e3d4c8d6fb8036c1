"""What waits for places cost a run, against networkx and by hand."""

import networkx
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.time_budget import lost_to_places_ns
from harness.trace import Flow, Interval, SpanRecord
from harness.trace.events import NodeAttempt
from harness.trace.node_records import critical_path

MS = 1_000_000


def calls(
    *nodes: tuple[str, int, int, list[int]], waits_ms: dict[int, int] | None = None
) -> tuple[list[NodeAttempt], list[Flow]]:
    """Of nodes by name, begin, end, and the numbers from 1 of those that each needed."""
    spans, flows = [], []
    for number, (name, start_ms, ends_ms, needs) in enumerate(nodes, start=1):
        attributes: dict[str, object] = {"node": name}
        if waits_ms and number in waits_ms:
            attributes["place_wait_ns"] = waits_ms[number] * MS
        times = (start_ms * MS, ends_ms * MS)
        record = SpanRecord(number, None, "node", *times, "ok", None, attributes)
        spans.append(NodeAttempt.read(record))
        flows += [Flow("output", need, number) for need in needs]
    return spans, flows


def test_a_place_for_each_saves_the_waits_on_the_longest_path() -> None:
    items = [("item", 100 * (n // 2), 100 * (n // 2) + 100, []) for n in range(6)]
    waits_ms = {n + 1: 100 * (n // 2) for n in range(6)}
    end = ("sum", 310, 400, [1, 2, 3, 4, 5, 6])
    assert lost_to_places_ns(*calls(*items, end, waits_ms=waits_ms)) == 200 * MS


def test_a_longer_call_beside_the_one_that_waited_is_what_the_run_then_takes() -> None:
    run = calls(("item", 0, 1000, []), ("item", 1000, 1100, []), waits_ms={2: 1000})
    assert lost_to_places_ns(*run) == 100 * MS


def test_an_attempt_that_a_kill_ended_as_it_began_came_after_the_one_before() -> None:
    label = {"node": "text", "label": "text"}
    attempts = [
        NodeAttempt.read(SpanRecord(number, None, "node", *times, "ok", None, label | more))
        for number, times, more in ((2, (0, 3 * MS), {}), (1, (5 * MS, 5 * MS), {"attempt": 1}))
    ]
    run = Interval(start_ns=0, end_ns=5 * MS)
    assert [step.span for step in critical_path(attempts, [], run=run).steps] == [2, 1]
    assert lost_to_places_ns(attempts, []) == 0


def test_a_run_without_nodes_lost_nothing() -> None:
    assert lost_to_places_ns([], []) == 0


@given(st.data())
def test_without_waits_a_run_takes_as_long_as_networkx_says_its_longest_path_is(
    data: st.DataObject,
) -> None:
    graph = networkx.DiGraph()
    took_ms = data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=12))
    waits_ms = data.draw(st.lists(st.integers(0, 30), min_size=12, max_size=12))
    ends_ms: list[int] = []
    nodes = []
    for number, took in enumerate(took_ms):
        needs = data.draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        start = max((ends_ms[need] for need in needs), default=0) + waits_ms[number]
        ends_ms.append(start + took)
        nodes.append((f"n{number}", start, start + took, [need + 1 for need in needs]))
        graph.add_node(number)
        graph.add_weighted_edges_from((need, number, took_ms[need]) for need in needs)
    last = len(nodes)
    graph.add_weighted_edges_from((number, last, took) for number, took in enumerate(took_ms))
    # Spans are numbered as they begin.
    order = sorted(range(last), key=lambda n: (nodes[n][1], n))
    place = {n: at for at, n in enumerate(order, start=1)}
    run = calls(
        *((*nodes[n][:3], [place[need - 1] for need in nodes[n][3]]) for n in order),
        waits_ms={place[n]: waits_ms[n] for n in range(last)},
    )

    shortest_ms = max(ends_ms) - lost_to_places_ns(*run) / MS

    assert shortest_ms == networkx.dag_longest_path_length(graph)
