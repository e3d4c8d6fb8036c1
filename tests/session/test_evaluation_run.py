"""A data set evaluated: epochs, targets, scorers, and what is made and judged again."""

import asyncio
import csv
import functools
import itertools
import json
import math
import re
from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import pytest
from pydantic import BaseModel
from servers.named_models import NamedModels
from session_runs import ONE_QUESTION, settings_of
from structlog.testing import capture_logs

from harness import Cache, Evaluation, Limits, Match, Pipeline, Run, ScriptedBackend
from harness.errors import InvalidInput
from harness.rubric import Dimension, Rubric
from harness.rubric.checks import Words
from harness.session.evaluation_run import thresholds_of
from harness.trace.run_list import list_runs

ROWS = [
    {"id": "a", "question": "2+2", "target": 4, "group": "sums", "kind": "easy"},
    {"id": "b", "question": "3+3", "target": 6, "group": "sums", "kind": "hard"},
    {"id": "c", "question": "2*3", "target": 6, "group": "products", "kind": "hard"},
]
ANSWERS = {"2+2": "It is 4.", "3+3": "5", "2*3": "6"}
RUBRIC = """\
title: Right
pass_at: 8
repeats: 1
dimensions:
  - name: right
    checks: [{ check: target, match: number }]
  - name: clear
    judge: Is it clear?
"""


class Setup:
    """A folder, and models that count what they are asked."""

    def __init__(self, folder):
        self.folder = folder
        self.producer = ScriptedBackend(self.answer)
        self.judge = ScriptedBackend(self.judge_reply)
        (folder / "right.yaml").write_text(RUBRIC)

    def judge_reply(self, _):
        return json.dumps({"clear": {"reason": "Short.", "issues": [], "score": 9}})

    def answer(self, request):
        return ANSWERS[request.messages[-1].content.partition(" ")[0]]

    def run(self, evaluation, *, output="out.jsonl", **how):
        return evaluation.run(
            output=output and self.folder / output,
            settings=settings_of(
                self.folder, rubrics=self.folder, roles={"evaluator": "evaluator"}
            ),
            backends={"producer": self.producer, "evaluator": self.judge},
            **how,
        )

    @property
    def asked(self):
        return len(self.producer.requests), len(self.judge.requests)

    def lines(self, name="out.jsonl"):
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]


@pytest.fixture
def setup(tmp_path):
    return Setup(tmp_path)


def questions(rows=ROWS, **how):
    return Evaluation("{question} = ?", rows, **{"scorers": ["number"], **how})


def length(output):
    return {"chars": len(output), "short": len(output) < 3}


def in_numpy(output):
    return {"is": np.bool_(1), "as": np.float32(0.5), "n": np.int64(2), "d": Decimal("0.25")}


def is_digit(output):
    return np.bool_(output == "5")


def credit(output, target):
    return 1 if str(target) in output else 0.5


def test_each_row_is_run_in_each_epoch_and_scored_by_each_scorer(setup):
    done = setup.run(questions(scorers=["number", credit, length], epochs=3, category="kind"))

    assert setup.asked == (9, 0)
    assert [(s.name, s.rows, round(s.mean, 4)) for s in done.scores] == [
        ("number", 3, 0.6667),
        ("credit", 3, 0.8333),
        ("length.chars", 3, 3.3333),
        ("length.short", 3, 0.6667),
    ]
    number = done.score("number")
    assert (number.groups, number.accuracy) == (2, pytest.approx(2 / 3))
    assert {name: (of.rows, of.mean) for name, of in number.categories.items()} == {
        "easy": (1, 1.0),
        "hard": (2, 0.5),
    }
    assert "number" in done.summary
    assert done.to_json()["scores"][0]["mean"] == number.mean


def test_a_line_has_output_target_scores_reasons_and_models(setup):
    setup.run(questions(rubric="right", scorers=[credit]))

    line = next(line for line in setup.lines() if line["id"] == "b")
    assert {name: line[name] for name in ("epoch", "output", "target", "group", "scores")} == {
        "epoch": 1,
        "output": "5",
        "target": 6,
        "group": "sums",
        "scores": {
            "right": 4.5,
            "right.passed": 0.0,
            "right.right": 0.0,
            "right.clear": 9.0,
            "credit": 0.5,
        },
    }
    assert line["reasons"] == {"right.right": 'the target is "6"', "right.clear": "Short."}
    assert line["evaluator"] == "evaluator"
    assert {(m["role"], m["model"]) for m in line["models"]} == {
        ("producer", "producer"),
        ("evaluator", "evaluator"),
    }
    assert "# Target" in setup.judge.requests[0].messages[-1].content


SOURCED = (
    RUBRIC.replace("target, match: number", "grounded_numbers")
    + """\
  - name: careful
    judge: Is it careful?
    needs_sources: true
"""
)


