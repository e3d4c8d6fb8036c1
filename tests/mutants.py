"""How many faults the tests notice: seeded mutants of the modules that decide most.

    python tests/mutants.py make MUTANTS.json             draws them, from this checkout
    python tests/mutants.py run MUTANTS.json [--json]     tries each against its package's tests

A mutant is one small change, such as `<` to `<=`, drawn by a seed. It is kept by the text that it
changes and not by a line, so that the same ones can be tried before and after a change of the
tests. Each is tried in a copy of the checkout with the tests of its own package (`-x`) and a
processor time of 60 s; one that runs out of it is not counted as noticed.

Not mutmut: it tries all mutants of a module and chooses tests by a run that traces them; not
cosmic-ray: it keeps no mutants across versions of a file.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Queue
from random import Random

ROOT = Path(__file__).parent.parent
MODULES = {
    "harness/graph/schedule.py": "tests/graph",
    "harness/wiggum/policy.py": "tests/wiggum",
    "harness/inference/providers/http.py": "tests/inference",
    "harness/trace/journal.py": "tests/trace",
    "harness/residency/load_policy.py": "tests/residency",
    "harness/memory/ranking.py": "tests/memory",
    "harness/rubric/verdict.py": "tests/rubric",
    "harness/rubric/reply.py": "tests/rubric",
}
A_MODULE = 15
PROCESSOR_S = 60
WALL_S = 400
ROOMS = ("harness", "tests", "rubrics", "patterns", "starter", "examples", "traces")

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True)
class Mutant:
    """One change of one module."""

    module: str
    old: str
    new: str
    nth: int
    """Which of the places that read `old`, from 0."""


@dataclass(frozen=True)
class Outcome:
    """What the tests made of it."""

    mutant: Mutant
    ended: str
    """`killed`, `survived`, or `timeout`."""
    by: str
    """The test that noticed it."""


# --- drawing -------------------------------------------------------------------------------------


def draw(root: Path, seed: int) -> list[Mutant]:
    """As many of each module, and the same for the same files and seed."""
    drawn = []
    for module in MODULES:
        text = (root / module).read_text(encoding="utf-8")
        all_of_it = sorted(
            set(mutants_of(module, text)), key=lambda one: (one.old, one.nth, one.new)
        )
        drawn += Random(f"{seed} {module}").sample(all_of_it, min(A_MODULE, len(all_of_it)))
    return drawn


def mutants_of(module: str, text: str) -> Iterator[Mutant]:
    """Every small change of what a module's functions do, but for texts and annotations."""
    for node in _logic(ast.parse(text)):
        old = ast.get_source_segment(text, node)
        if old is None or ("\n" in old and len(old) > 400):
            continue
        start = _offset(text, node)
        nth = _places(text, old).index(start)
        for new in _changes(node, text):
            if new != old:
                yield Mutant(module=module, old=old, new=new, nth=nth)


def _logic(tree: ast.AST) -> Iterator[ast.AST]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in function.body:
                yield from _inside(statement)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.FunctionDef | ast.AsyncFunctionDef):
        return
    yield node
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list", "type_params"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _inside(child)


def _changes(node: ast.AST, text: str) -> Iterator[str]:  # noqa: PLR0912 - a table of kinds
    def said(one: ast.AST) -> str:
        return ast.get_source_segment(text, one) or ""

    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in SWAPPED:
            yield f"({ast.unparse(ast.Compare(left, [SWAPPED[type(operator)]()], [right]))})"
        case ast.BinOp(left, operator, right) if type(operator) in SWAPPED:
            yield f"({ast.unparse(ast.BinOp(left, SWAPPED[type(operator)](), right))})"
        case ast.BoolOp(operator, values):
            yield f"({ast.unparse(ast.BoolOp(SWAPPED[type(operator)](), values))})"
            yield f"({said(values[0])})"
        case ast.UnaryOp(ast.Not(), operand):
            yield f"({said(operand)})"
        case ast.Constant(bool() as value):
            yield str(not value)
        case ast.Constant(int() | float() as value):
            yield str(value + 1)
        case ast.Call(ast.Name("min" | "max" as name)):
            yield ("max" if name == "min" else "min") + said(node)[3:]
        case ast.Call(ast.Name("any" | "all" as name)):
            yield ("all" if name == "any" else "any") + said(node)[3:]
        case ast.IfExp(_, body, orelse):
            yield f"({said(body)})"
            yield f"({said(orelse)})"
        case ast.Return(ast.expr()) if said(node) != "return None":
            yield "return None"
        case ast.Assign() | ast.AugAssign() | ast.Delete():
            yield "pass"
        case ast.Expr(ast.Call() | ast.Await()):
            yield "pass"
        case ast.Continue():
            yield "break"
        case ast.Break():
            yield "continue"


