import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import DoesNotFit
from harness.residency import Grant, Ledger, Load, Resident, Wait, admit


def resident(model, need_bytes, *, leases=0, last_used=0):
    return Resident(model=model, need_bytes=need_bytes, leases=leases, last_used=last_used)


def ledger_of(*residents, capacity_bytes=10):
    return Ledger(capacity_bytes=capacity_bytes, residents=residents)


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


@settings(derandomize=True, deadline=None)
@given(RESIDENTS, st.integers(0, 10), st.integers(1, 12))
def test_what_is_decided_fits_and_waits_only_for_models_in_use(residents, spare_bytes, need_bytes):
    taken_bytes = sum(one.need_bytes for one in residents)
    ledger = ledger_of(*residents, capacity_bytes=taken_bytes + spare_bytes)
    if need_bytes > ledger.capacity_bytes:
        with pytest.raises(DoesNotFit):
            admit(ledger, "new", need_bytes)
        return

    decision = admit(ledger, "new", need_bytes)

    idle_bytes = sum(one.need_bytes for one in residents if not one.leases)
    if isinstance(decision, Wait):
        assert spare_bytes + idle_bytes < need_bytes
    else:
        evicted = [ledger.find(model) for model in decision.evict]
        assert not any(one.leases for one in evicted)
        assert spare_bytes + sum(one.need_bytes for one in evicted) >= need_bytes
        # And none too many: without the last of them there would be too little room.
        assert not evicted or spare_bytes + sum(o.need_bytes for o in evicted[:-1]) < need_bytes
