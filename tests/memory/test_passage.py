"""What a passage may hold, and what it can be filtered by."""

import json
from dataclasses import replace
from datetime import datetime, tzinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored import failing

from harness.errors import InvalidInput
from harness.memory import Passage
from harness.memory.passage import RESERVED, Turn, tags_of, wanted_tags


def test_the_id_follows_from_source_title_and_text_alone():
    plain = Passage(text="bc", title="a")

    assert plain.id == Passage(text="bc", title="a", quality=9, metadata={"run": "r1"}).id
    others = [("c", "ab", ""), ("abc", "", ""), ("c", "b", "a")]
    assert plain.id not in {Passage(text=x, title=t, source=s).id for x, t, s in others}


def test_a_passage_goes_into_a_set_in_spite_of_its_metadata():
    assert len({Passage(text="text", metadata={"a": "b"}), Passage(text="text")}) == 2


class Nowhere(tzinfo):
    """A time zone that does not say how far it is from Greenwich."""

    def utcoffset(self, _when):
        return None


REFUSED = {
    "a quality below the scale": ({"quality": -0.1}, "quality-out-of-range"),
    "a quality that is no number": ({"quality": float("nan")}, "quality-out-of-range"),
    "a text that is none": ({"text": 3}, "field-type"),
    "no title": ({"title": None}, "field-type"),
    "blank": ({"text": " \n"}, "empty"),
    "half a pair in the text": ({"text": "abc\ud83d"}, "not-encodable"),
    "metadata: not a number": ({"metadata": {"n": float("nan")}}, "field-type"),
    "metadata: beyond any float": ({"metadata": {"n": -(10**5000)}}, "field-type"),
    "metadata: a list": ({"metadata": {"n": []}}, "field-type"),
    "metadata: a name of ours": ({"metadata": {"title": "x"}}, "field-name"),
    "a zone that is nowhere": ({"created": datetime(2026, 1, 2, tzinfo=Nowhere())}, "no-time-zone"),
    "no time zone": ({"created": datetime(2026, 1, 2)}, "no-time-zone"),  # noqa: DTZ001
}  # fmt: skip


@pytest.mark.parametrize(("fields", "code"), REFUSED.values(), ids=REFUSED)
def test_what_no_store_can_hold_is_refused(fields, code):
    with failing(InvalidInput, f"passage.{code}"):
        Passage(**{"text": "text"} | fields)


# --- filters -----------------------------------------------------------------------------------

OTTERS = Passage(
    text="They float.",
    title="Otters",
    source="a.md",
    metadata={"year": 2024, "share": 2.0, "checked": True, "topic": "animals"},
)


def matches(passage: Passage, where: object) -> bool:
    """By tags, as both indexes do it."""
    tags = set(tags_of(passage))
    return all(tags & set(alternatives) for alternatives in wanted_tags(where, lambda *_: ()))


FILTERS = {
    "one of several": ({"topic": ["plants", "animals"]}, True),
    "one of two does not": ({"topic": "animals", "year": 2023}, False),
    "a text is no number": ({"year": "2024"}, False),
    "own fields": ({"title": "Otters", "source": {"a.md", "b.md"}}, True),
    "letters have a case": ({"title": "otters"}, False),
    "a field that it has not": ({"unknown": "animals"}, False),
    "half of a surrogate pair": ({"topic": json.loads('"\\ud800"')}, False),
}


@pytest.mark.parametrize(("where", "expected"), FILTERS.values(), ids=FILTERS)
def test_a_filter_matches_what_it_says(where, expected):
    assert matches(OTTERS, where) is expected


scalars = (
    st.text()
    | st.sampled_from([2, 2.0, 1, True])
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
)
names = st.text(min_size=1).filter(lambda name: name not in RESERVED)


@given(name=names, ours=scalars | st.booleans(), theirs=scalars | st.booleans())
def test_values_match_when_they_are_equal_and_both_or_neither_are_booleans(name, ours, theirs):
    equal = ours == theirs and isinstance(ours, bool) == isinstance(theirs, bool)

    assert matches(Passage(text="x", metadata={name: ours}), {name: theirs}) is equal
    assert matches(Passage(text="x", metadata={name: ours}), {name: [theirs, ours]})


def test_a_passage_has_a_tag_for_each_field_and_these_never_change():
    assert len(set(tags_of(OTTERS))) == 6
    # Indexes on disk hold these: another digest or another way to write JSON would lose them.
    assert tags_of(Passage(text="x", source="a.md"))[0] == "ea92d382bd9d9c6fde547881e95e66bc"


UNSATISFIABLE = {
    "not filterable": ({"quality": 8.0}, "unknown-field"),
    "none": ({"topic": None}, "value-type"),
    "a list in a list": ({"topic": [["a"]]}, "value-type"),
    "no values": ({"topic": []}, "no-value"),
    "not a number": ({"share": float("nan")}, "value-type"),
    "beyond any float": ({"share": 10**400}, "value-type"),
}


@pytest.mark.parametrize(("where", "code"), UNSATISFIABLE.values(), ids=UNSATISFIABLE)
def test_a_filter_that_nothing_can_satisfy_is_refused(where, code):
    with failing(InvalidInput, f"filter.{code}"):
        wanted_tags(where, lambda *_: ())


RANGES = {
    "no bound": ({}, "no-value"),
    "a text": ({">": "a"}, "range"),
    "a boolean": ({">": True}, "range"),
    "no comparison": ({"$gt": 1}, "range"),
    "not a number": ({">": float("nan")}, "value-type"),
}


@pytest.mark.parametrize(("bounds", "code"), RANGES.values(), ids=RANGES)
def test_a_range_has_comparisons_with_numbers(bounds, code):
    with failing(InvalidInput, f"filter.{code}"):
        wanted_tags({"year": bounds}, lambda *_: ())


@pytest.mark.parametrize("place", [("", 1), ("a", 1.0), ("a", True), ("a", 10**400)], ids=str)
def test_a_turn_has_a_conversation_and_a_whole_number(place):
    with failing(InvalidInput, "passage.turn-invalid"):
        Turn(conversation=place[0], position=place[1])


def test_what_is_said_twice_is_two_turns():
    yes = Passage(text="Yes.", turn=Turn(conversation="a", position=1, speaker="Ann"))
    again = replace(yes, id="", turn=Turn(conversation="a", position=2, speaker="Ann"))
    assert yes.searchable == "Ann: Yes."
    assert len({yes.id, again.id, Passage(text="Yes.").id}) == 3
    assert len({yes.words, again.words, Passage(text="Yes.").words}) == 3
