import asyncio
import random

import numpy as np
import pytest
from servers.ollama import OllamaServer

from harness.inference import ChatRequest, EmbedRequest, Endpoint, as_messages
from harness.inference.wire.ollama import OllamaWire
from harness.residency.keep_alive import BASE_S, ENOUGH_GAPS, LEAST_S, ObservedGaps, keep_alive_s

S = 1_000_000_000


def seconds(*gaps):
    return [round(gap * S) for gap in gaps]


@pytest.mark.parametrize(
    ("gaps_s", "kept_s"),
    [
        ((), BASE_S),
        ((10,), BASE_S),
        ((10, 10, 10), BASE_S),
        ((400,), 480.0),
        ((10, 10, 10, 10), LEAST_S),
        ((100, 100, 100, 100), 120.0),
        ((100, 100, 100, 100.001), 121.0),
        ((1, 2, 3, 4, 5, 6, 7, 8, 100, 1000), 120.0),
        ((1, 2, 3, 4, 5, 6, 7, 100, 1000), 1200.0),
        ((100_000,) * 9, 3600.0),
    ],
    ids=[
        "nothing seen: Ollama's own default",
        "one short gap says little",
        "nor do three",
        "but one long gap counts at once",
        "four say enough, and there is a least",
        "a fifth more than the gaps",
        "rounded up to whole seconds",
        "of ten, the second longest",
        "of nine, the longest",
        "never longer than an hour",
    ],
)
def test_a_model_is_kept_for_the_gaps_that_were_seen_and_a_fifth_more(gaps_s, kept_s):
    gaps_ns = seconds(*gaps_s)
    random.Random(7).shuffle(gaps_ns)

    assert keep_alive_s(gaps_ns) == kept_s


@pytest.mark.parametrize("count", range(ENOUGH_GAPS, 65))
def test_the_percentile_is_numpys_inverted_distribution_function(count):
    gaps_s = np.random.default_rng(count).integers(100, 2000, size=count)

    p90_s = np.quantile(gaps_s, 0.9, method="inverted_cdf")

    assert keep_alive_s(seconds(*gaps_s)) == np.ceil(round(p90_s * 1.2, 6))


def test_gaps_lie_between_the_end_of_a_call_and_the_beginning_of_the_next():
    gaps = ObservedGaps()

    gaps.began(0)
    gaps.ended(10)
    gaps.began(14)
    gaps.ended(15)
    gaps.began(22)

    assert gaps.gaps_ns == (4, 7)


def test_calls_that_overlap_have_no_gap():
    gaps = ObservedGaps()

    gaps.began(0)
    gaps.began(1)
    gaps.ended(5)
    gaps.began(6)  # the second is still under way
    gaps.ended(8)
    gaps.ended(9)
    gaps.began(12)

    assert gaps.gaps_ns == (3,)


def test_a_call_that_begins_as_another_ends_has_a_gap_of_nothing():
    gaps = ObservedGaps()

    gaps.began(0)
    gaps.ended(5)
    gaps.began(5)

    assert gaps.gaps_ns == (0,)


def test_only_the_latest_gaps_count():
    gaps = ObservedGaps(keep=ENOUGH_GAPS)
    now_ns = 0
    for gap_ns in [2000 * S] * 10 + [200 * S] * ENOUGH_GAPS:
        gaps.began(now_ns)
        gaps.ended(now_ns)
        now_ns += gap_ns
    gaps.began(now_ns)

    assert gaps.gaps_ns == (200 * S,) * ENOUGH_GAPS
    assert gaps.keep_alive_s == 240.0


# --- the way into calls ----------------------------------------------------------------------


def what_is_asked(tells, **fields):
    """What keep_alive two calls are sent with, a chat and an embedding."""

    async def main():
        async with OllamaServer() as server:
            endpoint = Endpoint(tag="a", backend="ollama", url=server.root, **fields)
            wire = OllamaWire(endpoint, keep_alive=tells)
            await wire.chat(ChatRequest(model="a", messages=as_messages("Write.")))
            await wire.embed(EmbedRequest(model="a", texts=("Write.",)))
            await wire.aclose()
            return [asked.body.get("keep_alive", "nothing") for asked in server.asked]

    return asyncio.run(main())


def test_every_call_carries_what_holds_when_it_is_sent():
    kept_s = iter([300.0, 96.0])

    assert what_is_asked(lambda: next(kept_s)) == [300.0, 96.0]


def test_what_the_entry_says_holds():
    assert what_is_asked(lambda: 96.0, keep_alive="10m") == ["10m", "10m"]


@pytest.mark.parametrize("tells", [None, lambda: None], ids=["nobody tells", "not known"])
def test_without_either_nothing_is_said(tells):
    assert what_is_asked(tells) == ["nothing", "nothing"]
