"""The patterns: what each promises holds, whatever its model says."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx2
import pytest
from demo import ROOT
from sample_runs import load_run
from scripted_judge import judge, judge_by

from harness import (
    ChatRequest,
    Endpoint,
    Evaluation,
    HarnessError,
    Journal,
    NodeFailed,
    RunResult,
    ScriptedBackend,
    ScriptedReply,
    Settings,
    ToolCall,
)
from harness.analysis.training import TrainingRows
from harness.cli.project_files import load_evaluated, load_pipeline
from harness.session.settings import MemorySettings

PATTERNS = ROOT / "patterns"
VLLM_URL = os.environ.get("HARNESS_TEST_VLLM_URL", "")

# Not on the path of modules: a pattern may have the name of one.
_spec = importlib.util.spec_from_file_location("patterns_gallery", PATTERNS / "gallery.py")
assert _spec is not None
assert _spec.loader is not None
gallery = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = gallery
_spec.loader.exec_module(gallery)

CATALOGUE = gallery.catalogue()
ALL = [pytest.param(one, id=one.file) for one in CATALOGUE]
QUICK = [
    pytest.param(one, id=one.file, marks=pytest.mark.slow if one.file == "mcp_tools" else ())
    for one in CATALOGUE
]
LONG = {"convergence_detector", "dag_orchestrator", "data_flywheel", "dimensional_rubric"}
"""On the demo's model these take as long as all others; `make test-nightly` runs them too."""
ON_THE_DEMO = [
    pytest.param(one, id=one.file) for one in CATALOGUE if one.file not in gallery.JUDGED | LONG
]


class Ran:
    """A pattern that was run on scripted models."""

    def __init__(
        self,
        name: str,
        traces: Path,
        producer: Callable[[ChatRequest], str | ScriptedReply] = gallery.reply,
        *,
        settings: Settings | None = None,
        evaluator: ScriptedBackend | None = None,
        delay_s: float = 0.0,
        **inputs: object,
    ) -> None:
        self.model = ScriptedBackend(producer, delay_s=delay_s)
        judges = {} if evaluator is None else {"evaluator": evaluator}
        self.result: RunResult = load_pipeline(str(PATTERNS / f"{name}.py")).run(
            inputs,
            settings=(settings or Settings()).model_copy(update={"traces": traces}),
            backends={"producer": self.model, **judges},
        )

    @property
    def output(self) -> Any:
        return self.result.result

    @property
    def prompts(self) -> list[str]:
        return [request.messages[-1].content for request in self.model.requests]


# --- all of them --------------------------------------------------------------------------------


def test_every_name_of_the_series_and_of_the_field_has_a_pattern() -> None:
    names = " ".join(f"{one.names} {one.also}" for one in CATALOGUE).lower()
    series = ["a1", "a2", "a3", "a4", "b1", "b2", "b3", "b4", "c1", "c2", "c3", "c5", "d1"]
    series += ["f1", "f2", "f3", "g1", "g4"]
    field = ["prompt chain", "router", "parallel vote", "human gate", "map-reduce", "llm panel"]
    field += ["orchestrator-workers", "evaluator-optimizer", "react agent", "tools over mcp"]
    assert [name for name in [*series, *field] if name not in names] == []


def test_the_evaluation_set_gives_a_mean_over_rows_and_epochs(tmp_path: Path) -> None:
    evaluation = load_evaluated(str(PATTERNS / "evaluation_set.py"))
    assert isinstance(evaluation, Evaluation)
    replies = cycle(["2 * 3 = 6", "It is 6, as far as I can tell."])
    model = ScriptedBackend(lambda _: next(replies))
    done = evaluation.run(
        settings=Settings(traces=tmp_path), backends={"producer": model}, max_parallel=1
    )
    assert len(model.requests) == 12
    assert {score.name: (score.rows, score.mean) for score in done.scores} == {
        "number": (4, 0.25),
        "brief": (4, 0.0),
    }
    assert done.score("number").groups == 2


@pytest.mark.parametrize("one", ALL)
def test_its_code_has_at_most_60_lines(one: Any) -> None:
    text = (PATTERNS / f"{one.file}.py").read_text(encoding="utf-8")
    end = ast.parse(text).body[0].end_lineno
    assert len("\n".join(text.splitlines()[end:]).strip().splitlines()) <= 60


