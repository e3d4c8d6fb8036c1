import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from markdown_documents import documents, headings, steady

from harness.compress import AddedSection, Edits, apply_edits, edits_in, sections_of, splice
from harness.errors import InvalidInput

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
INTRO, GUIDE, INSTALL, EXAMPLE_1, USE, EXAMPLE_2, NOTES = range(7)


def is_in_order(some, others):
    rest = iter(others)
    return all(one in rest for one in some)


@steady
@given(documents, documents, st.data())
def test_whatever_is_returned_only_allowed_sections_change(document, reply, data):
    before = sections_of(document)
    allowed = data.draw(st.sets(st.integers(0, max(0, len(before) - 1))))
    # What comes back often has headings of the document, in some order.
    shown = data.draw(st.lists(st.sampled_from([s.heading for s in before] or [""]), max_size=3))
    reply = "New.\n\n".join([*shown, reply])
    try:
        result = apply_edits(document, edits_in(reply, document, allowed=allowed), allowed=allowed)
    except InvalidInput as error:
        assume("less deeply" not in str(error))
        raise

    kept = [section for index, section in enumerate(before) if index not in allowed]
    assert is_in_order(kept, sections_of(result))
    assert is_in_order(headings(document), headings(result))
    first, last = (min(allowed), max(allowed)) if before and allowed else (len(before), len(before))
    assert result.startswith("".join(section.text for section in before[:first]))
    assert result.endswith("".join(section.text for section in before[last + 1 :]))


@steady
@given(documents, st.data())
def test_the_sections_that_were_asked_for_are_put_where_they_came_from(document, data):
    before = sections_of(document)
    assume(before)
    asked = data.draw(st.sets(st.integers(0, len(before) - 1)))
    reply = "".join(
        f"{'#' * before[index].level} {before[index].title}\n\nNew text {index}.\n\n"
        if before[index].level
        else f"New text {index}.\n\n"
        for index in sorted(asked)
    )

    edits = edits_in(reply, document, allowed=asked)

    assert edits.replacements.keys() == asked
    assert apply_edits(document, edits, allowed=asked) == splice(
        document, {index: f"{before[index].heading}\n\nNew text {index}." for index in asked}
    )


@steady
@given(documents)
def test_a_document_that_comes_back_unchanged_yields_no_edit(document):
    for reply in (document, f"```markdown\n{document}\n```\n"):
        edits = edits_in(document, document, allowed=range(len(sections_of(document))))
        assert not edits, reply
        assert apply_edits(document, edits) == document


def test_several_sections_of_a_long_document_come_back_without_touching_the_others(long_document):
    before = sections_of(long_document)
    asked = [n for n in range(1, len(before), 3) if before[n].body.strip()]
    reply = "Here are the sections:\n\n" + "".join(
        f"{before[n].heading}Rewritten, in a few words.\n\n" for n in asked
    )

    result = apply_edits(long_document, edits_in(reply, long_document, allowed=asked))

    after = sections_of(result)
    assert [section.heading for section in after] == [section.heading for section in before]
    for index, section in enumerate(before):
        if index in asked:
            assert after[index].body.strip() == "Rewritten, in a few words."
        else:
            assert after[index] == section


