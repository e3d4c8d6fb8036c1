"""Runs with one fault planted in them, runs without any, and real ones: what is said of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import get_args

import planted_runs as planted
import pytest
from golden import assert_shown
from planted_runs import HEALTHY, Make, PlantedRun
from sample_runs import span, write_journal

from harness import Cache, NodeFailed, Pipeline, Run, ScriptedReply, Settings
from harness.analysis import LAYERS, RULES, RunFinding, diagnose
from harness.analysis.observed import Observed, Server, batching_helps
from harness.inference.endpoint import BackendName
from harness.inference.providers import PROVIDERS, Aim
from harness.testing import Script, run_pipeline
from harness.trace import Call, CounterSet, Journal, Record, calls_of

RECORDED = Path(__file__).parent / "recorded_runs"
SHIPPED = Path(__file__).parents[2] / "traces" / "recorded"
RECORDED_RUNS: list[tuple[str, set[str], set[str]]] = [
    ("cold_start", {"cold-start"}, set()),
    ("swap_thrash", {"swap-thrash"}, {"cold-start"}),
    ("drifting_prefix", {"drifting-prefix"}, set()),
    ("steady_prefix", set(), {"cold-start"}),
    ("revise_loop", set(), {"cold-start"}),
    ("serial_client", {"serial-client"}, set()),
    ("parallel_client", set(), set()),
    ("queueing", {"queueing"}, set()),
    ("unused_dependency", {"unused-dependency"}, {"cold-start"}),
    ("asked_again", {"asked-again"}, {"cold-start"}),
    ("filled_context", {"filled-context"}, {"cold-start"}),
    ("prefill_bound", {"prefill-bound"}, {"cold-start"}),
    ("timed_out_attempts", {"node-retries"}, {"cold-start"}),
    ("reply_gap", {"reply-gap"}, {"cold-start"}),
    ("failed_reply", {"failed-run"}, {"cold-start"}),
    ("failed_calls", {"failed-calls"}, {"cold-start"}),
    ("slow_code", {"slow-code"}, {"cold-start"}),
    ("slow_decode", {"slow-decode"}, {"cold-start"}),
    ("out_of_reach", {"out-of-reach"}, set()),
    ("retries", {"retries"}, set()),
    ("hidden_reasoning", {"hidden-reasoning"}, set()),
    ("growing_replies", {"changes-over-run"}, set()),
    ("slower_over_run", {"changes-over-run"}, set()),
    ("not_streamed", {"not-streamed"}, set()),
    ("slow_replica", {"straggler"}, set()),
    ("new_connections", {"new-connections"}, set()),
    ("behind_others", {"queueing"}, set()),
    ("busy_machine", set(), set()),  # healthy, while other programs took both cores
]
"""What must be said of each, and what may be. Made by record_runs.py on real models; those from
`out_of_reach` on at a loopback server that plants what they are called after, or at none."""


def found(run: PlantedRun, directory: Path) -> dict[str, RunFinding]:
    return {finding.rule: finding for finding in diagnose(run.journal(directory)).findings}


# --- what is found ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A fault planted in a run, and what has to be said of it."""

    rule: str
    make: Make
    shown: tuple[int, float | None]
    """How many spans show it, and the seconds that it cost."""
    severity: str = "warning"
    beside: frozenset[str] = frozenset()
    """What else may rightly be said of the run."""
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.make.__name__


