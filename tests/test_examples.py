"""The examples: what each promises is in what it leaves, whatever its model says."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from demo import ROOT, run_demo

from harness import Draft, RunResult, load_rubric
from harness.cli.project_files import load_pipeline
from harness.inference import ChatRequest
from harness.testing import Script, run_pipeline

EXAMPLES = ROOT / "examples"
DOCUMENTS = EXAMPLES / "documents"
ALDER = (DOCUMENTS / "alder-w1.md").read_text(encoding="utf-8")
BIRCH = (DOCUMENTS / "birch-s2.md").read_text(encoding="utf-8")
SAMPLE = (DOCUMENTS / "stock_report.py").read_text(encoding="utf-8")
FIGURE = re.compile(r"\d+(?:[.,]\d+)*")


def run_scripted(name: str, **inputs: str) -> RunResult:
    """An example without a model: of the lines that are shown, the first is chosen."""

    def answer(request: ChatRequest) -> str:
        first = request.messages[-1].content.split("\n")[0]
        return first if request.reply_schema else "It returns."

    pipeline = load_pipeline(str(EXAMPLES / f"{name}.py"))
    return run_pipeline(pipeline, Script({"producer": answer}), **inputs)


def parts_of(markdown: object) -> dict[str, list[str]]:
    """The lines under each heading that are not blank."""
    parts = re.split(r"(?m)^## (.+)$", str(markdown))
    lines = [[line for line in part.splitlines() if line.strip()] for part in parts[2::2]]
    return dict(zip(parts[1::2], lines, strict=True))


def grades(rubric: str, draft: Draft) -> dict[str, float]:
    """The share that the weakest check of each dimension gives."""
    checked = load_rubric(str(EXAMPLES / "rubrics" / f"{rubric}.yaml")).checked
    return {one.name: min(check.grade(draft).share for check in one.checks) for one in checked}


@pytest.fixture(scope="module")
def comparison() -> dict[str, list[str]]:
    result = run_scripted("compare")
    assert result.passed
    return parts_of(result.result)


@pytest.fixture(scope="module")
def review() -> dict[str, list[str]]:
    return parts_of(run_scripted("code_review").result)


def test_each_is_run_by_the_tests_is_short_and_stands_in_the_guide() -> None:
    examples = {path.name: path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.py")}
    guide = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    lines = {name: len(text.splitlines()) for name, text in examples.items()}
    assert lines.pop("service.py") < 120, "tests/test_service.py runs it"
    assert lines.keys() == {"brief.py", "compare.py", "code_review.py"}
    assert max(lines.values()) < 80
    assert [name for name in examples if f"| `{name}` |" not in guide] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rubric", "own"),
    [
        pytest.param("compare", "comparison", "## In short", id="compare"),
        pytest.param("code_review", "code_review", "- a docstring to begin with", id="code_review"),
    ],
)
def test_on_the_real_model_all_is_the_same_but_what_it_chooses_or_writes(
    tmp_path: Path, name: str, rubric: str, own: str
) -> None:
    real = run_demo(tmp_path, example=name).result
    (loop,) = real["loops"]
    assert (loop["rubric"], loop["unjudged"]) == (rubric, ["useful"]), "a 135M model judges nothing"
    assert loop["rounds"][0]["composite"] > 9
    assert real["models"][0]["name"] == "smollm2-135m"
    scripted = parts_of(run_scripted(name).result)
    for title, lines in parts_of(real["result"]).items():
        if title == "In short":
            assert set(lines) == set(scripted[title])
        else:
            kept = [line for line in lines if not line.startswith(own)]
            assert kept == [line for line in scripted[title] if not line.startswith(own)]


# --- compare ------------------------------------------------------------------------------------


def test_a_comparison_quotes_every_sentence_of_both_documents_and_no_other(
    comparison: dict[str, list[str]],
) -> None:
    # A list in two levels, so that a quote follows its letter: `- A: “…”`.
    lines = "\n".join(line for part in comparison.values() for line in part)
    said = {
        (letter, " ".join(sentence.split()))
        for letter, document in (("A", ALDER), ("B", BIRCH))
        for _, _, sentence in Draft(document, task="").sentences
    }
    assert set(re.findall(r"- ([AB]): “(.+)”", lines)) == said


@pytest.mark.parametrize(
    ("left", "right"),
    [
        pytest.param("48 GB of memory", "64 GB of memory", id="memory"),
        pytest.param("9,400 euros", "11,900 euros", id="price"),
        pytest.param("at most 4 of them", "adapters are not supported", id="figure-on-one-side"),
        pytest.param("within 4 hours", "within 1 working day", id="other-unit"),
    ],
)
def test_figures_that_differ_stand_side_by_side(
    comparison: dict[str, list[str]], left: str, right: str
) -> None:
    lines = comparison["Where figures differ"]
    (at,) = [index for index, line in enumerate(lines) if left in line]
    assert lines[at].startswith("  - A: “")
    assert lines[at + 1].startswith("  - B: “")
    assert right in lines[at + 1]


def test_figures_that_are_the_same_are_not_said_to_differ(
    comparison: dict[str, list[str]],
) -> None:
    quotes = {
        title: [set(FIGURE.findall(line)) for line in lines if line.startswith("  - ")]
        for title, lines in comparison.items()
    }
    both = quotes["What both speak of"]
    assert both[::2] == both[1::2]
    same = "  - A: “The version before is kept, and going back to it takes 5 minutes.”"
    assert same in comparison["What both speak of"]
    differing = quotes["Where figures differ"]
    assert all(a != b for a, b in zip(differing[::2], differing[1::2], strict=True))


def test_what_only_one_says_and_what_decides_have_their_places(
    comparison: dict[str, list[str]],
) -> None:
    assert "- A: “Clean the filter every 3 months.”" in comparison["What only one says"]
    assert "- B: “A water-cooled version is planned.”" in comparison["What only one says"]
    in_short, differences = comparison["In short"], comparison["Where figures differ"]
    assert 0 < len(in_short) < len(differences)
    assert set(in_short) <= set(differences)


def test_documents_with_nothing_in_common_are_compared_all_the_same() -> None:
    inputs = {"left": "# Tea\n\nSteep it\nfor 3 minutes.", "right": "# Bees\n\nThey dance."}
    assert parts_of(run_scripted("compare", **inputs).result) == {
        "In short": [],
        "Where figures differ": [],
        "What both speak of": [],
        "What only one says": ["- A: “Steep it for 3 minutes.”", "- B: “They dance.”"],
    }


def test_a_sentence_whose_nearest_is_nearer_to_another_is_in_no_pair() -> None:
    # Nearest to it is what the other document says of a 13B model, which has its own pair.
    result = run_scripted("compare", left=BIRCH, right=ALDER)
    alone = parts_of(result.result)["What only one says"]
    assert "- A: “A 70B model at 4 bits gives 19 tokens per second to a single user.”" in alone


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


def test_every_planted_fault_is_named_by_its_line_and_no_other(
    review: dict[str, list[str]],
) -> None:
    found = [line for lines in review.values() for line in lines if line.startswith("- line ")]
    for code, faults in PLANTED.items():
        (number,) = [n for n, text in enumerate(SAMPLE.splitlines(), start=1) if code in text]
        for fault in faults:
            assert any(line.startswith(f"- line {number}: ") and fault in line for line in found)
    assert len(found) == sum(map(len, PLANTED.values()))


def test_a_review_has_a_section_for_every_function_in_order(review: dict[str, list[str]]) -> None:
    defined = sorted(
        (node.lineno, node.name)
        for node in ast.walk(ast.parse(SAMPLE))
        if isinstance(node, ast.FunctionDef)
    )
    assert list(review) == [f"`{name}`, line {n}" for n, name in defined]
    clean = [title for title, lines in review.items() if lines == ["- nothing found"]]
    assert [title.split("`")[1] for title in clean] == ["low_stock", "__init__", "save"]
    for lines in review.values():
        suggested = [line for line in lines if line.startswith("- a docstring to begin with: “")]
        assert len(suggested) == any("no docstring" in line for line in lines)


@pytest.mark.parametrize(
    ("code", "findings"),
    [
        pytest.param("def f(a: int) -> int:\n    return a", [], id="a-line-needs-no-docstring"),
        pytest.param("async def f(a):\n    return a", ["line 1: no annotation: `a`"], id="async"),
        pytest.param(
            "def f(a: int = 1, b: dict = {}, c: int = 2):\n    return a",
            ["line 1: all calls share this default; make it inside"],
            id="default-in-the-middle",
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
def test_the_rules_find(code: str, findings: list[str]) -> None:
    functions: Any = run_scripted("code_review", code=code).outputs["functions"]
    assert [finding for function in functions for finding in function.findings] == findings


# --- their rubrics ------------------------------------------------------------------------------

COMPARED = ("- A: “It costs 5 euros.”", "- B: “It costs 7 euros.”")
HEADINGS = ["In short", "Where figures differ", "What both speak of", "What only one says"]
COMPARISON = "\n\n".join(f"## {heading}\n{chr(10).join(COMPARED)}" for heading in HEADINGS)
REVIEWED = ("def f(a):\n    return a", "line 1: no annotation: `a`")
REVIEW = "## `f`, line 1\n\n- line 1: no annotation: `a`"


@pytest.mark.parametrize(
    ("text", "wrong", "dimension"),
    [
        pytest.param(COMPARISON, COMPARED[0], "complete", id="figure-lost"),
        pytest.param(
            COMPARISON, f"{COMPARED[0]}\n- B: “It costs 8 euros.”", "grounded", id="made-up"
        ),
        pytest.param(REVIEW, "- line 1: an annotation is missing", "complete", id="other-words"),
        pytest.param(
            REVIEW, "- line 1: no annotation: `a`\n- as in `load`", "grounded", id="no-function"
        ),
        pytest.param(
            REVIEW, "- line 1: no annotation: `a`\n- line 9 too", "grounded", id="no-such-line"
        ),
    ],
)
def test_what_loses_or_invents_something_does_not_pass(
    text: str, wrong: str, dimension: str
) -> None:
    rubric, sources = ("comparison", COMPARED) if text is COMPARISON else ("code_review", REVIEWED)
    right = "\n".join(COMPARED) if text is COMPARISON else "- line 1: no annotation: `a`"
    assert set(grades(rubric, Draft(text, task="", sources=sources)).values()) == {1.0}
    spoilt = Draft(text.replace(right, wrong), task="", sources=sources)
    assert grades(rubric, spoilt)[dimension] < 1
