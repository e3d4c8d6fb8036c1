"""Where sentences end."""

# ruff: noqa: RUF001 - quotation marks and letters of other scripts are meant

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.text.sentences import sentence_pieces, sentences_of

SENTENCES = {
    "stops": ["One.", "Two!", "Three?", "Four?!", "Five"],
    "decimals": ["It costs 3.14 euros.", "Or 2.5."],
    "e.g., i.e.": ["Use a cache, e.g. Redis.", "It helps, i.e. Saves time."],
    "titles": ["Dr. Smith met Mrs. Jones et al. in May.", "They talked."],
    "numbered": ["See Fig. 3 and Eq. 4, on pp. 5 to 7.", "No. 5 is alive."],
    "year at the end": ["It was in 2019.", "Then came 2020."],
    "ellipsis": ["Wait... what is it?", "Nothing...", "Good."],
    "closing quote": ['He said "Go."', "She went."],
    "brackets, bold": ["(It is so.)", "[Here.]", "**Bold.**", "Next."],
    "references": ["It holds.[3]", "So does this.[^note]", "End."],
    "dotted names": ["It runs on Node.js and v1.2.3 of it.", "Fine."],
    "pictures and paths": ["See ![it](a.png) or `./x.sh` of it.", "Fine."],
    "addresses": ["See example.com/a.b for more.", "It is there."],
    "wrapped lines": ["First line\nand second.", "Third\nline."],
    "without spaces": ["a." * 100_000],
    "French quotation marks": ["Il dit : « Oui. »", "Puis il part."],
    "units": ["It takes 0.2 s.", "And 3 km."],
    "initials": ["J. Smith came.", "He left."],
    # A sentence is looked at in windows of 4,000 characters.
    "a title at a window's end": ["lorem " * 666 + "a Dr. Smith came.", "He left."],
    "initials at a window's end": ["lorem " * 664 + "from J. R. R. Tolkien.", "He left."],
    "an end at a window's end": ["lorem " * 665 + "end.", "Therefore it ended."],
    "signs at the end": ["Come in! \N{PARTY POPPER}"],
}


@pytest.mark.parametrize("sentences", SENTENCES.values(), ids=SENTENCES)
def test_a_text_is_cut_where_its_sentences_end(sentences):
    *others, last = sentences
    assert sentence_pieces(" ".join(sentences)) == [*(f"{other} " for other in others), last]


BLANKS_AND_ITEMS = {
    "blank": (" \n ", []),
    "blank line": ("A title\n\nsome text.\n\nmore", ["A title", "some text.", "more"]),
    "items": ("We need:\n- one\n- two", ["We need:", "- one", "- two"]),
    "heading": ("text\n# Title", ["text", "# Title"]),
    "Japanese": ("「行く。」と言った。彼は去る。", ["「行く。」と言った。", "彼は去る。"]),
    "Chinese, a quotation": ("他说：“开了。”然后走了。", ["他说：“开了。”然后走了。"]),
    "Khmer": ("ហាងបើកហើយ។ លាហើយ។", ["ហាងបើកហើយ។", "លាហើយ។"]),
    "Greek, a question": ("Πού είσαι; Εδώ.", ["Πού είσαι;", "Εδώ."]),
    "half a surrogate pair": ("a \ud800. B.", ["a \ud800.", "B."]),
    "Chinese": ("它很快。它也小！是吗？", ["它很快。", "它也小！", "是吗？"]),
}


@pytest.mark.parametrize(("text", "expected"), BLANKS_AND_ITEMS.values(), ids=BLANKS_AND_ITEMS)
def test_blank_lines_items_and_other_scripts_end_sentences_too(text, expected):
    assert sentences_of(text) == expected


def test_a_language_with_dotted_ordinals_keeps_its_dates_together():
    text = "Er kam am 3. Mai. Dann ging er, z. B. heim."

    assert sentences_of(text, "de") == ["Er kam am 3. Mai.", "Dann ging er, z. B. heim."]


@given(st.one_of(st.text(max_size=60), st.text(alphabet="aA1.!?…\"') \n\r。[]", max_size=40)))
def test_no_character_is_lost_between_sentences(text):
    pieces = sentence_pieces(text)

    assert "".join(pieces) == text
    assert sentences_of(text) == [piece.strip() for piece in pieces if piece.strip()]


# No language is named; German ones by readers of syntok, stanza, CoreNLP, textblob-de and
# LanguageTool, whose splitters parted them.
UNKNOWN_LANGUAGE = {
    "dates": ["Am 20. März 1905 wurde der FC Chelsea gegründet.", "Am 21. Juni ist Sommer."],
    "a day alone": ["Er kam am 3.", "Dann ging er am 4. Mai."],
    "ordinals": ["Jonas ist Fan vom 1. FC Köln.", "Dies ist nun der 17. Versuch.", "Gut."],
    "ordinals of what I have": ["Mein 2. Versuch war besser.", "Das war deine 6. Transaktion."],
    "English ordinals": ["Do the test on 23rd. May.", "Then wait."],
    "English figures": ["It takes 2 weeks.", "I am 30.", "The next is 31.", "Sales fell to 3."],
    "other figures": ["Il en reste 5.", "Les autres partent.", "Quedan 12.", "Los otros se van."],
    "a place": ["Platz 1.", "Der Sieger kam spät."],
    "Russian titles": ["Пришёл проф. Иванов.", "Ушёл."],
    "other titles": ["صرّح أ.د. خالد بأن الخسائر كبيرة.", "ثم غادر.", "डॉ. शर्मा आए।"],
    "a quotation in Hindi": ['"अतिथि देवो भवा!" बोले थे श्री नरेद्र मोदी ने।', "वे गए।"],
    "Georgian, and brands": ["ის მოვიდა.", "ის წავიდა.", "It works.", "iPhone too.", "macOS too."],
}


@pytest.mark.parametrize("sentences", UNKNOWN_LANGUAGE.values(), ids=UNKNOWN_LANGUAGE)
def test_ordinals_stay_together_where_the_language_is_unknown(sentences):
    assert sentences_of(" ".join(sentences)) == sentences


@pytest.mark.parametrize(
    "flood", ["\n", "_", '"', "[1]"], ids=["lines", "lines to fill", '"', "[1]"]
)
def test_a_flood_of_one_sign_takes_no_longer_than_it_is(flood):
    text = "Sign. " + flood * 50_000 + "One."
    assert "".join(sentence_pieces(text)) == text


def test_the_time_for_a_paragraph_grows_as_its_length_also_where_quotations_stay_open():
    def seconds(text):
        start = time.process_time()
        assert "".join(sentence_pieces(text)) == text
        return time.process_time() - start

    short, long = (min(seconds("«a " * n) for _ in range(3)) for n in (8_000, 32_000))
    assert long < 8 * short
