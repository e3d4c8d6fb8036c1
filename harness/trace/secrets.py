"""Secrets never reach a file: what a run writes passes through here first.

Known values (keys, and whatever is configured as secret) are replaced wherever they stand. Beyond
that, what stands under a name that only secrets have, after `Bearer`, or in the shape of a
well-known key is replaced too, since servers echo keys that nobody told us of.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from urllib.parse import quote, quote_plus

import orjson

from harness.trace.lenient_json import dump_json

REDACTED = "[redacted]"

SHORTEST = 6
"""Characters. To replace every occurrence of something shorter would garble what it protects."""

_NAMES = (
    "(?:[a-z0-9_-]*[_-])?"
    "(?:authorization|api[-_]?key|access[-_]?token|client[-_]?secret|password|secret)"
)
_NAME = re.compile(_NAMES, re.IGNORECASE)
_QUOTE = r"\\*[\"']"  # JSON within JSON text has its quotes escaped
# Ordinary words have no digits, and secrets by chance always do.
_SHAPES = re.compile(
    rf"(?P<named>(?P<q>{_QUOTE}){_NAMES}(?P=q)\s*:\s*(?P<r>{_QUOTE}))(?!(?P=r)).+?(?<!\\)(?=(?P=r))"
    r"|(?P<bearer>\bbearer\s+)(?=[\w.~+/=-]*\d)[\w.~+/=-]{8,}"
    r"|\b(?:sk-|sk_|pk_|gsk_|hf_|r8_|ghp_|xoxb-)(?=[\w-]*\d)[\w-]{16,}",
    re.IGNORECASE | re.DOTALL,
)
# Most lines hold none of these, and to look for them is thirty times faster than to match.
_HINTS = (
    "authorization", "api_key", "api-key", "apikey", "access_token", "access-token", "accesstoken",
    "secret", "password", "bearer", "sk-", "sk_", "pk_", "gsk_", "hf_", "r8_", "ghp_", "xoxb-",
)  # fmt: skip
_CLOSED = ("kind", "status")
"""Fields of a record whose values are the journal's own words."""


class Redactor:
    """Replaces secrets in texts.

    Args:
        secrets: The values to keep out. Shorter ones than `SHORTEST` are left alone.
    """

    def __init__(self, secrets: Collection[str] = ()) -> None:
        # As a journal has them: what is no valid Unicode is written as `?`.
        values = {secret.strip().encode("utf-8", "replace").decode() for secret in secrets}
        self._values = {value for value in values if len(value) >= SHORTEST}
        forms: set[str] = set()
        for value in self._values:
            # As it is, as a URL has it, as JSON text has it, and JSON text within that.
            escaped = _escaped(value)
            forms |= {value, quote(value, safe=""), quote_plus(value), *escaped}
            forms.update(*map(_escaped, escaped))
        # The longest first: a secret may contain another.
        self._forms = sorted(forms, key=len, reverse=True)

    def clean(self, text: str) -> str:
        """The text without its secrets."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, REDACTED)
        if _has_hint(text):
            return _SHAPES.sub(lambda m: f"{m['named'] or m['bearer'] or ''}{REDACTED}", text)
        return text

    def clean_line(self, line: bytes) -> bytes:
        """The same for a record's line, whose own words and times stay as they are."""
        if not self.finds_any(line):
            return line
        record = orjson.loads(line)
        cleaned = {
            name: self._cleaned(value)
            if isinstance(value, str | list | dict) and name not in _CLOSED
            else value
            for name, value in record.items()
        }
        return line if cleaned == record else dump_json(cleaned) + b"\n"

    def finds_any(self, lines: bytes) -> bool:
        """Whether lines may hold a secret; one look at many of them tells that nearly always."""
        text = lines.decode()
        return _has_hint(text) or any(form in text for form in self._forms)

    def _cleaned(self, value: object) -> object:
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, list):
            return [self._cleaned(one) for one in value]
        if isinstance(value, dict):
            return {
                self.clean(name): REDACTED
                if isinstance(one, str | int | float) and _NAME.fullmatch(name)
                else self._cleaned(one)
                for name, one in value.items()
            }
        return REDACTED if str(value) in self._values else value


def _escaped(text: str) -> set[str]:
    return {orjson.dumps(text).decode()[1:-1], json.dumps(text)[1:-1]}


def _has_hint(text: str) -> bool:
    lowered = text.lower()
    for hint in _HINTS:  # noqa: SIM110 - as `any`, it takes twice as long
        if hint in lowered:
            return True
    return False
