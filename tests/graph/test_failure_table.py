"""What becomes of a run in which a call goes wrong: in each way, at each place, by each `on_error`.

`WAYS` says in which ways a call goes wrong, and `FATES` what comes of that: the run's outputs, and
what is left out, each with its reason. A limit is no failure, and what it kept from being made is
made when the run goes on: so nothing that stands for that is written down.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import pytest
from graph_runs import forever, ignores_its_cancellation, step
from watched import all_spans_ended, watch

from harness.errors import NodeTimedOut, RunLimitReached
from harness.graph import Default, Graph, NodeCall, Retry, Skipped, Timeout, graph_inputs

RETRY = Retry(2, first_delay_s=0)
TIMEOUT = Timeout(total_s=5)
INPUTS = {"numbers": [0, 1, 2], "given": 1}


async def raises():
    raise ValueError("it went wrong")


def raises_in_a_thread():
    raise ValueError("it went wrong")


async def gives_another_type():
    return 5


async def gives_what_no_journal_takes():
    return object()


async def exceeds_a_limit():
    raise RunLimitReached("max_calls = 3 are made", limit="calls")


class Way(NamedTuple):
    error: type[Exception]
    message: str
    seconds: float = 0.0


WAYS: dict[Callable[[], object], Way] = {
    raises: Way(ValueError, "it went wrong"),
    raises_in_a_thread: Way(ValueError, "it went wrong"),
    gives_another_type: Way(TypeError, "int (5), where its annotation says str"),
    gives_what_no_journal_takes: Way(TypeError, "cannot be written to the journal"),
    forever: Way(NodeTimedOut, "took longer than total_s = ", TIMEOUT.total_s),
    # Left behind a second after it was cancelled.
    ignores_its_cancellation: Way(NodeTimedOut, "took longer than total_s", TIMEOUT.total_s + 1),
    exceeds_a_limit: Way(RunLimitReached, "max_calls = 3 are made"),
}

WRONG = {
    "fan-out": "bad",
    "map item": "bad[1]",
    "stream": "bad",
    "run.call": "outer/sub/bad",
    "run.map": "outer/bad[1]",
}
"""The call that goes wrong, by the place where it stands."""

AFTER_LIMIT = {"outer": None, "last": "outer"}
FATES: dict[tuple[str, str], tuple[dict[str, str], dict[str, str | None]]] = {
    # bad and beside → join
    ("fan-out", "fail"): ({"beside": "beside()"}, {"join": "bad"}),
    ("fan-out", "skip"): (
        {"beside": "beside()", "bad": "Skipped", "join": "Skipped"},
        {"join": "bad"},
    ),
    ("fan-out", "default"): (
        {"beside": "beside()", "bad": "default", "join": "join(default, beside())"},
        {},
    ),
    # bad, for each of three numbers, the second of which goes wrong → after
    ("map item", "fail"): ({}, {"after": "bad[1]"}),
    ("map item", "skip"): (
        {"bad": "bad(0), Skipped, bad(2)", "after": "after(bad(0), bad(2))"},
        {},
    ),
    ("map item", "default"): (
        {"bad": "bad(0), default, bad(2)", "after": "after(bad(0), default, bad(2))"},
        {},
    ),
    # bad, which yields an item before it goes wrong → each, for each item → after
    ("stream", "fail"): ({}, {"each": "bad", "after": "bad"}),
    ("stream", "skip"): (
        {"bad": "Skipped", "each": "Skipped", "after": "Skipped"},
        {"each": "bad", "after": "each"},
    ),
    ("stream", "default"): (
        {
            "bad": "first, default",
            "each": "each(first), each(default)",
            "after": "after(each(first), each(default))",
        },
        {},
    ),
    # outer, which calls sub: bad → after; outer → last. bad has the policies.
    ("run.call", "fail"): (
        {},
        dict.fromkeys(("outer/sub/after", "outer", "last"), "outer/sub/bad"),
    ),
    ("run.call", "fail, limit"): ({}, {"outer/sub/after": "outer/sub/bad", **AFTER_LIMIT}),
    ("run.call", "skip"): (
        {"outer": "outer(Skipped, Skipped)", "last": "last(outer(Skipped, Skipped))"},
        {"outer/sub/after": "outer/sub/bad"},
    ),
    ("run.call", "skip, limit"): ({}, {"outer/sub/after": "outer/sub/bad", **AFTER_LIMIT}),
    ("run.call", "default"): (
        {"outer": "outer(default, after(default))", "last": "last(outer(default, after(default)))"},
        {},
    ),
    ("run.call", "default, limit"): ({}, AFTER_LIMIT),
    # outer, which maps bad over three numbers, the second of which goes wrong → last. outer has
    # the policies.
    ("run.map", "fail"): ({}, dict.fromkeys(("outer", "last"), "outer/bad[1]")),
    ("run.map", "fail, limit"): ({}, AFTER_LIMIT),
    ("run.map", "skip"): ({"outer": "Skipped", "last": "Skipped"}, AFTER_LIMIT),
    ("run.map", "default"): ({"outer": "default", "last": "last(default)"}, {"outer": None}),
}


@pytest.mark.parametrize("on_error", ["fail", "skip", "default"])
@pytest.mark.parametrize(
    ("place", "does"),
    [
        pytest.param(place, does, id=f"{place}, {does.__name__}")
        for place, does in itertools.product(WRONG, WAYS)
        if place != "run.map" or WAYS[does].error is not NodeTimedOut  # it has no timeout
    ],
)
def test_a_run_in_which_a_call_goes_wrong(place, does, on_error):
    way, wrong = WAYS[does], WRONG[place]
    is_limit = way.error is RunLimitReached
    graph = graph_of(place, does, on_error)

    watched = watch(graph, {name: INPUTS[name] for name in graph_inputs(graph)})

    usual = FATES[place, on_error]
    outputs, skips = FATES.get((place, f"{on_error}, limit"), usual) if is_limit else usual
    has_failed = on_error == "fail" and not is_limit
    attempts = 1 if is_limit or place == "stream" else RETRY.attempts
    status = "stopped" if is_limit else "failed" if has_failed else "finished"
    assert watched.ended.status == status
    assert {name: said(value) for name, value in watched.ended.outputs.items()} == outputs
    assert watched.failures == ([(wrong, way.error, attempts)] if has_failed else [])
    assert watched.skips == skips | ({} if has_failed else {wrong: None})
    assert watched.statuses[wrong] == ["error"] * attempts
    assert {(way.message in one.error, one.seconds) for one in watched.attempts[wrong]} == {
        (True, way.seconds)
    }
    is_written = status == "finished" and place != "run.map"
    assert (wrong in watched.recorded) is is_written
    assert not is_limit or {"bad", "outer"}.isdisjoint(watched.recorded)
    assert watched.tasks_left == set()
    assert all_spans_ended(watched.records)


def said(value: object) -> str:
    """A value as the table writes it."""
    if isinstance(value, Skipped):
        return "Skipped"
    return ", ".join(map(said, value)) if isinstance(value, list) else str(value)


# --- the pipelines -------------------------------------------------------------------------------


def graph_of(place: str, does: Callable[[], object], on_error: str) -> Graph:
    graph, sub = Graph("top"), Graph("sub")
    default = Default(["default"] if place == "stream" else "default")
    policies = {"timeout": TIMEOUT, "on_error": default if on_error == "default" else on_error}
    bad = bad_function(does)
    if place == "fan-out":
        graph.node(retry=RETRY, **policies)(bad)
        add(graph, "beside")
        add(graph, "join", "bad", "beside")
    elif place == "map item":
        graph.node(each={"given": "numbers"}, retry=RETRY, **policies)(bad)
        add(graph, "after", "bad")
    elif place == "stream":
        graph.node(name="bad", retry=RETRY, **policies)(bad_stream(does))
        step(graph, "each", each={"one": "bad"}, gives="each({})".format)
        add(graph, "after", "each")
    elif place == "run.call":
        sub.node(retry=RETRY, **policies)(bad)
        add(sub, "after", "bad")

        @graph.node
        async def outer(run: NodeCall) -> str:
            outputs = await run.call(sub, {"given": 1})
            return f"outer({said([*outputs.values()])})"

    else:

        @graph.node(**policies)
        async def outer(run: NodeCall) -> str:
            return said(await run.map(bad, [0, 1, 2], retry=RETRY))

    if place.startswith("run."):
        add(graph, "last", "outer")
    return graph


def add(graph: Graph, name: str, *sources: str) -> None:
    """A node that says what it was given."""
    step(graph, name, *sources, gives=lambda *given: f"{name}({', '.join(map(said, given))})")


def bad_function(does: Callable[[], object]) -> Callable[[object], object]:
    """Goes wrong when given 1."""

    async def bad(given: object) -> str:
        return f"bad({given})" if given != 1 else await does()

    def plain(given: object) -> str:
        return f"bad({given})" if given != 1 else does()

    chosen = bad if inspect.iscoroutinefunction(does) else plain
    chosen.__name__ = "bad"
    if does is gives_what_no_journal_takes:
        chosen.__annotations__["return"] = object
    return chosen


def bad_stream(does: Callable[[], object]) -> Callable[[], AsyncIterator[object]]:
    async def bad() -> AsyncIterator[str]:
        yield "first"
        await asyncio.sleep(0)
        given = does()
        yield await given if inspect.isawaitable(given) else given

    if does is gives_what_no_journal_takes:
        bad.__annotations__["return"] = AsyncIterator[object]
    return bad
