import asyncio

import pytest
from machine import Machine, loop_ns, residents, until_idle, use
from structlog.testing import capture_logs
from virtual_loop import virtually

from harness.errors import DoesNotFit, EndpointUnreachable, LoadFailed, StreamCut
from harness.residency import Device, Forecast, HostReport, KeepAliveBudget, Strand, Tenant
from harness.trace import CounterSet, Instant, SharedTracer, SpanEnded, SpanStarted, Tracer


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


def one_after_another(*models, is_complete=True):
    """A forecast of one node's calls; of none at all without models."""
    strands = (Strand(name="node", uses=models),) if models else ()
    return Forecast(strands=strands, is_complete=is_complete)


# --- calls and their turns ----------------------------------------------------------------------


@virtually
async def test_nodes_that_wait_for_an_absent_model_are_told_and_then_go_a_few_at_a_time():
    told, tracer = [], Tracer(clock=loop_ns)
    async with Machine(10, a=6, b=6).lending(tracer, lend=told.append, max_parallel=2) as budget:
        held = Call(budget, "a")
        await until_idle()
        waiting = []
        for number in range(3):
            with tracer.span("node", node=f"rows[{number}]"):
                waiting += [Call(budget, "b"), Call(budget, "b")]
        await until_idle()
        assert told[-1] == 3
        await held.end()
        await until_idle()
        assert (told[-1], residents(budget)) == (0, {"b": 2})
        for call in waiting:
            await call.end()


@virtually
async def test_calls_of_no_more_nodes_than_run_at_once_go_together():
    tracer = Tracer(clock=loop_ns)
    async with Machine(10, a=6, b=6).lending(tracer, max_parallel=1) as budget:
        with tracer.span("node", node="fan out"):
            calls = [Call(budget, "a") for _ in range(8)]
        await until_idle()
        assert residents(budget) == {"a": 8}
        for call in calls:
            await call.end()


@virtually
async def test_no_more_nodes_begin_once_models_turn_out_to_fit():
    told, tracer = [], Tracer(clock=loop_ns)
    machine = Machine(10, a=6, b=6)
    async with machine.lending(tracer, lend=told.append, max_parallel=1) as budget:
        machine.needs["a"] = 4
        calls = [Call(budget, "a")]
        with tracer.span("node", node="rows[0]"):
            calls.append(Call(budget, "b"))
        await until_idle()
        assert (told, residents(budget)) == ([1, 0], {"a": 1, "b": 1})
        for call in calls:
            await call.end()


@virtually
async def test_where_all_models_fit_no_call_makes_others_begin():
    told = []
    async with Machine(12, a=6, b=6).lending(lend=told.append, max_parallel=1) as budget:
        calls = [Call(budget, "a") for _ in range(3)]
        await until_idle()
        assert (told, residents(budget)) == ([], {"a": 3})
        for call in calls:
            await call.end()


@virtually
async def test_calls_that_overlap_keep_another_model_out_no_longer_than_a_wait_and_a_call():
    async def keep_a_busy():
        while True:
            await use(budget, "a", for_s=10.0)

    async with Machine(10, a=6, b=6).lending(max_wait_s=60.0) as budget:
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


# --- what is expected, and what is pinned -------------------------------------------------------


@virtually
async def test_what_is_expected_next_is_loaded_ahead_and_what_is_expected_no_more_goes():
    machine = Machine(10, a=4, b=4)
    async with machine.lending() as budget:
        budget.expect(one_after_another("a", "b"), run="")
        async with budget.lease("a"):
            await until_idle()
            assert machine.log == ["load a", "load b"]
        budget.expect(one_after_another("b"), run="")
        await until_idle()
        assert residents(budget) == {"b": 0}
        budget.expect(one_after_another(), run="")
        await until_idle()
        assert machine.log == ["load a", "load b", "unload a", "unload b"]


@virtually
async def test_a_forecast_that_has_left_a_model_out_lets_none_go_any_more():
    machine = Machine(10, a=4, b=4)
    async with machine.lending() as budget:
        budget.expect(one_after_another("a"), run="")
        for model in "babab":
            await use(budget, model)
            await until_idle()

        assert machine.log.count("load b") == 1
        assert residents(budget) == {"a": 0, "b": 0}


@virtually
async def test_a_call_waits_for_nothing_that_is_expected_and_has_no_room():
    async with Machine(10, a=6, huge=11).lending(huge={"priority": 1}) as budget:
        budget.expect(one_after_another("huge", "a", is_complete=False), run="")
        await use(budget, "a")


# --- what cannot be -----------------------------------------------------------------------------


@virtually
async def test_a_model_larger_than_the_budget_is_refused_and_nothing_is_evicted():
    async with Machine(10, a=6, huge=11).lending() as budget:
        await use(budget, "a")

        with pytest.raises(DoesNotFit) as caught:
            await use(budget, "huge")

        assert (caught.value.need_bytes, caught.value.capacity_bytes) == (11, 10)
        assert residents(budget) == {"a": 0}
        await use(budget, "a")


