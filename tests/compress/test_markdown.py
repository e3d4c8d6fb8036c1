"""Taking a document apart: into sections, blocks and passages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_documents import documents

from harness.compress import passages_of, sections_of, splice
from harness.compress.markdown import Excerpt, blocks_of

# --- sections and blocks -----------------------------------------------------------------------


@given(documents)
def test_the_parts_of_a_document_joined_are_the_document(document):
    sections = sections_of(document)

    assert "".join(section.text for section in sections) == document
    assert all(section.text == section.heading + section.body for section in sections)
    assert all(section.level or index == 0 for index, section in enumerate(sections))
    assert "".join(block.text for block in blocks_of(document)) == document


TITLES = {
    "blank lines only": (" \n\n", [(0, "")]),
    "blank lines before the first heading": ("\n\n# A\n", [(1, "A")]),
    "preamble": ("intro\n# A\n## B ##\n", [(0, ""), (1, "A"), (2, "B")]),
    "setext": ("A\nlong one\n===\ntext\n\nB\n-\n", [(1, "A long one"), (2, "B")]),
    "fence": ("# A\n```\n# no\n```\n# B\n", [(1, "A"), (1, "B")]),
    "longer fence": ("# A\n````\n```\n# no\n````\n", [(1, "A")]),
    "list and quote": ("# A\n- x\n\n  # no\n> # no\n", [(1, "A")]),
    "comment": ("<!--\n# no\n-->\n# A\n", [(0, ""), (1, "A")]),
    "CRLF": ("# A\r\ntext\r\n\r\n# B\r\n", [(1, "A"), (1, "B")]),
    "front matter": ("---\ntitle: Shop\ndate: 2026-03-04\n---\n\n# A\n", [(1, "A")]),
    "front matter with a list": ("---\ntags:\n  - shop\n---\nintro\n\n# A\n", [(0, ""), (1, "A")]),
    "front matter alone": ("---\ntitle: Shop\n---\n", [(0, "")]),
    "YAML that dots end": ("---\ntitle: Shop\n...\n# A\n", [(1, "A")]),
    "JSON": ('{\n  "title": "Shop"\n}\n\n# A\n', [(1, "A")]),
    "JSON alone": ('{\n  "title": "Shop"\n}\n', [(0, "")]),
    "pandoc": ("% Shop\n% Ann\n\n# A\n", [(1, "A")]),
    "MDX": ("import A from './a'\n\nexport const b = {\n  c: 1\n}\n\n# A\n", [(1, "A")]),
    "attributes": ("# A {#a .b}\n\nB {: #b}\n---\n\n# {C}\n", [(1, "A"), (2, "B"), (1, "{C}")]),
    "TOML": ("+++\ntitle = 'Shop'\n+++\n# A\n", [(1, "A")]),
    "prose between rules": ("---\nSo: it is\nlong.\n\n---\n# A\n", [(0, ""), (1, "A")]),
    "two rules": ("---\n\nintro\n\n---\n# A\n", [(0, ""), (1, "A")]),
    "no end": ("---\ntitle: Shop\n\n# A\n", [(0, ""), (1, "A")]),
    "U+2028": ("# A\u2028# no\n\x0c# no\n# B\n", [(1, "A # no"), (1, "B")]),
}


@pytest.mark.parametrize(("markdown", "expected"), TITLES.values(), ids=TITLES)
def test_headings_are_those_of_commonmark(markdown, expected):
    found = [(s.level, s.title.replace("\u2028", " ")) for s in sections_of(markdown)]

    assert found == expected


def test_front_matter_is_no_text():
    written = "---\ntitle: Moving\n---\n\nThe old shop was dark.\n"
    (section,) = sections_of(written)

    assert (section.body, section.text) == ("The old shop was dark.\n", written)
    assert [one.text for one in passages_of(written)] == ["The old shop was dark."]
    assert [one.text for one in passages_of("---\na: b\n...\nimport 'x'\n\nA.\n\n:::")] == ["A."]
    assert splice(written, {0: "It was dark."}) == written.replace("The old shop", "It")


def test_a_section_has_its_heading_and_its_body_verbatim():
    section = sections_of("# One *two* #\n\ntext\n\n    code\n\n## Next\n")[0]

    assert section.title == "One *two*"
    assert section.heading == "# One *two* #\n\n"
    assert section.body == "text\n\n    code\n\n"


# --- passages ----------------------------------------------------------------------------------


@given(documents, st.integers(1, 80))
def test_the_passages_are_the_bodies_of_the_document_and_no_longer_than_asked(document, max_chars):
    texts = [passage.text for passage in passages_of(document, max_chars=max_chars)]

    blocks = (block for section in sections_of(document) for block in section.blocks)
    body = "".join(block.text for block in blocks if block.kind != "metadata")
    assert "".join("".join(texts).split()) == "".join(body.split())
    assert all(text.strip() and len(text) <= max_chars for text in texts)


def test_a_passage_is_titled_with_the_headings_above_it():
    document = "intro\n# Guide\na\n## Install\nb\n#### Windows\nc\n## Use\n# Other\nd\n#\ne\n"

    assert passages_of(document) == (
        Excerpt(title="", text="intro"),
        Excerpt(title="Guide", text="a"),
        Excerpt(title="Guide > Install", text="b"),
        Excerpt(title="Guide > Install > Windows", text="c"),
        Excerpt(title="Other", text="d"),
        Excerpt(title="", text="e"),
    )


CODE = "```py\nx = 1\n\ny = 2\n```"
PACKED = {
    "as long as they fit": (
        "aaaa\n\nbbbb\n\ncccc\n\n    dd\n", 10, ["aaaa\n\nbbbb", "cccc", "    dd"],
    ),
    "cut at sentence ends and between words": (
        "One\nshort. Two\nshort. Three is a longer one. Averylongword.", 12,
        ["One\nshort.", "Two\nshort.", "Three is a", "longer one.", "Averylongwor", "d."],
    ),
    "code whole": (f"Some text.\n\n{CODE}\n\nMore.", len(CODE), ["Some text.", CODE, "More."]),
    "a page's end, as of a PDF's text": ("aaaa bbbb.\n\n\f", 10, ["aaaa bbbb."]),
    "longer code": (CODE, 12, ["```py\nx = 1", "y = 2\n```"]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "max_chars", "expected"), PACKED.values(), ids=PACKED)
def test_blocks_are_packed_into_passages(text, max_chars, expected):
    assert [p.text for p in passages_of(text, max_chars=max_chars)] == expected
