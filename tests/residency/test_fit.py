import pytest

from harness.errors import DoesNotFit
from harness.residency import Device, Tenant, check_fits

GIB = 2**30


def tenants(*them):
    return {one.model: one for one in them}


def devices(*them):
    return {one.name: one for one in them}


def tenant(model, gib, *, on="machine", **how):
    return Tenant(model=model, need={on: int(gib * GIB)}, **how)


MACHINE = Device(name="machine", capacity_bytes=6 * GIB)
REMEDY = "; lower its context_tokens or slots, use a smaller quantisation"


@pytest.mark.parametrize(
    "others",
    [
        pytest.param((), id="alone"),
        pytest.param((tenant("b", 6),), id="another can go"),
        pytest.param((tenant("b", 4, on="gpu0", pin=True),), id="what is pinned is elsewhere"),
    ],
)
def test_a_model_may_take_all_that_nobody_is_pinned_to(others):
    gpu = Device(name="gpu0", capacity_bytes=4 * GIB)
    check_fits("a", tenants(tenant("a", 6), *others), devices(MACHINE, gpu))


def test_a_pinned_model_is_not_in_its_own_way():
    check_fits("a", tenants(tenant("a", 6, pin=True)), devices(MACHINE))


def test_what_is_larger_than_the_whole_budget_is_refused_with_numbers_and_remedy():
    with pytest.raises(DoesNotFit) as caught:
        check_fits("huge", tenants(tenant("huge", 7)), devices(MACHINE))

    error = caught.value
    assert (error.model, error.need_bytes, error.capacity_bytes) == ("huge", 7 * GIB, 6 * GIB)
    assert str(error) == (
        "model 'huge' needs 7.0 GiB and the whole budget of 'machine' is 6.0 GiB"
        f"{REMEDY}, or raise capacity under [budget]"
    )


@pytest.mark.parametrize(
    ("device", "others", "is_", "ways"),
    [
        pytest.param(
            Device(name="machine", capacity_bytes=6 * GIB, reserve_bytes=GIB // 2),
            (),
            "6.0 GiB less 512.0 MiB in reserve, which leaves 5.5 GiB",
            ", lower the reserve",
            id="a reserve",
        ),
        pytest.param(
            MACHINE,
            (tenant("b", 1, pin=True), tenant("c", 2, pin=True), tenant("d", 3)),
            "6.0 GiB less 1.0 GiB of pinned 'b' less 2.0 GiB of pinned 'c', which leaves 3.0 GiB",
            ", leave out a pin",
            id="pinned ones",
        ),
        pytest.param(
            Device(name="machine", capacity_bytes=6 * GIB, reserve_bytes=2 * GIB),
            (tenant("b", 5, pin=True),),
            "6.0 GiB less 2.0 GiB in reserve less 5.0 GiB of pinned 'b', which leaves 0 B",
            ", leave out a pin, lower the reserve",
            id="more than there is",
        ),
    ],
)
def test_the_message_has_the_sum_and_what_would_help(device, others, is_, ways):
    with pytest.raises(DoesNotFit) as caught:
        check_fits("a", tenants(tenant("a", 6), *others), devices(device))

    assert str(caught.value) == (
        f"model 'a' needs 6.0 GiB and the whole budget of 'machine' is {is_}"
        f"{REMEDY}{ways}, or raise capacity under [budget]"
    )


def test_a_model_on_several_devices_must_fit_on_each():
    split = Tenant(model="a", need={"gpu0": 4 * GIB, "machine": 7 * GIB})
    gpu = Device(name="gpu0", capacity_bytes=8 * GIB)

    with pytest.raises(DoesNotFit, match=r"needs 7\.0 GiB and the whole budget of 'machine'"):
        check_fits("a", tenants(split), devices(MACHINE, gpu))

    small = Device(name="gpu0", capacity_bytes=GIB)
    roomy = Device(name="machine", capacity_bytes=8 * GIB)
    with pytest.raises(DoesNotFit, match=r"raise capacity under \[budget\.devices\.gpu0\]"):
        check_fits("a", tenants(split), devices(roomy, small))