@pytest.mark.parametrize(
    ("reply", "allowed", "expected"),
    [
        pytest.param("## Notes\n\nNew.\n", None, {NOTES: "New."}, id="as it is"),
        pytest.param("## NOTES:\nNew.", None, {NOTES: "New."}, id="case, colon"),
        pytest.param("## **Notes** ##\nNew.", None, {NOTES: "New."}, id="markup"),
        pytest.param("Notes\n-----\n\nNew.", None, {NOTES: "New."}, id="underlined"),
        pytest.param("#### Notes\nNew.", None, {NOTES: "New."}, id="another level"),
        pytest.param("## Install\nNew.", None, {INSTALL: "New."}, id="no number"),
        pytest.param("## 3) Install\nNew.", None, {INSTALL: "New."}, id="another number"),
        pytest.param("## Section 2: Use it\nNew.", None, {USE: "New."}, id="section, colon"),
        pytest.param("## 4.1 Notes\nNew.", None, {NOTES: "New."}, id="number where there was none"),
        pytest.param(
            "## Notes\nA.\n\n## 1. Install\nB.", None, {NOTES: "A.", INSTALL: "B."}, id="order"
        ),
        pytest.param(
            "### Example\nA.\n\n### Example\nB.",
            None,
            {EXAMPLE_1: "A.", EXAMPLE_2: "B."},
            id="repeated titles go in order",
        ),
        pytest.param("### Example\nB.", {EXAMPLE_2}, {EXAMPLE_2: "B."}, id="repeated, one allowed"),
        pytest.param(
            "## Use it\nA.\n### Example\nB.",
            None,
            {USE: "A.", EXAMPLE_2: "B."},
            id="repeated, behind the section before it",
        ),
        pytest.param(
            "## Example\nB.", {EXAMPLE_2}, {EXAMPLE_2: "B."}, id="another level, one allowed"
        ),
        pytest.param("# Example\nB.", None, {}, id="another level of repeated titles"),
        pytest.param("Nothing to change here.", None, {}, id="no heading"),
        pytest.param("", None, {}, id="empty"),
        pytest.param("## How to\n\nRun the installer.", None, {}, id="an old one by a new name"),
        pytest.param(
            "Sure! Here are the revised sections:\n\n## Notes\nNew.",
            None,
            {NOTES: "New."},
            id="courtesy",
        ),
        pytest.param(
            "Here they are:\n\n## Notes\nNew.", {USE, NOTES}, {NOTES: "New."}, id="not asked for"
        ),
        pytest.param(
            "New intro.\n\n## Notes\nNew.",
            {INTRO, NOTES},
            {INTRO: "New intro.", NOTES: "New."},
            id="the text before the first heading",
        ),
        pytest.param(
            "Certainly, here it is:\n\nNew intro: it\n\nis new.",
            {INTRO},
            {INTRO: "New intro: it\n\nis new."},
            id="courtesy before that text",
        ),
        pytest.param("```markdown\n## Notes\nNew.\n```", None, {NOTES: "New."}, id="fence"),
        pytest.param(
            "Here:\n\n~~~~\n## Notes\nNew.\n~~~~\n\nAnything else?",
            None,
            {NOTES: "New."},
            id="fence without label, courtesies around it",
        ),
        pytest.param(
            "```md\n## Notes\n```py\nx = 1\n```\nNew.\n```",
            None,
            {NOTES: "```py\nx = 1\n```\nNew."},
            id="fence around a fence",
        ),
        pytest.param("```markdown\n## Notes\nNew.", None, {NOTES: "New."}, id="fence cut off"),
        pytest.param(
            "## Notes\nWrite:\n```markdown\n## Notes\nText.\n```",
            None,
            {NOTES: "Write:\n```markdown\n## Notes\nText.\n```"},
            id="a fence in a section stays",
        ),
        pytest.param("## Notes\nNone.  \n\n\n", None, {}, id="unchanged but for white space"),
    ],
)
def test_what_comes_back_is_matched_by_its_headings(reply, allowed, expected):
    edits = edits_in(reply, DOCUMENT, allowed=allowed)

    found = {index: sections_of(text)[0].body.strip() for index, text in edits.replacements.items()}
    assert found == expected
    assert edits.added == ()


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        pytest.param("## Notes\n", "edit.without-text", id="empty"),
        pytest.param("## Notes\n\nOne. […]\n", "edit.of-shortened-text", id="mark of sentences"),
        pytest.param(
            "## Notes\n\n[python code left out, lines: 3]\n", "edit.of-shortened-text", id="of code"
        ),
        pytest.param(
            "## Notes\n\n[table left out, rows: 12]\n", "edit.of-shortened-text", id="of a table"
        ),
    ],
)
def test_what_was_copied_from_a_shortened_text_never_replaces_the_full_one(reply, code):
    edits = edits_in(reply, DOCUMENT)

    assert not edits
    assert edits.refused[NOTES].code == code


