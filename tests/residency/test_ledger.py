import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import DoesNotFit
from harness.residency import Device, Tenant, check_fits
from harness.residency.ledger import Ledger, Resident, place


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
    [({"gpu0": 4, "machine": 7}, "[budget]"), ({"gpu0": 5, "machine": 6}, "[budget.devices.gpu0]")],
)
def test_a_model_on_several_devices_must_fit_on_each(need, table):
    with pytest.raises(DoesNotFit) as caught:
        fits(Tenant(model="a", need=need))
    assert str(caught.value).endswith(f"raise capacity under {table}")


# --- which model goes to which device ---------------------------------------------------------

GIB = 2**30


def devices(**gib):
    return {name: Device(name=name, capacity_bytes=int(size * GIB)) for name, size in gib.items()}


def model(gib, *, beside=0.1, each=0.5):
    """What one of so many GiB takes: on GPUs also `each` on each, and `beside` in the machine."""

    def need_on(where):
        if where == "machine":
            return {"machine": int(gib * GIB)}
        shares = {where: 1.0} if isinstance(where, str) else where
        whole = sum(shares.values())
        on_gpus = {name: int((gib * one / whole + each) * GIB) for name, one in shares.items()}
        return {**on_gpus, "machine": int(beside * GIB)}

    return need_on


ONE, TWO = devices(machine=64, gpu0=24), devices(machine=64, gpu0=16, gpu1=24)
CASES = {
    "without a GPU": (devices(machine=8), [5, 6], {}, ["machine", "machine"]),
    "all on the one there is": (ONE, [10, 10], {}, ["gpu0", "gpu0"]),
    "the first chooses first": (ONE, [20, 10], {}, ["gpu0", "machine"]),
    "a smaller one after one that is too large": (ONE, [40, 10], {}, ["machine", "gpu0"]),
    "the freest first": (TWO, [10, 15, 10], {}, ["gpu1", "gpu0", "gpu1"]),
    "beside what is there": (TWO, [10], {"gpu1": 20}, ["gpu0"]),
    "never over several by itself": (TWO, [30], {}, ["machine"]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_model_goes_whole_to_the_freest_gpu_or_else_to_the_machine(case):
    there, sizes, taken, expected = CASES[case]
    models = {f"m{number}": model(size) for number, size in enumerate(sizes)}
    taken = [{name: size * GIB for name, size in taken.items()}]
    found = place(models, there, needs_taken=taken)
    assert found == dict(zip(models, expected, strict=True))


def test_what_would_not_fit_beside_its_gpu_in_the_machine_stays_off_it():
    found = place({"m": model(4, beside=2)}, devices(machine=1, gpu0=24), needs_taken=[])
    assert found == {"m": "machine"}


SIZES = st.floats(0.1, 40)


@given(st.lists(SIZES, min_size=1, max_size=6), st.lists(SIZES, max_size=3), SIZES)
def test_no_gpu_holds_too_much_and_what_one_has_room_for_is_on_one(sizes, gpus, there):
    all_ = devices(machine=64, **{f"gpu{number}": size for number, size in enumerate(gpus)})
    models = {f"m{number}": model(size) for number, size in enumerate(sizes)}
    other = {"gpu0": int(min(there, *gpus[:1]) * GIB)} if gpus else {}
    found = place(models, all_, needs_taken=[other])
    gpu_names = [*all_][1:]

    def free(device, placed):
        needs = [other, *(models[tag](where) for tag, where in placed)]
        return all_[device].room_bytes - sum(need.get(device, 0) for need in needs)

    whole = [(tag, where) for tag, where in found.items() if where in gpu_names]
    for gpu in gpu_names:
        assert free(gpu, found.items()) >= 0
        for tag in models.keys() - dict(whole).keys():
            assert models[tag](gpu)[gpu] > free(gpu, whole)
        # Before any other, the first has every GPU that is large enough.
        if models["m0"](gpu)[gpu] <= free(gpu, []):
            assert "m0" in dict(whole)
