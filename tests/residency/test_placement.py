"""Which model goes to which device: a table, and what holds for any models and devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.residency import Device
from harness.residency.ledger import place

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
