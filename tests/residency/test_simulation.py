import pytest
from states import tenant

from harness.errors import DoesNotFit, InvalidInput
from harness.residency import Device, Forecast, Grant, Load, Strand, Unload, Wait, decide
from harness.residency.jobs import Chains
from harness.residency.simulation import Job, simulate


def job(id_, model="a", call_s=1.0, **settings):
    return Job(id=id_, model=model, call_s=call_s, **settings)


def play(jobs, *tenants, room=1, **settings):
    devices = [Device(name="machine", capacity_bytes=room)]
    return simulate(jobs, devices=devices, tenants=tenants, **settings)


def log(run, *what):
    return [
        (event.at_s, event.what, event.job or event.model)
        for event in run.events
        if not what or event.what in what
    ]


class Watched:
    """A policy that keeps what it was asked."""

    def __init__(self, policy=decide):
        self.states = []
        self._policy = policy

    def __call__(self, state):
        self.states.append(state)
        return self._policy(state)


# --- the world ----------------------------------------------------------------------------------


def test_a_call_waits_for_its_model_to_load():
    run = play([job("j", call_s=3)], tenant("a", load_s=5))

    assert run.makespan_s == 8
    assert run.waits_s == {"j": 5}
    assert run.loads == 1
    assert log(run, "load", "loaded", "grant", "end") == [
        (0, "load", "a"),
        (5, "loaded", "a"),
        (5, "grant", "j"),
        (8, "end", "j"),
    ]


def test_calls_go_side_by_side_up_to_the_slots_where_models_take_turns():
    run = play(
        [job(f"j{n}", call_s=10) for n in range(3)], tenant("a", slots=2), tenant("other"), room=1
    )

    assert run.waits_s == {"j0": 1, "j1": 1, "j2": 11}
    assert run.makespan_s == 21


def test_where_all_fit_calls_beyond_the_slots_wait_in_the_server():
    run = play([job(f"j{n}", call_s=10) for n in range(3)], tenant("a", slots=2))

    assert run.waits_s == {"j0": 1, "j1": 1, "j2": 1}
    assert run.makespan_s == 21


def test_a_job_comes_when_those_before_it_have_ended_and_its_time_has_come():
    run = play(
        [job("c", after=("a", "b")), job("a", call_s=4), job("b", call_s=2, arrives_s=9)],
        tenant("a"),
    )

    assert log(run, "come") == [(0, "come", "a"), (9, "come", "b"), (11, "come", "c")]


def test_one_goes_after_the_other_before_a_load_and_each_takes_its_time():
    tenants = [tenant("a"), tenant("b"), tenant("large", 2, load_s=3)]

    run = play([job("j", "large")], *tenants, room=2, resident=["a", "b"], unload_s=0.5)

    moves = [(at_s, what) for at_s, what, _ in log(run, "unload", "load", "loaded")]
    assert moves == [(0, "unload"), (0.5, "unload"), (1, "load"), (4, "loaded")]
    assert run.evictions == 2


def test_the_policy_is_told_how_long_calls_took_the_longest_slowly_forgotten():
    watched = Watched()

    play(
        [job("1", call_s=10), job("2", call_s=2, after=("1",)), job("3", after=("2",))],
        tenant("a"),
        policy=watched,
    )

    learned = list(dict.fromkeys(state.tenants["a"].call_s for state in watched.states))
    assert learned == [0, 10, 9.5]


def test_the_policy_is_asked_again_at_the_time_that_it_named():
    asked_s = []

    def late(state):
        asked_s.append(state.now_ns / 1e9)
        if state.now_ns < 7e9:
            return Wait(until_ns=7_000_000_000)
        return decide(state)

    run = play([job("j")], tenant("a"), policy=late)

    assert 7 in asked_s
    assert run.makespan_s == 9


def test_idle_since_is_when_the_last_call_ended():
    watched = Watched()

    play([job("1", call_s=4), job("2", arrives_s=9)], tenant("a"), policy=watched)

    [idle_s] = {
        state.ledger.residents["a"].idle_since_ns / 1e9
        for state in watched.states
        if state.now_ns == 9e9 and state.waiting
    }
    assert idle_s == 5


def test_a_key_value_cache_fills_and_empties():
    full = tenant("a", kv_tokens=100)
    jobs = [job("1", call_s=5, kv_tokens=60), job("2", kv_tokens=60), job("3", kv_tokens=10)]

    run = play(jobs, full, tenant("other"))

    assert run.waits_s == {"1": 1, "2": 6, "3": 6}


