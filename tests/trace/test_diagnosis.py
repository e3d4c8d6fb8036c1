"""Runs with one fault planted in them, runs without any, and real ones: what is said of each."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import get_args

import planted_runs
import pytest
from planted_runs import FAULTS, HEALTHY, Make, PlantedRun
from sample_runs import record_eventful_run

from harness.inference.endpoint import BackendName
from harness.session import Pipeline
from harness.trace import Journal, RunEnded, RunStarted
from harness.trace.diagnosis import LAYERS, RULES, Finding, diagnose
from harness.trace.diagnosis.client import PLACES
from harness.trace.diagnosis.compliance import ENFORCING
from harness.trace.diagnosis.moves import MOVES, WHERE, Aim, moves
from harness.trace.diagnosis.observed import Server
from harness.trace.journal_line import encode

RECORDED = Path(__file__).parent / "recorded_runs"
RECORDED_RUNS: list[tuple[str, set[str], set[str]]] = [
    ("cold_start", {"cold-start"}, set()),
    ("swap_thrash", {"swap-thrash"}, {"cold-start"}),
    ("drifting_prefix", {"drifting-prefix"}, set()),
    ("steady_prefix", set(), {"cold-start"}),
    ("revise_loop", set(), {"cold-start"}),
    ("serial_client", {"serial-client"}, set()),
    ("parallel_client", set(), set()),
    ("queueing", {"queueing"}, set()),
]
"""Made by record_runs.py: what must be said of each, and what may be."""


def found(run: PlantedRun, directory: Path) -> dict[str, Finding]:
    return {finding.rule: finding for finding in diagnose(run.journal(directory)).findings}


@pytest.mark.parametrize(
    ("make", "rule", "beside"), [pytest.param(*fault, id=fault[0].__name__) for fault in FAULTS]
)
def test_the_planted_fault_is_named_and_no_other(
    make: Make, rule: str, beside: set[str], tmp_path: Path
) -> None:
    findings = found(make(), tmp_path)

    assert rule in findings
    assert findings.keys() <= {rule} | beside


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


def test_recorded_runs_are_small_and_tell_nothing_of_their_machine() -> None:
    paths = {path.stem: path for path in RECORDED.glob("*.jsonl")}

    assert paths.keys() == {name for name, _, _ in RECORDED_RUNS}
    for path in paths.values():
        text = path.read_text(encoding="utf-8")
        assert len(text) < 60_000
        assert not [place for place in ("/tmp", "/home", "/root", "/work") if place in text]


def test_every_rule_has_a_run_in_which_it_is_the_planted_fault() -> None:
    # A run that did not end has no calls to plant anything in: see below.
    assert {rule for _, rule, _ in FAULTS} | {"failed-run"} == RULES.keys()


@pytest.mark.parametrize("make", [fault[0] for fault in FAULTS], ids=lambda make: make.__name__)
def test_a_finding_says_what_it_means_where_to_look_and_what_to_change(
    make: Make, tmp_path: Path
) -> None:
    run = make()
    journal = run.journal(tmp_path)
    spans = {span.id for span in journal.spans()}

    for finding in diagnose(journal).findings:
        assert finding.rule in RULES
        assert finding.layer in LAYERS
        assert finding.seen.endswith(".") or finding.severity == "error"
        assert finding.meaning.endswith(".")
        assert finding.move
        assert "{" not in "".join(finding.move).replace("each={...}", "")
        assert set(finding.evidence.spans) <= spans
        assert finding.evidence.figures
        assert finding.lost_ns is None or 0 <= finding.lost_ns <= journal.duration_ns


def test_errors_come_first_and_then_what_took_the_most_time(tmp_path: Path) -> None:
    run = planted_runs.swap_thrash()
    run.failed_call(100, 5, "AuthenticationFailed: large: no key", model="large")

    findings = diagnose(run.journal(tmp_path)).findings

    assert [f.rule for f in findings] == ["failed-calls", "swap-thrash", "cold-start"]
    assert (findings[1].lost_ns or 0) > (findings[2].lost_ns or 0)


def test_a_fault_that_costs_next_to_nothing_is_not_worth_saying(tmp_path: Path) -> None:
    run = planted_runs.cold_start()
    assert "cold-start" in found(run, tmp_path)

    run.node("long work", 4000, 80_000)
    assert found(run, tmp_path) == {}


@pytest.mark.parametrize(
    ("backend", "flag"),
    [
        ("embedded", "which needs path too (to small.gguf): more slots (4)"),
        ("llamacpp", "-np"),
        ("vllm", "--max-num-seqs"),
        ("ollama", "OLLAMA_NUM_PARALLEL"),
    ],
)
def test_what_to_change_is_said_in_the_words_of_the_server_in_question(
    backend: str, flag: str, tmp_path: Path
) -> None:
    run = planted_runs.queueing()
    run.endpoint("small", backend=backend, file="small.gguf")

    assert flag in found(run, tmp_path)["queueing"].move[0]


def test_a_server_of_unknown_kind_gets_general_advice(tmp_path: Path) -> None:
    run = planted_runs.queueing()
    run.endpoint("small", backend="litellm")

    assert found(run, tmp_path)["queueing"].move[0].startswith("make fewer calls")


def test_it_is_said_where_calls_queued(tmp_path: Path) -> None:
    server = found(planted_runs.queueing(), tmp_path)["queueing"]
    budget = found(planted_runs.budget_wait(), tmp_path)["budget-wait"]

    assert "in the server, not here" in server.seen
    assert "in this process, not in the server" in budget.seen


def test_a_queue_that_is_only_inferred_is_a_hint(tmp_path: Path) -> None:
    finding = found(planted_runs.queueing_unsaid(), tmp_path)["queueing"]

    assert finding.severity == "hint"
    assert "does not say so" in finding.meaning


def test_a_queue_behind_a_full_kv_cache_needs_room_not_places(tmp_path: Path) -> None:
    finding = found(planted_runs.queueing_for_kv(), tmp_path)["queueing"]

    assert "KV cache 97% full" in finding.seen
    assert "--kv-cache-dtype" in finding.move[0]


def test_calls_that_had_a_place_are_not_told_to_have_more_of_them(tmp_path: Path) -> None:
    finding = found(planted_runs.behind_prefill(), tmp_path)["behind-prefill"]

    assert "At most 3 were there at once, and none waited for a place" in finding.seen
    assert not [move for move in finding.move if "slots" in move]


def test_calls_that_waited_for_a_slot_are_told_so_even_by_the_embedded_engine(
    tmp_path: Path,
) -> None:
    run = planted_runs.behind_prefill()
    run.endpoint("small", backend="embedded", slots=2)

    assert found(run, tmp_path).keys() == {"queueing"}


def test_slow_decoding_names_the_threads_that_are_too_many(tmp_path: Path) -> None:
    finding = found(planted_runs.slow_decode(), tmp_path)["slow-decode"]

    assert "440 ms apart in 8 of 8 calls" in finding.seen
    assert finding.move[0] == "make fewer calls at once"
    assert "threads one less than there are cores (now 2)" in finding.move[1]


def test_slow_calls_that_no_rule_explains_are_not_called_healthy(tmp_path: Path) -> None:
    run = PlantedRun()
    for _ in range(4):
        run.call(0, prefill_ms=900, itl_ms=80)

    diagnosis = diagnose(run.journal(tmp_path))

    assert diagnosis.findings == ()
    assert diagnosis.unexplained is not None
    assert diagnosis.unexplained.code == "diagnosis.slowness-unexplained"


def test_slow_calls_are_unexplained_although_something_else_was_found(tmp_path: Path) -> None:
    run = PlantedRun()
    run.call(0, load_ms=3000, prefill_ms=900)
    run.call(0, wait_ms=3000, prefill_ms=900)

    diagnosis = diagnose(run.journal(tmp_path))

    assert [finding.rule for finding in diagnosis.findings] == ["cold-start"]
    assert diagnosis.unexplained is not None


def test_slowness_that_a_finding_explains_is_not_said_again(tmp_path: Path) -> None:
    assert diagnose(planted_runs.slow_decode().journal(tmp_path)).unexplained is None


@pytest.mark.parametrize(
    ("make", "count"),
    [(planted_runs.loop_without_texts, 1), (planted_runs.chain_in_one_function, 0)],
    ids=["not recorded", "recorded"],
)
def test_what_texts_would_have_told_is_not_examined_without_them(
    make: Make, count: int, tmp_path: Path
) -> None:
    assert len(diagnose(make().journal(tmp_path)).not_examined) == count


def test_calls_whose_latencies_are_not_known_are_not_called_fast(tmp_path: Path) -> None:
    run = PlantedRun()
    run.span("chat", 0, 4000, run.root, model="small")

    (missing,) = diagnose(run.journal(tmp_path)).not_examined

    assert missing.code == "diagnosis.latency-unknown"


def test_the_embedded_engine_promises_no_gain_from_calls_at_once(tmp_path: Path) -> None:
    embedded = found(planted_runs.serial_loop("embedded"), tmp_path)["serial-client"]
    server = found(planted_runs.serial_loop("vllm"), tmp_path)["serial-client"]

    assert (embedded.severity, embedded.lost_ns) == ("hint", None)
    assert "saved" not in embedded.seen
    assert "costs it little more" not in embedded.meaning
    assert server.severity == "warning"
    assert "could have saved up to" in server.seen


def test_threads_are_not_to_be_raised_where_they_are_all_but_one(tmp_path: Path) -> None:
    run = planted_runs.prefill_bound()
    run.endpoint("small", backend="embedded")
    assert "threads" not in "".join(found(run, tmp_path)["prefill-bound"].move)

    run.endpoint("small", backend="embedded", threads=1)
    assert "more threads (now 1)" in found(run, tmp_path)["prefill-bound"].move[-1]


def test_a_call_that_queued_is_named_beside_slow_prompts(tmp_path: Path) -> None:
    run = PlantedRun()
    run.endpoint("small", backend="embedded")
    for number in range(5):
        queue_ms, prefill_ms = (2000, 900) if number == 2 else (8, 2600)
        run.call(0, queue_ms=queue_ms, prefill_ms=prefill_ms, input_tokens=600)

    assert "1 of 5 mostly in a queue" in found(run, tmp_path)["prefill-bound"].seen


def test_only_nodes_that_began_late_count_as_waiting(tmp_path: Path) -> None:
    finding = found(planted_runs.idle_device(), tmp_path)["idle-device"]

    assert finding.evidence.figures["waiting_node_calls"] == 8
    assert "16 calls of nodes run at once" in finding.meaning


def test_places_are_as_many_as_a_pipeline_has() -> None:
    assert inspect.signature(Pipeline).parameters["parallel_calls"].default == PLACES


def test_models_that_push_each_other_out_are_told_how_much_room_they_need(tmp_path: Path) -> None:
    finding = found(planted_runs.swap_thrash(), tmp_path)["swap-thrash"]

    assert '[budget] capacity = "300 MiB"' in finding.move[0]
    assert finding.evidence.figures["reloads"] == 4


def test_models_of_a_gpu_are_told_how_much_of_it_they_need(tmp_path: Path) -> None:
    run = planted_runs.swap_thrash()
    for model in ("small", "large"):
        run.endpoint(model, backend="llama-cpp-python", device="gpu0")

    finding = found(run, tmp_path)["swap-thrash"]

    assert '[budget.devices.gpu0] capacity = "300 MiB"' in finding.move[0]


def test_what_is_kept_free_comes_on_top_of_the_room_they_need(tmp_path: Path) -> None:
    run = planted_runs.swap_thrash()
    run.device("machine", capacity_bytes=100 << 20, reserve_bytes=50 << 20)

    finding = found(run, tmp_path)["swap-thrash"]

    assert '[budget] capacity = "350 MiB"' in finding.move[0]


def test_loads_made_ahead_that_nobody_waits_for_cost_nothing(tmp_path: Path) -> None:
    run = planted_runs.PlantedRun()
    at_ms = 0
    for turn in range(6):
        model, other = ("small", "large") if turn % 2 else ("large", "small")
        run.span("load", at_ms, 900, model=other, need_bytes=1, prefetch=True)
        at_ms = run.call(at_ms, model=model, tokens=100).end_ms

    assert found(run, tmp_path) == {}


def test_no_gateway_is_suspected_between_a_run_and_a_model_in_its_own_process(
    tmp_path: Path,
) -> None:
    run = planted_runs.idle_server()
    assert "idle-device" in found(run, tmp_path)

    run.endpoint("small", backend="embedded")
    assert "idle-device" not in found(run, tmp_path)


def test_the_place_where_prompts_begin_to_differ_is_shown(tmp_path: Path) -> None:
    finding = found(planted_runs.drifting_prefix(), tmp_path)["drifting-prefix"]

    assert "line 2, character 10: 'It is 10:07.' became 'It is 10:17.'" in finding.seen
    assert "0 of their 4800 tokens were cached" in finding.seen


def test_without_texts_a_drifting_prefix_is_a_hint_that_shows_nothing(tmp_path: Path) -> None:
    findings = found(planted_runs.drifting_prefix(texts=False), tmp_path)

    assert findings["drifting-prefix"].severity == "hint"
    assert "not recorded" in findings["drifting-prefix"].meaning


def test_where_the_server_does_not_count_cached_tokens_the_texts_still_tell(
    tmp_path: Path,
) -> None:
    finding = found(planted_runs.drifting_prefix(cached_tokens=None), tmp_path)["drifting-prefix"]

    assert "the server does not say" in finding.seen


def test_texts_that_no_server_counts_and_nobody_recorded_tell_nothing(tmp_path: Path) -> None:
    run = planted_runs.drifting_prefix(texts=False, cached_tokens=None)

    assert found(run, tmp_path).keys() == {"prefill-bound"}


def test_calls_of_one_function_are_not_called_serial_when_their_texts_are_unknown(
    tmp_path: Path,
) -> None:
    assert "serial-client" not in found(planted_runs.loop_without_texts(), tmp_path)


def test_a_chain_that_only_repeats_what_it_was_given_is_still_a_chain(tmp_path: Path) -> None:
    """A model may reply with a piece of its prompt, round after round."""
    run = PlantedRun()
    node, at_ms, text = run.node("chain", 0, 3000), 0, "nothing yet"
    for number in range(10):
        prompt = f"{planted_runs.DOCUMENT}\n\nSo far: {text}\n\nIt is {number} o'clock. Go on."
        text = "Line 3 of the handbook says what to do in case 3."
        at_ms = run.call(at_ms, parent=node, prompt=prompt, reply=text).end_ms

    assert found(run, tmp_path) == {}


def test_replies_taken_from_a_shared_document_do_not_make_a_chain(tmp_path: Path) -> None:
    run = PlantedRun()
    node, at_ms = run.node("answers", 0, 3000), 0
    for number in range(10):
        prompt = f"{planted_runs.DOCUMENT}\n\nWhat about case {number}?"
        reply = f"Line {number} of the handbook says what to do in case {number}."
        at_ms = run.call(at_ms, parent=node, prompt=prompt, reply=reply).end_ms

    assert found(run, tmp_path).keys() == {"serial-client"}


def test_a_run_that_ended_in_an_error_of_its_own_is_not_called_healthy(tmp_path: Path) -> None:
    path = tmp_path / "failed.jsonl"
    started = RunStarted(1, "20260102T030405Z-00", "planted", 0, 0, 1)
    ended = RunEnded(5, "error", "NodeFailed: node 'text' failed: division by zero")
    path.write_bytes(encode(started) + encode(ended))

    (finding,) = diagnose(Journal(path)).findings

    assert finding.rule == "failed-run"
    assert "division by zero" in finding.seen


def test_a_failed_run_shows_the_node_that_failed(tmp_path: Path) -> None:
    run = PlantedRun()
    run.node("whole", 0, 10)
    failed = run.node("divide", 10, 5, status="error", error="ZeroDivisionError: division by zero")

    (finding,) = diagnose(run.journal(tmp_path, ended="error")).findings

    assert finding.rule == "failed-run"
    assert finding.evidence.spans == (failed,)


def test_how_the_run_ended_is_part_of_its_diagnosis(tmp_path: Path) -> None:
    run = PlantedRun()
    call = run.span("chat", 0, 900, run.root, model="small", status="cancelled")
    run.span("load", 0, 900, call, model="small", status="cancelled")

    diagnosis = diagnose(run.journal(tmp_path, ended="cancelled"))

    assert (diagnosis.status, diagnosis.findings) == ("cancelled", ())
    assert diagnosis.run_id == "20260102T030405Z-00"


def test_a_killed_run_is_diagnosed_as_far_as_it_got(tmp_path: Path) -> None:
    planted_runs.cold_start().journal(tmp_path)
    path = tmp_path / "planted.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))

    findings = diagnose(Journal(path)).findings

    assert [finding.rule for finding in findings] == ["cold-start", "failed-run"]
    assert findings[1].severity == "hint"


def test_a_failed_call_explains_the_failed_run(tmp_path: Path) -> None:
    journal = planted_runs.out_of_memory_at_start().journal(tmp_path)
    lines = journal.path.read_bytes().splitlines(keepends=True)
    journal.path.write_bytes(b"".join(lines[:-1]) + encode(RunEnded(9, "error", "NodeFailed: …")))

    assert [finding.rule for finding in diagnose(Journal(journal.path)).findings] == [
        "out-of-memory-at-start"
    ]


def test_a_schema_that_was_ignored_is_worse_than_one_that_was_advice(tmp_path: Path) -> None:
    ignored = found(planted_runs.schema_ignored(), tmp_path)["schema-not-enforced"]
    advisory = found(planted_runs.schema_advisory(), tmp_path)["schema-not-enforced"]

    assert (ignored.severity, advisory.severity) == ("warning", "hint")
    assert "3 calls to 'small' had a schema, of which the server took no notice" in ignored.seen
    assert "Triton takes no schema" in ignored.move[0]
    assert "guided_decoding_backend" in advisory.move[0]


@pytest.mark.parametrize(
    ("dropped", "temperature", "severity"),
    [
        pytest.param(["temperature"], 0, "warning", id="no longer greedy"),
        pytest.param(["seed"], 0.7, "warning", id="sampled without its seed"),
        pytest.param(["seed"], 0, "hint", id="greedy, seed or no seed"),
        pytest.param(["logprobs", "top_logprobs"], 0.7, "hint", id="something is not told"),
    ],
)
def test_a_dropped_field_matters_if_it_decides_what_is_written(
    dropped: list[str], temperature: float, severity: str, tmp_path: Path
) -> None:
    run = PlantedRun()
    run.endpoint("small", backend="openai")
    run.call(0, dropped=dropped, temperature=temperature)

    finding = found(run, tmp_path)["dropped-fields"]

    assert finding.severity == severity
    assert ("cannot be repeated" in finding.meaning) == (severity == "warning")
    assert "refuses them" in finding.meaning


def test_a_field_that_the_settings_drop_can_be_sent_again(tmp_path: Path) -> None:
    run = PlantedRun()
    run.endpoint("small", backend="openai", drop=["seed"])
    run.call(0, dropped=["seed"], temperature=1.0)

    finding = found(run, tmp_path)["dropped-fields"]

    assert finding.meaning.startswith("Its settings say so")
    assert finding.move[0] == "take 'seed' out of drop under [endpoints.small]"


def test_a_wait_for_a_turn_is_not_a_wait_for_memory(tmp_path: Path) -> None:
    finding = found(planted_runs.turns(), tmp_path)["max-concurrency"]

    assert "4 of 6 calls to 'small' waited here for their turn, up to 900 ms" in finding.seen
    assert finding.evidence.figures["max_concurrency"] == 2
    assert finding.severity == "warning"
    assert "(now 2)" in finding.move[0]


def test_whether_a_limit_is_too_low_is_a_hint_where_the_server_tells_nothing(
    tmp_path: Path,
) -> None:
    finding = found(planted_runs.turns_unsaid(), tmp_path)["max-concurrency"]

    assert finding.severity == "hint"
    assert "it does not say" in finding.seen


def test_a_call_that_another_endpoint_answered_has_not_failed_for_good(tmp_path: Path) -> None:
    findings = found(planted_runs.fell_back(), tmp_path)

    assert findings.keys() == {"fallbacks"}
    assert (
        "2 calls to 'small' went to 'large' instead (2 for Overloaded)"
        in findings["fallbacks"].seen
    )
    assert "--max-num-seqs" in "".join(findings["fallbacks"].move)


def test_in_a_chain_of_fallbacks_each_failure_is_its_own_endpoints(tmp_path: Path) -> None:
    run = PlantedRun()
    run.endpoint("small", backend="vllm", fallback=["middle", "large"])
    at_ms = run.failed_call(0, 300, "Overloaded: small: full").end_ms
    run.fallback(at_ms, "middle", "Overloaded")
    at_ms = run.failed_call(
        at_ms, 30, "AuthenticationFailed: middle: no key", model="middle"
    ).end_ms
    run.fallback(at_ms, "large", "AuthenticationFailed")
    run.call(at_ms, model="large")

    findings = found(run, tmp_path)

    assert findings.keys() == {"fallbacks"}
    assert findings["fallbacks"].seen.startswith("1 call to 'small' went to 'middle'")


def test_when_nobody_answered_the_last_failure_is_for_good(tmp_path: Path) -> None:
    run = PlantedRun()
    run.endpoint("small", backend="vllm", fallback=["large"])
    at_ms = run.failed_call(0, 300, "Overloaded: small: full").end_ms
    run.fallback(at_ms, "large", "Overloaded")
    run.failed_call(at_ms, 30, "ServerError: large: HTTP 500", model="large")

    findings = found(run, tmp_path)

    assert findings.keys() == {"failed-calls", "fallbacks"}
    assert findings["failed-calls"].model == "large"


def test_an_endpoint_out_of_reach_is_one_finding_with_all_that_it_led_to(tmp_path: Path) -> None:
    alone = found(planted_runs.out_of_reach(), tmp_path)
    replaced = found(planted_runs.out_of_reach(fallback=True), tmp_path)

    assert alone.keys() == replaced.keys() == {"out-of-reach"}
    assert alone["out-of-reach"].severity == "error"
    assert "5 failed or were not even sent, of which 0 went" in alone["out-of-reach"].seen
    assert "name an endpoint to ask instead" in alone["out-of-reach"].move[-1]
    assert replaced["out-of-reach"].severity == "warning"
    assert "of which 5 went to another endpoint" in replaced["out-of-reach"].seen


def test_an_endpoint_that_came_back_says_until_when_it_was_gone(tmp_path: Path) -> None:
    run = planted_runs.out_of_reach()
    run.circuit("closed", 7000, open_s=5.6)
    run.call(7000)

    finding = found(run, tmp_path)["out-of-reach"]

    assert finding.severity == "warning"
    assert "until 7.0 s" in finding.seen


def test_every_endpoint_that_was_out_of_reach_is_named(tmp_path: Path) -> None:
    run = planted_runs.out_of_reach()
    run.failed_call(900, 40, "CallTimeout: large: no answer within 5 s", model="large")
    run.circuit("opened", 940, model="large", reason="CallTimeout")

    findings = found(run, tmp_path)

    assert findings.keys() == {"out-of-reach"}
    assert "So it was with 'large'." in findings["out-of-reach"].seen


def test_drafts_that_are_thrown_away_are_counted(tmp_path: Path) -> None:
    finding = found(planted_runs.rejected_drafts(), tmp_path)["rejected-drafts"]

    assert "accepted 120 of 810 drafted tokens (15%), in 3 calls" in finding.seen
    assert "--spec-draft-n-max" in finding.move[0]


@pytest.mark.parametrize(
    ("backend", "flag"),
    [
        ("llamacpp", "--spec-draft-p-min"),
        ("vllm", "start vLLM with a smaller --spec-tokens"),
        ("sglang", "--speculative-num-draft-tokens"),
        ("tgi", "--speculate"),
        ("tensorrt-llm", "max_draft_len"),
        ("tabbyapi", "in TabbyAPI's config.yml: draft_mode"),
        ("mlc", "--speculative-mode"),
    ],
)
def test_a_draft_is_mended_in_the_words_of_its_server(
    backend: str, flag: str, tmp_path: Path
) -> None:
    run = planted_runs.rejected_drafts()
    run.endpoint("small", backend=backend)

    assert flag in "".join(found(run, tmp_path)["rejected-drafts"].move)


AIMS = get_args(Aim)
BACKENDS = get_args(BackendName)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_gets_flags_of_its_own_or_none(backend: str) -> None:
    said = {aim: moves(aim, Server(tag="small", backend=backend)) for aim in AIMS}

    knows_flags = any(said.values())
    assert knows_flags == (backend in WHERE)
    for text in (move for some in said.values() for move in some):
        assert "{" not in text
        assert "TabbyAPI" in text or backend != "tabbyapi"


def test_flags_are_only_for_backends_that_there_are() -> None:
    assert {backend for table in MOVES.values() for backend in table} == WHERE.keys()
    assert WHERE.keys() <= set(BACKENDS)
    assert ENFORCING.keys() <= set(BACKENDS)


def test_an_engine_in_this_process_is_not_called_a_server_with_places(tmp_path: Path) -> None:
    run = planted_runs.queueing_unsaid()
    run.endpoint("small", backend="llama-cpp-python")

    assert 'backend = "embedded"' in found(run, tmp_path)["queueing"].move[0]
    assert found(planted_runs.serial_loop("llama-cpp-python"), tmp_path) == {}


def test_a_reply_from_the_cache_is_not_called_a_call_without_latency(tmp_path: Path) -> None:
    run = PlantedRun()
    for _ in range(3):
        run.cached_call(5)

    assert diagnose(run.journal(tmp_path)).not_examined == ()


def test_work_that_waits_while_texts_are_embedded_is_no_idle_device(tmp_path: Path) -> None:
    run = planted_runs.idle_device()
    run.span("embed", 101, 5000, run.root, model="small", texts=900)

    assert "idle-device" not in found(run, tmp_path)


def test_a_damaged_file_is_not_taken_for_want_of_memory(tmp_path: Path) -> None:
    run = PlantedRun()
    run.failed_call(0, 5, "ModelFileInvalid: a.gguf: there is no such file; set path")

    (finding,) = diagnose(run.journal(tmp_path)).findings

    assert finding.rule == "failed-calls"
    assert finding.move == ("check path under [endpoints.small]",)


def test_a_run_whose_spans_lack_what_calls_usually_have_is_read_all_the_same(
    tmp_path: Path,
) -> None:
    trace = record_eventful_run(tmp_path)
    journal = trace.journal()
    assert journal is not None

    diagnose(journal)


def test_figures_are_numbers_that_json_can_hold(tmp_path: Path) -> None:
    for make, _, _ in FAULTS:
        for finding in diagnose(make().journal(tmp_path)).findings:
            json.dumps(dict(finding.evidence.figures), allow_nan=False)