def test_a_mark_that_the_document_has_itself_is_text():
    document = "# Quote\n\nHe said […] so.\n"

    assert edits_in("# Quote\n\nShe said […] so.", document).replacements


def test_new_headings_become_sections_behind_the_one_they_followed():
    reply = (
        "## Preface\n\nA.\n\n## 1. Install\n\nB.\n\n### On Windows\nC.\n\n## Upgrade\n\nD.\n\n"
        "## Empty\n\n## Notes\n\nNone.\n\nThe end\n===\n\nE."
    )

    edits = edits_in(reply, DOCUMENT)

    assert edits.added == (
        AddedSection(follows=GUIDE, level=2, text="## Preface\n\nA.\n\n"),
        AddedSection(follows=INSTALL, level=3, text="### On Windows\n\nC.\n\n"),
        AddedSection(follows=EXAMPLE_1, level=2, text="## Upgrade\n\nD.\n\n"),
        AddedSection(follows=NOTES, level=1, text="# The end\n\nE."),
    )
    assert headings(apply_edits(DOCUMENT, edits)) == [
        *("# Guide", "## Preface", "## 1. Install", "### On Windows", "### Example", "## Upgrade"),
        *("## 2. `Use` it", "### Example", "## Notes", "# The end"),
    ]


def test_where_sections_are_named_a_new_one_is_taken_only_as_a_part_of_one_of_them():
    reply = "## 1. Install\n\nB.\n\n### On Windows\n\nC.\n\n## Upgrade\n\nD.\n\n## Notes\n\nE.\n"

    result = apply_edits(DOCUMENT, edits_in(reply, DOCUMENT), allowed={INSTALL})

    assert result == DOCUMENT.replace("Run the installer.\n\n", "B.\n\n### On Windows\n\nC.\n\n")


def test_a_new_section_before_all_others_comes_first():
    assert apply_edits("# B\n\nb", edits_in("# A\n\na\n\n# B\n\nnew", "# B\n\nb")) == (
        "# A\n\na\n\n# B\n\nnew"
    )


def test_a_new_section_that_leaves_code_open_does_not_take_in_the_next():
    document = "# A\n\na\n\n# D\n\nd\n"
    reply = "# A\n\na\n\n# B\n\nb\n\n```py\ncode"

    result = apply_edits(document, edits_in(reply, document))

    assert result == "# A\n\na\n\n# B\n\nb\n\n```py\ncode\n```\n\n# D\n\nd\n"


def test_a_section_that_was_cut_off_in_code_is_closed_before_a_new_one():
    document = "# A\n\n```py\ncode"

    result = apply_edits(document, edits_in(f"{document}\n```\n\n# B\n\nb", document))

    assert result == "# A\n\n```py\ncode\n```\n\n# B\n\nb\n"


@pytest.mark.parametrize("before", ["", "Here is the section that was missing:\n\n"])
def test_one_new_section_alone_comes_at_the_end(before):
    reply = f"{before}## Limits\n\nWindows is not supported.\n"

    edits = edits_in(reply, DOCUMENT, allowed={INSTALL})

    assert apply_edits(DOCUMENT, edits) == f"{DOCUMENT}## Limits\n\nWindows is not supported.\n"
    assert apply_edits(DOCUMENT, edits, allowed={INSTALL, NOTES}) == DOCUMENT


def test_a_reply_with_a_heading_is_not_added_to_a_document_without_any():
    assert not edits_in("# Title\n\nAnother text altogether.", "Plain words.\n")


def test_without_a_match_there_are_no_edits_at_all():
    edits = edits_in("# Something\n\nnew\n\n## Else\n\ntext", DOCUMENT)

    assert edits == Edits()
    assert not edits
    assert apply_edits(DOCUMENT, edits) == DOCUMENT


def test_edits_for_another_document_are_refused():
    edits = edits_in("## Notes\n\nNew.", DOCUMENT)

    with pytest.raises(InvalidInput, match="no section 6; the document has 1"):
        apply_edits("# A\n", edits)