def test_dimensions_that_no_row_has_a_score_in_are_named_with_the_reason(setup):
    (setup.folder / "right.yaml").write_text(SOURCED)
    done = setup.run(questions(rubric="right"))
    again = setup.run(questions(rubric="right"))

    assert done.score("right.passed").mean == 0
    (notice,) = done.run.warnings
    assert notice.code == "evaluation.not-judged"
    assert "right (there are no sources), careful (there are no sources);" in notice.message
    assert "without right:" in notice.message
    assert again.to_json()["warnings"] == done.to_json()["warnings"]

    # As it advises.
    lines = re.findall(r"'((?:extends|dimensions): .*?)'", notice.message)
    (setup.folder / "own.yaml").write_text("\n".join(lines))
    own = setup.run(questions(rubric="own"), output="own.jsonl")
    assert own.score("own.passed").mean == 1
    assert "no output passes" not in own.run.warnings[0].message


@pytest.mark.parametrize(
    ("text", "sources", "why"),
    [
        (SOURCED, [], "there are no sources"),
        (
            SOURCED.replace("    checks", "    gate: true\n    floor: 5\n    checks"),
            ["9"],
            "right failed",
        ),
    ],
)
def test_what_a_judge_is_not_asked_for_is_named_too(setup, text, sources, why):
    (setup.folder / "right.yaml").write_text(text)
    done = setup.run(questions([{**row, "sources": sources} for row in ROWS], rubric="right"))
    assert why in done.run.warnings[0].message


def test_a_dimension_with_a_score_in_some_row_is_not_named(setup):
    (setup.folder / "right.yaml").write_text(
        RUBRIC.replace("target, match: number", "grounded_numbers")
    )
    rows = [{**row, "sources": ["4"] if row["id"] == "a" else []} for row in ROWS]
    assert setup.run(questions(rows, rubric="right")).run.warnings == ()


def test_the_same_call_makes_and_judges_nothing_again(setup):
    first = setup.run(questions(rubric="right", epochs=2))
    asked = setup.asked
    again = setup.run(questions(rubric="right", epochs=2))

    assert setup.asked == asked == (6, 6)
    # As texts: bounds of too few groups are NaN, which no longer equal themselves in a dataclass.
    assert (again.kept, str(again.scores)) == (6, str(first.scores))


def test_epochs_can_grow_and_shrink_on_one_output(setup):
    setup.run(questions(epochs=1))
    assert len(setup.run(questions(epochs=3)).samples) == 9
    assert setup.asked[0] == 9
    assert len(setup.run(questions(epochs=2)).samples) == 6
    assert [line["epoch"] for line in setup.lines()].count(2) == 3
    assert setup.asked[0] == 9


def test_a_limit_stops_it_and_the_same_call_goes_on(setup):
    evaluation = questions(rubric="right", epochs=2)
    first = setup.run(evaluation, limits=Limits(max_calls=8), max_parallel=1)
    assert first.run.status == "stopped"
    assert 0 < len(first.samples) < 6
    done = setup.run(evaluation, limits=Limits(max_calls=12))
    assert (len(done.samples), setup.asked) == (6, (6, 6))


def test_another_scorer_is_added_without_a_call(setup):
    setup.run(questions(rubric="right"))
    done = setup.run(questions(rubric="right", scorers=["number", length]))
    assert setup.asked == (3, 3)
    assert [score.name for score in done.scores][-2:] == ["length.chars", "length.short"]


@pytest.mark.parametrize("change", ["target", "rubric"])
def test_what_scores_rest_on_is_judged_again_and_outputs_are_kept(setup, change):
    setup.run(questions(rubric="right"))
    rows = ROWS
    if change == "target":
        rows = [ROWS[0] | {"target": 5}, *ROWS[1:]]
    else:
        (setup.folder / "right.yaml").write_text(RUBRIC.replace("clear?", "brief?"))
    done = setup.run(questions(rows, rubric="right"))

    assert setup.asked == (3, 4 if change == "target" else 6)
    assert done.score("right.right").mean == (10 / 3 if change == "target" else 20 / 3)


def test_another_judge_judges_again_and_outputs_are_kept(setup):
    async def main():
        async with NamedModels(reply='{"reason": "Short.", "issues": [], "score": 9}') as server:
            for judge in ("one", "one", "two"):
                await questions(rubric="right", epochs=2).run_async(
                    output=setup.folder / "out.jsonl",
                    settings=settings_of(
                        setup.folder,
                        rubrics=setup.folder,
                        roles={"evaluator": "judge"},
                        endpoints={
                            "judge": {
                                "url": server.url,
                                "model_id": judge,
                                "stream": False,
                                "structured": "enforced",
                            }
                        },
                    ),
                    backends={"producer": setup.producer},
                )
                yield [chat.body["model"] for chat in server.chats]

    async def counts():
        return [(models.count("one"), models.count("two")) async for models in main()]

    assert asyncio.run(counts()) == [(6, 0), (6, 0), (6, 6)]
    assert setup.asked == (6, 0)
    assert {line["models"][-1]["model"] for line in setup.lines()} == {"two"}


