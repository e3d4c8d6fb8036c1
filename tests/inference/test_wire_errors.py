import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from harness.errors import (
    AuthenticationFailed,
    ContextOverflow,
    ModelNotFound,
    Overloaded,
    RateLimited,
    ServerError,
)
from harness.inference.wire.errors import error_from_reply

LLAMA_OVERFLOW = {
    "error": {
        "code": 400,
        "message": "request (4001 tokens) exceeds the available context size (512 tokens)",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 4001,
        "n_ctx": 512,
    }
}
VLLM_OVERFLOW = {
    "error": {
        "message": "This model's maximum context length is 2048 tokens. However, you requested …",
        "type": "BadRequestError",
        "param": "input_tokens",
        "code": 400,
    }
}
LOADING = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
NO_MODEL = {
    "error": {"message": "The model `x` does not exist.", "type": "NotFoundError", "code": 404}
}
LIBRARY_GONE = "model runner crashed: libcuda.so not found"


def read(status, body, **headers):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return error_from_reply(
        status,
        raw,
        headers={name.replace("_", "-"): value for name, value in headers.items()},
        endpoint="judge",
        model_id="x",
    )


@pytest.mark.parametrize(
    ("status", "body", "expected", "says"),
    [
        # The four shapes of a body.
        pytest.param(500, {"error": {"message": "boom"}}, ServerError, "boom", id="nested"),
        pytest.param(500, {"error": "boom"}, ServerError, "boom", id="a string"),
        pytest.param(500, {"object": "error", "message": "boom"}, ServerError, "boom", id="flat"),
        pytest.param(500, {"detail": "boom"}, ServerError, "boom", id="FastAPI"),
        pytest.param(422, {"detail": [{"msg": "boom"}]}, ServerError, "boom", id="FastAPI's list"),
        pytest.param(
            500, json.dumps({"message": "boom"}), ServerError, "boom", id="flat, encoded twice"
        ),
        pytest.param(
            500, {"error": None, "message": "boom"}, ServerError, "boom", id="flat, error null"
        ),
        # And what is none of them.
        pytest.param(502, b"<h1>Bad Gateway</h1>", ServerError, "Bad Gateway", id="HTML"),
        pytest.param(500, b"\xff\xfe", ServerError, "HTTP 500", id="not text"),
        pytest.param(500, b"", ServerError, "HTTP 500 without a message", id="empty"),
        pytest.param(500, [1], ServerError, r"\[1\]", id="a list"),
        pytest.param(500, json.dumps("boom").encode(), ServerError, "boom", id="a bare string"),
        # What servers say.
        pytest.param(400, LLAMA_OVERFLOW, ContextOverflow, "Shorten", id="llama-server overflow"),
        pytest.param(400, VLLM_OVERFLOW, ContextOverflow, "2048", id="vLLM overflow"),
        pytest.param(
            400,
            {"error": {"message": "too long", "code": "context_length_exceeded"}},
            ContextOverflow,
            "too long",
            id="OpenAI overflow",
        ),
        pytest.param(
            422,
            {"error": "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000"},
            ContextOverflow,
            "4096",
            id="TGI overflow",
        ),
        pytest.param(
            400,
            {"type": "error", "error": {"message": "prompt is too long: 210000 tokens > 200000"}},
            ContextOverflow,
            "210000",
            id="Anthropic overflow",
        ),
        pytest.param(401, {"error": "Unauthorized"}, AuthenticationFailed, "api_key_env", id="401"),
        pytest.param(403, {"error": "Forbidden"}, AuthenticationFailed, "api_key_env", id="403"),
        pytest.param(404, NO_MODEL, ModelNotFound, "'x'.*model_id", id="vLLM unknown model"),
        pytest.param(
            404,
            {"error": "model 'x' not found"},
            ModelNotFound,
            "harness endpoints check judge",
            id="Ollama's",
        ),
        pytest.param(
            400,
            {"object": "error", "message": 'The requested model "x" is not served.'},
            ModelNotFound,
            "harness endpoints check judge",
            id="MLC's, with 400",
        ),
        pytest.param(
            404,
            {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}},
            ServerError,
            "url right.*/v1",
            id="llama-server, wrong path",
        ),
        pytest.param(404, {"detail": "Not Found"}, ServerError, "/v1", id="vLLM, wrong path"),
        *(
            pytest.param(status, {"error": LIBRARY_GONE}, ServerError, "libcuda", id=f"{status}")
            for status in (500, 502)
        ),
        pytest.param(
            200, {"error": "model 'x' not found"}, ModelNotFound, "'x'", id="in a stream: no model"
        ),
        pytest.param(
            429,
            {"error": "Your input and max_tokens exceed the tokens you have per minute"},
            RateLimited,
            "per minute",
            id="429, of a rate and not of a context",
        ),
        pytest.param(429, {"error": {"message": "slow down"}}, RateLimited, "slow down", id="429"),
        pytest.param(503, LOADING, Overloaded, "Loading model", id="503"),
        pytest.param(529, {"error": {"message": "Overloaded"}}, Overloaded, "full", id="529"),
        # In a stream that had begun, the body alone tells.
        pytest.param(200, LOADING, Overloaded, "Loading model", id="in a stream: 503"),
        pytest.param(200, {"error": {"message": "boom"}}, ServerError, "boom", id="in a stream"),
    ],
)
def test_an_error_reply_becomes_the_error_it_means(status, body, expected, says):
    error = read(status, body)

    assert type(error) is expected
    assert error.endpoint == "judge"
    with pytest.raises(expected, match=f"^judge: (?s:.)*{says}"):
        raise error


