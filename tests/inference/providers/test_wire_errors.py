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
TOO_LONG = nested("This model's maximum context length is 512 tokens")
INNER = json.dumps(TOO_LONG)


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
        (429, [{"error": {"message": "spent"}}], RateLimited, "spent"),
        (429, {"error": {"code": "insufficient_quota"}}, AuthenticationFailed, "nothing left"),
        (402, {"error": {"message": "Insufficient credits"}}, AuthenticationFailed, "top it up"),
        (503, LOADING, Overloaded, "Loading model"),
        (529, nested("Overloaded"), Overloaded, "Overloaded"),
        # In a stream that had begun, the body alone tells; MiniMax has codes of its own.
        (200, LOADING, Overloaded, "Loading model"),
        (200, {"error": "model 'x' not found"}, ModelNotFound, "'x'"),
        (200, {"base_resp": {"status_code": 1002, "status_msg": "RPM"}}, RateLimited, "RPM"),
        (200, {"base_resp": {"status_code": 1027, "status_msg": "no"}}, ServerError, "reply: no"),
        # Errors around a server's: OpenRouter, LiteLLM, TrueFoundry, Vercel, Cloudflare.
        (400, nested("Provider error", metadata={"raw": INNER}), ContextOverflow, "error: This"),
        (429, nested("Provider error", metadata={"raw": "busy"}), RateLimited, "error: busy"),
        (400, nested(f"BadRequest - b'{INNER}'. Model Group=x"), ContextOverflow, "512"),
        (400, nested("Bad. " * 200 + f"Fallback: {INNER}"), ContextOverflow, "512"),
        (400, {"message": f"error | metadata: {INNER}"}, ContextOverflow, "512"),
        (200, nested("Stream error", value={"error_message": INNER}), ContextOverflow, "512"),
        (400, {"messages": [], "error": [{"code": 2005, "message": "no"}]}, ServerError, "400: no"),
        # Words of the prompt, or of a server that was asked before.
        (422, {"detail": [{"msg": "boom", "input": TOO_LONG}]}, ServerError, "422: boom"),
        (400, nested("boom", metadata={"previous_errors": [TOO_LONG]}), ServerError, "400: boom"),
    ],
)
def test_an_error_reply_becomes_the_error_it_means(status, body, expected, says):
    error = read(status, body)

    assert type(error) is expected
    assert says in str(error)


@pytest.mark.parametrize(
    ("status", "error", "prompt", "context"),
    [
        # llama-server; vLLM, which stopped there; Anthropic, of the reply; OpenRouter; Together.
        (400, {"type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 5}, 9, 5),
        (400, "This model's maximum context length is 2048 tokens. However, you …", None, 2048),
        (400, "input and `max_tokens` exceed context limit: 18 + 21 > 20, decrease", 18, 20),
        (400, "maximum context length is 8192. You requested 91 tokens (89 of text", 89, 8192),
        (403, "Input token count + max_tokens exceed the context", None, None),
    ],
)
def test_an_overflow_tells_the_lengths_where_the_server_does(status, error, prompt, context):
    overflow = read(status, {"error": error})

    assert type(overflow) is ContextOverflow
    assert (overflow.prompt_tokens, overflow.context_tokens) == (prompt, context)
    assert "context_tokens under [endpoints.judge]" in str(overflow)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [(500, None, 500), (500, 400, 500), (200, "500", 500), (200, "internal", None), (200, 7, None)],
)
def test_a_server_error_keeps_its_status_or_in_a_stream_that_of_the_body(status, code, expected):
    assert read(status, nested("boom", code=code)).status == expected


def test_an_account_at_its_limit_is_told_in_the_servers_words_with_the_time_to_wait():
    words = "Rate limit reached for gpt-4 on tokens per day (TPD): Limit 100000, Used 99999"

    assert words in str(read(429, {"error": words}, retry_after="7"))
    assert str(read(429, {"error": words}, retry_after="7")).endswith("; it says to wait 7 s")
    assert str(read(429, {"error": words}, retry_after="9000")).endswith("to wait 2.5 h")
    assert str(read(429, {"error": words})).endswith("may take 24 h")
    large = read(
        429, {"error": "Request too large for gpt-4o (TPM): Limit 30000, Requested 45000."}
    )
    assert large.retry_after_s == 86_400, "so that it ends at once, or goes to a fallback"


DATE = {"date": "Wed, 21 Oct 2026 07:27:30 GMT"}
SPENT = {"x_ratelimit_remaining_requests": "0", "x_ratelimit_reset_requests": "1m3s"}
LEFT = {"x_ratelimit_remaining_tokens": "9", "x_ratelimit_reset_tokens": "6m0s"}
PER_DAY = {"violations": [{"quotaId": "GenerateRequestsPerDayPerProject", "quotaValue": "20"}]}


def reset(value, remaining="0"):
    headers = {"X-RateLimit-Remaining": remaining, "X-RateLimit-Reset": value}
    return nested("busy", metadata={"headers": headers})


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        *(("busy", {"retry_after": text}, None) for text in ("-1", "nan", "inf", "x", "9" * 6**6)),
        ("busy", {"retry_after": "0.5"}, 0.5),
        ("busy", {"retry_after": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30.0),
        ("busy", {"retry_after": "Wed, 21 Oct 2026 07:27:00 GMT"}, 0.0),
        ("busy", {"retry_after": "2", "retry_after_ms": "1500"}, 1.5),
        ("try again in 9s", {"retry_after": "2", "retry_after_ms": "soon"}, 2.0),
        ("busy", SPENT | LEFT, 63.0),
        ("busy", LEFT, None),
        ("busy", {"a_remaining": "0", "a_reset": "2026-10-21T07:28:00Z"}, 30.0),
        # Headers that OpenRouter passes on.
        *((reset("1792567650500"), {}, 0.5), (reset(1_792_567_659), {}, 9.0)),
        *((reset("1792567650500", 3), {}, None), (reset(None), {}, None)),
        (nested("busy", details=[{"retryDelay": "3s"}, PER_DAY]), {}, 3.0),
        ({"error": "loading", "estimated_time": 20.5}, {}, 20.5),
        ("Please try again in 3.289s. Visit https://x", {}, 3.289),
        ("(TPD): Limit 9. Please try again in 7h12m3.5s.", {}, 25_923.5),
        ("Please retry after 34 seconds.", {}, 34.0),
        ("Try again in 6ms", {}, 0.006),
        ("You must wait 1 minute and 5 seconds", {}, 65.0),
        # A time that is no wait.
        ("try again in 5m-context, not model-30s; 128k per request took 12 s", {}, None),
        ("Requests: 3 per minute, 200 per day", {}, None),
        # A quota by the day, whose end is not said.
        ("Rate limit exceeded: free-models-per-day. Add 10 credits", {}, 86_400.0),
        (nested("quota exceeded", details=[PER_DAY]), {}, 86_400.0),
    ],
)
def test_a_server_may_say_how_long_to_wait_in_headers_fields_or_words(body, headers, expected):
    body = {"error": body} if isinstance(body, str) else body
    assert read(429, body, **DATE | headers).retry_after_s == expected


def test_a_server_that_says_when_to_come_again_has_not_failed_for_good():
    error = read(502, {"error": "restarting"}, retry_after="7")

    assert (type(error), error.retry_after_s) == (Overloaded, 7.0)
