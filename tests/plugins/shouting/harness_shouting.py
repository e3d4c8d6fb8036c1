"""A check for rubrics: `check: no_shouting`, few words in capitals."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from pydantic import Field

from harness import Check, Draft, Finding, Grade

WORD = re.compile(r"[^\W\d_]{3,}")


class NoShouting(Check):
    """Words in capitals are at most a share of all words."""

    check: Literal["no_shouting"] = "no_shouting"
    max_share: float = Field(default=0.05, ge=0, le=1)
    """The share that is allowed: abbreviations are words in capitals too."""

    asks: ClassVar[str] = "Write at most {self.max_share:.0%} of the words in capitals."

    def grade(self, draft: Draft) -> Grade:
        """See `Check.grade`."""
        words = WORD.findall(draft.text)
        if not words:
            return Grade(1.0, unjudged="there are no words")
        loud = [word for word in words if word.isupper()]
        share = len(loud) / len(words)
        if share <= self.max_share:
            return Grade(1.0)
        message = f"{len(loud)} of {len(words)} words are in capitals, such as {loud[0]}"
        return Grade(1 - share, (Finding(message, code="shouting.capitals"),))
