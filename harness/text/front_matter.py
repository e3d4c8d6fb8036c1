"""Front matter: metadata in YAML or TOML that stands before a text, and is none of it."""

import re

# A first line of marks; keys, items, comments and lines that go on; and the same marks again.
_FRONT_MATTER = re.compile(
    r"\ufeff?(?P<marks>---|\+\+\+)[ \t]*\r?\n(?=[\w\"'\[#-])"
    r"(?:(?:[\w\"'.][^\n:=]*[:=][^\n]*|[ \t][^\n]*|-[ \t][^\n]*|[#\[\]{}][^\n]*|\r?)\n)+?"
    r"(?P=marks)[ \t]*(?:\r?\n|\Z)"
)


def front_matter(text: str) -> str:
    """The front matter of a text with its marks and the end of its line; empty if it has none."""
    match = _FRONT_MATTER.match(text)
    return match[0] if match else ""
