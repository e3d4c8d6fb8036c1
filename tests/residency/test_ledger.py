from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.residency import Device, GuestEntry, Ledger, Resident, Tenant
from harness.residency.ledger import guests_in_the_way, returning_guests


def resident(model, need_bytes, **need):
    return Resident(model=model, need={"machine": need_bytes, **need})


def guest(name, resident_bytes):
    return GuestEntry(name=name, resident_bytes=resident_bytes, needed_bytes=resident_bytes)


def guest_outside(name, needed_bytes):
    return GuestEntry(name=name, resident_bytes=0, needed_bytes=needed_bytes, is_out=True)


def ledger_of(*residents, capacity_bytes=10, reserve_bytes=0, guests=(), moving=None):
    machine = Device(name="machine", capacity_bytes=capacity_bytes, reserve_bytes=reserve_bytes)
    gpu = Device(name="gpu0", capacity_bytes=10)
    return Ledger(
        devices={"machine": machine, "gpu0": gpu},
        residents={one.model: one for one in residents},
        guests=guests,
        moving=moving,
    )


def test_a_ledger_has_one_entry_for_a_model():
    first = ledger_of(resident("a", 4), resident("b", 3))
    leased = replace(resident("a", 4), leases=1)
    second = first.with_resident(leased)

    assert second.residents == {"a": leased, "b": resident("b", 3)}
    assert second.without("a").residents == {"b": resident("b", 3)}
    assert second.without("c").residents == second.residents
    assert first.residents["a"] == resident("a", 4)


def test_what_is_taken_is_counted_by_device_with_what_moves_and_guests_on_the_machine():
    ledger = ledger_of(
        resident("a", 4, gpu0=2),
        Resident(model="b", need={"gpu0": 3}),
        guests=(guest("g", 1), guest("h", 2), guest_outside("i", 9)),
        moving=resident("c", 1, gpu0=6),
    )

    assert (ledger.model_bytes("machine"), ledger.model_bytes("gpu0")) == (5, 11)
    assert ledger.guest_bytes == 3
    assert (ledger.taken_bytes("machine"), ledger.taken_bytes("gpu0")) == (8, 11)
    assert (ledger.room_for_models("machine"), ledger.room_for_models("gpu0")) == (5, -1)


def test_a_reserve_is_no_room():
    assert Device(name="gpu0", capacity_bytes=10, reserve_bytes=3).room_bytes == 7
    assert ledger_of(resident("a", 4), reserve_bytes=3).room_for_models("machine") == 3


@pytest.mark.parametrize(
    ("device", "text"),
    [
        (Device(name="gpu0", capacity_bytes=6 * 2**30), "6.0 GiB on 'gpu0'"),
        (
            Device(name="machine", capacity_bytes=6 * 2**30, reserve_bytes=2**29),
            "6.0 GiB on 'machine' less 512.0 MiB in reserve",
        ),
    ],
)
def test_a_device_is_told_with_its_reserve(device, text):
    assert str(device) == text


def test_a_tenant_knows_what_it_takes_in_all():
    assert Tenant(model="a", need={"gpu0": 3, "machine": 4}).need_bytes == 7


@pytest.mark.parametrize(
    ("ledger", "need_bytes", "names"),
    [
        pytest.param(ledger_of(resident("a", 3), guests=(guest("g", 4),)), 3, (), id="all fits"),
        pytest.param(
            ledger_of(resident("a", 3), guests=(guest("g", 4),)), 5, ("g",), id="it is in the way"
        ),
        pytest.param(
            ledger_of(guests=(guest("f", 2), guest("g", 4), guest("h", 3))),
            7,
            ("g", "h"),
            id="the largest go, as few as need be",
        ),
        pytest.param(
            ledger_of(resident("a", 6), guests=(guest_outside("g", 9),)),
            4,
            (),
            id="one that is out takes nothing",
        ),
        pytest.param(
            ledger_of(resident("a", 2), guests=(guest("g", 9),)),
            4,
            ("g",),
            id="one that has outgrown the room",
        ),
        pytest.param(
            ledger_of(guests=(guest("g", 4),), reserve_bytes=3), 4, ("g",), id="beside a reserve"
        ),
        pytest.param(
            ledger_of(guests=(guest("g", 4),), moving=resident("a", 3)),
            4,
            ("g",),
            id="beside what moves",
        ),
    ],
)
def test_guests_make_room_for_a_model(ledger, need_bytes, names):
    assert guests_in_the_way(ledger, {"machine": need_bytes}) == names


