"""What became of a run's nodes, and how two runs differ in that."""

import asyncio
from pathlib import Path

import pytest
from sample_runs import STARTED, span, write_journal

from harness import Pipeline, Settings
from harness.analysis.comparison import compare
from harness.trace import Instant, Journal, NodeOutput, RunEnded
from harness.trace.node_records import node_records

BRIEF = Path(__file__).parents[1] / "graph/recorded/brief.jsonl"
MS = 1_000_000
PRICES = {"usd_per_million_input_tokens": 1.0, "usd_per_million_output_tokens": 10.0}


def node(number, start_ns, end_ns, name="text", *, item=None, error=None, **more):
    label = name if item is None else f"{name}[{item}]"
    said = {"status": "error" if error else "ok", "node": name, "item": item, "label": label}
    return span(number, start_ns, end_ns, name="node", **said | more)._replace(error=error)


# --- the nodes of a run ----------------------------------------------------------------------

FAILED = node(1, 10, 20, error="ValueError: no")
DONE = NodeOutput("text", None, "x")
SKIP = Instant(None, "skip", 5, {"node": "text", "item": None, "detail": "it was not wanted"})


def nodes_of(tmp_path, *records):
    return node_records(write_journal(tmp_path / "run.jsonl", *records))


@pytest.mark.parametrize(
    ("records", "status", "error"),
    [
        pytest.param([node(1, 0, 9), DONE], "done", None, id="done"),
        pytest.param([DONE], "reused", None, id="of another run"),
        pytest.param([FAILED], "failed", "ValueError: no", id="failed"),
        pytest.param([FAILED, DONE], "done", "ValueError: no", id="its default stands for it"),
        pytest.param([FAILED, NodeOutput("text", None, None, skipped="no")], "skipped", "no",
                     id="failed, and left out"),
        pytest.param([SKIP], "skipped", "it was not wanted", id="not wanted"),
        pytest.param([FAILED._replace(error="RunLimitReached: 9 tokens"), SKIP], "stopped",
                     "it was not wanted", id="at a limit"),
        pytest.param([FAILED._replace(error="Suspended: Ship?")], "waiting", "Suspended: Ship?",
                     id="asks"),
        pytest.param([node(1, 0, 9, status="unfinished")], "unfinished", None, id="killed"),
        pytest.param([FAILED, node(2, 30, 40), DONE], "done", None, id="at the second attempt"),
        pytest.param([node(1, 0, 9), DONE, node(2, 30, 40, status="unfinished")], "unfinished",
                     None, id="begun anew, and killed"),
    ],
)  # fmt: skip
def test_a_call_ended_as_its_last_attempt_did(tmp_path, records, status, error):
    (one,) = nodes_of(tmp_path, *records)
    assert (one.status, one.error) == (status, error)


def test_attempts_are_added_up(tmp_path):
    (one,) = nodes_of(
        tmp_path,
        FAILED,
        span(2, 11, 12, parent=1, name="chat", model="m", status="error"),
        node(3, 30, 45),
        span(
            *(4, 31, 32), parent=3, name="chat", model="m", model_id="m7", input_tokens=7,
            output_tokens=2,
        ),
    )  # fmt: skip
    assert (one.duration_ns, one.calls, one.input_tokens, one.output_tokens) == (25, 2, 7, 2)
    assert one.models == {"no role": ("m (m7)",)}


def test_a_call_counts_for_the_nearest_node_around_it(tmp_path):
    outer, inner = nodes_of(
        tmp_path,
        node(1, 0, 90, "answer", item=3),
        span(2, 0, 90, parent=1, name="wiggum"),
        node(3, 1, 80, "answer[3]/brief/text"),
        span(4, 2, 70, parent=3, name="chat", model="small", role="producer", output_tokens=5),
        span(5, 3, 60, parent=2, name="chat", model="large", role="judge", model_id="large-v2"),
    )
    assert (outer.label, outer.calls) == ("answer[3]", 1)
    assert outer.models == {"judge": ("large (large-v2)",)}
    assert (inner.label, inner.calls, inner.output_tokens) == ("answer[3]/brief/text", 1, 5)
    assert inner.models == {"producer": ("small",)}


