import subprocess
import sys

import pytest
from hypothesis import given
from markdown_documents import documents, steady

from harness.compress import sections_of
from harness.compress.blocks import blocks_of


def titles(markdown):
    return [(section.level, section.title) for section in sections_of(markdown)]


@steady
@given(documents)
def test_the_sections_joined_are_the_document(document):
    sections = sections_of(document)

    assert "".join(section.text for section in sections) == document
    assert all(section.text == section.heading + section.body for section in sections)
    assert all(section.level or index == 0 for index, section in enumerate(sections))


@steady
@given(documents)
def test_the_blocks_joined_are_the_document(document):
    assert "".join(block.text for block in blocks_of(document)) == document


def test_the_sections_of_a_long_document_joined_are_the_document(long_document):
    sections = sections_of(long_document)

    assert "".join(section.text for section in sections) == long_document
    assert len(sections) > 1


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        pytest.param("", [], id="empty"),
        pytest.param("just text\n", [(0, "")], id="no heading"),
        pytest.param(" \n\n", [(0, "")], id="blank lines only"),
        pytest.param("\n\n# A\n", [(1, "A")], id="blank lines before the first heading"),
        pytest.param("intro\n# A\n## B ##\n", [(0, ""), (1, "A"), (2, "B")], id="preamble"),
        pytest.param("###### six\n####### seven\n", [(6, "six")], id="six levels"),
        pytest.param(
            "A\nlong one\n===\ntext\n\nB\n-\n", [(1, "A long one"), (2, "B")], id="setext"
        ),
        pytest.param("# A\n```\n# no\n```\n# B\n", [(1, "A"), (1, "B")], id="fence"),
        pytest.param("# A\n````\n```\n# no\n````\n", [(1, "A")], id="longer fence"),
        pytest.param("# A\n~~~\n# no\n", [(1, "A")], id="unclosed fence"),
        pytest.param("# A\n\n    # no\n", [(1, "A")], id="indented code"),
        pytest.param("# A\n- x\n\n  # no\n> # no\n", [(1, "A")], id="list and quote"),
        pytest.param("- " * 30 + "x\n# A\n", [(0, ""), (1, "A")], id="deep list"),
        pytest.param("<!--\n# no\n-->\n# A\n", [(0, ""), (1, "A")], id="comment"),
        pytest.param("# A\r\ntext\r\n\r\n# B\r\n", [(1, "A"), (1, "B")], id="CRLF"),
        pytest.param("# A\rtext\r# B\r", [(1, "A"), (1, "B")], id="lone CR"),
        pytest.param("# A\u2028# no\n\x0c# no\n# B\n", [(1, "A\u2028# no"), (1, "B")], id="U+2028"),
        pytest.param("#\ntext\n", [(1, "")], id="empty title"),
    ],
)
def test_headings_are_those_of_commonmark(markdown, expected):
    found = [(level, title.replace(" # no", "\u2028# no")) for level, title in titles(markdown)]

    assert found == expected


def test_a_section_has_its_heading_and_its_body_verbatim():
    section = sections_of("# One *two* #\n\ntext\n\n    code\n\n## Next\n")[0]

    assert section.title == "One *two*"
    assert section.heading == "# One *two* #\n\n"
    assert section.body == "text\n\n    code\n\n"


def test_every_item_of_a_list_is_a_block_and_so_are_link_definitions():
    blocks = blocks_of("- a\n\n  more\n- b\n\n[x]: http://example.org\n\n```py\npass\n```\n[y]: /y")

    assert [(block.kind, block.text) for block in blocks] == [
        ("item", "- a\n\n  more\n"),
        ("item", "- b\n\n"),
        ("other", "[x]: http://example.org\n\n"),
        ("code", "```py\npass\n```\n"),
        ("other", "[y]: /y"),
    ]
    assert (blocks[3].fence, blocks[3].label) == ("```", "py")


def test_importing_the_package_does_not_import_the_parser():
    code = "import sys, harness.compress; sys.exit('markdown_it' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
