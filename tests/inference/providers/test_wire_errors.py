import json

import pytest

from harness.errors import (
    AuthenticationFailed,
    ContextOverflow,
    ModelNotFound,
    Overloaded,
    RateLimited,
    ServerError,
)
from harness.inference.providers.error_replies import error_from_reply


def read(status, body, **headers):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return error_from_reply(status, raw, headers=names, endpoint="judge", model_id="x")


def nested(message, **more):
    return {"error": {"message": message, **more}}


LOADING = nested("Loading model", code=503, type="unavailable_error")
NOT_FOUND = nested("File Not Found", code=404, type="not_found_error")


@pytest.mark.parametrize(
    ("status", "body", "expected", "says"),
    [
        # The four shapes of a body.
        (500, nested("boom"), ServerError, "boom"),
        (500, {"error": "boom"}, ServerError, "boom"),
        (500, {"object": "error", "message": "boom"}, ServerError, "boom"),
        (500, {"detail": "boom"}, ServerError, "boom"),
        (422, {"detail": [{"msg": "boom"}]}, ServerError, "boom"),
        # And what is none of them.
        (502, b"<h1>Bad Gateway</h1>", ServerError, "Bad Gateway"),
        (500, b"\xff\xfe", ServerError, "500"),
        # What servers say: OpenAI, TGI; then vLLM's, Ollama's and MLC's of a model.
        (400, nested("too long", code="context_length_exceeded"), ContextOverflow, "too long"),
        (401, {"error": "Unauthorized"}, AuthenticationFailed, "api_key_env"),
        (404, nested("The model `x` does not exist.", code=404), ModelNotFound, "'x'"),
        (404, {"error": "model 'x' not found"}, ModelNotFound, "endpoints check judge"),
        (400, {"message": 'The requested model "x" is not served.'}, ModelNotFound, "model_id"),
        # A wrong path, and a library that is not found.
        (404, NOT_FOUND, ServerError, "/v1"),
        (500, {"error": "model runner crashed: libcuda.so not found"}, ServerError, "libcuda"),
        # Of a rate and not of a context.
        (429, {"error": "Your input and max_tokens exceed the tokens"}, RateLimited, "exceed"),
        (429, {"error": {"code": "insufficient_quota"}}, AuthenticationFailed, "nothing left"),
        (402, {"error": {"message": "Insufficient credits"}}, AuthenticationFailed, "top it up"),
        (503, LOADING, Overloaded, "Loading model"),
        (529, nested("Overloaded"), Overloaded, "Overloaded"),
        # In a stream that had begun, the body alone tells.
        (200, LOADING, Overloaded, "Loading model"),
        (200, {"error": "model 'x' not found"}, ModelNotFound, "'x'"),
    ],
)
def test_an_error_reply_becomes_the_error_it_means(status, body, expected, says):
    error = read(status, body)

    assert type(error) is expected
    assert says in str(error)


@pytest.mark.parametrize(
    ("status", "error", "prompt_tokens", "context_tokens"),
    [
        pytest.param(
            400,
            {"message": "?", "type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 5},
            9,
            5,
            id="llama-server",
        ),
        pytest.param(
            400,
            "This model's maximum context length is 2048 tokens. However, you requested …",
            None,
            2048,
            id="vLLM, which has stopped there",
        ),
        pytest.param(
            400,
            "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease",
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
            403, "Input token count + max_tokens exceed the context", None, None, id="Together"
        ),
    ],
)
def test_an_overflow_tells_the_lengths_where_the_server_does(
    status, error, prompt_tokens, context_tokens
):
    overflow = read(status, {"error": error})

    assert type(overflow) is ContextOverflow
    assert (overflow.prompt_tokens, overflow.context_tokens) == (prompt_tokens, context_tokens)
    assert "context_tokens under [endpoints.judge]" in str(overflow)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [(500, None, 500), (500, 400, 500), (200, 500, 500), (200, "internal", None)],
)
def test_a_server_error_keeps_its_status_or_in_a_stream_that_of_the_body(status, code, expected):
    assert read(status, nested("boom", code=code)).status == expected


def test_an_account_at_its_limit_is_told_in_the_servers_words_with_the_time_to_wait():
    words = "Rate limit reached for gpt-4 on tokens per day (TPD): Limit 100000, Used 99999"
    error = read(429, {"error": words}, retry_after="7")

    assert type(error) is RateLimited
    assert words in str(error)
    assert str(error).endswith("; it says to wait 7 s")


@pytest.mark.parametrize(
    ("header", "expected"), [("0.5", 0.5), ("-1", None), ("nan", None), ("inf", None), ("x", None)]
)
def test_a_server_may_say_how_long_to_wait(header, expected):
    assert read(503, {"error": "busy"}, retry_after=header).retry_after_s == expected


@pytest.mark.parametrize(
    ("date", "expected"),
    [
        pytest.param("Wed, 21 Oct 2026 07:28:00 GMT", 30.0, id="in half a minute"),
        pytest.param("Wed, 21 Oct 2026 07:27:00 GMT", 0.0, id="now over"),
    ],
)
def test_a_date_to_come_again_is_read_by_the_servers_own_clock(date, expected):
    error = read(503, {"error": "busy"}, retry_after=date, date="Wed, 21 Oct 2026 07:27:30 GMT")

    assert error.retry_after_s == expected


def test_milliseconds_are_the_finer_word():
    busy = read(429, {"error": "busy"}, retry_after="2", retry_after_ms="1500")
    odd = read(429, {"error": "busy"}, retry_after="2", retry_after_ms="soon")

    assert (busy.retry_after_s, odd.retry_after_s) == (1.5, 2.0)


def test_a_server_that_says_when_to_come_again_has_not_failed_for_good():
    error = read(502, {"error": "restarting"}, retry_after="7")

    assert (type(error), error.retry_after_s) == (Overloaded, 7.0)
