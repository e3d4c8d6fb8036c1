import itertools
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import RoughRun, rough_run
from states import SECOND, calls, expected, resident, state, tenant

from harness.errors import DoesNotFit
from harness.residency import Grant, Load, State, Unload, Wait, WaitingCall, decide
from harness.residency.ledger import Resident
from harness.residency.simulation import simulate


def wait(number, model, *, since_s=0.0, kv_tokens=0):
    return WaitingCall(
        id=number, model=model, since_ns=round(since_s * SECOND), kv_tokens=kv_tokens
    )


CROWD = tenant("elsewhere")
"""What makes models take turns, where there is no room for it beside the others."""


# --- grants -------------------------------------------------------------------------------------


def granted(tenants, residents, waiting, *, room=1):
    decision = decide(state(tenants, residents, waiting, room=room))
    return decision.calls if isinstance(decision, Grant) else ()


def test_calls_for_residents_go_at_once_whoever_came_before():
    residents = [resident("b")]

    assert granted([tenant("a"), tenant("b")], residents, calls("a", "b", "a", "b")) == (2, 4)


def test_no_more_calls_go_than_there_are_slots_for_the_earliest_first():
    residents = [resident("a", leases=1)]

    assert granted([tenant("a", slots=3), CROWD], residents, calls(*"aaaa")) == (1, 2)


def test_where_every_model_has_room_servers_keep_their_own_queues():
    assert granted([tenant("a", slots=1)], [resident("a", leases=1)], calls(*"aa")) == (1, 2)


def test_a_call_goes_when_its_tokens_have_room_in_the_cache():
    tenants = [tenant("a", kv_tokens=100), CROWD]
    waiting = [wait(1, "a", kv_tokens=30), wait(2, "a", kv_tokens=30)]

    assert granted(tenants, [resident("a", leases=1, kv_tokens=50)], waiting) == (1,)


def test_no_short_call_overtakes_a_long_one_of_its_model():
    tenants = [tenant("a", kv_tokens=100), CROWD]
    waiting = [wait(1, "a", kv_tokens=60), wait(2, "a", kv_tokens=1)]

    assert granted(tenants, [resident("a", leases=1, kv_tokens=50)], waiting) == ()


def test_a_call_that_is_longer_than_the_cache_goes_alone():
    tenants = [tenant("a", kv_tokens=100), CROWD]

    assert granted(tenants, [resident("a")], [wait(1, "a", kv_tokens=101)]) == (1,)


def test_calls_for_other_residents_go_while_a_model_is_on_the_move():
    moving = Resident(model="b", need={"machine": 1})
    present = state(
        [tenant("a"), tenant("b")], [resident("a")], calls("b", "a"), room=2, moving=moving
    )

    assert decide(present) == Grant(calls=(2,))
    assert decide(replace(present, waiting=present.waiting[:1])) == Wait()


# --- switching ----------------------------------------------------------------------------------


def test_a_model_comes_when_there_is_room_for_it():
    decision = decide(state([tenant("a"), tenant("b")], [resident("a")], calls("b"), room=2))

    assert (decision.model, decision.evict, decision.is_prefetch) == ("b", (), False)


def test_one_in_use_is_waited_for_until_the_call_can_wait_no_longer():
    tenants = [tenant("a", call_s=5), tenant("b")]

    assert decide(state(tenants, [resident("a", leases=1)], calls("b"), room=1)) == Wait(
        until_ns=55 * SECOND
    )


def test_one_with_nothing_left_to_do_goes_for_one_that_is_waited_for():
    present = state(
        [tenant("a"), tenant("b")], [resident("a")], calls("b", since_s=99), room=1, now_s=100
    )

    assert (decide(present).model, decide(present).evict) == ("b", ("a",))


def test_one_about_to_be_used_again_is_kept_for_no_longer_than_its_load_takes():
    present = state(
        [tenant("a", load_s=20), tenant("b")],
        [resident("a", idle_since_s=5)],
        calls("b", since_s=5),
        room=1,
        now_s=6,
        forecast=expected(["a"], ["b"]),
    )

    assert decide(present) == Wait(until_ns=25 * SECOND)
    assert decide(replace(present, now_ns=25 * SECOND)).evict == ("a",)


def test_no_stay_is_so_long_that_a_call_waits_too_long():
    present = state(
        [tenant("a", load_s=500), tenant("b")],
        [resident("a", idle_since_s=5)],
        calls("b", since_s=5),
        room=1,
        now_s=6,
        forecast=expected(["a"], ["b"]),
    )

    assert decide(present) == Wait(until_ns=65 * SECOND)
    late = decide(replace(present, now_ns=65 * SECOND))
    assert (late.model, late.evict) == ("b", ("a",))
    assert "it has been waited for 60.0 s" in late.reason


