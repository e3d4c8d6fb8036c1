import json
import timeit
from urllib.parse import quote, quote_plus

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_runs import journal_lines, steady

from harness.trace import (
    Content,
    Instant,
    JoinedTrace,
    Journal,
    ManualClock,
    NodeOutput,
    Redactor,
    RunTrace,
    TraceOptions,
    load_run,
)
from harness.trace.journal_line import decode, encode
from harness.trace.secrets import REDACTED, secret_values

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


# --- texts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
def test_a_known_secret_is_replaced_wherever_it_stands_in_whatever_form(secret):
    redactor = Redactor([secret])

    for form in forms(secret):
        assert redactor.clean(form) == REDACTED
        assert redactor.clean(f"key={form}&x") == f"key={REDACTED}&x"
        assert redactor.clean(f"ab{form}cd\n{form}") == f"ab{REDACTED}cd\n{REDACTED}"


def test_of_a_secret_within_another_nothing_is_left():
    redactor = Redactor(["horse-battery", "correct-horse-battery-staple", "battery"])

    assert redactor.clean("a correct-horse-battery-staple") == f"a {REDACTED}"
    assert redactor.clean("a horse-battery") == f"a {REDACTED}"


def test_a_secret_is_known_by_what_is_between_its_blanks():
    # As files and variables have it, with a newline at its end.
    assert Redactor([f" {PLAIN}\n"]).clean(f"key {PLAIN}.") == f"key {REDACTED}."


@pytest.mark.parametrize("secret", ["", " ", "a", "12345", "   abc   "])
def test_what_is_too_short_for_a_secret_is_left_alone(secret):
    text = "a 12345 abc"

    assert Redactor([secret]).clean(text) == text


def test_a_secret_that_is_no_valid_unicode_is_replaced_as_it_is_written():
    # What Python makes of a variable whose bytes are not UTF-8.
    secret = b"caf\xe9-caf\xe9".decode("utf-8", "surrogateescape")
    line = encode(Instant(None, "x", 1, {"key": secret}))

    assert decode(Redactor([secret]).clean_line(line)).attributes == {"key": REDACTED}


