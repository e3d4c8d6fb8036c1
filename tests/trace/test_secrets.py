import json
import time
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sample_runs import journal_lines, load_run

from harness.trace import (
    Content,
    Instant,
    Journal,
    NodeOutput,
    Redactor,
    RunTrace,
    TraceOptions,
)
from harness.trace.journal_line import decode, encode, seal
from harness.trace.secrets import REDACTED, searchable, secrets_of

PLAIN = "correct-horse-battery"
ODD = 'pa"ss\\wörd/with space'
SECRETS = {"plain": PLAIN, "with quotes, a backslash, a space and an umlaut": ODD}


def as_json(secret):
    """In JSON text, by a library that keeps all scripts and by one that keeps ASCII."""
    return [json.dumps(secret, ensure_ascii=False)[1:-1], json.dumps(secret)[1:-1]]


def forms(secret):
    """Every way a secret may stand in a text."""
    once = as_json(secret)
    twice = [form for one in once for form in as_json(one)]
    return {secret, quote(secret, safe=""), quote_plus(secret), *once, *twice}


def in_a_line(attributes, *secrets):
    """Attributes as they are read back from a line of a journal that was cleaned."""
    line = Redactor(secrets).clean_line(encode(Instant(None, "x", 1, attributes)))
    return decode(seal(line, 1)).attributes


# --- texts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
def test_a_known_secret_is_replaced_wherever_it_stands_in_whatever_form(secret):
    redactor = Redactor([secret])

    for form in forms(secret):
        assert redactor.clean(form) == REDACTED
        assert redactor.clean(f"key={form}&x") == f"key={REDACTED}&x"
        assert redactor.clean(f"ab{form}cd\n{form}") == f"ab{REDACTED}cd\n{REDACTED}"


@pytest.mark.parametrize(
    ("secrets", "text", "cleaned"),
    [
        pytest.param(["horse-bat", "a-horse-bat-x", "bat"], "a-horse-bat-x", "*", id="the longest"),
        pytest.param(["horse-bat", "a-horse-bat-x", "bat"], "a horse-bat", "a *", id="a shorter"),
        # As files and variables have it, with a newline at its end.
        pytest.param([f" {PLAIN}\n"], f"key {PLAIN}.", "key *.", id="between its blanks"),
        pytest.param(
            ["", " ", "a", "12345", "   abc   "], "a 12345 abc", "a 12345 abc", id="short"
        ),
    ],
)
def test_of_what_is_known_nothing_is_left_and_nothing_else_taken(secrets, text, cleaned):
    assert Redactor(secrets).clean(text) == cleaned.replace("*", REDACTED)


def test_a_secret_that_is_no_valid_unicode_is_replaced_as_it_is_written():
    # What Python makes of a variable whose bytes are not UTF-8.
    secret = b"caf\xe9-caf\xe9".decode("utf-8", "surrogateescape")

    assert in_a_line({"key": secret}, secret) == {"key": REDACTED}


TOKEN = "aGVsbG8gd29ybGQ0NQ"
DIGITS = "0123456789012345"