FAULTS = [
    Fault("cold-start", planted.cold_start, (1, 3.0), severity="hint"),
    Fault("cold-start", planted.slow_first_call, (1, 2.4)),
    Fault("swap-thrash", planted.swaps_in_a_server, (4, 6.0), severity="hint",
          beside=frozenset({"cold-start", "serial-client"})),
    Fault("straggler", planted.straggler, (1, 2.4)),
    Fault("reply-gap", planted.stalled_replies, (3, 4.5)),
    Fault("swap-thrash", planted.swap_thrash, (4, 3.85),
          beside=frozenset({"cold-start"})),
    Fault("queueing", planted.queueing, (7, 3.5)),
    Fault("queueing", lambda: planted.queueing("llamacpp"), (7, 3.5), name="queueing llama-server"),
    Fault("queueing", planted.queueing_for_room, (7, 3.5)),
    Fault("queueing", lambda: planted.queueing("embedded", file="small.gguf"), (7, 3.5),
          name="queueing embedded"),
    Fault("queueing", planted.queueing_for_one_place, (7, 3.5)),
    Fault("queueing", planted.queueing_at_its_limit, (7, 6.3)),
    Fault("queueing", planted.queueing_by_counter, (5, 3.04)),
    Fault("queueing", planted.queueing_unsaid, (5, 2.7), severity="hint"),
    Fault("prefill-bound", planted.prefill_bound, (5, 12.5), beside=frozenset({"serial-client"})),
    Fault("drifting-prefix", planted.drifting_prefix, (4, 7.63)),
    Fault("drifting-prefix", planted.uncached_prefix, (4, 7.89)),
    Fault("drifting-prefix", planted.resent_history, (6, 9.12)),
    Fault("drifting-prefix", lambda: planted.resent_history(told=False), (6, 9.12),
          name="resent, and nobody says so"),
    Fault("preemptions", planted.preemptions, (0, None)),
    Fault("slow-decode", planted.bandwidth_bound, (3, 11.7)),
    Fault("slow-decode", lambda: planted.known_limits(1000), (3, 11.7),
          name="bandwidth, and known"),
    Fault("slow-decode", lambda: planted.known_limits(100, prefill_ms=6000), (3, 11.7),
          beside=frozenset({"prefill-bound", "serial-client"}), name="compute"),
    Fault("slow-decode", planted.slow_decode, (8, 15.21)),
    Fault("serial-client", planted.serial_loop, (8, 1.61), severity="hint"),
    Fault("max-parallel", planted.places_without_models, (8, 0.3)),
    Fault("max-parallel", planted.places, (8, 2.4)),
    Fault("max-parallel", lambda: planted.places(None), (8, 2.4), severity="hint",
          name="places, unsaid"),
    Fault("max-parallel", planted.places_of_a_node, (6, 1.8), severity="hint"),
    Fault("client-lag", planted.client_lag, (2, 1.9)),
    Fault("client-lag", lambda: planted.client_lag("parse"), (2, 1.9),
          name="the node's own function"),
    Fault("out-of-memory", planted.out_of_memory_at_start, (1, 0.01), severity="error"),
    Fault("out-of-memory", planted.out_of_memory_later, (1, 0.9), severity="error"),
    Fault("retries", planted.retries, (3, 5.08)),
    Fault("failed-calls", planted.failed_calls, (1, None), severity="error"),
    Fault("failed-calls", lambda: planted.failed_calls(max_output_tokens=400), (1, None),
          severity="error", name="overflow by so much"),
    Fault("filled-context", planted.context_filled, (3, None)),
    Fault("filled-context", planted.replies_cut_by_the_server, (3, None)),
    Fault("max-parallel", planted.turns, (4, 0.9)),
    Fault("max-parallel", planted.turns_unsaid, (4, 0.9), severity="hint"),
    Fault("retries", planted.fell_back, (2, 0.8)),
    Fault("out-of-reach", planted.out_of_reach, (5, 1.5), severity="error"),
    Fault("out-of-reach", lambda: planted.out_of_reach(fallback=True),
          (5, 1.5), name="out of reach, and replaced"),
    Fault("out-of-reach", planted.back_after_a_while, (3, 2.9)),
    Fault("slow-code", planted.slow_code, (1, 2.57), severity="hint"),
    Fault("client-lag", planted.blocked_alone, (1, 1.9), severity="hint"),
    Fault("swap-thrash", planted.loads_for_another_context, (4, 3.6),
          beside=frozenset({"cold-start"})),
    Fault("queueing", planted.queueing_behind_others, (5, 6.0),
          beside=frozenset({"serial-client"})),
    Fault("serial-client", planted.held_in_the_node, (8, 1.61), beside=frozenset({"slow-code"})),
    Fault("cold-start", planted.a_schema_before_each_reply, (6, 5.1)),
    Fault("not-streamed", planted.kept_back_while_it_stood_still, (3, None),
          beside=frozenset({"serial-client", "cold-start"})),
    Fault("node-retries", planted.timed_out_attempts, (2, 2.0)),
    Fault("serial-client", planted.held_by_run_map, (8, 1.61)),
    Fault("hidden-reasoning", planted.reasoning_not_counted, (3, 11.38), severity="hint"),
    Fault("hidden-reasoning", planted.reasoning_before_labels, (3, 11.97), severity="hint"),
    Fault("prefill-bound", planted.long_prompts_sent_together, (6, 12.0)),
    Fault("cold-start", planted.far_gateways, (4, 2.8), beside=frozenset({"serial-client"})),
    Fault("swap-thrash", planted.swaps_behind_prompts, (6, 12.64),
          beside=frozenset({"cold-start", "serial-client"})),
    Fault("cold-start", planted.fixed_wait, (9, 4.53), beside=frozenset({"serial-client"})),
    Fault("prefill-bound", lambda: planted.prefill_bound("openai"), (5, 12.5), severity="hint",
          beside=frozenset({"serial-client"}), name="prompts of one length"),
    Fault("retries", planted.refused_beside_each_other, (9, 3.0)),
    Fault("retries", planted.overloaded_by_others, (3, 4.5)),
    Fault("retries", planted.first_tokens_out_of_time, (3, 7.8)),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_planted_fault_is_named_and_no_other(fault: Fault, tmp_path: Path) -> None:
    journal = fault.make().journal(tmp_path)
    spans = {span.id for span in journal.spans()}

    findings = {finding.rule: finding for finding in diagnose(journal).findings}

    assert {fault.rule} <= findings.keys() <= {fault.rule} | fault.beside
    finding = findings[fault.rule]
    assert finding.severity == fault.severity
    lost_s = None if finding.lost_ns is None else round(finding.lost_ns / 1e9, 2)
    assert (len(finding.spans), lost_s) == fault.shown
    for each in findings.values():
        assert each.layer in LAYERS
        assert each.move
        assert "{" not in "".join(each.move).replace("each={...}", "")
        assert set(each.spans) <= spans
        assert each.lost_ns is None or 0 <= each.lost_ns <= journal.duration_ns
    text = "\n".join([finding.seen, *(f"- {move}" for move in finding.move)])
    assert_shown("remedies", f"{fault.rule}: {fault}", text)


def test_what_neither_memory_nor_processor_bounds_is_put_down_to_neither(tmp_path: Path) -> None:
    assert "slow-decode" not in found(planted.known_limits(100), tmp_path)


def test_prompts_read_at_a_pace_that_only_a_cache_explains_were_cached(tmp_path: Path) -> None:
    assert found(planted.resent_history(cached=True, told=False), tmp_path) == {}


@pytest.mark.parametrize("make", HEALTHY, ids=lambda make: make.__name__)
def test_nothing_is_said_of_a_healthy_run(make: Make, tmp_path: Path) -> None:
    assert found(make(), tmp_path) == {}


@pytest.mark.parametrize(
    ("name", "expected", "beside"), [pytest.param(*run, id=run[0]) for run in RECORDED_RUNS]
)
def test_a_recorded_run_is_diagnosed_as_what_it_was_made_to_show(
    name: str, expected: set[str], beside: set[str]
) -> None:
    rules = {finding.rule for finding in diagnose(Journal(RECORDED / f"{name}.jsonl")).findings}

    assert expected <= rules <= expected | beside


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("batched", ["queueing", "cold-start"]),
        ("brief", ["queueing"]),
        # One model, and a node that blocks the event loop: nothing waits for memory.
        ("client-lag", ["client-lag", "cold-start"]),
        ("cold-load", ["queueing", "cold-start"]),
        ("convoy", ["queueing", "cold-start"]),
        # A place for each call that was let through, and each waited until prompts were read.
        ("h100-eight-at-once", ["max-parallel"]),
        ("h100-one-at-once", ["max-parallel"]),
        ("h100-swaps", ["cold-start"]),
        ("kv-pressure", ["preemptions"]),
        ("prefix-drift", ["drifting-prefix"]),
        ("prefix-kept", ["cold-start"]),
        # Others queue before the long reply, and are long over before it ends.
        ("straggler", ["queueing", "straggler"]),
        ("swaps", ["swap-thrash"]),
        ("swaps-avoided", ["cold-start"]),
    ],
)
def test_a_shipped_run_is_diagnosed_as_its_page_says(name: str, rules: list[str]) -> None:
    assert [finding.rule for finding in diagnose(Journal(SHIPPED / f"{name}.jsonl")).findings] == (
        rules
    )