TOKEN = "aGVsbG8gd29ybGQ0NQ"
DIGITS = "0123456789012345"


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        pytest.param(f"Bearer {TOKEN}", f"Bearer {REDACTED}", id="bearer"),
        pytest.param(f"-H 'x: BEARER  {TOKEN}'", f"-H 'x: BEARER  {REDACTED}'", id="in any case"),
        pytest.param(f"a\nBearer {TOKEN}\nb", f"a\nBearer {REDACTED}\nb", id="bearer on its line"),
        pytest.param(f'{{"Authorization": "Basic {TOKEN}"}}', f'{{"Authorization": "{REDACTED}"}}',
                     id="JSON"),
        pytest.param(f'{{"x-api-key":"{TOKEN}","n":1}}', f'{{"x-api-key":"{REDACTED}","n":1}}',
                     id="another header"),
        pytest.param(json.dumps(json.dumps({"authorization": f"Basic {TOKEN}"})),
                     json.dumps(json.dumps({"authorization": REDACTED})), id="JSON in JSON"),
        pytest.param(json.dumps(json.dumps(json.dumps({"api_key": TOKEN}))),
                     json.dumps(json.dumps(json.dumps({"api_key": REDACTED}))),
                     id="JSON in JSON in JSON"),
        pytest.param('{"password": "ab\\"cd", "n": "e"}', f'{{"password": "{REDACTED}", "n": "e"}}',
                     id="JSON with quotes"),
        pytest.param(json.dumps(json.dumps({"password": 'ab"cd', "n": "ef"})),
                     json.dumps(json.dumps({"password": REDACTED, "n": "ef"})),
                     id="JSON in JSON with quotes"),
        pytest.param(f"{{'x-api-key': '{TOKEN}'}}", f"{{'x-api-key': '{REDACTED}'}}",
                     id="what Python says of a dictionary"),
        pytest.param(f'"OPENAI_API_KEY": "{TOKEN}"', f'"OPENAI_API_KEY": "{REDACTED}"',
                     id="a variable"),
        pytest.param("key sk-proj-abcDEF0123456789_-x.", f"key {REDACTED}.", id="sk-"),
        pytest.param("sk_live_abcDEF0123456789", REDACTED, id="sk_"),
        pytest.param("gsk_abcDEF0123456789abc", REDACTED, id="gsk_"),
        pytest.param("(hf_abcDEF0123456789abc)", f"({REDACTED})", id="hf_"),
        pytest.param("r8_abcDEF0123456789abc", REDACTED, id="r8_"),
        pytest.param("ghp_abcDEF0123456789abc", REDACTED, id="ghp_"),
        pytest.param("xoxb-1234567890-abcDEF01", REDACTED, id="xoxb-"),
        pytest.param("Authorization: Basic dXNlcjpw", f"Authorization: Basic {REDACTED}",
                     id="a header"),
        pytest.param(f"x-api-key: {DIGITS}\nn: 1", f"x-api-key: {REDACTED}\nn: 1", id="another"),
        pytest.param(f"authorization=Token {TOKEN}", f"authorization=Token {REDACTED}",
                     id="a field"),
        pytest.param(f"-H 'Api-Key: {DIGITS}' -v", f"-H 'Api-Key: {REDACTED}' -v", id="curl"),
        pytest.param(f'API_KEY="{TOKEN}" x', f'API_KEY="{REDACTED}" x', id="shell"),
        pytest.param(f"api_key = '{TOKEN}')", f"api_key = '{REDACTED}')", id="source code"),
        pytest.param(f'"api_key" : {DIGITS}}}', f'"api_key" : {REDACTED}}}', id="a number"),
        pytest.param("PGPASSWORD=correct psql", f"PGPASSWORD={REDACTED} psql", id="a password"),
        pytest.param("passwd: correct-horse", f"passwd: {REDACTED}", id="passwd"),
        pytest.param(f"aws_secret_access_key = {TOKEN}", f"aws_secret_access_key = {REDACTED}",
                     id="AWS"),
        pytest.param(f"AccountKey={TOKEN}==;x=1", f"AccountKey={REDACTED};x=1", id="Azure"),
        pytest.param(f"HF_TOKEN={TOKEN}", f"HF_TOKEN={REDACTED}", id="a token"),
        pytest.param(json.dumps({"refresh_token": TOKEN}), json.dumps({"refresh_token": REDACTED}),
                     id="a token in JSON"),
        pytest.param(json.dumps(json.dumps({"a": 1, "token": TOKEN})),
                     json.dumps(json.dumps({"a": 1, "token": REDACTED})),
                     id="a token in JSON in JSON"),
        pytest.param('{"access_token": "words"}', f'{{"access_token": "{REDACTED}"}}',
                     id="a token that looks like a word"),
        pytest.param("https://host/v1?api_key=abc&n=1", f"https://host/v1?api_key={REDACTED}&n=1",
                     id="a parameter"),
        pytest.param("https://h/b?sv=2022&sig=a%2Fb%3D#c", f"https://h/b?sv=2022&sig={REDACTED}#c",
                     id="Azure SAS"),
        pytest.param(f"https://h/?X-Amz-Signature={TOKEN}", f"https://h/?X-Amz-Signature={REDACTED}",
                     id="a signed address"),
        pytest.param(f"GET /v1?key={TOKEN} 200", f"GET /v1?key={REDACTED} 200", id="Google"),
        pytest.param("https://me:pass@host/v1", f"https://me:{REDACTED}@host/v1", id="an address"),
        pytest.param("https://mytoken12345@host/v1", f"https://{REDACTED}@host/v1",
                     id="an address with a name alone"),
        pytest.param("b'...\\nsk-proj-abcDEF0123456789'", f"b'...\\n{REDACTED}'",
                     id="a key on its line, in JSON text"),
        pytest.param("a\nsk-proj-abcDEF0123456789\n\tsk-proj-abcDEF0123456789",
                     f"a\n{REDACTED}\n\t{REDACTED}", id="keys on their lines"),
    ],
)  # fmt: skip
def test_what_must_be_a_secret_is_replaced_though_nobody_told_of_it(text, cleaned):
    redactor = Redactor()

    assert redactor.clean(text) == cleaned
    # And the same within a line of a journal.
    line = encode(Instant(None, "x", 1, {"said": text, "all": [{"said": text}]}))
    assert decode(redactor.clean_line(line)).attributes == {
        "said": cleaned,
        "all": [{"said": cleaned}],
    }