def test_the_page_is_made_of_the_files_as_they_are() -> None:
    assert (PATTERNS / "README.md").read_text(encoding="utf-8") == gallery.page(), (
        "python patterns/gallery.py --readme writes it"
    )


def test_each_has_a_picture_that_loads_quickly() -> None:
    sizes = {path.stem: path.stat().st_size for path in gallery.PICTURES.glob("*.png")}
    assert sizes.keys() == {one.file for one in CATALOGUE}
    assert [name for name, size in sizes.items() if size > 45_000] == []


@pytest.mark.parametrize("one", QUICK)
def test_it_finishes_on_scripted_models(one: Any, tmp_path: Path) -> None:
    settings = gallery.for_scripts(one, Settings(traces=tmp_path))
    row = gallery.row(one, settings, gallery.scripted())
    assert row.is_ok, row.outcome


@pytest.mark.slow
@pytest.mark.parametrize("one", ON_THE_DEMO)
def test_it_finishes_on_the_demos_model(one: Any, tmp_path: Path) -> None:
    row = gallery.row(one, Settings(traces=tmp_path), None)
    assert row.is_ok, row.outcome


@pytest.mark.parametrize("name", sorted(gallery.JUDGED))
def test_what_needs_a_judge_says_what_to_configure(name: str, tmp_path: Path) -> None:
    with pytest.raises(HarnessError) as refused:
        Ran(name, tmp_path)
    assert refused.value.code == "roles.unassigned"


@pytest.mark.slow
@pytest.mark.skipif(not VLLM_URL, reason="HARNESS_TEST_VLLM_URL names no running vLLM")
@pytest.mark.parametrize("name", sorted(gallery.JUDGED))
def test_judges_judge_what_a_model_of_a_real_vllm_wrote(name: str, tmp_path: Path) -> None:
    # The other way round it takes minutes: so small a judge fills its reply with white space.
    (one,) = [one for one in CATALOGUE if one.file == name]
    served = httpx2.get(f"{VLLM_URL}/v1/models").json()["data"][0]["id"]
    writer = Endpoint(tag="producer", backend="vllm", url=f"{VLLM_URL}/v1", model_id=served)
    settings = Settings(traces=tmp_path, endpoints={"producer": writer})
    judges = {tag: judge(9) for tag in ("judge-a", "judge-b")}
    row = gallery.row(one, gallery.for_scripts(one, settings), judges)
    assert row.is_ok, row.outcome
    assert row.calls >= (2 if name == "evaluator_pool" else 3), "near the threshold, judges repeat"


# --- models -------------------------------------------------------------------------------------


def test_the_shim_asks_each_role_through_the_same_door(tmp_path: Path) -> None:
    planner = ScriptedBackend(gallery.reply)
    result = load_pipeline(str(PATTERNS / "inference_shim.py")).run(
        settings=Settings(traces=tmp_path),
        backends={"producer": ScriptedBackend(gallery.reply), "planner": planner},
    )
    assert [answer.role for answer in result.outputs["answers"]] == ["producer", "planner"]
    assert [request.role for request in planner.requests] == ["planner"]


def test_no_model_is_let_judge_its_own_text(tmp_path: Path) -> None:
    own = Settings(roles={"producer": "producer", "evaluator": "producer"})
    with pytest.raises(HarnessError) as refused:
        Ran("role_separation", tmp_path, settings=own)
    assert refused.value.code == "roles.same-model"


def test_the_pool_draws_by_the_task(tmp_path: Path) -> None:
    (one,) = [one for one in CATALOGUE if one.file == "evaluator_pool"]
    settings = gallery.for_scripts(one, Settings(traces=tmp_path))
    pipeline = load_pipeline(str(PATTERNS / "evaluator_pool.py"))

    def drawn(task: str) -> str:
        run = pipeline.run({"task": task}, settings=settings, backends=gallery.scripted())
        assert run.evaluator_pool is not None
        return run.evaluator_pool.drawn

    tasks = [f"What is slot {number}?" for number in range(6)]
    first = [drawn(task) for task in tasks]
    assert set(first) == {"judge-a", "judge-b"}
    assert [drawn(task) for task in tasks] == first