def test_an_output_that_comes_out_the_same_is_not_judged_again(setup):
    def pipeline(strip):
        flow = Pipeline("flow")

        @flow.node
        async def text(run: Run, question: str) -> str:
            reply = await run.chat("producer", f"{question} = ?")
            return reply.strip() if strip else reply

        return flow

    for strip in (False, True):
        done = setup.run(Evaluation(pipeline(strip), ROWS, rubric="right"))
        assert len(done.samples) == len(setup.lines()) == 3
    assert setup.asked == (3, 3)


def test_rescoring_makes_no_output_though_the_pipeline_changed(setup):
    def evaluation(ending, **how):
        flow = Pipeline("flow")

        @flow.node
        async def text(run: Run, question: str) -> str:
            return await run.chat("producer", f"{question} = ?") + ending

        return Evaluation(flow, ROWS, **how)

    setup.run(evaluation("", scorers=["number"]))
    done = setup.run(evaluation("!", rubric="right"), rescore=True)
    assert setup.asked == (3, 3)
    assert done.score("right.right").mean == 20 / 3
    assert done.run.reruns == ()
    assert {line["output"] for line in setup.lines()} == set(ANSWERS.values())
    assert all(line["models"][0]["role"] == "producer" for line in setup.lines())

    setup.run(evaluation("!", scorers=["number"]))
    assert {line["output"][-1] for line in setup.lines()} == {"!"}
    rescored = setup.run(evaluation("?", scorers=[length]), rescore=True)
    assert {line["output"][-1] for line in setup.lines()} == {"!"}
    assert len(rescored.samples) == 3
    assert setup.asked == (3, 3)  # the replies were there


def test_what_rescoring_would_judge_is_foreseen_with_what_it_took_before(setup):
    def foreseen():
        how = settings_of(setup.folder, rubrics=setup.folder, roles={"evaluator": "evaluator"})
        batch = questions(rubric="right").batch(
            how,
            output=setup.folder / "out.jsonl",
            rescore=True,
            backends={"producer": setup.producer, "evaluator": setup.judge},
        )
        return asyncio.run(batch.rehearsal())

    setup.run(questions(rubric="right"))
    assert (foreseen().unjudged, foreseen().again) == (0, ())
    for change, calls in (("pass_at: 9", 0), ("judge: Is that clear?", 3)):
        rubric = setup.folder / "right.yaml"
        field = change.partition(":")[0]
        rubric.write_text(re.sub(rf"{field}: .*", change, rubric.read_text()))
        plan, before = foreseen(), setup.asked[1]
        setup.run(questions(rubric="right"), rescore=True)
        assert plan.unjudged == len(plan.again) == setup.asked[1] - before == calls
    assert (plan.evaluators, plan.rows_again) == (("evaluator",), 0)
    assert all(remake.input_tokens for remake in plan.again)


def test_rescoring_fails_rows_that_have_no_output(setup):
    with pytest.raises(InvalidInput) as refused:
        setup.run(questions(), rescore=True)
    assert refused.value.code == "evaluation.no-output"
    setup.run(questions(ROWS[:2]))
    done = setup.run(questions(), rescore=True)
    assert len(done.samples) == 2
    assert [failure.code for failure in done.failures] == ["evaluation.no-output"]
    done = setup.run(questions(epochs=3), rescore=True)
    assert (done.rows, len(done.samples), len(done.failures)) == (3, 2, 7)
    assert [f.epoch for f in done.failures if f.id == "a"] == [2, 3]


def broken(output, target):
    if target == 6:
        raise ValueError("no")
    return 1


def no_number(output):
    return math.nan if output == "5" else 1


def no_float(output):
    return 10**400 if output == "5" else 1


def words(output):
    return "good"


@pytest.mark.parametrize(
    ("scorer", "code", "failed"),
    [
        (broken, "evaluation.scorer-raised", ["b", "c"]),
        (no_number, "evaluation.score-invalid", ["b"]),
        (no_float, "evaluation.score-invalid", ["b"]),
        (words, "evaluation.score-invalid", ["a", "b", "c"]),
    ],
)
def test_a_scorer_that_fails_for_a_row_leaves_out_its_own_score_alone(setup, scorer, code, failed):
    done = setup.run(questions(scorers=["number", scorer], epochs=2), max_failures=None)

    assert {f.epoch for f in done.failures} == {1, 2}
    assert "raised" not in code or "ValueError: no (test_evaluation_run.py:" in str(done.failures)
    assert sorted({failure.id for failure in done.failures}) == failed
    assert len(done.failures) == 2 * len(failed)
    assert {failure.code for failure in done.failures} == {code}
    assert f"'{scorer.__name__}'" in done.failures[0].reason
    assert done.score("number").mean == 2 / 3
    assert [len(line["scores"]) for line in done.samples] == [
        1 if line["id"] in failed else 2 for line in done.samples
    ]
    again = setup.run(questions(scorers=["number", scorer], epochs=2), max_failures=None)
    assert (len(again.samples), len(again.failures)) == (6, len(done.failures))
    assert again.kept == 6 - len(done.failures)
    assert done.run.status == "failed"