def test_only_calls_whose_price_is_known_have_a_cost(tmp_path):
    a, b = nodes_of(
        tmp_path,
        Instant(None, "endpoint", 0, {"model": "paid", **PRICES}),
        node(1, 0, 9, "a"),
        span(2, 1, 2, parent=1, name="chat", model="paid", input_tokens=100, output_tokens=20),
        span(3, 1, 2, parent=1, name="chat", model="own", input_tokens=100, output_tokens=20),
        span(4, 1, 2, parent=1, name="chat", model="paid", from_cache=True, input_tokens=100),
        node(5, 0, 9, "b"),
    )
    assert a.cost_usd == pytest.approx((100 * 1.0 + 20 * 10.0) / 1e6)
    assert (a.calls, a.input_tokens, b.cost_usd) == (3, 200, None)


def test_a_recorded_run_has_its_nodes_and_their_calls():
    records = node_records(Journal(BRIEF))
    # Items that one call generates are no calls.
    assert [one.label for one in records] == [
        "parts", "topics", "sources[0]", "sources[1]", "sources[2]",
        "sections[0]", "sections[1]", "sections[2]", "text",
    ]  # fmt: skip
    assert [one.calls for one in records] == [0, 1, 0, 0, 0, 1, 1, 1, 1]
    assert sum(one.output_tokens for one in records) == 316
    assert {one.status for one in records} == {"done"}


# --- two runs --------------------------------------------------------------------------------


def call_of(name, *, number=1, ms=10, value="x", inputs=None, code="c1", model=None):
    """The records of a node's call, and of the model call in it."""
    output = NodeOutput(name, None, value, inputs or {}, code, None, digest=str(value))
    chat = span(number + 1, 0, 5, parent=number, name="chat", model=model, role="producer")
    return [node(number, 0, ms * MS, name), output, *([chat] if model else [])]


def run(path, *calls, ms=4000):
    records = [record for call in calls for record in call]
    return write_journal(path, *records, RunEnded(ms * MS, "ok"))


def compared(tmp_path, a, b, **more):
    return compare(run(tmp_path / "a.jsonl", *a, **more), run(tmp_path / "b.jsonl", *b, **more))


N = [call_of("n")]


@pytest.mark.parametrize(
    ("a", "b", "differs", "inputs"),
    [
        pytest.param(N, N, (), (), id="nothing"),
        pytest.param(N, [], ("only in a",), (), id="only in the first"),
        pytest.param(N, [call_of("n", value="y", code="c2")], ("output", "code"), (), id="both"),
        pytest.param(
            [call_of("n", inputs={"p": "1", "q": "1", "r": "1"})],
            [call_of("n", inputs={"p": "2", "q": "1", "s": "1"}, value=["y"])],
            ("output", "inputs"),
            ("p", "r", "s"),
            id="inputs changed, gone and new",
        ),
        pytest.param(
            [call_of("n", code=None)],
            [call_of("n", code="c1", inputs={"p": "1"}, value="y")],
            ("output",),
            (),
            id="a journal that does not say why",
        ),
        pytest.param(
            [call_of("n", model="small")],
            [call_of("n", model="large")],
            ("models",),
            (),
            id="model",
        ),
        pytest.param([call_of("n", model="small")], N, ("work",), (), id="calls"),
        pytest.param(N, [call_of("n", ms=200)], (), (), id="a little time"),
        pytest.param(N, [call_of("n", ms=230)], ("time",), (), id="much time"),
        # A secret that was left out of one journal and not of the other makes no other output.
        pytest.param(
            [[NodeOutput("n", None, "key ***", {}, "c", None, "d1")]],
            [[NodeOutput("n", None, "key 1234", {}, "c", None, "d1")]],
            (),
            (),
            id="recorded digests",
        ),
    ],
)
def test_two_calls_differ_in(tmp_path, a, b, differs, inputs):
    nodes = compared(tmp_path, a, b).nodes
    assert [(one.differs_in, one.changed_inputs) for one in nodes] == [(differs, inputs)]


