"""How a run judges drafts: a panel, a single verdict, limits, measured noise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sample_runs import load_run
from scripted_judge import judge
from session_runs import (
    BAD,
    GOOD,
    ONE_QUESTION,
    SOURCE,
    codes,
    fail,
    instants_of,
    line_of,
    pipeline_of,
    refused,
    run,
    settings_of,
    spans_of,
)

from harness import Run, ScriptedBackend, Verdict, load_rubric
from harness.errors import ContextOverflow, LimitReached
from harness.inference import ChatRequest, Endpoint, as_messages
from harness.inference.charges import Charges
from harness.rubric import Noise, with_prompts, write_noise
from harness.rubric.calibration.bounds import AtThreshold, RiskAim
from harness.rubric.calibration.calibration_files import Calibration, prompts_digest
from harness.trace import Journal
from harness.wiggum import recorded_loops, rounds_from


@pytest.fixture
def rubric(tmp_path):
    path = tmp_path / "one.yaml"
    path.write_text(ONE_QUESTION)
    return str(path)


def looping(rubric, **more):
    """One loop over a draft that is given."""
    arguments = {"draft": BAD, "sources": [SOURCE], **more}

    async def text(run: Run) -> str:
        return (await run.wiggum("Cold starts?", rubric=rubric, **arguments)).text

    return pipeline_of(text)


def evaluating(rubric, draft=GOOD, **more):
    async def found(run: Run) -> Verdict:
        return await run.evaluate(draft, rubric=rubric, task="Cold starts?", **more)

    return pipeline_of(found)


@pytest.fixture
def judged(tmp_path):
    """Runs it on a writer with these drafts, and evaluators with these scores."""

    def run_it(pipeline, *drafts, fails=False, evaluation=None, **evaluators):
        names = tuple(one for one in evaluators if one != "brief")
        roles = {"producer": "writer", "evaluator": names}
        settings = settings_of(tmp_path, roles=roles, evaluation=evaluation or {})
        run_it.writer = ScriptedBackend(list(drafts))
        run_it.backends = {"writer": run_it.writer, **evaluators}
        return (fail if fails else run)(pipeline, settings, backends=run_it.backends)

    return run_it


# --- the panel -------------------------------------------------------------------------------


def test_a_panel_judges_every_draft_and_what_each_finds_reaches_the_reviser(judged, rubric):
    result = judged(
        looping(rubric),
        GOOD,
        strict=judge(4, 8, reason="The figure is made up."),
        kind=judge(6, 9, reason="The remedy is missing."),
        evaluation={"panel": "mean"},
    )
    first, second = result.loops[0].rounds
    assert (first.verdict.vector["relevance"], second.verdict.vector["relevance"]) == (5, 8.5)
    judges = second.verdict.judges
    assert (judges.evaluators, judges.judgements) == (("strict", "kind"), 2)
    assert judges.combine == "mean"
    (revision,) = judged.writer.requests
    asked = revision.messages[-1].content
    assert "The figure is made up." in asked
    assert "The remedy is missing." in asked
    assert result.evaluator_pool.members == ("strict", "kind")
    assert line_of(result)["evaluator_model"] == "strict, kind"


def test_a_lone_source_is_one_source_and_not_its_letters(judged, rubric):
    asked = []
    for sources in (SOURCE, [SOURCE]):
        strict = judge(9)
        judged(evaluating(rubric, sources=sources), strict=strict)
        asked.append([one.messages for one in strict.requests])

    assert asked[0] == asked[1]
    assert SOURCE in str(asked[0])


def test_no_judge_of_a_loop_reads_more_than_the_limit_however_long_a_source_is(judged, rubric):
    filler = "".join(
        f"# Part {n}\n\nStage {n} has {n * 7} shelves of its kind, as stage {n - 1} has none.\n\n"
        for n in range(700)
    )
    long = f"{filler}# Odds\n\n{SOURCE}"
    strict = judge(4, 9)

    result = judged(looping(rubric, sources=[long]), GOOD, strict=strict)

    assert len(long) > 50_000
    judging = [span for span in spans_of(result, "chat") if span["role"] == "evaluator"]
    assert [span["prompt_chars"] <= 24_000 for span in judging] == [True, True]
    assert [span["compressed"] for span in spans_of(result, "evaluate")] == [True, True]
    # The first draft does not speak of it, but the task does.
    seen = [request.messages[-1].content.count("A cold start takes") for request in strict.requests]
    assert seen == [1, 2]
    # As the journal has it.
    (_, kept) = rounds_from(Journal(result.files.journal))
    assert kept.verdict.judges.sources_shortened.before_chars == len(long)


def test_a_loop_asks_by_the_prompts_that_it_is_given(judged, rubric):
    prompts = {
        "draft": "{sources}\n\nAufgabe: {task}",
        "whole": "{sources}\n\n{task}\n\n{draft}\n\nNochmal:\n{findings}",
        "judge_system": "Du bist streng.",
    }
    pipeline = looping(rubric, prompts=prompts, draft=None)
    result = judged(pipeline, BAD, GOOD, strict=judge(4, 9, reason="Die Zahl fehlt."))

    told = [request.messages[0].content for request in judged.writer.requests]
    assert told[0] == f"{SOURCE}\n\nAufgabe: Cold starts?"
    assert told[1].startswith(f"{SOURCE}\n\nCold starts?\n\n{BAD}\n\nNochmal:\n- relevance: Die")
    system = judged.backends["strict"].requests[0].messages[0].content
    assert system == "Du bist streng."
    # Whoever reads the run sees that these were others than the rubric's.
    (loop,) = result.loops
    digests = {loop.rubric.prompts.sha256}
    digests |= {span["prompts_sha256"] for span in spans_of(result, "wiggum")}
    assert digests == {with_prompts(load_rubric(rubric), prompts).prompts.sha256}
    assert loop.rubric.sha256 != load_rubric(rubric).sha256


@pytest.mark.parametrize("draft", [BAD, None], ids=["given", "written"])
def test_the_journal_has_a_loops_task_and_the_prompt_for_a_first_draft_once(judged, rubric, draft):
    prompts = {"draft": "{sources}\n\nAufgabe: {task}"}
    result = judged(looping(rubric, prompts=prompts, draft=draft), BAD, GOOD, strict=judge(9))

    record = load_run(result.files.journal)
    (loop,) = recorded_loops(Journal(result.files.journal))
    prompt = f"{SOURCE}\n\nAufgabe: Cold starts?"
    assert record.contents[loop.task_sha256] == "Cold starts?"
    assert record.contents[loop.prompt_sha256] == f"[user]\n{prompt}"
    assert [text for text in record.contents.values() if prompt in text] == [f"[user]\n{prompt}"]


def test_one_verdict_asks_by_the_prompts_that_it_is_given(judged, rubric):
    judged(evaluating(rubric, prompts={"judge_system": "Du bist streng."}), strict=judge(9))

    assert judged.backends["strict"].requests[0].messages[0].content == "Du bist streng."


def test_a_prompt_with_a_mistake_is_refused_before_any_model_is_asked(judged, rubric):
    pipeline = looping(rubric, prompts={"draft": "{tsak}"}, draft=None)
    strict = judge(9)
    error = judged(pipeline, BAD, fails=True, strict=strict)

    assert error.__cause__.code == "rubric.prompt-unknown-field"
    assert (judged.writer.requests, strict.requests) == ([], [])


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"max_rounds": "3"}, "loop.number-not-positive"),
        ({"max_tokens": "5"}, "loop.limit-wrong-type"),
        ({"revise": "all"}, "loop.choice-unknown"),
        ({"revise_from": "first"}, "loop.choice-unknown"),
        ({"max_output_tokens": "5", "draft": None}, "request.wrong-type"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_a_loop_with_an_argument_of_the_wrong_kind_asks_no_model(judged, rubric, given, code):
    failed = judged(looping(rubric, **given), GOOD, strict=judge(9), fails=True)

    assert failed.__cause__.code == code
    assert [one.requests for one in judged.backends.values()] == [[], []]


GROUNDED = """\
title: Grounded
pass_at: 5
dimensions:
  - name: length
    checks: [{ check: words, min: 2 }]
  - name: grounded
    checks: [{ check: grounded_numbers }, { check: grounded_names }]
