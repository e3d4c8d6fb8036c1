import pytest

from harness.analysis.speed_limits import speed_limits_of
from harness.trace import Instant, Interval, SpanRecord
from harness.trace.calls import Call
from harness.trace.events import Events

MS = 1_000_000
GB = 10**9


def call(number, start_ms, *, tokens=51, ms=1000, prompt=100, prefill_ms=200, **more):
    """A reply of 50 tokens a second."""
    first_ms = start_ms + prefill_ms
    said = {"model": "small", "input_tokens": prompt, "output_tokens": tokens}
    said |= more.pop("said", {})
    times = start_ms * MS, (first_ms + ms) * MS
    return Call.read(
        SpanRecord(number, None, "chat", *times, "ok", None, said),
        phases={
            "prefill": (Interval(start_ns=start_ms * MS, end_ns=first_ms * MS),),
            "decode": (Interval(start_ns=first_ms * MS, end_ns=(first_ms + ms) * MS),),
        },
        **more,
    )


def limits(*calls, weight_bytes=GB // 10, threads=None, cores=2, memory=20 * GB, **said):
    """Of a run's head, with `said` in place of what it says by itself."""
    said = {
        "endpoint": {"model": "small", "threads": threads},
        "weights": {"model": "small", "active_bytes": weight_bytes},
        "machine": {"memory_bytes_per_s": memory, "cores": cores, "source": "measured"},
    } | said
    head = [Instant(None, name, 0, one) for name, one in said.items()]
    return speed_limits_of(calls, Events(head))


def test_a_reply_alone_is_compared_with_one_reading_of_the_weights_a_token():
    (found,) = limits(call(1, 0), call(2, 2000))
    assert (found.calls, found.at_once, found.tokens_per_s) == (2, 1, 50)
    assert (found.memory_limit, found.memory_share) == (200, 0.25)
    # Prompts were read at 500 tokens/s, with both cores; replies are written with one.
    assert (found.compute_limit, found.compute_share) == (250, 0.2)
    assert found.bound == "neither"


def test_replies_side_by_side_share_the_reading_and_the_computing():
    # Of 100 tokens the cache takes 50 MB, and of the reply as much for each token.
    cached = {"prompt_kv_bytes": 50_000_000}
    (found,) = limits(*(call(n, 0, tokens=201, prompt=100, said=cached) for n in range(2)))
    # In the middle of its reply a sequence has 200.5 tokens: 100.25 MB, twice, beside the weights.
    assert found.memory_limit == pytest.approx(20e9 / (1e8 + 2 * 100.25e6))
    assert found.at_once == 2
    # Both prompts were read in 200 ms: 1000 tokens/s, half of it for writing, for two.
    assert found.compute_limit == 250
    assert found.compute_share == pytest.approx(200 * 2 / 500)


def test_replies_too_short_to_have_a_speed_are_company():
    # Each is written in 200 ms beside one that takes a second.
    short = [call(n, 100 + 200 * n, ms=200, prefill_ms=20, tokens=10) for n in range(2, 4)]
    (found,) = limits(call(1, 0), *short)
    assert (found.calls, found.at_once) == (1, pytest.approx(1.4))


@pytest.mark.parametrize(
    ("how", "bound"),
    [
        ({"weight_bytes": GB // 4}, "bandwidth"),
        ({"memory": 200 * GB, "threads": 1, "cores": 8}, "compute"),
        ({"memory": 200 * GB, "threads": 8, "cores": 8}, "neither"),
        # Other work took the cores while the prompt was read, or the memory when it was measured.
        ({"memory": 200 * GB, "threads": 1, "cores": 16}, "unknown"),
        ({"memory": 4 * GB}, "unknown"),
    ],
)
def test_the_limit_that_is_nearer_decides_if_it_is_near(how, bound):
    (found,) = limits(call(1, 0), **how)
    assert found.bound == bound


@pytest.mark.parametrize(
    "one",
    [
        call(1, 0, tokens=10),
        call(1, 0, unreliable=frozenset({"decode"})),
        call(1, 0, said={"output_tokens": None}),
    ],
)
def test_what_has_no_speed_has_no_limit(one):
    assert limits(one) == ()


def test_of_an_unknown_machine_or_model_there_is_no_limit():
    assert limits(call(1, 0), endpoint={}, weights={}, machine={}) == ()
    assert limits(call(1, 0), machine={"memory_bytes_per_s": "much", "cores": 2}) == ()
    assert limits(call(1, 0), weight_bytes=0) == ()


@pytest.mark.parametrize("more", [{"said": {"cached_tokens": 95}}, {"prefill_ms": 0}])
def test_prompts_that_took_no_reading_say_nothing_of_the_processor(more):
    (found,) = limits(call(1, 0, **more))
    assert (found.compute_limit, found.compute_share) == (None, None)


def test_a_gpu_is_told_by_long_prompts_alone():
    gpu = {"device": "gpu0"}
    said = {
        "endpoint": {"model": "small", "url": "http://127.0.0.1:8080/v1"},
        "weights": {"model": "small", "active_bytes": 8 * GB, "token_bytes": 10**6} | gpu,
        "machine": {"memory_bytes_per_s": 1000 * GB, "source": "nominal"} | gpu,
    }
    (short,) = limits(call(1, 0), **said)
    # 100 tokens of prompt, and half of 51 written: 125.5 MB beside the weights.
    assert short.memory_limit == pytest.approx(1000e9 / (8e9 + 125.5e6))
    assert (short.device, short.compute_limit, short.bound) == ("gpu0", None, "neither")
    (long,) = limits(call(1, 0, prompt=1000), **said)
    assert long.compute_limit == 5000


@pytest.mark.parametrize(
    ("size", "tokens_per_s"),
    [
        pytest.param(GB // 10, 50, id="the same"),
        # A token took 20 ms; 100 MB more at 20 GB/s take 5 ms.
        pytest.param(GB // 5, 1000 / 25, id="larger"),
        # What it took beside reading is not saved.
        pytest.param(GB // 20, 1000 / 17.5, id="smaller"),
    ],
)
def test_other_weights_change_how_long_a_token_reads(size, tokens_per_s):
    (found,) = limits(call(1, 0))
    assert found.with_weights(size) == pytest.approx(tokens_per_s)


def test_where_computing_is_the_limit_smaller_weights_bring_nothing():
    (found,) = limits(call(1, 0), memory=200 * GB, threads=1, cores=8)
    assert found.with_weights(found.weight_bytes // 2) == found.tokens_per_s
