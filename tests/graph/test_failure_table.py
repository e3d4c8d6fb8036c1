"""What becomes of a run in which a call goes wrong: every way, at every place, under every policy.

Three tables say it, and every run is held against all of them.

`WAYS`: in which ways a call goes wrong, and what its last attempt leaves.

`STANDS_FOR`: what `on_error` puts in the place of its output. A limit is no failure, and what it
kept from being made is made when the run goes on: so nothing that stands for that is written down.

`FATES`: what becomes of each call of a run, by the place of the one that goes wrong:

    done: TEXT          it gave this, which is in the journal
    handed on           an item of a node that goes on to yield; it is in the journal
    GOES WRONG          as the two tables above say
    not begun, for X    X was to come before it, and gave nothing
    left out, for X     X was to come before it, and was skipped; so is it
    cut off, for X      it was at work when X ended the run, or the call that it is nested in; its
                        span is cancelled, or an error where it ignored that
    undone, for X       it fails because X does, which is nested in it: X is listed, and not it
    stopped             it is at a limit, or nests what is
    unnoticed           it fails inside a call that does not: it is listed as left out
    a list              of its calls: whole, or with what stands for the wrong one
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from watched import StuckThreads, Watched, all_spans_ended, watch

from harness.errors import NodeTimedOut, RunLimitReached
from harness.graph import Default, Graph, NodeCall, OnError, Retry, Skipped, Timeout, graph_inputs

Way = Literal[
    "raises",
    "takes too long",
    "hangs past its cancellation",
    "returns another type",
    "returns what no journal takes",
    "exceeds a limit",
]


@dataclass(frozen=True)
class Left:
    """What a call leaves that goes wrong."""

    error: type[Exception]
    message: str
    attempts: int
    """With `Retry(3)`; without it, one."""
    seconds: float = 0.0
    """Each of them, with `Timeout(total_s=5)`."""


WAYS: dict[Way, Left] = {
    "raises": Left(ValueError, "it went wrong", 3),
    "takes too long": Left(NodeTimedOut, "took longer than total_s = ", 3, seconds=5),
    # Left behind a second after it was cancelled.
    "hangs past its cancellation": Left(NodeTimedOut, "took longer than total_s", 3, seconds=6),
    "returns another type": Left(TypeError, "int (5), where its annotation says str", 3),
    "returns what no journal takes": Left(TypeError, "cannot be written to the journal", 3),
    "exceeds a limit": Left(RunLimitReached, "max_calls = 3 are made", 1),
}


@dataclass(frozen=True)
class StandIn:
    """What stands for an output, and what is said of it."""

    value: Literal["nothing", "Skipped", "the default"]
    told_in: Literal["failures", "skips", "skips and journal"]
    status: Literal["failed", "finished", "stopped"]


STANDS_FOR: dict[str, StandIn] = {
    "fail": StandIn("nothing", "failures", "failed"),
    "skip": StandIn("Skipped", "skips and journal", "finished"),
    "default": StandIn("the default", "skips and journal", "finished"),
}
STANDS_FOR_WHAT_A_LIMIT_STOPPED: dict[str, StandIn] = {
    "fail": StandIn("nothing", "skips", "stopped"),
    "skip": StandIn("Skipped", "skips", "stopped"),
    "default": StandIn("the default", "skips", "stopped"),
}

# The place; on_error; and what makes a difference besides: `fail_fast`, with on_error="fail", when
# it was no limit that was exceeded; `limit`; `timeout`. Else it makes none.
FATES: dict[tuple[str, str, str], str] = {
    # before → bad → after → last
    ("chain", "fail", ""): """
        before  done: before()
        bad     GOES WRONG
        after   not begun, for bad
        last    not begun, for bad
    """,
    ("chain", "skip", ""): """
        before  done: before()
        bad     GOES WRONG
        after   left out, for bad
        last    left out, for after
    """,
    ("chain", "default", ""): """
        before  done: before()
        bad     GOES WRONG
        after   done: after(default)
        last    done: last(after(default))
    """,
    # before → bad, quick, slow; all three → join; slow → beside
    ("fan-out", "fail", ""): """
        before  done: before()
        bad     GOES WRONG
        quick   done: quick(before())
        slow    done: slow(before())
        beside  done: beside(slow(before()))
        join    not begun, for bad
    """,
    ("fan-out", "fail", "fail_fast"): """
        before  done: before()
        bad     GOES WRONG
        quick   done: quick(before())
        slow    cut off, for bad
        beside  not begun, for bad
        join    not begun, for bad
    """,
    ("fan-out", "skip", ""): """
        before  done: before()
        bad     GOES WRONG
        quick   done: quick(before())
        slow    done: slow(before())
        beside  done: beside(slow(before()))
        join    left out, for bad
    """,
    ("fan-out", "default", ""): """
        before  done: before()
        bad     GOES WRONG
        quick   done: quick(before())
        slow    done: slow(before())
        beside  done: beside(slow(before()))
        join    done: join(default, quick(before()), slow(before()))
    """,
    # bad, for each of three numbers, the second of which goes wrong → after
    ("map item", "fail", ""): """
        bad[0]  done: bad(0)
        bad[1]  GOES WRONG
        bad[2]  done: bad(2)
        after   not begun, for bad[1]
    """,
    ("map item", "fail", "fail_fast"): """
        bad[0]  done: bad(0)
        bad[1]  GOES WRONG
        bad[2]  cut off, for bad[1]
        after   not begun, for bad[1]
    """,
    # It would take too long as well, if it were still at work then.
    ("map item", "fail", "fail_fast timeout"): """
        bad[0]  done: bad(0)
        bad[1]  GOES WRONG
        bad[2]  done: bad(2)
        after   not begun, for bad[1]
    """,
    ("map item", "skip", ""): """
        bad[0]  done: bad(0)
        bad[1]  GOES WRONG
        bad[2]  done: bad(2)
        bad     a list
        after   done: after(bad(0), bad(2))
    """,
    ("map item", "default", ""): """
        bad[0]  done: bad(0)
        bad[1]  GOES WRONG
        bad[2]  done: bad(2)
        bad     a list
        after   done: after(bad(0), default, bad(2))
    """,
    # bad, which yields an item before it goes wrong → each, for each item → after
    ("stream", "fail", ""): """
        bad[0]   handed on
        bad      GOES WRONG
        each[0]  done: each(first)
        each     not begun, for bad
        after    not begun, for bad
    """,
    ("stream", "skip", ""): """
        bad[0]   handed on
        bad      GOES WRONG
        each[0]  done: each(first)
        each     left out, for bad
        after    left out, for each
    """,
    # What stands for the rest of its items comes behind those that it gave.
    ("stream", "default", ""): """
        bad[0]   handed on
        bad      GOES WRONG
        each[0]  done: each(first)
        each[1]  done: each(default)
        each     a list
        after    done: after(each(first), each(default))
    """,
    # outer, which calls sub: bad → after, and slow; outer → last; and beside. bad has the policies.
    ("nested by run.call", "fail", ""): """
        outer/sub/bad    GOES WRONG
        outer/sub/after  not begun, for outer/sub/bad
        outer/sub/slow   done: slow()
        outer            undone, for outer/sub/bad
        last             not begun, for outer/sub/bad
        beside           done: beside()
    """,
    ("nested by run.call", "fail", "fail_fast"): """
        outer/sub/bad    GOES WRONG
        outer/sub/after  not begun, for outer/sub/bad
        outer/sub/slow   cut off, for outer/sub/bad
        outer            undone, for outer/sub/bad
        last             not begun, for outer/sub/bad
        beside           cut off, for outer/sub/bad
    """,
    ("nested by run.call", "fail", "limit"): """
        outer/sub/bad    GOES WRONG
        outer/sub/after  not begun, for outer/sub/bad
        outer/sub/slow   done: slow()
        outer            stopped
        last             not begun, for outer
        beside           done: beside()
    """,
    ("nested by run.call", "skip", ""): """
        outer/sub/bad    GOES WRONG
        outer/sub/after  left out, for outer/sub/bad
        outer/sub/slow   done: slow()
        outer            done: outer(Skipped, Skipped, slow())
        last             done: last(outer(Skipped, Skipped, slow()))
        beside           done: beside()
    """,
    ("nested by run.call", "skip", "limit"): """
        outer/sub/bad    GOES WRONG
        outer/sub/after  left out, for outer/sub/bad
        outer/sub/slow   done: slow()
        outer            stopped
        last             not begun, for outer
        beside           done: beside()
    """,
    ("nested by run.call", "default", ""): """
        outer/sub/bad    GOES WRONG
        outer/sub/after  done: after(default)
        outer/sub/slow   done: slow()
        outer            done: outer(default, after(default), slow())
        last             done: last(outer(default, after(default), slow()))
        beside           done: beside()
    """,
    ("nested by run.call", "default", "limit"): """
        outer/sub/bad    GOES WRONG
        outer/sub/after  done: after(default)
        outer/sub/slow   done: slow()
        outer            stopped
        last             not begun, for outer
        beside           done: beside()
    """,
    # outer, which maps bad over three numbers, the second of which goes wrong; outer → last; and
    # beside. outer has the policies, as the calls of a run.map have but a Retry.
    ("nested by run.map", "fail", ""): """
        outer/bad[0]  done: bad(0)
        outer/bad[1]  GOES WRONG
        outer/bad[2]  done: bad(2)
        outer         undone, for outer/bad[1]
        last          not begun, for outer/bad[1]
        beside        done: beside()
    """,
    ("nested by run.map", "fail", "fail_fast"): """
        outer/bad[0]  done: bad(0)
        outer/bad[1]  GOES WRONG
        outer/bad[2]  done: bad(2)
        outer         undone, for outer/bad[1]
        last          not begun, for outer/bad[1]
        beside        cut off, for outer/bad[1]
    """,
    ("nested by run.map", "fail", "limit"): """
        outer/bad[0]  done: bad(0)
        outer/bad[1]  stopped
        outer/bad[2]  done: bad(2)
        outer         GOES WRONG
        last          not begun, for outer
        beside        done: beside()
    """,
    ("nested by run.map", "fail", "timeout"): """
        outer/bad[0]  done: bad(0)
        outer/bad[1]  cut off, for outer
        outer/bad[2]  cut off, for outer
        outer         GOES WRONG
        last          not begun, for outer
        beside        done: beside()
    """,
    ("nested by run.map", "fail", "fail_fast timeout"): """
        outer/bad[0]  done: bad(0)
        outer/bad[1]  cut off, for outer
        outer/bad[2]  cut off, for outer
        outer         GOES WRONG
        last          not begun, for outer
        beside        cut off, for outer
    """,
    ("nested by run.map", "skip", ""): """
        outer/bad[0]  done: bad(0)
        outer/bad[1]  unnoticed
        outer/bad[2]  done: bad(2)
        outer         GOES WRONG
        last          left out, for outer
        beside        done: beside()
    """,
    ("nested by run.map", "skip", "limit"): """
        outer/bad[0]  done: bad(0)
        outer/bad[1]  stopped
        outer/bad[2]  done: bad(2)
        outer         GOES WRONG
        last          left out, for outer
        beside        done: beside()
    """,
    ("nested by run.map", "skip", "timeout"): """
        outer/bad[0]  done: bad(0)
        outer/bad[1]  cut off, for outer
        outer/bad[2]  cut off, for outer
        outer         GOES WRONG
        last          left out, for outer
        beside        done: beside()
    """,
    ("nested by run.map", "default", ""): """
        outer/bad[0]  done: bad(0)
        outer/bad[1]  unnoticed
        outer/bad[2]  done: bad(2)
        outer         GOES WRONG
        last          done: last(default)
        beside        done: beside()
    """,
    ("nested by run.map", "default", "limit"): """
        outer/bad[0]  done: bad(0)
        outer/bad[1]  stopped
        outer/bad[2]  done: bad(2)
        outer         GOES WRONG
        last          done: last(default)
        beside        done: beside()
    """,
    ("nested by run.map", "default", "timeout"): """
        outer/bad[0]  done: bad(0)
        outer/bad[1]  cut off, for outer
        outer/bad[2]  cut off, for outer
        outer         GOES WRONG
        last          done: last(default)
        beside        done: beside()
    """,
}


# --- every combination ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One combination."""

    way: Way
    place: str
    function: Literal["async", "plain", "generating"]
    on_error: str
    retries: bool
    fail_fast: bool

    def __str__(self) -> str:
        policies = [f"on_error={self.on_error}"]
        policies += ["Retry"] * self.retries + ["fail_fast"] * self.fail_fast
        return f"{self.way}, {self.place}, {self.function}, {', '.join(policies)}"

    @property
    def is_limit(self) -> bool:
        return self.way == "exceeds a limit"

    @property
    def is_timeout(self) -> bool:
        return WAYS[self.way].error is NodeTimedOut

    @property
    def stand_in(self) -> StandIn:
        return (STANDS_FOR_WHAT_A_LIMIT_STOPPED if self.is_limit else STANDS_FOR)[self.on_error]

    @property
    def key(self) -> tuple[str, str, str]:
        """Where its fates stand."""
        fails_fast = self.fail_fast and self.on_error == "fail" and not self.is_limit
        words = [
            *["fail_fast"] * fails_fast,
            *["limit"] * self.is_limit,
            *["timeout"] * self.is_timeout,
        ]
        keys = [(self.place, self.on_error, one) for one in (" ".join(words), *words, "")]
        return next(key for key in keys if key in FATES)

    @property
    def fates(self) -> dict[str, str]:
        """By call."""
        lines = FATES[self.key].strip().splitlines()
        return dict(re.split(r"  +", line.strip(), maxsplit=1) for line in lines)

    @property
    def wrong(self) -> str:
        """The call of which the tables say that it goes wrong."""
        (label,) = [label for label, fate in self.fates.items() if fate == "GOES WRONG"]
        return label

    @property
    def attempts(self) -> int:
        """Of what is called with a `Retry(3)`."""
        if not self.retries or self.function == "generating":
            return 1  # what a generating node has handed on cannot be taken back
        if self.is_timeout and self.place == "nested by run.map":
            return 1  # it is the outer call that takes too long
        return WAYS[self.way].attempts


