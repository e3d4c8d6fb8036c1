"""More runs with a known bottleneck, each also with it mended, and more that have none.

    python tests/benchmarks/more_planted_bottlenecks.py [NAME …] [--into DIRECTORY] [--mended]

As `planted_bottlenecks.py`, with other causes. With `--mended`, each run is made a second time
without its fault, and a table says how long both took.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from planted_bottlenecks import (
    HANDBOOK,
    LETTERS,
    QUESTIONS,
    WORDS,
    Behavior,
    Further,
    Planted,
    listing,
    performed,
    prose,
)
from pydantic import Field

from harness import Default, Pipeline, Retry, Rubric, Run, Timeout
from harness.session.settings import MemorySettings

# What the runs are made of.

Build = Callable[..., None]
"""Adds a run's nodes to its pipeline; without further arguments, with their fault."""


@dataclass(frozen=True)
class Setup:
    """What a run is given beside its nodes."""

    behavior: Behavior | None = None
    """Of the producer's server; the producer is the demo's model when None."""
    at_once: int | None = 16
    """The pipeline's `max_parallel`."""
    endpoint: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the producer's endpoint."""
    others: Mapping[str, Further] = field(default_factory=dict)
    """Further models, by tag."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the run."""


PLANTED: list[Planted] = []
MENDED: dict[str, Callable[[Path], Path]] = {}
"""The runs with a bottleneck, by name, without it."""


def plant(
    what: str,
    setup: Setup,
    *,
    is_healthy: bool = False,
    nodes: Mapping[str, Any] | None = None,
    **mended: Any,
) -> Callable[[Build], None]:
    """Enters a run of the function's nodes, by its name.

    Args:
        what: See `Planted`.
        setup: What the run has beside its nodes.
        is_healthy: See `Planted`.
        nodes: Arguments of the function without the fault.
        mended: Fields of the setup that are others without it.
    """

    def enter(build: Build) -> None:
        name = build.__name__

        def made(directory: Path, has: Setup, arguments: Mapping[str, Any]) -> Path:
            pipeline = Pipeline(name, max_parallel=has.at_once)
            build(pipeline, **arguments)
            return performed(
                pipeline,
                directory,
                has.behavior,
                endpoint=has.endpoint,
                others=has.others,
                **has.settings,
            )

        def run(directory: Path) -> Path:
            return made(directory, setup, {})

        title = name.replace("_", "-")
        PLANTED.append(Planted(title, what, run, is_healthy))
        if not is_healthy:
            MENDED[title] = lambda into: made(into, replace(setup, **mended), nodes or {})

    return enter


def judge(**behavior: Any) -> dict[str, Further]:
    """An evaluator with a server of its own."""
    return {"evaluator": Further(Behavior(**behavior), {"structured": "enforced"})}


NOTES = Rubric.model_validate(
    {
        "title": "Notes",
        "repeats": 1,
        "dimensions": [
            {
                "name": "clear",
                "judge": "Would the next shift know what to do?",
                "anchors": {9: "At once.", 6: "After a question.", 3: "No."},
            }
        ],
    }
)


def asking_each(pipeline: Pipeline, prompts: Sequence[str]) -> None:
    """Asks the producer each prompt, in parallel."""
    listing(pipeline, "tasks", prompts)

    @pipeline.node(each={"task": "tasks"}, models=["producer"])
    async def answers(run: Run, task: str) -> str:
        return str(await run.chat("producer", task))


def manual(*, chapters: int, tokens: int) -> str:
    """A document of so many chapters."""
    texts = (f"## Chapter {at}\n\n{prose(tokens, 100 + at)}" for at in range(chapters))
    return "\n\n".join(texts)


def pairs_merged(text: str) -> int:
    """Tokens of a text, by merging pairs of letters as slowly as one can."""
    pieces = list(text)
    for word in WORDS:
        for end in range(2, len(word) + 1):
            merged: list[str] = []
            for piece in pieces:
                if merged and merged[-1] + piece == word[:end]:
                    merged[-1] += piece
                else:
                    merged.append(piece)
            pieces = merged
    return len(pieces)


# Bottlenecks.


