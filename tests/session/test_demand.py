"""Calls that are still to be made, as declared."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from manual_clock import ManualClock
from scripted_judge import judge
from session_runs import fail, pipeline_of, run, settings_of

from harness import Pipeline, Retry, Run, ScriptedBackend
from harness.errors import ServerError
from harness.graph import execute
from harness.graph.reuse import Shared
from harness.graph.state import Places
from harness.residency import Device, HostReport, KeepAliveBudget, Tenant
from harness.session import read_earlier_run
from harness.session.demand import Forecaster
from harness.session.open_run import RunPlan, open_run
from harness.trace import Tracer, monotonic

ROLES = ("planner", "producer", "critic", "editor", "evaluator")


def said(forecast):
    """A forecast in a line: `planner` uses, `<` what it comes behind."""
    strands = []
    for strand in forecast.strands:
        behind = f" < {' '.join(sorted(strand.after))}" if strand.after else ""
        strands.append(f"{strand.name}: {' '.join(strand.uses)}{behind}")
    return "; ".join([*strands, "..." if not forecast.is_complete else ""]).removesuffix("; ")


class Watched:
    """Models that answer in capitals, and what the forecast says while they do.

    Attributes:
        seen: By each call's model and prompt, what the forecast said.
        told: All that was ever said.
    """

    def __init__(self, evaluator=None):
        self.seen, self.told = {}, []
        self.backends = {role: ScriptedBackend(self.reply) for role in ROLES[:-1]}
        if evaluator is not None:
            self.backends["evaluator"] = evaluator

    @property
    def now(self):
        return said(self.told[-1]) if self.told else "nothing"

    def reply(self, request):
        prompt = request.messages[-1].content
        self.seen[f"{request.model} {prompt}" if len(prompt) < 20 else request.model] = self.now
        return prompt.upper() if len(prompt) < 20 else f"Draft {len(self.seen)}."


async def run_watched(
    pipeline, tmp_path, *, backends, expect, earlier=None, max_parallel=None, **inputs
):
    """Runs a pipeline, its forecast told to whoever is given."""
    # What is kept for a resume is kept in threads, and no two runs then take the same time.
    settings = settings_of(tmp_path, trace={"content": "none", "durability": "exit"})
    plan = RunPlan(graph=pipeline, settings=settings, backends=backends)
    async with open_run(plan, environment={}) as session:
        forecaster = Forecaster(pipeline, roles=session.casting.roles, expect=expect)
        return await execute(
            pipeline,
            inputs,
            Shared(
                run_of=lambda call: Run(session, call, demand=forecaster.call(call.label)),
                tracer=session.trace,
                earlier=earlier,
                places=Places(max_parallel),
            ),
            watcher=forecaster,
        )


@pytest.fixture
def watch(tmp_path):
    def watch(pipeline, watched=None, **how):
        watched = watched or Watched()
        how = {"backends": watched.backends, "expect": watched.told.append, **how}
        return watched, asyncio.run(run_watched(pipeline, tmp_path, **how))

    return watch


# --- node by node ---------------------------------------------------------------------------------


async def first(run: Run) -> str:
    return await run.chat("producer", "a")


async def third(run: Run, second: str) -> str:
    return await run.chat("editor", "c")


def test_at_each_moment_the_forecast_says_what_is_still_to_come(watch):
    pipeline = Pipeline("some")
    side_by_side = asyncio.Barrier(2)

    @pipeline.node(models=["planner"])
    async def topics(run: Run) -> list[str]:
        return (await run.chat("planner", "a b")).split()

    @pipeline.node
    def cleaned(topics: list[str]) -> list[str]:
        return topics

    @pipeline.node(each={"topic": "cleaned"}, models=["producer", "critic"])
    async def sections(run: Run, topic: str) -> str:
        draft = await run.chat("producer", topic)
        await side_by_side.wait()
        criticism = await run.chat("critic", draft)
        await side_by_side.wait()
        return criticism

    @pipeline.node(models=["editor"])
    async def text(run: Run, sections: list[str]) -> str:
        return await run.chat("editor", " ".join(sections))

    watched, ended = watch(pipeline)
    assert ended.outputs["text"] == "A B"
    behind = "text: editor < sections sections[0] sections[1]"
    both = f"sections[0]: producer critic; sections[1]: producer critic; {behind}"
    # By its declaration alone, a node may go back and forth.
    drafted = f"sections[0]: critic producer; sections[1]: critic producer; {behind}"
    assert watched.seen == {
        "planner a b": "topics: planner; sections: producer critic < topics; "
        "text: editor < sections topics",
        "producer A": both,
        "producer B": both,
        "critic A": drafted,
        "critic B": drafted,
        "editor A B": "text: editor",
    }


def test_what_is_not_run_is_not_expected_any_more(watch):
    pipeline = Pipeline("some")

    @pipeline.node(models=["planner"])
    async def first(run: Run) -> str:
        return await run.chat("planner", "no")

    @pipeline.node(when=lambda first: first == "yes", models=["critic"])
    async def second(run: Run, first: str) -> str:
        return await run.chat("critic", first)

    @pipeline.node(on_error="skip", models=["producer"])
    async def third(run: Run, first: str) -> str:
        await run.chat("producer", first)
        raise ValueError("no")

    @pipeline.node(models=["editor"])
    async def fourth(run: Run, third: str) -> str:
        return await run.chat("editor", third)

    watched, ended = watch(pipeline)
    assert {one.node for one in ended.skips} == {"second", "third", "fourth"}
    assert watched.seen["planner no"] == (
        "first: planner; second: critic < first; third: producer < first; "
        "fourth: editor < first third"
    )
    assert watched.seen["producer NO"] == "third: producer; fourth: editor < third"


def test_a_further_attempt_asks_all_of_it_again(watch):
    async def node(run: Run) -> str:
        await run.chat("producer", "a" if "producer a" not in watched.seen else "b")
        text = await run.chat("critic", "a" if "critic a" not in watched.seen else "b")
        if text == "A":
            raise ServerError("down", endpoint="critic")
        return text

    watched = Watched()
    pipeline = pipeline_of(node, models=["producer", "critic"], retry=Retry(2, first_delay_s=0.0))
    watch(pipeline, watched)
    moments = ["node: producer critic", "node: critic producer"]
    assert list(watched.seen.values()) == moments * 2


def test_what_is_nested_in_a_node_belongs_to_its_strand(watch):
    async def loud(run: Run, word: str) -> str:
        return await run.chat("critic", word)

    inner = pipeline_of(loud)

    async def node(run: Run) -> object:
        async def step(word: str, run: Run) -> str:
            return await run.chat("planner", await run.chat("producer", word))

        mapped = await run.map(step, ["a"])
        called = await run.call(inner, word=mapped[0].lower())
        return await run.chat("editor", str(called.result).lower())

    pipeline = pipeline_of(node, models=["producer", "planner", "critic", "editor"])
    watched, _ = watch(pipeline)
    assert watched.seen == {
        "producer a": "node: producer planner critic editor",
        "planner A": "node: planner critic editor producer",
        "critic a": "node: critic editor producer planner",
        "editor a": "node: editor producer planner critic",
    }


def test_as_long_as_a_node_may_ask_anything_no_model_is_let_go(watch):
    async def second(run: Run, first: str, role: str = "critic") -> str:
        return await run.chat(role, "b")

    pipeline = pipeline_of(second)
    pipeline.node(models=["producer"])(first)
    pipeline.node(models=["editor"])(third)
    watched, _ = watch(pipeline, role="planner")
    assert list(watched.seen.values()) == [
        "first: producer; third: editor < first second; ...",
        "second: planner; third: editor < second; ...",
        "third: editor",
    ]


def test_a_call_that_was_not_expected_comes_first_and_lets_no_model_go(watch):
    async def node(run: Run) -> str:
        await run.chat("producer", "a")
        await run.chat("critic", "b")
        return await run.chat("producer", "c")

    pipeline = pipeline_of(node, models=["producer", "editor"])
    watched, _ = watch(pipeline)
    assert list(watched.seen.values()) == [
        "node: producer editor",
        "node: critic producer editor; ...",
        "node: producer editor critic; ...",
    ]


ROUND = "producer evaluator"


def test_of_a_loop_the_rounds_that_are_left_are_expected(watch):
    moments, scores = [], judge(3.0, 9.5)

    async def text(run: Run) -> str:
        source = "The sea is wide, and 1 or 2, 3, 4, 5, 6, 7 ships are on it."
        result = await run.wiggum(
            "Write of the sea.", rubric="answer", sources=[source], max_rounds=3
        )
        return await run.chat("editor", "end") + result.stop_reason

    def judging(request):
        if moments[-1] != watched.now:
            moments.append(watched.now)
        return scores._next(request)

    def drafting(_):
        moments.append(watched.now)
        return f"The sea is wide, and {len(moments)} ships are on it."

    watched = Watched(evaluator=ScriptedBackend(judging))
    watched.backends |= {role: ScriptedBackend(drafting) for role in ("producer", "editor")}
    pipeline = pipeline_of(text, models=["producer", "evaluator", "editor"])
    _, ended = watch(pipeline, watched)
    assert ended.outputs["text"].endswith("passed")
    assert moments == [
        f"text: {ROUND} {ROUND} {ROUND} editor",
        f"text: evaluator {ROUND} {ROUND} editor",
        f"text: {ROUND} {ROUND} editor",
        f"text: evaluator {ROUND} editor",
        "text: editor",
    ]


def test_what_an_earlier_part_of_the_run_gave_is_never_expected(watch, tmp_path):
    is_well = False
    pipeline = pipeline_of(first, models=["producer"])

    @pipeline.node(each={"word": "words"}, models=["critic"])
    async def second(run: Run, word: str, first: str) -> str:
        return await run.chat("critic", word)

    @pipeline.node(models=["editor"])
    async def third(run: Run, second: list[str]) -> str:
        text = await run.chat("editor", "c")
        if not is_well:
            raise ValueError("no")
        return text

    inputs = {"words": ["a", "b"]}
    failed = fail(pipeline, settings_of(tmp_path), inputs, backends=Watched().backends)
    is_well = True
    earlier = read_earlier_run(failed.result.files.journal).outputs
    watched, ended = watch(pipeline, earlier=earlier, **inputs)
    assert ended.reused == ("first", "second[0]", "second[1]")
    assert [said(one) for one in watched.told] == ["third: editor", "..."]


# --- what a run's budget is told ---------------------------------------------------------------


def test_a_runs_budget_is_told_what_nodes_declare_and_nothing_of_earlier_runs(tmp_path):
    told = []

    @pipeline_of
    async def first(run: Run) -> str:
        text = await run.chat("planner", "a")
        budget = run._opened.budget
        told.append(budget and said(budget.forecast).replace(f"{run.id} ", ""))
        return text

    @first.node(models=["producer", "evaluator"])
    async def second(run: Run, first: str) -> str:
        revised = await run.wiggum(
            first, rubric="answer", draft=first, sources=[first], max_rounds=2
        )
        return revised.text

    for budget in ({"capacity": "1 GiB"}, {"capacity": "1 GiB"}, {}):
        settings = settings_of(tmp_path, budget=budget)
        run(first, settings, backends=Watched(judge(9.5)).backends)
    assert told == [
        *["first: planner; second: producer evaluator < first; ..."] * 2,
        None,  # without a budget there is no forecast
    ]


# --- what it is good for --------------------------------------------------------------------------


class Leasing:
    """A backend whose calls hold a lease on their model."""

    def __init__(self, backend, budget):
        self._backend, self._budget = backend, budget

    async def chat(self, request):
        async with self._budget.lease(request.model):
            return await self._backend.chat(request)

    async def aclose(self):
        pass


class CountedHost:
    """Loads a model in ten seconds of its clock, and at once."""

    def __init__(self, clock):
        self.loads, self._clock, self._is_loaded = 0, clock, False

    async def load(self):
        self.loads += 1
        self._clock.advance(ns=10 * 10**9)
        self._is_loaded = True
        await asyncio.sleep(0)

    async def unload(self):
        self._is_loaded = False

    async def report(self):
        return HostReport(resident=self._is_loaded, total_bytes=6 if self._is_loaded else 0)

    async def aclose(self):
        """Nothing to release."""


def loads_in(
    pipeline, tmp_path, *tags, room_for, clock=None, tell=KeepAliveBudget.expect, **inputs
):
    """How often models are loaded, of which so many have room beside each other."""
    clock = clock or ManualClock()
    hosts = {tag: CountedHost(clock) for tag in tags}

    async def main():
        budget = KeepAliveBudget(
            devices=[Device(name="machine", capacity_bytes=6 * room_for)],
            tenants=[Tenant(model=tag, need={"machine": 6}, load_s=10.0) for tag in hosts],
            hosts=hosts,
            tracer=Tracer(clock=clock),
            max_wait_s=600.0,
        )
        echo = ScriptedBackend(lambda request: request.messages[-1].content)
        backends = {tag: Leasing(echo, budget) for tag in hosts}
        async with budget.opened():
            with budget.serving("", lend=lambda _count: None, max_parallel=None):
                return await run_watched(
                    pipeline,
                    tmp_path,
                    backends=backends,
                    expect=partial(tell, budget, run=""),
                    **inputs,
                )

    assert asyncio.run(main()).status == "finished"
    return sum(host.loads for host in hosts.values())


class GoingOn(ManualClock):
    """Goes on by itself, and can be set forward."""

    def __call__(self):
        return super().__call__() + monotonic()


def drafts(count):
    """Drafts, each revised once; each begins a while after the one before it was written."""
    turns = [asyncio.Event() for _ in range(count)]

    async def texts(run: Run, number: int) -> str:
        if number:
            await turns[number - 1].wait()
            # A model that nobody uses for so long is not kept for what nobody has said will come.
            await asyncio.sleep(0.1)
        text = await run.chat("producer", f"{number}")
        turns[number].set()
        await run.chat("evaluator", text)
        text = await run.chat("producer", f"{number} again")
        return await run.chat("evaluator", text)

    pipeline = Pipeline("drafts")
    pipeline.node(each={"number": "numbers"}, models=["producer", "evaluator"])(texts)
    return pipeline


@pytest.mark.slow  # it waits for moments to pass
def test_with_the_forecast_models_that_take_turns_are_loaded_once_a_round(tmp_path):
    def loads(**how):
        how = {"room_for": 1, "clock": GoingOn(), "numbers": list(range(6)), **how}
        return loads_in(drafts(6), tmp_path, "producer", "evaluator", **how)

    assert loads() == 4
    assert loads(tell=lambda *_told, **_run: None) > 2 * 4


async def ask_both(run: Run, first: str, second: str) -> None:
    for _ in range(5):
        await run.chat(first, "")
        await run.chat(second, "")


async def side_by_side(run: Run) -> None:
    await asyncio.gather(ask_both(run, "producer", "critic"), ask_both(run, "planner", "editor"))


def test_alternation_that_was_not_expected_costs_no_load_twice(tmp_path):
    pipeline = pipeline_of(side_by_side)
    assert loads_in(pipeline, tmp_path, *ROLES[:-1], room_for=4) == 4
