"""What the prompts of a loop share: a prefix cache serves it only where it is the same bytes."""

import asyncio
import json
from itertools import takewhile

import pytest
from clients import in_a_loop

from harness.inference import ChatRequest, Completion, ScriptedBackend
from harness.rubric import Dimension, Draft, Evaluator, Rubric
from harness.rubric.checks import SectionWords
from harness.rubric.rubric import Shortening
from harness.session import Pipeline, Run, Settings
from harness.session.settings import TraceSettings
from harness.trace import Tracer
from harness.wiggum import LoopPolicy, Reviser, WiggumResult, revise_until_met
from harness.wiggum.prompts import RevisionPrompts

TASK = "Say how a clock works."
CLOCK = "A clock has a spring, an escapement and a pendulum. " * 20
BREAD = "Bread is made from flour, water, salt and yeast. " * 20
JUDGED = Rubric(
    id="clock",
    title="Clock",
    pass_at=10,
    focus_below=10,
    dimensions=(
        Dimension(name="clear", judge="Is it clear?", anchors={3: "No.", 9: "Yes.", 6: "Partly."}),
        Dimension(name="useful", judge="Is it useful?"),
    ),
)
# No revision below has as many words, and each has more than the one before.
CHECKED = Rubric(
    id="long",
    title="Long",
    pass_at=10,
    focus_below=10,
    dimensions=(Dimension(name="length", checks=(SectionWords(min=20),)),),
)


def run_loop(
    rubric: Rubric, judge: ScriptedBackend, writer: ScriptedBackend, first: Draft
) -> WiggumResult:
    async def ask(request: ChatRequest) -> Completion:
        return await (judge if request.role == "evaluator" else writer).chat(request)

    async def revised() -> WiggumResult:
        with in_a_loop(ask) as (asked, meter):
            return await revise_until_met(
                first,
                evaluator=Evaluator(rubric, ask=asked, models=("judge",) if rubric.judged else ()),
                reviser=Reviser(
                    ask=asked,
                    model="writer",
                    max_output_tokens=100,
                    prompts=RevisionPrompts(requirements=rubric.requirements),
                ),
                meter=meter,
                policy=LoopPolicy(focus_below=rubric.focus_below),
                tracer=Tracer(),
            )

    return asyncio.run(revised())


def verdict(score: float) -> str:
    judgement = {"reason": f"It is worth {score}.", "score": score}
    return json.dumps({"clear": judgement, "useful": judgement})


def rising() -> ScriptedBackend:
    """An evaluator whom nothing satisfies."""
    return ScriptedBackend([verdict(3), verdict(4), verdict(5)])


def texts(requests: list[ChatRequest]) -> list[str]:
    """Each conversation as one text."""
    return ["\n".join(f"{m.role}: {m.content}" for m in r.messages) for r in requests]


def shared_start(prompts: list[str]) -> str:
    """What a prefix cache would serve."""
    columns = zip(*prompts, strict=False)
    return "".join(column[0] for column in takewhile(lambda c: len(set(c)) == 1, columns))


def parted(requests: list[ChatRequest]) -> tuple[str, list[str]]:
    """What they share, and of each the line that comes behind it."""
    shared = shared_start(texts(requests))
    return shared, [text.removeprefix(shared).split("\n")[0] for text in texts(requests)]


def test_the_evaluations_of_a_loop_differ_in_nothing_before_the_draft():
    judge, writer = rising(), ScriptedBackend(["The second.", "Draft three."])

    run_loop(JUDGED, judge, writer, Draft(text="A first.", task=TASK, sources=(CLOCK, BREAD)))

    shared, drafts = parted(judge.requests)
    assert drafts == ["A first.", "The second.", "Draft three."]
    assert shared.index(TASK) < shared.index(CLOCK) < shared.index(BREAD)
    # What a server makes of the schema would stand in front of it all.
    assert len({json.dumps(request.reply_schema) for request in judge.requests}) == 1