@plant(
    "The evaluator's server writes five times slower than the producer's, so most of each round of "
    "the loop is the wait for a verdict; a smaller or faster evaluator is needed.",
    Setup(
        Behavior(writes_per_s=90, reply_tokens=60),
        others=judge(writes_per_s=18, reply_tokens=34, scores=(5, 9)),
    ),
    others=judge(writes_per_s=90, reply_tokens=34, scores=(5, 9)),
)
def slow_evaluator(pipeline: Pipeline) -> None:
    @pipeline.node(models=["producer", "evaluator"])
    async def notes(run: Run) -> str:
        return (await run.wiggum("Notes for the next shift.", rubric=NOTES)).text


@plant(
    "The evaluator gives the first draft 7.5 and each revision less, and the first draft is "
    "returned: two of three rounds bring nothing; pass_at must be lowered to what this producer "
    "reaches, or max_rounds.",
    Setup(
        Behavior(reply_tokens=80),
        others=judge(reply_tokens=20, scores=(7.5, 7.0, 6.5)),
    ),
    nodes={"rounds": 1},
)
def rounds_gain_nothing(pipeline: Pipeline, *, rounds: int = 3) -> None:
    @pipeline.node(models=["producer", "evaluator"])
    async def notes(run: Run) -> str:
        result = await run.wiggum("Notes for the next shift.", rubric=NOTES, max_rounds=rounds)
        return result.text


@plant(
    "Three nodes have the same draft evaluated by the same rubric, one after the other, and get "
    "the same verdict; the first must hand it on, or cache = 'run' be set.",
    Setup(Behavior(reply_tokens=40), others=judge(reply_tokens=60, scores=(8.5,))),
    settings={"cache": "run"},
)
def verdict_asked_again(pipeline: Pipeline) -> None:
    @pipeline.node(models=["producer"])
    async def draft(run: Run) -> str:
        return str(await run.chat("producer", "Notes for the next shift."))

    @pipeline.node(models=["evaluator"])
    async def gate(run: Run, draft: str) -> str:
        return "send" if (await run.evaluate(draft, rubric=NOTES)).passed else "keep"

    @pipeline.node(models=["evaluator"])
    async def report(run: Run, draft: str, gate: str) -> str:
        verdict = await run.evaluate(draft, rubric=NOTES)
        return f"{verdict.composite} of 10: {gate}"

    @pipeline.node(models=["evaluator"])
    async def archive(run: Run, draft: str, report: str) -> dict[str, object]:
        verdict = await run.evaluate(draft, rubric=NOTES)
        return {"draft": draft, "report": report, "score": verdict.composite}


@plant(
    "The loop samples eight candidates for its one draft, one after the other since the model has "
    "one slot, and the checks score them all alike; candidates must be 1 or 2 here.",
    Setup(),
    nodes={"candidates": 1},
)
def eight_candidates(pipeline: Pipeline, *, candidates: int = 8) -> None:
    checks = [{"check": "headings", "titles": ["What is new", "What to do", "What it costs"]}]
    rubric = Rubric.model_validate(
        {"title": "Release notes", "dimensions": [{"name": "form", "checks": checks}]}
    )

    @pipeline.node(models=["producer"])
    async def notes(run: Run) -> str:
        result = await run.wiggum(
            "One sentence that names the parts of a water pump.",
            rubric=rubric,
            max_rounds=1,
            max_output_tokens=32,
            candidates=candidates,
        )
        return result.text


@plant(
    "Writer and checker share a llama-server with one slot: each check throws the handbook out of "
    "the prefix cache, and the writer's next turn reads it all again; the checker needs a slot of "
    "its own, or another server.",
    Setup(
        Behavior(
            places=1,
            reads_per_s=3_000,
            reply_tokens=12,
            keeps_prefixes=True,
            kept_prompts=1,
            reports_timings=True,
        ),
        endpoint={"backend": "llamacpp"},
        others={"checker": Further(None, {"backend": "llamacpp"})},
    ),
    behavior=Behavior(
        places=2, reads_per_s=3_000, reply_tokens=12, keeps_prefixes=True, reports_timings=True
    ),
)
def checker_evicts_prefix(pipeline: Pipeline) -> None:
    @pipeline.node(models=["producer", "checker"])
    async def answers(run: Run) -> list[str]:
        messages = [{"role": "system", "content": f"You answer by this handbook.\n\n{HANDBOOK}"}]
        texts = []
        for question in QUESTIONS[:4]:
            messages.append({"role": "user", "content": question})
            texts.append(str(await run.chat("producer", messages)))
            messages.append({"role": "assistant", "content": texts[-1]})
            await run.chat("checker", f"Is this in plain words?\n\n{texts[-1]}")
        return texts


