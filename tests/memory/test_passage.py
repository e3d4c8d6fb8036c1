from datetime import datetime, tzinfo

import pytest

from harness.errors import InvalidInput
from harness.memory import Passage


def test_the_id_follows_from_source_title_and_text_alone():
    plain = Passage(text="text", title="title", source="source")
    judged = Passage(text="text", title="title", source="source", quality=9, metadata={"run": "r1"})

    assert plain.id == judged.id


@pytest.mark.parametrize(
    "other",
    [
        Passage(text="bc", title="a", source=""),
        Passage(text="c", title="ab", source=""),
        Passage(text="abc", title="", source=""),
        Passage(text="c", title="b", source="a"),
    ],
    ids=["as it was", "moved to the title", "all in the text", "in three"],
)
def test_the_id_keeps_the_fields_apart(other):
    assert (Passage(text="bc", title="a").id == other.id) == (other.title == "a")


def test_a_passage_goes_into_a_set_in_spite_of_its_metadata():
    assert len({Passage(text="text", metadata={"a": "b"}), Passage(text="text")}) == 2


@pytest.mark.parametrize("quality", [-0.1, 10.1, float("nan")])
def test_a_quality_off_the_scale_is_refused(quality):
    with pytest.raises(InvalidInput, match="between 0 and 10"):
        Passage(text="text", quality=quality)


def test_a_blank_passage_is_refused():
    with pytest.raises(InvalidInput, match="neither title nor text"):
        Passage(text=" \n")


@pytest.mark.parametrize("field", ["text", "title", "source"])
def test_half_of_a_surrogate_pair_is_refused_and_its_place_named(field):
    with pytest.raises(InvalidInput, match=rf"{field} .* at character 3"):
        Passage(**{"text": "text", field: "abc\ud83d"})


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("-inf"), 10**400, -(10**5000)],
    ids=["not a number", "infinite", "beyond any float", "of 5,000 digits"],
)
def test_a_number_that_json_or_a_filter_cannot_hold_is_refused(value):
    with pytest.raises(InvalidInput, match="metadata 'n' is not finite, or greater than any float"):
        Passage(text="text", metadata={"n": value})


class Somewhere(tzinfo):
    """A time zone that does not say how far it is from Greenwich."""

    def utcoffset(self, when: datetime | None) -> None:  # noqa: ARG002 - as datetime calls it
        return None


@pytest.mark.parametrize("zone", [None, Somewhere()], ids=["no zone", "a zone that is nowhere"])
def test_a_time_that_could_be_any_is_refused(zone):
    with pytest.raises(InvalidInput, match="must have a time zone"):
        Passage(text="text", created=datetime(2026, 1, 2, tzinfo=zone))