"""


@pytest.mark.parametrize("sources", [[], [" "], ""], ids=["none", "a blank one", "a blank text"])
def test_a_loop_that_no_draft_could_pass_for_want_of_sources_is_refused(judged, rubric, sources):
    Path(rubric).write_text(GROUNDED)
    pipeline = looping(rubric, sources=sources, draft=None)
    failed = judged(pipeline, GOOD, fails=True, strict=judge(9))

    assert failed.__cause__.code == "loop.no-sources"
    assert "grounded" in str(failed)
    assert judged.writer.requests == []


def test_the_rubric_that_it_advises_lets_the_loop_pass(judged, rubric):
    Path(rubric).write_text(GROUNDED)
    failed = judged(looping(rubric, sources=[]), GOOD, fails=True, strict=judge(9))
    extends, dimensions = re.findall(r"'((?:extends|dimensions): .*?)'", str(failed))
    own = Path(rubric).with_name("own.yaml")
    own.write_text(f"{extends}\n{dimensions}\n")

    (loop,) = judged(looping(str(own), sources=[], draft="It is so."), GOOD, strict=judge(9)).loops
    assert loop.passed


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        pytest.param(GROUNDED + "    optional: true\n", [], id="optional"),
        pytest.param(GROUNDED.replace("_names }", "_names }, { check: finished }"), [], id="more"),
        pytest.param(GROUNDED, [SOURCE], id="sources"),
    ],
)
def test_a_loop_that_can_pass_begins(judged, rubric, text, sources):
    Path(rubric).write_text(text)
    pipeline = looping(rubric, sources=sources, draft="It is so.")
    (loop,) = judged(pipeline, GOOD, strict=judge(9)).loops

    assert (loop.stop_reason, loop.rounds[0].verdict.missing) == ("passed", ())


# --- limits ----------------------------------------------------------------------------------


def test_a_loop_whose_tokens_do_not_suffice_for_another_round_ends_with_what_it_has(judged, rubric):
    result = judged(looping(rubric, max_tokens=3_000), strict=judge(4))
    (loop,) = result.loops
    assert (loop.stop_reason, loop.text, len(loop.rounds)) == ("budget", BAD, 1)
    assert loop.spent.tokens <= 3_000
    assert judged.writer.requests == [], "no revision is begun that could not be judged"
    assert line_of(result)["stop_reason"] == "budget"


@pytest.mark.parametrize("draft", [None, GOOD], ids=["to be written", "given"])
def test_where_the_first_round_does_not_fit_no_model_is_asked_and_what_would_do_is_said(
    judged, draft
):
    # One call for each of its dimensions: some would fit, and be for nothing.
    def of(max_tokens):
        return looping("synthesis", draft=draft, max_tokens=max_tokens, max_rounds=1)

    failed = judged(of(15_000), GOOD, strict=judge(9), fails=True)
    assert isinstance(failed.__cause__, LimitReached)
    assert [one.requests for one in judged.backends.values()] == [[], []]
    would_do = int(str(failed).split("max_tokens = ")[-1].split()[0])
    assert len(judged(of(would_do), GOOD, strict=judge(9)).loops[0].rounds) == 1


def test_the_first_draft_counts_among_what_a_loop_took(judged, rubric):
    (loop,) = judged(looping(rubric, draft=None, max_tokens=20_000), GOOD, strict=judge(9)).loops
    (only,) = loop.rounds
    assert (loop.spent.calls, only.drafting.calls, only.judging.calls) == (2, 1, 1)
    assert only.drafting.output_tokens == len(GOOD.split())
    requests = [one for backend in judged.backends.values() for one in backend.requests]
    assert [(one.role, one.model) for one in requests] == [
        ("producer", "writer"),
        ("evaluator", "strict"),
    ]


def test_a_first_draft_that_states_no_room_has_its_part_and_no_more_than_the_context(
    judged, rubric
):
    full = ContextOverflow("full", endpoint="writer", context_tokens=1_000)
    looped = looping(rubric, draft=None, max_tokens=12_000, max_rounds=2)
    (loop,) = judged(looped, full, GOOD, strict=judge(9)).loops
    first, second = (one.max_output_tokens for one in judged.writer.requests)
    assert first <= 3_000
    assert second < 1_000
    assert loop.passed


def test_what_tokens_cost_is_taken_from_the_settings_where_both_prices_stand():
    usd = {"usd_per_million_input_tokens": 2.0, "usd_per_million_output_tokens": 6.0}
    one = {"usd_per_million_input_tokens": 2.0}
    endpoints = {
        tag: Endpoint.model_validate({"tag": tag, "url": "http://127.0.0.1:9/v1", **prices})
        for tag, prices in {"both": usd, "one": one, "none": {}}.items()
    }
    charges = Charges(endpoints)
    requests = (
        ChatRequest(model=tag, messages=as_messages("a"), max_output_tokens=500)
        for tag in endpoints
    )
    most = {request.model: charges.most(request) for request in requests}
    assert most["both"].cost_usd == (most["both"].input_tokens * 2 + 500 * 6) / 1e6
    assert most["one"].cost_usd is most["none"].cost_usd is None


# --- a verdict without a loop ----------------------------------------------------------------


def test_one_draft_can_be_judged_without_a_loop(judged, rubric):
    loaded = load_rubric(rubric)
    result = judged(evaluating(loaded, sources=[SOURCE]), strict=judge(7))
    found = result.result
    assert found.vector == {"length": 10, "relevance": 7}
    assert (found.passed, found.rubric_sha256, result.loops) == (False, loaded.sha256, ())
    assert SOURCE in judged.backends["strict"].requests[0].messages[-1].content
    (span,) = spans_of(result, "evaluate")
    assert span["composite"] == found.composite


def test_without_an_evaluator_what_must_be_judged_cannot_be(tmp_path, rubric):
    failed = fail(evaluating(rubric), settings_of(tmp_path))
    assert failed.__cause__.code.startswith("config.")


def test_the_loops_ways_are_the_pipelines_to_choose(judged, rubric):
    ways = {"revise_from": "last", "revise": "whole"}
    drafts = ["Worse than before, by far.", GOOD]
    (loop,) = judged(looping(rubric, **ways), *drafts, strict=judge(5, 3, 9)).loops
    assert [one.base_round for one in loop.rounds] == [None, 1, 2], "from the last, not the best"
    assert loop.text == GOOD


# --- measured noise --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured_of", "ended", "warned"),
    [
        # So that two composites of one draft lie up to 1.4 apart: gains within it are none.
        pytest.param("strict", ("plateau", 3), [], id="its own"),
        pytest.param(None, ("max_rounds", 5), [], id="none"),
        pytest.param(
            "b", ("max_rounds", 5), ["evaluator.noise-unusable"], id="another evaluator's"
        ),
    ],
)
def test_gains_within_the_measured_noise_are_none(judged, rubric, measured_of, ended, warned):
    if measured_of:
        found = Noise(evaluator=measured_of, deviation=0.5, drafts=3, judgements=15)
        write_noise(found, load_rubric(rubric), directory=Path(rubric).parent)
    drafts = [f"Draft number {number} of this text." for number in range(4)]
    result = judged(looping(rubric, max_rounds=5), *drafts, strict=judge(3, 3.5, 4, 4.5, 5))
    (loop,) = result.loops
    assert (loop.stop_reason, len(loop.rounds)) == ended
    measured = [one["deviation"] for one in instants_of(result, "evaluator noise")]
    assert measured == ([0.5] if measured_of == "strict" else [])
    assert codes(result.warnings) == warned


def calibrated(rubric, **changed):
    """A calibration of the rubric, beside it."""
    loaded = load_rubric(rubric)
    at = AtThreshold(threshold=8, accepted=60, wrong=1, drafts=80, rejects=20)
    known = {"rubric_sha256": loaded.sha256, "prompt_sha256": prompts_digest(loaded)}
    found = Calibration(
        **{**known, "evaluator": "strict", **changed},
        samples=(3,),
        labels_sha256="of these",
        at=at,
        aim=RiskAim(),
        method="fixed sequence",
        accept_at=None,
    )
    found.write(loaded, Path(rubric).parent)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        pytest.param({}, None, id="as it was calibrated"),
        pytest.param({"rubric_sha256": "older"}, "the rubric", id="rubric"),
        pytest.param({"prompt_sha256": "older"}, "the evaluator's prompts", id="prompts"),
        pytest.param(
            {"evaluator": "kind"}, "the evaluator (kind then, strict now)", id="evaluator"
        ),
    ],
)
def test_a_calibration_of_another_state_is_said_with_what_differs(judged, rubric, changed, named):
    calibrated(rubric, **changed)

    result = judged(looping(rubric), GOOD, strict=judge(9))

    if named is None:
        assert codes(result.warnings) == []
    else:
        (warning,) = result.warnings
        assert (warning.code, named in warning.message) == ("evaluator.calibration-differs", True)


def test_prompts_of_a_runs_own_are_not_those_of_the_calibration(judged, rubric):
    calibrated(rubric)
    told = evaluating(rubric, prompts={"judge_system": "Be strict."})

    assert codes(judged(told, strict=judge(9)).warnings) == ["evaluator.calibration-differs"]
    assert codes(judged(evaluating(rubric), strict=judge(9)).warnings) == []


# --- a loop that was cut off -----------------------------------------------------------------


def test_a_loop_goes_on_from_the_rounds_of_an_earlier_runs_journal(judged, rubric):
    first = judged(looping(rubric, max_rounds=1), strict=judge(4))
    rounds = rounds_from(Journal(first.files.journal))
    going_on = looping(rubric, draft=None, rounds=rounds, max_rounds=2)
    (loop,) = judged(going_on, GOOD, strict=judge(9)).loops
    assert (loop.stop_reason, loop.text) == ("passed", GOOD)
    assert loop.rounds[0] == first.loops[0].rounds[0]
    assert len(judged.backends["strict"].requests) == 1, "what was judged is not judged again"
    with refused("loop.other-rounds"):
        raise judged(looping(rubric, draft=GOOD, rounds=rounds), strict=judge(4), fails=True)
