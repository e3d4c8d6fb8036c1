import pytest

from harness.errors import RubricInvalid
from harness.rubric import Dimension, Scale, load_rubric_file
from harness.rubric.checks import Excludes, Words

GOOD = """\
# An essay.
title: Essay
purpose: >
  A short essay
  for people.
scale: {min: 1, max: 5, step: 1}
pass_at: 4
focus_below: 3.5

dimensions:
  - name: length
    weight: 2
    floor: 3
    checks:
      - { check: words, min: 200, max: 400 }
      - check: excludes
        phrases: [" TODO ", as an AI]
  - name: useful
    judge: >
      Does it help?
    anchors:
      5: It does.
      2.5: It may.
    optional: true
"""


@pytest.fixture
def load(tmp_path):
    """Loads a rubric of this content."""

    def load_content(content):
        path = tmp_path / "essay.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return load_rubric_file(path)

    return load_content


def test_a_rubric_is_read_as_it_is_written(load):
    rubric = load(GOOD)

    assert (rubric.id, rubric.title, rubric.purpose) == (
        "essay",
        "Essay",
        "A short essay for people.",
    )
    assert rubric.scale == Scale(min=1, max=5, step=1)
    assert (rubric.pass_at, rubric.focus_below) == (4, 3.5)
    length, useful = rubric.dimensions
    assert length == Dimension(
        name="length",
        weight=2,
        floor=3,
        checks=(Words(min=200, max=400), Excludes(phrases=("TODO", "as an AI"))),
    )
    assert useful == Dimension(
        name="useful",
        judge="Does it help?",
        anchors={5: "It does.", 2.5: "It may."},
        optional=True,
    )
    assert rubric.judged == (useful,)


def test_what_is_left_out_has_the_books_defaults(load):
    rubric = load("title: T\ndimensions:\n- name: a\n  judge: Good?\n")

    assert rubric.scale == Scale(min=0, max=10, step=0.5)
    assert (rubric.pass_at, rubric.focus_below, rubric.purpose) == (8, 7, "")
    assert rubric.dimensions == (Dimension(name="a", weight=1, floor=None, judge="Good?"),)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("\n", "\r\n", id="line ends"),
        pytest.param("# An essay.", "# Another comment.", id="comment"),
        pytest.param("pass_at: 4", "pass_at: 4.0", id="number in other letters"),
        pytest.param(
            "{min: 1, max: 5, step: 1}", "{step: 1, max: 5, min: 1}", id="order of fields"
        ),
        pytest.param(
            "pass_at: 4", "preset: book\npass_at: 4", id="preset of which nothing is left"
        ),
    ],
)
def test_the_digest_stays_where_nothing_else_is_said(load, before, after):
    assert before in GOOD
    assert load(GOOD.replace(before, after)).sha256 == load(GOOD).sha256


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("pass_at: 4", "pass_at: 4.5", id="threshold"),
        pytest.param("max: 400", "max: 401", id="parameter of a check"),
        pytest.param("Does it help?", "Does it help me?", id="question"),
        pytest.param("5: It does.", "5: It might.", id="anchor"),
        pytest.param("weight: 2", "weight: 3", id="weight"),
        pytest.param("title: Essay", "title: Letter", id="title, which evaluators are shown"),
    ],
)
def test_the_digest_changes_with_what_is_said(load, before, after):
    assert before in GOOD
    assert load(GOOD.replace(before, after)).sha256 != load(GOOD).sha256


def test_the_digest_does_not_depend_on_the_files_name(load, tmp_path):
    (tmp_path / "other.yaml").write_text(GOOD)

    assert load_rubric_file(tmp_path / "other.yaml").sha256 == load(GOOD).sha256


def test_a_byte_order_mark_is_not_part_of_the_first_name(load):
    assert load(b"\xef\xbb\xbf" + GOOD.encode()).title == "Essay"


