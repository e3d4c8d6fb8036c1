"""Prompts as templates: what is made of them, and what is wrong with them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import RubricInvalid
from harness.rubric import Prompts, load_rubric, with_prompts
from harness.rubric.templates import (
    _MAY_BE_EMPTY,
    FIELDS,
    SHIPPED,
    faults_in,
    filled,
    shipped_prompts,
)

VALUES = {"task": "Say it.", "sources": "", "history": "", "good": "It is.", "cut": True}


@pytest.mark.parametrize(
    ("template", "made"),
    [
        pytest.param("Do: {task}\n\n{good}", "Do: Say it.\n\nIt is.", id="fields"),
        pytest.param("{sources}\n\n{task}\n\nSo far:\n{history}", "Say it.", id="empty paragraphs"),
        pytest.param("A\n \r\n\r\nB", "A\n\nB", id="one blank line between paragraphs"),
        pytest.param("{if good}Keep it. {end}{task}", "Keep it. Say it.", id="if"),
        pytest.param("{if history}Keep it. {end}{task}", "Say it.", id="if it is empty"),
        pytest.param("{if history}a{else}b{end} c", "b c", id="else"),
        pytest.param("{if good}a{else}b{end} c", "a c", id="not else"),
        pytest.param("{if cut}cut{end}\n\n{if history}{history}{end}", "cut", id="nothing is left"),
        pytest.param("{if history}So far: {history}{end}{task}", "Say it.", id="empty behind if"),
        pytest.param("a\n{if history}{history}{end}\nb", "a\nb", id="no empty line is left"),
        pytest.param("a\n{if history}b\n{history}{end}\n", "a", id="nor of several lines"),
        pytest.param("{ta{if cut}sk of it}{end}", "{task of it}", id="braces around an if"),
        pytest.param('{"score": {task}}', '{"score": Say it.}', id="JSON"),
        pytest.param(r"\{task} \{if x} { } {}", "{task} {if x} { } {}", id="braces themselves"),
        pytest.param(r"a \{good} \{sources}", "a {good} {sources}", id="names that are no fields"),
    ],
)
def test_a_template_is_filled(template, made):
    assert filled(template, VALUES) == made


PIECES = ["{", "}", "{task}", "{if good}", "{end}", "{else}", "\\", "\n\n", "a"]


@given(text=st.lists(st.sampled_from(PIECES)).map("".join))
def test_only_the_template_is_parsed_never_a_value(text):
    assert filled("<{task}>\n\n{good}", {**VALUES, "task": text}) == f"<{text}>\n\nIt is."


@given(text=st.lists(st.sampled_from(PIECES)).map("".join))
def test_a_template_without_faults_can_be_filled(text):
    fields = FIELDS["section"]
    values = dict.fromkeys([*fields.texts, *fields.flags.split()], "x")

    template = f"{{sources}}\n\n{text}\n\n{{section}}{{findings}}"
    if not faults_in("section", template.replace("{good}", "")):
        assert filled(template.replace("{good}", ""), values)


WHOLE = "{sources}\n\n{task}\n\n{draft}\n\n{findings}"


FAULTS = {
    "none": ("whole", WHOLE, ""),
    "a field it does not have": ("whole", f"{WHOLE}\n{{histry}}", "unknown-field 7"),
    "another form of if": ("whole", f"{WHOLE}{{if not cut}}x", "unknown-field 6"),
    "if with a field it does not have": ("whole", f"{WHOLE}{{if good}}x{{end}}", "unknown-field 6"),
    "a flag has no text": ("whole", f"{WHOLE} {{cut}}", "unknown-field 6"),
    "fields it needs": ("whole", "{sources}\n\n{draft}", "field-missing 0, field-missing 0"),
    "a field that an empty one would take with it": (
        "whole",
        f"{WHOLE}\nSo far: {{history}}",
        "field-missing 0",
    ),
    "an empty one behind if": ("whole", f"{WHOLE}\n{{if history}}So far: {{history}}{{end}}", ""),
    "a field it needs behind another's if": (
        "whole",
        f"{WHOLE.replace('{draft}', '{if cut}{draft}{end}')}",
        "field-missing 0",
    ),
    "a field it needs where it is empty": (
        "whole",
        f"{WHOLE.replace('{draft}', '{if draft}It is there.{else}{draft}{end}')}",
        "field-missing 0",
    ),
    "if across paragraphs": ("whole", f"{WHOLE}\n{{if cut}}\n\nIt breaks off.{{end}}", "if 7"),
    "if in if": ("whole", f"{WHOLE}\n{{if cut}}a{{if history}}b{{end}}{{end}}", "if 7"),
    "else twice": ("whole", f"{WHOLE}\n{{if cut}}a{{else}}b{{else}}c{{end}}", "if 7"),
    "braces as in other languages of templates": ("opening", "the {{title}}", "unknown-field 0"),
    "it has no fields": ("opening", "the {title}", "unknown-field 0"),
}
"""Which prompt, its template, and its faults: their codes' ends and lines."""