def test_what_two_scorers_fail_by_is_told_apart_and_a_decorated_coroutine_scores(setup):
    async def later(output):
        return 1

    @functools.wraps(later)
    def decorated(output):
        return later(output)

    done = setup.run(questions(scorers=[broken, words, decorated]), max_failures=None)
    assert {(f.reason.split("'")[1], f.code) for f in done.failures} == {
        ("broken", "evaluation.scorer-raised"),
        ("words", "evaluation.score-invalid"),
    }
    assert done.score("later").mean == 1


def test_a_scorer_that_is_added_and_stopped_loses_no_output(setup):
    setup.run(questions(scorers=["number"]))
    setup.run(questions(scorers=["number", broken]), max_failures=0, max_parallel=1)
    assert [line["id"] for line in setup.lines()] == ["a", "b", "c"]


def test_scores_may_be_of_numpy(setup):
    done = setup.run(questions(scorers=[in_numpy, is_digit]))
    assert done.samples[1]["scores"] == {
        "in_numpy.is": 1.0,
        "in_numpy.as": 0.5,
        "in_numpy.n": 2.0,
        "in_numpy.d": 0.25,
        "is_digit": 1.0,
    }


def test_outputs_are_scored_as_they_come_so_that_a_broken_scorer_ends_it_early(setup):
    rows = [{"id": n, "question": "2+2"} for n in range(200)]

    def off(output):
        raise ValueError("off")

    done = setup.run(questions(rows, scorers=[off, length]), max_failures=0.2)

    assert setup.asked[0] < 60
    assert "failed for one reason (evaluation.scorer-raised)" in done.run.stopped_by


def test_rows_whose_target_is_missing_or_unfit_are_refused_by_line(setup):
    table = setup.folder / "q.csv"
    table.write_text("id,question,target\na,2+2,4\nb,3+3,\nc,2*3,six\n")
    with pytest.raises(InvalidInput) as refused:
        setup.run(questions(table))
    assert setup.asked == (0, 0)
    assert f"{table}:3: it has no 'target', which 'number' needs" in str(refused.value)
    assert "fill it in, or leave out such rows (--bad-rows skip" in str(refused.value)
    assert f"{table}:4" in str(refused.value)
    assert '"six" is no number' in str(refused.value)
    with pytest.raises(InvalidInput, match="it has no 'target', which 'right' needs"):
        setup.run(questions(table, rubric="right", scorers=[]))
    done = setup.run(questions(table, bad_rows="skip"))
    assert [failure.code for failure in done.failures] == [
        "evaluation.no-target",
        "evaluation.target-invalid",
    ]
    assert len(setup.run(questions(table, scorers=[length]), output="b.jsonl").samples) == 3


@pytest.mark.parametrize("what", ["group", "category"])
def test_a_column_that_is_not_there_is_refused(setup, what):
    with pytest.raises(InvalidInput, match=f"{what} 'knd' is no column; did you mean 'kind'"):
        setup.run(questions(**{what: "knd"}))
    setup.run(questions([{"question": "2+2", "target": 4}]))


@pytest.mark.parametrize("target", [None, "", " ", [], "[]", ["", " "]])
def test_an_empty_target_is_none(setup, target):
    with pytest.raises(InvalidInput, match="it has no 'target', which 'number' needs"):
        setup.run(questions([ROWS[0] | {"target": target}]))


def test_a_target_of_another_type_is_refused(setup):
    with pytest.raises(InvalidInput, match="it is dict, where a text"):
        setup.run(questions([ROWS[0] | {"target": {"value": 4}}], scorers=["includes"]))
    done = setup.run(questions([ROWS[0] | {"target": {"value": 4}}], scorers=[credit]))
    assert done.samples[0]["target"] == {"value": 4}


def test_any_of_several_targets_is_right_also_in_a_table(setup):
    table = setup.folder / "q.csv"
    table.write_text('id,question,target\na,2+2,"[9, 4]"\n')
    assert setup.run(questions(table)).samples[0]["target"] == [9, 4]
    for targets, mean in (([4, 9], 1), ([8, 9], 0)):
        done = setup.run(questions([ROWS[0] | {"target": targets}]), output=None)
        assert done.scores[0].mean == mean


class Ticket(BaseModel):
    """An output that is no text."""

    queue: str
    opened: datetime = datetime(2026, 1, 2, tzinfo=UTC)


def sorting(row, **how):
    flow = Pipeline("flow")

    @flow.node
    def sorted_into(queue: str) -> Ticket:
        return Ticket(queue=queue)

    return Evaluation(flow, [row], **how)


def test_a_model_is_scored_and_judged_as_the_json_that_the_file_has(setup):
    row = {"queue": "ops", "target": '{"queue": "ops", "opened": "2026-01-02T00:00:00Z"}'}
    done = setup.run(sorting(row, scorers=["equal"], rubric="right"))
    assert done.score("equal").mean == 1
    written = json.dumps(setup.lines()[0]["output"], separators=(",", ":"))
    assert written in setup.judge.requests[0].messages[-1].content


