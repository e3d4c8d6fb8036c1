import pytest
from otlp_receiver import PROTOBUF, Receiver, Reply, service

from harness.errors import HarnessError, InvalidInput
from harness.trace import Journal, ManualClock, RunTrace, TraceOptions
from harness.trace.otlp import send_otlp
from harness.trace.otlp.collector import retry_delay_s
from harness.version import __version__

KEY = "pa55word-of-the-collector"


@pytest.fixture
def journal(tmp_path) -> Journal:
    """Three spans."""
    with RunTrace(
        tmp_path, name="essay", clock=ManualClock(), options=TraceOptions(timelines=())
    ) as trace:
        for _ in range(3):
            with trace.span("work"):
                pass
    return Journal(trace.journal_path)


def rejection(spans: int, said: str) -> bytes:
    response = service.ExportTraceServiceResponse()
    response.partial_success.rejected_spans = spans
    response.partial_success.error_message = said
    return response.SerializeToString()


def refused(journal: Journal, *replies: Reply, **options) -> str:
    with Receiver(*replies) as receiver, pytest.raises(HarnessError) as caught:
        send_otlp(journal, endpoint=receiver.url, sleep=pytest.fail, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "posted_to"),
    [
        ("", "/v1/traces"),
        ("/", "/v1/traces"),
        ("/v1/traces", "/v1/traces"),
        ("/v1/traces/", "/v1/traces"),
        ("/api/public/otel", "/api/public/otel/v1/traces"),
        ("/otlp?project=7", "/otlp/v1/traces?project=7"),
    ],
)
def test_a_run_goes_to_the_traces_of_the_address_that_is_given(journal, given, posted_to):
    with Receiver() as receiver:
        send_otlp(journal, endpoint=receiver.url + given)

    assert [posted.path for posted in receiver.posted] == [posted_to]


def test_a_request_says_what_it_holds_and_who_sends_it(journal):
    with Receiver() as receiver:
        sent = send_otlp(
            journal,
            endpoint=receiver.url,
            headers={"Authorization": f"Bearer {KEY}\n", "Content-Type": "application/json"},
        )

    (posted,) = receiver.posted
    assert sent == len(posted.spans) == 3
    assert {
        name: posted.headers[name]
        for name in ("content-type", "content-encoding", "authorization", "user-agent")
    } == {
        "content-type": PROTOBUF,
        "content-encoding": "gzip",
        "authorization": f"Bearer {KEY}",
        "user-agent": f"harness/{__version__}",
    }


@pytest.mark.parametrize(
    "address",
    ["", "127.0.0.1:6006", "phoenix", "ftp://host", "http://", "http://host:70000", "http://h:x"],
)
def test_what_is_no_address_is_said_before_anything_is_read(journal, address):
    with pytest.raises(InvalidInput, match="is not an address; one is such as http://"):
        send_otlp(journal, endpoint=address)


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        (f"Bearer {KEY}", "", "a header has a name that HTTP does not know; is it NAME=VALUE"),
        ("", KEY, "a header has a name that HTTP does not know"),
        ("x-key", f"{KEY}\r\nx: y", "the value of header 'x-key' cannot stand in one"),
        ("x-key", f"{KEY}…", "the value of header 'x-key' cannot stand in one"),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused_without_its_value(journal, name, value, complaint):
    with pytest.raises(InvalidInput, match=complaint) as caught:
        send_otlp(journal, endpoint="http://127.0.0.1:1", headers={name: value})

    assert KEY not in str(caught.value)


def test_nobody_there_is_said_with_the_address_but_not_with_a_password(journal):
    with Receiver() as receiver:
        port = receiver.url.rpartition(":")[2]

    with pytest.raises(HarnessError) as caught:
        send_otlp(journal, endpoint=f"http://me:{KEY}@127.0.0.1:{port}/x?key={KEY}")

    assert f"no collector answers at http://127.0.0.1:{port}/x/v1/traces (" in str(caught.value)
    assert str(caught.value).endswith("is it running, and is the address right?")
    assert KEY not in str(caught.value)


