"""Counts that cannot be: the estimate takes their place, and that is said once."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from calls import REQUEST, backend_at
from clients import client_of, meter_of, priced
from loopback import DONE, Loopback, Reply, chunk, delta
from manual_clock import ManualClock
from metered import reply

from harness.inference import Limits
from harness.inference.completion import Embeddings, possible
from harness.inference.request import most_prompt_tokens

HUGE = 10**400
TEXT = "Tea is a drink."


def openai(prompt_tokens, completion_tokens):
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    steps = (delta(content=TEXT), delta(finish_reason="stop"), chunk(choices=[], usage=usage), DONE)
    return {"backend": "openai"}, steps


def ollama(prompt_tokens, completion_tokens):
    counts = {"prompt_eval_count": prompt_tokens, "eval_count": completion_tokens}
    times = {"prompt_eval_duration": prompt_tokens, "eval_duration": prompt_tokens}
    message = {"role": "assistant", "content": TEXT}
    line = {"model": "m", "message": message, "done": True, "done_reason": "stop"}
    return {"backend": "ollama"}, (json.dumps(line | counts | times).encode() + b"\n",)


def triton(prompt_tokens, completion_tokens):
    counts = {"num_input_tokens": prompt_tokens, "num_output_tokens": completion_tokens}
    said = json.dumps({"text_output": TEXT, "finish_reason": "stop", **counts})
    fields = {"backend": "triton", "prompt_template": "chatml"}
    return fields, (f"data: {said}\n\n".encode(),)


COUNTS = {
    "negative": -1_000,
    "beyond any float": HUGE,
    "more than the text can have": 10**9,
    "half a token": 2.25,
    "not a number": float("nan"),
    "infinite": float("inf"),
    "a word": "many",
    "a row of digits": "9" * 5_000,
    "a truth": True,
    "a list": [7],
}


@pytest.mark.parametrize("wire", [openai, ollama, triton])
@pytest.mark.parametrize("count", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize("of_reply", [False, True], ids=["in", "out"])
def test_a_count_that_cannot_be_is_replaced_by_the_estimate_and_said_once(wire, count, of_reply):
    notices = []
    fields, steps = wire(*((7, count) if of_reply else (count, 7)))

    async def main():
        server = Loopback(Reply(steps=steps) for _ in range(2))
        price = priced(usd_per_million_input_tokens=1e6, usd_per_million_output_tokens=1e6)
        meter = meter_of(Limits(max_tokens=20_000), ManualClock(), prices={"judge": price})
        async with server, backend_at(server, **fields) as backend:
            client = client_of(backend, tag="judge", meter=meter, warn=notices.append)
            replies = [await client.chat(REQUEST) for _ in range(2)]
        return replies, meter.spent

    replies, spent = asyncio.run(main())
    asked, written = 2 * most_prompt_tokens(REQUEST), 2 * 5
    assert [reply.text for reply in replies] == [TEXT] * 2
    assert (spent.input_tokens, spent.output_tokens) == (asked, written)
    assert (spent.estimated_calls, spent.cost_usd) == (2, asked + written)
    assert [notice.code for notice in notices] == ["call.counts-impossible"]
    for phase in (phase for answer in replies for phase in answer.phases):
        assert replies[0].sent_ns <= phase.start_ns <= phase.end_ns


@pytest.mark.parametrize("wire", [openai, ollama])
def test_a_server_that_does_not_count_is_not_said_to_count_wrong(wire):
    notices = []
    fields, steps = wire(None, None)

    async def main():
        server = Loopback([Reply(steps=steps)])
        async with server, backend_at(server, **fields) as backend:
            client = client_of(backend, tag="judge", warn=notices.append)
            return await client.chat(REQUEST)

    assert asyncio.run(main()).usage is None
    assert notices == []


# What came, what it becomes (None: the estimate), and whether that is said.
REPORTED = {
    "as it should be": ({"cached_tokens": 30, "reasoning_tokens": 6}, {}, False),
    "reasoning beside the reply": ({"reasoning_tokens": 89}, {"output_tokens": 95}, False),
    "more cached than there was": ({"cached_tokens": 31}, {"cached_tokens": None}, False),
    "cached below nothing": ({"cached_tokens": -1}, {"cached_tokens": None}, False),
    "drafted below nothing": ({"draft_tokens": -4}, {"draft_tokens": None}, False),
    "nothing for a prompt": ({"input_tokens": 0}, None, True),
    "nothing for a reply": ({"output_tokens": 0}, None, True),
    "nothing for a text": ({"input_tokens": 0, "output_tokens": 0}, None, True),
    "a long prompt of the server's own": ({"input_tokens": 90_000}, {}, False),
}


@pytest.mark.parametrize(("came", "becomes", "is_said"), REPORTED.values(), ids=REPORTED)
def test_of_a_servers_counts_those_that_can_be_are_kept(came, becomes, is_said):
    answer, wrong = possible(reply(text=TEXT, **came))
    expected = reply(text=TEXT, **came | (becomes or {}))
    assert answer == (replace(expected, usage=None) if becomes is None else expected)
    assert bool(wrong) == is_said


@pytest.mark.parametrize("usd", [-0.03, float("nan"), float("inf")])
def test_dollars_that_cannot_be_are_not_known(usd):
    answer, wrong = possible(reply(text=TEXT, cost_usd=usd))
    assert (answer.cost_usd, answer.usage, bool(wrong)) == (None, reply().usage, True)


@pytest.mark.parametrize("count", [-5, HUGE])
def test_vectors_have_no_counts_that_cannot_be(count):
    vectors = Embeddings(vectors=None, input_tokens=count, model_id="e")
    answer, wrong = possible(vectors)
    assert (answer.input_tokens, bool(wrong)) == (None, True)


@pytest.mark.parametrize(
    "usage", [[], "none", 0, {"prompt_tokens": 7, "prompt_tokens_details": []}], ids=str
)
def test_a_usage_of_another_kind_costs_no_reply(usage):
    _, (*begun, _, _) = openai(7, 7)
    server = Loopback([Reply(steps=(*begun, chunk(choices=[], usage=usage), DONE))])

    async def main():
        async with server, backend_at(server, backend="openai") as backend:
            return await backend.chat(REQUEST)

    assert asyncio.run(main()).text == TEXT