def test_every_rule_has_a_recorded_run_in_which_it_is_the_fault() -> None:
    recorded = set().union(*(rules for _, rules, _ in RECORDED_RUNS))
    shipped = {"max-parallel", "client-lag", "preemptions"}
    # A budget or an engine without room for a model ends a run before its journal begins.
    assert recorded | shipped | {"out-of-memory"} == RULES.keys()


def test_every_endpoint_that_was_refused_is_named_and_what_its_account_lets_through(
    tmp_path: Path,
) -> None:
    run = PlantedRun("openai")
    run.endpoint("large", backend="openai", url="http://there", model_id="m")
    for model, start_ms in (("small", 0), ("large", 0), ("large", 200)):
        # A reply is 30 ms on its way: the next two were let in as these had ended over there.
        run.calls(2, start_ms, model=model, tokens=20)
        for _ in range(2):
            run.now_ms = start_ms
            run.failed_call(5, "RateLimited: the account is at its limit", model=model)

    lost = found(run, tmp_path)["failed-calls"]

    assert lost.model == "large"
    assert lost.seen.endswith("The same was seen of 'small'.")
    move = "if it limits calls at once: max_parallel = 2 under [endpoints.large]"
    assert lost.move[0] == move


def test_where_nodes_wait_for_places_the_remedy_names_their_limit() -> None:
    moves = {one.rule: one.move for one in diagnose(Journal(SHIPPED / "swaps.jsonl")).findings}
    assert "a larger max_parallel in Pipeline(…)" in "\n".join(moves["swap-thrash"])
    # Two engines of this process, each with its own memory: the size of their contexts is equal.
    assert "the same context_tokens" not in "\n".join(moves["swap-thrash"])


