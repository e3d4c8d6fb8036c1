"""What a reader sees decides: markup, capitals, scripts, negations and ends, by kinds."""

# ruff: noqa: RUF001 - letters of several scripts are meant

import pytest
from graded import draft, refused

from harness.rubric.checks import (
    Characters,
    ContainsAll,
    Excludes,
    Finished,
    GroundedNumbers,
    Items,
    Language,
    NoRepetition,
)
from harness.rubric.draft import Draft

MARKED = {
    "a star": ("bug fixes", "Some *bug* fixes."),
    "two stars": ("bug fixes", "Some **bug** fixes."),
    "inside a word": ("breaking change", "A **break**ing change."),
    "lines below": ("bug fixes", "Some _bug_ fixes."),
    "both ends apart": ("no known issues", "There are no *known issues*."),
    "a code span": ("run migrate now", "Please run `migrate` now."),
    "a link": ("the full guide", "See [the full](x.md) guide."),
    "a link by reference": ("the full guide", "See [the full][g] guide.\n\n[g]: x.md"),
    "a tag": ("best effort", "On a <b>best</b> effort base."),
    "a blank that is kept": ("best effort", "On a best&nbsp;effort base."),
    "an entity by number": ("Don't panic", "Don&#39;t panic."),
    "an entity by name": ("R&D", "Our R&amp;D is busy."),
    "an escape": ("snake_case", "We use snake\\_case here."),
    "a line break in a quotation": ("best effort", "> on a best\n> effort base."),
    "struck out and strong": ("very good too", "It is ***very*** ~~good~~ too."),
    "in an item": ("best effort", "- on a *best*\n  effort base"),
    "in a heading": ("best effort", "# On *best* effort\n\nText."),
    "in a table": ("best effort", "| a | b |\n|---|---|\n| **best** effort | x |\n"),
}
UNMARKED = {
    "stars of a product": ("ab", "Of a * b * c."),
    "code is as written": ("a b", "```\na *b*\n```\n"),
    "another cell": ("best effort", "| a | b |\n|---|---|\n| best | effort |\n"),
}
CAPITALS = {
    "as a name": ("Straße", "DIE STRASSE IST LANG.", True),
    "a short one": ("Fuß", "ZU FUSS GEHEN", True),
    "two of them": ("große Straße", "GROSSE STRASSE", True),
    "the phrase in capitals": ("STRASSE", "Die Straße ist lang.", True),
    "a capital at the front": ("Maß", "DAS MASS IST VOLL.", True),
    "kept apart": ("Maße", "Eine Masse Mensch.", False),
    "kept apart the other way": ("Masse", "Die Maße stimmen.", False),
    "with the capital letter": ("Straße", "DIE STRAẞE", True),
}
SCRIPTS = {
    "Chinese": ("en", "你好，世界。", 0),
    "Russian": ("en", "Привет, мир.", 0),
    "Korean": ("de", "안녕하세요.", 0),
    "Arabic": ("fr", "مرحبا بالعالم.", 0),
    "Greek": ("en", "Καλημέρα κόσμε.", 0),
    "kana": ("zh", "ありがとうございます。", 0),
    "Latin for Chinese": ("zh", "Hello world, again.", 0),
    "Latin for Russian": ("ru", "Hello world, again.", 0),
    "Hebrew for Arabic": ("ar", "שלום עולם ומלואו.", 0),
    "Han alone for Japanese": ("ja", "東京都知事選挙", None),
    "Latin for Serbian": ("sr", "Dobar dan svima.", None),
    "a name in an English text": ("en", "We met 李 there.", None),
    "Cyrillic for Russian": ("ru", "Привет, мир.", None),
}
CLUSTERS = {
    "a family": ("👨‍👩‍👧‍👦", 1),
    "a flag": ("🇩🇪🇫🇷", 2),
    "a skin tone": ("👍🏽", 1),
    "a keycap": ("1️⃣", 1),
    "a red heart": ("❤️", 1),
    "Devanagari": ("क्षि", 1),
    "marks apart": ("e\u0301", 1),
    "letters": ("abc", 3),
}
BROKEN = [
    *("We met Dr.", "See e.g.", "See Fig.", "It takes approx.", "Wir trafen Prof."),
    *("Ask Mrs.", "It holds, i.e.", "Das gilt z.B.", "Das gilt z. B.", "It was Spain vs."),
]
WHOLE = [
    *("We sell apples, pears, etc.", "Äpfel, Birnen usw.", "See [the docs.](x.md)", "We say no."),
    *("It is **done.**", "He said “no.”", "Made by Acme Inc.", 'See [it.](x.md "Title")'),
]
ORDINALS = {
    "3rd": ("The 3rd try.", "It was the third try.", None, True),
    "21st": ("The 21st day.", "The twenty-first day.", None, True),
    "20th": ("The 20th day.", "The twentieth day.", None, True),
    "German": ("Der 3. Versuch.", "Beim dritten Versuch.", "de", True),
    "German, twenty": ("Am 20. Tag.", "Am zwanzigsten Tag.", "de", True),
    "another": ("The 4th try.", "It was the third try.", None, False),
    "a cardinal": ("It took 3 tries.", "It took three tries.", None, True),
}
OPPOSED = {
    "not": ("The door must be open.", "The door must not be open."),
    "never": ("We do ship on Fridays here.", "We do never ship on Fridays here."),
    "a short form": ("The port should be open to all.", "The port shouldn't be open to all."),
    "a unit": ("Each tank holds 3 litres of oil.", "Each tank holds 3 gallons of oil."),
    "a measure": ("It is 5 kg of sand here.", "It is 5 km of sand here."),
    "German": ("Die Tür muss immer offen sein.", "Die Tür muss nicht immer offen sein."),
    "none": ("There are the known open issues.", "There are no known open issues."),
}