SECRET_NAMES = [
    "Authorization", "x-api-key", "api_key", "OPENAI_API_KEY", "password", "passwd", "secret",
    "HF_TOKEN", "refresh_token", "access-token", "aws_secret_access_key", "client_secret",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_an_attribute_whose_name_is_a_secrets_is_replaced(name):
    line = encode(Instant(None, "x", 1, {"headers": {name: TOKEN, "n": "b"}, name: f"{TOKEN}!"}))

    cleaned = decode(Redactor().clean_line(line))

    assert cleaned.attributes == {"headers": {name: REDACTED, "n": "b"}, name: REDACTED}


@pytest.mark.parametrize("name", [*SECRET_NAMES[:7], "x_access_token", "refresh-token"])
def test_under_a_name_without_doubt_any_value_is_secret(name):
    line = encode(Instant(None, "x", 1, {name: "word", "nested": {name: 1}}))

    assert decode(Redactor().clean_line(line)).attributes == {
        name: REDACTED,
        "nested": {name: REDACTED},
    }


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_the_digest_of_what_a_node_was_given_is_no_secret_whatever_the_parameters_name(name):
    digests = ["0123456789abcdef" * 4, "89abcdef" * 8, "76543210" * 8]
    output = NodeOutput(
        "plan", None, "text", {name: digests[0]}, code=digests[1], digest=digests[2]
    )

    line = encode(output)
    assert Redactor([PLAIN]).clean_line(line) == line


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_variable_is_secret_by_the_names_that_attributes_are(name):
    environment = {name: PLAIN, "PWD": "/home/me", "MAX_TOKENS": "4096", "PASSWORD_STORE": "/x"}

    assert secret_values(environment, named=["NOT_SET"]) == {PLAIN}
    assert secret_values(environment, named=["PWD"]) == {PLAIN, "/home/me"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("output_tokens", 123456789),
        ("input_tokens", 123456789),
        ("max_tokens", "123456789"),
        ("prompt_tokens", {"cached": 123456789}),
        ("token", 123456789),
        ("token", "hello"),
        ("token", "123456789"),
        ("eos_token", "<|reserved_special_token_0|>"),
        ("kv_bytes_per_token", 131072000),
        ("first_token_ns", 123456789),
        ("uses_api_key", True),
        ("api_key_env", "OPENAI_API_KEY"),
        ("secret", None),
    ],
)
def test_an_attribute_that_only_counts_tokens_or_tells_of_a_key_stays(name, value):
    line = encode(Instant(None, "x", 1, {name: value, "nested": [{name: value}]}))

    assert Redactor().clean_line(line) == line
    text = json.dumps({name: value})
    assert Redactor().clean(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "task-12 and task-1234567890123456789",
        "the secret garden; keep it secret: nobody knows",
        "token count: 1234, max_tokens=4096",
        "the ring bearer followed him; bearer instruments",
        "a desk-mounted-microphone-arm-4, the risk-adjusted-return-2026",
        "sk-learn-compatible-estimators",
        "Authorization is required: see 'password' in the manual",
        'the "password" is a word, the "api_key" another',
        "a sha256 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "https://example.org/a?b=c&d=1234567890123456",
        "2026-01-02T03:04:05Z essay 12345678",
        "output_tokens=123456789, token=123456789, time to first token: 12345678.5",
        "kv_bytes_per_token=131072, usd_per_token: 1.523e-06",
        "the password: it was long; the token: an owl",
        'she told him the secret: "I never left."',
        "api_key=None, api_key=settings.key, token=tokenizer.eos_token_id",
        "sorted(names, key=len); ?key=name; design=12345678901",
        "write to someone1234@example.org, see http://127.0.0.1:8080/v1 and http://host:80/@me12345",
        "ssh://git@github.com/a/b",
    ],
)
def test_ordinary_prose_is_left_as_it_is(text):
    redactor = Redactor([PLAIN, ODD])
    line = encode(Instant(None, "x", 1, {"text": text}))

    assert redactor.clean(text) == text
    assert redactor.clean_line(line) == line