def test_recorded_runs_tell_nothing_of_their_machine() -> None:
    paths = {path.stem: path for path in RECORDED.glob("*.jsonl")}

    assert paths.keys() == {name for name, _, _ in RECORDED_RUNS}
    for path in paths.values():
        text = path.read_text(encoding="utf-8")
        assert not [place for place in ("/tmp", "/home", "/root", "/work") if place in text]


# --- how it is said --------------------------------------------------------------------------


def test_errors_come_first_and_then_what_took_the_most_time(tmp_path: Path) -> None:
    run = planted.swap_thrash()
    run.failed_call(5, "AuthenticationFailed: large: no key", model="large")

    findings = diagnose(run.journal(tmp_path)).findings
    timed = diagnose(Journal(SHIPPED / "straggler.jsonl")).findings

    assert [one.rule for one in findings] == ["failed-calls", "swap-thrash"]
    assert [one.rule for one in timed] == ["queueing", "straggler"]
    assert (timed[0].lost_ns or 0) > (timed[1].lost_ns or 0)


@pytest.mark.parametrize(
    ("device", "table"),
    [("gpu0", "[budget.devices.gpu0]"), ({"gpu0": 1.0, "gpu1": 1.0}, None)],
    ids=["one", "several"],
)
def test_room_for_all_is_advised_on_a_device_that_is_one(
    tmp_path: Path, device: object, table: str | None
) -> None:
    journal = planted.swap_thrash(device=device).journal(tmp_path)

    (found,) = [one for one in diagnose(journal).findings if one.rule == "swap-thrash"]

    assert ("give all of them room" in str(found)) == (table is not None)
    assert table is None or table in str(found)


@pytest.mark.parametrize("backend", get_args(BackendName))
def test_every_backend_gets_flags_of_its_own_or_none(backend: str) -> None:
    server = Server(model="s", backend=backend, threads=2)
    said = [change for aim in Aim for change in server.remedies(aim)]

    assert bool(said) == bool(PROVIDERS[backend].remedies)
    assert not [change for change in said if "{" in change]


# --- what cannot be told ---------------------------------------------------------------------


def one_call_without_latency() -> PlantedRun:
    run = PlantedRun()
    run.span("chat", 0, 4000, run.root, model="small")
    return run


@pytest.mark.parametrize(
    ("make", "codes"),
    [
        (planted.loop_without_texts, ["texts-not-recorded"]),
        (planted.chain_in_one_function, []),
        (one_call_without_latency, ["latency-unknown"]),
    ],
)
def test_what_no_rule_can_tell_is_said(make: Make, codes: list[str], tmp_path: Path) -> None:
    diagnosis = diagnose(make().journal(tmp_path))

    assert [one.code for one in diagnosis.remarks] == [f"diagnosis.{code}" for code in codes]


def test_the_largest_part_that_no_finding_explains_is_named(tmp_path: Path) -> None:
    run = planted.serial_loop()
    run.node("parse", run.now_ms, 900)
    diagnosis = diagnose(run.journal(tmp_path))

    assert [one.rule for one in diagnosis.findings] == ["serial-client"]
    assert diagnosis.checked == tuple(RULES)
    assert diagnosis.unexplained == next(one for one in diagnosis.time if one.kind == "start")