# --- what is known ------------------------------------------------------------------------------


def forecasts(jobs, known):
    watched = Watched()
    play(jobs, tenant("a"), tenant("b"), room=2, policy=watched, forecast=known)
    return [state.forecast for state in watched.states]


def test_a_full_forecast_has_all_that_has_not_ended():
    first, *_, last = forecasts([job("1"), job("2", "b", arrives_s=50)], "full")

    assert first == Forecast(
        strands=(Strand(name="1", uses=("a",)), Strand(name="2", uses=("b",))), is_complete=True
    )
    assert last.strands == (Strand(name="2", uses=("b",)),) or not last.strands


def test_what_has_not_arrived_is_not_known_where_only_arrivals_are():
    jobs = [job("1"), job("2", "b", arrives_s=50)]

    first, *_ = forecasts(jobs, "arrived")

    assert first == Forecast(strands=(Strand(name="1", uses=("a",)),))
    assert all(forecast == Forecast() for forecast in forecasts(jobs, "none"))


def test_jobs_fold_into_strands_where_nothing_branches_off():
    jobs = [
        job("plan", "p"),
        job("draft 1", "a", after=("plan",)),
        job("again 1", "a", after=("draft 1",)),
        job("check 1", "b", after=("again 1",)),
        job("draft 2", "a", after=("plan",)),
        job("end", "p", after=("check 1", "draft 2")),
    ]
    chains = Chains(jobs)

    assert {(s.name, s.uses, s.after) for s in chains.forecast().strands} == {
        ("plan", ("p",), frozenset()),
        ("draft 1", ("a", "b"), frozenset({"plan"})),
        ("draft 2", ("a",), frozenset({"plan"})),
        ("end", ("p",), frozenset({"draft 1", "draft 2"})),
    }

    for ended in ("plan", "draft 2", "draft 1", "again 1"):
        chains.ended(ended)
    assert {(s.name, s.uses) for s in chains.forecast().strands} == {
        ("draft 1", ("b",)),
        ("end", ("p",)),
    }


def test_a_later_arrival_is_no_part_of_an_earlier_chain():
    chains = Chains([job("1"), job("2", "b", after=("1",), arrives_s=9)])

    assert [strand.name for strand in chains.forecast_at(5).strands] == ["1"]
    assert [strand.name for strand in chains.forecast_at(9).strands] == ["1", "2"]


def test_what_comes_after_something_that_has_not_arrived_has_not_either():
    chains = Chains([job("1", arrives_s=9), job("2", after=("1",)), job("3", after=("1",))])

    assert chains.forecast_at(5).strands == ()
    assert len(chains.forecast_at(9).strands) == 3


# --- what cannot be -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        pytest.param([job("1"), job("1")], "two jobs have the id '1'", id="one id twice"),
        pytest.param([job("1", after=("0",))], "after '0', which is not there", id="unknown"),
        pytest.param(
            [job("1", after=("2",)), job("2", after=("1",))], "wait for each other", id="circle"
        ),
        pytest.param([job("1", "b")], "asks for 'b', which is no tenant", id="no such model"),
    ],
)
def test_jobs_that_cannot_come_are_refused(jobs, said):
    with pytest.raises(InvalidInput, match=said):
        play(jobs, tenant("a"))


def test_a_model_that_never_fits_is_refused():
    with pytest.raises(DoesNotFit):
        play([job("1")], tenant("a", 2), room=1)


def test_what_a_policy_lets_wait_for_ever_is_told():
    run = play([job("1"), job("2")], tenant("a"), policy=lambda _: Wait())

    assert run.unfinished == ("1", "2")
    assert run.makespan_s == 0


def test_a_policy_that_goes_round_in_circles_is_stopped():
    def circling(state):
        if state.ledger.moving is not None:
            return Wait()
        if state.ledger.residents:
            return Unload(model="a", reason="why not")
        return Load(model="a", reason="why not")

    run = play([job("1")], tenant("a"), policy=circling)

    assert run.unfinished == ("1",)
    assert run.loads > 5


def test_a_policy_that_grants_nothing_again_and_again_is_stopped():
    assert play([job("1")], tenant("a"), policy=lambda _: Grant(calls=())).unfinished == ("1",)
