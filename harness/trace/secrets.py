"""Secrets never reach a file: what a run writes passes through here first.

Known values (keys, and whatever is configured as secret) are replaced wherever they stand. Beyond
that, what stands under a name that only secrets have, after `Bearer`, or in the shape of a
well-known key is replaced too, since servers echo keys that nobody told us of.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import quote

import orjson

REDACTED = "[redacted]"

SHORTEST = 6
"""Characters. To replace every occurrence of something shorter would garble what it protects."""

_NAMES = (
    "authorization|proxy-authorization|x-api-key|api[-_]?key|access[-_]?token|client[-_]?secret|"
    "password|secret"
)
_QUOTE = r'\\*"'  # JSON within JSON text has its quotes escaped
_SHAPES = re.compile(
    rf"({_QUOTE}(?:{_NAMES}){_QUOTE}\s*:\s*{_QUOTE})[^\"\\]+"
    r"|(\bbearer\s+)[\w.~+/=-]{8,}"
    r"|\b(?:sk-|sk_|pk_|gsk_|hf_|r8_|ghp_|xoxb-)[\w-]{16,}",
    re.IGNORECASE,
)
# Most lines hold none of these, and to look for them is thirty times faster than to match.
_HINTS = (
    "authorization", "api_key", "api-key", "apikey", "access_token", "access-token", "accesstoken",
    "secret", "password", "bearer ", "sk-", "sk_", "pk_", "gsk_", "hf_", "r8_", "ghp_", "xoxb-",
)  # fmt: skip


class Redactor:
    """Replaces secrets in texts.

    Args:
        secrets: The values to keep out. Shorter ones than `SHORTEST` are left alone.
    """

    def __init__(self, secrets: Collection[str] = ()) -> None:
        forms: set[str] = set()
        for secret in secrets:
            stripped = secret.strip()
            if len(stripped) >= SHORTEST:
                # As it is, as JSON text has it, as a URL has it.
                as_json = orjson.dumps(stripped).decode()[1:-1]
                forms |= {stripped, as_json, quote(stripped, safe="")}
        # The longest first: a secret may contain another.
        self._forms = sorted(forms, key=len, reverse=True)

    def clean(self, text: str) -> str:
        """The text without its secrets."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, REDACTED)
        lowered = text.lower()
        for hint in _HINTS:
            if hint in lowered:
                return _SHAPES.sub(lambda m: f"{m[1] or m[2] or ''}{REDACTED}", text)
        return text

    def clean_line(self, line: bytes) -> bytes:
        """The same for one line of JSON, which stays JSON."""
        text = line.decode()
        cleaned = self.clean(text)
        return line if cleaned is text else cleaned.encode()