def test_all_members_of_the_panel_judge_and_the_median_counts(tmp_path: Path) -> None:
    (one,) = [one for one in CATALOGUE if one.file == "llm_panel"]
    result = load_pipeline(str(PATTERNS / "llm_panel.py")).run(
        settings=gallery.for_scripts(one, Settings(traces=tmp_path)),
        backends={
            "producer": ScriptedBackend(gallery.reply),
            "judge-a": judge(4),
            "judge-b": judge(9),
        },
    )
    jury: Any = result.result
    assert jury.each["judge-a"] < jury.composite < jury.each["judge-b"]


@pytest.mark.slow
def test_side_by_side_two_models_are_loaded_once_each(tmp_path: Path) -> None:
    (one,) = [one for one in CATALOGUE if one.file == "keep_alive_budget"]
    settings, backends = gallery.for_a_picture(one, Settings(traces=tmp_path))
    result = gallery.run(one, settings, backends)
    loads = [
        span.attributes["model"]
        for span in load_run(result.files.journal).spans
        if span.name == "load" and "reason" in span.attributes  # others are a call's wait for one
    ]
    assert loads == ["writer", "reader"]


# --- context ------------------------------------------------------------------------------------


def test_a_plan_is_made_first_and_each_step_sees_those_before(tmp_path: Path) -> None:
    plan = json.dumps({"answer": ["What is paid?", "What is saved?", "Who does it?"]})
    notes = iter(["Note 1.", "Note 2.", "Note 3.", "The answer."])
    ran = Ran("planner_first", tmp_path, lambda r: plan if r.reply_schema else next(notes))
    assert len(ran.prompts) == 1 + 3 + 1
    assert "Note 1." in ran.prompts[2]
    assert "Note 2." in ran.prompts[3]
    assert ran.output == "The answer."


def test_the_gate_ends_the_search_at_the_first_batch_that_adds_nothing(tmp_path: Path) -> None:
    ran = Ran("novelty_gate", tmp_path)
    names = Counter(span.name for span in load_run(ran.result.files.journal).spans)
    assert names["novelty"] == 3, "of five queries"
    assert names["remember"] == 2 * 2, "the third batch is discarded"


def test_the_gate_lets_new_batches_pass_and_reads_five_at_most(tmp_path: Path) -> None:
    words = ["tea", "mill", "comet", "violin", "harbor", "glacier"]
    corpus = [f"The {word} was {word}-like, as any {word} is on day {word}." for word in words]
    ran = Ran("novelty_gate", tmp_path, queries=words, corpus=corpus)
    names = Counter(span.name for span in load_run(ran.result.files.journal).spans)
    assert names["novelty"] == 5


def test_meaning_finds_what_words_miss(tmp_path: Path) -> None:
    found: Any = Ran("dual_backend_memory", tmp_path).result.outputs["found"]
    assert "Runbook > It does not restart" not in found["lexical"]
    assert "Runbook > It does not restart" in found["hybrid"]
    assert "Runbook > E4711" in found["hybrid"]


def test_chosen_passages_stand_in_the_order_of_the_document(tmp_path: Path) -> None:
    (prompt,) = Ran("semantic_chunker", tmp_path).prompts
    assert re.findall(r"> (\w+)\n", prompt) == ["Abstract", "Methods", "Results"]


# --- evaluation ---------------------------------------------------------------------------------


def test_the_loop_returns_the_best_draft_and_not_the_last(tmp_path: Path) -> None:
    good = "A cold start happens when a request arrives before its model is in memory."
    drafts = iter([f"{good} It is", "It is. It is. It is", "Then 99 of them. Then"])
    ran = Ran("wiggum_loop", tmp_path, lambda _: next(drafts, "Then"))
    assert ran.output == f"{good} It is"


def test_sections_that_no_dimension_criticized_stay_byte_for_byte(tmp_path: Path) -> None:
    ran = Ran(
        "dimensional_rubric", tmp_path, lambda _: "Quantization stores weights with fewer bits."
    )
    assert ran.output.changed == ["Quantization"]
    draft = sys.modules["harness_pipeline_dimensional_rubric"].DRAFT
    assert ran.output.text.startswith(draft.partition("TODO")[0])