def test_replies_that_reach_their_own_limit_are_told_and_are_no_fault(tmp_path: Path) -> None:
    run = PlantedRun()
    run.calls(2, tokens=40, finish_reason="length", max_output_tokens=40)
    run.call(tokens=12, max_output_tokens=40)
    diagnosis = diagnose(run.journal(tmp_path))

    assert diagnosis.remarks[0].code == "diagnosis.replies-cut"
    assert "2 of 3" in str(diagnosis.remarks[0])
    assert diagnosis.findings == ()


@pytest.mark.parametrize("itl_ms", [10, 40], ids=["as quick together", "slower together"])
def test_a_server_that_writes_no_more_tokens_together_gains_nothing(
    itl_ms: int, tmp_path: Path
) -> None:
    run = PlantedRun()
    run.calls(3, tokens=40)
    assert batching_helps(*_calls_of(run, tmp_path)) is None
    run.calls(4, run.now_ms, tokens=40, itl_ms=itl_ms)
    assert batching_helps(*_calls_of(run, tmp_path)) is (itl_ms == 10)


def _calls_of(run: PlantedRun, directory: Path) -> tuple[Observed, list[Call]]:
    observed = Observed(run.journal(directory))
    return observed, observed.calls


def test_the_code_of_the_node_with_the_longest_lag_is_named(tmp_path: Path) -> None:
    run = PlantedRun()
    for name, start_ms, lag_ms in (("first", 0, 300), ("second", 400, 1500)):
        run.node(name, start_ms, lag_ms + 100, label=name)
        place = {"at": "mine.py:12", "function": "parse"}
        run.span("client lag", start_ms + 20, lag_ms, track="client lag", **place)
    (finding,) = diagnose(run.journal(tmp_path)).findings

    assert finding.rule == "client-lag"
    assert ": in 'parse' (mine.py:12), while 'second' ran." in finding.seen


@pytest.mark.parametrize(
    ("reply", "error", "code"),
    [
        (ScriptedReply(text="soon"), "ReplyInvalid", "call.reply-invalid"),
        (ScriptedReply(text="1", finish_reason="length"), "ReplyCut", "call.reply-cut"),
    ],
    ids=["of another type", "cut"],
)
def test_a_reply_that_could_not_be_used_is_an_error_of_a_model_call(
    reply: ScriptedReply, error: str, code: str, tmp_path: Path
) -> None:
    pipeline = Pipeline("year")

    @pipeline.node
    async def year(run: Run) -> int:
        return await run.chat("producer", "When?", returns=int, attempts=2, max_output_tokens=1)

    script = Script({"producer": [reply] * 2})
    with pytest.raises(NodeFailed) as caught:
        run_pipeline(pipeline, script, settings=Settings(traces=tmp_path))
    (journal,) = tmp_path.glob("*-*.jsonl")
    (finding,) = diagnose(Journal(journal)).findings
    node = next(span for span in Journal(journal).spans() if span.name == "node")

    assert type(caught.value.__cause__).__name__ == error
    assert node.attributes["error_code"] == code
    # A cut reply is not asked for again: the next one would be cut too.
    again = [call.asks_again for call in calls_of(Journal(journal).spans())]
    assert again == [False, True][: 1 + (error == "ReplyInvalid")]
    assert (finding.rule, finding.severity) == ("failed-run", "error")
    assert "ask again after a wrong reply" in finding.move[0]


@pytest.mark.parametrize(
    ("code", "rule"),
    [
        (None, "out-of-reach"),
        ("call.unreachable", "out-of-reach"),
        ("call.certificate-refused", "failed-calls"),
        ("call.no-tls", "failed-calls"),
    ],
)
def test_a_server_whose_tls_is_refused_is_not_missing(
    code: str | None, rule: str, tmp_path: Path
) -> None:
    run = PlantedRun()
    for _ in range(3):
        run.failed_call(900, "EndpointUnreachable: small: in whatever words", error_code=code)
    (finding,) = diagnose(run.journal(tmp_path)).findings

    assert finding.rule == rule
    assert_shown("remedies", f"{rule}, with code {code}", "\n".join(finding.move))


