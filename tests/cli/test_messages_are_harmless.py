"""What a message may hold that a terminal would obey, wherever the message goes."""

from __future__ import annotations

from io import StringIO

import pytest

from harness.cli.consoles import Shown, clean_json, say

CASES = {
    "clipboard": ("\x1b]52;c;aGk=", "?]52;c;aGk="),
    "one byte": ("\x9b2J", "?2J"),
    "order": ("a\u202eb", "a\\u202eb"),
    "isolate": ("a\u2066b", "a\\u2066b"),
    "Hebrew": ("\u05d0\u200f!", "\u05d0\u200f!"),
}


@pytest.mark.parametrize(("text", "shown"), CASES.values(), ids=CASES)
def test_a_message_is_harmless_where_it_goes_into_a_file(
    capsys: pytest.CaptureFixture[str], text: str, shown: str
) -> None:
    say(text, err=True)
    assert capsys.readouterr().err == f"{shown}\n"
    file = StringIO()
    Shown(file=file, width=80).print(text)
    assert file.getvalue() == f"{shown}\n"


def test_a_result_that_is_piped_keeps_its_characters() -> None:
    file = StringIO()
    Shown(of_result=True, file=file, width=80).print("\x1b[1m\u202e")
    assert file.getvalue() == "\x1b[1m\u202e\n"


def test_in_json_such_characters_are_escaped_and_stay_the_same() -> None:
    assert clean_json('{"a":"\x9b\u202e"}'.encode()) == b'{"a":"\\u009b\\u202e"}'