def test_the_biggest_differences_come_first_and_equal_ones_last(tmp_path):
    a = [call_of(name, number=n * 10 + 1, value=1) for n, name in enumerate("abcde")]
    b = [
        call_of("a", number=1, value=1),
        call_of("b", number=11, value=2, ms=20),
        call_of("c", number=21, value=2, ms=30),
        call_of("d", number=31, value=1, ms=900),
        call_of("f", number=41),
    ]
    names = [one.node for one in compared(tmp_path, a, b).nodes]
    assert (set(names[:2]), names[2:]) == ({"e", "f"}, ["c", "b", "d", "a"])


def loop(number, composites, *, reason="plateau", status="ok", **more):
    said = {"rubric": "essay", "best_round": 1, "passed": False, "stop_reason": reason}
    if composites is not None:
        said["composites"] = composites
    return span(number, 1, 2, parent=1, name="wiggum", status=status, **said, **more)


def test_loops_are_paired_by_their_node_and_their_number_in_it(tmp_path):
    a = [[*call_of("n"), loop(2, [5.0, 6.0]), loop(3, [7.0])]]
    b = [[*call_of("n"), loop(2, [5.0, 6.0]), loop(3, [8.0]), loop(4, [9.0], reason="passed")]]
    loops = compared(tmp_path, a, b).loops
    assert [(one.node, one.number, one.is_equal) for one in loops] == [
        ("n", 1, True),
        ("n", 2, False),
        ("n", 3, False),
    ]
    assert (loops[2].a, loops[2].b.stop_reason) == (None, "passed")


def test_a_loop_that_was_gone_on_with_is_one_loop(tmp_path):
    cut_off = {"reason": None, "status": "unfinished", "key": "n#1@9f"}
    scored = span(3, 1, 2, parent=2, name="evaluate", composite=5.0)
    again = span(5, 1, 2, parent=4, name="evaluate", composite=6.0)
    begun = [*call_of("n"), loop(2, None, **cut_off), scored]
    b = [[*call_of("n"), loop(2, [5.0, 6.0], reason="passed")]]

    a = [[*begun, loop(4, [5.0, 6.0], reason="passed", key="n#1@9f"), again]]
    (one,) = compared(tmp_path, a, b).loops
    assert (one.is_equal, one.a.composites, one.a.duration_ns) == (True, (5.0, 6.0), 2)

    # Killed once more, it did not come to sum itself up.
    a = [[*begun, loop(4, None, **cut_off), again]]
    (one,) = compared(tmp_path, a, b).loops
    assert (one.is_equal, one.a.composites, one.a.stop_reason) == (False, (5.0, 6.0), None)


def test_inputs_are_compared_by_what_was_given(tmp_path):
    def given(**digests):
        return [[Instant(None, "input", 0, {"input": n, "digest": d}) for n, d in digests.items()]]

    a = given(task="1", document="2", model=None, seed=None)
    b = given(task="1", document="3", seed="5", tone="4")
    # Only one of them has a model; what the seed of the first was is not recorded.
    assert compared(tmp_path, a, b).changed_inputs == ("document", "model", "tone")


def test_roles_and_totals_are_those_of_the_reports(tmp_path):
    paid = [
        Instant(None, "endpoint", 0, {"model": "m", **PRICES}),
        node(1, 0, 9, "n"),
        span(2, 0, 9, parent=1, name="chat", role="producer", model="m", input_tokens=30,
             output_tokens=12),
    ]  # fmt: skip
    comparison = compared(tmp_path, [call_of("n", model="small")], [paid])
    b = comparison.b
    assert comparison.roles == {"producer": (("small",), ("m",))}
    assert (b.run_id, b.pipeline, b.status) == (STARTED.run_id, STARTED.name, "ok")
    calls = b.calls
    assert (calls.calls, calls.input_tokens, calls.output_tokens) == (1, 30, 12)
    assert b.cost.usd == pytest.approx(150e-6)