def test_the_reviser_reads_an_outline_and_the_rest_comes_back_as_it_was(tmp_path: Path) -> None:
    said = "Ask the night shift before a restart, which takes four minutes; queues are kept."
    ran = Ran("surgical_compressor", tmp_path, lambda _: said)
    draft = sys.modules["harness_pipeline_surgical_compressor"].DRAFT
    (outline,) = re.findall(r"it says \[…\]:\n(.+?)\n\n(?:An|What)", ran.prompts[0], re.DOTALL)
    assert len(outline) <= 1_000 < len(draft)
    assert ran.output["unchanged"] == ["Deploying", "Going back", "Reading logs", "On duty"]
    assert said in ran.output["text"]


def test_a_judge_that_prefers_the_bad_anchors_is_not_asked(tmp_path: Path) -> None:
    misled = judge_by(lambda prompt: 10 if re.search("depends|Smith", prompt) else 0)
    ran = Ran("judge_calibration_guard", tmp_path, evaluator=misled)
    assert ran.output.startswith("not judged: it gives a bad anchor as much as a good one")
    assert [skip.node for skip in ran.result.skips] == ["verdict"]


def test_the_guard_passes_a_judge_that_tells_anchors_apart(tmp_path: Path) -> None:
    assert Ran("judge_calibration_guard", tmp_path).output == "10 of 10"


# --- orchestration ------------------------------------------------------------------------------


def test_branches_run_side_by_side_and_the_memo_waits_for_all(tmp_path: Path) -> None:
    ran = Ran("dag_orchestrator", tmp_path, delay_s=0.05)
    calls = [span for span in load_run(ran.result.files.journal).spans if span.name == "chat"]
    together = [
        sum(other.start_ns < one.end_ns and one.start_ns < other.end_ns for other in calls)
        for one in calls
    ]
    assert sorted(together) == [1, 1, 3, 3, 3]


def test_the_chain_ends_at_its_gate(tmp_path: Path) -> None:
    def one_point(request: ChatRequest) -> str:
        choices = request.reply_schema["properties"]["answer"]["items"]["enum"]
        return json.dumps({"answer": [choices[0]] * 3})

    with pytest.raises(NodeFailed, match="one point only") as failed:
        Ran("prompt_chain", tmp_path, one_point)
    assert failed.value.result.spent.calls == 1


@pytest.mark.parametrize("kind", ["billing", "fault", "question"])
def test_the_router_runs_one_branch(kind: str, tmp_path: Path) -> None:
    chosen = json.dumps({"answer": kind})
    ran = Ran("router", tmp_path, lambda r: chosen if r.reply_schema else "Dear customer.")
    skipped = {skip.node for skip in ran.result.skips}
    assert skipped == {"billing", "fault", "question"} - {kind}
    assert len(ran.prompts) == 2
    assert ran.output == "Dear customer."


def test_the_vote_takes_the_majority(tmp_path: Path) -> None:
    votes = iter(["positive", "negative", "negative", "positive", "negative"])
    ran = Ran("parallel_vote", tmp_path, lambda _: json.dumps({"answer": next(votes)}))
    assert (ran.output.answer, ran.output.share) == ("negative", 0.6)
    assert len({request.seed for request in ran.model.requests}) == 5


def test_the_synthesis_reads_what_every_worker_found(tmp_path: Path) -> None:
    plan = [{"worker": "figures", "focus": "costs"}, {"worker": "risks", "focus": "visits"}]
    said = json.dumps({"answer": plan})
    ran = Ran("orchestrator_workers", tmp_path, lambda r: said if r.reply_schema else "So it is.")
    assert len(ran.prompts) == len(plan) + 2
    assert {"figures: So it is.", "risks: So it is."} <= set(ran.prompts[-1].splitlines())


def test_nothing_is_sent_without_a_word_and_nothing_is_asked_twice(tmp_path: Path) -> None:
    pipeline = load_pipeline(str(PATTERNS / "human_gate.py"))
    model = ScriptedBackend(gallery.reply)
    options: Any = {"settings": Settings(traces=tmp_path), "backends": {"producer": model}}
    waiting = pipeline.run(**options)
    assert (waiting.status, waiting.result) == ("waiting", None)
    refused = pipeline.run(resume=waiting.run_id, answers={"approved": "no"}, **options)
    assert refused.result == "not sent"
    assert len(model.requests) == 1


