import asyncio
import random

import pytest
from machine import Machine, loop_ns
from virtual_loop import run_virtually
from visitor import Visitor

from harness.errors import DoesNotFit, EndpointUnreachable, LoadFailed, StreamCut
from harness.residency import Device, Forecast, HostReport, KeepAliveBudget, Strand, Tenant
from harness.trace import CounterSet, Instant, SpanEnded, SpanStarted, Tracer


def residents(budget):
    return {one.model: one.leases for one in budget.ledger.residents.values()}


async def use(budget, model, *, for_s=0.0):
    """One call."""
    async with budget.lease(model):
        await asyncio.sleep(for_s)


class Call:
    """A call that holds its lease until it is told to end."""

    def __init__(self, budget, model, **how):
        self.began = asyncio.Event()
        self._may_end = asyncio.Event()
        self.task = asyncio.create_task(self._hold(budget, model, how))

    async def _hold(self, budget, model, how):
        async with budget.lease(model, **how):
            self.began.set()
            await self._may_end.wait()

    async def end(self):
        self._may_end.set()
        await self.task

    async def cancel(self):
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task


async def until_idle():
    """Lets every task run until it waits for something, and the moment pass before a model goes."""
    await asyncio.sleep(0.1)


# --- one model --------------------------------------------------------------------------------


def test_a_model_is_loaded_once_for_calls_in_parallel():
    async def main():
        machine = Machine(10, a=6)
        async with machine.lending() as budget:
            calls = [Call(budget, "a") for _ in range(5)]
            for call in calls:
                await call.began.wait()

            assert machine.log == ["load a"]
            assert residents(budget) == {"a": 5}
            for call in calls:
                await call.end()
            assert residents(budget) == {"a": 0}  # and stays, for the next

    run_virtually(main)


def test_a_call_that_fails_gives_its_lease_back():
    async def main():
        async with Machine(10, a=6).lending() as budget:
            with pytest.raises(ValueError, match="boom"):
                async with budget.lease("a"):
                    raise ValueError("boom")

            assert residents(budget) == {"a": 0}

    run_virtually(main)


def test_where_models_take_turns_calls_beyond_the_slots_wait_outside_of_the_server():
    async def main():
        async with Machine(10, a=6, b=6).lending(a={"slots": 2}) as budget:
            calls = [Call(budget, "a") for _ in range(3)]
            await until_idle()
            assert [call.began.is_set() for call in calls] == [True, True, False]

            await calls[0].end()
            await calls[2].began.wait()
            assert residents(budget) == {"a": 2}
            for call in calls[1:]:
                await call.end()

    run_virtually(main)


def test_where_models_take_turns_calls_wait_for_room_in_the_kv_cache():
    async def main():
        async with Machine(10, a=6, b=6).lending(a={"kv_tokens": 100}) as budget:
            first, second = (Call(budget, "a", kv_tokens=60) for _ in range(2))
            short = Call(budget, "a", kv_tokens=10)  # would fit, and does not overtake
            await until_idle()
            assert [c.began.is_set() for c in (first, second, short)] == [True, False, False]

            await first.end()
            await second.began.wait()
            await short.began.wait()
            assert budget.ledger.residents["a"].kv_tokens == 70
            await second.end()
            await short.end()
            assert budget.ledger.residents["a"].kv_tokens == 0

    run_virtually(main)


def test_a_call_longer_than_the_whole_kv_cache_is_left_to_its_server():
    async def main():
        lending = Machine(10, a=6, b=6).lending(a={"kv_tokens": 100})
        async with lending as budget, budget.lease("a", kv_tokens=1000):
            assert residents(budget) == {"a": 1}

    run_virtually(main)


# --- several ----------------------------------------------------------------------------------


def test_of_models_that_are_alike_the_longest_unused_makes_room():
    async def main():
        machine = Machine(10, a=4, b=4, c=4)
        machine.takes_s = 1.0
        async with machine.lending() as budget:
            for model in "abac":
                await use(budget, model, for_s=1.0)

            assert machine.log == ["load a", "load b", "unload b", "load c"]
            assert residents(budget) == {"a": 0, "c": 0}

    run_virtually(main)