# What patterns could be made to try over and over: beginnings without an end, what nearly fits,
# what may be read in two ways.
NASTY = {
    "backslashes": ("secret ", "\\"),
    "quoted backslashes": ('"secret": ', "\\"),
    "a quote that does not end": ('"secret": "', "a"),
    "quotes that do not end": ("", '"secret": \''),
    "quotes that end in backslashes": ("", '"secret":"x\\'),
    "escaped quotes": ("", '\\"secret\\":\\"'),
    "quotes of growing depth": ("", "secret\\':\\\\\"x"),
    "beginnings of keys": ("", "sk-"),
    "keys without a digit": ("", "sk-abcdefgh"),
    "keys on lines in JSON": ("", "\\nsk-"),
    "all beginnings of keys": ("", "gsk_hf_r8_ghp_xoxb-"),
    "words": ("", "a-"),
    "bearers": ("", "bearer "),
    "blanks after bearer": ("bearer", " "),
    "schemes": ("", "authorization: basic "),
    "blanks after a scheme": ("authorization: basic", " "),
    "names": ("", "authorization"),
    "names that are": ("", "password="),
    "names that are random": ("", "api_key=a1"),
    "blanks before a colon": ("password", " "),
    "blanks after a colon": ("password:", " "),
    "short values": ("", "passwd=ab "),
    "tokens": ("", "token="),
    "tokens by name": ("", "token:token"),
    "numbers of tokens": ("", "token=1"),
    "parameters": ("", "?a"),
    "parameters without a name": ("token=&sig=", "&"),
    "one long parameter": ("?key=&", "a."),
    "signatures": ("", "sig="),
    "keys of addresses": ("", "?key=a"),
    "addresses": ("@", "://a"),
    "addresses with a colon": ("@", "://a:"),
    "addresses that are long": ("@://", "a"),
    "addresses with many colons": ("@://", "a:"),
    "addresses with names": ("@", "://a1234567"),
    "at": ("://", "@"),
    "words without a digit": ("api_key=", "a"),
    "blanks": ("key= secret= bearer sk- @", " "),
    "line ends": ("password:", "\n"),
}


