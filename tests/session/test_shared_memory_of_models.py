"""Two real models with room for one: what a run does with them, and what its trace shows."""

from __future__ import annotations

import asyncio
import json

import pytest
from perfetto import query_traces

from harness.session import Pipeline, Run, Settings
from harness.session.settings import BudgetSettings, TraceSettings, demo_endpoint
from harness.session.tenancy import file_footprint
from harness.trace import Journal

pytestmark = pytest.mark.slow

DRAFTS, ROUNDS = 4, 2
WRITER, CRITIC = "writer", "critic"

MOVES = """
    select s.name, t.name as track from slice s join track t on s.track_id = t.id
    where s.name in ('load', 'unload') and t.name like 'model %' order by s.ts
"""
REASONS = """
    select distinct a.string_value as said from slice s join args a using (arg_set_id)
    where s.name = 'unload' and a.key like '%reason'
"""
RESIDENT = """
    select max(c.value) as most, min(c.value) as least
    from counter c join track t on c.track_id = t.id where t.name like 'resident%'
"""

pipeline = Pipeline("two models, room for one")


@pipeline.node
def subjects() -> list[str]:
    return [f"subject {number}" for number in range(DRAFTS)]


@pipeline.node(each={"subject": "subjects"})
async def draft(run: Run, subject: str) -> str:
    text, remarks = "", "none yet"
    for _ in range(ROUNDS):
        text = await run.chat(
            WRITER, f"About {subject}; {remarks}", max_output_tokens=4, on_cut="keep"
        )
        remarks = await run.chat(
            CRITIC, f"What is wrong? {text}", max_output_tokens=4, on_cut="keep"
        )
    return text


def models():
    demo = demo_endpoint()
    assert demo is not None
    said = {"context_tokens": 256, "slots": DRAFTS}
    return {tag: demo.model_copy(update={"tag": tag, **said}) for tag in (WRITER, CRITIC)}


def capacity_bytes():
    footprint = file_footprint(models()[WRITER])
    assert footprint is not None
    return footprint.total_bytes * 3 // 2


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    settings = Settings(
        endpoints=models(),
        roles={"producer": WRITER},
        traces=tmp_path_factory.mktemp("traces"),
        budget=BudgetSettings(capacity=capacity_bytes()),
        trace=TraceSettings(sample_ms=0),
    )
    return asyncio.run(pipeline.run_async({}, settings=settings))


def test_each_switch_serves_all_drafts(result):
    spans = list(Journal(result.files.journal).spans())

    loads = [span for span in spans if span.name == "load" and "waits_for" not in span.attributes]

    # The other model for each half of a round: fewer cannot be.
    assert [load.attributes["model"] for load in loads] == [WRITER, CRITIC] * ROUNDS
    assert all(load.attributes["reason"] for load in loads)
    assert sum(span.name == "chat" for span in spans) == DRAFTS * ROUNDS * 2


def test_a_call_that_waits_for_a_load_says_which(result):
    spans = {span.id: span for span in Journal(result.files.journal).spans()}
    waits = [span for span in spans.values() if "waits_for" in span.attributes]

    assert waits
    for wait in waits:
        load, call = spans[wait.attributes["waits_for"]], spans[wait.parent]
        assert (load.name, call.name) == ("load", "chat")
        assert load.attributes["model"] == call.attributes["model"]


def test_it_opens_in_perfetto(result):
    trace = result.files.perfetto_trace
    moves, why, resident = query_traces([(trace, MOVES), (trace, REASONS), (trace, RESIDENT)])

    assert {move["track"] for move in moves} >= {f"model {WRITER}", f"model {CRITIC}"}, moves
    assert any(f"room for {CRITIC}" in str(row["said"]) for row in why), json.dumps(why)
    assert resident[0]["least"] == 0
    capacity_mb = capacity_bytes() / 1e6
    assert capacity_mb / 2 < resident[0]["most"] <= capacity_mb