@pytest.mark.parametrize(("name", "template", "faults"), FAULTS.values(), ids=FAULTS)
def test_faults_are_found_with_their_lines(name, template, faults):
    found = [
        f"{fault.code.removeprefix('rubric.prompt-')} {fault.line}"
        for fault in faults_in(name, template)
    ]
    assert ", ".join(found) == faults


TOLD = re.compile(r"# Fields: ((?:.|\n#   )*)\n(?:#.*\n)*(\w+):")
WORD = re.compile(r"(?P<flag>\{if )?(?P<field>\w+)(?P<marks>[!?]*)")


def test_the_prompts_that_ship_are_sound_and_say_which_fields_each_has():
    shipped, told = shipped_prompts(), {}
    for said, name in TOLD.findall(SHIPPED.read_text(encoding="utf-8")):
        words = [one for one in WORD.finditer(said) if one["field"] != "none"]
        told[name] = {
            "needed": {one["field"] for one in words if "!" in one["marks"]},
            "may be empty": {one["field"] for one in words if "?" in one["marks"]},
            "flags": {one["field"] for one in words if one["flag"]},
            "all": {one["field"] for one in words},
        }

    assert set(shipped) == set(Prompts.model_fields)
    assert [faults_in(name, template) for name, template in shipped.items()] == [[]] * len(shipped)
    assert told == {
        name: {
            "needed": set(fields.needed.split()),
            "may be empty": {*flags, *(field for field in fields.texts if field in _MAY_BE_EMPTY)},
            "flags": set(flags),
            "all": {*fields.texts, *flags},
        }
        for name, fields in FIELDS.items()
        for flags in [fields.flags.split()]
    }


# --- in a rubric ---------------------------------------------------------------------------------

RUBRIC = """\
title: Notiz
dimensions: [{ name: klar, judge: "Wie klar?" }]
"""
SECTION = """\
  section: |
    {sources}

    Schreib den Abschnitt „{section}“ neu.
    {findings}
"""


