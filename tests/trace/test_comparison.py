import random
import time
from pathlib import Path

import pytest
from sample_runs import STARTED, span, write_journal

from harness.trace import Instant, Journal, NodeOutput, RunEnded
from harness.trace.comparison import compare

ROOT = Path(__file__).parents[2]
BRIEF = ROOT / "traces/recorded/brief.jsonl"
RECORDED = Path(__file__).parent / "recorded_runs"
MS = 1_000_000


def call_of(name, *, item=None, number=1, ms=10, value="x", inputs=None, code="c1", model=None):
    """The records of a node's call, and of the model call in it."""
    records = [
        span(number, 0, ms * MS, name="node", node=name, item=item, label=name),
        NodeOutput(name, item, value, inputs or {}, code, None, None),
    ]
    if model:
        records.append(
            span(number + 1, 0, 5, parent=number, name="chat", model=model, role="producer")
        )
    return records


def run(path, *calls, ms=4000):
    records = [record for call in calls for record in call]
    return write_journal(path, *records, RunEnded(ms * MS, "ok"))


def compared(tmp_path, a, b):
    return compare(run(tmp_path / "a.jsonl", *a), run(tmp_path / "b.jsonl", *b))


@pytest.mark.parametrize(
    ("a", "b", "differs", "inputs"),
    [
        pytest.param([call_of("n")], [call_of("n")], (), (), id="nothing"),
        pytest.param([call_of("n")], [], ("only in a",), (), id="only in the first"),
        pytest.param([], [call_of("n")], ("only in b",), (), id="only in the second"),
        pytest.param([call_of("n")], [call_of("n", value="y")], ("output",), (), id="output alone"),
        pytest.param(
            [call_of("n")],
            [call_of("n", value="y", code="c2")],
            ("output", "code"),
            (),
            id="output and code",
        ),
        pytest.param([call_of("n")], [call_of("n", code="c2")], ("code",), (), id="code alone"),
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
            id="an old journal does not say why",
        ),
        pytest.param(
            [call_of("n", model="small")],
            [call_of("n", model="large")],
            ("models",),
            (),
            id="models",
        ),
        pytest.param([call_of("n", model="small")], [call_of("n")], ("work",), (), id="calls"),
        pytest.param([call_of("n")], [call_of("n", ms=200)], (), (), id="a little time"),
        pytest.param([call_of("n")], [call_of("n", ms=230)], ("time",), (), id="much time"),
    ],
)
def test_two_calls_differ_in(tmp_path, a, b, differs, inputs):
    nodes = compared(tmp_path, a, b).nodes
    assert [(one.differs_in, one.changed_inputs) for one in nodes] == [(differs, inputs)]


def test_in_a_short_run_chance_is_no_difference(tmp_path):
    # Nine tenths of the run, and less than a tenth of a second.
    a, b = (
        run(tmp_path / "a.jsonl", call_of("n"), ms=100),
        run(tmp_path / "b.jsonl", call_of("n", ms=99), ms=100),
    )
    assert compare(a, b).nodes[0].differs_in == ()


def test_recorded_digests_count_where_both_have_them(tmp_path):
    # A secret that was left out of one journal and not of the other makes no other output.
    a = [NodeOutput("n", None, "key ***", {}, "c", None, "d1")]
    b = [NodeOutput("n", None, "key 1234", {}, "c", None, "d1")]
    assert compared(tmp_path, [a], [b]).nodes[0].differs_in == ()


def test_the_biggest_differences_come_first_and_equal_ones_last(tmp_path):
    a = [call_of(name, number=n * 10 + 1, value=1) for n, name in enumerate("abcde")]
    b = [
        call_of("a", number=1, value=1),
        call_of("b", number=11, value=2, ms=20),
        call_of("c", number=21, value=2, ms=30),
        call_of("d", number=31, value=1, ms=900),
        call_of("f", number=41),
    ]
    nodes = compared(tmp_path, a, b).nodes
    assert [one.node for one in nodes[:2]] in (["e", "f"], ["f", "e"])
    assert [one.node for one in nodes[2:]] == ["c", "b", "d", "a"]


def test_a_recorded_run_is_equal_to_itself():
    comparison = compare(Journal(BRIEF), Journal(BRIEF))
    assert len(comparison.nodes) == 9
    assert not any(one.differs_in for one in comparison.nodes)
    assert all(one.is_equal for one in comparison.loops)
    assert all(one.a == one.b for one in comparison.roles)
    assert comparison.a == comparison.b
    assert comparison.a.calls == 5


def test_two_recorded_runs_differ_in_their_prompts_alone():
    drifting = Journal(RECORDED / "drifting_prefix.jsonl")
    steady = Journal(RECORDED / "steady_prefix.jsonl")
    comparison = compare(drifting, steady)
    (notes,) = comparison.nodes
    assert (notes.node, notes.a.calls, notes.b.calls) == ("notes", 8, 8)
    assert "output" in notes.differs_in
    assert comparison.b.duration_ns < comparison.a.duration_ns
    # Read backwards, it says the same the other way round.
    back = compare(steady, drifting)
    assert (back.a, back.b) == (comparison.b, comparison.a)
    assert back.nodes[0].differs_in == notes.differs_in


