"""Whether a section breaks off before its end, as a text does that a token limit cut."""

from __future__ import annotations

import re

from harness.compress import Section
from harness.errors import Notice

# A stop of some script, what closes together with the sentence, and references: `[3]`, `[^note]`.
_SENTENCE_END = re.compile(
    r"[.!?\u2026\u3002\uff01\uff1f][\"'\u201d\u2019\u00bb)\]*_`\u300d\u300f\uff09]*"
    r"(?:\s?\[\^?\w{1,8}\])*$"
)


def unfinished(section: Section, *, leads_over: bool) -> Notice | None:
    """What is missing at a section's end, or None; whether its code is whole is not looked at.

    Args:
        section: A section that ought to have a text.
        leads_over: Whether subsections follow, which its last sentence may announce.
    """
    if not section.body.strip():
        return Notice(code="check.section-empty", message="this section has no text")
    # Rules, HTML and link definitions may stand behind the last sentence.
    written = [block for block in section.blocks if block.kind != "other"]
    if not written or written[-1].kind in {"table", "code"}:
        return None
    last = written[-1]
    if last.kind in {"item", "quote"} and last.text.rstrip().endswith(("```", "~~~")):
        return None
    if _ends_sentence(last.text) or (leads_over and last.text.rstrip().endswith(":")):
        return None
    # The items of a list need no full stop, unless the one before has one.
    before = written[-2] if len(written) > 1 else last
    if last.kind == "item" and not (before.kind == "item" and _ends_sentence(before.text)):
        return None
    return Notice(code="check.breaks-off", message="the last sentence breaks off; finish it")


def _ends_sentence(text: str) -> bool:
    return _SENTENCE_END.search(text.rstrip()) is not None