PLACES = tuple(dict.fromkeys(place for place, _, _ in FATES))


def cases() -> Iterator[Case]:
    for way, place, *policies in itertools.product(
        WAYS, PLACES, STANDS_FOR, (False, True), (False, True)
    ):
        if place == "stream":
            yield Case(way, place, "generating", *policies)
            continue
        yield Case(way, place, "async", *policies)
        # A thread cannot be cancelled: one that takes too long hangs past that as well.
        if way != "hangs past its cancellation":
            yield Case(way, place, "plain", *policies)


CASES = [*cases()]


def test_the_cases_are_all_that_there_are():
    ways, policies = 6, 3 * 2 * 2
    plain = (ways - 1) * 5 * policies

    assert len(PLACES) == 6
    assert len(set(map(str, CASES))) == len(CASES) == ways * len(PLACES) * policies + plain


def test_every_part_of_the_table_is_used():
    assert {case.key for case in CASES} == FATES.keys()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_run_in_which_a_call_goes_wrong(case):
    with StuckThreads() as stuck:
        graph = graph_of(case, stuck)
        inputs = {name: [0, 1, 2] for name in graph_inputs(graph)}
        watched = watch(graph, inputs, runs=stuck.run)

    assert watched.ended.status == case.stand_in.status
    assert outputs_said(watched) == expected_outputs(case)
    assert watched.failures == expected_failures(case)
    assert watched.skips == expected_skips(case)
    assert watched.statuses == expected_statuses(case)
    assert watched.recorded == expected_in_journal(case)
    assert (watched.ended.stopped_by is not None) is case.is_limit
    check_its_error(case, watched)
    assert watched.tasks_left == set()
    assert all_spans_ended(watched.records)


