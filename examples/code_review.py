"""A review of a Python file: what rules find in each function, and what a model adds to it.

    harness run examples/code_review.py --set code=@my_module.py

The rules read the syntax tree. The producer suggests the docstrings that are missing. No review
meets `rubrics/code_review.yaml` that loses a finding, or names what the file does not have.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness import Pipeline, Run

HERE = Path(__file__).parent
CODE = (HERE / "documents/stock_report.py").read_text(encoding="utf-8")
Definition = ast.FunctionDef | ast.AsyncFunctionDef
review = Pipeline("code-review")


@dataclass(frozen=True)
class Function:
    """A function or method, and what the rules find in it."""

    title: str
    code: str
    findings: list[str]


@review.node
def functions(code: str = CODE) -> list[Function]:
    """Those of the file, in order."""
    scopes = [n for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Module | ast.ClassDef)]
    nodes = [n for scope in scopes for n in scope.body if isinstance(n, Definition)]
    found = []
    for node in sorted(nodes, key=lambda node: node.lineno):
        findings = [f"line {line}: {what}" for line, what in sorted(findings_in(node))]
        found.append(Function(f"`{node.name}`, line {node.lineno}", ast.unparse(node), findings))
    return found


@review.node(each={"function": "functions"}, models=["producer"])
async def sections(run: Run, function: Function) -> str:
    """One function's findings, and a docstring to begin with where it lacks one."""
    lines = [f"- {finding}" for finding in function.findings] or ["- nothing found"]
    if "no docstring" in "".join(function.findings):
        ask = f"{function.code}\n\nIn one sentence, what does this function do?"
        it = await run.chat("producer", ask, max_output_tokens=60, on_cut="keep", stop=["\n", ". "])
        lines.append(f"- a docstring to begin with: “{it.removesuffix('.')}.”")
    return "\n".join([f"## {function.title}", *lines])


@review.node(models=["producer", "evaluator"])
async def text(run: Run, functions: list[Function], sections: list[str]) -> str:
    """The review, held against the code and the findings."""
    task = "What should be mended in these functions, and how?"
    sources = [source for one in functions for source in (one.code, *one.findings)]
    rubric = HERE / "rubrics/code_review.yaml"
    draft = "\n\n".join(sections)
    return (await run.wiggum(task, rubric=rubric, draft=draft, sources=sources, max_rounds=2)).text


def findings_in(function: Definition) -> Iterator[tuple[int, str]]:
    if len(function.body) > 1 and function.name[0] != "_" and not ast.get_docstring(function):
        yield function.lineno, "no docstring"
    if (length := len(ast.unparse(function).splitlines())) > 20:
        yield function.lineno, f"{length} lines; cut it into functions"
    if bare := [f"`{a.arg}`" for a in function.args.args if not a.annotation and a.arg != "self"]:
        yield function.lineno, f"no annotation: {', '.join(bare)}"
    for default in [*function.args.defaults, *function.args.kw_defaults]:
        if isinstance(default, ast.List | ast.Dict | ast.Set):
            yield default.lineno, "all calls share this default; make it inside"
    for node in ast.walk(function):
        match node:
            case ast.ExceptHandler(type=None) | ast.ExceptHandler(body=[ast.Pass()]):
                yield node.lineno, "`except` loses errors; name those you expect, and log them"
            case ast.Call(func=ast.Name(id="eval" | "exec" as name)):
                yield node.lineno, f"`{name}` runs whatever it is given; parse it instead"
