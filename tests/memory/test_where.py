import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import InvalidInput
from harness.memory.passage import RESERVED, Passage
from harness.memory.where import Where, tags_of

OTTERS = Passage(
    text="They float.",
    title="Otters",
    source="a.md",
    metadata={"year": 2024, "share": 2.0, "checked": True, "topic": "animals"},
)


def matches(passage: Passage, where: object) -> bool:
    """By tags, as both lanes do it."""
    tags = set(tags_of(passage))
    return all(tags & set(alternatives) for alternatives in Where.parse(where).tags)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        pytest.param({}, True, id="nothing asked"),
        pytest.param({"topic": "animals"}, True, id="a text"),
        pytest.param({"topic": "plants"}, False, id="another text"),
        pytest.param({"topic": ["plants", "animals"]}, True, id="one of several"),
        pytest.param({"topic": ("plants", "stones")}, False, id="none of several"),
        pytest.param({"topic": "animals", "year": 2024}, True, id="both match"),
        pytest.param({"topic": "animals", "year": 2023}, False, id="one of two does not"),
        pytest.param({"year": 2024.0}, True, id="a float for a whole number"),
        pytest.param({"share": 2}, True, id="a whole number for a float"),
        pytest.param({"year": "2024"}, False, id="a text is no number"),
        pytest.param({"checked": True}, True, id="a boolean"),
        pytest.param({"checked": 1}, False, id="a boolean is no number"),
        pytest.param({"title": "Otters", "source": {"a.md", "b.md"}}, True, id="own fields"),
        pytest.param({"title": "otters"}, False, id="letters have a case"),
        pytest.param({"unknown": "animals"}, False, id="a field that it has not"),
    ],
)
def test_a_filter_matches_what_it_says(where, expected):
    assert matches(OTTERS, where) is expected


scalars = st.text() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
names = st.text(min_size=1).filter(lambda name: name not in RESERVED)


@given(name=names, ours=scalars | st.booleans(), theirs=scalars | st.booleans())
def test_values_match_when_they_are_equal_and_both_or_neither_are_booleans(name, ours, theirs):
    equal = ours == theirs and isinstance(ours, bool) == isinstance(theirs, bool)

    assert matches(Passage(text="x", metadata={name: ours}), {name: theirs}) is equal
    assert matches(Passage(text="x", metadata={name: ours}), {name: [theirs, ours]})


def test_a_passage_has_a_tag_for_each_field_and_these_never_change():
    assert len(set(tags_of(OTTERS))) == 6
    # Lanes on disk hold these: another digest or another way to write JSON would lose them.
    assert tags_of(Passage(text="x", source="a.md"))[0] == "ea92d382bd9d9c6fde547881e95e66bc"


@pytest.mark.parametrize(
    ("where", "message"),
    [
        pytest.param({"quality": 8.0}, "cannot ask for 'quality'; it can", id="not filterable"),
        pytest.param({1: "x"}, "cannot ask for 1", id="no name"),
        pytest.param({"": "x"}, "cannot ask for ''", id="a blank name"),
        pytest.param({"topic": None}, "'topic' asks for None", id="none"),
        pytest.param({"topic": b"x"}, "'topic' asks for b'x'", id="bytes"),
        pytest.param({"topic": {"a": 1}}, "'topic' asks for {'a': 1}", id="a mapping"),
        pytest.param({"topic": [["a"]]}, r"'topic' asks for \['a'\]", id="a list in a list"),
        pytest.param({"topic": []}, "'topic' has no value; leave it out", id="no values"),
        pytest.param({"share": float("nan")}, "'share' asks for a number", id="not a number"),
        pytest.param({"share": 10**400}, "'share' asks for a number", id="beyond any float"),
    ],
)
def test_a_filter_that_nothing_can_satisfy_is_refused(where, message):
    with pytest.raises(InvalidInput, match=message):
        Where.parse(where)


def test_half_of_a_surrogate_pair_matches_nothing_and_is_no_error():
    assert not matches(OTTERS, {"topic": json.loads('"\\ud800"')})