# --- what the tables say of a case ---------------------------------------------------------------


def expected_outputs(case: Case) -> dict[str, str]:
    stand_in = {"nothing": None, "Skipped": "Skipped", "the default": "default"}
    outputs: dict[str, str] = {}
    for label, fate in case.fates.items():
        if fate.startswith("done: "):
            outputs[label] = fate.removeprefix("done: ")
        elif fate.startswith("left out"):
            outputs[label] = "Skipped"
        elif fate == "GOES WRONG":
            text = stand_in[case.stand_in.value]
            if text is not None:
                outputs[label] = text
        elif fate == "a list":
            outputs[label] = ", ".join(outputs[one] for one in outputs if one[:-3] == label)
    if case.place == "stream" and case.on_error == "default":
        outputs["bad"] = "first, default"
    # A list's items are in the list, and what is nested is not what the run gave.
    return {label: text for label, text in outputs.items() if re.fullmatch(r"\w+", label)}


def expected_failures(case: Case) -> list[tuple[str, type[BaseException], int]]:
    if case.stand_in.told_in != "failures":
        return []
    return [(case.wrong, WAYS[case.way].error, case.attempts)]


def expected_skips(case: Case) -> dict[str, str | None]:
    skips: dict[str, str | None] = {}
    for label, fate in case.fates.items():
        what, _, because_of = fate.partition(", for ")
        if what in {"not begun", "left out", "cut off", "undone"}:
            skips[label] = because_of
        elif fate in {"stopped", "unnoticed"} or (
            fate == "GOES WRONG" and case.stand_in.told_in != "failures"
        ):
            skips[label] = None
    return skips


