"""Which passages say the same in the same words, and that no contradiction does."""

# ruff: noqa: RUF001 - signs that look like others are what it is about

import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.memory import MemoryStore, Passage
from harness.memory.reading import number_of, reading

BRACES = re.compile(r"\{([^|}]*)\|([^}]*)\}|\{([^|}]*)\}")


def pair(line):
    return tuple(BRACES.sub(lambda found, side=side: found[side], line) for side in (1, 2))


LINES = Path(__file__).with_name("minimal_pairs.txt").read_text(encoding="utf-8").splitlines()
PAIRS = [pair(line) for line in LINES if line and not line.startswith("#")]


def are_one(one, other, rule):
    """The texts as passages, and that the look-up by number would find what is one."""
    passages = [Passage(text=text) for text in (one, other)]
    same = len({reading(passage, rule) for passage in passages}) == 1
    assert not same or len({number_of(passage) for passage in passages}) == 1
    return same


@pytest.mark.parametrize("merge", [True, "near"])
def test_contradictions_stay_apart_in_four_languages(tmp_path, embedder, merge):
    assert len(PAIRS) >= 200
    with MemoryStore.open(tmp_path, embedder=embedder, merge=merge) as store:
        added = store.add([Passage(text=text, title="T") for texts in PAIRS for text in texts])
        as_titles = store.add([Passage(text="T", title=text) for texts in PAIRS for text in texts])
    assert [one.passage.searchable for one in (*added.merged, *as_titles.merged)] == []


SAME = {
    "white space": ("Take  5 mg\n\tdaily. ", "Take 5 mg daily."),
    "a blank that does not break": ("5\u00a0mg", "5 mg"),
    "accents of their own": ("cafe\u0301 au lait", "café au lait"),
    "the sign of a unit": ("5 \u212b", "5 Å"),
}
NEAR = {
    **SAME,
    "quotation marks": ("He said “yes” and „no“.", 'He said "yes" and "no".'),
    "an apostrophe": ("It isn’t so", "It isn't so"),
    "an ellipsis": ("Wait… now", "Wait... now"),
    "ligatures": ("The ﬁrst oﬃce", "The first office"),
    "wide letters": ("ＵＳＡ：１２", "USA:12"),
    "the other mu": ("5 \u00b5g", "5 \u03bcg"),
    "a hyphen in a word": ("a well\u2011known man", "a well-known man"),
    "what has no width": ("\ufeffNow \u2060 then", "Now then"),
    "French blanks": ("Il est sûr\u202f! Et toi ?", "Il est sûr! Et toi?"),
    "the last full stop": ("It is safe.", "It is safe"),
    "an article's capital": ("The valve is open", "the valve is open"),
    "several": ("\ufeffDie „Regel“ gilt  immer.", 'die "Regel" gilt immer'),
}


@pytest.mark.parametrize(("one", "other"), NEAR.values(), ids=NEAR)
def test_what_carries_no_meaning_may_differ_as_far_as_the_rule_says(one, other, request):
    assert are_one(one, other, "near")
    assert are_one(one, other, "same") is (request.node.callspec.id in SAME)


APART = {
    "an ordinal's full stop": ("Er wurde 5.", "Er wurde 5"),
    "an initial's": ("by J.", "by J"),
    "a month's": ("in Jan.", "in Jan"),
    "a dotted line": ("and so on..", "and so on."),
    "an exclamation mark": ("You stay!", "You stay."),
    "a superscript": ("10²", "102"),
    "a fraction": ("1½", "11⁄2"),
    "the sign for number": ("№ 5", "No 5"),
    "dashes": ("5–10", "5-10"),
    "a hyphen that may be a minus": ("x \u20105", "x -5"),
    "feet and inches": ("5′", "5″"),
    "angles": ("a « b", "a » b"),
    "a capital": ("see US", "see Us"),
    "a capital at the beginning": ("Turkey is dry", "turkey is dry"),
    "all capitals": ("LA is dry", "la is dry"),
    "blanks in a number": ("1 000", "1000"),
    "a joiner": ("नी\u200dल", "नील"),
    "a soft hyphen": ("Wach\u00adstube", "Wachs\u00adtube"),
    "a blank before a sign": ("n !", "n!"),
    "title and text": ("a b", "b"),
}