@pytest.mark.parametrize("rescore", [False, True])
def test_an_edited_scorer_gets_the_output_as_the_type_of_its_node(setup, rescore):
    def right(output, target):
        return output.queue == target

    setup.run(sorting({"queue": "ops", "target": "ops"}, scorers=[right]))

    def right(output, target):
        return 2 * (output.queue == target and output.opened.year == 2026)

    changed = sorting({"queue": "ops", "target": "ops"}, scorers=[right])
    for _ in range(2):
        done = setup.run(changed, rescore=rescore)
        assert (done.failures, done.score("right").mean) == ((), 2)


def test_outputs_of_another_type_are_scored_again_as_json(setup):
    def evaluation(kind, value):
        flow = Pipeline("flow")

        @flow.node
        def number(queue: str) -> kind:
            return value

        return Evaluation(flow, [{"queue": "ops", "target": "[1]"}], scorers=["equal"])

    setup.run(evaluation(list[int], [1]))
    assert setup.run(evaluation(Ticket, None), rescore=True).score("equal").mean == 1


def test_figures_that_equal_scores_do_not_have_are_null_in_json(setup):
    def half(output):
        return 0.5

    done = setup.run(questions(scorers=[half]), output=None)
    assert math.isnan(done.score("half").low)
    (figures,) = json.loads(json.dumps(done.to_json(), allow_nan=False))["scores"]
    assert (figures["low"], figures["high"], figures["rows"]) == (None, None, 3)


def by_row(output, row):
    return int(row["question"][0])


def hard_ones(output, target, row):
    if row.pop("kind") == "easy":
        return None
    return {"right": output == str(target), "close": None if output == "5" else 1}


def test_a_scorer_may_see_the_row_and_give_no_score(setup):
    scorers = ["number", by_row, hard_ones]
    done = setup.run(questions(scorers=scorers, epochs=2))

    assert not done.failures
    assert [sorted(line["scores"]) for line in done.samples[::2]] == [
        ["by_row", "number"],
        ["by_row", "hard_ones.right", "number"],
        ["by_row", "hard_ones.close", "hard_ones.right", "number"],
    ]
    assert [line.get("no_score") for line in done.samples[::2]] == [
        ["hard_ones"], ["hard_ones.close"], None,
    ]  # fmt: skip
    figures = {s.name: (s.rows, s.mean, s.missing) for s in done.scores}
    assert [*figures][:2] == ["number", "by_row"]
    assert figures["by_row"] == (3, 7 / 3, 0)
    assert figures["hard_ones.right"] == (2, 0.5, 2)
    assert figures["hard_ones.close"] == (1, 1, 4)
    assert "1 (4 missing)" in done.summary
    assert [s["missing"] for s in done.to_json()["scores"]] == [0, 0, 2, 4]


def test_an_unknown_score_is_an_error_that_names_the_others(setup):
    def nothing(output):
        return None

    done = setup.run(questions(scorers=["number", nothing]))
    with pytest.raises(KeyError, match="no row has a score 'nothing'; scores: number"):
        done.score("nothing")


def test_scorers_of_the_row_need_none_beside_them(setup):
    done = setup.run(questions(scorers=[by_row]), output="out.csv")
    assert done.score("by_row").mean == 7 / 3
    lines = (setup.folder / "out.csv").read_text().splitlines()
    assert {row["scores.by_row"] for row in csv.DictReader(lines)} == {"2.0", "3.0"}


def test_a_row_is_scored_again_by_what_sees_it_when_any_column_changes(setup):
    seen = []

    def sees(output, row):
        seen.append(row["kind"])
        return 1

    def sees_none(output):
        seen.append("")
        return 1

    scorers = ["number", sees, sees_none]
    setup.run(questions(scorers=scorers))
    seen.clear()
    again = setup.run(questions([ROWS[0] | {"kind": "new"}, *ROWS[1:]], scorers=scorers))

    assert (seen, setup.asked[0], again.kept) == (["new"], 3, 2)


def only_by_name(output, *, target):
    return 1


def by_group(output, group):
    return 1


def swapped(target, output):
    return 1