@pytest.mark.parametrize(("begins", "repeats"), NASTY.values(), ids=NASTY)
def test_the_time_to_clean_a_text_grows_as_the_text_does(begins, repeats):
    redactor = Redactor()

    def seconds(size):
        text = begins + repeats * (size // len(repeats))
        return min(timeit.repeat(lambda: redactor.clean(text), number=1, repeat=3))

    # Four times as long takes four times, or sixteen where time grows with the square. What takes
    # no time at all is too short to be compared.
    assert seconds(80_000) < max(10 * seconds(20_000), 0.02)


# --- lines -----------------------------------------------------------------------------------

TEXTS = st.text(max_size=20) | st.text("ab\\\"\n12'/u ", max_size=20)


@steady
@given(
    secrets=st.lists(TEXTS, max_size=3),
    texts=st.tuples(TEXTS, TEXTS, TEXTS),
    number=st.integers(0, 2**62),
)
def test_a_line_stays_json_and_a_record_and_holds_no_secret(secrets, texts, number):
    redactor = Redactor(secrets)
    key, before, after = texts
    planted = [before + secret + after for secret in secrets]
    record = Instant(3, before, number, {key: {"n": number, after: planted}, "text": key})

    line = redactor.clean_line(encode(record))

    cleaned = decode(line)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert (cleaned.span, cleaned.time_ns) == (3, number)
    for secret in secrets:
        known = secret.strip()
        if len(known) >= 6 and known not in REDACTED:
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


@pytest.mark.parametrize(
    "secret",
    [
        pytest.param("123456", id="digits of a time"),
        pytest.param("status", id="the name of a field"),
        pytest.param("instant", id="a kind of record"),
        pytest.param("attributes", id="another field"),
        pytest.param('"name":"', id="a piece of JSON"),
        pytest.param("null,null", id="not even text"),
        pytest.param("n12345", id="what an escape ends in"),
        pytest.param("\\u0001", id="an escape"),
    ],
)
def test_a_secret_that_looks_like_a_journals_own_words_leaves_it_readable(tmp_path, secret):
    clock = ManualClock(99_123_456_000)
    options = TraceOptions(secrets=[secret])
    with RunTrace(tmp_path, name="essay", options=options, clock=clock) as trace:
        try:
            with trace.span("node", key=secret, text=f"a\n12345\x01 {secret}", n=1):
                clock.advance(ns=123_456)
                raise ValueError(secret)
        except ValueError:
            trace.instant("stop", status="cancelled")

    run = load_run(trace.journal_path)
    (span,) = run.spans
    assert (span.start_ns, span.end_ns) == (99_123_456_000, 99_123_579_456)
    assert (span.status, span.error) == ("error", f"ValueError: {REDACTED}")
    assert (span.attributes["key"], span.attributes["n"]) == (REDACTED, 1)
    assert all(secret not in text for text in texts_in(span.attributes))
    assert len(run.instants) == 1
    assert run.ended is not None
    assert all(path.exists() for path in trace.timeline_paths.values())


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
        trace.output(secret, {secret: [secret, {"key": secret}], "request": request})
        trace.output("plan", secret, item=1)
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


def run_with_secret(directory, secret, **options):
    trace = RunTrace(directory, name=f"run {secret}", options=TraceOptions(**options))
    with pytest.raises(ValueError, match="nobody caught"), trace:
        plant(trace, secret)
    return trace


@pytest.mark.parametrize("durability", ["node", "sync"])
@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
def test_a_secret_is_in_no_file_of_a_run_wherever_it_was_planted(tmp_path, secret, durability):
    trace = run_with_secret(tmp_path, secret, secrets=[secret], durability=durability)

    paths = {path.suffix: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(paths) == {".jsonl", ".json", ".pftrace"}
    for suffix, data in paths.items():
        for form in forms(secret):
            assert form.encode() not in data, suffix
        assert data.count(REDACTED.encode()) > 10

    run = load_run(trace.journal_path)
    assert len(run.spans) == 3
    assert run.ended.error.startswith(f"ValueError: nobody caught {REDACTED}")
    assert f"a draft\n{REDACTED}" in run.contents.values()


def test_the_hash_of_a_text_is_that_of_the_text_without_its_secrets(tmp_path):
    with RunTrace(tmp_path, name="essay", options=TraceOptions(secrets=[PLAIN])) as trace:
        trace.instant("kept", draft_sha256=trace.content(f"my {PLAIN}"))

    (content,) = [one for one in journal_lines(trace.journal_path) if isinstance(one, Content)]
    (instant,) = load_run(trace.journal_path).instants
    assert content.text == f"my {REDACTED}"
    assert instant.attributes == {"draft_sha256": content.sha256}


def test_a_process_that_joins_looks_up_the_runs_secrets_in_its_own_environment(tmp_path):
    environment = {"NAMED": PLAIN, "MY_TOKEN": ODD, "HOME": "/home/somebody"}
    told = "from-elsewhere"
    said = [*environment.values(), told]
    options = TraceOptions(secret_variables=("NAMED", "NOT_SET"))
    with RunTrace(tmp_path, name="essay", options=options) as trace:
        invitation = trace.invitation()
        with JoinedTrace(invitation, secrets=[told], environment=environment) as joined:
            joined.instant("said", values=said)

    (instant,) = load_run(trace.journal_path).instants
    assert instant.attributes == {"values": [REDACTED, REDACTED, "/home/somebody", REDACTED]}


def test_who_observes_sees_the_records_as_they_are(tmp_path):
    # Observers are no files: a terminal shows what the person before it wrote.
    seen = []
    options = TraceOptions(secrets=[PLAIN])
    with RunTrace(tmp_path, name="essay", options=options, observers=[seen.append]) as trace:
        trace.instant("said", text=PLAIN)

    assert [one.attributes for one in seen if isinstance(one, Instant)] == [{"text": PLAIN}]


def test_options_do_not_show_their_secrets():
    assert PLAIN not in repr(TraceOptions(secrets=[PLAIN]))


PROMPT, REPLY, OUTPUT = "a prompt of nobody's business", "a reply likewise", "an output too"


def run_with_texts(directory, content):
    trace = RunTrace(directory, name="essay", options=TraceOptions(content=content))

    def chat():
        with trace.span(
            "chat",
            prompt_sha256=trace.content(lambda: PROMPT),
            query=trace.excerpt(PROMPT),
            prompt_chars=len(PROMPT),
        ) as span:
            span.set(reply_sha256=trace.content(REPLY))
            trace.instant("kept", draft_sha256=trace.content(REPLY))
            trace.output("plan", {"text": OUTPUT})
            raise ValueError(f"cannot parse: {REPLY}")

    with pytest.raises(ValueError, match="cannot parse"), trace:
        chat()
    return trace


@pytest.mark.parametrize("content", ["hash", "none"])
def test_a_run_that_records_no_texts_has_none_in_any_file(tmp_path, content):
    trace = run_with_texts(tmp_path, content)

    for path in tmp_path.iterdir():
        data = path.read_bytes()
        assert not any(text.encode() in data for text in (PROMPT, REPLY, OUTPUT)), path.suffix
    run = load_run(trace.journal_path)
    assert run.contents == {}
    assert [output.value for output in run.outputs] == [None]
    assert {span.error for span in run.spans} == {run.ended.error} == {"ValueError"}
    (span,) = run.spans
    assert span.attributes["prompt_chars"] == len(PROMPT)
    assert ("prompt_sha256" in span.attributes) == (content == "hash")


def test_a_run_that_records_hashes_can_be_compared_with_one_that_records_texts(tmp_path):
    full = load_run(run_with_texts(tmp_path / "full", "full").journal_path)
    hashed = load_run(run_with_texts(tmp_path / "hash", "hash").journal_path)

    assert sorted(full.contents.values()) == [PROMPT, REPLY]
    for name in ("prompt_sha256", "reply_sha256"):
        assert full.spans[0].attributes[name] == hashed.spans[0].attributes[name]
        assert full.spans[0].attributes[name] in full.contents


def test_a_timeline_that_is_made_later_has_no_secret_either(tmp_path):
    trace = run_with_secret(tmp_path, PLAIN, secrets=[PLAIN], timelines=())

    assert PLAIN not in str(list(Journal(trace.journal_path).items()))
    assert orjson.loads(trace.journal_path.read_bytes().split(b"\n")[0])["name"] == (
        f"run {REDACTED}"
    )
