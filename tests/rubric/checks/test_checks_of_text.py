"""Checks of what is written: counts, headings, ends, phrases, patterns, repetition, language."""

# ruff: noqa: RUF001 - Cyrillic letters and Chinese commas are meant

import unicodedata

import pytest
from graded import draft, found, messages, refused
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import EvaluationFailed
from harness.rubric.checks import (
    Characters,
    ContainsAll,
    ContainsAny,
    Excludes,
    Finished,
    GroundedNames,
    Headings,
    Items,
    Language,
    NoRepetition,
    Regex,
    Sections,
    SectionWords,
    Words,
)
from harness.rubric.draft import Draft
from harness.text.numbers import values_in
from harness.text.words import terms

WORDS = {
    "marks belong to words": ("न्याय की बात, e\u0301te\u0301", 4),
    "nothing": ("", 0),
    "a sentence": ("One two, three.", 3),
    "headings count": ("# One\n\ntwo", 2),
    "apostrophes and hyphens": ("don't, don\u2019t, state-of-the-art", 3),
    "numbers are one word each": ("1,024 tokens, 3.14, 50 %, v2.0.1", 5),
    "other scripts": ("naïve мир Αθήνα", 3),
    "code without its language": ("```python\nx = 1\n```\n", 2),
}
SECTIONS = {
    "nothing": ("", 0),
    "both kinds of headings": ("Intro.\n\n# A\nx\n\nB\n---\ny\n", 2),
    "the same title twice, both empty": ("# A\n# A\n", 2),
    "a title is not a section": ("# Title\n\n## A\nx\n\n## B\ny\n", 2),
    "a comment in code is none": ("# A\n\n```\n# not one\n```\n", 1),
    "nor one in a list": ("# A\n\n- x\n  # not one\n\n> # nor this\n", 1),
}
LISTS = "1. one\n2. two\n\n- a\n- b\n- c\n"
FIVE = [f"Step {n}, which is done" for n in range(5)]
FIVE_WITH_CODE = "".join(f"1. {step}\n\n   ```sh\n   1. no item\n   ```\n" for step in FIVE)
ITEMS = {
    "nothing": ("any", "", 0),
    "of any kind": ("any", LISTS, 5),
    "bullets": ("bullets", LISTS, 3),
    "items with paragraphs": ("numbered", "1. a\n\n   more of it\n\n2. b\n", 2),
    "items inside do not count": ("numbered", "1. a\n   - x\n   - y\n2. b\n", 2),
    "nor do dashes in code": ("any", "```\n- a\n1. b\n```\n", 0),
    "nor rules and sums": ("any", "a\n\n---\n\n5 - 3 is 2\n", 0),
    "in Arabic": ("numbered", "١. خبز\n٢. ماء\n", 2),
    "in Chinese": ("numbered", "一、面包\n二、水\n\n（1）茶\n", 3),
    "bullets in Japanese": ("bullets", "・パン\n・水\n", 2),
    "apart": ("numbered", "\n\n".join(f"{n}) {step}" for n, step in enumerate(FIVE)), 5),
    "with lists inside": ("numbered", "".join(f"1. {s}\n   1. a part\n   - b\n" for s in FIVE), 5),
    "with code inside": ("numbered", FIVE_WITH_CODE, 5),
    "dashes": ("bullets", "– pain\n– eau\n", 2),
    "nor speech": ("any", "– Bonjour !\n\n– Entrez.\n", 0),
}
COUNTED = {
    **{f"words: {name}": (Words(min=1000), *row) for name, row in WORDS.items()},
    **{f"sections: {name}": (Sections(min=1000), *row) for name, row in SECTIONS.items()},
    **{f"items: {n}": (Items(min=1000, kind=kind), *row) for n, (kind, *row) in ITEMS.items()},
}


@pytest.mark.parametrize(("check", "text", "count"), COUNTED.values(), ids=COUNTED)
def test_things_are_counted_as_people_count_them(check, text, count):
    grade = check.grade(draft(text))

    assert grade.share == count / 1000
    assert [code.partition("@")[0] for code in found(grade)] == ["too-few"]
    assert messages(grade).startswith(f"{count} ")


def row(check, text, share, codes):
    """A check, a text, the share of it that is right, and the codes of what is wrong."""
    return check, text, share, codes