def loop(number, composites, *, node=1, reason="plateau"):
    return span(
        number,
        1,
        2,
        parent=node,
        name="wiggum",
        rubric="essay",
        composites=composites,
        best_round=1,
        passed=False,
        stop_reason=reason,
    )


def test_loops_are_paired_by_their_node_and_their_number_in_it(tmp_path):
    a = [[*call_of("n"), loop(2, [5.0, 6.0]), loop(3, [7.0])]]
    b = [[*call_of("n"), loop(2, [5.0, 6.0]), loop(3, [8.0]), loop(4, [9.0], reason="passed")]]
    loops = compared(tmp_path, a, b).loops
    assert [(one.node, one.number, one.is_equal) for one in loops] == [
        ("n", 1, True),
        ("n", 2, False),
        ("n", 3, False),
    ]
    assert loops[2].a is None
    assert loops[2].b.stop_reason == "passed"


def test_a_loop_that_was_gone_on_with_is_one_loop(tmp_path):
    def part(number, composites, status="ok", reason=None):
        one = loop(number, composites, reason=reason)
        said = {**one.attributes, "key": "n#1@9f", "stop_reason": reason}
        if status == "unfinished":
            del said["composites"]
        return one._replace(attributes=said, status=status)

    scored = span(3, 1, 2, parent=2, name="evaluate", composite=5.0)
    again = span(5, 1, 2, parent=4, name="evaluate", composite=6.0)
    cut_off = [*call_of("n"), part(2, None, "unfinished"), scored]
    a = [[*cut_off, part(4, [5.0, 6.0], reason="passed"), again]]
    b = [[*call_of("n"), loop(2, [5.0, 6.0], reason="passed")]]
    (one,) = compared(tmp_path, a, b).loops
    assert (one.is_equal, one.a.composites, one.a.duration_ns) == (True, (5.0, 6.0), 2)

    # Killed once more, it did not come to sum itself up.
    a = [[*cut_off, part(4, None, "unfinished"), again]]
    (one,) = compared(tmp_path, a, b).loops
    assert (one.is_equal, one.a.composites, one.a.stop_reason) == (False, (5.0, 6.0), None)


def test_inputs_are_compared_by_what_was_given(tmp_path):
    def given(name, digest):
        return Instant(None, "input", 0, {"input": name, "digest": digest})

    a = [[given("task", "1"), given("document", "2"), given("model", None), given("seed", None)]]
    b = [[given("task", "1"), given("document", "3"), given("seed", "5"), given("tone", "4")]]
    inputs = compared(tmp_path, a, b).inputs
    assert [(one.name, one.is_equal, one.a, one.b) for one in inputs] == [
        ("task", True, "1", "1"),
        ("document", False, "2", "3"),
        ("model", False, None, None),
        ("seed", None, None, "5"),
        ("tone", False, None, "4"),
    ]


def test_roles_say_who_played_them(tmp_path):
    comparison = compared(tmp_path, [call_of("n", model="small")], [call_of("n", model="large")])
    (role,) = comparison.roles
    assert (role.role, role.a, role.b) == ("producer", ("small",), ("large",))


def test_totals_are_those_of_the_reports(tmp_path):
    prices = {"usd_per_million_input_tokens": 1.0, "usd_per_million_output_tokens": 1.0}
    paid = [
        Instant(None, "endpoint", 0, {"model": "m", **prices}),
        span(1, 0, 9, name="node", node="n", label="n"),
        span(2, 0, 9, parent=1, name="chat", model="m", input_tokens=30, output_tokens=12),
    ]
    b = compared(tmp_path, [], [paid]).b
    assert (b.run_id, b.pipeline, b.status) == (STARTED.run_id, STARTED.name, "ok")
    assert (b.calls, b.input_tokens, b.output_tokens, b.node_calls) == (1, 30, 12, 1)
    assert b.cost_usd == pytest.approx(42e-6)


@pytest.mark.slow
def test_ten_thousand_spans_are_compared_within_two_seconds(tmp_path):
    randomness = random.Random(5)

    def large(path):
        calls = []
        for number in range(2500):
            first = number * 4 + 1
            calls.append(
                [
                    span(first, 0, 50, name="node", node="n", item=number, label=f"n[{number}]"),
                    span(first + 1, 1, 40, parent=first, name="chat", model="m", role="producer",
                         input_tokens=100, output_tokens=20, prompt_sha256="0" * 64),
                    span(first + 2, 2, 20, parent=first + 1, name="prefill"),
                    span(first + 3, 20, 40, parent=first + 1, name="decode"),
                    NodeOutput("n", number, "word " * 100 + str(randomness.random() < 0.5)),
                ]
            )  # fmt: skip
        return run(path, *calls)

    a, b = large(tmp_path / "a.jsonl"), large(tmp_path / "b.jsonl")
    started = time.process_time()
    comparison = compare(a, b)
    took_s = time.process_time() - started
    assert 1000 < sum("output" in one.differs_in for one in comparison.nodes) < 1500
    assert took_s < 2