def test_an_option_of_a_scorer_is_not_the_target(setup):
    def strict(output, by=0.5):
        return by

    assert setup.run(questions(scorers=[strict])).score("strict").mean == 0.5


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_cache_does_not_give_one_output_to_all_epochs(setup, is_nested):
    counted = itertools.count(1)
    flow = Pipeline("cached")

    async def text(run: Run, question: str) -> str:
        return f"{question} {next(counted)}"

    flow.node(text, cache=Cache())
    if is_nested:
        inner, outer = flow, Pipeline("outer")

        @outer.node
        async def called(run: Run, question: str) -> str:
            return (await run.call(inner, question=question)).result

        flow = outer
    for _ in range(2):
        result = setup.run(Evaluation(flow, ROWS, scorers=[length], epochs=3))
        assert len({sample["output"] for sample in result.samples}) == len(result.samples)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"scorers": []}, "evaluation.nothing-scores"),
        ({"epochs": 0}, "evaluation.epochs-invalid"),
        ({"epochs": "3"}, "evaluation.epochs-invalid"),
        ({"epochs": 2, "reduce": "at_least_3"}, "evaluation.reducer-unknown"),
        ({"scorers": ["equals"]}, "evaluation.scorer-unknown"),
        ({"scorers": ["number:x"]}, "evaluation.scorer-unknown"),
        ({"scorers": [lambda _: 1]}, "evaluation.scorer-unknown"),
        ({"epochs": 2, "reduce": "at_least_1:1.2.3"}, "evaluation.reducer-unknown"),
        ({"scorers": [by_group]}, "evaluation.scorer-arguments"),
        ({"scorers": [only_by_name]}, "evaluation.scorer-arguments"),
        ({"scorers": [int]}, "evaluation.scorer-arguments"),
        ({"scorers": [swapped]}, "evaluation.scorer-arguments"),
        ({"scorers": [print, print]}, "evaluation.scorer-arguments"),
        ({"scorers": ["equal", Match("equal")]}, "evaluation.scorer-twice"),
    ],
)
def test_an_evaluation_with_a_mistake_is_refused_when_it_is_made(arguments, code):
    how = {"pipeline": "{question}", "dataset": ROWS, "scorers": ["number"], **arguments}
    with pytest.raises(InvalidInput) as refused:
        Evaluation(how.pop("pipeline"), how.pop("dataset"), **how)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"sample": 0}, "batch.sample-not-positive"),
        ({"sample": "5"}, "batch.sample-not-positive"),
        ({"max_failures": -1}, "batch.max-failures-no-share"),
        ({"max_failures": 5.0}, "batch.max-failures-no-share"),
        ({"max_parallel": 0}, "pipeline.parallel-calls-not-positive"),
        ({"limits": 3}, "pipeline.limits-invalid"),
        ({"observers": [3]}, "pipeline.observers-invalid"),
    ],
)
def test_options_with_a_mistake_are_refused_before_any_row_is_run(setup, options, code):
    evaluation = Evaluation("{question}", ROWS, scorers=["number"])

    with pytest.raises(InvalidInput) as refused:
        setup.run(evaluation, **options)

    assert (refused.value.code, setup.asked) == (code, (0, 0))


def test_rows_that_can_be_read_once_are_there_for_each_run_and_one_row_is_no_table(setup):
    evaluation = Evaluation("{question}", (row for row in ROWS), scorers=length)
    assert [len(setup.run(evaluation).samples) for _ in range(2)] == [3, 3]
    with pytest.raises(InvalidInput, match="a list of rows"):
        setup.run(Evaluation("{question}", ROWS[0], scorers=[length]))


def test_a_rubric_that_needs_a_judge_is_refused_before_any_row_is_run(tmp_path):
    (tmp_path / "one.yaml").write_text(ONE_QUESTION)
    producer = ScriptedBackend(["never"])
    with pytest.raises(InvalidInput, match="evaluator"):
        Evaluation("{task}", [{"task": "tea"}], rubric="one").run(
            settings=settings_of(tmp_path, rubrics=tmp_path), backends={"producer": producer}
        )
    assert not producer.requests


def test_a_dimension_may_not_take_the_place_of_whether_an_output_passes(setup):
    (setup.folder / "right.yaml").write_text(RUBRIC.replace("name: clear", "name: passed"))
    with pytest.raises(InvalidInput) as refused:
        setup.run(questions(rubric="right"))
    assert refused.value.code == "evaluation.dimension-passed"
    assert not setup.producer.requests


def test_one_judge_of_a_pool_judges_all_epochs_and_parts(tmp_path):
    setup = Setup(tmp_path)
    judges = {name: ScriptedBackend(setup.judge_reply) for name in ("j1", "j2", "j3")}
    for epochs in (1, 3):
        evaluation = questions(rubric="right", epochs=epochs)
        evaluation.run(
            output=tmp_path / "out.jsonl",
            settings=settings_of(
                tmp_path, rubrics=tmp_path, roles={"evaluator": ["j1", "j2", "j3"]}
            ),
            backends={"producer": setup.producer, **judges},
        )
    assert sorted(len(judge.requests) for judge in judges.values()) == [0, 0, 9]


def test_a_row_in_a_prompt_names_no_file(setup):
    (setup.folder / "secret.txt").write_text("2+2")
    done = setup.run(
        Evaluation(
            "{question}",
            [{"question": f"@{setup.folder / 'secret.txt'}", "target": 4}],
            scorers=["number"],
        )
    )
    assert [failure.code for failure in done.failures] == ["KeyError"]  # the model got the text


def test_a_prompt_of_a_file_that_begins_as_a_file_does_is_a_text(setup):
    prompt, secret = setup.folder / "prompt.txt", setup.folder / "secret.txt"
    secret.write_text("2+2")
    prompt.write_text("@{question}")
    setup.producer = ScriptedBackend(["It is 4."])
    setup.run(
        Evaluation(f"@{prompt}", [{"question": str(secret), "target": 4}], scorers=["number"])
    )
    assert setup.producer.requests[0].messages[-1].content == f"@{secret}"


