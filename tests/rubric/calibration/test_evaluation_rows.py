"""Results of evaluations as input: ours, a log that Inspect AI 0.3.285 wrote, promptfoo's."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from harness.analysis.evaluation_page import is_evaluation_file
from harness.errors import InvalidInput, LabelsInvalid
from harness.rows import Row, read_rows
from harness.rubric.calibration.evaluation_rows import as_draft, evaluation_samples
from harness.rubric.calibration.labels import read_labels
from harness.rubric.calibration.paired import compare_evaluations
from harness.rubric.calibration.score_figures import Reducer, Sample, mean_figure, summaries
from harness.rubric.rubric import Rubric

RESULTS = Path(__file__).parent / "results"
GRADED = Rubric.model_validate(
    {
        "id": "graded",
        "title": "Graded",
        "pass_at": 0.8,
        "scale": {"min": 0, "max": 1, "step": 0.05},
        "dimensions": [{"name": "graded", "judge": "Is it right?"}],
    }
)


@pytest.mark.parametrize("name", ["inspect.eval", "inspect.json"])
def test_a_log_of_inspect_gives_its_samples_and_the_figures_of_inspect(name):
    rows = list(read_rows([str(RESULTS / name)], whole={"inputs"}))
    assert sorted((row.id, row.fields["epoch"]) for row in rows) == [
        (name, epoch) for name in "abc" for epoch in (1, 2)
    ]
    first = rows[0].fields
    assert (first["output"], first["target"], first["group"]) == ("It is 4", "4", "g1")
    assert first["inputs"]["input"] == "2+2"
    assert first["scores.match"] == 1.0
    assert first["reasons.graded"] == "by its first word"

    samples = evaluation_samples(read_rows([str(RESULTS / name)]))
    names = ["match", "graded", "parts.a", "parts.b"]
    figures = summaries(samples, reducer=Reducer("mean"), success=dict.fromkeys(names, 1.0))
    # What Inspect's log says: accuracy of match, mean and clustered error of graded.
    assert [round(figure.mean, 4) for figure in figures] == [0.8333, 0.8333, 1.0, 0.25]
    assert figures[1].stderr == pytest.approx(0.11111111)


def test_labels_in_a_log_go_with_its_scores():
    labels = read_labels(RESULTS / "inspect.eval", GRADED, columns={}, need="either")
    drafts = {draft.id: draft for draft in labels.drafts}
    assert len(drafts) == 6
    assert drafts["a epoch 2"].people == {"graded": {"": 1.0}}
    assert drafts["a"].scores == {"graded": (0.5,)}
    assert {draft.group for draft in drafts.values()} == {"g1", "g2"}


def test_an_epoch_may_be_a_decimal_number_but_no_word(tmp_path):
    path = tmp_path / "scores.csv"
    rows = "id,epoch,output,scores.graded,accept\na,1.0,One,0.5,yes\na,2.0,Two,0.5,no\n"
    path.write_text(rows)
    assert [draft.id for draft in read_labels(path, GRADED, columns={}).drafts] == [
        "a",
        "a epoch 2",
    ]

    path.write_text(rows.replace("2.0", "last"))
    with pytest.raises(LabelsInvalid) as caught:
        read_labels(path, GRADED, columns={})
    assert [(e.code, e.line) for e in caught.value.problems] == [("labels.not-a-number", 3)]


def test_a_result_of_promptfoo_has_an_output_for_each_test_and_prompt():
    rows = list(read_rows([str(RESULTS / "promptfoo.json")]))
    assert [row.id for row in rows] == [
        *("test 0 prompt 0", "test 0 prompt 1", "test 1 prompt 0", "test 1 prompt 1")
    ]
    bad = rows[1].fields
    assert (bad["output"], bad["scores.score"], bad["scores.passed"]) == ("Coffee.", 0.5, 0.0)
    assert (bad["scores.Tone"], bad["reasons.score"]) == (0, "Assertion passed; It is no tea")
    tone = Rubric.model_validate(
        GRADED.model_dump() | {"id": "tone", "dimensions": [{"name": "tone", "judge": "Polite?"}]}
    )
    drafts = read_labels(RESULTS / "promptfoo.json", tone, columns={}).drafts
    assert [draft.accept[""] for draft in drafts] == [True, False, True, True]
    assert drafts[1].scores == {"tone": (0.0,)}


@pytest.mark.parametrize("size", [1, 5_000])
def test_half_of_a_surrogate_pair_in_an_output_is_replaced(tmp_path, size):
    results = [{"score": 1, "response": {"output": "x" * size + "\ud83d"}}]
    (tmp_path / "a.json").write_text(json.dumps({"results": {"results": results}}))
    (row,) = read_rows([str(tmp_path / "a.json")])
    assert row.fields["output"] == "x" * size + "?"


def test_a_sample_of_inspect_that_failed_has_no_score_and_hides_no_other(tmp_path):
    log = json.loads((RESULTS / "inspect.json").read_text())
    log["samples"][0] |= {"scores": None, "output": None, "error": {"message": "no"}}
    log["samples"][1]["scores"]["graded"]["value"] = float("nan")
    path = tmp_path / "log.json"
    path.write_text(json.dumps(log).replace("NaN", "null"))
    assert is_evaluation_file(path)
    samples = evaluation_samples(read_rows([str(path)]))
    assert [sorted(sample.scores) for sample in samples[:2]] == [
        [],
        ["match", "parts.a", "parts.b"],
    ]
    drafts = read_labels(path, GRADED, columns={}, need="either").drafts
    assert [len(draft.scores) for draft in drafts] == [0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("ending", ["json", "eval"])
def test_a_score_that_is_nan_is_missing_and_its_sample_named(tmp_path, ending):
    log = json.loads((RESULTS / "inspect.json").read_text())
    log["samples"][1]["scores"]["graded"]["value"] = float("nan")
    path = tmp_path / f"log.{ending}"
    if ending == "json":
        path.write_text(json.dumps(log))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("header.json", json.dumps(log | {"samples": None}))
            for n, sample in enumerate(log["samples"]):
                archive.writestr(f"samples/{n}.json", json.dumps(sample))
    with capture_logs() as logged:
        samples = evaluation_samples(read_rows([str(path)]))
        evaluation_samples(read_rows([str(path)]))
    assert [sorted(sample.scores) for sample in samples[:2]] == [
        ["graded", "match", "parts.a", "parts.b"],
        ["match", "parts.a", "parts.b"],
    ]
    (warning,) = logged
    sample = log["samples"][1]
    said = f"sample '{sample['id']}', epoch {sample['epoch']}: its score 'graded' is nan"
    assert said in warning["event"]


@pytest.mark.parametrize("scores", [[0.5], "good", 0.5, {"match": "good"}])
def test_scores_that_are_no_object_of_numbers_are_refused_with_file_and_line(tmp_path, scores):
    path = tmp_path / "out.jsonl"
    path.write_text(
        '{"id": "a", "epoch": 1, "scores": {}}\n'
        + json.dumps({"id": "b", "epoch": 1, "scores": scores})
    )
    with pytest.raises(InvalidInput) as refused:
        evaluation_samples(read_rows([str(path)]))
    error = refused.value
    assert (error.code, error.path, error.line) == ("labels.not-a-number", path, 2)


@pytest.mark.parametrize("text", ['{"a": 1}', "[1, 2]", "no JSON", '{"results": "good"}'])
def test_another_json_file_is_a_text_as_before(tmp_path, text):
    path = tmp_path / "draft.json"
    path.write_text(text)
    (row,) = read_rows([str(path)])
    assert row.draft == text


def test_a_log_that_is_none_or_has_no_samples_is_refused(tmp_path):
    path = tmp_path / "log.eval"
    path.write_bytes(b"PK no")
    with pytest.raises(InvalidInput) as refused:
        list(read_rows([str(path)]))
    assert refused.value.code == "results.not-inspect"
    for samples in ([{}], ["tea"], [{"id": 1, "epoch": 1, "input": "", "scores": {"a": 1}}]):
        foreign = {"eval": {}, "version": 2, "plan": {}, "samples": samples}
        for data in (foreign, {"results": {"results": [1]}}):
            (tmp_path / "log.json").write_text(json.dumps(data))
            with pytest.raises(InvalidInput, match="no log of Inspect, nor a result of promptfoo"):
                list(read_rows([str(tmp_path / "log.json")]))
    log = json.loads((RESULTS / "inspect.json").read_text()) | {"samples": []}
    (tmp_path / "log.json").write_text(json.dumps(log))
    with pytest.raises(InvalidInput) as refused:
        list(read_rows([str(tmp_path / "log.json")]))
    assert refused.value.code == "results.no-samples"


def test_an_epoch_of_our_own_is_a_draft_with_the_rubrics_scores_alone():
    fields = {
        "id": "a",
        "epoch": 2,
        "output": "It is 4.",
        "inputs.human.graded": 0.5,
        "scores.graded": 0.7,
        "scores.graded.graded": 0.6,
        "scores.graded.passed": 0.0,
        "scores.number": 1.0,
    }
    row = as_draft(Row(fields=fields, path=Path("out.jsonl"), line=3), GRADED)
    assert row.fields == {
        "id": "a epoch 2",
        "group": "a",
        "draft": "It is 4.",
        "task": "",
        "human.graded": 0.5,
        "score.graded": 0.6,
    }


def sides(apart, *, rows=60, noise=0.1):
    rng = np.random.default_rng(0)
    hardness = rng.random(rows)
    return tuple(
        [
            Sample(row=str(n), scores={"x": hardness[n] + by + noise * rng.random()})
            for n in range(rows)
            for _ in range(2)
        ]
        for by in (0.0, apart)
    )


@pytest.mark.parametrize(("apart", "higher"), [(0.1, "second"), (-0.1, "first"), (0.0, None)])
def test_two_models_are_compared_row_by_row(apart, higher):
    first, second = sides(apart)
    compared = compare_evaluations(((first, {}), (second, {})), Reducer("mean"), confidence=0.95)
    figure = compared.shifts["x"].mean.difference
    assert figure.higher == (higher or "cannot tell")
    # Beside the closed form of the error of paired differences.
    pairs = np.array([[s.scores["x"] for s in side] for side in (first, second)])
    means = pairs.reshape(2, -1, 2).mean(axis=2)
    paired = mean_figure(means[1] - means[0], np.arange(len(means[0])))
    assert figure.value == pytest.approx(paired.mean)
    assert figure.high - figure.low == pytest.approx(2 * 1.96 * paired.stderr, rel=0.15)


def test_evaluations_without_a_row_or_score_in_common_are_refused():
    first, second = sides(0.1)
    for other in (
        [Sample(row="other", scores={"x": 1.0})],
        [Sample(row=sample.row, scores={"y": 1.0}) for sample in second],
    ):
        with pytest.raises(InvalidInput) as refused:
            compare_evaluations(((first, {}), (other, {})), Reducer("mean"), confidence=0.9)
        assert refused.value.code == "compare.no-pairs"
