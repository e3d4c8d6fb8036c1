"""Putting new sections into a document: those that are known by number, and a model's reply."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from markdown_documents import documents, headings

from harness.compress import edits_in, sections_of, splice
from harness.errors import InvalidInput

# --- sections by number ------------------------------------------------------------------------

THREE = "intro\n\n# One\n\nfirst\n\n## Two\nsecond\n\n\n# Three\n\nthird"


@given(documents)
def test_sections_spliced_back_unchanged_give_the_document(document):
    sections = sections_of(document)

    assert splice(document, {}) == document
    assert splice(document, {n: section.text for n, section in enumerate(sections)}) == document


@given(documents, documents, st.data())
def test_whatever_is_spliced_in_the_other_sections_stay_as_they_are(document, replacement, data):
    before = sections_of(document)
    assume(before and replacement.strip(" \t\r\n"))
    index = data.draw(st.integers(0, len(before) - 1))
    try:
        result = splice(document, {index: replacement})
    except InvalidInput as error:
        assume(error.code != "compress.replacement-without-text")
        raise

    after = sections_of(result)
    following = before[index + 1 :]
    assert after[:index] == before[:index]
    assert after[len(after) - len(following) :] == following
    if before[index].level:
        own = after[index]
        assert (own.level, own.title) == (before[index].level, before[index].title)


SPLICED = {
    "only a body": (1, "new", "# One\n\nnew\n\n"),
    "same title, other level": (1, "### ONE\nnew", "# One\n\nnew\n\n"),
    "renamed": (1, "# Other\nnew", "# One\n\nnew\n\n"),
    "subsection first": (1, "## Sub\nnew", "# One\n\n## Sub\nnew\n\n"),
    "indented code": (2, "\n\n    code", "## Two\n    code\n\n\n"),
    "preamble": (0, "# Not its own\nnew", "# Not its own\nnew\n\n"),
    "no line end at the end": (3, "# Three\nnew\n", "# Three\n\nnew"),
    "open fence": (1, "```py\ncode", "# One\n\n```py\ncode\n```\n\n"),
    "open fence at the end": (3, "```\ncode\n", "# Three\n\n```\ncode\n```"),
    "fence ends with its list": (1, "- ```\n  code", "# One\n\n- ```\n  code\n\n"),
    "comment": (1, "a <b\n\n<!-- c", "# One\n\na <b\n\n<!-- c\n\n<!-- -->\n\n"),
}


@pytest.mark.parametrize(("index", "replacement", "expected"), SPLICED.values(), ids=SPLICED)
def test_a_replacement_keeps_heading_and_end_of_its_section(index, replacement, expected):
    texts = [section.text for section in sections_of(THREE)]
    texts[index] = expected

    assert splice(THREE, {index: replacement}) == "".join(texts)
    windows, spliced = (text.replace("\n", "\r\n") for text in (THREE, "".join(texts)))
    assert splice(windows, {index: replacement}) == spliced


FRONT = "---\ntitle: x\n---\n"
WHOLE = {
    "an underlined heading does not join the paragraph before it": (
        "# A\n***\nB\n===\n", {0: "new"}, "# A\nnew\n\nB\n===\n",
    ),
    "an indented heading is not taken in by a list before it": (
        "# A\ntext\n\n  # B\n", {0: "- new"}, "# A\n- new\n\n<!-- -->\n\n  # B\n",
    ),
    "a heading without line end gets a body": ("# A", {0: "text"}, "# A\n\ntext"),
    "what was empty may stay so": ("# A\n\n# B\n\n", {0: "", 1: "# B"}, "# A\n\n# B\n\n"),
    "front matter that comes back stays once": (
        f"{FRONT}intro\n\n# A\n", {0: f"{FRONT}new\n"}, f"{FRONT}new\n\n# A\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("document", "replacements", "expected"), WHOLE.values(), ids=WHOLE)
def test_a_replacement_leaves_the_rest_of_the_document_what_it_was(
    document, replacements, expected
):
    assert splice(document, replacements) == expected


REFUSED = {
    "empty": ("", "replacement-without-text"),
    "heading alone": ("## one", "replacement-without-text"),
    "nested beyond the parser": ("- " * 150 + "x", "nested-too-deeply"),
}


@pytest.mark.parametrize(("replacement", "code"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_a_section_is_refused(replacement, code):
    with pytest.raises(InvalidInput) as caught:
        splice(THREE, {1: replacement})
    assert caught.value.code == f"compress.{code}"


# --- a model's reply ---------------------------------------------------------------------------

DOCUMENT = """\
intro