def test_a_model_in_use_stays_and_who_needs_its_room_waits():
    async def main():
        machine = Machine(10, a=6, b=6)
        async with machine.lending() as budget:
            first, second = Call(budget, "a"), Call(budget, "a")
            await second.began.wait()
            waiting = Call(budget, "b")

            await until_idle()
            await first.end()
            await until_idle()
            assert machine.log == ["load a"]

            await second.end()
            await waiting.began.wait()
            assert machine.log == ["load a", "unload a", "load b"]
            await waiting.end()

    run_virtually(main)


def test_a_call_to_a_resident_model_never_waits_for_another_that_loads():
    async def main():
        machine = Machine(10, a=4, b=4)
        async with machine.lending() as budget:
            await use(budget, "a")
            machine.held["load b"] = asyncio.Event()
            loading = Call(budget, "b")
            await until_idle()

            await use(budget, "a")
            assert not loading.began.is_set()

            machine.held["load b"].set()
            await loading.began.wait()
            await loading.end()

    run_virtually(main)


def test_a_model_that_is_taken_up_while_another_is_evicted_stays():
    async def main():
        machine = Machine(10, a=4, b=4, c=10)
        async with machine.lending() as budget:
            await use(budget, "a")
            await use(budget, "b")
            machine.held["unload a"] = asyncio.Event()
            waiting = Call(budget, "c")  # both have to go
            await until_idle()
            using = Call(budget, "b")
            await using.began.wait()
            machine.calls["b"] += 1

            machine.held["unload a"].set()
            await until_idle()
            assert residents(budget) == {"b": 1}

            machine.calls["b"] -= 1
            await using.end()
            await waiting.began.wait()
            assert machine.log[2:] == ["unload a", "unload b", "load c"]
            await waiting.end()

    run_virtually(main)


def test_a_model_that_goes_is_loaded_again_for_who_comes_meanwhile():
    async def main():
        machine = Machine(10, a=6, b=6)
        async with machine.lending() as budget:
            await use(budget, "a")
            machine.held["unload a"] = asyncio.Event()
            b = Call(budget, "b")
            await until_idle()
            a = Call(budget, "a")
            await until_idle()
            assert not a.began.is_set()

            machine.held["unload a"].set()
            await b.began.wait()
            await b.end()
            await a.began.wait()
            await a.end()
            assert machine.log == ["load a", "unload a", "load b", "unload b", "load a"]

    run_virtually(main)


def test_calls_that_overlap_keep_another_model_out_no_longer_than_the_longest_wait_and_a_call():
    async def main():
        machine = Machine(10, a=6, b=6)

        async def keep_a_busy():
            while True:
                await use(budget, "a", for_s=10.0)

        async with machine.lending(max_wait_s=60.0) as budget:
            await use(budget, "a", for_s=10.0)
            busy = [asyncio.create_task(keep_a_busy())]
            await asyncio.sleep(5.0)
            busy.append(asyncio.create_task(keep_a_busy()))
            began_s = asyncio.get_running_loop().time()
            await use(budget, "b")
            waited_s = asyncio.get_running_loop().time() - began_s
            for task in busy:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)

        assert 45.0 <= waited_s <= 60.0 + 10.0

    run_virtually(main)


# --- what is expected, and what is pinned -------------------------------------------------------


def test_what_is_pinned_is_loaded_at_the_start_and_stays():
    async def main():
        machine = Machine(10, a=6, b=4, c=4)
        async with machine.lending(a={"pin": True}) as budget:
            await until_idle()
            assert machine.log == ["load a"]
            await use(budget, "b")
            await use(budget, "c")
            assert machine.log == ["load a", "load b", "unload b", "load c"]

    run_virtually(main)


def test_what_is_expected_next_is_loaded_ahead_and_what_is_expected_no_more_goes():
    async def main():
        machine = Machine(10, a=4, b=4)
        async with machine.lending() as budget:
            strand = Strand(name="node", uses=("a", "b"))
            budget.expect(Forecast(strands=(strand,), is_complete=True))
            async with budget.lease("a"):
                await until_idle()
                assert machine.log == ["load a", "load b"]
            strand = Strand(name="node", uses=("b",))
            budget.expect(Forecast(strands=(strand,), is_complete=True))
            await until_idle()
            assert residents(budget) == {"b": 0}
            budget.expect(Forecast(is_complete=True))
            await until_idle()
            assert machine.log == ["load a", "load b", "unload a", "unload b"]

    run_virtually(main)


