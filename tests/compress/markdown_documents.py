"""Documents for property tests: pieces of Markdown that interact, and plain noise."""

from hypothesis import strategies as st

from harness.compress import sections_of

FRAGMENTS = [
    "# One\n", "## Two words\n\n", "  ### Indented\n", "Underlined\n===\n", "#\n",
    "####### seven\n", "Two lines\nunderlined\n---\n",
    "A sentence. Another one, e.g. this. And 3.14?!\n",
    "A paragraph\nof two lines. It ends here.\n\n", "2019. Not a list? It depends.\n",
    "- item\n", "- item\n  # in the list\n", "- ```\n  open in an item\n", "1. first\n\n   more\n",
    "> quoted\n> # in the quote\n", "```python\n# not a heading\n```\n", "~~~\nopen\n",
    "````\n```\n````\n", "    indented code\n", "\tindented by a tab\n",
    "| a | b |\n|---|---|\n| 1 | 2 |\n", "<!-- comment\n\n# hidden -->\n", "<!-- open\n",
    "<div>\n# raw\n", "<pre>\n\n# raw\n", "<?php\n\n", "<!DOCTYPE\n\n", "<![CDATA[\n\n",
    "[label]: http://example.org\n", "[label]:\n", "---\n", "\n", "   \n", "\x0c\n",
    "a\u2028# b\n", "\x0b\x85\x1c", "no line end",
]  # fmt: skip


def _with_line_ends(fragments: list[str], end: str) -> str:
    return "".join(fragments).replace("\n", end)


documents = st.one_of(
    st.builds(
        _with_line_ends,
        st.lists(st.sampled_from(FRAGMENTS), max_size=12),
        st.sampled_from(["\n", "\n", "\r\n", "\r"]),
    ),
    st.text(alphabet="#-=`~>*|: \t\n\r\x0c\u2028a1.[]<!", max_size=60),
)


def headings(markdown: str) -> list[str]:
    """The headings of a document, verbatim and in order."""
    return [section.heading.strip() for section in sections_of(markdown) if section.level]
