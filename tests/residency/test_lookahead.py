import heapq
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from states import tenant

from harness.residency import Strand
from harness.residency.policy import Lookahead


def strand(name, uses, after=()):
    return Strand(name=name, uses=tuple(uses), after=frozenset(after))


def lookahead(strands, tenants, room):
    rooms = room if isinstance(room, dict) else {"machine": room}
    return Lookahead(strands, {one.model: one for one in tenants}, rooms)


def of_letters(strands, *, room, load_s=1.0, letters="abcd"):
    return lookahead(strands, [tenant(model, load_s=load_s) for model in letters], room)


def ahead_of(look, residents):
    return look.advance(look.start(residents))


@pytest.mark.parametrize(
    ("strands", "room", "load_s"),
    [
        pytest.param([strand("x", "ab"), strand("y", "ba")], 1, 3.0, id="crossing"),
        pytest.param([strand("x", ["managed", "a", "managed", "a"])], 1, 1.0, id="not ours"),
        pytest.param([], 1, 0.0, id="nothing to come"),
    ],
)
def test_the_least_loading_is_what_it_takes(strands, room, load_s):
    look = of_letters(strands, room=room)

    assert look.least_load_s(ahead_of(look, ())) == load_s


def test_what_stays_is_never_counted_on_to_go():
    look = of_letters([strand("x", "aba")], room=2, letters="abs")
    position = ahead_of(look, "s")

    assert look.least_load_s(position) == 2.0
    assert look.least_load_s(position, {"s"}) == 3.0


ON_GPUS = {"a": {"gpu0": 2}, "b": {"gpu1": 2}, "new": {"gpu0": 1, "gpu1": 1}}


@pytest.mark.parametrize(
    ("sizes", "room", "may_go", "ways"),
    [
        pytest.param({"a": 1, "b": 2, "c": 3, "new": 3}, 6, "abc", {"c", "ab"}, id="no more go"),
        pytest.param({"a": 1, "new": 1}, 2, "a", {""}, id="there is room"),
        pytest.param({"a": 1, "new": 5}, 4, "a", set(), id="no eviction would do"),
        pytest.param(
            dict.fromkeys("abcdef", 1) | {"new": 5}, 6, "fedcba", {"fedcb"}, id="many small ones"
        ),
        pytest.param(ON_GPUS, {"gpu0": 2, "gpu1": 2}, "ab", {"ab"}, id="on every device"),
    ],
)
def test_nothing_goes_that_need_not(sizes, room, may_go, ways):
    look = lookahead([], [tenant(model, size) for model, size in sizes.items()], room)

    found = list(look.ways_to_load(look.start(sorted(may_go)), "new", list(may_go)))

    assert len(found) == len(ways)
    assert set(found) == {tuple(way) for way in ways}


@st.composite
def forecasts(draw):
    """At most 4 models of any size, and 5 strands of 4 uses, on one device or two."""
    devices = draw(st.sampled_from([("machine",), ("machine", "gpu0")]))
    rooms = {device: draw(st.integers(2, 6)) for device in devices}
    tenants = [
        tenant(
            model,
            {device: draw(st.integers(0, rooms[device])) for device in devices},
            load_s=float(draw(st.integers(1, 5))),
        )
        for model in "abcd"[: draw(st.integers(2, 4))]
    ]
    models = st.sampled_from([one.model for one in tenants])
    strands = []
    for number in range(draw(st.integers(1, 5))):
        before = [one.name for one in strands]
        strands.append(
            strand(
                f"s{number}",
                draw(st.lists(models, min_size=1, max_size=4)),
                after=draw(st.sets(st.sampled_from(before), max_size=2)) if before else (),
            )
        )
    return strands, tenants, rooms


@given(forecasts())
def test_the_least_loading_of_small_forecasts_is_exact(forecast):
    strands, tenants, rooms = forecast
    look = lookahead(strands, tenants, rooms)

    assert look.least_load_s(ahead_of(look, ())) == least_load_s(strands, tenants, rooms)


def least_load_s(strands, tenants, rooms):
    """By Dijkstra over all that can be loaded and all that can go, whether it must or not."""
    load_s = {one.model: one.load_s for one in tenants}
    need = {one.model: one.need for one in tenants}
    number = {one.name: index for index, one in enumerate(strands)}

    def run_all(residents, at):
        while True:
            more = tuple(
                one + 1
                if one < len(strand.uses)
                and strand.uses[one] in residents
                and all(
                    at[number[name]] == len(strands[number[name]].uses) for name in strand.after
                )
                else one
                for one, strand in zip(at, strands, strict=True)
            )
            if more == at:
                return at
            at = more

    def fits(residents):
        return all(sum(need[m].get(d, 0) for m in residents) <= room for d, room in rooms.items())

    start = frozenset(), run_all(frozenset(), (0,) * len(strands))
    done = tuple(len(strand.uses) for strand in strands)
    best, order = {start: 0.0}, itertools.count()
    queue = [(0.0, next(order), start)]
    while queue:
        cost, _, (residents, at) = heapq.heappop(queue)
        if at == done:
            return cost
        if cost > best[residents, at]:
            continue
        for model in load_s.keys() - residents:
            for count in range(len(residents) + 1):
                for kept in itertools.combinations(residents, count):
                    there = frozenset(kept) | {model}
                    if not fits(there):
                        continue
                    after = there, run_all(there, at)
                    if cost + load_s[model] < best.get(after, float("inf")):
                        best[after] = cost + load_s[model]
                        heapq.heappush(queue, (best[after], next(order), after))
    raise AssertionError("it cannot be run at all")