def test_outputs_that_were_reused_are_told(tmp_path: Path) -> None:
    pipeline = Pipeline("shout")

    @pipeline.node(cache=Cache())
    def loud(word: str) -> str:
        return word.upper()

    def remarks() -> list[str]:
        result = pipeline.run(word="tea", settings=Settings(traces=tmp_path))
        return [one.code for one in diagnose(Journal(result.files.journal)).remarks]

    assert [remarks(), remarks()] == [[], ["diagnosis.outputs-reused"]]
    # As each part of a resumed run records it.
    run = PlantedRun()
    for node in ("plan", "plan", "text"):
        run.instant("reuse", node=node, item=None)
    (remark,) = diagnose(run.journal(tmp_path)).remarks
    assert "2 calls of 'plan' and 'text'" in str(remark)


def test_a_loop_without_a_draft_that_passed_is_told(tmp_path: Path) -> None:
    run = PlantedRun()
    # The second loop was killed in its first round, and resumed.
    for key, passes in (("a#1", (False, False)), ("b#1", (False,)), ("b#1", (False, True))):
        loop = run.span("wiggum", 0, 9, run.root, key=key)
        for number, passed in enumerate(passes):
            run.round(loop, composite=5.0 + number, passed=passed)

    (remark,) = diagnose(run.journal(tmp_path)).remarks
    assert remark.code == "diagnosis.loops-not-passed"
    assert "1 of 2 loops" in str(remark)
    assert "scored 5, 6 points" in str(remark)


# --- runs that did not end well --------------------------------------------------------------


def test_a_run_that_ended_in_an_error_of_its_own_is_not_called_healthy(tmp_path: Path) -> None:
    run = PlantedRun()
    run.node("whole", 0, 10)
    failed = run.node("divide", 10, 5, status="error", error="ZeroDivisionError: division by zero")
    for _ in range(2):
        run.span("chat", 10, 5, run.root, model="small", status="unfinished")

    journal = run.journal(tmp_path, ended="error", error="NodeFailed: node 'divide' failed")
    (finding,) = diagnose(journal).findings

    assert (finding.rule, finding.severity) == ("failed-run", "error")
    assert "node 'divide' failed" in finding.seen
    assert finding.spans == (failed,)


def test_a_failed_call_explains_the_failed_run(tmp_path: Path) -> None:
    journal = planted.out_of_memory_at_start().journal(tmp_path, ended="error")

    assert [one.rule for one in diagnose(journal).findings] == ["out-of-memory"]


def test_a_killed_run_is_diagnosed_as_far_as_it_got(tmp_path: Path) -> None:
    diagnosis = diagnose(planted.cold_start().journal(tmp_path, ended=None))

    assert diagnosis.status == "unfinished"
    assert [(finding.rule, finding.severity) for finding in diagnosis.findings] == [
        ("cold-start", "hint"),
        ("failed-run", "hint"),
    ]


def test_calls_beside_many_values_of_a_counter_take_linear_time(tmp_path: Path) -> None:
    ms, records = 1_000_000, list[Record]()
    tokens = {"input_tokens": 20, "output_tokens": 30}
    times = {"ttft_ns": 300 * ms, "itl_mean_ns": 5 * ms}
    for number in range(1, 1001):
        at_ns = number * 500 * ms
        call = span(2 * number, at_ns, at_ns + 490 * ms, name="chat", model="m", **tokens, **times)
        decode_ns = at_ns + 300 * ms, at_ns + 490 * ms
        records += [call, span(2 * number + 1, *decode_ns, parent=call.id, name="decode")]
        waiting = float(number % 3)
        records.append(CounterSet("waiting", "calls", at_ns, waiting, track="server m"))
    journal = write_journal(tmp_path / "run.jsonl", *records)
    begun_s = process_time()
    diagnose(journal)
    # Each call read all values of the counter three times: 14 s.
    assert process_time() - begun_s < 3


def test_a_cancelled_run_has_no_findings_for_it(tmp_path: Path) -> None:
    run = PlantedRun()
    call = run.span("chat", 0, 900, run.root, model="small", status="cancelled")
    run.span("load", 0, 900, call, model="small", status="cancelled")

    diagnosis = diagnose(run.journal(tmp_path, ended="cancelled"))

    assert (diagnosis.status, diagnosis.findings) == ("cancelled", ())


def test_a_remedy_names_an_endpoint_as_toml_needs_it() -> None:
    tags = {tag: Server(model=tag).filled("[endpoints.{tag}]") for tag in ("small", "qwen2.5")}
    assert tags == {"small": "[endpoints.small]", "qwen2.5": '[endpoints."qwen2.5"]'}