@pytest.mark.parametrize(("phrase", "text"), MARKED.values(), ids=MARKED)
def test_markup_hides_no_phrase(phrase, text):
    assert Excludes(phrases=(phrase,)).grade(draft(text)).share < 1
    assert ContainsAll(phrases=(phrase,)).grade(draft(text)).share == 1


@pytest.mark.parametrize(("phrase", "text"), UNMARKED.values(), ids=UNMARKED)
def test_only_what_is_seen_is_a_phrase(phrase, text):
    assert Excludes(phrases=(phrase,)).grade(draft(text)).share == 1


@pytest.mark.parametrize(("phrase", "text", "is_there"), CAPITALS.values(), ids=CAPITALS)
def test_capitals_of_german_are_written_with_two_letters(phrase, text, is_there):
    graded = Draft(text=text, task="", language="de")
    assert ContainsAll(phrases=(phrase,)).grade(graded).share == is_there


@pytest.mark.parametrize(("code", "text", "share"), SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_tells_a_language_in_any_length(code, text, share):
    grade = Language(code=code).grade(draft(text))
    assert (None if grade.unjudged else grade.share) == share


@pytest.mark.parametrize(("text", "count"), CLUSTERS.values(), ids=CLUSTERS)
def test_characters_are_what_a_reader_takes_for_one(text, count):
    assert Characters(min=count, max=count).grade(draft(text)).share == 1


@pytest.mark.parametrize("text", BROKEN)
def test_an_abbreviation_that_leads_on_ends_nothing(text):
    assert Finished().grade(draft(text)).share == 0


@pytest.mark.parametrize("text", WHOLE)
def test_an_abbreviation_or_a_link_may_end_a_sentence(text):
    assert Finished().grade(draft(text)).share == 1


@pytest.mark.parametrize(("text", "source", "language", "right"), ORDINALS.values(), ids=ORDINALS)
def test_ordinals_in_words_ground_those_in_digits(text, source, language, right):
    graded = Draft(text=text, task="", sources=(source,), language=language)
    assert GroundedNumbers().grade(graded).share == right


@pytest.mark.parametrize(("first", "second"), OPPOSED.values(), ids=OPPOSED)
def test_the_contrary_repeats_nothing(first, second):
    assert NoRepetition().grade(draft(f"{first} {second}")).share == 1
    assert NoRepetition().grade(draft(f"{first} {first}")).share < 1


def test_no_list_may_be_asked_for():
    assert Items(max=0).grade(draft("- a\n\nText.")).share == 0
    assert Items(max=0).grade(draft("Text.")).share == 1


@pytest.mark.parametrize(
    ("code", "language"), [("nb", "no"), ("pt-BR", "pt"), ("zh_Hant_TW", "zh"), ("EN-us", "en")]
)
def test_a_tag_of_a_region_names_its_language(code, language):
    assert Language(code=code).code == language
    assert refused(Language, code="xx-YY") == "literal_error"
