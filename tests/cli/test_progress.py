"""What a terminal shows while a run goes on, drawn from records."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
from contextlib import suppress
from pathlib import Path

import pytest
from golden import assert_shown
from rich.console import Console

from harness import NodeFailed, Pipeline, Run, ScriptedBackend, Settings
from harness.cli import progress as module
from harness.cli.consoles import JsonLines
from harness.cli.progress import Progress, RunState
from harness.graph import Retry
from harness.trace import Instant, SpanEnded, SpanStarted


def shown(progress: Progress) -> str:
    stream = io.StringIO()
    Console(file=stream, width=100, height=25).print(progress)
    return stream.getvalue()


# How far a spinner has turned, and what a call took.
MASKS = {"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]": "*", r"\d+\.\d+ s": "0.0 s", r" +[\d.]+/s.*": ""}


def watch(pipeline: Pipeline, tmp_path: Path, **inputs: object) -> RunState:
    """The state after a run, by its own records."""
    state = RunState(pipeline.nodes)
    with suppress(NodeFailed):
        asyncio.run(
            pipeline.run_async(
                inputs,
                settings=Settings(traces=tmp_path),
                backends={"producer": ScriptedBackend(lambda _: "It takes 900 years.")},
                observers=[state.take],
            )
        )
    return state


def test_calls_are_counted_by_what_became_of_them(tmp_path: Path) -> None:
    pipeline, errors = Pipeline("mapped"), iter([True, False])

    @pipeline.node(each={"item": "items"}, when=lambda item: item > 1)
    def large(item: int) -> int:
        return item

    @pipeline.node(retry=Retry(2, first_delay_s=0))
    def flaky(large: list[int]) -> str:
        if next(errors):
            raise ValueError("no")
        return "yes"

    @pipeline.node
    async def ship(run: Run, flaky: str) -> bool:
        return await run.ask("Ship this?", returns=bool)

    @pipeline.node
    def never(flaky: str) -> str:
        raise ValueError(flaky)

    state = watch(pipeline, tmp_path, items=[1, 2, 3])
    assert state.retries == 1
    nodes = state.nodes
    statuses = ("done", "skipped", "waiting", "failed")
    counts = {n: (*(s.counts[one] for one in statuses), s.total) for n, s in nodes.items()}
    assert counts == {
        "large": (2, 1, 0, 0, 3),
        "flaky": (1, 0, 0, 0, 1),
        "ship": (0, 0, 1, 0, 1),
        "never": (0, 0, 0, 1, 1),
    }


def test_calls_show_their_tokens_and_a_loop_is_gone_once_it_is_over(tmp_path: Path) -> None:
    pipeline = Pipeline("looping")

    @pipeline.node
    async def text(run: Run) -> str:
        return (await run.wiggum("t", sources=["It took 8 s."], rubric="answer")).text

    state = watch(pipeline, tmp_path)
    assert not state.loops
    assert (state.calls, state.output_tokens, state.under_way.total()) == (2, 8, 0)
    assert state.input_tokens > 8


def test_a_reply_from_the_cache_takes_nothing_and_a_failed_call_is_not_skipped_too() -> None:
    progress = Progress(Console(file=io.StringIO()), ["texts"])
    for number, more in enumerate([{}, {"from_cache": True}], start=1):
        said = {"input_tokens": 7, "output_tokens": 5, **more}
        progress.observe(SpanStarted(number, None, "chat", 0, {}))
        progress.observe(SpanEnded(number, 1, "ok", None, said))
    progress.observe(SpanStarted(9, None, "node", 0, {"node": "texts", "item": 0}))
    progress.observe(SpanEnded(9, 1, "error", "ValueError: no", {}))
    progress.observe(Instant(None, "skip", 1, {"node": "texts", "item": 0}))
    assert_shown("progress", "a cached reply and a failed call", shown(progress), masks=MASKS)


def test_a_call_that_a_limit_refused_is_none() -> None:
    state = RunState([])
    for number, error in enumerate([None, "RunLimitReached: no", "LimitReached: no"], start=1):
        state.take(SpanStarted(number, None, "chat", 0, {}))
        state.take(SpanEnded(number, 1, "error" if error else "ok", error, {}))
    assert state.calls == 1


def test_what_was_done_before_is_counted_as_done() -> None:
    progress = Progress(Console(file=io.StringIO()), ["texts"])
    progress.observe(Instant(None, "items", 1, {"node": "texts", "total": 3}))
    for item in (0, 1):
        progress.observe(Instant(None, "reuse", 1, {"node": "texts", "item": item}))
    assert_shown("progress", "done before", shown(progress), masks=MASKS)


def test_a_picture_has_nodes_items_tokens_scores_and_the_models_in_memory() -> None:
    progress = Progress(Console(file=io.StringIO()), ["topics", "sections"])

    def begin(number: int, name: str, parent: int | None = None, **attributes: object) -> None:
        progress.observe(SpanStarted(number, parent, name, 0, attributes))

    for number in (1, 2):
        begin(number, "node", node="sections", item=number)
    begin(3, "chat", parent=1)
    progress.observe(SpanEnded(3, 1, attributes={"input_tokens": 7, "output_tokens": 42}))
    progress.observe(SpanEnded(1, 1))
    begin(4, "wiggum", parent=2)
    progress.observe(Instant(4, "round", 1, {"composite": 8.5}))
    begin(9, "load", parent=2, waits_for=5)  # a call's share of a load
    progress.observe(SpanEnded(9, 1))
    models = [("load", "writer"), ("load", "judge"), ("unload", "writer")]
    for number, (name, model) in enumerate(models, start=5):
        begin(number, name, model=model)
        progress.observe(SpanEnded(number, 1))
    assert_shown("progress", "nodes, a loop and models", shown(progress), masks=MASKS)


def test_of_many_nodes_the_running_ones_are_shown() -> None:
    names = [f"node_{number}" for number in range(100)]
    progress = Progress(Console(file=io.StringIO()), names)
    for number, name in enumerate(names[:70]):
        progress.observe(SpanStarted(number + 1, None, "node", 0, {"node": name, "item": None}))
        if number < 60:
            progress.observe(SpanEnded(number + 1, 1))
    picture = shown(progress)
    assert [name for name in names if f"{name} " in picture] == names[60:70]


def test_a_program_is_told_the_progress_also_while_nothing_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(module._PERIOD_S, "json", 0.01)
    out, into = os.pipe()
    with os.fdopen(out) as told, os.fdopen(into, "w") as err:
        monkeypatch.setattr("sys.stderr", JsonLines(err))
        with Progress(Console(file=io.StringIO()), ["slow"]) as progress:
            progress.observe(SpanStarted(1, None, "node", 0, {"node": "slow", "item": None}))
            progress.observe(SpanStarted(2, 1, "chat", 0, {}))
            progress.observe(SpanStarted(3, 2, "hold", 0, {}))
            lines = (json.loads(line) for line in told)
            now = next(line for line in lines if line["held"])
            assert (now["in_flight"], now["calls"], next(lines)["event"]) == (1, 0, "progress")


def test_without_a_terminal_a_line_tells_now_and_then_which_nodes_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(module._PERIOD_S, "text", 0.01)
    out, into = os.pipe()
    with os.fdopen(out) as told, os.fdopen(into, "w", buffering=1) as err:
        monkeypatch.setattr("sys.stderr", err)
        with Progress(Console(file=err), ["done", "slow"]) as progress:
            progress.observe(SpanStarted(1, None, "node", 0, {"node": "done", "item": None}))
            progress.observe(SpanEnded(1, 1))
            progress.observe(SpanStarted(2, None, "node", 0, {"node": "slow", "item": None}))
            progress.observe(SpanStarted(3, 2, "node", 0, {"node": "slow/x/in", "item": None}))
            line = next(line for line in told if line.startswith("slow"))
    assert re.fullmatch(r"slow  \d\.\d s  0 calls  tokens in 0, out 0\n", line)


def test_what_nodes_print_stands_above_the_picture_in_whole_lines() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80)
    with Progress(console, ["one"]) as progress:
        for dot in "abc":
            print(dot, end="", flush=True)
        print("d")
        with progress.paused():
            print("to somebody else")
        print("unfinished", end="")
        assert "unfinished" in shown(progress), "an answer that is streamed is seen at once"
    assert stream.getvalue().count("abcd") == 1
    assert stream.getvalue().endswith("unfinished\n")
    assert "to somebody else" not in stream.getvalue()
