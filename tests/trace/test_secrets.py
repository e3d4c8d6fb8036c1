import json
from urllib.parse import quote, quote_plus

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_runs import journal_lines, steady

from harness.trace import (
    Content,
    Instant,
    Journal,
    ManualClock,
    Redactor,
    RunTrace,
    TraceOptions,
    load_run,
)
from harness.trace.records import decode, encode
from harness.trace.secrets import REDACTED

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


@pytest.mark.parametrize("name", ["Authorization", "x-api-key", "api_key", "password", "secret"])
def test_an_attribute_whose_name_is_a_secrets_is_replaced(name):
    line = encode(Instant(None, "x", 1, {"headers": {name: TOKEN, "n": "b"}, name: 'a"b'}))

    cleaned = decode(Redactor().clean_line(line))

    assert cleaned.attributes == {"headers": {name: REDACTED, "n": "b"}, name: REDACTED}


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
    ],
)
def test_ordinary_prose_is_left_as_it_is(text):
    redactor = Redactor([PLAIN, ODD])
    line = encode(Instant(None, "x", 1, {"text": text}))

    assert redactor.clean(text) == text
    assert redactor.clean_line(line) == line


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
