"""What the loop promises, whatever its producer and its evaluator do."""

import asyncio
from dataclasses import dataclass
from typing import get_args

from hypothesis import event, given
from hypothesis import strategies as st
from scripted_loops import (
    CUT,
    FIRST,
    NO_VERDICT,
    PARTED,
    TIMEOUT,
    World,
    digest_choice,
    journal_of,
    run_loop,
    scores,
)

from harness.errors import HarnessError
from harness.inference import Limits
from harness.rubric import Draft
from harness.trace import Instant
from harness.wiggum import LoopPolicy, rounds_from
from harness.wiggum.policy import StopReason

points = st.integers(0, 20).map(lambda halves: halves / 2)
middling = st.integers(8, 14).map(lambda halves: halves / 2)
verdicts = st.builds(
    scores, points | middling, points | middling, section=st.sampled_from([None, None, 0, 1])
)

PRODUCED = {
    "new": "# One\n\nText number {number}.",
    "new too": "# One\n\nText number {number}.",
    "both": "# One\n\nText number {number}.\n\n# Two\n\nAnd {number} more.\n",
    "a part more": "# One\n\nText {number}.\n\n# Part {number}\n\nAnother.\n",
    "the first again": "# One\n\nText number 1.",
    "prose": "It is text number {number}.",
    "a heading": "# One\n",
    "marks": "# One\n\n[…]\n",
    "nothing": " \n",
}
producing = st.sampled_from(
    [*PRODUCED, *["new", "both", "a part more", "prose"] * 6, "error", "stall"]
)


@dataclass(frozen=True)
class Script:
    """What the models do."""

    drafts: tuple[str, ...]
    """By round, from the second on."""
    judgements: tuple[str, ...]
    """Drawn from by the draft."""
    first: Draft
    limits: Limits
    policy: LoopPolicy
    mode: str
    call_s: float
    candidates: int
    at_once: int | None
    finalists: int

    def world(self) -> World:
        def produce(number, candidate):
            what = self.drafts[(number - 3 + candidate) % len(self.drafts)]
            if what in ("error", "stall"):
                return TIMEOUT if what == "error" else None
            said = f"{number}" if candidate == 1 else f"{number} ({candidate})"
            return PRODUCED[what].format(number=said)

        def judge(text):
            what = digest_choice(text, self.judgements)
            return {"error": CUT, "stall": None}.get(what, what)

        return World(produce, judge, call_s=self.call_s)

    async def run(self, world, **more):
        return await run_loop(
            world,
            first=self.first,
            limits=self.limits,
            policy=self.policy,
            mode=self.mode,
            priced=True,
            candidates=self.candidates,
            at_once=self.at_once,
            finalists=self.finalists,
            check=check,
            **more,
        )


scripts = st.builds(
    Script,
    drafts=st.lists(producing, min_size=1, max_size=5).map(tuple),
    # One of ten fails: more, and hardly any loop has a second round.
    judgements=st.lists(
        st.integers(0, 9).flatmap(
            lambda n: verdicts if n < 9 else st.sampled_from([NO_VERDICT, "error", "stall"])
        ),
        min_size=3,
        max_size=12,
    ).map(tuple),
    first=st.sampled_from([FIRST, PARTED, PARTED]),
    limits=st.builds(
        Limits,
        max_tokens=st.none() | st.none() | st.integers(50, 6_000),
        max_cost_usd=st.none() | st.none() | st.floats(0.0001, 0.01),
        max_seconds=st.none() | st.none() | st.floats(0.2, 20),
    ),
    policy=st.builds(
        LoopPolicy,
        max_rounds=st.integers(1, 7),
        noise=st.sampled_from([0.0, 0.0, 0.5, 2.0]),
        revise_from=st.sampled_from(["best", "best", "last"]),
    ),
    mode=st.sampled_from(["sections", "sections", "whole"]),
    call_s=st.sampled_from([0.0, 0.5, 2.0]),
    candidates=st.sampled_from([1, 1, 2, 4]),
    at_once=st.sampled_from([None, 1, 3]),
    finalists=st.integers(1, 3),
)


def check(text: str) -> float:
    """What the checks score a draft: any of six, by its text."""
    return float(digest_choice(text, range(6)))


async def until_it_stalls(world, loop):
    """The loop's result; a loop that waits for ever is cancelled."""
    task = asyncio.ensure_future(loop)
    stalled = asyncio.ensure_future(world.stalled.wait())
    await asyncio.wait([task, stalled], return_when=asyncio.FIRST_COMPLETED)
    stalled.cancel()
    if not task.done():
        task.cancel()
    return await task


def stop_of(records):
    (stop,) = (r for r in records if isinstance(r, Instant) and r.name == "stop")
    return stop.attributes