def nested(value, times):
    """JSON in JSON in JSON."""
    return value if not times else json.dumps(nested(value, times - 1))


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        pytest.param(f"Bearer {TOKEN}", "Bearer *", id="bearer"),
        pytest.param(f"-H 'x: BEARER  {TOKEN}'", "-H 'x: BEARER  *'", id="in any case"),
        pytest.param(f"a\nBearer {TOKEN}\nb", "a\nBearer *\nb", id="bearer on its line"),
        pytest.param(f'{{"Authorization": "Basic {TOKEN}"}}', '{"Authorization": "*"}', id="JSON"),
        pytest.param(f'{{"x-api-key":"{TOKEN}","n":1}}', '{"x-api-key":"*","n":1}', id="a header"),
        pytest.param(nested({"api_key": TOKEN}, 3), nested({"api_key": "*"}, 3), id="and again"),
        pytest.param('{"password": "ab\\"cd", "n": "e"}', '{"password": "*", "n": "e"}',
                     id="JSON with quotes"),
        pytest.param(nested({"password": 'ab"cd', "n": "ef"}, 2),
                     nested({"password": "*", "n": "ef"}, 2), id="JSON in JSON with quotes"),
        pytest.param(f"{{'x-api-key': '{TOKEN}'}}", "{'x-api-key': '*'}", id="Python's words"),
        pytest.param(f'"OPENAI_API_KEY": "{TOKEN}"', '"OPENAI_API_KEY": "*"', id="a variable"),
        pytest.param("key sk-proj-abcDEF0123456789_-x.", "key *.", id="sk-"),
        pytest.param("(hf_abcDEF0123456789abc)", "(*)", id="hf_"),
        pytest.param("ghp_abcDEF0123456789abc", "*", id="ghp_"),
        pytest.param("xoxb-1234567890-abcDEF01", "*", id="xoxb-"),
        pytest.param("Authorization: Basic dXNlcjpw", "Authorization: Basic *", id="basic"),
        pytest.param(f"x-api-key: {DIGITS}\nn: 1", "x-api-key: *\nn: 1", id="another"),
        pytest.param(f"authorization=Token {TOKEN}", "authorization=Token *", id="a field"),
        pytest.param(f'API_KEY="{TOKEN}" x', 'API_KEY="*" x', id="shell"),
        pytest.param(f"api_key = '{TOKEN}')", "api_key = '*')", id="source code"),
        pytest.param(f'"api_key" : {DIGITS}}}', '"api_key" : *}', id="a number"),
        pytest.param("PGPASSWORD=correct psql", "PGPASSWORD=* psql", id="a password"),
        pytest.param(f"AccountKey={TOKEN}==;x=1", "AccountKey=*;x=1", id="Azure"),
        pytest.param(nested({"a": 1, "token": TOKEN}, 2), nested({"a": 1, "token": "*"}, 2),
                     id="a token in JSON in JSON"),
        pytest.param('{"access_token": "words"}', '{"access_token": "*"}', id="token and word"),
        pytest.param("https://host/v1?api_key=abc&n=1", "https://host/v1?api_key=*&n=1",
                     id="a parameter"),
        pytest.param("https://h/b?sv=2022&sig=a%2Fb%3D#c", "https://h/b?sv=2022&sig=*#c",
                     id="Azure SAS"),
        pytest.param(f"GET /v1?key={TOKEN} 200", "GET /v1?key=* 200", id="Google"),
        pytest.param("https://me:pass@host/v1", "https://me:*@host/v1", id="an address"),
        pytest.param("https://mytoken12345@host/v1", "https://*@host/v1", id="a name alone"),
        pytest.param("a\nsk-proj-abcDEF0123456789\n\tsk-proj-abcDEF0123456789", "a\n*\n\t*",
                     id="keys on their lines"),
    ],
)  # fmt: skip
def test_what_must_be_a_secret_is_replaced_though_nobody_told_of_it(text, cleaned):
    cleaned = cleaned.replace("*", REDACTED)

    assert Redactor().clean(text) == cleaned
    said = {"said": text, "all": [{"said": text}]}
    assert in_a_line(said) == {"said": cleaned, "all": [{"said": cleaned}]}


def secret_variables(*names, value=PLAIN):
    return [name for name in names if secrets_of({name: value}, named=())]


def test_more_variables_are_secret_than_end_in_a_secrets_name():
    names = "MY_KEY", "GH_PAT", "DB_PASS", "AWS_CREDENTIALS", "API_KEYS", "MY_KEY_PROD", "K_TOKEN_2"
    assert secret_variables(*names) == [*names]
    others = "PATH", "PATTERN", "COMPASS", "KEYBOARD", "TOKENIZERS_PARALLELISM", "MONKEY"
    assert secret_variables(*others) == []
    assert secret_variables("MAX_TOKENS", value="100000") == [], "a count"
    assert secret_variables("SSH_KEY_PATH", value="/home/me/key") == [], "a place"


