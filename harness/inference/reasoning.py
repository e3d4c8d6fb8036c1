"""Thinking aloud, told apart from the answer where the server has left them in one text."""

from __future__ import annotations

import re
from typing import Literal

_OPEN = "<think>"
_CLOSE = "</think>"
_CLOSED_ALONE = re.compile(r"</think>\s*(?:\n|$)")


class ReasoningSplitter:
    """Divides a reply that arrives piece by piece.

    Only a text that begins with `<think>` holds reasoning: further in, the tag is one the answer
    speaks of. Without a closing tag all of it is reasoning.
    """

    def __init__(self) -> None:
        self._held = ""
        self._state: Literal["undecided", "reasoning", "between", "answer"] = "undecided"

    def feed(self, piece: str) -> tuple[str, str]:
        """What the piece adds to the reasoning, and what to the answer.

        The start of what may be a tag is held back until the rest of it is here.
        """
        if self._state == "answer":
            return "", piece
        if self._state == "between":
            return "", self._begin(piece)
        self._held += piece
        if self._state == "undecided":
            start = self._held.lstrip()
            if len(start) < len(_OPEN) and _OPEN.startswith(start):
                return "", ""
            if not start.startswith(_OPEN):
                return self._all_is_answer()
            self._state, self._held = "reasoning", start[len(_OPEN) :]
        thought, closed, rest = self._held.partition(_CLOSE)
        if closed:
            self._state, self._held = "between", ""
            return thought, self._begin(rest)
        kept = _overlap(self._held, _CLOSE)
        thought, self._held = (
            self._held[: len(self._held) - kept],
            self._held[-kept:] if kept else "",
        )
        return thought, ""

    def rest(self) -> tuple[str, str]:
        """What is still held back, once the reply is whole."""
        held, self._held = self._held, ""
        return (held, "") if self._state == "reasoning" else ("", held)

    def _begin(self, piece: str) -> str:
        """The blank lines between the thought and the answer belong to neither."""
        begun = piece.lstrip()
        if begun:
            self._state = "answer"
        return begun

    def _all_is_answer(self) -> tuple[str, str]:
        self._state, held = "answer", self._held
        self._held = ""
        return "", held


def split_unopened(answer: str) -> tuple[str, str]:
    """Reasoning and answer of a text whose `<think>` was the end of the prompt.

    Some templates put it there, and only the closing tag, at the end of a line, is in the reply.
    Only the whole of it can be told apart so: whoever listened to its pieces has heard the
    reasoning as part of the answer.
    """
    found = _CLOSED_ALONE.search(answer)
    if found is None or _OPEN in answer[: found.start()]:
        return "", answer
    return answer[: found.start()], answer[found.end() :].lstrip()


def _overlap(text: str, tag: str) -> int:
    """How many characters at the end of a text may be the start of a tag."""
    return next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), 0)
