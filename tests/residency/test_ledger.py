from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import DoesNotFit
from harness.residency import (
    Grant,
    GuestEntry,
    Ledger,
    Load,
    Resident,
    Wait,
    admit,
    outgrown,
    returning,
)


def resident(model, need_bytes, *, leases=0, last_used=0):
    return Resident(model=model, need_bytes=need_bytes, leases=leases, last_used=last_used)


def guest(name, resident_bytes):
    return GuestEntry(name=name, resident_bytes=resident_bytes, needed_bytes=resident_bytes)


def guest_outside(name, needed_bytes):
    return GuestEntry(name=name, resident_bytes=0, needed_bytes=needed_bytes, is_out=True)


def ledger_of(*residents, capacity_bytes=10, guests=()):
    return Ledger(capacity_bytes=capacity_bytes, residents=residents, guests=guests)


@pytest.mark.parametrize(
    ("ledger", "need_bytes", "decision"),
    [
        pytest.param(ledger_of(), 10, Load(evict=()), id="all of an empty budget"),
        pytest.param(ledger_of(resident("new", 4)), 4, Grant(), id="resident and idle"),
        pytest.param(ledger_of(resident("new", 4, leases=3)), 4, Grant(), id="resident, in use"),
        pytest.param(
            ledger_of(resident("a", 6, leases=1)), 4, Load(evict=()), id="beside one in use"
        ),
        pytest.param(
            ledger_of(resident("a", 3), resident("b", 3)), 4, Load(evict=()), id="room is left"
        ),
        pytest.param(
            ledger_of(resident("a", 4, last_used=7), resident("b", 4, last_used=2)),
            4,
            Load(evict=("b",)),
            id="the longest unused goes",
        ),
        pytest.param(
            ledger_of(
                resident("a", 3, last_used=2),
                resident("b", 3, last_used=1),
                resident("c", 4, last_used=3),
            ),
            6,
            Load(evict=("b", "a")),
            id="as many as it takes, the longest unused first",
        ),
        pytest.param(
            ledger_of(resident("a", 4, leases=1, last_used=1), resident("b", 4, last_used=2)),
            4,
            Load(evict=("b",)),
            id="never one in use",
        ),
        pytest.param(ledger_of(resident("a", 8, leases=1)), 4, Wait(), id="the only one in use"),
        pytest.param(
            ledger_of(resident("a", 7, leases=2), resident("b", 3)),
            4,
            Wait(),
            id="idle ones do not make enough room",
        ),
        pytest.param(
            ledger_of(resident("a", 3), guests=(guest("g", 4),)),
            5,
            Load(evict=(), guests=("g",)),
            id="a guest goes before an idle model",
        ),
        pytest.param(
            ledger_of(guests=(guest("f", 2), guest("g", 4), guest("h", 3))),
            7,
            Load(evict=(), guests=("g", "h")),
            id="the largest guests go, as few as need be",
        ),
        pytest.param(
            ledger_of(resident("a", 5), guests=(guest("g", 4),)),
            8,
            Load(evict=("a",), guests=("g",)),
            id="guests alone do not suffice",
        ),
        pytest.param(
            ledger_of(resident("a", 6), guests=(guest("g", 1),)),
            6,
            Load(evict=("a",)),
            id="a guest stays beside the model for which another goes anyway",
        ),
        pytest.param(
            ledger_of(resident("a", 2), guests=(guest("g", 9),)),
            4,
            Load(evict=(), guests=("g",)),
            id="a guest that has outgrown the budget is no reason for a model to go",
        ),
        pytest.param(
            ledger_of(resident("a", 6, leases=1), guests=(guest("g", 4),)),
            5,
            Wait(),
            id="no guest goes while that does not help",
        ),
        pytest.param(
            ledger_of(resident("a", 6), guests=(guest_outside("g", 9),)),
            4,
            Load(evict=()),
            id="a guest that is out takes nothing",
        ),
    ],
)
def test_what_must_happen_before_a_model_can_be_used(ledger, need_bytes, decision):
    assert admit(ledger, "new", need_bytes) == decision


@pytest.mark.parametrize("residents", [(), (resident("a", 4, leases=1),)], ids=["empty", "in use"])
def test_what_is_larger_than_the_whole_budget_is_refused_with_numbers_and_remedy(residents):
    ledger = ledger_of(*residents, capacity_bytes=6 * 2**30)

    with pytest.raises(DoesNotFit) as caught:
        admit(ledger, "huge", 7 * 2**30)

    error = caught.value
    assert (error.model, error.need_bytes, error.capacity_bytes) == ("huge", 7 * 2**30, 6 * 2**30)
    assert str(error) == (
        "model 'huge' needs 7.0 GiB and the whole budget is 6.0 GiB; lower its context_tokens or "
        "slots, use a smaller quantisation, or raise [budget] capacity"
    )


def test_a_ledger_has_one_entry_for_a_model():
    first = ledger_of(resident("a", 4), resident("b", 3))
    second = first.with_resident(resident("a", 4, leases=1))

    assert second.find("a") == resident("a", 4, leases=1)
    assert second.resident_bytes == 7
    assert second.without("a").residents == (resident("b", 3),)
    assert second.find("c") is None
    assert first.find("a") == resident("a", 4)