def expected_statuses(case: Case) -> dict[str, list[str]]:
    statuses: dict[str, list[str]] = {}
    for label, fate in case.fates.items():
        what = fate.partition(",")[0].partition(":")[0]
        if what == "done":
            statuses[label] = ["ok"]
        elif what == "cut off":
            ignores_it = case.way == "hangs past its cancellation" and label.endswith("[1]")
            statuses[label] = ["error" if ignores_it else "cancelled"]
        elif what in {"GOES WRONG", "undone", "stopped", "unnoticed"}:
            statuses[label] = ["error"] * (1 if label == "outer" else case.attempts)
    return statuses


def expected_in_journal(case: Case) -> set[str]:
    in_journal = {"done", "handed on"}
    if case.stand_in.told_in == "skips and journal":
        in_journal.add("GOES WRONG")
    return {label for label, fate in case.fates.items() if fate.partition(":")[0] in in_journal}


def check_its_error(case: Case, watched: Watched) -> None:
    """That what is said is what happened, and that it took as long as it should."""
    left, attempts = WAYS[case.way], watched.attempts[case.wrong]
    if case.stand_in.told_in == "failures":
        (failure,) = watched.ended.failures
        message = str(failure.error)
    else:
        (message,) = [one.reason for one in watched.ended.skips if one.node == case.wrong]
    assert left.message in message
    assert all(left.message in (one.error or "") for one in attempts)
    if case.wrong != "outer" or case.is_timeout:  # else it waits for the others of its map
        assert {one.seconds for one in attempts} == {left.seconds}