FOUR = "one two three four"
TWO_EACH = Items(min=2, scope="section")
IN_RANGE = {
    "half of it": row(Words(min=8), FOUR, 0.5, ["too-few"]),
    "as many as needed": row(Words(min=4), FOUR, 1, []),
    "one more": row(Words(max=3), FOUR, 2 / 3, ["too-many"]),
    "characters, a line break as a blank": row(Characters(min=9, max=9), "Ab  cd\nefg", 1, []),
    "a character too many": row(Characters(max=3), "Abcd", 2 / 3, ["too-many"]),
    "far too many": row(Words(max=1), FOUR, 0, ["too-many"]),
    "mended in place": row(Items(min=3), "# A\n\nText.\n\n# B\n\n- a\n- b\n", 2 / 3, ["too-few@1"]),
    "of several sections": row(Items(max=2), "# A\n\n- a\n\n# B\n\n- b\n- c\n", 0.5, ["too-many"]),
    "items section by section": row(
        TWO_EACH, "A.\n# T\n## A\n- a\n- b\n## B\n- a\n## C\nA.", 0.5, ["too-few@3", "too-few@4"]
    ),
    "no text has no items in any section": row(TWO_EACH, "", 0, ["no-text"]),
}
EACH = SectionWords(min=4, max=5)
IN_EACH_SECTION = {
    "nothing": row(EACH, "", 0, ["no-text"]),
    "without headings the draft is the section": row(EACH, FOUR, 1, []),
    "an introduction is no section": row(EACH, f"Here you are.\n\n# A\n{FOUR}\n", 1, []),
    "an empty section is one": row(EACH, f"# A\n\n# B\n{FOUR}\n", 0.5, ["too-few@0"]),
    "two sections with one title": row(
        EACH, f"# A\none two\n\n# A\n{FOUR} {FOUR}\n", 0.45, ["too-few@0", "too-many@1"]
    ),
}
ORDER = Headings(titles=("Aim", "Method", "Result"))
MISSING, MISPLACED = "heading-missing", "heading-misplaced"
HEADINGS = {
    "all": row(ORDER, "# Aim\n# Method\n# Result\n", 1, []),
    "numbers of Chinese": row(Headings(titles=("引言",)), "# 一、引言\n", 1, []),
    "numbers and markup": row(ORDER, "# 1. AIM\n# 2.1 *Method*:\n# Result!\n", 1, []),
    "one missing": row(ORDER, "# Aim\n# Result\n", 2 / 3, [MISSING]),
    "one out of place": row(ORDER, "# Method\n# Result\n# Aim\n", 2 / 3, [MISPLACED]),
    "in order at a later place": row(ORDER, "# Result\n# Aim\n# Method\n# Result\n", 1, []),
    "as few out of place as can be": row(
        Headings(titles=("A", "B", "C", "D")), "# B\n# D\n# C\n# A\n", 1 / 2, [MISPLACED] * 2
    ),
    "in code": row(ORDER, "```\n# Aim\n```\n\n# Method\n\n# Results\n", 1 / 3, [MISSING] * 2),
    "attributes, a link of a wiki": row(ORDER, "# Aim {#a}\n# [[x|Method]]\n# Result {.b}", 1, []),
    "no heading": row(ORDER, "", 0, [MISSING] * 3),
    "a year": row(Headings(titles=("2026 Plan", "5 Whys")), "# 2026 Plan\n# 5 whys\n", 1, []),
}
FOUND_WORDS = {
    "in any case": ("TODO", "A todo.", True),
    "not within a word": ("TODO", "A mastodon.", False),
    "across lines": ("as an AI", "... as an\nAI, I ...", True),
    "with a mark at its end": ("Question:", "**Question:** why", True),
    "not as a pattern": ("C++ (old)", "In C++ (old) it", True),
    "where words are not parted": ("不知道", "我不知道。", True),
    "Latin within another script": ("AI", "人工AI很好", True),
    "not within a word of Russian": ("кот", "Который?", False),
    "a vowel sign is of the word": ("कि", "किताब", False),
    "marks apart": ("Prüfung", "Die Pru\u0308fung", True),
    "korean in its parts": ("가게", unicodedata.normalize("NFD", "가게는"), True),
    "half-width kana": ("バックアップ", "ﾊﾞｯｸｱｯﾌﾟは毎晩", True),
    "full width": ("A12", "番号はＡ１２です", True),
    "typographic signs": ('don\'t - "so"', "Don’t – «so»", True),
    "what has no width": ("Sicherheit", "Si\u00adcher\u200bheit", True),
    "a ligature": ("office", "o\ufb03ce", True),
    "vowel points": ("الكتاب", "الكِتَابُ", True),
    "an article written on": ("كتاب", "والكتاب", True),
    "other digits": ("2024", "٢٠٢٤", True),
    "a superscript": ("102 users", "10² users", False),
    "another accent": ("schön", "Das ist schon so", False),
    "wrapped without a blank": ("不知道", "我不\n知道。", True),
}
PHRASES = {
    **{
        name: (
            Excludes(phrases=(phrase,)),
            f"# A\n\n{text}\n\n# B\n\nFine.\n",
            *((0.5, ["phrase-excluded@0"]) if is_there else (1, [])),
        )
        for name, (phrase, text, is_there) in FOUND_WORDS.items()
    },
    "all of a section make one finding": row(
        Excludes(phrases=("x", "y")), "y and x", 0, ["phrase-excluded@0"]
    ),
    "one in a heading concerns the whole draft": row(
        Excludes(phrases=("TODO",)), "# A\n\nx\n\n# TODO: name\n\ny\n", 0.5, ["phrase-excluded"]
    ),
    "every one that is missing": row(
        ContainsAll(phrases=("cold start", "p99", "cost")),
        "# Cold\nstart\n\nA cold\nstart costs. The P99 too.",
        2 / 3,
        ["phrase-missing"],
    ),
    "none of them": row(ContainsAny(phrases=("but", "so")), "It is.", 0, ["phrase-missing"]),
    "one of them, in a heading": row(ContainsAny(phrases=("but", "so")), "# But\n\nIt is.", 1, []),
}
SAME = NoRepetition()
REPETITION = {
    "nothing": row(SAME, "", 1, []),
    "the same in capitals": row(SAME, "It is so here. IT IS SO, HERE!", 0.5, ["repeated@0"]),
    "in two sections": row(SAME, "# A\n\nIt is so.\n\n# A\n\nIt is so.\n", 0.5, ["repeated@1"]),
    "another apostrophe": row(SAME, "It doesn't run. It doesn\u2019t run.", 0.5, ["repeated@0"]),
    "other numbers": row(SAME, "We run it at 8. We run it at 9.", 1, []),
    "the same number": row(SAME, "We run 1,000 of it. We run 1000 of it.", 0.5, ["repeated@0"]),
    "code": row(SAME, "```\na b c\n```\n\n```\na b c\n```\n", 1, []),
    "a table": row(SAME, "| a b c |\n|---|\n| a b c |\n| a b c |\n", 1, []),
    # Three words of four in all.
    "at the limit": row(
        NoRepetition(similarity=0.75), "It is here. It is here now.", 0.5, ["repeated@0"]
    ),
    "below it": row(NoRepetition(similarity=0.76), "It is here. It is here now.", 1, []),
}
YEARS = "# A (1999)\n\nSo (2001).\n\n# B\n\nNone.\n\n# C\n\nSo (2003), so (2004).\n"


