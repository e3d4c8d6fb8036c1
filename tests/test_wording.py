"""No message is reworded by accident."""

import ast
import re

from sources import PACKAGE, name_of, nodes_of
from wording import CLASSES, SNAPSHOT, wording


def test_messages_are_worded_as_in_the_snapshot() -> None:
    assert wording() == SNAPSHOT.read_text(encoding="utf-8"), (
        "if that was meant: .venv/bin/python tests/wording.py --write"
    )


def test_codes_are_an_area_and_a_name() -> None:
    codes = {line.split(": ")[0] for line in wording().splitlines()} | set(CLASSES.values())
    odd = {code for code in codes if not re.fullmatch(r"[a-z-]+\.[a-z0-9-]+", code)}
    assert odd == set()


def test_errors_of_different_classes_have_different_codes() -> None:
    assert len(set(CLASSES.values())) == len(CLASSES)


GIVEN = {"InvalidInput", "ConfigurationInvalid", "PipelineInvalid", "RubricInvalid", "Problem"}
"""What is wrong with something that a person gave: programs tell the cases apart by their codes."""


def test_whatever_is_wrong_with_what_was_given_or_warned_of_has_a_code() -> None:
    modules = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "errors.py"]
    lacking = [
        f"{path.relative_to(PACKAGE)}:{call.lineno}"
        for path in modules
        for call in nodes_of(path)
        if isinstance(call, ast.Call) and wants_code(call) and not has_code(call)
    ]
    assert lacking == []


def wants_code(call: ast.Call) -> bool:
    called = name_of(call.func)
    return called in GIVEN or called in {"_log.warning", "_log.error", "_warn"}


def has_code(call: ast.Call) -> bool:
    """Whether it has one of its own, that of another error, or the caller's."""
    return any(
        keyword.arg is None
        or (keyword.arg == "code" and re.fullmatch(r"'.+'|(.+\.)?code", ast.unparse(keyword.value)))
        for keyword in call.keywords
    )