def outputs_said(watched: Watched) -> dict[str, str]:
    return {name: said(value) for name, value in watched.ended.outputs.items()}


def said(value: object) -> str:
    """A value as the tables write it."""
    if isinstance(value, Skipped):
        return "Skipped"
    return ", ".join(map(said, value)) if isinstance(value, list) else str(value)


# --- the pipelines -------------------------------------------------------------------------------


def graph_of(case: Case, stuck: StuckThreads) -> Graph:
    graph = Graph("top", fail_fast=case.fail_fast)
    if case.place == "chain":
        add(graph, case, "before")
        add_bad(graph, case, stuck, takes={"given": "before"})
        add(graph, case, "after", "bad")
        add(graph, case, "last", "after")
    elif case.place == "fan-out":
        add(graph, case, "before")
        add_bad(graph, case, stuck, takes={"given": "before"})
        add(graph, case, "quick", "before")
        add(graph, case, "slow", "before", seconds=100)
        add(graph, case, "beside", "slow")

        @graph.node
        async def join(bad: str, quick: str, slow: str) -> str:
            return f"join({bad}, {quick}, {slow})"

    elif case.place == "map item":
        add_bad(graph, case, stuck, each={"given": "numbers"})
        add(graph, case, "after", "bad")
    elif case.place == "stream":
        add_stream(graph, case)
    else:
        add_nested(graph, case, stuck)
    return graph


