"""The policy: what it decides in small states, and what it never does in any."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import played, rough_run
from states import SECOND, calls, expected, resident, state, tenant, wait

from harness.errors import DoesNotFit
from harness.residency import Forecast, Strand
from harness.residency.ledger import BudgetState, Grant, LoadModel, UnloadModel, Wait
from harness.residency.load_policy import Choice, decide

A, B, C = (tenant(model) for model in "abc")
ELSEWHERE = tenant("elsewhere")  # has models take turns, where there is no room for it beside them
SLOW_A, VERY_SLOW_A = tenant("a", load_s=20), tenant("a", load_s=500)
BUSY_A = resident("a", leases=1)
IDLE_A, IDLE_B, IDLE_C = (resident(model) for model in "abc")
RESTED_A = resident("a", idle_since_s=5)
TURNS = expected("a", "b")
GPUS = {"gpu0": 2, "gpu1": 2}
ON_GPUS = [tenant("a", {"gpu0": 2}), tenant("b", {"gpu1": 2}), tenant("c", {"gpu0": 1})]
SPLIT = tenant("split", {"gpu0": 1, "gpu1": 1}, is_split=True)
WHOLE = tenant("whole", {"gpu1": 1})


def overdue(leases, *waiting, **settings):
    """60 s have passed, which is as long as calls wait."""
    tenants = [tenant("a", slots=9), B]
    there = [resident("a", leases=leases)]
    return state(tenants, there, waiting, room=1, now_s=60, **settings)


def said(decision):
    """A decision in a few words."""
    match decision:
        case Grant(calls=numbers):
            return " ".join(["grant", *map(str, numbers)])
        case LoadModel(model=model, evict=evict, is_prefetch=is_prefetch):
            going = f" for {' '.join(evict)}" if evict else ""
            return f"load {model}{going}{' ahead' if is_prefetch else ''}"
        case UnloadModel(model=model):
            return f"unload {model}"
        case Wait(until_ns=None):
            return "wait"
        case Wait(until_ns=until_ns):
            return f"wait until {until_ns / SECOND:g}"


GRANTS = {
    "calls for residents go at once, whoever came before": (
        state([A, B], [IDLE_B], calls(*"abab"), room=1),
        "grant 2 4",
    ),
    "no more than there are slots for, the earliest first": (
        state([tenant("a", slots=3), ELSEWHERE], [BUSY_A], calls(*"aaaa"), room=1),
        "grant 1 2",
    ),
    "where every model has room, servers keep their own queues": (
        state([tenant("a", slots=1)], [BUSY_A], calls(*"aa"), room=1),
        "grant 1 2",
    ),
    "those for other residents, while a model is on the move": (
        state([A, B], [IDLE_A], calls("b", "a"), room=2, moving=IDLE_B),
        "grant 2",
    ),
    "none for what is on the move": (
        state([A, B], [IDLE_A], calls("b"), room=2, moving=IDLE_B),
        "wait",
    ),
    "one that must go is lent to no later call": (
        overdue(1, wait(1, "b"), wait(2, "a", since_s=59)),
        "wait",
    ),
    "and goes when its last call has ended": (
        overdue(0, wait(1, "b"), wait(2, "a", since_s=59)),
        "load b for a",
    ),
    # Or two models that load slowly would make way for each other for ever.
    "but one that was waited for longer is lent once it has come": (
        overdue(0, wait(1, "a"), wait(2, "b")),
        "grant 1",
    ),
    "a call that could not wait for its model to return is not held up": (
        state(
            [tenant("a", load_s=10), tenant("b", load_s=10)],
            [BUSY_A],
            [wait(1, "b"), wait(2, "a", since_s=10)],
            room=1,
            now_s=60,
        ),
        "grant 2",
    ),
    "none is held up for one that is due while a model is on the move": (
        state(
            [A, B, C],
            [BUSY_A],
            [wait(1, "b"), wait(2, "a", since_s=59)],
            room=2,
            now_s=60,
            moving=IDLE_C,
        ),
        "grant 2",
    ),
    "yet no turn is longer than two waits": (
        state(
            [tenant("a", load_s=10), tenant("b", load_s=10)],
            [BUSY_A],
            [wait(1, "b"), wait(2, "a", since_s=10)],
            room=1,
            now_s=120,
        ),
        "wait",
    ),
}
SWITCHES = {
    "a model comes when there is room for it": (
        state([A, B], [IDLE_A], calls("b"), room=2),
        "load b",
    ),
    "one in use is waited for until the call can wait no longer": (
        state([tenant("a", call_s=5), B], [BUSY_A], calls("b"), room=1),
        "wait until 55",
    ),
    "and earlier if another model is loaded, and answers, before": (
        state(
            [tenant("a", call_s=5), tenant("b", load_s=10, call_s=3), C],
            [BUSY_A],
            calls("b", "c"),
            room=1,
        ),
        "wait until 42",
    ),
    "the last of several that make way decides": (
        state(
            [SLOW_A, tenant("b", 2), tenant("c", load_s=9)],
            [RESTED_A, resident("c", idle_since_s=5)],
            calls("b", since_s=5),
            room=2,
            now_s=6,
            forecast=expected("acb"),
        ),
        "wait until 25",
    ),
    "one with nothing left to do goes": (
        state([A, B], [IDLE_A], calls("b", since_s=99), room=1, now_s=100),
        "load b for a",
    ),
    "one about to be used again is kept": (
        state([SLOW_A, B], [RESTED_A], calls("b", since_s=5), room=1, now_s=6, forecast=TURNS),
        "wait until 25",
    ),
    "for no longer than its load takes": (
        state([SLOW_A, B], [RESTED_A], calls("b", since_s=5), room=1, now_s=25, forecast=TURNS),
        "load b for a",
    ),
    "nor so long that a call waits too long": (
        state([VERY_SLOW_A, B], [RESTED_A], calls("b", since_s=5), room=1, now_s=6, forecast=TURNS),
        "wait until 65",
    ),
    "which it does then": (
        state(
            [VERY_SLOW_A, B], [RESTED_A], calls("b", since_s=5), room=1, now_s=65, forecast=TURNS
        ),
        "load b for a",
    ),
    "the one of higher priority comes first": (
        state([A, tenant("b", priority=1)], [], calls("a", "b"), room=1),
        "load b",
    ),
    "one on one device comes before one that is split": (
        state([SPLIT, WHOLE], [], calls("split", "whole"), room={"gpu0": 1, "gpu1": 1}),
        "load whole",
    ),
    "which comes alone all the same": (
        state([SPLIT, WHOLE], [], calls("split"), room={"gpu0": 1, "gpu1": 1}),
        "load split",
    ),
    "each device has its own room: beside": (
        state(ON_GPUS, [resident("a", {"gpu0": 2})], calls("b"), room=GPUS),
        "load b",
    ),
    "each device has its own room: instead": (
        state(ON_GPUS, [resident("a", {"gpu0": 2})], calls("c"), room=GPUS, now_s=1),
        "load c for a",
    ),
    "a failed model is loaded for a call": (
        state([A], [], calls("a"), room=1, failed=["a"]),
        "load a",
    ),
}
UNASKED = {
    "a pinned model comes before anybody asks": (
        state([tenant("a", pin=True)], room=1),
        "load a ahead",
    ),
    "unless it failed": (state([tenant("a", pin=True)], room=1, failed=["a"]), "wait"),
    "what is used next comes ahead into free room": (
        state([A, B], [BUSY_A], room=2, forecast=expected("ab", is_complete=False)),
        "load b ahead",
    ),
    "unless that failed": (
        state([A, B], [BUSY_A], room=2, forecast=expected("ab"), failed=["b"]),
        "wait",
    ),
    "priority decides where the forecast does not": (
        state([A, tenant("b", priority=1)], room=1, forecast=expected("a", "b")),
        "load b ahead",
    ),
    "else b would be loaded twice": (
        state([A, tenant("b", priority=1)], room=1, forecast=expected("ab", "b")),
        "load a ahead",
    ),
    "none goes for one that only may be next: others may be called": (
        state([A, B, C], [BUSY_A, IDLE_C], room=2, forecast=expected("ab", is_complete=False)),
        "wait",
    ),
    "nor where it is used again": (
        state([A, B, C], [BUSY_A, IDLE_C], room=2, forecast=expected("abc")),
        "wait",
    ),
    "nor where it is in use": (
        state([A, B, C], [BUSY_A, resident("c", leases=1)], room=2, forecast=expected("ab")),
        "wait",
    ),
    "one that is not used again goes before the next comes": (
        state([A, B, C], [BUSY_A, IDLE_C], room=2, now_s=1, forecast=expected("ab")),
        "unload c",
    ),
    "also while calls wait for slots of a model in memory": (
        state(
            [tenant("a", slots=1), B, C],
            [BUSY_A, IDLE_C],
            calls("a"),
            room=2,
            now_s=1,
            forecast=expected("ab"),
        ),
        "unload c",
    ),
    "nothing comes ahead while a call waits for another model": (
        state(
            [A, B, tenant("large", 2)], [BUSY_A], calls("large"), room=2, forecast=expected("ab")
        ),
        "wait until 60",
    ),
    "what no call will use goes": (
        state([A, tenant("b", pin=True)], [IDLE_A, IDLE_B], room=2, forecast=expected()),
        "unload a",
    ),
    "what is pinned does not": (
        state([tenant("b", pin=True)], [IDLE_B], room=2, forecast=expected()),
        "wait",
    ),
    "nor what did not go the last time": (
        state([A], [IDLE_A], room=2, forecast=expected(), failed=["a"]),
        "wait",
    ),
    "nor anything where not all is known": (
        state([A, tenant("b", pin=True)], [IDLE_A, IDLE_B], room=2),
        "wait",
    ),
    "the longest unused goes when a device holds more than it has room for": (
        state(
            [tenant(model, 2) for model in "abc"],
            [resident("a", 2, leases=1), resident("b", 3, idle_since_s=4), resident("c", 2)],
            room=6,
            now_s=9,
        ),
        "unload c",
    ),
    "one that has outgrown the device alone stays": (
        state([tenant("a", 2)], [resident("a", 3)], room=2),
        "wait",
    ),
}


@pytest.mark.parametrize(
    ("present", "decision"),
    [pytest.param(*row, id=id_) for id_, row in (GRANTS | SWITCHES | UNASKED).items()],
)
def test_the_policy_decides(present, decision):
    assert said(decide(present)) == decision


def test_a_long_row_of_nodes_is_followed_in_few_passes(monkeypatch):
    looked_at = Counter()
    has_begun = Choice._has_begun

    def counted(choice, name, ahead):
        looked_at[name] += 1
        return has_begun(choice, name, ahead)

    monkeypatch.setattr(Choice, "_has_begun", counted)
    row = [
        Strand(name=str(number), uses=("a",), after=frozenset({str(number - 1)}))
        for number in range(100)
    ]
    row.append(Strand(name="last", uses=("b",), after=frozenset({"99"})))
    present = state([A, B], [IDLE_A], room=2, forecast=Forecast(strands=tuple(row)))
    assert said(decide(present)) == "load b ahead"
    assert max(looked_at.values()) < 20


def test_a_load_says_how_long_it_was_waited_for():
    assert "it has been waited for 60.0 s" in decide(overdue(0, wait(1, "b"))).reason


# --- which model comes, and which go for it ------------------------------------------------------

NEW = tenant("new")


def best(tenants, residents, *, models=("new",), room=2, **rest):
    present = state(tenants, residents, calls(*models), room=room, **rest)
    return Choice(present).best(models, "why")


EVICTIONS = {
    "what is used again the latest": (
        [A, B, NEW],
        [resident("b"), resident("a")],
        {"forecast": expected(["new", "a", "new", "b"])},
    ),
    "without a forecast the longest unused": (
        [A, B, NEW],
        [resident("a", idle_since_s=8), resident("b", idle_since_s=3)],
        {"now_s": 10},
    ),
    "of two unused for as long, what loads faster": (
        [tenant("a", load_s=60), tenant("b", load_s=2), NEW],
        [resident("a", idle_since_s=5), resident("b", idle_since_s=5)],
        {"now_s": 10},
    ),
    "priority goes before how long it was unused": (
        [tenant("a", priority=1), B, NEW],
        [resident("a"), resident("b", idle_since_s=999)],
        {"now_s": 1000},
    ),
    "a fast load, although its use comes sooner": (
        [tenant("a", load_s=50), tenant("b", load_s=2), NEW],
        [resident("a"), resident("b")],
        {"forecast": expected(["new", "b", "a"])},
    ),
    "an idle one, before one whose calls take long": (
        [tenant("a", call_s=30), B, NEW],
        [resident("a", leases=1), resident("b", idle_since_s=10)],
        {"now_s": 10},
    ),
    # `b` became idle in this very moment, and how long calls of `a` take is not known yet.
    "of equal ways, one that need not wait": (
        [A, B, NEW],
        [resident("a", leases=1), resident("b", idle_since_s=4)],
        {"now_s": 4},
    ),
    "what is in the way on its device": (
        [tenant("a", {"gpu0": 2}), tenant("b", {"gpu1": 2}), tenant("new", {"gpu1": 1})],
        [resident("a", {"gpu0": 2}), resident("b", {"gpu1": 2})],
        {"room": {"gpu0": 2, "gpu1": 2}},
    ),
}


@pytest.mark.parametrize(
    ("tenants", "there", "how"), [pytest.param(*row, id=id_) for id_, row in EVICTIONS.items()]
)
def test_b_goes_which_is(tenants, there, how):
    assert best(tenants, there, **how).evict == ("b",)


def test_nothing_comes_for_which_only_what_is_pinned_could_go():
    assert best([tenant("a", pin=True), NEW], [resident("a")], room=1) is None


def test_the_model_whose_load_saves_another_comes_first_else_the_one_named_first():
    """`b` first, then `a`: two loads. `a` first, and it is needed again after `b`."""
    forecast = expected(["a"], ["b", "a"])
    assert best([A, B], [], models=("a", "b"), room=1, forecast=forecast).model == "b"
    assert best([A, B], [], models=("b", "a"), room=1).model == "b"


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
        case LoadModel(model=model, evict=victims):
            assert ledger.moving is None
            assert model not in ledger.residents
            for victim in victims:
                assert not ledger.residents[victim].leases
                assert not tenants[victim].pin
            staying = {
                name: there for name, there in ledger.residents.items() if name not in victims
            }
            after = replace(ledger, residents=staying)
            for device, bytes_ in tenants[model].need.items():
                assert bytes_ <= after.free_bytes(device)
        case UnloadModel(model=model):
            assert ledger.moving is None
            assert not ledger.residents[model].leases
            assert not tenants[model].pin
        case Wait(until_ns=until_ns):
            assert until_ns is None or until_ns > present.now_ns


def reordered(present: BudgetState, random) -> BudgetState:
    def shuffled(mapping):
        return dict(random.sample(list(mapping.items()), len(mapping)))

    ledger = replace(
        present.ledger,
        devices=shuffled(present.ledger.devices),
        residents=shuffled(present.ledger.residents),
    )
    return replace(present, ledger=ledger, tenants=shuffled(present.tenants))


@given(st.integers(0, 1_000_000), st.randoms(use_true_random=False))
def test_any_run_ends_in_few_allowed_decisions_whatever_the_order_of_what_there_is(seed, random):
    run, checked = rough_run(Random(seed)), Checked()
    try:
        result = played(run, checked)
    except DoesNotFit:
        return

    assert not result.unfinished
    assert result.decisions <= 20 * (len(run.jobs) + len(run.tenants))
    assert played(run, decide) == result
    for present in random.sample(checked.states, min(10, len(checked.states))):
        other = reordered(present, random)
        assert other == present
        assert decide(other) == decide(present)