SECRET_NAMES = [
    "Authorization", "x-api-key", "api_key", "OPENAI_API_KEY", "password", "passwd", "secret",
    "HF_TOKEN", "refresh_token", "access-token", "aws_secret_access_key", "client_secret",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_name_tells_of_a_secret(name):
    # An attribute's,
    assert in_a_line({"headers": {name: TOKEN, "n": "b"}, name: f"{TOKEN}!"}) == {
        "headers": {name: REDACTED, "n": "b"},
        name: REDACTED,
    }
    # and a variable's,
    environment = {name: PLAIN, "PWD": "/home/me", "MAX_TOKENS": "4096", "PASSWORD_STORE": "/x"}
    assert {*secrets_of(environment, named=["NOT_SET"]).values()} == {PLAIN}
    assert {*secrets_of(environment, named=["PWD"]).values()} == {PLAIN, "/home/me"}
    # but not that of a parameter, of which a digest is kept.
    digests = ["0123456789abcdef" * 4, "89abcdef" * 8, "76543210" * 8]
    output = NodeOutput("n", None, "x", {name: digests[0]}, code=digests[1], digest=digests[2])
    assert Redactor([PLAIN]).clean_line(encode(output)) == encode(output)


@pytest.mark.parametrize("name", [*SECRET_NAMES[:7], "x_access_token", "refresh-token"])
def test_under_a_name_without_doubt_any_value_is_secret(name):
    assert in_a_line({name: "word", "nested": {name: 1}}) == {
        name: REDACTED,
        "nested": {name: REDACTED},
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("output_tokens", 123456789),
        ("max_tokens", "123456789"),
        ("prompt_tokens", {"cached": 123456789}),
        ("token", 123456789),
        ("token", "hello"),
        ("eos_token", "<|reserved_special_token_0|>"),
        ("kv_bytes_per_token", 131072000),
        ("uses_api_key", True),
        ("api_key_env", "OPENAI_API_KEY"),
        ("secret", None),
    ],
)
def test_an_attribute_that_only_counts_tokens_or_tells_of_a_key_stays(name, value):
    said = {name: value, "nested": [{name: value}]}

    assert in_a_line(said) == said
    assert Redactor().clean(json.dumps(said)) == json.dumps(said)


def test_ordinary_prose_is_left_as_it_is():
    for text in (
        "task-12 and task-1234567890123456789",
        "the secret garden; keep it secret: nobody knows",
        "token count: 1234, max_tokens=4096",
        "the ring bearer followed him; the risk-adjusted-return-2026",
        "sk-learn-compatible-estimators",
        "Authorization is required: see 'password' in the manual",
        "a sha256 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "https://example.org/a?b=c&d=1234567890123456",
        "output_tokens=123456789, token=123456789, time to first token: 12345678.5",
        "kv_bytes_per_token=131072, usd_per_token: 1.523e-06",
        "the password: it was long; the token: an owl",
        'she told him the secret: "I never left."',
        "api_key=None, api_key=settings.key, token=tokenizer.eos_token_id",
        "sorted(names, key=len); ?key=name; design=12345678901",
        "write to someone1234@example.org, see http://127.0.0.1:8080/v1 and http://host:80/@me123",
        "ssh://git@github.com/a/b",
    ):
        assert Redactor([PLAIN, ODD]).clean(text) == text
        assert in_a_line({"text": text}, PLAIN, ODD) == {"text": text}


# What patterns could be made to try over and over: beginnings without an end, what nearly fits,
# what may be read in two ways.
NASTY = [
    ("secret ", "\\"), ('"secret": ', "\\"), ('"secret": "', "a"), ("", '"secret": \''),
    ("", '"secret":"x\\'), ("", '\\"secret\\":\\"'), ("", "secret\\':\\\\\"x"),
    ("", "sk-"), ("", "sk-abcdefgh"), ("", "\\nsk-"), ("", "gsk_hf_r8_ghp_xoxb-"), ("", "a-"),
    ("", "bearer "), ("bearer", " "), ("", "authorization: basic "), ("authorization: basic", " "),
    ("", "authorization"), ("", "password="), ("", "api_key=a1"), ("password", " "),
    ("password:", " "), ("", "passwd=ab "), ("", "token="), ("", "token:token"), ("", "token=1"),
    ("", "?a"), ("token=&sig=", "&"), ("?key=&", "a."), ("", "sig="), ("", "?key=a"),
    ("@", "://a"), ("@", "://a:"), ("@://", "a"), ("@://", "a:"), ("@", "://a1234567"),
    ("://", "@"), ("api_key=", "a"), ("key= secret= bearer sk- @", " "), ("password:", "\n"),
]  # fmt: skip


