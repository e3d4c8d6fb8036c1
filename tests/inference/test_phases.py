import pytest
from calls import phase

from harness.inference.reply_in_progress import ServerTimings, call_phases

MS = 1_000_000


def phases(first_ms, done_ms, *, came_whole=False, **reported_ms):
    first_ns = None if first_ms is None else first_ms * MS
    return call_phases(
        sent_ns=1000 * MS,
        first_token_ns=first_ns,
        done_ns=done_ms * MS,
        reported=ServerTimings(**{name: round(ms * MS) for name, ms in reported_ms.items()}),
        came_whole=came_whole,
    )


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        pytest.param(
            {},
            [phase("prefill", 1000, 1100, "derived"), phase("decode", 1100, 1400, "measured")],
            id="nothing: all before the first token may be prefill",
        ),
        pytest.param(
            {"prefill_ns": 70},
            [
                phase("queue", 1000, 1030, "derived"),
                phase("prefill", 1030, 1100, "reported"),
                phase("decode", 1100, 1400, "measured"),
            ],
            id="llama-server: the prompt, so the rest was queueing",
        ),
        pytest.param(
            {"queue_ns": 40},
            [
                phase("queue", 1000, 1040, "reported"),
                phase("prefill", 1040, 1100, "derived"),
                phase("decode", 1100, 1400, "measured"),
            ],
            id="TGI: the queue, so the rest was prefill",
        ),
        pytest.param(
            {"queue_ns": 20, "prefill_ns": 50, "decode_ns": 290},
            [
                phase("overhead", 1000, 1030, "derived"),
                phase("queue", 1030, 1050, "reported"),
                phase("prefill", 1050, 1100, "reported"),
                phase("decode", 1100, 1400, "measured"),
            ],
            id="vLLM: the queue and the prompt, so the rest was around its engine",
        ),
        pytest.param(
            {"load_ns": 30, "prefill_ns": 20, "decode_ns": 290},
            [
                phase("queue", 1000, 1050, "derived"),
                phase("load", 1050, 1080, "reported"),
                phase("prefill", 1080, 1100, "reported"),
                phase("decode", 1100, 1400, "measured"),
            ],
            id="Ollama: loading and the prompt, so the rest was queueing",
        ),
        pytest.param(
            {"load_ns": 200, "prefill_ns": 20},
            [
                phase("load", 1000, 1080, "reported"),
                phase("prefill", 1080, 1100, "reported"),
                phase("decode", 1100, 1400, "measured"),
            ],
            id="Ollama: more than there was time for by our clock",
        ),
    ],
)
def test_the_time_before_the_first_token_is_split_by_what_the_server_reports(reported, expected):
    assert phases(1100, 1400, **reported) == tuple(expected)


def test_a_reply_of_one_token_has_no_decode_phase():
    assert phases(1100, 1100) == (phase("prefill", 1000, 1100, "derived"),)
    assert phases(None, 1100) == (phase("prefill", 1000, 1100, "derived"),)


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        pytest.param(
            {}, [phase("decode", 1000, 1400, "derived")], id="nothing: all of it may be decoding"
        ),
        pytest.param(
            {"prefill_ns": 60, "decode_ns": 300},
            [
                phase("queue", 1000, 1040, "derived"),
                phase("prefill", 1040, 1100, "reported"),
                phase("decode", 1100, 1400, "reported"),
            ],
            id="llama-server: the prompt and the reply",
        ),
    ],
)
def test_a_reply_that_came_in_one_piece_is_split_by_what_the_server_reports(reported, expected):
    assert phases(None, 1400, came_whole=True, **reported) == tuple(expected)