def test_pinned_models_that_do_not_fit_beside_each_other_are_refused_at_the_start():
    with pytest.raises(DoesNotFit) as caught:
        Machine(10, a=6, b=5).budget(a={"pin": True}, b={"pin": True})
    assert caught.value.model == "a"


@virtually
async def test_a_load_that_fails_is_told_to_all_who_wait_for_it_and_leaves_the_ledger_right():
    machine = Machine(10, a=6, b=6)
    async with machine.lending() as budget:
        await use(budget, "a")
        machine.broken.add("load b")
        told = await asyncio.gather(*(use(budget, "b") for _ in range(3)), return_exceptions=True)

        assert [str(error) for error in told] == ["cannot load b"] * 3
        assert machine.log == ["load a", "unload a", "load b"]
        assert residents(budget) == machine.taken == {}
        machine.broken.clear()
        await use(budget, "b")
        assert residents(budget) == {"b": 0}


@virtually
async def test_a_load_that_hangs_is_given_up():
    machine = Machine(10, a=6, b=6)
    async with machine.lending(a={"load_timeout_s": 30.0}) as budget:
        machine.held["load a"] = asyncio.Event()

        with pytest.raises(LoadFailed) as caught:
            await use(budget, "a")

        assert caught.value.code == "model.load-timeout"
        assert asyncio.get_running_loop().time() == pytest.approx(30.0, abs=1.0)
        await use(budget, "b")
        assert machine.taken == {"b": 6}


@virtually
async def test_a_model_that_does_not_go_stays_in_the_ledger_and_who_waits_is_told():
    machine = Machine(10, a=6, b=6)
    async with machine.lending() as budget:
        await use(budget, "a")
        machine.broken.add("unload a")

        with pytest.raises(LoadFailed) as caught:
            await use(budget, "b")

        assert (caught.value.code, caught.value.endpoint) == ("model.not-unloaded", "b")
        assert residents(budget) == {"a": 0}
        await use(budget, "a")
        machine.broken.clear()
        await use(budget, "b")
        assert machine.log == ["load a", "unload a", "unload a", "load b"]


class Tight(Machine):
    """Has less room than the budget was told: models need more than was thought."""

    real_bytes = 8

    async def perform(self, action):
        if action.startswith("load") and sum(self.taken.values()) > self.real_bytes:
            self.log.append(f"{action} in vain")
            raise LoadFailed("out of memory", endpoint=action[-1], out_of_memory=True)
        await super().perform(action)


@virtually
async def test_a_model_that_turns_out_too_large_has_others_make_room():
    machine = Tight(10, a=5, b=5)
    async with machine.lending() as budget:
        await use(budget, "a")
        await use(budget, "b")
        assert machine.log == ["load a", "load b in vain", "unload a", "load b"]


@virtually
async def test_what_a_model_turned_out_to_take_is_remembered_where_its_host_says_nothing():
    machine = Tight(10, a=5, b=5)
    machine.says_sizes = False
    async with machine.lending() as budget:
        for model in "ababab":
            await use(budget, model)
        assert [line for line in machine.log if "in vain" in line] == ["load b in vain"]


@virtually
async def test_who_waits_is_told_when_what_is_pinned_turns_out_to_leave_no_room():
    machine = Machine(10, p=4, a=6)
    machine.held["load p"] = asyncio.Event()
    budget = machine.budget(p={"pin": True})
    machine.needs["p"] = 7
    async with budget.opened():
        await until_idle()
        call = Call(budget, "a")
        await until_idle()
        machine.held["load p"].set()
        with pytest.raises(DoesNotFit) as caught:
            await call.task
    assert (caught.value.model, caught.value.need_bytes) == ("a", 6)


# --- calls that are given up --------------------------------------------------------------------


@pytest.mark.parametrize(("held", "left"), [("load b", {"b": 0}), ("unload a", {})])
@virtually
async def test_cancelling_a_call_whose_model_moves_ends_at_once_and_leaks_nothing(held, left):
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


@virtually
async def test_cancelling_a_call_in_the_moment_of_its_turn_or_later_leaks_nothing():
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
        await first.cancel()
        assert residents(budget) == {"a": 0}


# --- what servers do by themselves --------------------------------------------------------------