def test_two_braces_are_a_brace_and_no_column(setup):
    prompt = 'Answer {{question}}, as {"a": {"b": 1}}'
    with pytest.raises(InvalidInput, match=r"{{question}} stands for no column; write {question}"):
        setup.run(Evaluation(prompt, ROWS, scorers=[length]))
    setup.run(Evaluation('{question} as {{word}} {"a": {"b": 1}}', ROWS[:1], scorers=[length]))
    assert setup.producer.requests[0].messages[-1].content == '2+2 as {word} {"a": {"b": 1}}'


@pytest.mark.parametrize(
    ("prompt", "shown", "outcome"),
    [
        ("{question}\nof {{shop}}", "line 2 of 'prompt' has {{shop}},", "{shop} is sent; known: "),
        ("{question} {{quest}}", "has {{quest}},", "did you mean 'question'?"),
        (
            '{question} as {{"order": {{"id": 1}}}}\nor so',
            """has {{"order": {{"id": 1}}}}… (and 1 more),""",
            "both braces are sent; write one",
        ),
        (
            '{question} as {{"order": "…"}} for {{shop}}',
            """has {{"order": "…"}} (and 1 more),""",
            "both braces are sent; write one",
        ),
        ('{question} as {"a": {"b": 1}}', "", ""),
    ],
)
def test_double_braces_that_are_no_column_are_told(setup, prompt, shown, outcome):
    with capture_logs() as logs:
        setup.run(Evaluation(prompt, ROWS[:1], scorers=[length]))
    told = [log["event"] for log in logs if log.get("code") == "batch.braces-doubled"]
    assert len(told) == bool(shown)
    assert all(shown in event and outcome in event for event in told)