def year(**bounds) -> Regex:
    return Regex(pattern=r"\(\d{4}\)", meaning="a year", **bounds)


PATTERNS = {
    "it must match": row(year(), YEARS, 1, []),
    "too seldom": row(year(min=8), YEARS, 0.5, ["too-few"]),
    "too often": row(year(max=3), YEARS, 2 / 3, ["too-many@0", "too-many@2"]),
    "it must not match": row(year(max=0), YEARS, 0, ["match-forbidden@0", "match-forbidden@2"]),
    "section by section": row(year(scope="section"), YEARS, 2 / 3, ["too-few@1"]),
    "nothing": row(year(), "", 0, ["too-few"]),
    "everywhere, up to a limit": row(Regex(pattern="a", max=3), "a" * 5_000, 0, ["too-many@0"]),
    "the start of a line": row(Regex(pattern="^So"), YEARS, 1, []),
    "another case": row(Regex(pattern="none"), YEARS, 0, ["too-few"]),
    "the end of a line of Windows": row(Regex(pattern="one$", min=2), "one\r\none\r\n", 1, []),
    "nothing reaches over a heading": row(Regex(pattern=r"None.*\n\n# C"), YEARS, 0, ["too-few"]),
}
TABLES = {
    "range": IN_RANGE,
    "section words": IN_EACH_SECTION,
    "headings": HEADINGS,
    "phrases": PHRASES,
    "repetition": REPETITION,
    "patterns": PATTERNS,
}
GRADED = {f"{of}: {name}": row for of, rows in TABLES.items() for name, row in rows.items()}