@pytest.mark.parametrize(
    ("rubric", "replies", "stays"),
    [
        # The second version is nearer to the other source.
        pytest.param(
            CHECKED, ["Flour, water, salt and yeast.", "A spring moves it."], [CLOCK], id="section"
        ),
        pytest.param(
            JUDGED,
            ["# It\n\nFlour, water, salt and yeast.", "# It\n\nA spring."],
            [TASK, CLOCK, BREAD, *JUDGED.requirements],
            id="edits",
        ),
    ],
)
def test_the_revisions_of_a_loop_differ_in_nothing_before_the_text(rubric, replies, stays):
    writer = ScriptedBackend(replies)
    first = Draft(text="# It\n\nA pendulum.\n", task=TASK, sources=(BREAD, CLOCK))

    run_loop(rubric, rising(), writer, first)

    shared, written = parted(writer.requests)
    assert written == ["A pendulum.", "Flour, water, salt and yeast."]
    assert all(one.strip() in shared for one in stays)


def ends_of(request: ChatRequest) -> list[str]:
    """What stands behind each place up to which the request says that others begin alike."""
    (message,) = [one for one in request.messages if one.role == "user"]
    return [message.content[end:].split("\n")[2] for end in message.shared_chars]


@pytest.mark.parametrize(
    ("mode", "ends"),
    [
        pytest.param("joint", ["# Draft"], id="the same in every round"),
        pytest.param("split", ["# Draft", "Judge the draft on"], id="and in every call of a round"),
    ],
)
def test_a_judging_call_says_what_others_begin_with(mode, ends):
    judge = rising() if mode == "joint" else ScriptedBackend(['{"reason": "No.", "score": 4}'] * 6)
    writer = ScriptedBackend(["The second.", "Draft three."])

    run_loop(
        JUDGED.model_copy(update={"judge": mode, "repeats": 1}),
        judge,
        writer,
        Draft(text="A first.", task=TASK, sources=(CLOCK, BREAD)),
    )

    for request in judge.requests:
        found = ends_of(request)
        assert [one[: len(end)] for one, end in zip(found, ends, strict=True)] == ends
    starts = {r.messages[1].content[: r.messages[1].shared_chars[0]] for r in judge.requests}
    assert len(starts) == 1


def test_sources_that_are_shortened_toward_a_draft_are_not_said_to_be_shared():
    rubric = JUDGED.model_copy(update={"shorten": Shortening(payload_over=4_000)})
    judge = rising()
    draft = Draft(text="A clock.", task=TASK, sources=tuple(f"{n}. {CLOCK}" for n in range(9)))

    run_loop(rubric, judge, ScriptedBackend(["The second.", "Draft three."]), draft)

    assert {tuple(ends_of(request)) for request in judge.requests} == {("# Source 1",)}


@pytest.mark.parametrize(
    ("rubric", "first", "end"),
    [
        pytest.param(CHECKED, "# It\n\nA pendulum.\n", "An earlier version of", id="section"),
        pytest.param(JUDGED, "# It\n\nA pendulum.\n", "An earlier version:", id="edits"),
        pytest.param(JUDGED, "A pendulum.", "An earlier version:", id="whole"),
    ],
)
def test_a_revising_call_says_what_others_begin_with(rubric, first, end):
    writer = ScriptedBackend(["# It\n\nFlour.", "# It\n\nA spring."])

    run_loop(rubric, rising(), writer, Draft(text=first, task=TASK, sources=(BREAD, CLOCK)))

    assert [one[0][: len(end)] for one in map(ends_of, writer.requests)] == [end] * 2
    starts = {r.messages[0].content[: r.messages[0].shared_chars[0]] for r in writer.requests}
    assert len(starts) == 1


def test_a_draft_is_written_again_from_the_beginning_it_was_first_written_from(tmp_path):
    rubric = tmp_path / "clock.yaml"
    # JSON is YAML.
    rubric.write_text(JUDGED.model_dump_json(exclude={"id", "sha256"}, exclude_defaults=True))
    writer = ScriptedBackend(["A first.", "The second.", "Draft three."])

    pipeline = Pipeline("clock")

    @pipeline.node
    async def text(run: Run) -> str:
        return (await run.wiggum(TASK, rubric=str(rubric), sources=[BREAD, CLOCK])).text

    settings = Settings(traces=tmp_path, trace=TraceSettings(timelines=()))
    backends = {"producer": writer, "evaluator": rising()}
    asyncio.run(pipeline.run_async({}, settings=settings, backends=backends))

    first, *again = texts(writer.requests)
    assert len(again) == 2
    assert all(text.startswith(first) for text in again)
    assert parted(writer.requests[1:])[1] == ["A first.", "The second."]