@pytest.mark.parametrize(
    ("when_s", "reason"),
    [
        pytest.param(0.0, "it was in memory already", id="before the start"),
        pytest.param(11.0, "its server has loaded it unasked", id="by others"),
    ],
)
@virtually
async def test_a_model_that_is_there_unasked_is_counted_and_lent_without_a_load(when_s, reason):
    records = []
    machine = Machine(10, a=6, b=6)
    machine.taken |= {} if when_s else {"a": 7}
    async with machine.lending(Tracer(records.append, clock=loop_ns)) as budget:
        machine.taken["a"] = 7
        await asyncio.sleep(when_s)
        assert budget.ledger.taken_bytes("machine") == 7
        await use(budget, "a")
        assert machine.log == []
        await use(budget, "b")
        assert machine.log == ["unload a", "load b"]
    [adopted] = [r for r in records if isinstance(r, Instant) and r.name == "adopt"]
    assert adopted.attributes == {"model": "a", "reason": reason}


@virtually
async def test_a_model_that_its_server_has_let_go_is_loaded_again():
    machine = Machine(10, a=6)
    async with machine.lending() as budget:
        await use(budget, "a")
        del machine.taken["a"]
        await asyncio.sleep(11.0)
        assert residents(budget) == {}

        await use(budget, "a")
        assert machine.log == ["load a", "load a"]


@virtually
async def test_after_a_call_that_failed_it_is_looked_at_once_whether_the_model_is_there():
    async def call_that_is_cut():
        async with budget.lease("a"):
            del machine.taken["a"]
            raise StreamCut("it died", endpoint="a")

    machine = Machine(10, a=6)
    async with machine.lending() as budget:
        with pytest.raises(StreamCut):
            await call_that_is_cut()
        await until_idle()
        assert residents(budget) == {}

        await use(budget, "a")
        assert machine.log == ["load a", "load a"]


@virtually
async def test_a_server_that_has_died_keeps_nobody_from_its_room():
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


# --- the end ------------------------------------------------------------------------------------


@virtually
async def test_closing_unloads_everything_even_if_one_stays_but_models_of_servers_of_their_own():
    machine = Machine(10, a=3, b=3, c=3)
    async with machine.lending(stay_loaded=["a"]) as budget:
        for model in "abc":
            await use(budget, model)
        machine.broken.add("unload b")

    assert machine.taken == {"a": 3, "b": 3}
    assert set(budget.ledger.residents) == {"a"}
    assert sorted(machine.log[3:]) == ["unload b", "unload c"]


@pytest.mark.parametrize("held", ["load b", "unload a", ""])
@virtually
async def test_closing_in_the_middle_of_a_move_leaves_nothing_in_memory(held):
    machine = Machine(10, a=6, b=6)
    async with machine.lending() as budget:
        await use(budget, "a")
        await until_idle()
        machine.held[held] = asyncio.Event()
        call = Call(budget, "b")
        await (until_idle() if held else asyncio.sleep(0))
        assert machine.log[-1] == (held or "load a")
        assert not call.began.is_set()
        machine.held[held].set()  # too late: the budget closes now

    with pytest.raises(LoadFailed) as caught:
        await call.task
    assert (caught.value.code, caught.value.endpoint) == ("budget.closed", "b")
    assert machine.taken == {}
    assert machine.log.count("unload a") == 1  # what is on its way out is waited for


@virtually
async def test_a_run_that_is_cancelled_leaves_nothing_in_memory():
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


# --- the trace ----------------------------------------------------------------------------------


@virtually
async def test_loads_evictions_and_waits_are_in_the_trace():
    records = []
    machine = Machine(10, a=6, b=4, c=10)
    async with machine.lending(Tracer(records.append, clock=loop_ns)) as budget:
        await use(budget, "b")
        using = Call(budget, "a")
        await using.began.wait()
        waiting = Call(budget, "c")
        await until_idle()
        await using.end()
        await waiting.end()

    moves = [r for r in records if isinstance(r, SpanStarted) and "track" in r.attributes]
    assert [(r.name, r.attributes["model"]) for r in moves] == [
        *(("load", "b"), ("load", "a"), ("unload", "a"), ("unload", "b"), ("load", "c")),
        ("unload", "c"),
    ]
    assert [r.attributes["need_bytes"] for r in moves if r.name == "load"] == [4, 6, 10]
    reasons = [r.attributes["reason"] for r in moves if r.name == "unload"]
    assert reasons[1:] == ["room for c: a call waits for it, no call is left for 'b'", "end of run"]
    evicted = [r for r in records if isinstance(r, Instant) and r.name == "evict"]
    assert [r.attributes["reason"] for r in evicted] == reasons
    waits = [r for r in records if isinstance(r, SpanStarted) and r not in moves]
    assert [(r.name, r.attributes.get("reason")) for r in waits][-2:] == [
        ("queue", "no room until calls to 'a' end"),
        ("load", None),
    ]
    assert {r.status for r in records if isinstance(r, SpanEnded)} == {"ok"}
    counters = [(r.name, r.unit, r.value) for r in records if isinstance(r, CounterSet)]
    assert counters == [("resident", "bytes", value) for value in (0, 4, 10, 4, 0, 10, 0)]