@pytest.mark.parametrize(("check", "text", "share", "codes"), GRADED.values(), ids=GRADED)
def test_a_text_has_its_share_and_its_faults(check, text, share, codes):
    grade = check.grade(draft(text))

    assert grade.share == pytest.approx(share)
    assert sorted(found(grade)) == sorted(codes)


def test_findings_name_what_is_to_be_changed():
    def say(check, text):
        return messages(check.grade(draft(text)))

    assert '"Aim"' in say(ORDER, "# Method\n# Result\n# Aim\n")
    assert '"Method"' in say(ORDER, "# Aim\n# Result\n")
    assert '"x", "y"' in say(Excludes(phrases=("x", "y")), "y and x")
    assert '"cost"' in say(ContainsAll(phrases=("cost",)), "It is.")
    assert '"(1999)", "(2001)"' in say(year(max=3), YEARS)
    assert say(Regex(pattern="a", max=3), "a" * 5_000).startswith("1000 ")


FORMS = {
    "plurals": ("de", "Haus", "Zwei Häuser.", True),
    "verbs": ("de", "lohnen", "Das lohnt sich.", True),
    "an adjective is no noun": ("de", "Sicherheit", "Das ist sicher.", False),
    "sorry is no suffering": ("de", "Leid", "Leider ja.", False),
    "several is not severe": ("en", "severe", "There are several.", False),
    "negative is no negation": ("en", "negation", "It is negative.", False),
    "two words in a row": ("en", "high risk", "The higher risks.", True),
    "two words apart": ("en", "high risk", "High and some risk.", False),
}


@pytest.mark.parametrize(("language", "phrase", "text", "is_there"), FORMS.values(), ids=FORMS)
def test_forms_of_a_word_are_those_of_a_dictionary(language, phrase, text, is_there):
    check = ContainsAll(phrases=(phrase,), forms=True)
    assert check.grade(Draft(text=text, task="", language=language)).share == is_there


NOT_FOR = {
    "words in Chinese": (Words(max=9), "它很快，也很小。", True),
    "words in Korean": (Words(max=9), "가게는 문을 연다.", False),
    "words beside some Japanese": (Words(max=9), "We say 猫 for a cat of any kind.", False),
    "words of sections in Thai": (SectionWords(max=9), "# ก\n\nร้านเปิดตอนเช้า\n", True),
    "ends in Thai": (Finished(), "ร้านเปิดตอนเช้า", True),
    "ends in Burmese": (Finished(), "ဆိုင်ဖွင့်ထားသည်။", False),
    "names in German": (GroundedNames(), "Herr Dr. Hans Schneider aus Berlin hat", True),
    "names in Arabic": (GroundedNames(), "كتب أحمد رسالة.", True),
    "names in Russian": (GroundedNames(), "Это сказал Иван Петров.", False),
}


@pytest.mark.parametrize(("check", "text", "silent"), NOT_FOR.values(), ids=NOT_FOR)
def test_a_check_says_which_languages_it_does_not_judge(check, text, silent):
    language = "de" if text.startswith("Herr") else None
    graded = Draft(text=text, task="", sources=("Frau Müller, Reklamation.",), language=language)
    assert bool(check.grade(graded).unjudged) == silent


def test_what_no_reader_sees_does_not_count():
    hidden = draft("---\ntitle: cost\n---\nIt is.<!-- cost -->\n\n<!--\ncost\n-->\n")
    assert ContainsAll(phrases=("cost",)).grade(hidden).share == 0
    assert Excludes(phrases=("cost",)).grade(hidden).share == 1
    assert Words(min=2, max=2).grade(hidden).share == 1
    assert ContainsAll(phrases=("cost",)).grade(draft("```\n<!-- cost -->\n```\n")).share == 1


# --- texts that break off ------------------------------------------------------------------------

