from pathlib import Path

import pytest
from sample_runs import span, write_journal

from harness.trace import Instant, Journal, NodeOutput
from harness.trace.node_records import node_records

ROOT = Path(__file__).parents[2]


def node(number, start_ns, end_ns, name="text", *, item=None, **more):
    label = name if item is None else f"{name}[{item}]"
    return span(number, start_ns, end_ns, name="node", node=name, item=item, label=label, **more)


def failed(number, error):
    return node(number, 10, 20, status="error")._replace(error=error)


SKIP = Instant(None, "skip", 5, {"node": "text", "item": None, "detail": "it was not wanted"})


@pytest.mark.parametrize(
    ("records", "status", "error"),
    [
        pytest.param([node(1, 0, 9), NodeOutput("text", None, "x")], "done", None, id="done"),
        pytest.param([NodeOutput("text", None, "x")], "reused", None, id="of another run"),
        pytest.param([failed(1, "ValueError: no")], "failed", "ValueError: no", id="failed"),
        pytest.param(
            [failed(1, "ValueError: no"), NodeOutput("text", None, "x")],
            "done",
            "ValueError: no",
            id="its default stands for it",
        ),
        pytest.param(
            [failed(1, "ValueError: no"), NodeOutput("text", None, None, skipped="no")],
            "skipped",
            "no",
            id="failed, and left out",
        ),
        pytest.param([SKIP], "skipped", "it was not wanted", id="not wanted"),
        pytest.param(
            [failed(1, "RunLimitReached: 9 tokens"), SKIP],
            "stopped",
            "it was not wanted",
            id="at a limit",
        ),
        pytest.param([failed(1, "Suspended: Ship?")], "waiting", "Suspended: Ship?", id="asks"),
        pytest.param([node(1, 0, 9, status="cancelled")], "cancelled", None, id="cancelled"),
        pytest.param([node(1, 0, 9, status="unfinished")], "unfinished", None, id="killed"),
        pytest.param(
            [failed(1, "ValueError: no"), node(2, 30, 40), NodeOutput("text", None, "x")],
            "done",
            None,
            id="done at the second attempt",
        ),
        pytest.param(
            [node(1, 0, 9), NodeOutput("text", None, "x"), node(2, 30, 40, status="unfinished")],
            "unfinished",
            None,
            id="begun anew, and killed",
        ),
    ],
)
def test_a_call_ended_as_its_last_attempt_did(tmp_path, records, status, error):
    (one,) = node_records(write_journal(tmp_path / "run.jsonl", *records))
    assert (one.status, one.error) == (status, error)


def test_attempts_are_added_up(tmp_path):
    records = [
        failed(1, "ValueError: no"),
        span(2, 11, 12, parent=1, name="chat", model="m", status="error"),
        node(3, 30, 45),
        span(4, 31, 32, parent=3, name="chat", model="m", input_tokens=7, output_tokens=2),
    ]
    (one,) = node_records(write_journal(tmp_path / "run.jsonl", *records))
    assert (one.duration_ns, one.calls, one.input_tokens, one.output_tokens) == (25, 2, 7, 2)


def test_a_call_counts_for_the_nearest_node_around_it(tmp_path):
    records = [
        node(1, 0, 90, "answer", item=3),
        span(2, 0, 90, parent=1, name="wiggum"),
        node(3, 1, 80, "answer[3]/brief/text"),
        span(4, 2, 70, parent=3, name="chat", model="small", role="producer", output_tokens=5),
        span(5, 3, 60, parent=2, name="chat", model="large", role="judge", model_id="large-v2"),
    ]
    outer, inner = node_records(write_journal(tmp_path / "run.jsonl", *records))
    assert (outer.label, outer.calls) == ("answer[3]", 1)
    assert outer.models == {"judge": ("large (large-v2)",)}
    assert (inner.label, inner.calls, inner.output_tokens) == ("answer[3]/brief/text", 1, 5)
    assert inner.models == {"producer": ("small",)}


def test_items_that_one_call_generates_are_no_calls(tmp_path):
    records = [
        node(1, 0, 9, "pages"),
        NodeOutput("pages", 0, "a"),
        NodeOutput("pages", 1, "b"),
        NodeOutput("pages", None, ["a", "b"]),
    ]
    (one,) = node_records(write_journal(tmp_path / "run.jsonl", *records))
    assert one.label == "pages"


def test_only_calls_whose_price_is_known_have_a_cost(tmp_path):
    prices = {"usd_per_million_input_tokens": 1.0, "usd_per_million_output_tokens": 10.0}
    records = [
        Instant(None, "endpoint", 0, {"model": "paid", **prices}),
        node(1, 0, 9, "a"),
        span(2, 1, 2, parent=1, name="chat", model="paid", input_tokens=100, output_tokens=20),
        span(3, 1, 2, parent=1, name="chat", model="own", input_tokens=100, output_tokens=20),
        span(4, 1, 2, parent=1, name="chat", model="paid", from_cache=True, input_tokens=100),
        node(5, 0, 9, "b"),
    ]
    a, b = node_records(write_journal(tmp_path / "run.jsonl", *records))
    assert a.cost_usd == pytest.approx((100 * 1.0 + 20 * 10.0) / 1e6)
    assert (a.calls, a.input_tokens) == (3, 200)
    assert b.cost_usd is None


def test_the_order_of_keys_makes_no_other_value(tmp_path):
    records = [NodeOutput("a", None, {"x": 1, "y": 2}), NodeOutput("b", None, {"y": 2, "x": 1})]
    a, b = node_records(write_journal(tmp_path / "run.jsonl", *records))
    assert a.value_sha256 == b.value_sha256 is not None


def test_of_a_run_without_texts_no_value_is_known(tmp_path):
    records = [NodeOutput("a", None, None), NodeOutput("b", None, None)]
    a, b = node_records(write_journal(tmp_path / "run.jsonl", *records))
    assert a.value_sha256 is b.value_sha256 is None

    records = [NodeOutput("a", None, None), NodeOutput("b", None, "text")]
    a, b = node_records(write_journal(tmp_path / "run.jsonl", *records))
    assert a.value_sha256 is not None


def test_a_recorded_run_has_its_nodes_and_their_calls():
    records = node_records(Journal(ROOT / "traces/recorded/brief.jsonl"))
    assert [one.label for one in records] == [
        "parts", "topics", "sources[0]", "sources[1]", "sources[2]",
        "sections[0]", "sections[1]", "sections[2]", "text",
    ]  # fmt: skip
    assert [one.calls for one in records] == [0, 1, 0, 0, 0, 1, 1, 1, 1]
    assert sum(one.output_tokens for one in records) == 316
    assert {one.status for one in records} == {"done"}
