import asyncio
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers.ollama import OllamaServer

from harness.inference import ChatRequest, EmbedRequest, Endpoint, as_messages
from harness.inference.providers.ollama import OllamaWire
from harness.inference.providers.ollama_keep_alive import (
    BASE_S,
    ENOUGH_GAPS,
    LEAST_S,
    IdleGaps,
    keep_alive_s,
)

S = 1_000_000_000


def seconds(*gaps):
    return [round(gap * S) for gap in gaps]


@pytest.mark.parametrize(
    ("gaps_s", "kept_s"),
    [
        pytest.param((), BASE_S, id="nothing seen: Ollama's own default"),
        pytest.param((10, 10, 10), BASE_S, id="nor do three"),
        pytest.param((400,), 480.0, id="but one long gap counts at once"),
        pytest.param((10,) * 4, LEAST_S, id="four say enough, and there is a least"),
        pytest.param((100, 100, 100, 100.001), 121.0, id="rounded up to whole seconds"),
        pytest.param((100_000,) * 9, 3600.0, id="never longer than an hour"),
    ],
)
def test_a_model_is_kept_for_the_gaps_that_were_seen_and_a_fifth_more(gaps_s, kept_s):
    gaps_ns = seconds(*gaps_s)
    random.Random(7).shuffle(gaps_ns)

    assert keep_alive_s(gaps_ns) == kept_s


@given(st.lists(st.integers(100, 2000), min_size=ENOUGH_GAPS, max_size=64))
def test_the_percentile_is_numpys_inverted_distribution_function(gaps_s):
    p90_s = np.quantile(gaps_s, 0.9, method="inverted_cdf")

    assert keep_alive_s(seconds(*gaps_s)) == np.ceil(round(p90_s * 1.2, 6))


@pytest.mark.parametrize(
    ("calls", "gaps_ns"),
    [
        pytest.param("+0 -10 +14 -15 +22", (4, 7), id="from an end to the next beginning"),
        pytest.param("+0 +1 -5 +6 -8 -9 +12", (3,), id="none between calls that overlap"),
    ],
)
def test_gaps_lie_between_calls(calls, gaps_ns):
    gaps = IdleGaps()
    for call in calls.split():
        (gaps.began if call[0] == "+" else gaps.ended)(int(call[1:]))
    assert gaps.gaps_ns == gaps_ns


# --- the way into calls ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        pytest.param({"manage": True}, [BASE_S, BASE_S, 480.0], id="what was observed"),
        pytest.param({"manage": True, "keep_alive": "10m"}, ["10m"] * 3, id="the entry's own"),
        pytest.param({}, [None] * 3, id="a model that no run lets go"),
    ],
)
def test_every_call_says_how_long_the_model_is_kept(fields, sent):
    now_s = 0.0

    async def main():
        nonlocal now_s
        async with OllamaServer() as server:
            endpoint = Endpoint(tag="a", backend="ollama", url=server.root, **fields)
            wire = OllamaWire(endpoint, clock=lambda: round(now_s * S))
            await wire.chat(ChatRequest(model="a", messages=as_messages("Write.")))
            now_s += 10.0
            await wire.embed(EmbedRequest(model="a", texts=("Write.",)))
            now_s += 400.0
            await wire.chat(ChatRequest(model="a", messages=as_messages("Write.")))
            await wire.aclose()
            return [asked.body.get("keep_alive") for asked in server.asked]

    assert asyncio.run(main()) == sent