FINISHED = {
    "a full stop": "It is.",
    "a stop in quotes": 'He said "yes."',
    "closing marks": "It is. (So *he* **said.**)",
    "references": "It is so.[3][^a] ",
    "a list without stops": "Two ways:\n\n- by day\n- by night",
    "a list in Arabic": "نحتاج:\n\n١. خبز\n٢. ماء",
    "a name behind a formula": "It is.\n\nBest regards,\n\nAnna Weber",
    "French quotation marks": "Il dit : « Je pars. »",
    "German quotation marks": "Er sagt: „Ich gehe.“",
    "a table": "| a | b |\n|---|---|\n| 1 | 2 |",
    "code": "Run it:\n\n```sh\nls\n```",
    "a fence that shows a fence": "````\n```\n````",
    "indented code": "Run it:\n\n    ls",
    "a link definition": "See [it].\n\n[it]: http://example.org",
    "a fence in a list": "- Run it:\n\n  ```sh\n  ls\n  ```\n",
    "a footnote behind it": "It is.[^1]\n\n[^1]: The list of 2024",
    "an address": "See https://example.org/a",
    "a face": "Come in \N{PARTY POPPER}",
    "a face of signs": "Come in :)",
    "a signature": "It is.\n\nBest regards,\nAnna Weber",
    "a longer fence around another": "````md\n```py\nx\n```\n````\n",
}
ENDS = [
    *("दुकान खुलती है।", "دکان کھلتی ہے۔", "آیا مغازه باز است؟", "Խանութը բաց է։", "ሱቁ ክፍት ነው።"),
    *("ဆိုင်ဖွင့်ထားသည်။", "ហាងបើកហើយ។", "Είναι ανοιχτό;", "ཁང་པ་ཆེན་པོ།"),
    *(":::note\n\nIt is.\n\n:::", "::: tip\nIt is.\n:::", "It is.\n{: .note}", "It is. ^a1b2"),
]
UNSEEN = [
    *("%% draft %%", "*[HTML]: Hyper", "{: .note}", "{% include a.html %}", "{{< a >}}"),
    *("import A from './a'", "export default A", "{/* a */}"),
]
UNFINISHED = {
    "mid-sentence": ("It is", "breaks-off"),
    "before marks": ("It is.\n\n:::note\n\nIt is\n\n:::\n\n{% include a.html %}\n", "breaks-off"),
    "a short paragraph": ("It is.\n\nThe next", "breaks-off"),
    "a paragraph of short lines": ("It is.\n\nThe next\nis", "breaks-off"),
    "a comma in another script": ("दुकान खुलती है,", "breaks-off"),
    "a colon that nothing follows": ("There are two ways:", "breaks-off"),
    "an item unlike the one before": ("- Go by day.\n- Go by", "breaks-off"),
    "a heading and no more": ("", "section-empty"),
    "an open fence": ("```sh\nls", "fence-open"),
    "a fence opened again": ("```py\nx = 1\n\n```py\ny = 2\n```\n\n```", "fence-open"),
    "an open fence in a list": ("- Run it:\n\n  ```sh\n  ls\n", "fence-open"),
    "prose behind an open fence": ("```sh\nls\n\nThen go on. It is so.", "fence-open"),
}


@pytest.mark.parametrize("text", [*FINISHED.values(), *ENDS, *(f"It is.\n\n{t}" for t in UNSEEN)])
def test_a_text_is_finished_when_it_ends_as_texts_do(text):
    assert Finished().grade(draft(f"# A\n\n{text}\n\n# B\n\nIt is.\n")).share == 1


@pytest.mark.parametrize(("text", "code"), UNFINISHED.values(), ids=UNFINISHED)
def test_a_text_that_breaks_off_is_not_finished(text, code):
    grade = Finished().grade(draft(f"# A\n\nIt is.\n\n# B\n\n{text}"))

    assert (grade.share, found(grade)) == (0.5, [f"{code}@1"])


@pytest.mark.parametrize(
    ("text", "share", "codes"),
    [
        pytest.param("", 0, ["no-text"], id="nothing"),
        pytest.param("# T\n\n## A\n\nIt is.\n", 1, [], id="a title"),
        pytest.param("# A\n\nTwo ways:\n\n## B\n\nIt is.\n", 1, [], id="a colon before more"),
        pytest.param("# A\n# B\n\n## C\n", 0, ["section-empty@0", "section-empty@2"], id="empty"),
    ],
)
def test_headings_want_a_text_unless_they_are_titles(text, share, codes):
    grade = Finished().grade(draft(text))

    assert (grade.share, found(grade)) == (share, codes)