@pytest.mark.parametrize(
    ("status", "error", "prompt_tokens", "context_tokens"),
    [
        pytest.param(400, LLAMA_OVERFLOW["error"], 4001, 512, id="llama-server"),
        pytest.param(400, VLLM_OVERFLOW["error"], None, 2048, id="vLLM, which has stopped there"),
        pytest.param(
            400,
            "prompt is too long: 208310 tokens > 200000 maximum",
            208310,
            200000,
            id="Anthropic",
        ),
        pytest.param(
            400,
            "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease "
            "input length or `max_tokens` and try again",
            188240,
            200000,
            id="Anthropic, no room for the reply",
        ),
        pytest.param(
            400,
            "This endpoint's maximum context length is 8192 tokens. However, you requested about "
            "9001 tokens (8489 of text input, 512 in the output).",
            8489,
            8192,
            id="OpenRouter",
        ),
        pytest.param(
            403,
            "Input token count + max_tokens exceed the model's context",
            None,
            None,
            id="Together, no room for the reply",
        ),
    ],
)
def test_an_overflow_tells_the_lengths_where_the_server_does(
    status, error, prompt_tokens, context_tokens
):
    overflow = read(status, {"error": error})

    assert type(overflow) is ContextOverflow
    assert (overflow.prompt_tokens, overflow.context_tokens) == (prompt_tokens, context_tokens)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        pytest.param(500, None, 500, id="of HTTP"),
        pytest.param(500, 400, 500, id="of HTTP, whatever the body says"),
        pytest.param(200, 500, 500, id="of the body, in a stream"),
        pytest.param(200, "internal", None, id="none"),
    ],
)
def test_a_server_error_keeps_its_status(status, code, expected):
    assert read(status, {"error": {"message": "boom", "code": code}}).status == expected


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("0", 0.0),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("soon", None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_a_server_may_say_how_long_to_wait(status, header, expected):
    assert read(status, {"error": "busy"}, retry_after=header).retry_after_s == expected


@pytest.mark.parametrize(
    ("date", "expected"),
    [
        pytest.param("Wed, 21 Oct 2026 07:28:00 GMT", 30.0, id="in half a minute"),
        pytest.param("Wednesday, 21-Oct-26 07:28:00 GMT", 30.0, id="as it was once written"),
        pytest.param("Wed, 21 Oct 2026 07:28:00 -0000", 30.0, id="of no zone"),
        pytest.param("Wed, 21 Oct 2026 07:27:00 GMT", 0.0, id="now over"),
    ],
)
def test_a_date_to_come_again_is_read_by_the_servers_own_clock(date, expected):
    error = read(503, {"error": "busy"}, retry_after=date, date="Wed, 21 Oct 2026 07:27:30 GMT")

    assert error.retry_after_s == expected


def test_without_the_servers_clock_a_date_is_read_by_ours():
    then = datetime.now(UTC) + timedelta(hours=1)

    error = read(503, {"error": "busy"}, retry_after=format_datetime(then, usegmt=True))

    assert 3_500 < error.retry_after_s <= 3_600


def test_milliseconds_are_the_finer_word():
    busy = read(429, {"error": "busy"}, retry_after="2", retry_after_ms="1500")
    odd = read(429, {"error": "busy"}, retry_after="2", retry_after_ms="soon")

    assert (busy.retry_after_s, odd.retry_after_s) == (1.5, 2.0)


@pytest.mark.parametrize("status", [502, 504])
def test_a_server_that_says_when_to_come_again_has_not_failed_for_good(status):
    error = read(status, {"error": "restarting"}, retry_after="7")

    assert type(error) is Overloaded
    assert error.retry_after_s == 7.0


def test_without_a_word_from_the_server_the_wait_is_unknown():
    assert read(429, {"error": "busy"}).retry_after_s is None


def test_a_long_body_is_cut_in_the_message():
    for body in (b"x" * 10_000, {"error": "x" * 10_000}, {"error": {"message": "x" * 10_000}}):
        assert len(str(read(500, body))) < 600