def test_a_model_on_a_gpu_is_in_no_guests_way():
    ledger = ledger_of(resident("a", 6), guests=(guest("g", 4),))
    assert guests_in_the_way(ledger, {"gpu0": 10}) == ()


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
def test_guests_that_have_outgrown_the_room_go(ledger, names):
    assert guests_in_the_way(ledger) == names


@pytest.mark.parametrize(
    ("ledger", "names"),
    [
        pytest.param(ledger_of(guests=(guest_outside("g", 10),)), ("g",), id="into all of it"),
        pytest.param(
            ledger_of(resident("a", 6), guests=(guest_outside("g", 5),)), (), id="no room"
        ),
        pytest.param(
            ledger_of(guests=(guest_outside("g", 8),), reserve_bytes=3), (), id="but a reserve"
        ),
        pytest.param(
            ledger_of(guests=(guest_outside("g", 8),), moving=resident("a", 3)),
            (),
            id="a model is on its way into it",
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
    assert returning_guests(ledger) == names


RESIDENTS = st.lists(
    st.builds(resident, st.sampled_from("abcdef"), st.integers(1, 9)),
    unique_by=lambda one: one.model,
)
GUESTS = st.lists(
    st.builds(guest, st.sampled_from("ghi"), st.integers(0, 9))
    | st.builds(guest_outside, st.sampled_from("ghi"), st.integers(0, 9)),
    unique_by=lambda one: one.name,
)


@settings(max_examples=500)
@given(RESIDENTS, GUESTS, st.integers(0, 20), st.integers(0, 20))
def test_as_few_guests_go_as_need_be(residents, guests, spare_bytes, need_bytes):
    model_bytes = sum(one.need["machine"] for one in residents)
    ledger = ledger_of(*residents, guests=tuple(guests), capacity_bytes=model_bytes + spare_bytes)

    going = guests_in_the_way(ledger, {"machine": need_bytes})

    taken_bytes = {one.name: one.resident_bytes for one in guests if not one.is_out}
    assert set(going) <= set(taken_bytes)
    left_bytes = spare_bytes - need_bytes
    staying_bytes = sum(taken_bytes.values()) - sum(taken_bytes[name] for name in going)
    assert staying_bytes <= max(left_bytes, 0)
    if going:
        assert staying_bytes + taken_bytes[going[-1]] > left_bytes


@settings(max_examples=500)
@given(RESIDENTS, GUESTS, st.integers(0, 20))
def test_who_comes_back_has_room_and_need_not_go_again(residents, guests, spare_bytes):
    model_bytes = sum(one.need["machine"] for one in residents)
    ledger = ledger_of(*residents, guests=tuple(guests), capacity_bytes=model_bytes + spare_bytes)

    back = returning_guests(ledger)

    there_bytes = sum(one.resident_bytes for one in guests)
    came_bytes = sum(one.needed_bytes for one in guests if one.name in back)
    assert not back or there_bytes + came_bytes <= spare_bytes
    after = [guest(one.name, one.needed_bytes) if one.name in back else one for one in guests]
    assert not back or guests_in_the_way(replace(ledger, guests=tuple(after))) == ()
    # As many as there is room for: not even the smallest of the others would fit.
    left_out = [one.needed_bytes for one in guests if one.is_out and one.name not in back]
    assert not left_out or there_bytes + came_bytes + min(left_out) > spare_bytes