def _offset(text: str, node: ast.AST) -> int:
    lines = text.splitlines(keepends=True)[: node.lineno]  # type: ignore[attr-defined]
    before = lines[-1].encode()[: node.col_offset].decode()  # type: ignore[attr-defined]
    return sum(map(len, lines[:-1])) + len(before)


def _places(text: str, old: str) -> list[int]:
    places, start = [], text.find(old)
    while start >= 0:
        places.append(start)
        start = text.find(old, start + 1)
    return places


def mutated(text: str, mutant: Mutant) -> str | None:
    """A module with the change; None where what it changes is not there any more."""
    places = _places(text, mutant.old)
    if mutant.nth >= len(places):
        return None
    start = places[mutant.nth]
    return text[:start] + mutant.new + text[start + len(mutant.old) :]


# --- trying --------------------------------------------------------------------------------------


def run(mutants: list[Mutant], workers: int, options: list[str]) -> list[Outcome]:
    """What the tests make of each; as many checkouts as workers, each a copy of this one."""
    with tempfile.TemporaryDirectory() as place:
        copies: Queue[Path] = Queue()
        for number in range(workers):
            copies.put(copy_of(ROOT, Path(place, str(number))))

        def attempt(mutant: Mutant) -> Outcome:
            copy = copies.get()
            try:
                outcome = tried(mutant, copy, options)
            finally:
                copies.put(copy)
            change = f"{mutant.old!r} -> {mutant.new!r}"
            print(f"{outcome.ended:8} {mutant.module}: {change} {outcome.by}", file=sys.stderr)
            return outcome

        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(attempt, mutants))


def copy_of(root: Path, to: Path) -> Path:
    for room in ROOMS:
        shutil.copytree(root / room, to / room, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(root / file, to / file)
    return to


def tried(mutant: Mutant, copy: Path, options: list[str]) -> Outcome:
    path = copy / mutant.module
    text = path.read_text(encoding="utf-8")
    changed = mutated(text, mutant)
    if changed is None:
        return Outcome(mutant, "gone", "")
    path.write_text(changed, encoding="utf-8")
    try:
        return Outcome(mutant, *tested(copy, MODULES[mutant.module], options))
    finally:
        path.write_text(text, encoding="utf-8")


def tested(copy: Path, tests: str, options: list[str]) -> tuple[str, str]:
    pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *options, tests]
    limit = (PROCESSOR_S, PROCESSOR_S + 5)
    try:
        done = subprocess.run(
            pytest,
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WALL_S,
            check=False,
            start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, limit),
        )
    except subprocess.TimeoutExpired:
        return "timeout", ""
    if done.returncode < 0:
        return "timeout", ""
    by = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "killed" if done.returncode else "survived", by[0][:120] if by else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["make", "run"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("options", nargs="*", help="of pytest, after --")
    given = parser.parse_intermixed_args()
    if given.what == "make":
        drawn = [asdict(one) for one in draw(ROOT, given.seed)]
        given.file.write_text(json.dumps(drawn, indent=1) + "\n", encoding="utf-8")
        return
    mutants = [Mutant(**one) for one in json.loads(given.file.read_text(encoding="utf-8"))]
    outcomes = run(mutants, given.workers, given.options)
    if given.json:
        print(json.dumps([asdict(one) for one in outcomes], indent=1))
        return
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for one in outcomes:
        for row in (one.mutant.module, "all"):
            counts[row][one.ended] += 1
    for module, count in counts.items():
        print(module.ljust(40), dict(count))


if __name__ == "__main__":
    main()