# Guide

About this guide.

## 1. Install

Run the installer.

### Example

pip install it

## 2. `Use` it

Call it.

### Example

it.run()

## Notes

None.
"""


def applied(document, edits):
    return splice(document, edits.replacements, insertions=edits.insertions)


INTRO, GUIDE, INSTALL, EXAMPLE_1, USE, EXAMPLE_2, NOTES = range(7)


@given(documents, documents, st.data())
def test_whatever_is_returned_only_allowed_sections_change(document, reply, data):
    before = sections_of(document)
    allowed = data.draw(st.sets(st.integers(0, max(0, len(before) - 1))))
    # What comes back often has headings of the document, in some order.
    shown = data.draw(st.lists(st.sampled_from([s.heading for s in before] or [""]), max_size=3))
    reply = "New.\n\n".join([*shown, reply])
    try:
        edits = edits_in(reply, document, allowed=allowed)
        result = splice(document, edits.replacements)
    except InvalidInput as error:
        assume(error.code != "compress.nested-too-deeply")
        raise

    kept = [section for index, section in enumerate(before) if index not in allowed]
    others, titles = iter(sections_of(result)), iter(headings(result))
    assert all(section in others for section in kept)  # in this order
    assert all(title in titles for title in headings(document))
    first, last = (min(allowed), max(allowed)) if before and allowed else (len(before), len(before))
    assert result.startswith("".join(section.text for section in before[:first]))
    assert result.endswith("".join(section.text for section in before[last + 1 :]))


@given(documents)
def test_a_document_that_comes_back_unchanged_yields_no_edit(document):
    for reply in (document, f"```markdown\n{document}\n```\n"):
        edits = edits_in(reply, document, allowed=range(len(sections_of(document))))
        assert not edits, reply


MATCHED = {
    "case, colon": ("## NOTES:\nNew.", None, {NOTES: "New."}),
    "markup": ("## **Notes** ##\nNew.", None, {NOTES: "New."}),
    "another level": ("#### Notes\nNew.", None, {NOTES: "New."}),
    "another number": ("## 3) Install\nNew.", None, {INSTALL: "New."}),
    "section, colon": ("## Section 2: Use it\nNew.", None, {USE: "New."}),
    "order": ("## Notes\nA.\n\n## 1. Install\nB.", None, {NOTES: "A.", INSTALL: "B."}),
    "repeated titles go in order": (
        "### Example\nA.\n\n### Example\nB.", None, {EXAMPLE_1: "A.", EXAMPLE_2: "B."},
    ),
    "repeated, behind the section before it": (
        "## Use it\nA.\n### Example\nB.", None, {USE: "A.", EXAMPLE_2: "B."},
    ),
    "another level of repeated titles": ("# Example\nB.", None, {}),
    "an old one by a new name": ("## How to\n\nRun the installer.", None, {}),
    "not asked for": ("Here they are:\n\n## Notes\nNew.", {USE, NOTES}, {NOTES: "New."}),
    "the text before the first heading": (
        "New intro.\n\n## Notes\nNew.", {INTRO, NOTES}, {INTRO: "New intro.", NOTES: "New."},
    ),
    "courtesy before that text": (
        "Certainly, here it is:\n\nNew intro: it\n\nis new.", {INTRO},
        {INTRO: "New intro: it\n\nis new."},
    ),
    "fence without label, courtesies around it": (
        "Here:\n\n~~~~\n## Notes\nNew.\n~~~~\n\nAnything else?", None, {NOTES: "New."},
    ),
    "fence around a fence": (
        "```md\n## Notes\n```py\nx = 1\n```\nNew.\n```", None,
        {NOTES: "```py\nx = 1\n```\nNew."},
    ),
    "fence cut off": ("```markdown\n## Notes\nNew.", None, {NOTES: "New."}),
    "a fence in a section stays": (
        "## Notes\nWrite:\n```markdown\n## Notes\nText.\n```", None,
        {NOTES: "Write:\n```markdown\n## Notes\nText.\n```"},
    ),
    "unchanged but for white space": ("## Notes\nNone.  \n\n\n", None, {}),
}  # fmt: skip


@pytest.mark.parametrize(("reply", "allowed", "expected"), MATCHED.values(), ids=MATCHED)
def test_what_comes_back_is_matched_by_its_headings(reply, allowed, expected):
    edits = edits_in(reply, DOCUMENT, allowed=allowed)

    found = {index: sections_of(text)[0].body.strip() for index, text in edits.replacements.items()}
    assert found == expected
    assert edits.insertions == {}


NO_EDITS = {
    "empty": "## Notes\n",
    "mark of sentences": "## Notes\n\nOne. […]\n",
    "mark of a block": "## Notes\n\n[…]\n",
}


@pytest.mark.parametrize("reply", NO_EDITS.values(), ids=NO_EDITS)
def test_what_was_copied_from_a_shortened_text_never_replaces_the_full_one(reply):
    assert not edits_in(reply, DOCUMENT)


def test_a_mark_that_the_document_has_itself_is_text():
    document = "# Quote\n\nHe said […] so.\n"

    assert edits_in("# Quote\n\nShe said […] so.", document).replacements


# --- new sections ------------------------------------------------------------------------------


def test_new_headings_become_sections_behind_the_one_they_followed():
    reply = (
        "## Preface\n\nA.\n\n## 1. Install\n\nB.\n\n### On Windows\nC.\n\n## Upgrade\n\nD.\n\n"
        "## Empty\n\n## Notes\n\nNone.\n\nThe end\n===\n\nE."
    )

    edits = edits_in(reply, DOCUMENT)

    assert edits.insertions == {
        GUIDE: ["## Preface\n\nA.\n\n"],
        INSTALL: ["### On Windows\n\nC.\n\n"],
        EXAMPLE_1: ["## Upgrade\n\nD.\n\n"],
        NOTES: ["# The end\n\nE."],
    }
    assert headings(applied(DOCUMENT, edits)) == [
        *("# Guide", "## Preface", "## 1. Install", "### On Windows", "### Example", "## Upgrade"),
        *("## 2. `Use` it", "### Example", "## Notes", "# The end"),
    ]


ADDED = {
    "it leaves code open": (
        "# A\n\na\n\n# D\n\nd\n",
        "# A\n\na\n\n# B\n\nb\n\n```py\ncode",
        "# A\n\na\n\n# B\n\nb\n\n```py\ncode\n```\n\n# D\n\nd\n",
    ),
    "behind a section that was cut off in code": (
        "# A\n\n```py\ncode",
        "# A\n\n```py\ncode\n```\n\n# B\n\nb",
        "# A\n\n```py\ncode\n```\n\n# B\n\nb\n",
    ),
    "behind code without an end": (
        "# A\n\n```py\ncode\n", "# B\n\nOther.", "# A\n\n```py\ncode\n```\n# B\n\nOther.\n",
    ),
    "between front matter and the first section": (
        f"{FRONT}# A\n\na\n", "# B\n\nb\n\n# A\n\nc", f"{FRONT}# B\n\nb\n\n# A\n\nc\n",
    ),
    "none in a document without headings": (
        "Plain words.\n", "# Title\n\nAnother text altogether.", "Plain words.\n",
    ),
    "none where nothing matches": (DOCUMENT, "# Something\n\nnew\n\n## Else\n\ntext", DOCUMENT),
}  # fmt: skip


@pytest.mark.parametrize(("document", "reply", "expected"), ADDED.values(), ids=ADDED)
def test_a_new_section_takes_in_no_other(document, reply, expected):
    assert applied(document, edits_in(reply, document)) == expected
    windows = document.replace("\n", "\r\n")
    assert applied(windows, edits_in(reply, windows)) == expected.replace("\n", "\r\n")


@pytest.mark.parametrize("before", ["", "Here is the section that was missing:\n\n"])
def test_one_new_section_alone_comes_at_the_end(before):
    reply = f"{before}## Limits\n\nWindows is not supported.\n"

    edits = edits_in(reply, DOCUMENT, allowed={INSTALL})

    assert applied(DOCUMENT, edits) == f"{DOCUMENT}## Limits\n\nWindows is not supported.\n"