def test_a_draft_that_a_token_limit_cut_is_not_finished():
    """Wherever in the last section: in mid-sentence, in the code, in its closing fence."""
    code = "```python\nfor model in models:\n    load(model)\n```\n"
    whole = f"# A\n\nIt is so.\n\n# B\n\nRun this:\n\n{code}"
    assert Finished().grade(draft(whole)).share == 1

    for end in range(whole.index("Run this") + 3, len(whole) - 5):
        assert [one[-2:] for one in found(Finished().grade(draft(whole[:end])))] == ["@1"], end


# --- patterns and repetition ---------------------------------------------------------------------


def test_a_search_that_would_never_end_is_broken_off():
    with pytest.raises(EvaluationFailed, match=r"\(a\|a\)\+b"):
        Regex(pattern="(a|a)+b", timeout_s=0.01).grade(draft("a" * 40 + "!"))


def test_all_sections_have_one_time():
    text = "\n\n".join(f"# {number}\n\n{'a' * 17}!" for number in range(300))
    with pytest.raises(EvaluationFailed):
        Regex(pattern="(a|a)+b", timeout_s=0.2).grade(draft(text))


def test_a_letter_and_its_marks_are_one_word():
    assert (
        Regex(pattern=r"^\w+ \w+$")
        .grade(draft("\u0939\u093f\u0928\u094d\u0926\u0940 \u092d\u093e\u0937\u093e"))
        .share
        == 1
    )


def test_braces_that_repeat_nothing_stand_for_themselves():
    check = Regex(pattern=r"\{x{1,2}\} {e} [{d}] \\{i} {s<=2} {,2}", min=1)
    assert check.grade(draft(r"{xx} {e} { \{i} {s<=2}   end")).share == 1
    assert check.grade(draft(r"{xx} {f} { \{i} {s<=2}   end")).share == 0
    assert Regex(pattern="^ab{,}$").grade(draft("abbb")).share == 1


def repeated_one_by_one(check: NoRepetition, graded) -> list[int]:
    """Which sentences repeat an earlier one, by comparing each with all before it."""
    seen, repeated = [], []
    for place, (_, _, sentence) in enumerate(graded.sentences):
        said = {term for term in terms(sentence) if not term.isdecimal()}
        values = values_in(sentence)
        if len(said) > 2 and any(
            values == before and len(said & other) / len(said | other or {""}) >= check.similarity
            for other, before in seen
        ):
            repeated.append(place)
        seen.append((said, values))
    return repeated


@given(
    text=st.lists(
        st.lists(st.sampled_from("abcdefgh123"), min_size=1, max_size=9).map(" ".join), max_size=20
    ).map("\n\n".join),
    similarity=st.floats(min_value=0.01, max_value=1) | st.sampled_from([0.5, 0.6, 0.75, 0.8, 1]),
)
def test_few_comparisons_find_what_all_of_them_would(text, similarity):
    check, graded = NoRepetition(similarity=similarity), draft(text)

    assert len(check.grade(graded).findings) == len(repeated_one_by_one(check, graded))


# --- language ------------------------------------------------------------------------------------

# Article 1 of the Universal Declaration of Human Rights, as the United Nations publish it.
ARTICLE = {
    "en": "All human beings are born free and equal in dignity and rights. They are endowed with "
    "reason and conscience and should act towards one another in a spirit of brotherhood.",
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft "
    "und Gewissen begabt und sollen einander im Geist der Brüderlichkeit begegnen.",
    "zh": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。",
    "hr": "Sva ljudska bića rađaju se slobodna i jednaka u dostojanstvu i pravima. Ona su obdarena "
    "razumom i sviješću i trebaju jedna prema drugima postupati u duhu bratstva.",
}


