"""The evaluations that the guides show, on the replies that Inspect AI was given."""

import json
import re

import pytest
from demo import ROOT
from session_runs import settings_of

from harness import Evaluation, ScriptedBackend, ScriptedReply, ToolCall
from harness.cli.project_files import load_evaluated

PRICES = {"tea": 3, "coffee": 2, "milk": 1}
# Of inspect_ai 0.3.285, with the code of the guide, from a server that gave these replies.
MEAN, STDERR = 0.6222222222222221, 0.014698618394803279


def table() -> str:
    """The 30 rows whose first the guide shows."""
    rows = ["id,question,target,group"]
    for n in range(30):
        item, cups = list(PRICES)[n % 3], n % 5 + 1
        question = f"What do {cups} cups of {item} cost? (question {n})"
        rows.append(f"q{n},{question},{cups * PRICES[item]},{item}")
    return "\n".join(rows) + "\n"


class Model:
    """Asks for the price if it can, then says a sum: in each epoch another, some off by 1 or 2."""

    def __init__(self):
        self.asked = {}

    def __call__(self, request):
        question = next(m.content for m in request.messages if m.role == "user")
        asked = re.search(r"do (\d+) cups of (\w+) cost\? \(question (\d+)", question)
        cups, item, n = asked.groups()
        if request.tools and not any(message.role == "tool" for message in request.messages):
            call = ToolCall("c1", "price", json.dumps({"item": item}))
            return ScriptedReply(tool_calls=(call,))
        epoch = self.asked[n] = self.asked.get(n, -1) + 1
        wrong = (0, 1, 2, 0)[(int(n) * 7 + epoch * 3) % 4]
        return f"The sum is {int(cups) * PRICES[item] + wrong}"


def shown(folder, monkeypatch, page):
    """A page, the code of its evaluation, and what comes of it."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(folder)
    (folder / "qa.py").write_text(code)
    (folder / "questions.csv").write_text(table())
    backends = {"producer": ScriptedBackend(Model())}
    return text, code, load_evaluated("qa.py").run(settings=settings_of(folder), backends=backends)


def test_it_takes_at_most_35_lines_and_has_the_figures_of_inspect(tmp_path, monkeypatch):
    page, code, done = shown(tmp_path, monkeypatch, "from-inspect")
    assert len(code.splitlines()) <= 35
    assert table().startswith(re.search(r"```text\n(id,.*?)```", page, re.DOTALL)[1])

    near = done.score("near")
    assert near.mean == pytest.approx(MEAN, abs=5e-5)
    assert near.stderr == pytest.approx(STDERR, abs=5e-5)
    assert done.run.spent.calls == 180
    assert f"\n{done.summary}\n" in page


def test_the_rubric_of_the_guide_judges_agreement_with_the_target(tmp_path):
    page = (ROOT / "docs" / "from-inspect.md").read_text(encoding="utf-8")
    (rubric,) = re.findall(r"`rubrics/agrees.yaml`.*?```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "agrees.yaml").write_text(rubric)

    def judge(request):
        prompt = request.messages[-1].content
        target = re.search(r"<(target-\w+)>\n(.*)\n</\1>", prompt)[2]
        draft = re.search(r"<(draft-\w+)>\n(.*)\n</\1>", prompt)[2]
        return json.dumps({"reason": "So.", "issues": [], "score": int(target in draft)})

    rows = [{"question": question, "target": "Paris"} for question in ("France?", "Spain?")]
    done = Evaluation("{question}", rows, rubric="agrees").run(
        settings=settings_of(tmp_path, rubrics=tmp_path, roles={"evaluator": "evaluator"}),
        backends={
            "producer": ScriptedBackend(["It is Paris.", "It is Madrid."]),
            "evaluator": ScriptedBackend(judge),
        },
    )
    assert (done.score("agrees.target").mean, done.score("agrees.passed").mean) == (0.5, 0.5)
    assert done.run.warnings == ()


def test_the_guide_to_evaluations_shows_what_its_file_prints(tmp_path, monkeypatch):
    page, _, done = shown(tmp_path, monkeypatch, "evaluations")
    assert f"\n{done.summary}\n" in page, done.summary