def test_every_document_is_read_once_and_whole(tmp_path: Path) -> None:
    ran = Ran("map_reduce", tmp_path, lambda _: "A certificate.")
    documents = sys.modules["harness_pipeline_map_reduce"].DOCUMENTS
    assert len(ran.prompts) == 6 + 2 + 1
    assert [sum(one in prompt for prompt in ran.prompts) for one in documents] == [1] * 6


def test_the_agent_is_given_what_its_tools_said_and_then_answers(tmp_path: Path) -> None:
    ran = Ran("react_agent", tmp_path)
    assert [call.rpartition(": ")[2] for call in ran.output["calls"]] == ["49", "in stock, 3 days"]
    assert ran.output["stopped"] == "answered"
    assert len(ran.prompts) == 2


def test_the_agent_is_ended_after_so_many_steps(tmp_path: Path) -> None:
    numbers = iter(range(1, 99))

    def calls(_: ChatRequest) -> ScriptedReply:
        arguments = json.dumps({"article": "desk", "count": next(numbers)})
        return ScriptedReply(tool_calls=(ToolCall("call", "price", arguments),))

    ran = Ran("react_agent", tmp_path, calls, max_steps=4)
    assert ran.output["stopped"] == "max_steps"
    assert len(ran.prompts) == 4


@pytest.mark.slow
def test_a_tool_of_another_program_is_called(tmp_path: Path) -> None:
    def counts(request: ChatRequest) -> str | ScriptedReply:
        if request.messages[-1].role == "tool":
            return f"{request.messages[-1].content} days."
        arguments = json.dumps({"first": "2026-03-01", "last": "2026-11-27"})
        return ScriptedReply(tool_calls=(ToolCall("call", "days_between", arguments),))

    assert Ran("mcp_tools", tmp_path, counts).output["text"] == "271 days."


# --- observability, improvement -----------------------------------------------------------------


def test_a_run_leaves_spans_a_line_and_a_timeline(tmp_path: Path) -> None:
    ran = Ran("run_trace", tmp_path)
    assert ran.output == {"spans": 2, "slices in the Chrome trace": 2}
    record = load_run(ran.result.files.journal)
    assert [s.attributes["words"] for s in record.spans if s.name == "count words"] == [15]
    assert ran.result.run_id in ran.result.files.audit_log.read_text(encoding="utf-8")


def test_rounds_become_pairs_and_good_drafts_examples(tmp_path: Path) -> None:
    said = "A slot is a place for one call in the batch of a server."
    facts = {"What is a slot?": f"{said} It has 4."}
    kept = Settings(memory=MemorySettings(path=tmp_path / "memory"))

    def answer(request: ChatRequest) -> str:
        revised = "An earlier version" in request.messages[-1].content
        return f"{said} It has 4 places in the batch of a server." if revised else "It is. It is"

    first = Ran("data_flywheel", tmp_path, answer, settings=kept, facts=facts)
    pairs = TrainingRows("dpo", margin=0.5).of_run(Journal(first.result.files.journal))
    assert len(pairs) == 1
    assert pairs[0]["chosen"] != pairs[0]["rejected"]
    second = Ran("data_flywheel", tmp_path, answer, settings=kept, facts=facts)
    assert [loop.examples for loop in second.output] == [1]


def test_a_loop_that_stalls_gets_more_sources_then_more_tries_then_ends(tmp_path: Path) -> None:
    months = cycle(["April", "June", "July", "May"])
    ran = Ran("convergence_detector", tmp_path, lambda _: f"It takes as long as {next(months)}.")
    assert not ran.output.passed
    assert len(ran.output.loops) == 3
    assert [loop.stop_reason in {"cycle", "plateau"} for loop in ran.result.loops] == [True] * 3
    more = sys.modules["harness_pipeline_convergence_detector"].MORE
    assert more not in ran.prompts[0]
    assert more[:40] in ran.prompts[-1]