@pytest.mark.parametrize("written", ARTICLE)
def test_a_language_is_told_from_others(written):
    relatives = {"hr": ("hr", "sr", "bs")}.get(written, (written,))
    for code in ("en", "de", "fr", "es", "zh", "ru", "hr", "sr", "bs", "sl"):
        grade = Language(code=code).grade(draft(ARTICLE[written]))
        assert grade.share == (code in relatives), code
        assert found(grade) == [] if grade.share else ["language@0"]
        assert grade.share or f"'{code}'" in messages(grade)


def test_a_section_in_another_language_is_found_whatever_its_heading_and_code_are():
    code = "```python\nlade_das_modell(zehn_sekunden)\n```\n"
    text = "\n\n".join(f"# Part\n\n{ARTICLE[one]}\n\n{code}" for one in ("en", "de", "en"))

    grade = Language(code="en").grade(draft(text))

    assert found(grade) == ["language@1"]
    assert grade.share == pytest.approx(2 / 3, abs=0.02)


def test_short_sections_are_taken_together():
    parts = ["Alle Menschen sind frei.", "Sie sind mit Vernunft begabt.", "Sie sollen einander so"]
    text = "\n\n".join(f"# {n}\n\n{part}" for n, part in enumerate([*parts, *parts]))

    grade = Language(code="en").grade(draft(text))

    assert (grade.share, found(grade)) == (0, [f"language@{n}" for n in range(6)])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("Alle Menschen sind frei.", id="a few words"),
        pytest.param(f"```\n{ARTICLE['de']}\n```\n", id="only code"),
    ],
)
def test_too_short_a_prose_is_not_judged_and_says_so(text):
    grade = Language(code="en").grade(draft(text))

    assert (bool(grade.unjudged), grade.findings) == (True, ())


# --- parameters ----------------------------------------------------------------------------------

SENSELESS = [
    *((check, {}, "range-without-bounds") for check in (Words, Sections, SectionWords, Items)),
    (Items, {"min": 3, "max": 2}, "range-upside-down"),
    (Headings, {"titles": ()}, "too_short"),
    (Headings, {"titles": ("A", "a")}, "heading-twice"),
    (Headings, {"titles": ("***",)}, "heading-without-words"),
    *((check, {"phrases": ()}, "too_short") for check in (ContainsAll, ContainsAny, Excludes)),
    *((check, {"phrases": ("a", " ")}, "string_too_short") for check in (ContainsAll, Excludes)),
    (Regex, {"pattern": "(a"}, "pattern-invalid"),
    (Regex, {"pattern": "a", "min": 2, "max": 1}, "range-upside-down"),
    (Regex, {"pattern": "a", "min": 0}, "range-without-bounds"),
    (NoRepetition, {"similarity": 0}, "greater_than"),
    *((Language, {"code": code}, "literal_error") for code in ("english", "EN", "xx", "")),
]


@pytest.mark.parametrize(("check", "parameters", "code"), SENSELESS)
def test_parameters_that_make_no_sense_are_refused(check, parameters, code):
    assert refused(check, **parameters) == code


@pytest.mark.parametrize(
    ("check", "requirement"),
    [
        (Words(min=2, max=3), "The whole text has 2 to 3 words."),
        (Items(min=5, max=5, kind="numbered"), "The whole text has 5 numbered list items."),
        (Items(max=4, scope="section"), "Each section has at most 4 list items."),
        (
            year(max=2, scope="section"),
            "In each section, the number of these is at most 2: a year.",
        ),
        (Regex(pattern="a", max=0), "This occurs nowhere: what matches a."),
    ],
)
def test_an_author_is_told_the_range_in_words(check, requirement):
    assert check.requirement == requirement


AGAIN = "A server reads weights from disk before its prompt, which takes several seconds to end."


@pytest.mark.parametrize(
    ("second", "codes"),
    [
        pytest.param(
            "Before the prompt ends, several seconds pass: weights reads from disk, which server "
            "takes.",
            ["repeated@0"],
            id="other words",
        ),
        pytest.param(f"{AGAIN[:-1]} after 40 s.", [], id="another number"),
        pytest.param("Weights from disk.", [], id="too short to tell"),
        pytest.param(
            "Memory stays allocated afterwards; later requests find their weights loaded already.",
            [],
            id="something else",
        ),
    ],
)
def test_a_paragraph_does_not_say_an_earlier_one_again(second, codes):
    grade = NoRepetition().grade(draft(f"{AGAIN}\n\n{second}\n"))

    assert found(grade) == codes