@plant(
    "The run embeds the whole library by a slow model before it asks its one question, and forgets "
    "it at the end, since [memory] has no path; it needs a path, or the embedder that is included.",
    Setup(
        Behavior(reply_tokens=25),
        others={"embedder": Further(Behavior(reads_per_s=3_000), {"embeddings": True})},
        settings={"memory": MemorySettings(embedder="embedder")},
    ),
    settings={"memory": MemorySettings()},
)
def library_embedded_each_run(pipeline: Pipeline) -> None:
    @pipeline.node
    async def library(run: Run) -> int:
        return len(await run.remember(manual(chapters=80, tokens=150), source="manual.md"))

    @pipeline.node(models=["producer"])
    async def answer(run: Run, library: int) -> str:
        found = "\n\n".join(hit.text for hit in await run.recall("intake pump", limit=2))
        return str(await run.chat("producer", f"Of {library}:\n{found}\n\n{QUESTIONS[0]}"))


@plant(
    "The prompt has twenty recalled passages although the first two answer the question, and the "
    "small model reads them for seconds before it writes a line; limit must be 2 or 3.",
    Setup(),
    nodes={"limit": 2},
)
def twenty_passages_recalled(pipeline: Pipeline, *, limit: int = 20) -> None:
    @pipeline.node(models=["producer"])
    async def answer(run: Run) -> str:
        await run.remember(manual(chapters=24, tokens=40), source="manual.md")
        hits = await run.recall("pump valve seal pressure", limit=limit, mode="lexical")
        found = "\n\n".join(hit.text for hit in hits)
        asked = f"{found}\n\nWhich part is checked first? Answer in three words."
        return str(await run.chat("producer", asked, max_output_tokens=8, on_cut="keep"))


@plant(
    "The vLLM server's KV cache has room for two of the long letters, so of eight calls that it "
    "was sent six wait in its queue; it needs more memory for the cache, or a smaller data type.",
    Setup(
        Behavior(
            places=64,
            reads_per_s=20_000,
            reply_tokens=60,
            holds_tokens=2_400,
            reports_counters=True,
        ),
        endpoint={"backend": "vllm"},
    ),
    behavior=Behavior(
        places=64, reads_per_s=20_000, reply_tokens=60, holds_tokens=24_000, reports_counters=True
    ),
)
def kv_cache_too_small(pipeline: Pipeline) -> None:
    asking_each(pipeline, [f"{prose(1_000, seed)}\n\nAnswer this." for seed in range(8)])


@plant(
    "To stay within the context, the agent drops its oldest page in every turn: then no prompt "
    "begins as the last one did, and the server reads all pages again; it must drop many pages at "
    "once and seldom, or the context be larger.",
    Setup(Behavior(reads_per_s=3_000, reply_tokens=6, keeps_prefixes=True, reports_prefixes=True)),
    nodes={"messages": 99},
)
def window_slides_each_turn(pipeline: Pipeline, *, messages: int = 5) -> None:
    @pipeline.node(models=["producer"])
    async def agent(run: Run) -> list[str]:
        system = {"role": "system", "content": "Note what each page adds."}
        turns: list[dict[str, str]] = []
        texts = []
        for page in range(8):
            turns.append({"role": "user", "content": f"Page {page}:\n{prose(900, page)}"})
            if page < 2:
                turns.append({"role": "assistant", "content": "Noted."})
                continue
            kept = turns[-messages:]
            texts.append(str(await run.chat("producer", [system, *kept])))
            turns.append({"role": "assistant", "content": texts[-1]})
        return texts