def overdue(*, leases, waiting, **settings):
    return state(
        [tenant("a", slots=9), tenant("b")],
        [resident("a", leases=leases)],
        waiting,
        room=1,
        now_s=60,
        **settings,
    )


def test_one_that_must_go_is_lent_to_no_later_call():
    present = overdue(leases=1, waiting=[wait(1, "b", since_s=0), wait(2, "a", since_s=59)])

    assert decide(present) == Wait()


def test_it_goes_when_its_last_call_has_ended():
    present = overdue(leases=0, waiting=[wait(1, "b", since_s=0), wait(2, "a", since_s=59)])

    assert (decide(present).model, decide(present).evict) == ("b", ("a",))


def test_one_that_was_waited_for_longer_is_lent_once_it_has_come():
    """Or two models that load slowly would make way for each other for ever."""
    present = overdue(leases=0, waiting=[wait(1, "a", since_s=0), wait(2, "b", since_s=0)])

    assert decide(present) == Grant(calls=(1,))


def test_of_two_that_calls_wait_for_that_of_higher_priority_comes():
    tenants = [tenant("a"), tenant("b", priority=1)]

    assert decide(state(tenants, [], calls("a", "b"), room=1)).model == "b"


def test_a_model_on_one_device_comes_before_one_that_is_split():
    split = tenant("split", {"gpu0": 1, "gpu1": 1}, is_split=True)
    whole = tenant("whole", {"gpu1": 1})
    rooms = {"gpu0": 1, "gpu1": 1}

    assert decide(state([split, whole], [], calls("split", "whole"), room=rooms)).model == "whole"
    assert decide(state([split, whole], [], calls("split"), room=rooms)).model == "split"


def test_each_device_has_its_own_room():
    tenants = [tenant("a", {"gpu0": 2}), tenant("b", {"gpu1": 2}), tenant("c", {"gpu0": 1})]
    residents = [resident("a", {"gpu0": 2})]
    rooms = {"gpu0": 2, "gpu1": 2}

    beside = decide(state(tenants, residents, calls("b"), room=rooms))
    instead = decide(state(tenants, residents, calls("c"), room=rooms, now_s=1))

    assert (beside.model, beside.evict) == ("b", ())
    assert (instead.model, instead.evict) == ("c", ("a",))


def test_a_failed_model_is_loaded_for_a_call():
    assert decide(state([tenant("a")], [], calls("a"), room=1, failed=["a"])).model == "a"


# --- while nobody waits -------------------------------------------------------------------------


def test_a_pinned_model_comes_before_anybody_asks():
    present = state([tenant("a", pin=True)], room=1)

    assert (decide(present).model, decide(present).is_prefetch) == ("a", True)
    assert decide(replace(present, failed=frozenset("a"))) == Wait()


def test_what_is_used_next_comes_ahead_into_free_room():
    present = state(
        [tenant("a"), tenant("b")],
        [resident("a", leases=1)],
        room=2,
        forecast=expected(["a", "b"], is_complete=False),
    )

    assert (decide(present).model, decide(present).evict) == ("b", ())
    assert decide(present).is_prefetch
    assert decide(replace(present, failed=frozenset("b"))) == Wait()


@pytest.mark.parametrize(
    ("strands", "first"),
    [
        pytest.param([["a"], ["b"]], "b", id="as good"),
        pytest.param([["a", "b"], ["b"]], "a", id="else b is loaded twice"),
    ],
)
def test_of_models_that_are_used_next_priority_decides_where_the_forecast_does_not(strands, first):
    tenants = [tenant("a"), tenant("b", priority=1)]

    decision = decide(state(tenants, room=1, forecast=expected(*strands)))
    assert (decision.model, decision.is_prefetch) == (first, True)


@pytest.mark.parametrize(
    ("forecast", "leases"),
    [
        pytest.param(expected(["a", "b"], is_complete=False), 0, id="others may be called"),
        pytest.param(expected(["a", "b", "c"]), 0, id="it is used again"),
        pytest.param(expected(["a", "b"]), 1, id="it is in use"),
    ],
)
def test_no_model_goes_for_one_that_only_may_be_next(forecast, leases):
    tenants = [tenant(model) for model in "abc"]
    residents = [resident("a", leases=1), resident("c", leases=leases)]

    assert decide(state(tenants, residents, room=2, forecast=forecast)) == Wait()


def test_one_that_is_not_used_again_goes_for_the_next():
    tenants = [tenant(model) for model in "abc"]
    present = state(
        tenants,
        [resident("a", leases=1), resident("c")],
        room=2,
        now_s=1,
        forecast=expected(["a", "b"]),
    )

    assert (decide(present).model, decide(present).evict) == ("b", ("c",))


