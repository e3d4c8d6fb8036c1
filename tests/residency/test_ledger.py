from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import DoesNotFit
from harness.residency import Device, GuestEntry, Ledger, Resident, Tenant, check_fits
from harness.residency.ledger import guests_in_the_way, returning_guests


def resident(model, need_bytes, **need):
    return Resident(model=model, need={"machine": need_bytes, **need})


def guest(name, resident_bytes):
    return GuestEntry(name=name, resident_bytes=resident_bytes, needed_bytes=resident_bytes)


def outside(name, needed_bytes):
    return GuestEntry(name=name, resident_bytes=0, needed_bytes=needed_bytes, is_out=True)


def ledger_of(*entries, capacity_bytes=10, reserve_bytes=0, moving=None):
    machine = Device(name="machine", capacity_bytes=capacity_bytes, reserve_bytes=reserve_bytes)
    return Ledger(
        devices={"machine": machine, "gpu0": Device(name="gpu0", capacity_bytes=10)},
        residents={one.model: one for one in entries if isinstance(one, Resident)},
        guests=tuple(one for one in entries if isinstance(one, GuestEntry)),
        moving=moving,
    )


def test_what_is_taken_is_counted_by_device_with_what_moves_and_guests_on_the_machine():
    ledger = ledger_of(
        resident("a", 4, gpu0=2),
        Resident(model="b", need={"gpu0": 3}),
        *(guest("g", 1), guest("h", 2), outside("i", 9)),
        moving=resident("c", 1, gpu0=6),
    )

    assert (ledger.model_bytes("machine"), ledger.model_bytes("gpu0")) == (5, 11)
    assert ledger.guest_bytes == 3
    assert (ledger.taken_bytes("machine"), ledger.taken_bytes("gpu0")) == (8, 11)
    assert (ledger.room_for_models("machine"), ledger.room_for_models("gpu0")) == (5, -1)
    assert Tenant(model="a", need={"gpu0": 3, "machine": 4}).need_bytes == 7


def test_a_reserve_is_no_room_and_told_with_its_device():
    device = Device(name="machine", capacity_bytes=6 * 2**30, reserve_bytes=2**29)
    assert device.room_bytes == 11 * 2**29
    assert ledger_of(resident("a", 4), reserve_bytes=3).room_for_models("machine") == 3
    assert str(device) == "6.0 GiB on 'machine' less 512.0 MiB in reserve"
    assert str(replace(device, reserve_bytes=0)) == "6.0 GiB on 'machine'"


# --- guests ---------------------------------------------------------------------------------------

A3, G4 = resident("a", 3), guest("g", 4)


@pytest.mark.parametrize(
    ("ledger", "need", "names"),
    [
        pytest.param(ledger_of(A3, G4), 5, "g", id="it is in the way"),
        pytest.param(ledger_of(guest("f", 2), G4, guest("h", 3)), 7, "gh", id="the largest, few"),
        pytest.param(ledger_of(G4, reserve_bytes=3), 4, "g", id="beside a reserve"),
        pytest.param(ledger_of(G4, moving=A3), 4, "g", id="beside what moves"),
        pytest.param(ledger_of(resident("a", 6), G4), {"gpu0": 10}, "", id="not on a gpu"),
        pytest.param(ledger_of(guest("g", 6), guest("f", 6)), {}, "f", id="of equals, by name"),
    ],
)
def test_guests_go_that_are_in_the_way(ledger, need, names):
    need = {"machine": need} if isinstance(need, int) else need
    assert guests_in_the_way(ledger, need) == tuple(names)


GUESTS = st.lists(
    st.builds(guest, st.sampled_from("ghi"), st.integers(0, 9))
    | st.builds(outside, st.sampled_from("ghi"), st.integers(0, 9)),
    unique_by=lambda one: one.name,
)


@given(GUESTS, st.integers(0, 20), st.integers(0, 20))
def test_as_few_guests_go_as_need_be_and_as_many_come_back_as_can_stay(guests, spare, need):
    ledger = ledger_of(A3, *guests, capacity_bytes=3 + spare)

    going, back = guests_in_the_way(ledger, {"machine": need}), returning_guests(ledger)

    taken = {one.name: one.resident_bytes for one in guests if not one.is_out}
    assert set(going) <= set(taken)
    staying = sum(taken.values()) - sum(taken[name] for name in going)
    assert staying <= max(spare - need, 0)
    assert not going or staying + taken[going[-1]] > spare - need

    there = sum(taken.values()) + sum(one.needed_bytes for one in guests if one.name in back)
    assert not back or there <= spare
    after = [guest(one.name, one.needed_bytes) if one.name in back else one for one in guests]
    assert not back or guests_in_the_way(replace(ledger, guests=tuple(after))) == ()
    left_out = [one.needed_bytes for one in guests if one.is_out and one.name not in back]
    assert not left_out or there + min(left_out) > spare


# --- what can ever fit ----------------------------------------------------------------------------


def fits(model, *others, **device):
    """Holds a model against 6 bytes of memory, less what others pin, beside a GPU of 4."""
    tenants = {one.model: one for one in (model, *others)}
    machine = Device(name="machine", **{"capacity_bytes": 6} | device)
    gpu = Device(name="gpu0", capacity_bytes=4)
    check_fits(model.model, tenants, {"machine": machine, "gpu0": gpu})


def takes(model, bytes_, *, on="machine", **how):
    return Tenant(model=model, need={on: bytes_}, **how)


def test_a_model_may_take_all_that_nobody_else_is_pinned_to():
    fits(takes("a", 6, pin=True))
    fits(takes("a", 6), takes("b", 6), takes("c", 4, on="gpu0", pin=True))


@pytest.mark.parametrize(
    ("others", "device", "remedies"),
    [
        pytest.param([], {"capacity_bytes": 5}, [], id="too small"),
        pytest.param(
            [takes("b", 5, pin=True)],
            {"reserve_bytes": 2},
            ["leave out a pin", "lower the reserve"],
            id="more than there is",
        ),
    ],
)
def test_what_can_never_fit_is_refused_with_numbers_and_what_would_help(others, device, remedies):
    with pytest.raises(DoesNotFit) as caught:
        fits(takes("a", 6), *others, **device)
    error = caught.value
    assert (error.model, error.need_bytes) == ("a", 6)
    assert error.capacity_bytes == device.get("capacity_bytes", 6)
    said = {one for one in ("lower the reserve", "leave out a pin") if one in str(error)}
    assert said == set(remedies)


@pytest.mark.parametrize(
    ("need", "table"),
    [
        ({"gpu0": 4, "machine": 7}, "[budget]"),
        ({"gpu0": 5, "machine": 6}, "[budget.devices.gpu0]"),
    ],
)
def test_a_model_on_several_devices_must_fit_on_each(need, table):
    with pytest.raises(DoesNotFit) as caught:
        fits(Tenant(model="a", need=need))
    assert str(caught.value).endswith(f"raise capacity under {table}")