@plant(
    "Each step sends the whole handbook to a provider whose quota counts tokens, so the next one "
    "is refused with 429 and told to wait more than a second; only the page in question must be "
    "sent, or the quota be raised.",
    Setup(Behavior(reads_per_s=40_000, reply_tokens=15, allowed_tokens_per_s=2_400)),
    nodes={"characters": 600},
)
def quota_of_tokens(pipeline: Pipeline, *, characters: int = len(HANDBOOK)) -> None:
    handbook = HANDBOOK[:characters]

    @pipeline.node(models=["producer"])
    async def answers(run: Run) -> list[str]:
        texts = [""]
        for question in QUESTIONS[:4]:
            asked = f"{handbook}\n\nBefore: {texts[-1]}\n{question}"
            texts.append(str(await run.chat("producer", asked)))
        return texts


@plant(
    "The node's timeout is a little shorter than its reply takes, so three attempts are cut off "
    "and thrown away before the run goes on without it; the timeout must be raised, or the reply "
    "be kept short.",
    Setup(Behavior(reply_tokens=100, told=(("Letter", 20),))),
    nodes={"total_s": 20},
)
def timeout_too_short(pipeline: Pipeline, *, total_s: float = 1.4) -> None:
    @pipeline.node(
        models=["producer"],
        timeout=Timeout(total_s=total_s),
        retry=Retry(3, first_delay_s=0.1),
        on_error=Default("no summary"),
    )
    async def summary(run: Run) -> str:
        return str(await run.chat("producer", f"Sum this up:\n\n{prose(150, 3)}"))

    @pipeline.node(models=["producer"])
    async def letter(run: Run, summary: str) -> str:
        return str(await run.chat("producer", f"Letter by this summary:\n\n{summary}"))


@plant(
    "Half of the calls go to the second server, which writes six times slower than the first, and "
    "the run waits for these; it must be repaired, or get fewer calls.",
    Setup(Behavior(reply_tokens=40), others={"west": Further(Behavior(10, 6_000, 10, 40))}),
    others={"west": Further(Behavior(10, 6_000, 60, 40))},
)
def one_slow_server(pipeline: Pipeline) -> None:
    listing(pipeline, "questions", QUESTIONS[:8])

    @pipeline.node(each={"question": "questions"}, models=["producer", "west"])
    async def answers(run: Run, question: str) -> str:
        server = "west" if QUESTIONS.index(question) % 2 else "producer"
        return str(await run.chat(server, question))

    @pipeline.node(models=["producer"])
    async def summary(run: Run, answers: list[str]) -> str:
        return str(await run.chat("producer", "Sum up:\n" + "\n".join(answers)))


@plant(
    "Between drafts and titles the node `saved` writes each draft to a network drive by itself, "
    "half a second each, and all models wait; the drafts must be written in one go, or beside the "
    "titles.",
    Setup(Behavior(reply_tokens=30, told=(("A title", 8),))),
    nodes={"writes": 1},
)
def drive_between_stages(pipeline: Pipeline, *, writes: int = 6) -> None:
    asking_each(pipeline, QUESTIONS[:6])

    @pipeline.node
    def saved(answers: list[str]) -> list[str]:
        for _ in answers[:writes]:
            time.sleep(0.5)  # as open, write and fsync there
        return answers

    @pipeline.node(each={"text": "saved"}, models=["producer"])
    async def titles(run: Run, text: str) -> str:
        return str(await run.chat("producer", f"A title for this:\n\n{text}"))


