"""No message is reworded by accident."""

import re

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