def test_an_object_of_a_table_stands_in_a_prompt_as_json(setup):
    row = {"inputs": {"shop": "Tea", "n": True}, "tags": ["a", None, True]}
    (setup.folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    prompts = {
        "2+2 for {ticket}": '2+2 for {"shop":"Tea","n":true}',
        "2+2 for {inputs} {tags}": '2+2 for {"shop":"Tea","n":true} ["a",null,true]',
    }
    for (prompt, sent), rows in itertools.product(
        prompts.items(), (setup.folder / "rows.jsonl", [row])
    ):
        columns = {"ticket": "inputs"} if "ticket" in prompt else None
        setup.run(Evaluation(prompt, rows, columns=columns, scorers=[length]))
        assert setup.producer.requests[-1].messages[-1].content == sent
    setup.run(
        Evaluation("2+2 for {inputs} {inputs.n}", setup.folder / "rows.jsonl", scorers=[length])
    )
    assert (
        setup.producer.requests[-1].messages[-1].content == '2+2 for {"shop":"Tea","n":true} true'
    )


def test_a_column_of_several_words_stands_in_a_prompt_and_other_braces_are_text(setup):
    rows = [{"question text": "2+2", "Q_2": "x", "target": 4}]
    prompt = '{question text} = ? { Q_2 } {"a": {"b c": 1}} {see below} {{word}} {{"d": 2}}'
    setup.run(Evaluation(prompt, rows, scorers=["number"]))
    sent = setup.producer.requests[0].messages[-1].content
    assert sent == '2+2 = ? x {"a": {"b c": 1}} {see below} {word} {{"d": 2}}'
    for wrong, hint in {
        "{question txt}": "did you mean 'question text'",
        "{question}": "it has no 'question'",
        "{{question text}}": "write {question text}",
        "2+2": r"write \{COLUMN\} into what is set for every row",
    }.items():
        with pytest.raises(InvalidInput, match=hint):
            setup.run(Evaluation(wrong, rows, scorers=["number"]))


def test_a_file_that_is_no_table_is_told_as_one(setup):
    (setup.folder / "rows.yaml").write_text("- question: 2+2\n")
    wrong = Evaluation("{question}", setup.folder / "rows.yaml", scorers=[length])
    with pytest.raises(InvalidInput, match=r"it is one text, a table is a \.csv, \.jsonl"):
        setup.run(wrong)


@pytest.mark.parametrize("missing", [None, float("nan"), np.float64("nan"), ""], ids=repr)
def test_a_missing_value_of_a_row_in_python_is_none_as_in_a_file(setup, missing):
    rows = [
        {"id": missing, "question": question, "target": np.int64(6), "group": missing}
        for question in ANSWERS
    ]
    done = setup.run(Evaluation("{question} = ?", rows, scorers=["number"]))
    assert done.score("number").groups is None
    assert [sample["id"] for sample in done.samples] == ["inputs:1", "inputs:2", "inputs:3"]
    assert [sample["target"] for sample in done.samples] == [6, 6, 6]
    with pytest.raises(InvalidInput, match="it has no 'target'"):
        setup.run(Evaluation("{question} = ?", [{**ROWS[0], "target": missing}], scorers=["equal"]))


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_an_output_with_epochs_is_a_table_whose_rows_have_one_group_by_id(setup, ending):
    output = f"out.{ending}"
    setup.run(questions(epochs=2), output=output)
    again = Evaluation("{inputs.question} = ?", setup.folder / output, scorers=["number"])
    done = setup.run(again, output="again.jsonl")
    assert {"a epoch 1", "a epoch 2"} < {sample["id"] for sample in done.samples}
    assert done.score("number").groups == 2  # as the table has it
    rows = [{"id": "x", "epoch": n, "question": "2+2", "target": 4} for n in (1, 2)]
    done = setup.run(Evaluation("{question} = ?", rows, scorers=["number"]), output=None)
    assert done.score("number").groups == 1


def test_the_prompt_may_stand_in_a_file(setup):
    prompt = setup.folder / "prompt.txt"
    prompt.write_text("{question} = ?\n")
    setup.run(Evaluation(f"@{prompt}", ROWS, scorers=["number"]))
    assert setup.producer.requests[0].messages[-1].content == "2+2 = ?\n"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_has_a_column_for_each_score(setup, ending):
    done = setup.run(questions(rubric="right", epochs=2), output=f"out.{ending}")
    assert len(done.samples) == 6
    if ending == "csv":
        with (setup.folder / "out.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["scores.number"] for row in rows].count("1.0") == 4
        assert [row["epoch"] for row in rows].count("2") == 3
        again = setup.run(questions(rubric="right", epochs=2), output="out.csv")
        assert again.kept == 6
        more = questions(rubric="right", scorers=["number", length], epochs=2)
        assert len(setup.run(more, output="out.csv").samples) == 6
        with (setup.folder / "out.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["scores.length.short"] for row in rows].count("1.0") == 4
        assert "scores.length" not in rows[0]
        assert setup.asked == (6, 6)


def test_the_list_of_runs_has_the_scores(setup):
    setup.run(questions(rubric="right"))
    (line,) = list_runs(setup.folder / "traces")
    assert line.pipeline == "evaluate prompt"
    assert line.evaluation["number"] == pytest.approx(2 / 3)
    assert line.evaluation["right"] == pytest.approx((9.5 + 4.5 + 9.5) / 3, abs=0.05)


def judge(request):
    """Scores by the length of what it reads."""
    good = "TEA" in request.messages[-1].content
    return json.dumps({"relevance": {"reason": "So it is.", "score": 9 if good else 3}})


def test_scores_do_not_depend_on_the_order_in_which_rows_end(tmp_path):
    (tmp_path / "one.yaml").write_text(ONE_QUESTION)
    settings = settings_of(tmp_path, rubrics=tmp_path, roles={"evaluator": "evaluator"})
    rows = [{"task": f"{n} {'tea' if n % 3 else 'milk'}"} for n in range(8)]

    def scores(output, order):
        turns = {rows[n]["task"]: asyncio.Event() for n in order}
        turns[rows[order[0]]["task"]].set()
        following = dict(zip(turns, [*list(turns.values())[1:], asyncio.Event()], strict=True))
        pipeline = Pipeline("in turn")

        @pipeline.node
        async def text(task: str) -> str:
            await turns[task].wait()
            return task.upper()

        def judge_in_turn(request):
            task = next(task for task in turns if task.upper() in request.messages[-1].content)
            following[task].set()
            return judge(request)

        backends = {"evaluator": ScriptedBackend(judge_in_turn), "producer": ScriptedBackend([])}
        evaluation = Evaluation(pipeline, rows, rubric="one")
        how = {"settings": settings, "backends": backends}
        return evaluation.run(output=tmp_path / output, **how).scores

    forwards = scores("a.jsonl", [*range(8)])

    assert str(scores("b.jsonl", [*reversed(range(8))])) == str(forwards)
    assert forwards[0].rows == 8


@pytest.mark.parametrize("pass_at", [7, 14, 28, 55, 56])
def test_a_score_at_the_threshold_is_a_success_on_any_scale(pass_at):
    dimension = Dimension(name="clear", judge="Is it clear?")
    scale = {"scale": {"min": 0, "max": 100}, "pass_at": pass_at}
    rubric = Rubric(id="r", title="R", repeats=1, dimensions=(dimension,), **scale)
    assert thresholds_of(rubric)["r.clear"] <= pass_at


def test_after_a_rubric_made_in_python_changed_no_earlier_score_stays(tmp_path):
    pipeline = Pipeline("same")
    asked = []

    @pipeline.node
    def same(task: str) -> str:
        return task

    def judge(request):
        asked.append(request)
        return '{"reason": "So it is.", "issues": [], "score": 7}'

    def mean(question="Is it clear?", weight=1.0, words=2):
        dimensions = (
            Dimension(name="clear", judge=question, weight=weight),
            Dimension(name="long", checks=(Words(min=words),)),
        )
        rubric = Rubric(id="q", title="Q", repeats=1, dimensions=dimensions)
        result = Evaluation(pipeline, [{"task": "two words"}], rubric=rubric).run(
            output=tmp_path / "out.jsonl",
            settings=settings_of(tmp_path),
            backends={"evaluator": ScriptedBackend(judge)},
        )
        return round(result.scores[0].mean, 1), len(asked)

    assert mean() == (8.5, 1)
    assert mean(weight=3) == (7.8, 1)
    assert mean(words=20) < (7, 1)
    assert mean(question="Is it very clear?") == (8.5, 2)