def test_the_port_of_the_other_protocol_is_recognised(journal):
    with pytest.raises(HarnessError, match=r"OTLP over gRPC; over HTTP it is 4318$"):
        send_otlp(journal, endpoint="http://collector.invalid:4317")


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        pytest.param(
            Reply(status=400, body=bytes([0x12, 4]) + b"dull"), "HTTP 400; dull", id="protobuf"
        ),
        pytest.param(
            Reply(status=400, body=b"\x12\xff", media_type=PROTOBUF), "HTTP 400", id="broken"
        ),
        pytest.param(
            Reply(status=401, body=b"who?", media_type="text/plain"),
            "HTTP 401; who?; pass the collector's key with --header NAME=VALUE",
            id="no key",
        ),
        pytest.param(
            Reply(status=404),
            "HTTP 404; is the address right? /v1/traces is added where it is missing",
            id="another server",
        ),
        pytest.param(
            Reply(status=413),
            "HTTP 413; raise the collector's limit on the size of a request, or send no texts",
            id="too large",
        ),
        pytest.param(Reply(status=307, headers={"location": "/x"}), "HTTP 307", id="moved"),
        pytest.param(
            Reply(status=503, headers={"retry-after": "3600"}),
            "HTTP 503; try again later",
            id="busy for an hour",
        ),
    ],
)
def test_a_refusal_is_told_with_what_would_mend_it(journal, reply, said):
    assert refused(journal, reply).partition(" refused the run: ")[2].startswith(said)


def test_a_refusal_that_quotes_a_header_is_told_without_it(journal):
    reply = Reply(
        status=403, body=f"no such key: {KEY}, Basic {KEY}".encode(), media_type="text/plain"
    )

    said = refused(journal, reply, headers={"Authorization": f"Basic {KEY}"})

    assert "no such key: [redacted]" in said
    assert KEY not in said


def test_a_web_page_is_no_collector(journal):
    reply = Reply(body=b"<html>", media_type="text/html; charset=utf-8")

    assert "is a web page and no collector; is the address right?" in refused(journal, reply)


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Reply(status=202), id="nothing"),
        pytest.param(Reply(body=b"{}", media_type="application/json"), id="JSON"),
        pytest.param(Reply(body=rejection(0, "old names")), id="a warning"),
        pytest.param(Reply(body=b"\x09"), id="what nobody can read"),
    ],
)
def test_any_other_yes_is_a_yes(journal, reply):
    with Receiver(reply) as receiver:
        assert send_otlp(journal, endpoint=receiver.url) == 3


def test_spans_that_a_collector_would_not_keep_are_told_when_all_were_sent(journal):
    with (
        Receiver(
            Reply(body=rejection(1, f"too long; {KEY}")), Reply(body=rejection(1, "too dull"))
        ) as receiver,
        pytest.raises(HarnessError) as caught,
    ):
        send_otlp(journal, endpoint=receiver.url, batch=1, headers={"x-key": KEY})

    assert len(receiver.posted) == 3
    assert str(caught.value) == (
        f"the collector at {receiver.url}/v1/traces kept 1 of the run's 3 spans: "
        "too long; [redacted]"
    )


def test_a_busy_collector_gets_the_same_request_again_when_it_asks_for_it(journal):
    waits: list[float] = []
    busy = [Reply(status=429, headers={"retry-after": "7"}), Reply(status=503)]
    with Receiver(*busy) as receiver:
        assert send_otlp(journal, endpoint=receiver.url, sleep=waits.append) == 3

    assert waits == [7.0, 2.0]
    assert len(receiver.posted) == 3
    assert len({posted.body for posted in receiver.posted}) == 1


def test_a_collector_that_stays_busy_is_left_alone(journal):
    waits: list[float] = []
    with Receiver(*[Reply(status=502)] * 9) as receiver, pytest.raises(HarnessError, match="502"):
        send_otlp(journal, endpoint=receiver.url, sleep=waits.append)

    assert waits == [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("status", "retry_after", "attempt", "delay_s"),
    [
        (503, None, 1, 1.0),
        (503, "", 2, 2.0),
        (504, "Wed, 21 Oct 2026 07:28:00 GMT", 3, 4.0),
        (429, "0", 1, 0.0),
        (429, "1.5", 4, 1.5),
        (429, "1", 5, None),
        (429, "61", 1, None),
        (429, "nan", 1, None),
        (429, "-1", 1, None),
        (500, "1", 1, None),
        (200, "1", 1, None),
    ],
)
def test_the_wait_before_another_attempt(status, retry_after, attempt, delay_s):
    assert retry_delay_s(status, retry_after, attempt=attempt) == delay_s
