"""Which model comes, and which go for it."""

from dataclasses import replace

import pytest
from states import calls, expected, resident, state, tenant

from harness.residency import GuestEntry
from harness.residency.policy import Choice

NEW = tenant("new")
A, B = tenant("a"), tenant("b")


def best(tenants, residents, *, models=("new",), room=2, **rest):
    present = state(tenants, residents, calls(*models), room=room, **rest)
    return Choice(present).best(dict.fromkeys(models, "why"))


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


def test_guests_go_for_what_the_machine_has_no_room_for_otherwise():
    present = state([tenant("new", 3)], [], calls("new"), room=4)
    guests = tuple(
        GuestEntry(name=name, resident_bytes=size, needed_bytes=size)
        for name, size in (("small", 1), ("large", 2))
    )
    present = replace(present, ledger=replace(present.ledger, guests=guests))
    assert Choice(present).best({"new": "why"}).guests == ("large",)
