"""The forecast of a run, as its nodes begin, ask and end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
from scripted_judge import judge

from harness import NodeFailed, Pipeline, Retry, Run, ScriptedBackend, Settings
from harness.errors import ServerError
from harness.graph import Earlier, Execution, execute
from harness.inference import Backend, ChatRequest, Endpoint
from harness.residency import Device, Forecast, HostReport, KeepAliveBudget, Leased, Tenant
from harness.session import open_session, read_earlier_run
from harness.session.cast import Cast
from harness.session.forecasting import Forecaster
from harness.session.roles import Roles
from harness.session.settings import BudgetSettings, TraceSettings
from harness.session.uses import uses_of
from harness.session.usual_rounds import NOTHING_USUAL, UsualRounds
from harness.trace import Tracer, monotonic

ROLES = ("planner", "producer", "critic", "editor", "evaluator")


def said(forecast: Forecast) -> str:
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

    def __init__(self, evaluator: Backend | None = None) -> None:
        self.seen: dict[str, str] = {}
        self.told: list[Forecast] = []
        self.backends: dict[str, Backend] = {role: self._answering() for role in ROLES[:-1]}
        if evaluator is not None:
            self.backends["evaluator"] = evaluator

    @property
    def now(self) -> str:
        return said(self.told[-1]) if self.told else "nothing"

    def reply(self, request: ChatRequest) -> str:
        prompt = request.messages[-1].content
        self.seen[f"{request.model} {prompt}" if len(prompt) < 20 else request.model] = self.now
        return prompt.upper() if len(prompt) < 20 else f"Draft {len(self.seen)}."

    def _answering(self) -> ScriptedBackend:
        return ScriptedBackend(self.reply)


async def run_watched(
    pipeline: Pipeline,
    tmp_path: Path,
    *,
    backends: Mapping[str, Backend],
    expect: Callable[[Forecast], None],
    usual: UsualRounds = NOTHING_USUAL,
    earlier: Earlier | None = None,
    parallel_calls: int | None = None,
    **inputs: object,
) -> Execution:
    """Runs a pipeline, its forecast told to whoever is given."""
    # What is kept for a resume is kept in threads, and no two runs then take the same time.
    trace = TraceSettings(content="none", durability="exit")
    settings = Settings(traces=tmp_path, trace=trace)
    async with open_session(
        settings, name=pipeline.name, environment={}, backends=backends
    ) as session:
        forecaster = Forecaster(
            pipeline,
            uses_of(pipeline),
            cast=Cast(roles=session.roles, usual=usual),
            expect=expect,
        )
        return await execute(
            pipeline,
            inputs,
            run_of=lambda call: Run(session, call, foresight=forecaster.foresight(call.label)),
            tracer=session.trace,
            watcher=forecaster,
            earlier=earlier,
            parallel_calls=parallel_calls,
        )


def watch(
    pipeline: Pipeline, tmp_path: Path, watched: Watched | None = None, **how: object
) -> tuple[Watched, Execution]:
    watched = watched or Watched()
    ended = asyncio.run(
        run_watched(
            pipeline, tmp_path, backends=watched.backends, expect=watched.told.append, **how
        )
    )
    return watched, ended


# --- node by node ---------------------------------------------------------------------------------


def briefing() -> Pipeline:
    pipeline = Pipeline("briefing")

    @pipeline.node
    async def topics(run: Run) -> list[str]:
        return (await run.chat("planner", "a b")).split()

    @pipeline.node
    def cleaned(topics: list[str]) -> list[str]:
        return topics

    @pipeline.node(each={"topic": "cleaned"})
    async def sections(run: Run, topic: str) -> str:
        return await run.chat("critic", await run.chat("producer", topic))

    @pipeline.node
    async def text(run: Run, sections: list[str]) -> str:
        return await run.chat("editor", " ".join(sections))

    return pipeline


def test_at_each_moment_the_forecast_says_what_is_still_to_come(tmp_path: Path) -> None:
    watched, ended = watch(briefing(), tmp_path)
    assert ended.outputs["text"] == "A B"
    assert watched.seen == {
        "planner a b": "topics: planner; sections: producer critic < topics; "
        "text: editor < sections",
        "producer A": "sections[0]: producer critic; sections[1]: producer critic; "
        "text: editor < sections sections[0] sections[1]",
        "producer B": "sections[0]: producer critic; sections[1]: producer critic; "
        "text: editor < sections sections[0] sections[1]",
        "critic A": "sections[0]: critic; sections[1]: critic; "
        "text: editor < sections sections[0] sections[1]",
        "critic B": "sections[0]: critic; sections[1]: critic; "
        "text: editor < sections sections[0] sections[1]",
        "editor A B": "text: editor",
    }


def test_before_the_first_call_and_when_all_is_over_nothing_is_known(tmp_path: Path) -> None:
    pipeline = Pipeline("slow")

    @pipeline.node
    async def first(run: Run) -> str:
        return await run.chat("producer", "a")

    @pipeline.node
    def second(first: str) -> str:
        return first

    watched, _ = watch(pipeline, tmp_path)
    # While no more is asked, but code is at work, models can go.
    assert [said(one) for one in watched.told] == ["first: producer", "", "..."]


def test_while_items_are_still_to_come_one_strand_stands_for_them(tmp_path: Path) -> None:
    pipeline = Pipeline("items")

    @pipeline.node(each={"word": "words"})
    async def loud(run: Run, word: str) -> str:
        return await run.chat("producer", word)

    watched, _ = watch(pipeline, tmp_path, words=["a", "b", "c"], parallel_calls=2)
    assert watched.seen == {
        "producer a": "loud: producer; loud[0]: producer; loud[1]: producer",
        "producer b": "loud: producer; loud[0]: producer; loud[1]: producer",
        "producer c": "loud[2]: producer",
    }


def test_what_is_not_run_is_not_expected_any_more(tmp_path: Path) -> None:
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

    watched, ended = watch(pipeline, tmp_path)
    assert {one.node for one in ended.skips} == {"second", "third", "fourth"}
    assert watched.seen["planner no"] == (
        "first: planner; second: critic < first; third: producer < first; fourth: editor < third; "
        "fifth: producer < first"
    )
    assert watched.seen["producer NO"] == (
        "third: producer; fourth: editor < third; fifth: producer"
    )
    assert watched.seen["producer y"] == "fifth: producer"


def test_a_further_attempt_asks_all_of_it_again(tmp_path: Path) -> None:
    pipeline = Pipeline("again")

    @pipeline.node(retry=Retry(2, first_delay_s=0.0))
    async def node(run: Run) -> str:
        await run.chat("producer", "a" if "producer a" not in watched.seen else "b")
        text = await run.chat("critic", "a" if "critic a" not in watched.seen else "b")
        if text == "A":
            raise ServerError("down", endpoint="critic")
        return text

    watched = Watched()
    watch(pipeline, tmp_path, watched)
    assert watched.seen == {
        "producer a": "node: producer critic",
        "critic a": "node: critic",
        "producer b": "node: producer critic",
        "critic b": "node: critic",
    }


def test_what_is_nested_in_a_node_belongs_to_its_strand(tmp_path: Path) -> None:
    inner, outer = Pipeline("inner"), Pipeline("outer")

    @inner.node
    async def loud(run: Run, word: str) -> str:
        return await run.chat("critic", word)

    @outer.node
    async def node(run: Run) -> object:
        async def step(word: str, run: Run) -> str:
            return await run.chat("planner", await run.chat("producer", word))

        mapped = await run.map(step, ["a"])
        called = await run.call(inner, word=mapped[0].lower())
        return await run.chat("editor", str(called.result).lower())

    watched, _ = watch(outer, tmp_path)
    assert watched.seen == {
        "producer a": "node: producer planner critic editor",
        "planner A": "node: planner producer critic editor",
        "critic a": "node: critic editor",
        "editor a": "node: editor",
    }


def test_as_long_as_a_node_may_ask_who_knows_what_no_model_is_let_go(tmp_path: Path) -> None:
    pipeline = Pipeline("unknown")

    @pipeline.node
    async def first(run: Run) -> str:
        return await run.chat("producer", "a")

    @pipeline.node
    async def second(run: Run, first: str, role: str = "critic") -> str:
        return await run.chat(role, "b")

    @pipeline.node
    async def third(run: Run, second: str) -> str:
        return await run.chat("editor", "c")

    watched, _ = watch(pipeline, tmp_path, role="planner")
    assert watched.seen == {
        "producer a": "first: producer; second: critic < first; third: editor < second; ...",
        "planner b": "second: planner critic; third: editor < second; ...",
        "editor c": "third: editor",
    }


def test_behind_a_node_of_which_nothing_is_known_others_wait_all_the_same(tmp_path: Path) -> None:
    pipeline = Pipeline("unknown")

    @pipeline.node
    async def first(run: Run) -> str:
        return await run.chat("producer", "a")

    @pipeline.node
    async def second(run: Run, first: str, role: str) -> str:
        return await run.chat(role, "b")

    @pipeline.node
    async def third(run: Run, second: str) -> str:
        return await run.chat("editor", "c")

    watched, _ = watch(pipeline, tmp_path, role="planner")
    assert watched.seen == {
        "producer a": "first: producer; third: editor < first second; ...",
        "planner b": "second: planner; third: editor < first second; ...",
        "editor c": "third: editor",
    }


# --- revise loops ---------------------------------------------------------------------------------


def essay(rounds: int) -> Pipeline:
    pipeline = Pipeline("essay")

    @pipeline.node
    async def text(run: Run) -> str:
        result = await run.wiggum("Write of the sea.", rubric="answer", max_rounds=rounds)
        return await run.chat("editor", "end") + result.stop_reason

    return pipeline


@pytest.mark.parametrize(
    ("usual", "expected"),
    [
        pytest.param(
            None,
            [
                "text: producer evaluator producer evaluator producer evaluator editor",
                "text: evaluator producer evaluator producer evaluator editor",
                "text: producer evaluator producer evaluator editor",
                "text: evaluator producer evaluator editor",
                "text: editor",
            ],
            id="all rounds, until it ends",
        ),
        pytest.param(
            1,
            [
                "text: producer evaluator editor",
                "text: evaluator editor; ...",  # if it goes on, the producer is asked again
                "text: producer evaluator editor",
                "text: evaluator editor; ...",
                "text: editor",
            ],
            id="the usual round, and then one by one",
        ),
    ],
)
def test_of_a_loop_the_rounds_that_are_left_are_expected(
    tmp_path: Path, usual: int | None, expected: list[str]
) -> None:
    moments: list[str] = []
    scores = judge(3.0, 9.5)

    def judging(request: ChatRequest) -> str:
        if moments[-1] != watched.now:
            moments.append(watched.now)
        return scores._next(request)

    def drafting(request: ChatRequest) -> str:
        moments.append(watched.now)
        return f"The sea is wide, and {len(moments)} ships are on it."

    watched = Watched(evaluator=ScriptedBackend(judging))
    watched.backends |= {"producer": ScriptedBackend(drafting), "editor": ScriptedBackend(drafting)}
    _, ended = watch(
        essay(3), tmp_path, watched, usual=UsualRounds(by_rubric={"answer": usual} if usual else {})
    )
    assert str(ended.outputs["text"]).endswith("passed")
    assert moments == expected


# --- runs that go on ------------------------------------------------------------------------------


def test_what_an_earlier_part_of_the_run_gave_is_never_expected(tmp_path: Path) -> None:
    pipeline = Pipeline("two-parts")
    is_well = False

    @pipeline.node
    async def first(run: Run) -> str:
        return await run.chat("planner", "a")

    @pipeline.node(each={"word": "words"})
    async def second(run: Run, word: str, first: str) -> str:
        return await run.chat("critic", word)

    @pipeline.node
    async def third(run: Run, second: list[str]) -> str:
        text = await run.chat("editor", "c")
        if not is_well:
            raise ValueError("no")
        return text

    with pytest.raises(NodeFailed) as failed:
        asyncio.run(
            pipeline.run_async(
                {"words": ["a", "b"]},
                settings=Settings(traces=tmp_path),
                backends=Watched().backends,
            )
        )
    is_well = True
    earlier = read_earlier_run(failed.value.result.files.journal).outputs
    watched, ended = watch(pipeline, tmp_path, earlier=earlier, words=["a", "b"])
    assert ended.reused == ("first", "second[0]", "second[1]")
    assert [said(one) for one in watched.told] == ["third: editor", "..."]


# --- who gets to know -----------------------------------------------------------------------------


def test_a_model_that_embeds_passages_stays_as_long_as_the_run() -> None:
    pipeline = Pipeline("notes")

    @pipeline.node
    async def keep(run: Run) -> None:
        await run.remember("text")

    @pipeline.node
    async def text(run: Run, keep: None) -> str:
        return await run.chat("producer", "a")

    async def main() -> list[str]:
        told: list[Forecast] = []
        endpoints = {tag: Endpoint(tag=tag, backend="scripted") for tag in ("producer", "vectors")}
        forecaster = Forecaster(
            pipeline,
            uses_of(pipeline),
            cast=Cast(roles=Roles(endpoints, {"producer": "producer"}), embedder="vectors"),
            expect=told.append,
        )
        for node in ("keep", "text"):
            forecaster.begins(node, None)
            await asyncio.sleep(0)
            forecaster.ends(node, None)
        return [said(one) for one in told]

    assert asyncio.run(main()) == [
        "keep: vectors; text: producer < keep",
        "text: producer; ...",  # what was remembered may still be embedded
    ]


def test_who_only_shortens_long_drafts_is_not_expected_and_not_let_go() -> None:
    pipeline = Pipeline("judged")

    @pipeline.node
    async def text(run: Run) -> object:
        return await run.evaluate("draft", rubric="answer")

    async def main() -> list[str]:
        told: list[Forecast] = []
        endpoints = {tag: Endpoint(tag=tag, backend="scripted") for tag in ("judge", "short")}
        roles = Roles(endpoints, {"evaluator": "judge", "producer": "short"})
        forecaster = Forecaster(
            pipeline,
            uses_of(pipeline),
            cast=Cast(roles=roles.with_evaluators("judge"), summariser="short"),
            expect=told.append,
        )
        forecaster.begins("text", None)
        await asyncio.sleep(0)
        return [said(one) for one in told]

    assert asyncio.run(main()) == ["text: judge; ..."]


def test_a_runs_budget_is_told_and_what_earlier_runs_took_counts(tmp_path: Path) -> None:
    pipeline = Pipeline("told")
    told: list[str] = []
    rounds: list[int] = []

    @pipeline.node
    async def first(run: Run) -> str:
        text = await run.chat("planner", "a")
        budget = run._session.budget
        assert budget is not None
        told.append(said(budget._forecast))
        return text

    @pipeline.node
    async def second(run: Run, first: str) -> str:
        result = await run.wiggum(first, rubric="answer", draft=first)
        rounds.append(len(result.rounds))
        return result.text

    for _ in range(2):
        asyncio.run(
            pipeline.run_async(
                {},
                settings=Settings(traces=tmp_path, budget=BudgetSettings(capacity="1 GiB")),
                backends=Watched(judge(9.5)).backends,
            )
        )
    assert told == [  # and a node that looks behind its run may do anything
        "first: planner; second: evaluator producer evaluator producer evaluator < first; ...",
        "first: planner; second: evaluator producer evaluator < first; ...",
    ]
    assert rounds[0] == 2


def test_without_a_budget_nobody_looks_ahead(tmp_path: Path) -> None:
    pipeline = Pipeline("alone")

    @pipeline.node
    async def text(run: Run) -> bool:
        return run._session.budget is None and run._foresight is None

    settings = Settings(traces=tmp_path)
    assert asyncio.run(
        pipeline.run_async({}, settings=settings, backends=Watched().backends)
    ).result


# --- what it is good for --------------------------------------------------------------------------


class CountedHost:
    """Loads a model in ten seconds of its clock, and at once."""

    def __init__(self, model: str, clock: Clock) -> None:
        self.loads = 0
        self._model = model
        self._clock = clock
        self._is_loaded = False

    async def load(self) -> None:
        self.loads += 1
        self._clock.now_ns += 10_000_000_000
        self._is_loaded = True
        await asyncio.sleep(0)

    async def unload(self) -> None:
        self._is_loaded = False

    async def report(self) -> HostReport | None:
        return HostReport(resident=self._is_loaded, total_bytes=6 if self._is_loaded else 0)

    async def aclose(self) -> None:
        """Nothing to release."""


class Clock:
    """Goes on, and can be set forward."""

    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns + monotonic()


LONGER_THAN_A_MOMENT_S = 0.1
"""A model that nobody uses for so long is not kept for what nobody has said will come."""


def drafts() -> Pipeline:
    """Eight drafts, each revised once; each begins a while after the one before it was written."""
    pipeline = Pipeline("drafts")
    turns = [asyncio.Event() for _ in range(8)]

    @pipeline.node(each={"number": "numbers"})
    async def texts(run: Run, number: int) -> str:
        if number:
            await turns[number - 1].wait()
            await asyncio.sleep(LONGER_THAN_A_MOMENT_S)
        text = await run.chat("producer", f"{number}")
        turns[number].set()
        await run.chat("evaluator", text)
        text = await run.chat("producer", f"{number} again")
        return await run.chat("evaluator", text)

    return pipeline


async def loads_in(
    pipeline: Pipeline,
    tmp_path: Path,
    *tags: str,
    room_for: int,
    tell: Callable[[KeepAliveBudget, Forecast], None] = KeepAliveBudget.expect,
    **inputs: object,
) -> int:
    """How often models are loaded.

    Args:
        pipeline: What is run.
        tmp_path: For the run's files.
        tags: The models; roles are their names.
        room_for: How many of them have room beside each other.
        tell: Tells the budget the forecast, or does not.
        inputs: The pipeline's.
    """
    clock = Clock()
    hosts = {tag: CountedHost(tag, clock) for tag in tags}
    budget = KeepAliveBudget(
        devices=[Device(name="machine", capacity_bytes=6 * room_for)],
        tenants=[Tenant(model=tag, need={"machine": 6}, load_s=10.0) for tag in hosts],
        hosts=hosts,
        tracer=Tracer(clock=clock),
        max_wait_s=600.0,
    )
    backends = {
        tag: Leased(
            ScriptedBackend(lambda request: request.messages[-1].content), budget=budget, model=tag
        )
        for tag in hosts
    }
    async with budget.opened():
        ended = await run_watched(
            pipeline, tmp_path, backends=backends, expect=partial(tell, budget), **inputs
        )
    assert ended.status == "finished"
    return sum(host.loads for host in hosts.values())


def keep_to_oneself(budget: KeepAliveBudget, forecast: Forecast) -> None:
    """Tells nothing."""


def test_with_the_forecast_models_that_take_turns_are_loaded_once_a_round(tmp_path: Path) -> None:
    def loads(tell: Callable[[KeepAliveBudget, Forecast], None]) -> int:
        return asyncio.run(
            loads_in(
                drafts(),
                tmp_path,
                "producer",
                "evaluator",
                room_for=1,
                tell=tell,
                numbers=list(range(8)),
            )
        )

    told, untold = loads(KeepAliveBudget.expect), loads(keep_to_oneself)
    assert told == 4
    assert untold > 2 * told


async def ask_both(run: Run, first: str, second: str) -> None:
    for _ in range(5):
        await run.chat(first, "")
        await run.chat(second, "")


def side_by_side() -> Pipeline:
    pipeline = Pipeline("side by side")

    @pipeline.node
    async def text(run: Run) -> None:
        await asyncio.gather(
            ask_both(run, "producer", "critic"), ask_both(run, "planner", "editor")
        )

    return pipeline


def in_lambdas() -> Pipeline:
    pipeline = Pipeline("in lambdas")

    @pipeline.node
    async def text(run: Run) -> None:
        write = lambda: run.chat("producer", "")  # noqa: E731
        judge = lambda: run.chat("critic", "")  # noqa: E731
        for _ in range(5):
            await write()
            await judge()

    return pipeline


def handed_on() -> Pipeline:
    pipeline = Pipeline("handed on")

    async def ask(run: Run, role: str) -> str:
        return await run.chat(role, "")

    @pipeline.node
    async def text(run: Run, role: str = "producer") -> None:
        for _ in range(5):
            await ask(run, role)
            await asyncio.sleep(LONGER_THAN_A_MOMENT_S)

    return pipeline


@pytest.mark.parametrize(
    ("pipeline", "inputs", "most"),
    [
        pytest.param(side_by_side(), {}, 4, id="side by side in one node"),
        pytest.param(in_lambdas(), {}, 3, id="in lambdas"),
        pytest.param(handed_on(), {"role": "critic"}, 3, id="in a role that is an input"),
    ],
)
def test_a_source_that_was_misread_costs_a_load_at_most(
    pipeline: Pipeline, inputs: dict[str, object], most: int, tmp_path: Path
) -> None:
    tags = ("producer", "critic", "planner", "editor")
    assert asyncio.run(loads_in(pipeline, tmp_path, *tags, room_for=4, **inputs)) <= most