def test_a_forecast_that_has_left_a_model_out_lets_none_go_any_more():
    async def main():
        machine = Machine(10, a=4, b=4)
        async with machine.lending() as budget:
            strand = Strand(name="node", uses=("a",))
            budget.expect(Forecast(strands=(strand,), is_complete=True))
            for model in "babab":
                await use(budget, model)
                await until_idle()

            assert machine.log.count("load b") == 1
            assert residents(budget) == {"a": 0, "b": 0}

    run_virtually(main)


def test_a_model_that_cannot_be_loaded_ahead_is_tried_again_for_a_call_only():
    async def main():
        machine = Machine(10, a=4, b=4)
        machine.broken |= {"load a", "load b"}
        async with machine.lending(b={"pin": True}) as budget:
            budget.expect(Forecast(strands=(Strand(name="node", uses=("a",)),)))
            await asyncio.sleep(100.0)
            assert sorted(machine.log) == ["load a", "load b"]

            machine.broken.clear()
            await use(budget, "a")
            assert residents(budget) == {"a": 0}

    run_virtually(main)


def test_a_model_that_was_loaded_ahead_in_vain_is_not_loaded_ahead_again():
    async def main():
        machine = Machine(10, a=6, b=6)
        machine.takes_s = 1.0
        async with machine.lending() as budget:
            strand = Strand(name="node", uses=("b", "a", "b"))
            budget.expect(Forecast(strands=(strand,), is_complete=True))
            await use(budget, "a")

            assert machine.log == ["load b", "unload b", "load a"]

    run_virtually(main)


def test_a_call_waits_for_nothing_that_is_expected_and_has_no_room():
    async def main():
        machine = Machine(10, a=6, huge=11)
        async with machine.lending(huge={"priority": 1}) as budget:
            budget.expect(Forecast(strands=(Strand(name="node", uses=("huge", "a")),)))
            await use(budget, "a")

    run_virtually(main)


def test_a_model_in_use_does_not_make_way_for_one_that_is_pinned_and_was_lost():
    async def main():
        machine = Machine(10, p=4, a=5, b=5)
        async with machine.lending(p={"pin": True}) as budget:
            await until_idle()
            a, b = Call(budget, "a"), Call(budget, "b")
            await a.began.wait()
            assert not b.began.is_set()
            del machine.taken["p"]  # which gives b room, once it is noticed
            await b.began.wait()
            await asyncio.sleep(30.0)
            assert machine.log == ["load p", "load a", "load b"]

            await a.end()
            await until_idle()
            assert machine.log[3:] == ["unload a", "load p"]
            await b.end()

    run_virtually(main)


@pytest.mark.parametrize("is_next", [True, False])
def test_a_model_that_does_not_go_when_nobody_needs_it_is_left_alone(is_next):
    async def main():
        machine = Machine(10, a=6, b=6)
        async with machine.lending() as budget:
            await use(budget, "a")
            machine.broken.add("unload a")
            strands = (Strand(name="node", uses=("b",)),) if is_next else ()
            budget.expect(Forecast(strands=strands, is_complete=True))
            await asyncio.sleep(100.0)

            assert machine.log == ["load a", "unload a"]

    run_virtually(main)


# --- what cannot be -----------------------------------------------------------------------------


def test_a_model_larger_than_the_budget_is_refused_and_nothing_is_evicted():
    async def main():
        async with Machine(10, a=6, huge=11).lending() as budget:
            await use(budget, "a")

            with pytest.raises(
                DoesNotFit, match="needs 11 B and the whole budget of 'machine' is 10 B; "
            ):
                await use(budget, "huge")

            assert residents(budget) == {"a": 0}
            await use(budget, "a")

    run_virtually(main)


def test_pinned_models_that_do_not_fit_beside_each_other_are_refused_at_the_start():
    with pytest.raises(DoesNotFit, match="10 B less 5 B of pinned 'b'"):
        Machine(10, a=6, b=5).budget(a={"pin": True}, b={"pin": True})


def test_a_load_that_fails_is_told_to_all_who_wait_for_it_and_leaves_the_ledger_right():
    async def main():
        machine = Machine(10, a=6, b=6)
        async with machine.lending() as budget:
            await use(budget, "a")
            machine.broken.add("load b")

            told = await asyncio.gather(
                *(use(budget, "b") for _ in range(3)), return_exceptions=True
            )

            assert [str(error) for error in told] == ["cannot load b"] * 3
            assert machine.log == ["load a", "unload a", "load b"]
            assert residents(budget) == machine.taken == {}
            machine.broken.clear()
            await use(budget, "b")
            assert residents(budget) == {"b": 0}

    run_virtually(main)


