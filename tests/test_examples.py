"""The examples, run on the real model: what each promises is in what it leaves."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from demo import ROOT

from harness import Draft, RunResult, ScriptedBackend, Settings, load_rubric
from harness.cli.pipeline_file import load_pipeline
from harness.inference import ChatRequest

EXAMPLES = ROOT / "examples"
DOCUMENTS = EXAMPLES / "documents"
ALDER = (DOCUMENTS / "alder-w1.md").read_text(encoding="utf-8")
BIRCH = (DOCUMENTS / "birch-s2.md").read_text(encoding="utf-8")
SAMPLE = (DOCUMENTS / "stock_report.py").read_text(encoding="utf-8")

FIGURE = re.compile(r"\d+(?:[.,]\d+)*")


def run_example(name: str, directory: Path) -> dict[str, Any]:
    """What `harness run examples/NAME.py --json` prints, far from the checkout."""
    shutil.copytree(EXAMPLES, directory / "examples")
    done = subprocess.run(
        [sys.executable, "-m", "harness", "run", f"examples/{name}.py", "--json"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def run_scripted(name: str, inputs: dict[str, str], traces: Path) -> RunResult:
    """The same without a model: of the lines that it is shown, the first is chosen."""

    def answer(request: ChatRequest) -> str:
        first = request.messages[-1].content.split("\n")[0]
        return json.dumps({"answer": first}) if request.reply_schema else "It returns."

    return asyncio.run(
        load_pipeline(str(EXAMPLES / f"{name}.py")).run_async(
            inputs,
            settings=Settings(traces=traces),
            backends={"producer": ScriptedBackend(answer)},
        )
    )


def parts_of(markdown: str) -> dict[str, list[str]]:
    """The lines under each heading that are not blank."""
    parts = re.split(r"(?m)^## (.+)$", markdown)
    lines = [[line for line in part.splitlines() if line.strip()] for part in parts[2::2]]
    return dict(zip(parts[1::2], lines, strict=True))


def grades(rubric: str, draft: Draft) -> dict[str, float]:
    """The share that the weakest check of each dimension gives."""
    checked = load_rubric(str(EXAMPLES / "rubrics" / f"{rubric}.yaml")).checked
    return {one.name: min(check.grade(draft).share for check in one.checks) for one in checked}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_example("compare", tmp_path_factory.mktemp("compare"))


@pytest.fixture(scope="module")
def review(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_example("code_review", tmp_path_factory.mktemp("code_review"))


# --- all of them --------------------------------------------------------------------------------


def test_all_that_there_are_are_run_by_the_tests() -> None:
    # `brief` is run by test_demo.py, the others here.
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"brief", "compare", "code_review"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_each_is_under_80_lines_and_the_guide_names_it(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 80
    assert f"| `{path.name}` |" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


# --- compare ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_comparison_quotes_every_sentence_of_both_documents_and_no_other(
    comparison: dict[str, Any],
) -> None:
    # A list in two levels, so that a quote follows its letter: `- A: “…”`.
    quoted = set(re.findall(r"- ([AB]): “(.+)”", comparison["result"]))
    said = {
        (letter, " ".join(sentence.split()))
        for letter, document in (("A", ALDER), ("B", BIRCH))
        for _, _, sentence in Draft(document, task="").sentences
    }
    assert quoted == said


@pytest.mark.parametrize(
    ("left", "right"),
    [
        pytest.param("48 GB of memory", "64 GB of memory", id="memory"),
        pytest.param("takes 6 seconds from disk", "takes 11 seconds from disk", id="loading"),
        pytest.param("62 tokens per second", "71 tokens per second", id="speed"),
        pytest.param("draws 520 W", "draws 690 W", id="power"),
        pytest.param("lasts 36 months", "lasts 24 months", id="warranty"),
        pytest.param("9,400 euros", "11,900 euros", id="price"),
        pytest.param("at most 4 of them", "adapters are not supported", id="figure-on-one-side"),
        pytest.param("within 4 hours", "within 1 working day", id="other-unit"),
    ],
)
def test_figures_that_differ_stand_side_by_side(
    comparison: dict[str, Any], left: str, right: str
) -> None:
    lines = parts_of(comparison["result"])["Where figures differ"]
    (at,) = [index for index, line in enumerate(lines) if left in line]
    assert lines[at].startswith("  - A: “")
    assert lines[at + 1].startswith("  - B: “")
    assert right in lines[at + 1]


def test_figures_that_are_the_same_are_not_said_to_differ(comparison: dict[str, Any]) -> None:
    parts = parts_of(comparison["result"])
    quotes = {
        title: [set(FIGURE.findall(line)) for line in lines if line.startswith("  - ")]
        for title, lines in parts.items()
    }
    both = quotes["What both speak of"]
    assert both[::2] == both[1::2]
    assert (
        "  - A: “The version before is kept, and going back to it takes 5 minutes.”"
        in (parts["What both speak of"])
    )
    differing = quotes["Where figures differ"]
    assert all(a != b for a, b in zip(differing[::2], differing[1::2], strict=True))


def test_what_only_one_says_is_under_its_letter(comparison: dict[str, Any]) -> None:
    alone = parts_of(comparison["result"])["What only one says"]
    assert "- A: “Clean the filter every 3 months.”" in alone
    assert "- B: “A water-cooled version is planned.”" in alone


def test_what_is_in_short_is_chosen_by_the_model_among_the_differences(
    comparison: dict[str, Any],
) -> None:
    parts = parts_of(comparison["result"])
    in_short, differences = parts["In short"], parts["Where figures differ"]
    assert 0 < len(in_short) < len(differences)
    assert set(in_short) <= set(differences)
    assert comparison["models"][0]["name"] == "smollm2-135m"
    assert comparison["models"][0]["calls"] == 1


def test_a_comparison_is_scored_by_its_rubric(comparison: dict[str, Any]) -> None:
    (loop,) = comparison["loops"]
    assert loop["rubric"] == "comparison"
    assert loop["stop_reason"] == "passed"
    assert loop["rounds"][0]["composite"] == 10
    assert loop["unjudged"] == ["useful"], "a 135M model judges nothing"


def test_documents_with_nothing_in_common_are_compared_all_the_same(tmp_path: Path) -> None:
    inputs = {"left": "# Tea\n\nSteep it\nfor 3 minutes.", "right": "# Bees\n\nThey dance."}
    parts = parts_of(str(run_scripted("compare", inputs, tmp_path).result))
    assert parts == {
        "In short": [],
        "Where figures differ": [],
        "What both speak of": [],
        "What only one says": ["- A: “Steep it for 3 minutes.”", "- B: “They dance.”"],
    }


def test_a_sentence_whose_nearest_is_nearer_to_another_is_in_no_pair(tmp_path: Path) -> None:
    # Nearest to it is what the other document says of a 13B model, which has its own pair.
    result = run_scripted("compare", {"left": BIRCH, "right": ALDER}, tmp_path)
    alone = parts_of(str(result.result))["What only one says"]
    assert "- A: “A 70B model at 4 bits gives 19 tokens per second to a single user.”" in alone


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        pytest.param("- A: “It costs 5 euros.”", "complete", id="figure-lost"),
        pytest.param(
            "- A: “It costs 5 euros.”\n- B: “It costs 8 euros.”", "grounded", id="made-up"
        ),
    ],
)
def test_a_comparison_that_is_wrong_in_a_figure_does_not_pass(text: str, dimension: str) -> None:
    headings = ["In short", "Where figures differ", "What both speak of", "What only one says"]
    sources = ("- A: “It costs 5 euros.”", "- B: “It costs 7 euros.”")
    right = "\n\n".join([f"## {heading}\n{chr(10).join(sources)}" for heading in headings])
    assert set(grades("comparison", Draft(right, task="", sources=sources)).values()) == {1.0}
    wrong = right.replace("\n".join(sources), text)
    assert grades("comparison", Draft(wrong, task="", sources=sources))[dimension] < 1


# --- code_review --------------------------------------------------------------------------------

PLANTED = {
    "def load_articles": ["no docstring", "no annotation: `path`, `cache`", "all calls share"],
    "    except:": ["`except` loses errors"],
    "if eval(": ["`eval` runs whatever it is given"],
    "def discount": ["no annotation: `article`, `rules`"],
    "def order_size": ["no docstring", "no annotation: `article`", "lines; cut it"],
    "def mail": ["no annotation: `address`"],
    "except OSError:": ["`except` loses errors"],
}
"""What is wrong in the sample, by what stands in its line."""


@pytest.mark.slow
@pytest.mark.parametrize("code", PLANTED, ids=lambda code: code.strip())
def test_every_planted_fault_is_named_by_its_line(review: dict[str, Any], code: str) -> None:
    (line,) = [n for n, text in enumerate(SAMPLE.splitlines(), start=1) if code in text]
    for fault in PLANTED[code]:
        assert re.search(rf"(?m)^- line {line}: .*{re.escape(fault)}", review["result"]), fault


def test_a_review_has_the_planted_faults_and_no_other(review: dict[str, Any]) -> None:
    assert review["result"].count("\n- line ") == sum(map(len, PLANTED.values()))


def test_a_review_has_a_section_for_every_function_in_order(review: dict[str, Any]) -> None:
    defined = sorted(
        (node.lineno, node.name)
        for node in ast.walk(ast.parse(SAMPLE))
        if isinstance(node, ast.FunctionDef)
    )
    assert list(parts_of(review["result"])) == [f"`{name}`, line {n}" for n, name in defined]


def test_where_the_rules_find_nothing_the_review_says_so(review: dict[str, Any]) -> None:
    parts = parts_of(review["result"])
    clean = [title for title, lines in parts.items() if lines == ["- nothing found"]]
    assert [title.split("`")[1] for title in clean] == ["low_stock", "__init__", "save"]


def test_the_model_suggests_a_docstring_where_there_is_none_and_nowhere_else(
    review: dict[str, Any],
) -> None:
    for lines in parts_of(review["result"]).values():
        suggested = [line for line in lines if line.startswith("- a docstring to begin with: “")]
        assert len(suggested) == any("no docstring" in line for line in lines)
        assert all(len(line) > 50 and line.endswith(".”") for line in suggested)
    assert review["models"][0]["calls"] >= 2


def test_a_review_is_scored_by_its_rubric(review: dict[str, Any]) -> None:
    (loop,) = review["loops"]
    best = loop["rounds"][loop["best_round"] - 1]
    assert loop["rubric"] == "code_review"
    assert review["result"] == best["draft"]
    assert {one["name"]: one["score"] for one in best["scores"]}["complete"] == 10
    assert loop["unjudged"] == ["useful"], "a 135M model judges nothing"


@pytest.mark.parametrize(
    ("code", "findings"),
    [
        pytest.param("def f(a: int) -> int:\n    return a", [], id="a-line-needs-no-docstring"),
        pytest.param("def _f() -> int:\n    print()\n    return 1", [], id="nor-what-is-private"),
        pytest.param("async def f(a):\n    return a", ["line 1: no annotation: `a`"], id="async"),
        pytest.param(
            "def f(a: int = 1, b: dict = {}, c: int = 2):\n    return a",
            ["line 1: all calls share this default; make it inside"],
            id="default-in-the-middle",
        ),
        pytest.param(
            "def f(*, a: list = []):\n    return a",
            ["line 1: all calls share this default; make it inside"],
            id="keyword-only",
        ),
        pytest.param(
            "class C:\n    class D:\n        def f(self, a):\n            return a",
            ["line 3: no annotation: `a`"],
            id="method-of-a-class-in-a-class",
        ),
        pytest.param(
            "def f():\n    try:\n        return 1\n    except KeyError:\n        return 2",
            [],
            id="caught",
        ),
        pytest.param(
            "def f():\n" + "    print()\n" * 20,
            ["line 1: 21 lines; cut it into functions", "line 1: no docstring"],
            id="long",
        ),
    ],
)
def test_the_rules_find(code: str, findings: list[str], tmp_path: Path) -> None:
    result = run_scripted("code_review", {"code": code}, tmp_path)
    functions: Any = result.outputs["functions"]
    assert [finding for function in functions for finding in function.findings] == findings


@pytest.mark.parametrize(
    ("line", "dimension"),
    [
        pytest.param("- line 1: an annotation is missing", "complete", id="in-other-words"),
        pytest.param(
            "- line 1: no annotation: `a`\n- as in `load`", "grounded", id="no-such-function"
        ),
        pytest.param("- line 1: no annotation: `a`\n- line 9 too", "grounded", id="no-such-line"),
    ],
)
def test_a_review_that_loses_or_invents_something_does_not_pass(line: str, dimension: str) -> None:
    sources = ("def f(a):\n    return a", "line 1: no annotation: `a`")
    right = "## `f`, line 1\n\n- line 1: no annotation: `a`"
    assert set(grades("code_review", Draft(right, task="", sources=sources)).values()) == {1.0}
    wrong = right.replace("- line 1: no annotation: `a`", line)
    assert grades("code_review", Draft(wrong, task="", sources=sources))[dimension] < 1