def add(graph: Graph, case: Case, name: str, *sources: str, seconds: float = 0) -> None:
    """A node that says what it was given; it takes for ever where it is to be cut off."""
    is_cut_off = any(
        label.endswith(name) and fate.startswith("cut off") for label, fate in case.fates.items()
    )

    async def spend() -> None:
        await (asyncio.Event().wait() if is_cut_off else asyncio.sleep(seconds))

    if sources:

        async def function(one: object) -> str:
            await spend()
            return f"{name}({said(one)})"

        graph.node(name=name, takes={"one": sources[0]})(function)
    else:

        async def function() -> str:
            await spend()
            return f"{name}()"

        graph.node(name=name)(function)


def add_bad(
    graph: Graph,
    case: Case,
    stuck: StuckThreads,
    *,
    each: dict[str, str] | None = None,
    takes: dict[str, str] | None = None,
) -> None:
    graph.node(
        name="bad",
        each=each,
        takes=takes,
        retry=retry_of(case),
        timeout=Timeout(total_s=5),
        on_error=on_error_of(case, "default"),
    )(bad_function(case, stuck))


def add_stream(graph: Graph, case: Case) -> None:
    is_taken = asyncio.Event()

    async def bad() -> AsyncIterator[str]:
        yield "first"
        await is_taken.wait()
        yield await go_wrong(case.way)

    if case.way == "returns what no journal takes":
        bad.__annotations__["return"] = AsyncIterator[object]
    graph.node(
        retry=retry_of(case),
        timeout=Timeout(total_s=5),
        on_error=on_error_of(case, ["default"]),
    )(bad)

    @graph.node(each={"one": "bad"})
    async def each(one: str) -> str:
        is_taken.set()
        return f"each({one})"

    add(graph, case, "after", "each")


def add_nested(graph: Graph, case: Case, stuck: StuckThreads) -> None:
    if case.place == "nested by run.call":
        sub = Graph("sub", fail_fast=case.fail_fast)
        add_bad(sub, case, stuck)
        add(sub, case, "after", "bad")
        add(sub, case, "slow", seconds=100)

        @graph.node
        async def outer(run: NodeCall) -> str:
            outputs = await run.call(sub, {"given": "before"})
            return f"outer({said([*outputs.values()])})"

    else:

        @graph.node(timeout=Timeout(total_s=5), on_error=on_error_of(case, "default"))
        async def outer(run: NodeCall, numbers: list[int]) -> str:
            return said(await run.map(bad_function(case, stuck), numbers, retry=retry_of(case)))

    add(graph, case, "last", "outer")
    add(graph, case, "beside", seconds=1000)


def retry_of(case: Case) -> Retry | None:
    return Retry(3, first_delay_s=0) if case.retries else None


def on_error_of(case: Case, default: object) -> OnError:
    return Default(default) if case.on_error == "default" else case.on_error


def bad_function(case: Case, stuck: StuckThreads):
    """Goes wrong when given 1 or a text; given 2, it takes longer than that."""
    is_cut_off = any(
        label.endswith("[2]") and fate.startswith("cut off") for label, fate in case.fates.items()
    )

    async def bad(given: object) -> str:
        if given == 2:
            await (asyncio.Event().wait() if is_cut_off else asyncio.sleep(4))
        return f"bad({given})" if given in {0, 2} else await go_wrong(case.way)

    def plain(given: object) -> str:
        if (given == 2 and is_cut_off) or (given not in {0, 2} and case.is_timeout):
            stuck.wait()
        return f"bad({given})" if given in {0, 2} else go_wrong_at_once(case.way)

    chosen = plain if case.function == "plain" else bad
    chosen.__name__ = "bad"
    if case.way == "returns what no journal takes":  # of an annotation that says nothing
        chosen.__annotations__["return"] = object
    return chosen


async def go_wrong(way: Way) -> str:
    if way == "takes too long":
        await asyncio.Event().wait()
    while way == "hangs past its cancellation":
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
    return go_wrong_at_once(way)


def go_wrong_at_once(way: Way) -> str:
    if way == "raises":
        raise ValueError("it went wrong")
    if way == "exceeds a limit":
        raise RunLimitReached("max_calls = 3 are made", limit="calls")
    values: Any = {"returns another type": 5, "returns what no journal takes": object()}
    return values[way]