def test_a_load_that_hangs_is_given_up_and_the_error_says_which_limit_to_raise():
    async def main():
        machine = Machine(10, a=6, b=6)
        async with machine.lending(a={"load_timeout_s": 30.0}) as budget:
            machine.held["load a"] = asyncio.Event()

            with pytest.raises(LoadFailed, match="not loaded after 30 s; raise load_timeout_s"):
                await use(budget, "a")

            await use(budget, "b")
            assert residents(budget) == {"b": 0}
            assert machine.taken == {"b": 6}

    run_virtually(main)


def test_a_model_that_does_not_go_stays_in_the_ledger_and_who_waits_is_told():
    async def main():
        machine = Machine(10, a=6, b=6)
        async with machine.lending() as budget:
            await use(budget, "a")
            machine.broken.add("unload a")

            with pytest.raises(LoadFailed, match="'b' has no room: 'a' is in its place and could"):
                await use(budget, "b")

            assert residents(budget) == {"a": 0}
            await use(budget, "a")
            machine.broken.clear()
            await use(budget, "b")
            assert machine.log == ["load a", "unload a", "unload a", "load b"]

    run_virtually(main)


def test_a_model_that_went_although_its_server_said_no_is_gone():
    async def main():
        machine = Machine(10, a=6, b=6)
        async with machine.lending() as budget:
            await use(budget, "a")
            machine.broken.add("unload a")
            del machine.taken["a"]

            await use(budget, "b")

            assert residents(budget) == {"b": 0}

    run_virtually(main)


class Tight(Machine):
    """Has less room than the budget was told: models need more than was thought."""

    real_bytes = 8

    async def perform(self, action):
        if action.startswith("load") and sum(self.taken.values()) > self.real_bytes:
            self.log.append(f"{action} in vain")
            raise LoadFailed("out of memory", endpoint=action[-1], out_of_memory=True)
        await super().perform(action)


def test_a_model_that_turns_out_too_large_has_others_make_room():
    async def main():
        machine = Tight(10, a=5, b=5)
        async with machine.lending() as budget:
            await use(budget, "a")
            await use(budget, "b")

            assert machine.log == ["load a", "load b in vain", "unload a", "load b"]
            assert residents(budget) == {"b": 0}

    run_virtually(main)


def test_what_a_model_turned_out_to_take_is_remembered_where_its_host_says_nothing():
    async def main():
        machine = Tight(10, a=5, b=5)
        machine.says_sizes = False
        async with machine.lending() as budget:
            for model in "ababab":
                await use(budget, model)

            assert [line for line in machine.log if "in vain" in line] == ["load b in vain"]

    run_virtually(main)


def test_what_has_no_room_without_guests_either_is_tried_once():
    async def main():
        machine = Tight(10, a=6)
        machine.real_bytes = 5
        async with machine.lending() as budget:
            budget.admit_guest(Visitor("vectors", 5, machine))
            with pytest.raises(LoadFailed, match="out of memory"):
                await use(budget, "a")

            assert machine.log == ["load a in vain"]

    run_virtually(main)


@pytest.mark.parametrize("pinned", [True, False])
def test_a_model_for_which_nobody_can_make_room_fails_and_is_tried_again_for_the_next_call(pinned):
    async def main():
        machine = Tight(10, a=4, b=5)
        machine.real_bytes = 8 if pinned else 4
        async with machine.lending(a={"pin": pinned}) as budget:
            await use(budget, "a")
            for _ in range(2):
                with pytest.raises(LoadFailed, match="out of memory"):
                    await use(budget, "b")

            machine.real_bytes = 10
            await use(budget, "b")

    run_virtually(main)


def test_who_waits_is_told_when_what_is_pinned_turns_out_to_leave_no_room():
    async def main():
        machine = Machine(10, p=4, a=6)
        machine.held["load p"] = asyncio.Event()
        budget = machine.budget(p={"pin": True})
        machine.needs["p"] = 7
        async with budget.opened():
            await until_idle()
            call = Call(budget, "a")
            await until_idle()
            machine.held["load p"].set()

            with pytest.raises(DoesNotFit, match="10 B less 7 B of pinned 'p', which leaves 3 B"):
                await call.task

    run_virtually(main)


