import itertools

from hypothesis import given
from hypothesis import strategies as st
from states import SECOND, resident, state, tenant

from harness.residency import WaitingCall
from harness.residency.urgency import latest_switch_ns


def wait(model, since_s, *, number=1):
    return WaitingCall(id=number, model=model, since_ns=round(since_s * SECOND))


def latest_s(oldest, tenants, residents=(), *, now_s=0.0, max_wait_s=60.0):
    present = state(tenants, residents, oldest, now_s=now_s, max_wait_s=max_wait_s, room=9)
    return latest_switch_ns(oldest, present) / SECOND


def test_one_call_may_wait_as_long_as_calls_may():
    assert latest_s([wait("a", 3)], [tenant("a", load_s=10)], now_s=4) == 63


def test_it_must_go_on_before_calls_under_way_that_take_long():
    users = [tenant("b", call_s=7), tenant("c", call_s=4), tenant("idle", call_s=99)]
    there = [resident("b", leases=1), resident("c", leases=2), resident("idle")]

    assert latest_s([wait("a", 3)], [tenant("a"), *users], there, now_s=4) == 56


def test_a_second_model_needs_the_first_ones_load_and_call_before_its_own():
    tenants = [tenant("a", load_s=10, call_s=5), tenant("b", load_s=20, call_s=9)]

    assert latest_s([wait("a", 0), wait("b", 1)], tenants) == 1 + 60 - 15
    assert latest_s([wait("a", 0), wait("b", 30)], tenants) == 60


def test_there_may_be_no_time_left_even_now():
    tenants = [tenant(model, load_s=30) for model in "abc"]

    assert latest_s([wait("a", 0), wait("b", 0), wait("c", 0)], tenants, now_s=0) == 0


waits = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 40), st.integers(0, 20)), max_size=4)


@given(waits, st.integers(0, 60), st.integers(0, 30))
def test_it_is_the_earliest_of_the_moments_that_keep_each_models_deadline(
    models, max_wait_s, under_way_s
):
    models = sorted(models)
    tenants = [
        tenant(f"m{index}", load_s=load_s, call_s=call_s)
        for index, (_, load_s, call_s) in enumerate(models)
    ]
    oldest = [wait(f"m{index}", since_s) for index, (since_s, _, _) in enumerate(models)]
    now_s = max((since_s for since_s, _, _ in models), default=0)
    user = tenant("user", call_s=under_way_s)

    found = latest_s(
        oldest,
        [*tenants, user],
        [resident("user", leases=1)],
        now_s=now_s,
        max_wait_s=max_wait_s,
    )

    ahead = [0, *itertools.accumulate(load_s + call_s for _, load_s, call_s in models)]
    each = [since_s + max_wait_s - s for (since_s, _, _), s in zip(models, ahead, strict=False)]
    assert found == min([now_s + max_wait_s, *each]) - under_way_s