# --- what the whole runs differ in -----------------------------------------------------------

RECORDED = Path(__file__).parent / "recorded_runs"


def recorded(name):
    return Journal(RECORDED / f"{name}.jsonl")


def test_it_says_whether_the_bottleneck_has_moved_and_what_else_did():
    found = compare(recorded("queueing"), recorded("parallel_client"))

    assert found.bottlenecks == ("queue", "decode")
    assert found.time["queue"][0] > 100 * found.time["queue"][1]
    assert sum(a for a, _ in found.time.values()) == found.a.duration_ns
    assert sum(b for _, b in found.time.values()) == found.b.duration_ns
    assert [*found.settings] == ["smollm2.url"]
    (gone,) = found.findings
    assert (gone.rule, gone.change, gone.b) == ("queueing", "gone", None)
    figures = {(one.model, one.name): one for one in found.figures}
    for model in (None, "smollm2"):
        assert figures[model, "TTFT p50"].a > 5 * figures[model, "TTFT p50"].b
        assert figures[model, "prefill p50"].unit == "ns"
        assert 0 < figures[model, "decoding"].b < figures[model, "decoding"].a
    assert figures[None, "calls within targets"].b == 1.0
    # Of eight calls there is no tail.
    assert (None, "TTFT p99") not in figures


def test_a_run_beside_itself_differs_in_nothing():
    found = compare(recorded("swap_thrash"), recorded("swap_thrash"))

    assert found.bottlenecks == ("load", "load")
    assert found.settings == {}
    assert all(a == b for a, b in found.time.values())
    assert all(one.a == one.b for one in found.figures)
    assert {one.change for one in found.findings} == {"same"}


def test_rows_of_batches_are_paired_by_their_ids_and_else_by_number(tmp_path):
    pipeline = Pipeline("echo")
    pipeline.node(lambda text: text, name="same")

    def batch(*rows):
        done = asyncio.run(pipeline.batch(rows, settings=Settings(traces=tmp_path)))
        return Journal(done.run.files.journal)

    a, b, c = ({"id": id_, "text": id_.upper()} for id_ in "abc")
    found = compare(batch(a, b, c), batch(c, {**b, "text": "other"}, a))
    differing = {n.node for n in found.nodes if n.differs_in and n.differs_in != ("time",)}
    assert differing == {"rows['b']", "rows['b']/echo/same"}
    assert found.changed_inputs == ("rows",)
    found = compare(batch({"text": "A"}, {"text": "B"}), batch(a, b))
    assert all(node.a and node.b for node in found.nodes)


def test_settings_and_waits_that_differ_are_told(tmp_path):
    def run(name, *, slots, lost_ns):
        chat = span(3, 2, 5000 * MS, parent=2, name="chat", model="m", output_tokens=9)
        return write_journal(
            tmp_path / name,
            Instant(None, "endpoint", 0, {"model": "m", "slots": slots}),
            span(1, 0, 5000 * MS, name="run", max_parallel=2),
            Instant(1, "pipeline", 1, {"limits": {"max_calls": slots}, "seed": 3}),
            span(2, 1, 5000 * MS, parent=1, name="node", node="text", item=None, label="text"),
            chat,
            span(4, 2, lost_ns, parent=3, name="queue", reason="max_parallel is reached"),
            span(5, lost_ns, 5000 * MS, parent=3, name="decode"),
        )

    found = compare(run("a", slots=1, lost_ns=4000 * MS), run("b", slots=4, lost_ns=2000 * MS))

    assert found.settings == {"m.slots": (1, 4), "limits.max_calls": (1, 4)}
    assert found.time["turn"] == (4000 * MS - 2, 2000 * MS - 2)