# --- calls that are given up --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "left"),
    [
        pytest.param("load b", {"b": 0}, id="loading"),
        pytest.param("unload a", {}, id="making room"),
    ],
)
def test_cancelling_a_call_whose_model_moves_ends_at_once_and_leaks_nothing(held, left):
    async def main():
        machine = Machine(10, a=6, b=6)
        async with machine.lending() as budget:
            await use(budget, "a")
            machine.held[held] = asyncio.Event()
            call = Call(budget, "b")
            await until_idle()
            assert machine.log[-1] == held

            await call.cancel()

            machine.held[held].set()  # what has begun goes on to its end
            await until_idle()
            assert residents(budget) == left
            assert set(machine.taken) == set(left)
            for model in "ba":
                await use(budget, model)
            assert residents(budget) == {"a": 0}

    run_virtually(main)


def test_cancelling_a_call_that_waits_for_room_leaks_nothing():
    async def main():
        machine = Machine(10, a=6, b=6)
        async with machine.lending() as budget:
            using = Call(budget, "a")
            await using.began.wait()
            waiting = Call(budget, "b")
            await until_idle()

            await waiting.cancel()

            await using.end()
            await until_idle()
            assert residents(budget) == {"a": 0}
            assert machine.log == ["load a"]

    run_virtually(main)


def test_cancelling_a_call_in_the_moment_of_its_turn_leaks_nothing():
    async def main():
        machine = Machine(10, a=6)
        async with machine.lending() as budget:
            machine.held["load a"] = asyncio.Event()
            first, second = Call(budget, "a"), Call(budget, "a")
            await until_idle()
            machine.held["load a"].set()
            while not residents(budget):  # noqa: ASYNC110 - the very moment is meant
                await asyncio.sleep(0)
            assert residents(budget) == {"a": 2}

            await second.cancel()

            await first.began.wait()
            assert residents(budget) == {"a": 1}
            await first.end()

    run_virtually(main)


def test_cancelling_a_call_under_way_gives_its_lease_back():
    async def main():
        async with Machine(10, a=6).lending() as budget:
            call = Call(budget, "a")
            await call.began.wait()

            await call.cancel()

            assert residents(budget) == {"a": 0}

    run_virtually(main)


# --- what servers do by themselves --------------------------------------------------------------


def test_models_that_are_in_memory_already_are_taken_as_they_are():
    async def main():
        records = []
        machine = Machine(10, a=6, b=3)
        machine.taken["a"] = 7
        async with machine.lending(Tracer(records.append, clock=loop_ns)) as budget:
            await use(budget, "a")
            assert machine.log == []
            assert budget.ledger.model_bytes("machine") == 7
        assert machine.log == ["unload a"]
        (adopted,) = [r for r in records if isinstance(r, Instant) and r.name == "adopt"]
        assert adopted.attributes == {"model": "a", "reason": "it was in memory already"}

    run_virtually(main)


def test_a_model_that_its_server_has_let_go_is_loaded_again():
    async def main():
        machine = Machine(10, a=6)
        async with machine.lending() as budget:
            await use(budget, "a")
            del machine.taken["a"]
            await asyncio.sleep(11.0)
            assert residents(budget) == {}

            await use(budget, "a")
            assert machine.log == ["load a", "load a"]

    run_virtually(main)


def test_after_a_call_that_failed_it_is_looked_at_once_whether_the_model_is_there():
    async def main():
        machine = Machine(10, a=6)
        async with machine.lending() as budget:

            async def call_that_is_cut():
                async with budget.lease("a"):
                    del machine.taken["a"]
                    raise StreamCut("it died", endpoint="a")

            with pytest.raises(StreamCut):
                await call_that_is_cut()
            await until_idle()
            assert residents(budget) == {}

            await use(budget, "a")
            assert machine.log == ["load a", "load a"]

    run_virtually(main)


def test_a_server_that_has_died_keeps_nobody_from_its_room():
    async def main():
        machine = Machine(10, a=6, b=6)
        async with machine.lending() as budget:
            await use(budget, "a")
            machine.dead.add("a")
            del machine.taken["a"]

            await use(budget, "b")
            with pytest.raises(EndpointUnreachable):
                await use(budget, "a")

            assert residents(budget) == {}
            machine.dead.clear()
            await use(budget, "a")
            assert residents(budget) == {"a": 0}

    run_virtually(main)


