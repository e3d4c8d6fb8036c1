"""Candidates in a run: how many there are, their seeds, and what a resumed run asks again."""

from __future__ import annotations

import asyncio

import pytest
from session_runs import refused, run, settings_of

from harness import Pipeline, Run, ScriptedBackend
from harness.errors import NodeFailed
from harness.inference import Endpoint
from harness.rubric import Rubric
from harness.session.settings import EvaluationSettings
from harness.wiggum import WiggumResult

CHECKS = [{"check": "words", "min": 6}]


def rubric(**fields) -> Rubric:
    said = {"title": "Long", "pass_at": 10, "dimensions": [{"name": "long", "checks": CHECKS}]}
    return Rubric.model_validate({"id": "long", **said, **fields})


def loop_of(**how) -> Pipeline:
    pipeline = Pipeline("loop")

    @pipeline.node
    async def text(run: Run) -> str:
        return (await run.wiggum("Write.", **{"rubric": rubric(), **how})).text

    return pipeline


def looped(settings, writer, **how) -> WiggumResult:
    (loop,) = run(loop_of(**how), settings, backends={"producer": writer}).loops
    return loop


def counting(**more) -> ScriptedBackend:
    """Says one word more whenever it is asked."""
    said = iter(range(1, 100))
    return ScriptedBackend(lambda _: "word " * next(said), **more)


def test_the_first_draft_is_the_best_of_so_many_by_the_checks(tmp_path):
    writer = counting()

    result = looped(settings_of(tmp_path), writer, candidates=3, max_rounds=1)

    assert result.text == "word word word"
    outcomes = [(one.outcome, one.seed) for one in result.rounds[0].tried]
    assert outcomes == [("outdone", None), ("outdone", 1001), ("taken", 2001)]
    assert [request.temperature > 0 for request in writer.requests] == [False, True, True]


def test_of_several_given_drafts_the_checks_choose_and_a_resumed_run_goes_on_from_the_choice(
    tmp_path,
):
    settings = settings_of(tmp_path)
    drafts = ["# A\n\nword\n\n# B\n\nword word\n", "# A\n\nword two\n\n# B\n\nword\n"]
    longer = [{"name": "long", "checks": [{"check": "words", "min": 9}]}]
    pipeline = loop_of(draft=drafts, rubric=rubric(dimensions=longer), max_rounds=2)

    class Hanging(ScriptedBackend):
        async def chat(self, request):
            reached.set_result(request)
            await asyncio.Event().wait()

    async def cut_off():
        nonlocal reached
        reached = asyncio.get_running_loop().create_future()
        running = asyncio.create_task(
            pipeline.run_async({}, settings=settings, backends={"producer": Hanging([])})
        )
        await reached
        running.cancel()
        await asyncio.wait([running])

    reached = None
    asyncio.run(cut_off())
    (loop,) = run(
        pipeline,
        settings,
        resume="latest",
        backends={"producer": ScriptedBackend(lambda _: "more")},
    ).loops

    first = loop.rounds[0]
    assert first.draft == "# A\n\nword two\n\n# B\n\nword word\n"
    assert [(one.section, one.outcome) for one in first.tried] == [
        (None, "taken"),
        (None, "outdone"),
        ("A", "taken"),
        ("B", "no_gain"),
    ]
    assert len(loop.rounds) == 2


@pytest.mark.parametrize("nothing", ["", [], ["", " "]])
def test_first_drafts_without_a_text_are_refused(nothing, tmp_path):
    with pytest.raises(NodeFailed, match="the first draft is empty"):
        looped(settings_of(tmp_path), counting(), draft=nothing)


@pytest.mark.parametrize(
    ("argument", "in_settings", "in_rubric", "expected"),
    [(None, None, 1, 1), (None, None, 2, 2), (None, 3, 2, 3), (1, 3, 2, 1)],
    ids=["default", "rubric", "settings", "argument"],
)
def test_the_argument_goes_before_the_settings_and_these_before_the_rubric(
    argument, in_settings, in_rubric, expected, tmp_path
):
    settings = settings_of(tmp_path).model_copy(
        update={"evaluation": EvaluationSettings(candidates=in_settings)}
    )
    writer = counting()

    looped(settings, writer, rubric=rubric(candidates=in_rubric), candidates=argument, max_rounds=1)

    assert len(writer.requests) == expected


@pytest.mark.parametrize("wrong", [0, 1.5, True, "two"])
def test_a_number_of_candidates_that_is_none_is_refused(wrong, tmp_path):
    with refused("loop.number-not-positive"):
        looped(settings_of(tmp_path), counting(), candidates=wrong)


def test_a_run_that_was_cut_off_between_candidates_asks_none_of_them_twice(tmp_path):
    settings, pipeline = settings_of(tmp_path), loop_of(candidates=3, max_rounds=1)

    class Hanging(ScriptedBackend):
        hangs = True

        async def chat(self, request):
            if self.hangs and request.seed == 2001:
                await asyncio.Event().wait()
            reply = await super().chat(request)
            if len(self.requests) == 2:
                self.reached.set()
            return reply

    writer = Hanging(lambda request: f"draft {request.seed}")

    async def cut_off():
        writer.reached = asyncio.Event()
        running = asyncio.create_task(
            pipeline.run_async({}, settings=settings, backends={"producer": writer})
        )
        await writer.reached.wait()
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(cut_off())
    assert sorted(str(request.seed) for request in writer.requests) == ["1001", "None"]
    writer.hangs = False
    run(pipeline, settings, resume="latest", backends={"producer": writer})

    assert sorted(str(one.seed) for one in writer.requests) == ["1001", "2001", "None"]


def test_of_the_runs_seed_come_the_seeds_of_sampled_calls(tmp_path):
    pipeline = Pipeline("sampled")

    @pipeline.node
    async def text(run: Run) -> str:
        said = [
            await run.chat("producer", f"{number}", temperature=heat, seed=seed)
            for number, (heat, seed) in enumerate([(0.5, None), (0.5, None), (0.5, 7), (0, None)])
        ]
        return " ".join(said)

    def seeds(seed):
        writer = ScriptedBackend(lambda request: f"{request.seed}")
        settings = settings_of(tmp_path).model_copy(update={"seed": seed})
        return run(pipeline, settings, backends={"producer": writer}).result.split()

    first = seeds(1)
    assert first == seeds(1)
    assert first[0] != first[1]
    assert first[2:] == ["7", "None"]
    assert seeds(2)[0] != first[0]
    assert seeds(None)[0] == "None"


def test_an_embedded_model_can_be_made_repeatable_and_a_server_cannot(tmp_path):
    file = Endpoint(tag="a", backend="embedded", path=tmp_path / "a.gguf", slots=4)
    server = Endpoint(tag="b", backend="vllm", url="http://127.0.0.1:8000/v1")

    assert (file.made_repeatable().repeatable, file.made_repeatable().slots) == (True, 1)
    assert server.made_repeatable() == server
    settled = Endpoint(tag="c", path=tmp_path / "a.gguf", repeatable=True, slots=4)
    assert settled.slots == 1