@pytest.fixture
def load(tmp_path):
    def loaded(content, **files):
        for name, text in {"notiz": content, **files}.items():
            (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
        return load_rubric(tmp_path / "notiz.yaml")

    return loaded


def problems(caught) -> list[tuple[str, str | None, int | None]]:
    return [(p.code, p.path and p.path.name, p.line) for p in caught.value.problems]


def test_a_rubric_may_replace_one_prompt_and_keep_the_others(load):
    prompts = load(f"{RUBRIC}prompts:\n{SECTION}").prompts

    assert prompts.in_force["section"].startswith("{sources}\n\nSchreib")
    assert {**prompts.in_force, "section": ""} == {**shipped_prompts(), "section": ""}


def test_a_file_of_prompts_lies_beside_the_rubric_that_names_it(load):
    rubric = load(f"{RUBRIC}prompts: deutsch.yaml\n", deutsch=SECTION.replace("\n  ", "\n")[2:])

    assert "Schreib" in rubric.prompts.in_force["section"]


def test_prompts_are_inherited_one_by_one(load):
    rubric = load(
        "title: Kurz\nextends: basis\nprompts:\n  opening: der Anfang\n",
        basis=f"{RUBRIC}prompts: deutsch.yaml\n",
        deutsch=SECTION.replace("\n  ", "\n")[2:] + 'judge_source: "Quelle: {source}"\n',
    )

    assert set(rubric.prompts.own) == {"section", "opening", "judge_source"}


def test_mistakes_are_named_with_the_line_of_the_template(load):
    broken = SECTION.replace("{findings}", "{finding}\n    {if good}x")
    with pytest.raises(RubricInvalid) as inline:
        load(f"{RUBRIC}prompts:\n{broken}  drft: x\n")
    with pytest.raises(RubricInvalid) as in_file:
        load(f"{RUBRIC}prompts: deutsch.yaml\n", deutsch=broken.replace("\n  ", "\n")[2:])

    assert sorted(problems(inline)) == [
        ("rubric.prompt-if", "notiz.yaml", 9),
        ("rubric.prompt-unknown-field", "notiz.yaml", 8),
        ("rubric.unknown-field", "notiz.yaml", 10),
    ]
    assert sorted(problems(in_file)) == [
        ("rubric.prompt-if", "deutsch.yaml", 6),
        ("rubric.prompt-unknown-field", "deutsch.yaml", 5),
    ]


@pytest.mark.parametrize(
    ("prompts", "problem"),
    [
        pytest.param("fehlt.yaml", ("rubric.prompts-not-found", "notiz.yaml", 3), id="no file"),
        pytest.param("leer.yaml", ("rubric.no-fields", "leer.yaml", 1), id="nothing in it"),
        pytest.param("doppelt.yaml", ("rubric.duplicate-field", "doppelt.yaml", 2), id="twice"),
        pytest.param("[a]", ("rubric.not-fields", "notiz.yaml", 3), id="a list"),
        pytest.param("{ draft: {task} }", ("rubric.not-text", "notiz.yaml", 3), id="no quotes"),
        pytest.param(
            "links.yaml",
            ("rubric.unknown-field", "links.yaml", 2),
            id="a line that is not indented",
        ),
    ],
)
def test_what_is_no_prompts_is_refused(load, prompts, problem):
    with pytest.raises(RubricInvalid) as caught:
        load(
            f"{RUBRIC}prompts: {prompts}\n",
            leer="# nichts\n",
            doppelt="draft: a\ndraft: b\n",
            links="judge_repair: |\nDas war nichts: {asked}\n",
        )

    assert problems(caught)[-1] == problem


def test_the_digest_of_a_rubric_has_its_evaluators_prompts_and_not_its_producers(load):
    plain = load(RUBRIC).sha256
    copied = load(f"{RUBRIC}prompts: kopie.yaml\n", kopie=SHIPPED.read_text(encoding="utf-8"))

    assert load(f"{RUBRIC}prompts:\n{SECTION}").sha256 == plain
    assert copied.sha256 == plain
    assert load(f'{RUBRIC}prompts: {{ judge_source: "{{source}}" }}\n').sha256 != plain


# --- in Python -----------------------------------------------------------------------------------


def test_prompts_given_in_python_go_before_the_rubrics(load):
    rubric = load(f"{RUBRIC}prompts:\n{SECTION}  opening: der Anfang\n")

    by_name = with_prompts(rubric, {"opening": "der Kopf", "judge_source": "{source}"})

    assert by_name.prompts.own == {
        **rubric.prompts.own,
        "opening": "der Kopf",
        "judge_source": "{source}",
    }
    assert by_name.sha256 != rubric.sha256
    assert by_name.prompts.sha256 != rubric.prompts.sha256


def test_their_mistakes_are_named_too():
    with pytest.raises(RubricInvalid) as by_name:
        with_prompts(load_rubric("brief"), {"section": "{sources}", "sektion": "x"})

    assert problems(by_name) == [
        ("rubric.prompt-field-missing", None, None),
        ("rubric.prompt-field-missing", None, None),
        ("rubric.unknown-field", None, None),
    ]
