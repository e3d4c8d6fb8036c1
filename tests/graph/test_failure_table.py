"""What becomes of a run in which a call goes wrong: every way, at every place, under every policy.

Three tables say it, and every run is held against all of them.

`WAYS`: in which ways a call goes wrong, and what its last attempt leaves.

`STANDS_FOR_IT`: what `on_error` puts in the place of its output. A limit is no failure, and what it
kept from being made is made when the run goes on: so nothing that stands for that is written down.

`FATES`: what becomes of each call of a run, by the place of the one that goes wrong.

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
from dataclasses import astuple, dataclass
from typing import Any, Literal

import pytest
from graph_runs import step
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


STANDS_FOR_IT = {"fail": None, "skip": "Skipped", "default": "default"}

# By place, and by on_error with what makes a difference besides: `fail_fast`, with on_error="fail",
# when it was no limit that was exceeded; `limit`; `timeout`. The first column of a place is whole,
# and each other says what differs from it.
FATES: dict[str, dict[str, str]] = {
    # before → bad, quick, slow; all three → join; slow → beside
    "fan-out": {
        "fail": """
            before  done: before()
            bad     GOES WRONG
            quick   done: quick(before())
            slow    done: slow(before())
            beside  done: beside(slow(before()))
            join    not begun, for bad""",
        "fail fail_fast": """
            slow    cut off, for bad
            beside  not begun, for bad""",
        "skip": """
            join    left out, for bad""",
        "default": """
            join    done: join(default, quick(before()), slow(before()))""",
    },
    # bad, for each of three numbers, the second of which goes wrong → after
    "map item": {
        "fail": """
            bad[0]  done: bad(0)
            bad[1]  GOES WRONG
            bad[2]  done: bad(2)
            after   not begun, for bad[1]""",
        "fail fail_fast": """
            bad[2]  cut off, for bad[1]""",
        # It would take too long as well, if it were still at work then.
        "fail fail_fast timeout": "",
        "skip": """
            bad     a list
            after   done: after(bad(0), bad(2))""",
        "default": """
            bad     a list
            after   done: after(bad(0), default, bad(2))""",
    },
    # bad, which yields an item before it goes wrong → each, for each item → after
    "stream": {
        "fail": """
            bad[0]   handed on
            bad      GOES WRONG
            each[0]  done: each(first)
            each     not begun, for bad
            after    not begun, for bad""",
        "skip": """
            each     left out, for bad
            after    left out, for each""",
        # What stands for the rest of its items comes behind those that it gave.
        "default": """
            each[1]  done: each(default)
            each     a list
            after    done: after(each(first), each(default))""",
    },
    # outer, which calls sub: bad → after, and slow; outer → last; and beside. bad has the policies.
    "nested by run.call": {
        "fail": """
            outer/sub/bad    GOES WRONG
            outer/sub/after  not begun, for outer/sub/bad
            outer/sub/slow   done: slow()
            outer            undone, for outer/sub/bad
            last             not begun, for outer/sub/bad
            beside           done: beside()""",
        "fail fail_fast": """
            outer/sub/slow   cut off, for outer/sub/bad
            beside           cut off, for outer/sub/bad""",
        "fail limit": """
            outer            stopped
            last             not begun, for outer""",
        "skip": """
            outer/sub/after  left out, for outer/sub/bad
            outer            done: outer(Skipped, Skipped, slow())
            last             done: last(outer(Skipped, Skipped, slow()))""",
        "skip limit": """
            outer/sub/after  left out, for outer/sub/bad
            outer            stopped
            last             not begun, for outer""",
        "default": """
            outer/sub/after  done: after(default)
            outer            done: outer(default, after(default), slow())
            last             done: last(outer(default, after(default), slow()))""",
        "default limit": """
            outer/sub/after  done: after(default)
            outer            stopped
            last             not begun, for outer""",
    },
    # outer, which maps bad over three numbers, the second of which goes wrong; outer → last; and
    # beside. outer has the policies, as the calls of a run.map have but a Retry.
    "nested by run.map": {
        "fail": """
            outer/bad[0]  done: bad(0)
            outer/bad[1]  GOES WRONG
            outer/bad[2]  done: bad(2)
            outer         undone, for outer/bad[1]
            last          not begun, for outer/bad[1]
            beside        done: beside()""",
        "fail fail_fast": """
            beside        cut off, for outer/bad[1]""",
        "fail limit": """
            outer/bad[1]  stopped
            outer         GOES WRONG
            last          not begun, for outer""",
        "fail timeout": """
            outer/bad[1]  cut off, for outer
            outer/bad[2]  cut off, for outer
            outer         GOES WRONG
            last          not begun, for outer""",
        "fail fail_fast timeout": """
            outer/bad[1]  cut off, for outer
            outer/bad[2]  cut off, for outer
            outer         GOES WRONG
            last          not begun, for outer
            beside        cut off, for outer""",
        "skip": """
            outer/bad[1]  unnoticed
            outer         GOES WRONG
            last          left out, for outer""",
        "skip limit": """
            outer/bad[1]  stopped
            outer         GOES WRONG
            last          left out, for outer""",
        "skip timeout": """
            outer/bad[1]  cut off, for outer
            outer/bad[2]  cut off, for outer
            outer         GOES WRONG
            last          left out, for outer""",
        "default": """
            outer/bad[1]  unnoticed
            outer         GOES WRONG
            last          done: last(default)""",
        "default limit": """
            outer/bad[1]  stopped
            outer         GOES WRONG
            last          done: last(default)""",
        "default timeout": """
            outer/bad[1]  cut off, for outer
            outer/bad[2]  cut off, for outer
            outer         GOES WRONG
            last          done: last(default)""",
    },
}


# --- the combinations ----------------------------------------------------------------------------


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
    def status(self) -> str:
        if self.is_limit:
            return "stopped"
        return "failed" if self.on_error == "fail" else "finished"

    @property
    def column(self) -> str:
        """Where its fates stand."""
        fails_fast = self.fail_fast and self.on_error == "fail" and not self.is_limit
        words = ["fail_fast"] * fails_fast + ["limit"] * self.is_limit
        words += ["timeout"] * self.is_timeout
        columns = [f"{self.on_error} {one}" for one in (" ".join(words), *words)]
        return next(one for one in (*columns, self.on_error) if one in FATES[self.place])

    @property
    def fates(self) -> dict[str, str]:
        """By call."""
        columns = FATES[self.place]
        lines = f"{columns['fail']}\n{columns[self.column]}".splitlines()
        return dict(re.split(r"  +", line.strip(), maxsplit=1) for line in lines if line)

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

    @property
    def covers(self) -> set[object]:
        """Its column, and each two of its properties."""
        return {(self.place, self.column), *itertools.combinations(enumerate(astuple(self)), 2)}


def every_case() -> Iterator[Case]:
    switches = (False, True)
    for way, place, *policies in itertools.product(WAYS, FATES, STANDS_FOR_IT, switches, switches):
        if place == "stream":
            yield Case(way, place, "generating", *policies)
            continue
        yield Case(way, place, "async", *policies)
        # A thread cannot be cancelled: one that takes too long hangs past that as well.
        if way != "hangs past its cancellation":
            yield Case(way, place, "plain", *policies)


def some_cases() -> Iterator[Case]:
    """Few of them, in which each two properties meet and all columns are used."""
    covers = {case: case.covers for case in every_case()}
    left = set().union(*covers.values())
    while left:
        case = max(covers, key=lambda case: len(covers[case] & left))
        left -= covers.pop(case)
        yield case


@pytest.mark.parametrize("case", [*some_cases()], ids=str)
def test_a_run_in_which_a_call_goes_wrong(case):
    with StuckThreads() as stuck:
        graph = graph_of(case, stuck)
        inputs = {name: [0, 1, 2] for name in graph_inputs(graph)}
        watched = watch(graph, inputs, runs=stuck.run)

    assert watched.ended.status == case.status
    assert {name: said(value) for name, value in watched.ended.outputs.items()} == outputs_of(case)
    assert watched.failures == failures_of(case)
    assert watched.skips == skips_of(case)
    assert watched.statuses == statuses_of(case)
    assert watched.recorded == recorded_of(case)
    assert (watched.ended.stopped_by is not None) is case.is_limit
    check_its_error(case, watched)
    assert watched.tasks_left == set()
    assert all_spans_ended(watched.records)


@pytest.mark.slow
def test_every_run_in_which_a_call_goes_wrong():
    for case in every_case():
        test_a_run_in_which_a_call_goes_wrong(case)


# --- what the tables say of a case ---------------------------------------------------------------


def outputs_of(case: Case) -> dict[str, str]:
    outputs: dict[str, str | None] = {}
    for label, fate in case.fates.items():
        if fate.startswith("done: "):
            outputs[label] = fate.removeprefix("done: ")
        elif fate.startswith("left out"):
            outputs[label] = "Skipped"
        elif fate == "GOES WRONG":
            outputs[label] = STANDS_FOR_IT[case.on_error]
    for name in [label for label, fate in case.fates.items() if fate == "a list"]:
        outputs[name] = ", ".join(outputs[one] for one in sorted(outputs) if one[:-3] == name)
    if case.place == "stream" and case.on_error == "default":
        outputs["bad"] = "first, default"
    # A list's items are in the list, and what is nested is not what the run gave.
    return {name: text for name, text in outputs.items() if name.isidentifier() and text}


def failures_of(case: Case) -> list[tuple[str, type[BaseException], int]]:
    if case.status != "failed":
        return []
    return [(case.wrong, WAYS[case.way].error, case.attempts)]


def skips_of(case: Case) -> dict[str, str | None]:
    skips: dict[str, str | None] = {}
    for label, fate in case.fates.items():
        what, _, because_of = fate.partition(", for ")
        if what in {"not begun", "left out", "cut off", "undone"}:
            skips[label] = because_of
        elif fate in {"stopped", "unnoticed"} or (fate == "GOES WRONG" and case.status != "failed"):
            skips[label] = None
    return skips


def statuses_of(case: Case) -> dict[str, list[str]]:
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


def recorded_of(case: Case) -> set[str]:
    recorded = {"done", "handed on"}
    if case.status == "finished":
        recorded.add("GOES WRONG")
    return {label for label, fate in case.fates.items() if fate.partition(":")[0] in recorded}


def check_its_error(case: Case, watched: Watched) -> None:
    """That what is said is what happened, and that it took as long as it should."""
    left, attempts = WAYS[case.way], watched.attempts[case.wrong]
    if case.status != "failed":
        (reason,) = [one.reason for one in watched.ended.skips if one.node == case.wrong]
        assert left.message in reason
    assert all(left.message in (one.error or "") for one in attempts)
    if case.wrong != "outer" or case.is_timeout:  # else it waits for the others of its map
        assert {one.seconds for one in attempts} == {left.seconds}


def said(value: object) -> str:
    """A value as the tables write it."""
    if isinstance(value, Skipped):
        return "Skipped"
    return ", ".join(map(said, value)) if isinstance(value, list) else str(value)


def is_cut_off(case: Case, name: str) -> bool:
    return any(
        label.endswith(name) and fate.startswith("cut off") for label, fate in case.fates.items()
    )


# --- the pipelines -------------------------------------------------------------------------------


def graph_of(case: Case, stuck: StuckThreads) -> Graph:
    graph = Graph("top", fail_fast=case.fail_fast)
    if case.place == "fan-out":
        add(graph, case, "before")
        add_bad(graph, case, stuck, takes={"given": "before"})
        add(graph, case, "quick", "before")
        add(graph, case, "slow", "before", seconds=100)
        add(graph, case, "beside", "slow")
        add(graph, case, "join", "bad", "quick", "slow")
    elif case.place == "map item":
        add_bad(graph, case, stuck, each={"given": "numbers"})
        add(graph, case, "after", "bad")
    elif case.place == "stream":
        add_stream(graph, case)
    else:
        add_nested(graph, case, stuck)
    return graph


def add(graph: Graph, case: Case, name: str, *sources: str, seconds: float = 0) -> None:
    """A node that says what it was given, and takes for ever where it is to be cut off."""
    takes_for_ever = is_cut_off(case, name)

    async def does(*given: object) -> str:
        await (asyncio.Event().wait() if takes_for_ever else asyncio.sleep(seconds))
        return f"{name}({', '.join(map(said, given))})"

    step(graph, name, *sources, gives=does)


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
    takes_for_ever = is_cut_off(case, "[2]")

    async def bad(given: object) -> str:
        if given == 2:
            await (asyncio.Event().wait() if takes_for_ever else asyncio.sleep(4))
        return f"bad({given})" if given in {0, 2} else await go_wrong(case.way)

    def plain(given: object) -> str:
        if (given == 2 and takes_for_ever) or (given not in {0, 2} and case.is_timeout):
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