def test_words_and_dates_are_texts_and_only_true_is_true(load):
    rubric = load(
        "title: 2026-01-31\n"
        "dimensions:\n"
        "- name: a\n"
        "  checks: [{ check: excludes, phrases: [no, On, y] }]\n"
        "- name: b\n"
        "  judge: Good?\n"
        "  anchors: { 9: Yes, 3: No }\n"
        "  optional: true\n"
        "- name: c\n"
        "  checks: [{ check: excludes, phrases: [12:30, 0x1f, 010, =, 1_000] }]\n"
    )

    assert rubric.title == "2026-01-31"
    assert rubric.dimensions[0].checks == (Excludes(phrases=("no", "On", "y")),)
    assert rubric.dimensions[2].checks == (
        Excludes(phrases=("12:30", "0x1f", "010", "=", "1_000")),
    )
    assert rubric.dimensions[1].anchors == {9: "Yes", 3: "No"}
    assert rubric.dimensions[1].optional


def test_authors_are_told_what_every_check_and_question_requires(load):
    assert load(GOOD).requirements == (
        "The whole text has 200 to 400 words.",
        "These do not occur: TODO, as an AI.",
        "Does it help?",
    )


def dimension(*fields: str) -> str:
    """A rubric whose one dimension has these lines, the first of them on line 4."""
    return "".join(f"{line}\n" for line in ["title: T", "dimensions:", "- name: a", *fields])


BOMB = """\
a: &a [x, x, x, x, x, x, x, x, x, x]
b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]
c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b, *b]
d: [*c, *c, *c, *c, *c, *c, *c, *c, *c, *c]
"""

