import pytest
from states import SECOND, calls, expected, resident, state, tenant

from harness.residency import GuestEntry
from harness.residency.choice import Choice


def best(tenants, residents, waiting, *, models=("new",), room, **rest):
    present = state(tenants, residents, calls(*waiting), room=room, **rest)
    return Choice(present).best(dict.fromkeys(models, "why"))


def three(**settings):
    return [tenant(model, **settings) for model in ("a", "b", "new")]


def test_what_is_used_again_the_latest_goes():
    forecast = expected(["new", "a", "new", "b"])
    tenants = three()

    load = best(tenants, [resident("b"), resident("a")], ["new"], room=2, forecast=forecast)

    assert load.evict == ("b",)
    assert "'b' is used again later than others" in load.reason


def test_what_is_not_used_again_goes_before_what_is():
    forecast = expected(["new", "a"])
    there = [resident("b", idle_since_s=99), resident("a", idle_since_s=0)]

    load = best(three(), there, ["new"], room=2, now_s=100, forecast=forecast)

    assert load.evict == ("b",)
    assert "'b' is not used again" in load.reason


def test_without_a_forecast_the_longest_unused_goes():
    there = [resident("a", idle_since_s=8), resident("b", idle_since_s=3)]

    load = best(three(), there, ["new"], room=2, now_s=10)

    assert load.evict == ("b",)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param(tenant("a", load_s=60), tenant("b", load_s=2), id="loads faster"),
        pytest.param(tenant("a", 1, load_s=5), tenant("b", 4, load_s=5), id="larger"),
        pytest.param(tenant("a", priority=1), tenant("b"), id="of lower priority"),
    ],
)
def test_of_two_unused_for_as_long_that_goes_which_is(a, b):
    there = [resident(one.model, one.need, idle_since_s=5) for one in (a, b)]

    load = best([a, b, tenant("new")], there, ["new"], room=a.need_bytes + b.need_bytes, now_s=10)

    assert load.evict == ("b",)


def test_priority_goes_before_how_long_it_was_unused():
    tenants = [tenant("a", priority=1), tenant("b"), tenant("new")]
    there = [resident("a", idle_since_s=0), resident("b", idle_since_s=999)]

    assert best(tenants, there, ["new"], room=2, now_s=1000).evict == ("b",)


def test_a_slow_load_is_saved_rather_than_a_use_that_comes_sooner():
    forecast = expected(["new", "a", "b"])
    tenants = [tenant("a", load_s=2), tenant("b", load_s=50), tenant("new")]

    load = best(tenants, [resident("a"), resident("b")], ["new"], room=2, forecast=forecast)

    assert load.evict == ("a",)


def test_an_idle_one_goes_before_one_whose_calls_take_long():
    tenants = [tenant("a", call_s=30), tenant("b"), tenant("new")]
    there = [resident("a", leases=1), resident("b", idle_since_s=10)]

    assert best(tenants, there, ["new"], room=2, now_s=10).evict == ("b",)


def test_what_is_pinned_never_goes():
    tenants = [tenant("a", pin=True), tenant("b"), tenant("new")]
    there = [resident("a"), resident("b", idle_since_s=10)]

    assert best(tenants, there, ["new"], room=2, now_s=10).evict == ("b",)
    assert best(tenants[:1] + tenants[2:], there[:1], ["new"], room=1) is None


def test_the_model_whose_load_saves_another_comes_first():
    """`b` first, then `a`: two loads. `a` first, and it is needed again after `b`."""
    forecast = expected(["a"], ["b", "a"])

    load = best(
        [tenant("a"), tenant("b")], [], ["a", "b"], models=("a", "b"), room=1, forecast=forecast
    )

    assert load.model == "b"


def test_of_two_that_are_as_good_the_one_named_first_comes():
    tenants = [tenant("a"), tenant("b")]

    assert best(tenants, [], ["b", "a"], models=("b", "a"), room=1).model == "b"


def test_on_two_devices_only_those_go_that_are_in_the_way():
    tenants = [tenant("a", {"gpu0": 2}), tenant("b", {"gpu1": 2}), tenant("new", {"gpu1": 1})]
    there = [resident("a", {"gpu0": 2}), resident("b", {"gpu1": 2})]

    load = best(tenants, there, ["new"], room={"gpu0": 2, "gpu1": 2})

    assert load.evict == ("b",)


def test_guests_go_for_what_the_machine_has_no_room_for_otherwise():
    present = state([tenant("new", 3)], [], calls("new"), room=4)
    guests = tuple(
        GuestEntry(name=name, resident_bytes=size, needed_bytes=size)
        for name, size in (("small", 1), ("large", 2))
    )
    present = type(present)(
        now_ns=0,
        ledger=type(present.ledger)(devices=present.ledger.devices, guests=guests),
        tenants=present.tenants,
        waiting=present.waiting,
    )

    assert Choice(present).best({"new": "why"}).guests == ("large",)


def test_one_that_calls_use_stays():
    choice = Choice(state([tenant("a")], [resident("a", leases=1)], room=1))

    assert choice.stays_until_ns("a") is None


def test_one_with_nothing_left_to_do_may_go_as_soon_as_it_is_idle():
    choice = Choice(state([tenant("a")], [resident("a", idle_since_s=5)], room=1, now_s=6))

    assert choice.stays_until_ns("a") <= 6 * SECOND


def test_one_about_to_be_used_stays_as_long_as_its_load_would_take():
    present = state(
        [tenant("a", load_s=20)],
        [resident("a", idle_since_s=5)],
        room=1,
        now_s=6,
        forecast=expected(["a"]),
    )

    assert Choice(present).stays_until_ns("a") == 25 * SECOND


def test_what_failed_is_not_what_is_wanted_next():
    forecast = expected(["a"], ["b"])

    choice = Choice(state([tenant("a"), tenant("b")], room=2, forecast=forecast, failed=["a"]))

    assert choice.wanted_next == ["b"]
