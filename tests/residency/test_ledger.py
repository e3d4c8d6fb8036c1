import pytest

from harness.errors import DoesNotFit
from harness.residency import Device, Tenant, check_fits
from harness.residency.ledger import Ledger, Resident


def resident(model, need_bytes, **need):
    return Resident(model=model, need={"machine": need_bytes, **need})


def ledger_of(*entries, capacity_bytes=10, reserve_bytes=0, moving=None):
    machine = Device(name="machine", capacity_bytes=capacity_bytes, reserve_bytes=reserve_bytes)
    return Ledger(
        devices={"machine": machine, "gpu0": Device(name="gpu0", capacity_bytes=10)},
        residents={one.model: one for one in entries},
        moving=moving,
    )


def test_what_is_taken_is_counted_by_device_with_what_moves():
    ledger = ledger_of(
        resident("a", 4, gpu0=2),
        Resident(model="b", need={"gpu0": 3}),
        moving=resident("c", 1, gpu0=6),
    )

    assert (ledger.taken_bytes("machine"), ledger.taken_bytes("gpu0")) == (5, 11)
    assert (ledger.free_bytes("machine"), ledger.free_bytes("gpu0")) == (5, -1)
    assert Tenant(model="a", need={"gpu0": 3, "machine": 4}).need_bytes == 7


def test_a_reserve_is_no_room():
    device = Device(name="machine", capacity_bytes=6 * 2**30, reserve_bytes=2**29)
    assert device.room_bytes == 11 * 2**29
    assert ledger_of(resident("a", 4), reserve_bytes=3).free_bytes("machine") == 3


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
