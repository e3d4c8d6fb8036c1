import pytest

from harness.inference import Phase
from harness.inference.phases import call_phases
from harness.inference.wire.openai_reply import LlamaTimings, VllmMetrics

MS = 1_000_000


def phases(first_ms, done_ms, **reported):
    first_ns = None if first_ms is None else first_ms * MS
    return call_phases(sent_ns=1000 * MS, first_token_ns=first_ns, done_ns=done_ms * MS, **reported)


def phase(name, start_ms, end_ms, source):
    return Phase(name=name, start_ns=start_ms * MS, end_ns=end_ms * MS, source=source)


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        pytest.param(
            {},
            [phase("prefill", 1000, 1100, "derived"), phase("decode", 1100, 1400, "measured")],
            id="nothing: all before the first token may be prefill",
        ),
        pytest.param(
            {"timings": LlamaTimings(prompt_ms=70)},
            [
                phase("queue", 1000, 1030, "derived"),
                phase("prefill", 1030, 1100, "reported"),
                phase("decode", 1100, 1400, "measured"),
            ],
            id="llama-server: the prompt, so the rest was queueing",
        ),
        pytest.param(
            {"timings": LlamaTimings(prompt_ms=100.5)},
            [phase("prefill", 1000, 1100, "reported"), phase("decode", 1100, 1400, "measured")],
            id="llama-server: a prompt that took longer by its clock than by ours",
        ),
        pytest.param(
            {"metrics": VllmMetrics(queue_time_ms=40)},
            [
                phase("queue", 1000, 1040, "reported"),
                phase("prefill", 1040, 1100, "derived"),
                phase("decode", 1100, 1400, "measured"),
            ],
            id="vLLM: the queue, so the rest was prefill",
        ),
        pytest.param(
            {"metrics": VllmMetrics(queue_time_ms=101)},
            [phase("queue", 1000, 1100, "reported"), phase("decode", 1100, 1400, "measured")],
            id="vLLM: a queue that took longer by its clock than by ours",
        ),
        pytest.param(
            {"metrics": VllmMetrics()},
            [phase("prefill", 1000, 1100, "derived"), phase("decode", 1100, 1400, "measured")],
            id="vLLM: metrics without the queue",
        ),
    ],
)
def test_the_time_before_the_first_token_is_split_by_what_the_server_reports(reported, expected):
    assert phases(1100, 1400, **reported) == tuple(expected)


def test_a_reply_of_one_token_has_no_decode_phase():
    assert phases(1100, 1100) == (phase("prefill", 1000, 1100, "derived"),)


def test_a_reply_without_tokens_was_all_prefill():
    assert phases(None, 1100) == (phase("prefill", 1000, 1100, "derived"),)