def check_candidates(rounds):
    """None is taken that the checks score lower than what was there."""
    for one in rounds[1:]:
        base = rounds[one.base_round - 1]
        assert check(one.draft) >= check(base.draft)
        assert any(tried.outcome == "taken" for tried in one.tried)
        for tried in one.tried:
            assert tried.outcome != "taken" or tried.text.strip()
        event("candidates")
        if any(tried.outcome == "finalist" for tried in one.tried):
            event("another finalist was better")


@given(script=scripts)
def test_whatever_happens_the_best_evaluated_draft_is_returned(script):
    world, records = script.world(), []
    try:
        result = asyncio.run(until_it_stalls(world, script.run(world, sink=records.append)))
    except HarnessError:
        # Only where not even the first draft could be evaluated.
        assert world.produced_for == []
        assert len(set(world.evaluated)) <= 1
        event("no first verdict")
        return
    except asyncio.CancelledError:
        assert world.stalled.is_set()
        assert stop_of(records)["reason"] == "cancelled"
        event("cancelled")
        return
    rounds, limits = result.rounds, script.limits

    # The returned text was evaluated, and is the best of what was; of equals the earliest.
    assert result.text in world.evaluated
    ranks = [one.verdict.rank for one in rounds]
    assert result.text == rounds[ranks.index(max(ranks))].draft
    assert result.text.strip()
    assert result.best.verdict.rank >= rounds[0].verdict.rank
    assert "[…]" not in result.text

    # No revision without an evaluation after it, but for the last, and for a reason.
    reason = result.stop_reason
    event(reason)
    event(f"{len(rounds)} rounds")
    assert reason in get_args(StopReason)
    failed_after_asking = {"producer_empty", "producer_failed", "evaluator_failed", "abstained"}
    unevaluated = len(world.produced_for) - (len(rounds) - 1)
    repeated = reason == "cycle" and "again" in result.stop_detail
    repeated |= reason == "plateau" and "candidates" in result.stop_detail
    assert unevaluated in (0, 1)
    if reason == "budget" and (limits.max_cost_usd or limits.max_seconds):
        # What the first revision takes of these nobody can know before.
        assert not unevaluated or len(rounds) == 1 or "max_tokens" not in result.stop_detail
    else:
        assert unevaluated == int(reason in failed_after_asking or repeated)
    assert world.produced_for == list(range(2, 2 + len(world.produced_for)))
    assert len(world.produced_for) < script.policy.max_rounds

    # Within the limits, and counted.
    assert len(rounds) <= script.policy.max_rounds
    assert result.spent.calls == len(world.requests)
    if limits.max_tokens is not None:
        assert world.tokens <= limits.max_tokens
        assert result.spent.tokens <= limits.max_tokens
    if limits.max_cost_usd is not None:
        assert result.spent.cost_usd <= limits.max_cost_usd
    if limits.max_seconds is not None:
        assert world.clock() / 1e9 <= limits.max_seconds + 1e-6

    if script.candidates > 1:
        check_candidates(rounds)

    # What passes ends the loop, and nothing else says so.
    assert result.passed == (reason == "passed") == rounds[-1].verdict.passed
    assert not any(one.verdict.passed for one in rounds[:-1])
    assert stop_of(records)["reason"] == reason
    assert stop_of(records)["best_round"] == result.best.number


def same_end(one, other):
    assert one.rounds == other.rounds
    assert (one.text, one.stop_reason) == (other.text, other.stop_reason)
    assert one.stop_detail == other.stop_detail


@given(script=scripts, data=st.data())
def test_a_loop_that_was_killed_or_cancelled_goes_on_to_the_same_end(
    script, data, tmp_path_factory
):
    path = tmp_path_factory.getbasetemp() / "journal.jsonl"
    records = []
    whole_world = script.world()
    try:
        whole = asyncio.run(
            until_it_stalls(whole_world, script.run(whole_world, sink=records.append))
        )
    except (HarnessError, asyncio.CancelledError):
        return

    # Killed: whatever was written by then is there.
    restored = rounds_from(journal_of(records, path))
    assert restored == whole.rounds
    known = data.draw(st.integers(0, len(restored)), label="rounds before the kill")
    world = script.world()
    again = asyncio.run(until_it_stalls(world, script.run(world, rounds=restored[:known])))
    same_end(again, whole)

    # Cancelled, wherever it waited.
    steps = data.draw(st.integers(0, 60), label="steps before the cancellation")
    records = []

    async def cancelled_after(steps):
        world = script.world()
        task = asyncio.ensure_future(script.run(world, sink=records.append))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    was_cancelled = asyncio.run(cancelled_after(steps))
    if not records:
        return  # it had not begun
    restored = rounds_from(journal_of(records, path))
    assert restored == whole.rounds[: len(restored)]
    stop = stop_of(records)
    assert (stop["reason"] == "cancelled") == was_cancelled
    if restored and was_cancelled:
        assert stop["best_round"] == max(restored, key=lambda r: (r.verdict.rank, -r.number)).number
    world = script.world()
    again = asyncio.run(until_it_stalls(world, script.run(world, rounds=restored)))
    same_end(again, whole)