def test_a_server_that_answers_calls_is_not_taken_for_dead():
    async def main():
        machine = Machine(10, a=6, b=6)
        async with machine.lending() as budget:
            async with budget.lease("a"):
                machine.dead.add("a")
                await asyncio.sleep(30.0)
                assert residents(budget) == {"a": 1}
            await asyncio.sleep(11.0)
            assert residents(budget) == {}
            machine.dead.clear()
            await asyncio.sleep(11.0)
            assert residents(budget) == {"a": 0}

    run_virtually(main)


def test_a_model_that_others_have_loaded_is_counted_and_lent_without_a_load():
    async def main():
        records = []
        machine = Machine(10, a=6, b=6)
        async with machine.lending(Tracer(records.append, clock=loop_ns)) as budget:
            machine.taken["a"] = 6
            await asyncio.sleep(11.0)
            assert residents(budget) == {"a": 0}

            await use(budget, "a")
            await use(budget, "b")
            assert machine.log == ["unload a", "load b"]
        (adopted,) = [r for r in records if isinstance(r, Instant) and r.name == "adopt"]
        assert adopted.attributes["model"] == "a"

    run_virtually(main)


def test_a_model_that_has_grown_is_counted_as_it_is():
    async def main():
        machine = Machine(10, a=4, b=4)
        async with machine.lending() as budget:
            await use(budget, "a")
            machine.taken["a"] = 5
            await asyncio.sleep(11.0)
            assert budget.ledger.model_bytes("machine") == 5
            assert budget.tenants["a"].need == {"machine": 5}

    run_virtually(main)


def test_what_is_said_of_a_model_that_came_and_went_meanwhile_counts_for_nothing():
    async def main():
        machine = Machine(10, a=6, b=6)
        machine.takes_s = 1.0
        machine.says_sizes = False
        async with machine.lending() as budget:
            async with budget.lease("a"):
                # Asked after 10 s; it looks while b is there, and says so when a is back.
                machine.slow_reports.append((2.0, 2.9))
                await asyncio.sleep(9.5)
            await use(budget, "b")
            await use(budget, "a", for_s=3.0)
            assert machine.slow_reports == []
            assert machine.log == ["load a", "unload a", "load b", "unload b", "load a"]

            assert residents(budget) == {"a": 0}

    run_virtually(main)


def test_a_host_that_breaks_when_it_is_asked_ends_no_run():
    async def main():
        machine = Machine(10, a=6)
        machine.broken.add("report a")
        async with machine.lending() as budget:
            await use(budget, "a")
            await asyncio.sleep(30.0)
            assert residents(budget) == {"a": 0}

    run_virtually(main)


# --- the end ------------------------------------------------------------------------------------


def test_closing_unloads_everything_even_if_one_stays():
    async def main():
        machine = Machine(10, a=3, b=3, c=3)
        async with machine.lending() as budget:
            for model in "abc":
                await use(budget, model)
            machine.broken.add("unload b")

        assert machine.taken == {"b": 3}
        assert budget.ledger.residents == {}
        assert sorted(machine.log[3:]) == ["unload a", "unload b", "unload c"]

    run_virtually(main)


def test_models_of_servers_of_their_own_stay_when_the_budget_closes():
    async def main():
        machine = Machine(10, a=3, b=3)
        async with machine.lending(left=["a"]) as budget:
            await use(budget, "a")
            await use(budget, "b")

        assert machine.taken == {"a": 3}

    run_virtually(main)


@pytest.mark.parametrize("held", ["load b", "unload a"])
def test_closing_in_the_middle_of_a_move_leaves_nothing_in_memory(held):
    async def main():
        machine = Machine(10, a=6, b=6)
        async with machine.lending() as budget:
            await use(budget, "a")
            machine.held[held] = asyncio.Event()
            call = Call(budget, "b")
            await until_idle()
            assert machine.log[-1] == held
            machine.held[held].set()  # too late: the budget closes now

        with pytest.raises(LoadFailed, match="b: the budget was closed meanwhile"):
            await call.task
        assert machine.taken == {}

    run_virtually(main)


def test_closing_before_a_move_has_begun_leaves_nothing_in_memory():
    async def main():
        machine = Machine(10, a=6, b=6)
        async with machine.lending() as budget:
            await use(budget, "a")
            await until_idle()
            call = Call(budget, "b")
            await asyncio.sleep(0)
            assert machine.log == ["load a"]
            assert budget.ledger.moving.model == "a"

        with pytest.raises(LoadFailed, match="b: the budget was closed meanwhile"):
            await call.task
        assert machine.taken == {}

    run_virtually(main)