@plant(
    "The nodes `facts` and `texts` take the whole list of the stage before, so every topic waits "
    "three times for the slowest of all, which is another one in each stage; they must be mapped, "
    "each item on its own.",
    Setup(
        Behavior(
            reply_tokens=10,
            told=(("Outline of pumps", 90), ("Facts of crews", 90), ("Text of alarms", 90)),
        )
    ),
    nodes={"is_mapped": True},
)
def stages_in_step(pipeline: Pipeline, *, is_mapped: bool = False) -> None:
    topics = ["pumps", "crews", "alarms", "orders"]
    listing(pipeline, "topics", topics)

    async def ask(run: Run, what: str, topic: str) -> str:
        await run.chat("producer", f"{what} of {topic}.")
        return topic

    @pipeline.node(each={"topic": "topics"}, models=["producer"])
    async def outlines(run: Run, topic: str) -> str:
        return await ask(run, "Outline", topic)

    if is_mapped:

        @pipeline.node(name="facts", each={"topic": "outlines"}, models=["producer"])
        async def fact(run: Run, topic: str) -> str:
            return await ask(run, "Facts", topic)

        @pipeline.node(name="texts", each={"topic": "facts"}, models=["producer"])
        async def text(run: Run, topic: str) -> str:
            return await ask(run, "Text", topic)

        return

    @pipeline.node(models=["producer"])
    async def facts(run: Run, outlines: list[str]) -> list[str]:
        async def facts_of(topic: str) -> str:
            return await ask(run, "Facts", topic)

        return await run.map(facts_of, outlines)

    @pipeline.node(models=["producer"])
    async def texts(run: Run, facts: list[str]) -> list[str]:
        async def text_of(topic: str) -> str:
            return await ask(run, "Text", topic)

        return await run.map(text_of, facts)


@plant(
    "Twelve translations that nothing waits for take all four places of the pipeline first, and "
    "only then begins the chain of five steps that the run's end depends on; the chain must come "
    "first, or max_parallel be raised.",
    Setup(Behavior(places=16, reply_tokens=28, told=(("Translate", 65),)), at_once=4),
    at_once=16,
)
def long_chain_begins_last(pipeline: Pipeline) -> None:
    listing(pipeline, "letters", LETTERS[:12])

    @pipeline.node(each={"letter": "letters"}, models=["producer"])
    async def translations(run: Run, letter: str) -> str:
        return str(await run.chat("producer", f"Translate:\n\n{letter}"))

    @pipeline.node
    def step_0(letters: list[str]) -> str:
        return letters[0]

    async def step(run: Run, before: str) -> str:
        return str(await run.chat("producer", f"Go on from here:\n\n{before}"))

    for at in range(1, 6):
        takes = {"before": f"step_{at - 1}"}
        pipeline.node(name=f"step_{at}", takes=takes, models=["producer"])(step)


@plant(
    "The server lets its model go 0.3 s after a call, and the tests between two calls take "
    "longer, so each call waits for the model to load again; it must be kept longer.",
    Setup(Behavior(load_s=1.8, unloads_after_s=0.3, reply_tokens=15)),
    behavior=Behavior(load_s=1.8, reply_tokens=15),
)
def unloaded_between_calls(pipeline: Pipeline) -> None:
    @pipeline.node(models=["producer"])
    async def patch(run: Run) -> str:
        text = str(await run.chat("producer", "Mend the pump's controller."))
        for _ in range(2):
            with run.span("tests"):
                await asyncio.sleep(0.5)
            text = str(await run.chat("producer", f"The tests fail. Mend this:\n\n{text}"))
        return text


@plant(
    "In every turn the agent counts the tokens of its whole history with a tokenizer in pure "
    "Python, which takes longer than the call; it must count each message once, or use a compiled "
    "one.",
    Setup(Behavior(reads_per_s=40_000, reply_tokens=12, keeps_prefixes=True)),
    nodes={"counted": cache(pairs_merged)},
)
def tokenizes_whole_history(
    pipeline: Pipeline, *, counted: Callable[[str], int] = pairs_merged
) -> None:
    @pipeline.node(models=["producer"])
    async def agent(run: Run) -> int:
        messages = [{"role": "user", "content": prose(5_000, 7)}]
        used = 0
        for page in range(4):
            used = sum([counted(one["content"]) for one in messages])
            if used > 100_000:
                messages = messages[-2:]
            reply = str(await run.chat("producer", messages))
            messages.append({"role": "assistant", "content": reply})
            messages.append({"role": "user", "content": prose(300, page)})
        return used