@pytest.mark.parametrize(
    ("ledger", "names"),
    [
        pytest.param(ledger_of(resident("a", 6), guests=(guest("g", 4),)), (), id="all fits"),
        pytest.param(ledger_of(resident("a", 6), guests=(guest("g", 5),)), ("g",), id="too large"),
        pytest.param(
            ledger_of(resident("a", 4), guests=(guest("f", 2), guest("g", 5), guest("h", 2))),
            ("g",),
            id="the largest, so that the others stay",
        ),
        pytest.param(
            ledger_of(guests=(guest("g", 6), guest("f", 6))), ("f",), id="of equals, by name"
        ),
        pytest.param(
            ledger_of(resident("a", 10), guests=(guest("g", 0), guest("h", 1))),
            ("h",),
            id="never one that takes nothing",
        ),
    ],
)
def test_guests_that_have_outgrown_the_budget_go(ledger, names):
    assert outgrown(ledger) == names


@pytest.mark.parametrize(
    ("ledger", "names"),
    [
        pytest.param(ledger_of(guests=(guest_outside("g", 10),)), ("g",), id="into all of it"),
        pytest.param(
            ledger_of(resident("a", 6), guests=(guest_outside("g", 5),)), (), id="no room"
        ),
        pytest.param(
            ledger_of(resident("a", 6), guests=(guest("g", 4),)), (), id="it is there already"
        ),
        pytest.param(
            ledger_of(
                resident("a", 2),
                guests=(
                    guest_outside("g", 5),
                    guest("there", 2),
                    guest_outside("f", 1),
                    guest_outside("h", 4),
                ),
            ),
            ("f", "h"),
            id="the smallest first, beside those that are there",
        ),
        pytest.param(
            ledger_of(resident("a", 10), guests=(guest_outside("empty", 0),)),
            ("empty",),
            id="what takes nothing always fits",
        ),
    ],
)
def test_guests_come_back_into_what_room_there_is(ledger, names):
    assert returning(ledger) == names


RESIDENTS = st.lists(
    st.builds(
        resident,
        st.sampled_from("abcdef"),
        st.integers(1, 9),
        leases=st.integers(0, 1),
        last_used=st.integers(0, 20),
    ),
    unique_by=lambda one: one.model,
)


GUESTS = st.lists(
    st.builds(
        GuestEntry,
        name=st.sampled_from("ghi"),
        resident_bytes=st.integers(0, 9),
        needed_bytes=st.integers(0, 9),
        is_out=st.just(False),  # noqa: FBT003
    )
    | st.builds(guest_outside, st.sampled_from("ghi"), st.integers(0, 9)),
    unique_by=lambda one: one.name,
)


@settings(derandomize=True, deadline=None, max_examples=500)
@given(RESIDENTS, GUESTS, st.integers(0, 10), st.integers(1, 12))
def test_what_is_decided_fits_and_waits_only_for_models_in_use(
    residents, guests, spare_bytes, need_bytes
):
    model_bytes = sum(one.need_bytes for one in residents)
    ledger = ledger_of(*residents, guests=tuple(guests), capacity_bytes=model_bytes + spare_bytes)
    if need_bytes > ledger.capacity_bytes:
        with pytest.raises(DoesNotFit):
            admit(ledger, "new", need_bytes)
        return

    decision = admit(ledger, "new", need_bytes)

    idle_bytes = sum(one.need_bytes for one in residents if not one.leases)
    if isinstance(decision, Wait):
        assert spare_bytes + idle_bytes < need_bytes
        return
    # Guests, which may have outgrown what the models leave, are no reason for a model to go.
    evicted = [ledger.find(model) for model in decision.evict]
    assert not any(one.leases for one in evicted)
    assert spare_bytes + sum(one.need_bytes for one in evicted) >= need_bytes
    # And none too many: without the last of them there would be too little room.
    assert not evicted or spare_bytes + sum(o.need_bytes for o in evicted[:-1]) < need_bytes
    # With the guests that stay it fits, and would not with one more of those that go.
    left_bytes = spare_bytes + sum(one.need_bytes for one in evicted) - need_bytes
    taken_bytes = {one.name: one.resident_bytes for one in guests}
    staying_bytes = sum(taken_bytes.values()) - sum(taken_bytes[name] for name in decision.guests)
    assert staying_bytes <= left_bytes
    if decision.guests:
        assert staying_bytes + taken_bytes[decision.guests[-1]] > left_bytes


@settings(derandomize=True, deadline=None, max_examples=500)
@given(RESIDENTS, GUESTS, st.integers(0, 20))
def test_who_comes_back_has_room_and_need_not_go_again(residents, guests, spare_bytes):
    model_bytes = sum(one.need_bytes for one in residents)
    ledger = ledger_of(*residents, guests=tuple(guests), capacity_bytes=model_bytes + spare_bytes)

    back = returning(ledger)

    there_bytes = sum(one.resident_bytes for one in guests)
    came_bytes = sum(one.needed_bytes for one in guests if one.name in back)
    assert not back or there_bytes + came_bytes <= spare_bytes
    after = [guest(one.name, one.needed_bytes) if one.name in back else one for one in guests]
    assert not back or outgrown(replace(ledger, guests=tuple(after))) == ()
    # As many as there is room for: not even the smallest of the others would fit.
    left_out = [one.needed_bytes for one in guests if one.is_out and one.name not in back]
    assert not left_out or there_bytes + came_bytes + min(left_out) > spare_bytes