def test_nothing_comes_ahead_while_a_call_waits_for_another_model():
    tenants = [tenant("a"), tenant("b"), tenant("large", 2)]
    present = state(
        tenants,
        [resident("a", leases=1)],
        calls("large"),
        room=2,
        forecast=expected(["a", "b"]),
    )

    assert isinstance(decide(present), Wait)


def test_what_no_call_will_use_goes_and_what_is_pinned_does_not():
    done = expected()
    tenants = [tenant("a"), tenant("b", pin=True)]
    residents = [resident("a"), resident("b")]

    assert decide(state(tenants, residents, room=2, forecast=done)).model == "a"
    assert decide(state(tenants[1:], residents[1:], room=2, forecast=done)) == Wait()
    assert decide(state(tenants, residents, room=2)) == Wait()


def test_the_longest_unused_goes_when_a_device_holds_more_than_it_has_room_for():
    tenants = [tenant(model, 2) for model in "abc"]
    residents = [resident("a", 2, leases=1), resident("b", 3, idle_since_s=4), resident("c", 2)]

    decision = decide(state(tenants, residents, room=6, now_s=9))

    assert decision == Unload(model="c", reason="'machine' holds more than it has room for")


def test_one_that_has_outgrown_the_device_alone_stays():
    assert decide(state([tenant("a", 2)], [resident("a", 3)], room=2)) == Wait()


# --- any state ----------------------------------------------------------------------------------


class Checked:
    """The policy, each decision of which is held against what none may do."""

    def __init__(self):
        self.states = []

    def __call__(self, present):
        self.states.append(present)
        decision = decide(present)
        check(present, decision)
        return decision


def check(present, decision):
    ledger, tenants = present.ledger, present.tenants
    match decision:
        case Grant(calls=numbers):
            waiting = {call.id: call for call in present.waiting}
            assert numbers
            models = Counter(waiting[number].model for number in numbers)
            for model, count in models.items():
                earlier = [call.id for call in present.waiting if call.model == model]
                assert [n for n in numbers if waiting[n].model == model] == earlier[:count]
                slots, leases = tenants[model].slots, ledger.residents[model].leases
                assert slots is None or not present.is_crowded or leases + count <= slots
        case Load(model=model, evict=victims):
            assert ledger.moving is None
            assert model not in ledger.residents
            for victim in victims:
                assert not ledger.residents[victim].leases
                assert not tenants[victim].pin
                ledger = ledger.without(victim)
            for device, bytes_ in tenants[model].need.items():
                assert bytes_ <= ledger.room_for_models(device)
        case Unload(model=model):
            assert ledger.moving is None
            assert not ledger.residents[model].leases
            assert not tenants[model].pin
        case Wait(until_ns=until_ns):
            assert until_ns is None or until_ns > present.now_ns


def played(run: RoughRun, policy):
    jobs, devices, tenants, max_wait_s, known, unload_s = run
    return simulate(
        jobs,
        devices=devices,
        tenants=tenants,
        policy=policy,
        max_wait_s=max_wait_s,
        forecast=known,
        unload_s=unload_s,
    )


seeds = st.integers(0, 1_000_000)


@given(seeds)
def test_every_run_ends_in_few_decisions_none_of_which_is_forbidden(seed):
    run = rough_run(Random(seed))
    try:
        result = played(run, Checked())
    except DoesNotFit:
        return

    assert not result.unfinished
    assert result.decisions <= 20 * (len(run.jobs) + len(run.tenants))


@given(seeds, st.randoms(use_true_random=False))
def test_equal_states_make_equal_decisions_in_whatever_order_they_were_built(seed, random):
    checked = Checked()
    try:
        played(rough_run(Random(seed)), checked)
    except DoesNotFit:
        return

    for present in random.sample(checked.states, min(10, len(checked.states))):
        other = reordered(present, random)
        assert other == present
        assert decide(other) == decide(present)


def reordered(present: State, random) -> State:
    def shuffled(mapping):
        return dict(random.sample(list(mapping.items()), len(mapping)))

    ledger = replace(
        present.ledger,
        devices=shuffled(present.ledger.devices),
        residents=shuffled(present.ledger.residents),
    )
    return replace(present, ledger=ledger, tenants=shuffled(present.tenants))


def test_equal_runs_go_the_same_way():
    for seed in itertools.islice(itertools.count(), 20):
        run = rough_run(Random(seed))
        try:
            first = played(run, decide)
        except DoesNotFit:
            continue
        assert played(run, decide) == first