# Content, line, and what the message says, remedy included.
MISTAKES = {
    "misspelt field": (
        "titel: T\ndimensions:\n- name: a\n  judge: Good?\n",
        1,
        "'titel' is not allowed here; did you mean 'title'?",
    ),
    "unknown field": (
        "title: T\nversion: 3\n" + dimension("  judge: Good?").removeprefix("title: T\n"),
        2,
        "not allowed here; known: dimensions, extends, focus_below, judge, pass_at, preset, ",
    ),
    "misspelt field of a dimension": (
        dimension("  judge: Good?", "  wieght: 2"),
        5,
        "'wieght' is not allowed here; did you mean 'weight'?",
    ),
    "misspelt field of the scale": (
        "scale:\n  minn: 0\n" + dimension("  judge: Good?"),
        2,
        "'minn' is not allowed here; did you mean 'min'?",
    ),
    "misspelt field of a check": (
        dimension("  checks:", "  - check: words", "    mn: 3"),
        6,
        "'mn' is not allowed here; did you mean 'min'?",
    ),
    "field whose name is a number": (
        dimension("  judge: Good?", "  5: x"),
        5,
        "'5' is not allowed here; known: anchors, caps, checks, feedback, floor, gate, judge, ",
    ),
    "field that loading fills in": (
        "id: mine\n" + dimension("  judge: Good?"),
        1,
        "'id' is filled in on loading; leave it out",
    ),
    "misspelt check": (
        dimension("  checks:", "  - { check: finished }", "  - { check: wrods, min: 3 }"),
        6,
        "there is no check 'wrods'; did you mean 'words'?",
    ),
    "unknown check": (
        dimension("  checks: [{ check: magic }]"),
        4,
        "there is no check 'magic'; known: contains_all, contains_any, excludes, finished, ",
    ),
    "check without a name": (
        dimension("  checks:", "  - min: 3"),
        5,
        "'check' is missing, which says which check it is; known: contains_all, ",
    ),
    "check that is only a name": (
        dimension("  checks:", "  - words"),
        5,
        "write this as '- { check: words }'",
    ),
    "both checks and a judge": (
        dimension("  judge: Good?", "  checks: [{ check: finished }]"),
        3,
        "dimension 'a' needs either 'checks' or 'judge', and has both",
    ),
    "neither checks nor a judge": (
        dimension("  weight: 2"),
        3,
        "dimension 'a' needs either 'checks' or 'judge', and has neither",
    ),
    "judge without a question": (
        dimension("  judge: '  '"),
        4,
        "judge: must not be empty",
    ),
    "weight of 0": (
        dimension("  judge: Good?", "  weight: 0"),
        5,
        "weight: must be greater than 0 (it is 0)",
    ),
    "weight of -1": (
        dimension("  judge: Good?", "  weight: -1"),
        5,
        "weight: must be greater than 0 (it is -1)",
    ),
    "infinite weight": (
        dimension("  weight: .inf", "  judge: Good?"),
        4,
        "weight: must be a finite number (it is inf)",
    ),
    "floor outside the scale": (
        dimension("  judge: Good?", "  floor: 11"),
        5,
        "the floor of dimension 'a' is 11, outside the scale 0 to 10",
    ),
    "anchor outside the scale": (
        dimension("  judge: Good?", "  anchors:", "    9: x", "    10.5: y"),
        7,
        "an anchor of dimension 'a' is 10.5, outside the scale 0 to 10",
    ),
    "anchor that is not a number": (
        dimension("  judge: Good?", "  anchors:", "    good: x"),
        6,
        "good: an anchor begins with one score, such as '9: …' (it is 'good')",
    ),
    "threshold outside the scale": (
        "pass_at: 80\n" + dimension("  judge: Good?"),
        1,
        "pass_at is 80, outside the scale 0 to 10",
    ),
    "scale that the default threshold is outside of": (
        "focus_below: 4\n" + dimension("  judge: Good?") + "scale: { max: 5 }\n",
        6,
        "pass_at, unless given, is 8, outside the scale 0 to 5",
    ),
    "scale upside down": (
        "scale:\n  min: 5\n  max: 1\n" + dimension("  judge: Good?"),
        1,
        "scale: min 5 must be below max 1",
    ),
    "scale that its steps miss the end of": (
        "scale: { min: 0, max: 10, step: 3 }\n" + dimension("  judge: Good?"),
        1,
        "scale: no whole number of steps of 3 leads from 0 to 10",
    ),
    "min above max": (
        dimension(
            "  checks:", "  - { check: finished }", "  - check: words", "    min: 9", "    max: 3"
        ),
        6,
        "words: min 9 is above max 3",
    ),
    "range without bounds": (
        dimension("  checks:", "  - { check: sections }"),
        5,
        "sections: give 'min', 'max' or both",
    ),
    "phrases that are not a list": (
        dimension("  checks:", "  - check: excludes", "    phrases: TODO"),
        6,
        "phrases: must be a list, even of one: [TODO]",
    ),
    "phrase that is a number": (
        dimension("  checks:", "  - check: excludes", "    phrases:", "    - maybe", "    - 1984"),
        8,
        "phrases: must be text; put it in quotes (it is 1984)",
    ),
    "empty phrase, which is in every text": (
        dimension("  checks:", "  - { check: excludes, phrases: [''] }"),
        5,
        "phrases: must not be empty",
    ),
    "name that is not a name": (
        "title: T\ndimensions:\n- judge: Good?\n  name: Use of sources\n",
        4,
        "must be lower-case letters, digits and underscores, such as 'use_of_sources' (it is ",
    ),
    "duplicate key": (
        dimension("  judge: Good?", "  weight: 2", "  judge: Bad?"),
        6,
        "'judge' stands twice, first on line 4; delete one, or put '- ' before this if",
    ),
    "duplicate dimension": (
        dimension("  judge: Good?", "- name: b", "  judge: Good?", "- judge: Bad?", "  name: a"),
        8,
        "dimension 'a' stands more than once; rename one, or delete it",
    ),
    "all optional": (
        dimension("  judge: Good?", "  optional: true"),
        2,
        "every dimension is optional: without an evaluator nothing is scored",
    ),
    "optional check": (
        dimension("  checks: [{ check: finished }]", "  optional: true"),
        5,
        "checked by code, which is always there: 'optional' is for judged dimensions",
    ),
    "missing title": (
        "purpose: x\ndimensions:\n- name: a\n  judge: Good?\n",
        1,
        "'title' is missing; begin the file with it, such as 'title: My rubric'",
    ),
    "missing name": (
        "title: T\ndimensions:\n- judge: Good?\n",
        3,
        "'name' is missing, which every dimension needs, such as 'name: clear'",
    ),
    "no dimensions": (
        "title: T\ndimensions: []\n",
        2,
        "dimensions: must hold at least one",
    ),
    "dimensions by name": (
        "title: T\ndimensions:\n  a:\n    judge: Good?\n",
        2,
        "dimensions: must be a list",
    ),
    "empty file": ("", 1, "it holds nothing, or comments only; begin with 'title: …', or with a"),
    "only comments": ("# later\n", 1, "it holds nothing, or comments only; begin with 'title: …'"),
    "a list": ("- title: T\n", 1, "it holds no fields; begin with 'title: …', or with a copy: "),
    "prose": ("Be strict.\n", 1, "it holds no fields; begin with 'title: …', or with a copy: "),
    "not YAML": (
        "title: T\npurpose: for: people\n",
        2,
        "a colon in the midst of a text, or a line that is indented too far; in the first case",
    ),
    "a tab": (
        "title: T\ndimensions:\n\t- name: a\n",
        3,
        "a tab stands here; put spaces in its place",
    ),
    "a quote that is never closed": (
        "title: T\npurpose: 'x\ndimensions:\n",
        2,
        "the quotation mark that opens here is never closed",
    ),
    "two documents": (
        "title: T\n---\ntitle: U\n",
        2,
        "a line '---' begins a second document; delete it",
    ),
    "Python in YAML": (
        "title: T\npurpose: !!python/name:os.system\n",
        2,
        "a text cannot begin with '!'; put the text in quotes",
    ),
    "key that is a list": ("title: T\n[a]: b\n", 2, "a field's name is a plain word"),
    "control character": (
        "title: T\npurpose: \x00\n",
        2,
        "it holds a control character, which is not text; delete the line and write it anew",
    ),
    "number without digits": (
        "title: T\npass_at: !!int x\n",
        2,
        "a value cannot be read (invalid literal for int() with base 10: 'x'); put it in quotes",
    ),
    "list in itself": (
        "title: T\ndimensions: &all [*all]\n",
        1,
        "the values are nested too deeply",
    ),
    "aliases of aliases": (
        BOMB,
        1,
        "it holds more than 10,000 values, which no rubric does",
    ),
    "comma for a point": (
        "title: T\npass_at: 8,5\n" + dimension("  judge: Good?").removeprefix("title: T\n"),
        2,
        "pass_at: must be a number with a point: 8.5 (it is '8,5')",
    ),
    "yes for true": (
        dimension("  judge: Good?", "  needs_sources: perhaps"),
        5,
        "needs_sources: must be true or false (it is 'perhaps')",
    ),
    "unknown preset": (
        "preset: bok\n" + dimension("  judge: Good?"),
        1,
        "preset: there is no 'bok'; did you mean 'book'?",
    ),
    "unknown way of judging": (
        "judge: jointly\n" + dimension("  judge: Good?"),
        1,
        "judge: there is no 'jointly'; did you mean 'joint'?",
    ),
    "unknown language": (
        dimension("  checks:", "  - { check: language, code: English }"),
        5,
        "code: there is no 'English'; did you mean 'en'?",
    ),
    "number that is too great": (
        dimension("  checks:", "  - { check: grounded_sentences, overlap: 60 }"),
        5,
        "overlap: must be at most 1 (it is 60)",
    ),
    "half a number of times": (
        "repeats: 2.5\n" + dimension("  judge: Good?"),
        1,
        "repeats: must be a whole number (it is 2.5)",
    ),
    "function that is not one": (
        dimension("  checks:", "  - { check: function, call: polite }"),
        5,
        "call: must be 'package.module:function' or './file.py:function' (it is 'polite')",
    ),
    "anchor that is empty": (
        dimension("  judge: Good?", "  anchors:", "    9:"),
        6,
        "9: nothing stands after the colon, or it is not indented below it",
    ),
    "cap without a rule": (
        dimension("  judge: Good?", "  caps:", "  - at_most: 5"),
        6,
        "a cap needs either 'when' or 'unless', and has neither",
    ),
    "misspelt field of a cap": (
        dimension("  judge: Good?", "  caps:", "  - { at_mots: 5, when: it is short }"),
        6,
        "'at_mots' is not allowed here; did you mean 'at_most'?",
    ),
    "misspelt field of a check of a cap": (
        dimension(
            "  judge: Good?",
            "  caps:",
            "  - at_most: 5",
            "    unless:",
            "      check: words",
            "      mn: 3",
        ),
        9,
        "'mn' is not allowed here; did you mean 'min'?",
    ),
    "cap of a check that a reader must judge": (
        dimension(
            "  checks: [{ check: finished }]", "  caps:", "  - { at_most: 5, when: it is dull }"
        ),
        6,
        "which cannot tell whether 'it is dull' is so: give the cap a check, as 'unless'",
    ),
    "cap outside the scale": (
        dimension("  judge: Good?", "  caps:", "  - { at_most: 50, when: it is dull }"),
        6,
        "a cap of dimension 'a' is 50, outside the scale 0 to 10",
    ),
    "gate without a floor": (
        dimension("  checks: [{ check: finished }]", "  gate: true"),
        5,
        "it needs 'checks', and a 'floor' under which it shuts",
    ),
    "misspelt field of the shortening": (
        "shorten:\n  evaluate: 9000\n" + dimension("  judge: Good?"),
        2,
        "'evaluate' is not allowed here; did you mean 'evaluate_over'?",
    ),
    "probabilities on a scale to 10": (
        "judge: logprob\n" + dimension("  judge: Good?"),
        1,
        "the scale must be whole numbers from 0 to 9 at most, such as { min: 1, max: 5, step: 1 }",
    ),
    "nothing to leave out of": (
        "without: [a]\n" + dimension("  judge: Good?"),
        1,
        "'without' leaves out dimensions of a rubric that this 'extends', which is none",
    ),
    "bracket that is never closed": (
        dimension("  checks:", "  - { check: words, min: 3", "  - { check: finished }"),
        5,
        "a comma or the closing bracket of { … } is missing",
    ),
    "question in braces": (
        "title: T\ndimensions:\n- { name: a, judge: Good? }\n",
        3,
        "between { … } or [ … ], a question mark ends a text; put the text in quotes",
    ),
    "colon without a space": (
        dimension("  weight:2", "  judge: Good?"),
        4,
        "this line has no colon with a space behind it after the field's name",
    ),
    "line that is indented too little": (
        dimension("  judge: Good?", " weight: 2"),
        5,
        "this line is not indented like those it belongs to",
    ),
    "first lines that are not in one column": (
        "  title: T\n" + dimension("  judge: Good?").removeprefix("title: T\n"),
        2,
        "this line is not indented like those it belongs to",
    ),
    "item beside its list's name": (
        "title: T\ndimensions: - name: a\n",
        2,
        "an item of a list ('- ') begins a line of its own, below the list's name",
    ),
    "text that begins with a sign of comparison": (
        dimension("  judge: >= 3 of them?"),
        4,
        "a text cannot begin with '>' or '|'; put the text in quotes",
    ),
    "text that begins with the same and a number": (
        dimension("  judge: >3 of them?"),
        4,
        "a text cannot begin with '>' or '|'; put the text in quotes",
    ),
    "quotation that ends too early": (
        'title: "A "good" text"\n' + dimension("  judge: Good?").removeprefix("title: T\n"),
        1,
        "one of them is not closed, or stands inside the text (then put the text in single ones",
    ),
    "quotation that ends at another": (
        'title: T\npurpose: "For all\ndimensions:\n- name: a\n  judge: "Good?"\n',
        2,
        "one of them is not closed",
    ),
    "text that begins with a star": (
        dimension("  judge: *Good*?"),
        4,
        "a text cannot begin with '*' or '&'; put the text in quotes",
    ),
    "alias of nothing": (
        dimension("  judge: *good"),
        4,
        "a text cannot begin with '*'; put the text in quotes",
    ),
    "text that begins with a percent sign": (
        dimension("  judge: % of what?"),
        4,
        "a text cannot begin with this character; put the text in quotes",
    ),
    "backslash in double quotes": (
        dimension('  judge: "A \\d?"'),
        4,
        "in double quotes a backslash has a meaning of its own; use single",
    ),
    "cap with both rules": (
        dimension(
            "  judge: Good?",
            "  caps:",
            "  - { at_most: 5, when: it is dull, unless: { check: finished } }",
        ),
        6,
        "a cap needs either 'when' or 'unless', and has both",
    ),
    "cap of a check in place of a statement": (
        dimension("  judge: Good?", "  caps:", "  - { at_most: 5, when: { check: finished } }"),
        6,
        "when: must be a statement in words; a check is put under 'unless'",
    ),
    "cap unless a name": (
        dimension("  judge: Good?", "  caps:", "  - { at_most: 5, unless: finished }"),
        6,
        "unless: write this as '{ check: finished }'",
    ),
    "text that a comma cuts in two": (
        dimension(
            "  judge: Good?", "  caps:", "  - { at_most: 5, when: it has no source, no number }"
        ),
        6,
        (
            "'no number' is not allowed here; between { and } a comma ends a text: one that goes "
            "on is put in quotes, a list in [ ]; known: at_most, unless, when"
        ),
    ),
    "number that a comma cuts in two": (
        "shorten: { evaluate_over: 6000, cap: 20000,000 }\n" + dimension("  judge: Good?"),
        1,
        "'000' is not allowed here; a number has no comma in it: write 0.5, or 6000",
    ),
    "parameter of a check that has none": (
        dimension("  checks: [{ check: finished, min: 3 }]"),
        4,
        "'min' is not allowed here; this check has no parameters",
    ),
    "scale in words": (
        "scale: 0-10\n" + dimension("  judge: Good?"),
        1,
        "scale: must have fields, such as { min: 0, max: 10, step: 0.5 } (it is '0-10')",
    ),
    "dimensions that are only names": (
        "title: T\ndimensions:\n- clear\n",
        3,
        "dimensions: write this as '- name: …', and what else it has below that (it is 'clear')",
    ),
    "name in letters of another alphabet": (
        "title: T\ndimensions:\n- judge: Good?\n  name: Prägnanz\n",
        4,
        "such as 'pragnanz' (it is 'Prägnanz')",
    ),
    "two rubrics to extend": (
        "extends: [qa, brief]\n" + dimension("  judge: Good?"),
        1,
        "extends: must be one text, not a list; put it in quotes",
    ),
    "line that is moved to the left": (
        dimension("  weight: 2", "floor: 3", "- name: b", "  judge: Good?"),
        6,
        "with '- '; if this line is right, line 5 is not",
    ),
    "title without a colon": (
        "title Notes\npurpose: For all.\n",
        2,
        "put the text in quotes; or line 1 has no colon after its field's name",
    ),
    "quotes that are none to YAML": (
        dimension("  judge: „Good: or bad?“"),
        4,
        "put the text in quotes; only \" and ' are quotes to YAML",
    ),
    "quotation in single quotes that ends too early": (
        dimension("  judge: 'It's good?'"),
        4,
        'stands inside the text (then put the text in double ones: "…")',
    ),
    "text that begins with a bracket": (
        dimension("  judge: [How] good?"),
        4,
        "something stands behind ']'; delete it, or, where a text begins with '[', put the text in",
    ),
    "text that begins with a question mark": (
        dimension("  judge: ? good"),
        4,
        "a text cannot begin with '?'; put the text in quotes",
    ),
    "tab behind a colon": (
        dimension("  judge:\tGood?"),
        4,
        "a tab stands here; put spaces in its place",
    ),
    "indentation that was pasted": (
        dimension("  judge: Good?", "\xa0 weight: 2", "  floor: 3"),
        5,
        "it has a no-break space, as pasted texts do, where a space belongs; type it anew",
    ),
    "no-break space behind a colon": (
        dimension("  judge: Good?", "  weight:\xa02"),
        5,
        "it has a no-break space, as pasted texts do, where a space belongs; type it anew",
    ),
    "colon of another alphabet": (
        dimension("  judge: Good?", "  weight\uff1a 2"),
        5,
        "its colon is not ':' but the wide one of East Asian fonts; type it anew",
    ),
    "colon in a text between braces": (
        dimension("  judge: Good?", "  caps:", "  - { at_most: 5, when: it has this: x }"),
        6,
        "in this line, a comma or the closing bracket of { … } is missing, or a text with one of ",
    ),
    "binary file": (
        b"title: T\n\x89PNG\r\n\x1a\n",
        2,
        "not UTF-8 text; save it as UTF-8",
    ),
}