def test_closing_while_it_is_asked_how_large_a_model_is_leaves_nothing_in_memory():
    async def main():
        machine = Machine(10, a=6)
        async with machine.lending() as budget:
            machine.slow_reports.append((0.0, 4.0))
            call = Call(budget, "a")
            await until_idle()
            assert machine.taken == {"a": 6}
            assert not call.began.is_set()

        with pytest.raises(LoadFailed, match="a: the budget was closed meanwhile"):
            await call.task
        assert machine.taken == {}

    run_virtually(main)


def test_a_run_that_is_cancelled_leaves_nothing_in_memory():
    async def main():
        machine = Machine(10, a=6, b=4)

        async def run():
            async with machine.lending() as budget:
                await use(budget, "b")
                await use(budget, "a", for_s=1000.0)

        running = asyncio.create_task(run())
        await asyncio.sleep(10.0)
        assert machine.taken == {"a": 6, "b": 4}
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

        assert running.cancelled()
        assert machine.taken == {}

    run_virtually(main)


def test_what_goes_wrong_in_the_block_comes_out_of_it_as_it_is():
    async def main():
        machine = Machine(10, a=6)

        async def fails():
            async with machine.lending() as budget:
                await use(budget, "a")
                raise ValueError("boom")

        with pytest.raises(ValueError, match="boom"):
            await fails()
        assert machine.log == ["load a", "unload a"]

    run_virtually(main)


# --- the trace ----------------------------------------------------------------------------------


def test_loads_evictions_and_waits_are_in_the_trace():
    records = []

    async def main():
        machine = Machine(10, a=6, b=4, c=10)
        async with machine.lending(Tracer(records.append, clock=loop_ns)) as budget:
            await use(budget, "b")
            using = Call(budget, "a")
            await using.began.wait()
            waiting = Call(budget, "c")
            await until_idle()
            await using.end()
            await waiting.end()

    run_virtually(main)

    moves = [r for r in records if isinstance(r, SpanStarted) and "track" in r.attributes]
    for_c = "room for c: a call waits for it, nothing is left for 'a', nothing is left for 'b'"
    assert [(r.name, r.attributes["model"], r.attributes["reason"]) for r in moves] == [
        ("load", "b", "a call waits for it"),
        ("load", "a", "a call waits for it"),
        ("unload", "a", for_c),
        ("unload", "b", "room for c: a call waits for it, nothing is left for 'b'"),
        ("load", "c", "a call waits for it"),
        ("unload", "c", "end of run"),
    ]
    assert [r.attributes["need_bytes"] for r in moves if r.name == "load"] == [4, 6, 10]
    evicted = [dict(r.attributes) for r in records if isinstance(r, Instant) and r.name == "evict"]
    assert evicted == [
        {"model": r.attributes["model"], "reason": r.attributes["reason"]}
        for r in moves
        if r.name == "unload"
    ]
    waits = [r for r in records if isinstance(r, SpanStarted) and r not in moves]
    assert [(r.name, r.attributes.get("reason")) for r in waits][-2:] == [
        ("queue", "no room until calls to 'a' end"),
        ("load", None),
    ]
    assert {r.status for r in records if isinstance(r, SpanEnded)} == {"ok"}
    counters = [(r.name, r.unit, r.value) for r in records if isinstance(r, CounterSet)]
    assert counters == [("resident", "bytes", value) for value in (0, 4, 10, 4, 0, 10, 0)]


def test_who_waits_for_a_load_shows_which_it_is_and_one_load_is_in_the_trace():
    records = []

    async def main():
        async with Machine(10, a=6).lending(Tracer(records.append, clock=loop_ns)) as budget:
            for call in [Call(budget, "a") for _ in range(3)]:
                await call.end()

    run_virtually(main)

    loads = [r for r in records if isinstance(r, SpanStarted) and r.name == "load"]
    (load,) = [r for r in loads if "track" in r.attributes]
    assert [r.attributes["waits_for"] for r in loads if r is not load] == [load.id] * 3