def test_no_text_takes_for_ever():
    began_s = time.process_time()
    for begins, repeats in NASTY[::2]:
        Redactor().clean(begins + repeats * (100_000 // len(repeats)))

    # A fraction of a second; where time grows with the square, a minute and more.
    assert time.process_time() - began_s < 10


# --- lines -----------------------------------------------------------------------------------

TEXTS = st.text(max_size=20) | st.text("ab\\\"\n12'/u ", max_size=20)


# What looks like a journal's own words: digits of a time, names of fields, pieces of JSON.
OWN_WORDS = ["123456", "status", "instant", '"name":"', "null,null", "n12345", "\\u0001"]


@given(
    secrets=st.lists(TEXTS, max_size=3),
    texts=st.tuples(TEXTS, TEXTS, TEXTS),
    number=st.integers(0, 2**62),
)
@example(secrets=OWN_WORDS, texts=("key", "a\n12345\x01 ", ""), number=99_123_456_000)
def test_a_line_stays_json_and_a_record_and_holds_no_secret(secrets, texts, number):
    key, before, after = texts
    planted = [before + secret + after for secret in secrets]
    record = Instant(3, before, number, {key: {"n": number, after: planted}, "text": key})

    line = Redactor(secrets).clean_line(encode(record))

    cleaned = decode(seal(line, 1))
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")
    assert (cleaned.span, cleaned.time_ns) == (3, number)
    for secret in secrets:
        known = secret.strip()
        if searchable(known) and known not in REDACTED:
            assert not any(known in one.replace(REDACTED, "\0") for one in texts_in(cleaned))


def texts_in(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, one in value.items():
            yield name
            yield from texts_in(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from texts_in(one)


# --- runs ------------------------------------------------------------------------------------


def plant(trace, secret):
    """Leaves a secret wherever code could."""
    request = json.dumps({"key": secret, "nested": json.dumps({"key": secret})})
    address = f"https://host/v1?key={quote(secret, safe='')}"
    with trace.span(secret, label=secret, track=f"node {secret}", key=secret) as span:
        trace.instant(secret, **{secret: secret})
        trace.counter(secret, 1, unit=secret)
        trace.counter("queue", 1, unit="calls", track=secret)
        trace.flow(secret, source=span.id, target=span.id)
        value = {secret: [secret, {"key": secret}], "request": request}
        trace.output(NodeOutput(secret, None, value))
        trace.output(NodeOutput("plan", 1, secret))
        trace.completed_span(secret, start_ns=1, end_ns=2, key=secret)
        trace.instant("kept", draft_sha256=trace.content(f"a draft\n{secret}"))
        trace.instant("made", draft_sha256=trace.content(lambda: request))
        span.set(late=secret, nested={secret: {"list": [secret, (secret,)]}}, **{secret: 1})
        span.set(request=request, address=address, header=f"x\nBearer {secret}", bytes=repr(secret))
    try:
        with trace.span("chat", prompt_sha256=trace.content(secret), prompt_chars=len(secret)):
            raise ValueError(f"the server said: {request} for {address}")
    except ValueError:
        pass
    raise ValueError(f"nobody caught {secret} {request}")


@pytest.mark.parametrize("durability", ["node", "sync"])
@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
def test_a_secret_is_in_no_file_of_a_run_wherever_it_was_planted(tmp_path, secret, durability):
    options = TraceOptions(secrets=[secret], durability=durability)
    trace = RunTrace(tmp_path, name=f"run {secret}", options=options)
    with pytest.raises(ValueError, match="nobody caught"), trace:
        plant(trace, secret)

    paths = {path.suffix: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(paths) == {".jsonl", ".json", ".pftrace"}
    for suffix, data in paths.items():
        for form in forms(secret):
            assert form.encode() not in data, suffix
        assert data.count(REDACTED.encode()) > 10
    run = load_run(trace.journal_path)
    assert run.started.name == f"run {REDACTED}"
    assert len(run.spans) == 3
    assert run.ended.error.startswith(f"ValueError: nobody caught {REDACTED}")
    assert f"a draft\n{REDACTED}" in run.contents.values()
    assert secret not in str(list(Journal(trace.journal_path).items()))


def test_the_hash_of_a_text_is_that_of_the_text_without_its_secrets(tmp_path):
    # Observers are no files: a terminal shows what the person before it wrote.
    seen = []
    options = TraceOptions(secrets=[PLAIN])
    with RunTrace(tmp_path, name="essay", options=options, observers=[seen.append]) as trace:
        trace.instant("kept", text=PLAIN, draft_sha256=trace.content(f"my {PLAIN}"))

    (content,) = [one for one in journal_lines(trace.journal_path) if isinstance(one, Content)]
    (instant,) = load_run(trace.journal_path).instants
    assert content.text == f"my {REDACTED}"
    assert instant.attributes == {"text": REDACTED, "draft_sha256": content.sha256}
    assert [one.attributes["text"] for one in seen if isinstance(one, Instant)] == [PLAIN]
    assert PLAIN not in repr(options)


PROMPT, REPLY, OUTPUT = "a prompt of nobody's business", "a reply likewise", "an output too"


def chat(trace):
    prompt = trace.content(lambda: PROMPT)
    with trace.span("chat", prompt_sha256=prompt, query=trace.excerpt(PROMPT), n=7) as span:
        span.set(reply_sha256=trace.content(REPLY))
        trace.instant("kept", draft_sha256=trace.content(REPLY))
        trace.output(NodeOutput("plan", None, {"text": OUTPUT}))
        raise ValueError(f"cannot parse: {REPLY}")


def test_a_run_that_records_no_texts_has_none_in_any_file(tmp_path):
    runs = {}
    for content in ("full", "hash", "none"):
        trace = RunTrace(tmp_path / content, name="essay", options=TraceOptions(content=content))
        with pytest.raises(ValueError, match="cannot parse"), trace:
            chat(trace)
        runs[content] = run = load_run(trace.journal_path)
        if content == "full":
            continue
        for path in (tmp_path / content).iterdir():
            data = path.read_bytes()
            assert not any(text.encode() in data for text in (PROMPT, REPLY, OUTPUT)), path.suffix
        assert run.contents == {}
        assert [output.value for output in run.outputs] == [None]
        assert {span.error for span in run.spans} == {run.ended.error} == {"ValueError"}

    full, hashed, none = (run.spans[0].attributes for run in runs.values())
    assert sorted(runs["full"].contents.values()) == [PROMPT, REPLY]
    for name in ("prompt_sha256", "reply_sha256"):
        assert full[name] == hashed[name]
        assert full[name] in runs["full"].contents
    assert none == {"n": 7, "query": None}


@pytest.mark.parametrize(
    "value",
    [
        "ollama", "Ollama", "EMPTY", "none", "dummy", "local", "lm-studio", "not-needed", "hunter2",
        "sk-no-key-required", "token-abc123", "00000000", "no_key_open_source_local", "anything",
        "sk-xxxxxxxxxxxxxxxx", "<your-api-key-here>", "123456789", "no-key-required",
    ],
)  # fmt: skip
def test_a_placeholder_for_a_key_stays_in_texts(value):
    text = f"how to install {value}"
    assert Redactor([value]).clean(text) == text


@pytest.mark.parametrize(
    "value",
    ["пароль-мой", "correct-horse-battery", "password123", "sk-1a2b3c4d5e6f", "ollama-9fK2"],
)
def test_a_real_secret_is_looked_for_though_common_words_are_in_it(value):
    assert Redactor([value]).clean(f"it is {value}.") == f"it is {REDACTED}."