@plant(
    "A limiter in the node lets one call begin every 0.6 s, as a provider's free plan once asked, "
    "although the calls go to a server of one's own that takes eight at once; it must be taken "
    "out.",
    Setup(Behavior(reply_tokens=30, reports_timings=True), endpoint={"backend": "llamacpp"}),
    nodes={"pause_s": 0},
)
def limiter_of_former_provider(pipeline: Pipeline, *, pause_s: float = 0.6) -> None:
    listing(pipeline, "letters", LETTERS[:8])
    turn = asyncio.Lock()

    @pipeline.node(each={"letter": "letters"}, models=["producer"])
    async def answers(run: Run, letter: str) -> str:
        async with turn:
            await asyncio.sleep(pause_s)
        return str(await run.chat("producer", letter))


@plant(
    "The server is sent sixteen calls at once and bears four: with more it writes each of them so "
    "much slower that all together take longer; the endpoint's max_parallel must be 4.",
    Setup(Behavior(places=64, reply_tokens=16, crowded_from=4, told=(("Outline", 30),))),
    endpoint={"max_parallel": 4},
)
def more_than_server_bears(pipeline: Pipeline) -> None:
    @pipeline.node(models=["producer"])
    async def letters(run: Run) -> list[str]:
        await run.chat("producer", "Outline of sixteen letters.")
        return LETTERS[:16]

    @pipeline.node(each={"letter": "letters"}, models=["producer"])
    async def answers(run: Run, letter: str) -> str:
        return str(await run.chat("producer", letter))


@plant(
    "The small model says the same lines over and over until its context is full, since the call "
    "has no max_output_tokens, no stop and no penalty; one of these must be set.",
    Setup(endpoint={"context_tokens": 300}),
    nodes={"most": 40},
)
def rambles_until_full(pipeline: Pipeline, *, most: int | None = None) -> None:
    @pipeline.node(models=["producer"])
    async def title(run: Run) -> str:
        asked = "List the spare parts of a water pump, one in each line."
        reply = await run.chat("producer", asked, max_output_tokens=most, on_cut="keep")
        return str(reply).splitlines()[0]


# Healthy runs.


@plant(
    "Nothing: each round of the loop raises the score by two points, and the third draft passes.",
    Setup(Behavior(reply_tokens=70), others=judge(reply_tokens=24, scores=(5, 7, 9))),
    is_healthy=True,
)
def loop_that_gains(pipeline: Pipeline) -> None:
    @pipeline.node(models=["producer", "evaluator"])
    async def notes(run: Run) -> str:
        return (await run.wiggum("Notes for the next shift.", rubric=NOTES)).text


@plant(
    "Nothing: nine chapters are summed up side by side, then three groups of them, then all.",
    Setup(Behavior(places=16, reads_per_s=20_000, reply_tokens=75)),
    is_healthy=True,
)
def tree_of_summaries(pipeline: Pipeline) -> None:
    listing(pipeline, "chapters", [prose(400, seed) for seed in range(9)])

    @pipeline.node(each={"chapter": "chapters"}, models=["producer"])
    async def leaves(run: Run, chapter: str) -> str:
        return str(await run.chat("producer", f"Sum up:\n\n{chapter}"))

    @pipeline.node
    def groups(leaves: list[str]) -> list[str]:
        return ["\n".join(leaves[at : at + 3]) for at in range(0, len(leaves), 3)]

    @pipeline.node(each={"group": "groups"}, models=["producer"])
    async def parts(run: Run, group: str) -> str:
        return str(await run.chat("producer", f"Join these:\n\n{group}"))

    @pipeline.node(models=["producer"])
    async def whole(run: Run, parts: list[str]) -> str:
        return str(await run.chat("producer", "Join these:\n\n" + "\n".join(parts)))


@plant(
    "Nothing: the demo's model answers two short questions side by side in two slots.",
    Setup(endpoint={"slots": 2}),
    is_healthy=True,
)
def demo_side_by_side(pipeline: Pipeline) -> None:
    listing(pipeline, "things", ["a water pump", "a roof fan"])

    @pipeline.node(each={"thing": "things"}, models=["producer"])
    async def answers(run: Run, thing: str) -> str:
        asked = f"Explain in a few sentences what {thing} does."
        return str(await run.chat("producer", asked, max_output_tokens=70, on_cut="keep"))