@virtually
async def test_who_waits_for_a_load_shows_which_it_is_and_one_load_is_in_the_trace():
    records = []
    async with Machine(10, a=6).lending(Tracer(records.append, clock=loop_ns)) as budget:
        for call in [Call(budget, "a") for _ in range(3)]:
            await call.end()

    loads = [r for r in records if isinstance(r, SpanStarted) and r.name == "load"]
    [load] = [r for r in loads if "track" in r.attributes]
    assert [r.attributes["waits_for"] for r in loads if r is not load] == [load.id] * 3


@virtually
async def test_who_waits_for_a_place_when_the_load_is_over_shows_that():
    records = []
    tracer = Tracer(records.append, clock=loop_ns)
    async with Machine(10, a=6, b=6).lending(tracer, a={"slots": 1}) as budget:
        first, second = Call(budget, "a"), Call(budget, "a")
        await first.began.wait()
        await until_idle()
        await first.end()
        await second.end()

    waits = [r for r in records if isinstance(r, SpanStarted) and "track" not in r.attributes]
    assert [r.name for r in waits][-3:] == ["load", "load", "queue"]
    assert waits[-1].attributes["reason"] == "slots: all 1 of 'a' are taken"
    assert waits[-1].attributes["place_of"] == "slots"


# --- several devices ----------------------------------------------------------------------------


class Roomy:
    """A host that always says the same."""

    def __init__(self, report):
        self._report = report

    async def load(self):
        pass

    async def unload(self):
        pass

    async def report(self):
        return self._report

    async def aclose(self):
        pass


@pytest.mark.parametrize(
    ("gpu_bytes", "there"), [(5, {"gpu0": 5, "machine": 3}), (8, {"gpu0": 8}), (None, {"gpu0": 8})]
)
@virtually
async def test_what_a_server_has_no_room_for_on_the_gpu_is_counted_in_the_machine(gpu_bytes, there):
    report = HostReport(resident=True, total_bytes=8, gpu_bytes=gpu_bytes)
    budget = KeepAliveBudget(
        devices=[
            Device(name="machine", capacity_bytes=20),
            Device(name="gpu0", capacity_bytes=10, reserve_bytes=2),
        ],
        tenants=[Tenant(model="a", need={"gpu0": 8})],
        hosts={"a": Roomy(report)},
        tracer=Tracer(clock=loop_ns),
    )
    async with budget.opened():
        await use(budget, "a")
        assert budget.ledger.residents["a"].need == there


class Shared(Machine):
    """Another program's calls have each of our models let go as soon as it is loaded."""

    async def perform(self, action):
        await super().perform(action)
        if action.startswith("load"):
            self.taken.pop(action.removeprefix("load "))


def test_a_model_that_another_program_drives_out_is_called_all_the_same():
    machine = Shared(10, a=6)

    @virtually
    async def calls():
        async with machine.lending() as budget:
            for _ in range(3):
                await use(budget, "a")

    with capture_logs() as logs:
        calls()
    assert machine.log.count("load a") == 1
    assert [one["model"] for one in logs if one["code"] == "budget.server-shared"] == ["a"]


# --- several runs ---------------------------------------------------------------------------------


@virtually
async def test_runs_that_share_a_budget_are_told_of_their_own_nodes_and_expected_together():
    first, second = [], []
    tracer = SharedTracer(clock=loop_ns)
    runs = [Tracer(clock=loop_ns), Tracer(clock=loop_ns)]
    for number, run in enumerate(runs):
        run.run_id = f"run {number}"
    machine = Machine(10, a=6, b=6)
    async with machine.lending(tracer, outlives_runs=True) as budget:
        with (
            tracer.heard_by(runs[0]),
            tracer.heard_by(runs[1]),
            budget.serving("run 0", lend=first.append, max_parallel=1),
            budget.serving("run 1", lend=second.append, max_parallel=1),
        ):
            budget.expect(one_after_another("a"), run="run 0")
            budget.expect(one_after_another("b"), run="run 1")
            assert budget.forecast.models == {"a", "b"}
            assert not budget.forecast.is_complete, "another run may come"
            assert budget.forecast.strands[0] is budget.forecast.strands[0], "named once"
            with runs[0].span("node", node="draft"):
                held = Call(budget, "a")
            await until_idle()
            waiting = []
            for run, rows in zip(runs, (2, 3), strict=True):
                for row in range(rows):
                    with run.span("node", node=f"rows[{row}]"):
                        waiting.append(Call(budget, "b"))
            await until_idle()
            assert (first[-1], second[-1]) == (2, 3)
            for call in (held, *waiting):
                await call.end()
        budget.expect(one_after_another("a"), run="run 1")
        assert budget.forecast.models == set(), "of runs that are over"
        await until_idle()
        assert residents(budget) == {"b": 0}, "it stays for the next run"