@pytest.mark.parametrize(("content", "line", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_answered_by_its_line_and_what_is_allowed(load, content, line, message):
    with pytest.raises(RubricInvalid) as caught:
        load(content)

    (problem,) = caught.value.problems
    assert (problem.path, problem.line) == (caught.value.path, line)
    assert message in problem.message
    assert str(caught.value) == str(problem) == f"{problem.path}:{line}: {problem.message}"


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(RubricInvalid, match=r"essay\.yaml: there is no such file"):
        load_rubric_file(tmp_path / "essay.yaml")


def test_a_directory_is_not_a_rubric(tmp_path):
    with pytest.raises(RubricInvalid, match="cannot be read"):
        load_rubric_file(tmp_path)


MANY = """\
titel: Essay
scale: { min: 0, max: 10 }
pass_at: 90
dimensions:
- name: length
  wieght: 2
  checks:
  - { check: wrods, min: 9 }
- name: Clear
  judge: Good?
- name: useful
  floor: 11
  judge: Good?
  anchors: { 90: x, 5: y, 0.5: z }
- name: useful
  judge:
  feedback:
- name: dull
  optional: maybe
  judge: Dull?
"""


def test_every_mistake_is_reported_in_the_order_of_the_lines(load):
    with pytest.raises(RubricInvalid) as caught:
        load(MANY)

    problems = caught.value.problems
    assert [(p.line, p.message.partition(";")[0].partition(",")[0]) for p in problems] == [
        (1, "'titel' is not allowed here"),
        (3, "pass_at is 90"),
        (6, "'wieght' is not allowed here"),
        (8, "there is no check 'wrods'"),
        (9, "name: must be lower-case letters"),
        (12, "the floor of dimension 'useful' is 11"),
        (14, "an anchor of dimension 'useful' is 90"),
        (15, "dimension 'useful' needs either 'checks' or 'judge'"),
        (16, "judge: nothing stands after the colon"),
        (17, "feedback: nothing stands after the colon"),
        (19, "optional: must be true or false (it is 'maybe')"),
    ]
    assert str(caught.value) == (
        f"{problems[0]} (and 10 more: harness rubric check {caught.value.path})"
    )


def test_the_files_that_checks_name_lie_beside_the_rubric(load, tmp_path):
    (tmp_path / "checks.py").write_text("def polite(draft):\n    return 1.0\n")
    (tmp_path / "person.json").write_text('{"type": "object"}')
    rubric = load(
        dimension(
            "  checks:",
            "  - { check: function, call: './checks.py:polite' }",
            "  - { check: json, against: person.json }",
        )
    )

    assert rubric.dimensions[0].checks[1].against == {"type": "object"}


def test_the_digest_changes_with_the_file_that_a_check_names(load, tmp_path):
    content = dimension("  checks:", "  - { check: function, call: './checks.py:polite' }")
    digests = set()
    for share in ("1.0", "0.5", "1.0"):
        (tmp_path / "checks.py").write_text(f"def polite(draft):\n    return {share}\n")
        digests.add(load(content).sha256)

    assert len(digests) == 2


@pytest.mark.parametrize(
    ("scale", "allowed"),
    [
        ("{ min: 1, max: 5, step: 1 }", True),
        ("{ min: 0, max: 9, step: 1 }", True),
        ("{ min: 0, max: 10, step: 1 }", False),
        ("{ min: 1, max: 5, step: 0.5 }", False),
        ("{ min: 0.5, max: 4.5, step: 1 }", False),
        ("{ min: -1, max: 4, step: 1 }", False),
    ],
)
def test_probabilities_need_scores_of_one_digit(load, scale, allowed):
    content = f"judge: logprob\nscale: {scale}\npass_at: 4\nfocus_below: 3\n" + dimension(
        "  judge: Good?"
    )
    if allowed:
        assert load(content).judge == "logprob"
    else:
        with pytest.raises(RubricInvalid, match="judge: logprob reads a score from one token"):
            load(content)