def test_every_device_has_a_counter_of_its_own():
    records = []

    async def main():
        budget = KeepAliveBudget(
            devices=[
                Device(name="machine", capacity_bytes=20),
                Device(name="gpu0", capacity_bytes=10, reserve_bytes=2),
            ],
            tenants=[
                Tenant(model="a", need={"gpu0": 8}),
                Tenant(model="b", need={"gpu0": 5, "machine": 5}),
            ],
            hosts={"a": Roomy(), "b": Roomy()},
            tracer=Tracer(records.append, clock=loop_ns),
        )
        async with budget.opened():
            await use(budget, "a")
            await use(budget, "b")

    run_virtually(main)

    counters = [(r.name, r.value) for r in records if isinstance(r, CounterSet)]
    of = {name: [value for other, value in counters if other == name] for name, _ in counters}
    assert of == {"resident": [0, 0, 0, 5, 0], "resident gpu0": [0, 8, 0, 5, 0]}


@pytest.mark.parametrize(
    ("gpu_bytes", "there"), [(5, {"gpu0": 5, "machine": 3}), (8, {"gpu0": 8}), (None, {"gpu0": 8})]
)
def test_what_a_server_has_no_room_for_on_the_gpu_is_counted_in_the_machine(gpu_bytes, there):
    async def main():
        budget = KeepAliveBudget(
            devices=[
                Device(name="machine", capacity_bytes=20),
                Device(name="gpu0", capacity_bytes=10),
            ],
            tenants=[Tenant(model="a", need={"gpu0": 8})],
            hosts={
                "a": Roomy(HostReport(resident=True, total_bytes=8, gpu_bytes=gpu_bytes)),
            },
            tracer=Tracer(clock=loop_ns),
        )
        async with budget.opened():
            await use(budget, "a")
            assert budget.ledger.residents["a"].need == there

    run_virtually(main)


class Roomy:
    """A host that always says the same, or nothing."""

    def __init__(self, report=None):
        self._report = report

    async def load(self):
        pass

    async def unload(self):
        pass

    async def report(self):
        return self._report

    async def aclose(self):
        pass


# --- whatever comes -----------------------------------------------------------------------------


class BusyMachine(Machine):
    """Takes its time, as long as chance has it."""

    def __init__(self, randomness, capacity_bytes, **needs):
        super().__init__(capacity_bytes, **needs)
        self.randomness = randomness

    async def pause(self):
        for _ in range(self.randomness.randint(0, 8)):
            await asyncio.sleep(0)
        await asyncio.sleep(self.randomness.choice([0, 0, 1, 10]))


async def call(machine, budget, model):
    try:
        async with budget.lease(model):
            machine.calls[model] += 1
            try:
                assert model in machine.taken, f"{model} is lent and not in memory"
                assert residents(budget)[model] >= machine.calls[model]  # others may just begin
                await machine.pause()
            finally:
                machine.calls[model] -= 1
    except OSError:
        assert f"load {model}" in machine.broken
    except DoesNotFit:
        assert machine.needs[model] > machine.capacity_bytes


async def call_one_after_the_other(machine, budget, models):
    for model in models:
        await machine.pause()
        await call(machine, budget, model)


async def random_calls(machine, budget):
    randomness, models = machine.randomness, list(machine.needs)
    if randomness.random() < 0.2:
        machine.broken.add(f"load {randomness.choice(models)}")
    async with asyncio.TaskGroup() as group:
        callers = [
            group.create_task(
                call_one_after_the_other(machine, budget, randomness.choices(models, k=10))
            )
            for _ in range(randomness.randint(1, 8))
        ]
        if randomness.random() < 0.5:
            for caller in randomness.sample(callers, len(callers) // 3):
                await machine.pause()
                caller.cancel()


@pytest.mark.parametrize("seed", range(100))
def test_whatever_calls_come_memory_is_never_exceeded_and_nobody_waits_for_ever(seed):
    randomness = random.Random(seed)
    capacity_bytes = randomness.randint(4, 12)
    needs = {model: randomness.randint(1, capacity_bytes) for model in "abcde"}
    needs["huge"] = capacity_bytes + 1
    machine = BusyMachine(randomness, capacity_bytes, **needs)

    async def main():
        async with machine.lending() as budget:
            await random_calls(machine, budget)
            await asyncio.sleep(60.0)
            assert residents(budget) == dict.fromkeys(machine.taken, 0)
            assert budget.ledger.model_bytes("machine") == sum(machine.taken.values())
        assert machine.taken == {}

    run_virtually(main)
