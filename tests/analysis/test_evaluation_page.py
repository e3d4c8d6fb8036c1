"""The page of an evaluation: what is in it, and what a browser shows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Evaluation, ScriptedBackend, Settings
from harness.analysis.evaluation_page import evaluation_json, is_evaluation_file
from harness.analysis.html_page import html_of
from harness.analysis.run_page import run_page_of
from harness.errors import InvalidInput
from tests.chromium import Chromium

NASTY = "</script><img src=x onerror=\"window.ran='yes'\"><script>window.ran='yes'</script>"
RUBRIC = """\
title: QA
pass_at: 8
repeats: 1
dimensions:
  - name: right
    checks: [{ check: target, match: number }]
  - name: clear
    judge: Is it clear?
"""
RESULTS = Path(__file__).parents[1] / "rubric" / "calibration" / "results"


def evaluate(folder: Path, name: str, answers: dict[str, str], *, reduce: str = "mean") -> Path:
    (folder / "qa.yaml").write_text(RUBRIC)
    rows = [{"id": task, "task": task, "target": 4, "group": task[0]} for task in answers]
    issue = {"section": "whole text", "problem": NASTY}
    judgement = {"clear": {"reason": "It is so.", "issues": [issue], "score": 9}}
    asyncio.run(
        Evaluation(
            "{task}", rows, rubric="qa", scorers=["number"], epochs=2, reduce=reduce
        ).run_async(
            output=folder / name,
            settings=Settings.model_validate(
                {
                    "traces": folder / "traces",
                    "rubrics": folder,
                    "roles": {"evaluator": "evaluator"},
                }
            ),
            backends={
                "producer": ScriptedBackend(lambda asked: answers[asked.messages[-1].content]),
                "evaluator": ScriptedBackend(lambda _: json.dumps(judgement)),
            },
        )
    )
    return folder / name


def page_of(*paths: Path) -> dict[str, object]:
    page: dict[str, object] = json.loads(
        b"".join(evaluation_json(paths, traces=paths[0].parent / "traces"))
    )
    return page


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_rows_have_their_epochs_with_scores_reasons_and_times(tmp_path: Path, ending: str) -> None:
    path = evaluate(tmp_path, f"a.{ending}", {"2+2": "It is 4.", "3+1": "5"})
    assert is_evaluation_file(path)
    (side,) = page_of(path)["sides"]  # type: ignore[misc]
    first, second = side["rows"]
    assert (first["id"], first["inputs"]["task"], first["group"]) == ("2+2", "2+2", "2")
    assert [epoch["epoch"] for epoch in second["epochs"]] == [1, 2]
    epoch = second["epochs"][0]
    assert epoch["scores"] == {
        "qa": 4.5,
        "qa.passed": 0.0,
        "qa.right": 0.0,
        "qa.clear": 9.0,
        "number": 0.0,
    }
    assert epoch["reasons"] == {"qa.right": 'the target is "4"', "qa.clear": "It is so."}
    assert epoch["seconds"] > 0
    assert [model["role"] for model in epoch["models"]] == ["producer", "evaluator"]
    figures = {of["name"]: (of["rows"], of["mean"], of["groups"]) for of in side["figures"]}
    assert figures["number"] == (2, 0.5, 2)


def test_the_page_of_its_run_shows_the_composite_of_each_row(tmp_path: Path) -> None:
    evaluate(tmp_path, "a.jsonl", {"2+2": "It is 4."})
    (journal,) = (path for path in (tmp_path / "traces").glob("2*.jsonl"))
    rows = next(node for column in run_page_of(journal).columns for node in column)
    assert [item.score for item in rows.items if "/" not in item.label] == [9.5, 9.5]


def test_figures_are_reduced_as_the_evaluation_was_and_else_by_the_mean(tmp_path: Path) -> None:
    path = evaluate(tmp_path, "a.jsonl", {"2+2": "4", "2+1": "3"}, reduce="at_least_1")
    (side,) = page_of(path)["sides"]  # type: ignore[misc]
    (composite,) = [of for of in side["figures"] if of["name"] == "qa"]
    # A composite of 9 or 10 of 10 is a success from 8 on.
    assert (side["reduce"], composite["mean"]) == ("at_least_1", 0.5)
    path.with_name("a.jsonl.batch").unlink()
    (side,) = page_of(path)["sides"]  # type: ignore[misc]
    (composite,) = [of for of in side["figures"] if of["name"] == "qa"]
    assert side["reduce"] == "mean"
    assert composite["mean"] > 1


def test_failures_are_in_it_and_other_files_are_no_evaluations(tmp_path: Path) -> None:
    path = evaluate(tmp_path, "a.jsonl", {"2+2": "It is 4."})
    failure = {"id": "x", "file": "q.csv", "line": 2, "row": 1, "reason": "no", "code": "c"}
    path.with_name("a.jsonl.failures.jsonl").write_text(json.dumps(failure) + "\n")
    assert page_of(path)["sides"][0]["failures"] == [failure]  # type: ignore[index]
    (tmp_path / "t.csv").write_text("id,task\n1,tea\n")
    journals = (tmp_path / "traces").glob("*.jsonl")
    assert not any(map(is_evaluation_file, [tmp_path / "t.csv", tmp_path / "none", *journals]))


def test_rows_without_an_id_have_a_name_by_their_inputs(tmp_path: Path) -> None:
    line = {"id": "t.csv:2", "epoch": 1, "file": "t.csv", "line": 2, "scores": {"x": 1}}
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(line | {"inputs": {"q": "Why?", "n": 4}}))
    assert page_of(path)["sides"][0]["rows"][0]["name"] == "n: 4; q: Why?"  # type: ignore[index]


def rows_without_scores(path: Path) -> Path:
    """Three rows: a scorer gave one no score, and another no part of its own."""
    lines: list[dict[str, object]] = [
        {"scores": {"length": 1, "facts.right": 1, "facts.new": 0}},
        {"scores": {"length": 1}, "no_score": ["facts"]},
        {"scores": {"facts.right": 0}, "no_score": ["facts.new", "length"]},
    ]
    shared = {"epoch": 1, "inputs": {"q": "Why?"}, "output": "so"}
    text = "".join(f"{json.dumps({'id': f'r{n}', **shared, **of})}\n" for n, of in enumerate(lines))
    path.write_text(text)
    return path


def test_figures_count_the_outputs_that_a_scorer_gave_no_score(tmp_path: Path) -> None:
    (side,) = page_of(rows_without_scores(tmp_path / "a.jsonl"))["sides"]  # type: ignore[misc]
    figures = {of["name"]: (of["rows"], of["missing"]) for of in side["figures"]}
    assert figures == {"length": (2, 1), "facts.right": (2, 1), "facts.new": (1, 2)}


@pytest.mark.parametrize("name", ["inspect.eval", "inspect.json", "promptfoo.json"])
def test_results_of_others_have_a_page_too(name: str) -> None:
    assert is_evaluation_file(RESULTS / name)
    (side,) = page_of(RESULTS / name)["sides"]  # type: ignore[misc]
    assert side["rows"][0]["epochs"][0]["reasons"]


@pytest.mark.parametrize(
    ("cells", "shown"), [("1.0,0.0", 1), ("1,", 1), ("one,0", "epoch"), ("1,x", "row")]
)
def test_a_table_that_another_program_wrote_has_a_page_or_a_mistake_in_words(
    cells: str, shown: object, tmp_path: Path
) -> None:
    table = tmp_path / "a.csv"
    table.write_text(f"id,output,scores.right,epoch,row\na,tea,1,{cells}\n")
    if isinstance(shown, str):
        with pytest.raises(InvalidInput, match=f"a.csv:2: '{shown}' is not a whole number"):
            page_of(table)
    else:
        (side,) = page_of(table)["sides"]  # type: ignore[misc]
        assert side["rows"][0]["epochs"] == [
            {"output": "tea", "epoch": shown, "scores": {"right": 1}}
        ]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("profile"), width=1280, height=900) as browser:
        yield browser


def opened(browser: Chromium, folder: Path, *paths: Path) -> None:
    pieces = evaluation_json(paths, traces=folder / "traces")
    page = folder / "page.html"
    page.write_bytes(b"".join(html_of(pieces, nonce="chance", kind="evaluation")))
    browser.open(page.as_uri())
    browser.wait_for("document.querySelectorAll('.row').length > 0")


def count(browser: Chromium, selector: str) -> object:
    return browser.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length")


@pytest.mark.slow
def test_rows_are_sorted_filtered_and_searched_in_a_browser(
    browser: Chromium, tmp_path: Path
) -> None:
    answers = {f"{n}+1": "4" if n % 2 else f"5 {NASTY}" for n in range(10)}
    path = evaluate(tmp_path, "a.jsonl", answers)
    opened(browser, tmp_path, path)
    assert count(browser, ".row") == 10
    browser.evaluate("$('score').value = 'number'; redraw()")
    browser.evaluate("$('filter').value = 'below the best score'; choose()")
    assert count(browser, ".row") == 5
    browser.evaluate("$('filter').value = 'all'; $('search').value = 'onerror'; choose()")
    assert browser.evaluate("$('found').textContent") == ""  # in the findings of all
    browser.evaluate("$('search').value = '7+1'; choose()")
    assert browser.evaluate("$('found').textContent") == "1 of 10 rows"
    browser.evaluate("$('search').value = ''; sort = 'score'; isDown = true; choose()")
    assert browser.evaluate("document.querySelector('.row .end').textContent") == "1  1"
    browser.evaluate("for (const row of document.querySelectorAll('.row')) row.open = true")
    browser.wait_for("document.querySelectorAll('.epoch').length === 20")
    assert browser.evaluate("document.body.innerText.includes('the target is')")
    assert count(browser, "main img, main script") == 0
    assert browser.evaluate("window.ran") is None
    assert count(browser, ".bars div") == 20


@pytest.mark.slow
def test_two_evaluations_stand_row_by_row(browser: Chromium, tmp_path: Path) -> None:
    first = evaluate(tmp_path, "a.jsonl", {"2+2": "4", "3+1": "5"})
    second = evaluate(tmp_path, "b.jsonl", {"2+2": "4", "3+1": "4", "1+3": "4"})
    opened(browser, tmp_path, first, second)
    browser.evaluate("$('score').value = 'number'; redraw()")
    browser.evaluate("$('filter').value = 'second is higher'; choose()")
    assert browser.evaluate("document.querySelector('.row .good').textContent") == "+1"
    browser.evaluate("document.querySelector('.row').open = true")
    browser.wait_for("document.querySelectorAll('.sides h3').length === 2")
    browser.evaluate("$('filter').value = 'without a score'; choose()")
    assert count(browser, ".row") == 1


@pytest.mark.slow
def test_figures_have_their_names_and_say_what_they_are_of(
    browser: Chromium, tmp_path: Path
) -> None:
    line = {"id": "a", "epoch": 1, "output": "so", "inputs": {"q": "Why?"}}
    for name, score, epochs in (("a", "number", 1), ("b", "includes", 2)):
        lines = [line | {"epoch": n + 1, "scores": {score: 1}} for n in range(epochs)]
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(of)}\n" for of in lines))
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    opened(browser, tmp_path, a, b)
    names = "[...document.querySelectorAll('#figures .name')].map((of) => of.textContent).join()"
    assert browser.evaluate(names) == "number,includes"
    title = "document.querySelectorAll('#titles button')[3].textContent"
    head = "document.querySelectorAll('#figures th')[2].textContent"
    for path, of, figure in ((a, "number", "mean"), (b, "epochs", "mean over epochs")):
        opened(browser, tmp_path, path)
        assert (browser.evaluate(title), browser.evaluate(head)) == (of, figure)


@pytest.mark.slow
def test_scores_that_a_scorer_did_not_give_are_shown(browser: Chromium, tmp_path: Path) -> None:
    opened(browser, tmp_path, rows_without_scores(tmp_path / "a.jsonl"))
    rows = "[...document.querySelectorAll('#figures tr')].map((of) => of.children[1].textContent)"
    assert browser.evaluate(rows) == ["rows", "2 (1 missing)", "2 (1 missing)", "1 (2 missing)"]
    browser.evaluate("for (const row of document.querySelectorAll('.row')) row.open = true")
    browser.wait_for("document.querySelectorAll('.epoch').length === 3")
    lines = "[...document.querySelectorAll('.epoch .wait')].map((of) => of.textContent)"
    assert browser.evaluate(lines) == ["no score from facts", "no score from facts.new, length"]


@pytest.mark.slow
def test_rows_without_an_id_stand_beside_those_with_the_same_inputs(
    browser: Chromium, tmp_path: Path
) -> None:
    for name, questions in (("a", "xy"), ("b", "yx")):
        lines = [
            {"id": f"t.csv:{n}", "epoch": 1, "file": "t.csv", "line": n, "output": q}
            | {"inputs": {"q": q}, "scores": {"number": float(q == "x")}}
            for n, q in enumerate(questions, start=2)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(of)}\n" for of in lines))
    opened(browser, tmp_path, tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert browser.evaluate("rows.map((row) => row.apart).join()") == "0,0"


@pytest.mark.slow
def test_thirty_thousand_outputs_open_and_sort_without_a_stall(
    browser: Chromium, tmp_path: Path
) -> None:
    with (tmp_path / "big.jsonl").open("w") as file:
        for number in range(30_000):
            line = {
                "id": str(number // 3),
                "epoch": number % 3 + 1,
                "target": "so",
                "output": "It is so. " * (number % 40),
                "scores": {"x": number % 7 / 6},
                "inputs": {"question": "What is it? " * 10},
            }
            file.write(json.dumps(line) + "\n")
    opened(browser, tmp_path, tmp_path / "big.jsonl")
    assert count(browser, ".row") <= 400
    took = browser.evaluate(
        "(() => { const began = performance.now(); sort = 'score'; $('search').value = 'so. it';"
        " redraw(); return performance.now() - began; })()"
    )
    assert isinstance(took, int | float)
    assert took < 1_500
