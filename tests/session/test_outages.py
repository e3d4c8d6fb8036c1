"""Batches whose servers go down for a while, for good, or fail every row."""

import asyncio
from collections import Counter

import pytest
from servers.emulated import Emulated, events
from session_runs import Calls, settings_of

from harness import Pipeline, Run
from harness.session.batch_rows import are_too_many


class Server(Emulated):
    """Says again what it is told; may be away, so that its port refuses."""

    def __init__(self, name):
        super().__init__()
        self.name = name
        self.answered = Counter()

    async def respond(self, asked, answer):
        if not asked.path.endswith("/chat/completions"):
            await answer.json({"object": "list", "data": [{"id": self.name, "object": "model"}]})
            return
        text = asked.body["messages"][-1]["content"]
        await asyncio.sleep(0.002)
        await answer.start("text/event-stream")
        self.answered[text] += 1  # with the write: the server may go away while this waits
        await answer.send(events(text, model=self.name))
        await answer.end()

    async def away(self, seconds):
        port = self._server.sockets[0].getsockname()[1]
        self._server.close()
        for handler in tuple(self._handlers):
            handler.cancel()
        await asyncio.sleep(seconds)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)


def judged(when_drafted):
    judged = Pipeline("judged")

    @judged.node
    async def draft(run: Run, task: str) -> str:
        when_drafted.note(task)
        return await run.chat("producer", f"draft {task}")

    @judged.node
    async def verdict(run: Run, draft: str) -> str:
        return await run.chat("evaluator", f"judge {draft}")

    return judged


def in_batch(tmp_path, rows, *, replicas=1, away_s=None, after=None, max_outage_s=600.0, **how):
    """The batch's result; the judge's servers are away for a while after so many drafts."""

    async def main():
        writer, judges = Server("writer"), [Server("judge") for _ in range(replicas)]
        async with asyncio.TaskGroup() as group:
            calls = Calls()
            note = calls.note

            def noted(task):
                if note(task) == after:
                    for judge in judges:
                        group.create_task(judge.away(away_s))

            calls.note = noted
            async with writer:
                for judge in judges:
                    await judge.__aenter__()
                url = {"urls" if replicas > 1 else "url": [f"{one.url}/v1" for one in judges]}
                if replicas == 1:
                    url = {"url": f"{judges[0].url}/v1"}
                settings = settings_of(
                    tmp_path,
                    endpoints={
                        "w": {"tag": "w", "url": f"{writer.url}/v1", "model_id": "writer"},
                        "j": {"tag": "j", "model_id": "judge", "max_outage_s": max_outage_s, **url},
                    },
                    roles={"producer": "w", "evaluator": "j"},
                )
                done = await judged(calls).batch(
                    [{"id": f"{n}", "task": f"task {n}"} for n in range(rows)],
                    output=tmp_path / "out.jsonl",
                    settings=settings,
                    max_parallel=8,
                    **how,
                )
        # After the group: a judge that was away until now has a new socket.
        for judge in judges:
            await judge.__aexit__()
        return done, writer.answered.total(), sum((one.answered for one in judges), Counter())

    return asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize(("replicas", "away_s"), [(1, 5), (2, 3)])
def test_no_row_fails_while_a_judge_is_away_and_no_answered_call_is_repeated(
    tmp_path, replicas, away_s
):
    done, drafts, answered = in_batch(tmp_path, 400, replicas=replicas, away_s=away_s, after=100)

    assert (len(done.outputs), done.failures) == (400, ())
    assert drafts == 400
    assert len(answered) == 400
    assert max(answered.values()) == 1


@pytest.mark.slow
def test_a_judge_that_stays_away_ends_the_batch_and_it_goes_on_later(tmp_path):
    how = {"rows": 60, "after": 20, "away_s": 1.0, "max_outage_s": 0.3}
    done, drafts, _ = in_batch(tmp_path, **how)

    assert done.run.status == "stopped"
    assert "max_outage_s" in done.run.stopped_by
    assert done.failures == ()
    assert 0 < len(done.outputs) < 60
    assert drafts <= len(done.outputs) + 2 * 8


@pytest.mark.parametrize(
    ("failed", "ended", "most", "too_many"),
    [
        (20, 39, 0.5, True),
        (20, 40, 0.5, False),
        (19, 19, 0.5, False),
        (400, 400, 1.0, False),
        (6, 400, 5, True),
        (5, 5, 5, False),
        (1, 1, 0, True),
        (400, 400, None, False),
    ],
)
def test_rows_that_fail_for_one_reason_end_a_batch(failed, ended, most, too_many):
    assert are_too_many(failed, ended=ended, allowed=most) == too_many


def failing(calls, reasons):
    fails = Pipeline("fails")

    @fails.node
    def step(n: int) -> int:
        calls.note(n)
        raise reasons[n % len(reasons)](f"{n} is bad")

    return fails


@pytest.mark.parametrize(
    ("reasons", "how", "made"),
    [
        ([ValueError], {}, 20),
        ([ValueError], {"max_failures": 3}, 4),
        ([ValueError], {"max_failures": None}, 60),
        ([ValueError, TypeError, KeyError], {}, 60),
    ],
    ids=["by default", "a number", "none", "for several reasons"],
)
def test_a_batch_ends_where_too_many_rows_fail_alike(tmp_path, reasons, how, made):
    calls = Calls()
    done = asyncio.run(
        failing(calls, reasons).batch(
            [{"n": n} for n in range(60)],
            output=tmp_path / "out.jsonl",
            settings=settings_of(tmp_path),
            max_parallel=1,
            **how,
        )
    )
    assert len(calls.made) == len(done.failures)
    assert made <= len(calls.made) <= made + 1  # one was under way
    assert (done.run.stopped_by is not None) == (made < 60)