@pytest.mark.parametrize(("one", "other"), APART.values(), ids=APART)
def test_what_may_carry_meaning_keeps_texts_apart(one, other):
    assert not are_one(one, other, "near")


def test_a_title_is_not_the_beginning_of_a_text():
    split, moved = Passage(title="a b", text="c"), Passage(title="a", text="b c")
    assert reading(split, "near") != reading(moved, "near")


# --- whatever the text -------------------------------------------------------------------------

SENTENCES = st.sampled_from([text for texts in PAIRS for text in texts])
SIGNS = st.sampled_from([*"0123456789<>=+-−±%€$°/*^²³µ#&", "‰", "≤", "≠", "½", "–"])
RULES = st.sampled_from(["same", "near"])


@given(text=SENTENCES, sign=SIGNS, data=st.data(), rule=RULES)
def test_no_digit_and_no_sign_may_come_go_or_change(text, sign, data, rule):
    place = data.draw(st.integers(0, len(text)))
    longer = text[:place] + sign + text[place:]
    assert not are_one(text, longer, rule)
    other = data.draw(SIGNS.filter(lambda one: one != sign))
    assert not are_one(longer, text[:place] + other + text[place:], rule)


@given(text=SENTENCES, data=st.data(), rule=RULES)
def test_no_word_may_come_go_change_or_move(text, data, rule):
    words = text.split()
    first, second = sorted(
        data.draw(st.lists(st.integers(0, len(words) - 1), min_size=2, max_size=2, unique=True))
    )
    gone = [*words[:first], *words[first + 1 :]]
    moved = [*gone[:second], words[first], *gone[second:]]
    another = data.draw(SENTENCES.map(str.split).flatmap(st.sampled_from))
    changed = [*words[:first], another, *words[first + 1 :]]
    came = [*words[:first], another, *words[first:]]
    for other in (gone, moved, changed, came):
        kept = [word.removesuffix(".").lower() for word in other]
        if kept != [word.removesuffix(".").lower() for word in words]:
            assert not are_one(text, " ".join(other), rule)


TYPED = st.one_of(
    st.text(max_size=12),
    st.lists(
        st.sampled_from([*"aAé5.,;:!? \n'\"-<", *"’“”„…µμﬁＡ＜\u2011\ufeff\u2060\u0301", "The "])
    )
    .map("".join)
    .filter(len),
)


def said(text):
    """All of it but for what may differ, as another hand would write it."""
    letters = []
    for letter in unicodedata.normalize("NFC", text):
        name = unicodedata.name(letter, "")
        if name.startswith(("FULLWIDTH", "LATIN SMALL LIGATURE F", "MICRO", "HORIZONTAL ELL")):
            letter = unicodedata.normalize("NFKC", letter)  # noqa: PLW2901
        elif "QUOTATION MARK" in name:
            letter = "'" if name == "RIGHT SINGLE QUOTATION MARK" else '"'  # noqa: PLW2901
        letters.append(
            {"\u2010": "-", "\u2011": "-", "\ufeff": "", "\u2060": ""}.get(letter, letter)
        )
    whole = unicodedata.normalize("NFC", "".join("".join(letters).split()))
    return (whole[:1].lower() + whole[1:]).removesuffix(".")


@given(one=TYPED, other=TYPED, rule=RULES)
def test_what_is_one_says_the_same(one, other, rule):
    typed = one.replace("'", "’").replace('"', "“").replace(" ", "\u00a0")
    for text in (other, typed, unicodedata.normalize("NFD", one), f"{one}.", f"\ufeff{one}"):
        if one.strip() and text.strip() and are_one(one, text, rule):
            assert said(one) == said(text)
    if one.strip() and rule == "near":
        assert are_one(one, typed, rule)
