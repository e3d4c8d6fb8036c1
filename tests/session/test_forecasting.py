"""The forecast of a run as its nodes begin, ask and end; how many rounds loops usually take."""

from __future__ import annotations

import asyncio
import itertools
import json
from functools import partial

import pytest
from scripted_judge import judge
from session_runs import fail, pipeline_of, run, settings_of

from harness import Pipeline, Retry, Run, ScriptedBackend
from harness.errors import ServerError
from harness.graph import execute
from harness.residency import Device, HostReport, KeepAliveBudget, Leased, Tenant
from harness.session import open_session, read_earlier_run
from harness.session.cast import Cast
from harness.session.forecasting import Forecaster
from harness.session.uses import uses_of
from harness.session.usual_rounds import NOTHING_USUAL, UsualRounds, usual_rounds
from harness.trace import AUDIT_LOG, ManualClock, Tracer, monotonic

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
    pipeline,
    tmp_path,
    *,
    backends,
    expect,
    usual=NOTHING_USUAL,
    earlier=None,
    parallel_calls=None,
    **inputs,
):
    """Runs a pipeline, its forecast told to whoever is given."""
    # What is kept for a resume is kept in threads, and no two runs then take the same time.
    settings = settings_of(tmp_path, trace={"content": "none", "durability": "exit"})
    async with open_session(
        settings, name=pipeline.name, environment={}, backends=backends
    ) as session:
        cast = Cast(roles=session.roles, usual=usual)
        forecaster = Forecaster(pipeline, uses_of(pipeline), cast=cast, expect=expect)
        return await execute(
            pipeline,
            inputs,
            run_of=lambda call: Run(session, call, foresight=forecaster.foresight(call.label)),
            tracer=session.trace,
            watcher=forecaster,
            earlier=earlier,
            parallel_calls=parallel_calls,
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
    async def topics(run: Run) -> list[str]:
        return (await run.chat("planner", "a b")).split()

    def cleaned(topics: list[str]) -> list[str]:
        return topics

    async def sections(run: Run, topic: str) -> str:
        return await run.chat("critic", await run.chat("producer", topic))

    async def text(run: Run, sections: list[str]) -> str:
        return await run.chat("editor", " ".join(sections))

    pipeline = pipeline_of(topics, cleaned)
    pipeline.node(each={"topic": "cleaned"})(sections)
    pipeline.node(text)
    watched, ended = watch(pipeline)
    assert ended.outputs["text"] == "A B"
    behind = "text: editor < sections sections[0] sections[1]"
    both = f"sections[0]: producer critic; sections[1]: producer critic; {behind}"
    drafted = f"sections[0]: critic; sections[1]: critic; {behind}"
    assert watched.seen == {
        "planner a b": "topics: planner; sections: producer critic < topics; "
        "text: editor < sections",
        "producer A": both,
        "producer B": both,
        "critic A": drafted,
        "critic B": drafted,
        "editor A B": "text: editor",
    }


def test_what_is_not_run_is_not_expected_any_more(watch):
    pipeline = Pipeline("some")

    @pipeline.node
    async def first(run: Run) -> str:
        return await run.chat("planner", "no")

    @pipeline.node(when=lambda first: first == "yes")
    async def second(run: Run, first: str) -> str:
        return await run.chat("critic", first)

    @pipeline.node(on_error="skip")
    async def third(run: Run, first: str) -> str:
        await run.chat("producer", first)
        raise ValueError("no")

    @pipeline.node
    async def fourth(run: Run, third: str) -> str:
        return await run.chat("editor", third)

    @pipeline.node
    async def fifth(run: Run, first: str) -> str:
        await run.chat("producer", "x")
        return await run.chat("producer", "y")

    watched, ended = watch(pipeline)
    assert {one.node for one in ended.skips} == {"second", "third", "fourth"}
    assert watched.seen["planner no"] == (
        "first: planner; second: critic < first; third: producer < first; fourth: editor < third; "
        "fifth: producer < first"
    )
    assert watched.seen["producer NO"] == "third: producer; fourth: editor < third; fifth: producer"
    assert watched.seen["producer y"] == "fifth: producer"


def test_a_further_attempt_asks_all_of_it_again(watch):
    async def node(run: Run) -> str:
        await run.chat("producer", "a" if "producer a" not in watched.seen else "b")
        text = await run.chat("critic", "a" if "critic a" not in watched.seen else "b")
        if text == "A":
            raise ServerError("down", endpoint="critic")
        return text

    watched = Watched()
    watch(pipeline_of(node, retry=Retry(2, first_delay_s=0.0)), watched)
    assert list(watched.seen.values()) == ["node: producer critic", "node: critic"] * 2


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

    watched, _ = watch(pipeline_of(node))
    assert watched.seen == {
        "producer a": "node: producer planner critic editor",
        "planner A": "node: planner producer critic editor",
        "critic a": "node: critic editor",
        "editor a": "node: editor",
    }


def test_as_long_as_a_node_may_ask_who_knows_what_no_model_is_let_go(watch):
    async def second(run: Run, first: str, role: str = "critic") -> str:
        return await run.chat(role, "b")

    watched, _ = watch(pipeline_of(first, second, third), role="planner")
    assert list(watched.seen.values()) == [
        "first: producer; second: critic < first; third: editor < second; ...",
        "second: planner critic; third: editor < second; ...",
        "third: editor",
    ]


ROUND = "producer evaluator"
USUAL = {
    "all rounds, until it ends": (
        {},
        [
            f"text: {ROUND} {ROUND} {ROUND} editor",
            f"text: evaluator {ROUND} {ROUND} editor",
            f"text: {ROUND} {ROUND} editor",
            f"text: evaluator {ROUND} editor",
            "text: editor",
        ],
    ),
    "the usual round, and then one by one": (
        {"answer": 1},
        [
            f"text: {ROUND} editor",
            "text: evaluator editor; ...",  # if it goes on, the producer is asked again
            f"text: {ROUND} editor",
            "text: evaluator editor; ...",
            "text: editor",
        ],
    ),
}


@pytest.mark.parametrize(("by_rubric", "expected"), USUAL.values(), ids=USUAL)
def test_of_a_loop_the_rounds_that_are_left_are_expected(watch, by_rubric, expected):
    moments, scores = [], judge(3.0, 9.5)

    async def text(run: Run) -> str:
        result = await run.wiggum("Write of the sea.", rubric="answer", max_rounds=3)
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
    _, ended = watch(pipeline_of(text), watched, usual=UsualRounds(by_rubric=by_rubric))
    assert ended.outputs["text"].endswith("passed")
    assert moments == expected


def test_what_an_earlier_part_of_the_run_gave_is_never_expected(watch, tmp_path):
    is_well = False
    pipeline = pipeline_of(first)

    @pipeline.node(each={"word": "words"})
    async def second(run: Run, word: str, first: str) -> str:
        return await run.chat("critic", word)

    @pipeline.node
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


# --- who gets to know -----------------------------------------------------------------------------


def test_a_runs_budget_is_told_and_what_earlier_runs_took_counts(tmp_path):
    told, rounds = [], []

    async def first(run: Run) -> str:
        text = await run.chat("planner", "a")
        told.append(said(run._session.budget._forecast) if run._session.budget else run._foresight)
        return text

    async def second(run: Run, first: str) -> str:
        result = await run.wiggum(first, rubric="answer", draft=first)
        rounds.append(len(result.rounds))
        return result.text

    for budget in ({"capacity": "1 GiB"}, {"capacity": "1 GiB"}, {}):
        settings = settings_of(tmp_path, budget=budget)
        run(pipeline_of(first, second), settings, backends=Watched(judge(9.5)).backends)
    assert told == [  # and a node that looks behind its run may do anything
        "first: planner; second: evaluator producer evaluator producer evaluator < first; ...",
        "first: planner; second: evaluator producer evaluator < first; ...",
        None,  # without a budget nobody looks ahead
    ]
    assert rounds[0] == 2


# --- what it is good for --------------------------------------------------------------------------


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
        backends = {tag: Leased(echo, budget=budget, model=tag) for tag in hosts}
        async with budget.opened():
            return await run_watched(
                pipeline, tmp_path, backends=backends, expect=partial(tell, budget), **inputs
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
    pipeline.node(each={"number": "numbers"})(texts)
    return pipeline


@pytest.mark.slow  # it waits for moments to pass
def test_with_the_forecast_models_that_take_turns_are_loaded_once_a_round(tmp_path):
    def loads(**how):
        how = {"room_for": 1, "clock": GoingOn(), "numbers": list(range(6)), **how}
        return loads_in(drafts(6), tmp_path, "producer", "evaluator", **how)

    assert loads() == 4
    assert loads(tell=lambda _budget, _forecast: None) > 2 * 4


async def ask_both(run: Run, first: str, second: str) -> None:
    for _ in range(5):
        await run.chat(first, "")
        await run.chat(second, "")


async def side_by_side(run: Run) -> None:
    await asyncio.gather(ask_both(run, "producer", "critic"), ask_both(run, "planner", "editor"))


async def in_lambdas(run: Run) -> None:
    write = lambda: run.chat("producer", "")  # noqa: E731
    judge = lambda: run.chat("critic", "")  # noqa: E731
    for _ in range(5):
        await write()
        await judge()


@pytest.mark.parametrize(("node", "most"), [(side_by_side, 4), (in_lambdas, 3)])
def test_a_source_that_was_misread_costs_a_load_at_most(tmp_path, node, most):
    assert loads_in(pipeline_of(node), tmp_path, *ROLES[:-1], room_for=4) <= most


# --- how many rounds loops usually take ----------------------------------------------------------

numbers = itertools.count()


def line(*loops, pipeline="brief", final="PASS", run_id=None):
    """A line as far as it is read: loops by their rubric and number of rounds."""
    rounds = [
        {"rubric": rubric, "rounds": [{"round": n + 1} for n in range(count)]}
        for rubric, count in loops
    ]
    run_id = run_id or f"run {next(numbers)}"
    return json.dumps({"run_id": run_id, "pipeline": pipeline, "final": final, "loops": rounds})


def usual(tmp_path, *lines):
    path = tmp_path / AUDIT_LOG
    path.write_text("".join(f"{one}\n" for one in lines), encoding="utf-8")
    return usual_rounds(path, "brief")


MEDIANS = {
    "no runs": ([], None),
    "the higher of two in the middle": ([1, 2], 2),
    "the last twenty runs": ([5] * 30 + [1] * 20, 1),
    "not fewer": ([5] * 30 + [1] * 9, 5),
}


@pytest.mark.parametrize(("rounds", "expected"), MEDIANS.values(), ids=MEDIANS)
def test_the_median_of_the_last_runs_is_usual(tmp_path, rounds, expected):
    assert usual(tmp_path, *(line(("brief", one)) for one in rounds)).any_rubric == expected


def test_what_does_not_tell_is_left_out(tmp_path):
    odd = ['{"run_id": "of the series"}', '{"run_id": "damaged", "pipe', ""]
    others = [line(("brief", 9), final=final) for final in ("ERROR", "WAITING", "STOPPED")]
    others += [line(("brief", 9), pipeline="other"), line(("brief", 0)), line()]
    assert usual(tmp_path, line(("brief", 2)), *others, *odd).any_rubric == 2
    # Of a run that was resumed, the last line counts.
    parts = [line(("brief", rounds), run_id="one") for rounds in (1, 1, 1, 3)]
    assert usual(tmp_path, *parts).any_rubric == 3
    failed = line(("brief", 1), run_id="one", final="ERROR")
    assert usual(tmp_path, *parts, failed).any_rubric is None


def test_a_log_that_cannot_be_read_is_no_fault(tmp_path):
    for path in (tmp_path / "none.jsonl", tmp_path):
        assert usual_rounds(path, "brief") == NOTHING_USUAL