@plant(
    "Nothing: three passages are recalled for each of six questions, which are answered at once.",
    Setup(Behavior(reads_per_s=20_000, reply_tokens=110)),
    is_healthy=True,
)
def recalled_and_answered(pipeline: Pipeline) -> None:
    @pipeline.node
    async def library(run: Run) -> list[str]:
        await run.remember(manual(chapters=12, tokens=80), source="manual.md")
        return QUESTIONS[:6]

    @pipeline.node(each={"question": "library"}, models=["producer"])
    async def answers(run: Run, question: str) -> str:
        found = "\n\n".join(hit.text for hit in await run.recall(question, limit=3, mode="lexical"))
        return str(await run.chat("producer", f"{found}\n\n{question}"))


@plant(
    "Nothing: each draft goes to the checker as soon as it is written, while others are still at "
    "work on theirs.",
    Setup(
        Behavior(reply_tokens=80, told=(("breaker", 130), ("fan", 105))),
        others={"checker": Further(Behavior(reply_tokens=90))},
    ),
    is_healthy=True,
)
def drafts_flow_to_checker(pipeline: Pipeline) -> None:
    asking_each(pipeline, QUESTIONS[:8])

    @pipeline.node(each={"answer": "answers"}, models=["checker"])
    async def checked(run: Run, answer: str) -> str:
        return str(await run.chat("checker", f"Correct this:\n\n{answer}"))


@plant(
    "Nothing: the server reads the handbook once for all questions, which follow it in the prompt.",
    Setup(
        Behavior(
            reads_per_s=12_000,
            reply_tokens=90,
            keeps_prefixes=True,
            reports_prefixes=True,
        )
    ),
    is_healthy=True,
)
def handbook_read_once(pipeline: Pipeline) -> None:
    asking_each(pipeline, [f"{HANDBOOK}\n\n{question}" for question in QUESTIONS[:8]])


@plant(
    "Nothing: a planner names five questions, they are answered side by side, and a brief is made "
    "of the answers.",
    Setup(
        Behavior(reply_tokens=80),
        others={
            "planner": Further(Behavior(reply_tokens=50), {"structured": "enforced"}),
        },
    ),
    is_healthy=True,
)
def planned_brief(pipeline: Pipeline) -> None:
    @pipeline.node(models=["planner"])
    async def questions(run: Run) -> list[str]:
        wanted = Annotated[list[str], Field(min_length=5)]
        named = await run.chat("planner", "Five questions on the pumps.", returns=wanted)
        return [f"{number}. {text}" for number, text in enumerate(named)]

    @pipeline.node(each={"question": "questions"}, models=["producer"])
    async def findings(run: Run, question: str) -> str:
        return str(await run.chat("producer", f"{prose(200, 6)}\n\n{question}"))

    @pipeline.node(models=["producer"])
    async def brief(run: Run, findings: list[str]) -> str:
        return str(await run.chat("producer", "A brief of these:\n" + "\n".join(findings)))


def seconds_of(journal: Path) -> float:
    """How long a run took by its own record."""
    lines = (journal.parent / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    return float(json.loads(lines[-1])["run_duration_s"])


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [planted.name for planted in PLANTED]
    arguments.add_argument("names", nargs="*", choices=[*names, []], help="all when left out")
    arguments.add_argument("--into", type=Path, help="the directory of their files")
    arguments.add_argument("--mended", action="store_true", help="compare with mended ones")
    options = arguments.parse_args()
    into = options.into or Path(tempfile.mkdtemp(prefix="planted-"))
    for planted in PLANTED:
        if options.names and planted.name not in options.names:
            continue
        journal = planted.run(into / planted.name)
        took_s = seconds_of(journal)
        if options.mended and planted.name in MENDED:
            mended_s = seconds_of(MENDED[planted.name](into / f"{planted.name}-mended"))
            times = f"{took_s:.1f}, mended {mended_s:.1f}, {took_s / mended_s:.1f} times as fast"
            print(f"{planted.name}: {times}", flush=True)
        else:
            print(f"{planted.name}: {took_s:.1f}: {journal}", flush=True)


if __name__ == "__main__":
    main()
