from hashlib import sha256
from pathlib import Path

import pytest
from otlp_receiver import Receiver, events, service, trace_pb2, values
from otlp_sample import NEW_YEAR_NS, by_name, essay_run, new_run, sent_spans

import harness
from harness.trace import Content, JoinedTrace, Journal, ManualClock
from harness.trace.otlp import send_otlp
from harness.trace.otlp.message import attributes
from harness.trace.otlp.spans import _Spans, _Texts, otlp_spans

RECORDED = Path(__file__).parents[2] / "traces" / "recorded" / "brief.jsonl"


@pytest.fixture
def journal(tmp_path) -> Journal:
    return essay_run(tmp_path)


def test_a_run_is_one_trace_with_its_spans_inside_each_other(journal):
    spans = sent_spans(journal)

    names = {span.span_id: span.name for span in spans}
    assert {span.trace_id for span in spans} == {
        sha256(journal.started.run_id.encode()).digest()[:16]
    }
    assert len(names) == len(spans) == sum(1 for _ in journal.spans())
    assert all(len(span_id) == 8 and any(span_id) for span_id in names)
    assert {span.name: names.get(span.parent_span_id) for span in spans} == {
        "invoke_workflow essay": None,
        "draft": "invoke_workflow essay",
        "chat claude-9": "draft",
        "prefill": "chat claude-9",
        "wiggum": "invoke_workflow essay",
        "retrieval": "wiggum",
        "evaluate round 1": "wiggum",
        "revise": "wiggum",
    }


def test_a_run_that_is_sent_again_is_the_same_trace_and_no_other_runs(journal, tmp_path):
    with new_run(tmp_path, ManualClock()) as trace, trace.span("work"):
        pass
    other = Journal(trace.journal_path)

    assert list(otlp_spans(journal)) == list(otlp_spans(journal))
    ids = {span.span_id for span in sent_spans(journal)}
    assert ids.isdisjoint(span.span_id for span in sent_spans(other))


def test_times_are_unix_nanoseconds_to_the_last_digit(journal):
    spans = by_name(sent_spans(journal))

    run, call = spans["invoke_workflow essay"], spans["chat claude-9"]
    assert (run.start_time_unix_nano, run.end_time_unix_nano) == (
        NEW_YEAR_NS,
        NEW_YEAR_NS + 4_010_000_000,
    )
    assert call.start_time_unix_nano == NEW_YEAR_NS + 1_000_000
    assert [(one.name, one.time_unix_nano) for one in call.events] == [
        ("first token", NEW_YEAR_NS + 4_000_000 - 7)
    ]


def test_a_request_says_which_library_and_pipeline_it_is_of(journal):
    with Receiver() as receiver:
        send_otlp(journal, endpoint=receiver.url)

    resource_spans = receiver.posted[0].resource_spans
    assert values(resource_spans.resource.attributes) == {
        "service.name": "harness",
        "service.version": harness.__version__,
        "openinference.project.name": "essay",
    }
    (scope_spans,) = resource_spans.scope_spans
    assert (scope_spans.scope.name, scope_spans.scope.version) == ("harness", harness.__version__)


def test_how_a_span_ended_is_its_status(tmp_path):
    with new_run(tmp_path, ManualClock()) as trace:
        trace.span("open").__enter__()
        for name, error in (("bad", ValueError("it said 'no'")), ("cut", KeyboardInterrupt())):
            with pytest.raises(type(error)), trace.span(name):
                raise error
        with trace.span("good"):
            pass
    journal = Journal(trace.journal_path)

    def outcome(span) -> tuple[object, ...]:
        found = values(span.attributes)
        return (
            span.status.code,
            span.status.message,
            found.get("error.type"),
            found.get("harness.status"),
        )

    unset, ok, error = 0, trace_pb2.Status.STATUS_CODE_OK, trace_pb2.Status.STATUS_CODE_ERROR
    assert {name: outcome(span) for name, span in by_name(sent_spans(journal)).items()} == {
        "good": (ok, "", None, None),
        "bad": (error, "ValueError", "ValueError", "error"),
        "cut": (unset, "KeyboardInterrupt", "KeyboardInterrupt", "cancelled"),
        "open": (unset, "", None, "unfinished"),
    }
    bad = by_name(sent_spans(journal, content=True))["bad"]
    assert bad.status.message == "ValueError: it said 'no'"


def test_instants_are_events_of_their_span(journal):
    wiggum = by_name(sent_spans(journal))["wiggum"]

    assert events(wiggum) == [("retry", {"harness.reason": "RateLimited", "harness.attempt": 1})]


def test_a_span_keeps_its_first_events_and_links_and_counts_the_others(tmp_path):
    with new_run(tmp_path, ManualClock()) as trace, trace.span("run"):
        sources = []
        for _ in range(130):
            with trace.span("node") as node:
                sources.append(node.id)
        with trace.span("last") as last:
            for source in sources:
                trace.flow("output", source=source, target=last.id)
                trace.instant("tick")

    span = by_name(sent_spans(Journal(trace.journal_path)))["last"]
    assert (len(span.events), span.dropped_events_count) == (128, 2)
    assert (len(span.links), span.dropped_links_count) == (128, 2)


def test_flows_are_links_to_where_they_came_from_save_from_the_span_around(journal):
    spans = sent_spans(journal)
    names = {span.span_id: span.name for span in spans}

    links = [
        (span.name, names[one.span_id], values(one.attributes))
        for span in spans
        for one in span.links
    ]
    assert sorted(links, key=str) == [
        ("evaluate round 1", "draft", {"harness.flow": "draft"}),
        ("evaluate round 1", "revise", {"harness.flow": "draft"}),
    ]
    assert {one.trace_id for span in spans for one in span.links} == {spans[0].trace_id}


def test_a_joined_process_is_part_of_the_trace(tmp_path):
    clock = ManualClock(start_ns=9)
    with new_run(tmp_path, clock) as trace, trace.span("work"):
        joined = JoinedTrace(trace.invitation(), clock=ManualClock(), wall_ns=lambda: 0)
        with joined, joined.span("elsewhere"):
            pass

    spans = by_name(sent_spans(Journal(trace.journal_path)))
    assert spans["elsewhere"].parent_span_id == spans["work"].span_id
    assert spans["elsewhere"].trace_id == spans["work"].trace_id


def test_spans_are_let_go_soon_after_they_ended(tmp_path):
    clock = ManualClock()
    with new_run(tmp_path, clock) as trace, trace.span("run"):
        for _ in range(1000):
            with trace.span("work"):
                clock.advance(ms=600)
    spans = _Spans(Journal(trace.journal_path), content=False)

    held = [len(spans._held) for _ in spans.all()]

    assert len(held) == 1001
    assert max(held) <= 4


def test_the_oldest_texts_make_room_for_new_ones():
    texts = _Texts(most_chars=10)
    texts.add(Content("one", "12345"))
    texts.add(Content("two", "12345"))
    assert texts.find("one") == "12345"
    texts.add(Content("three", "1"))

    assert [texts.find(name) for name in ("one", "two", "three")] == ["12345", None, "1"]


def test_a_batch_ends_at_its_number_of_spans(journal):
    with Receiver() as receiver:
        sent = send_otlp(journal, endpoint=receiver.url, batch=4)

    assert [len(posted.spans) for posted in receiver.posted] == [4, 4, 2]
    assert sent == 10


def test_a_batch_ends_early_when_it_has_grown_large(tmp_path):
    with new_run(tmp_path, ManualClock()) as trace:
        for number in range(4):
            with trace.span("work", number=number, notes="é" * (3_000_000 if number == 2 else 9)):
                pass

    with Receiver() as receiver:
        send_otlp(Journal(trace.journal_path), endpoint=receiver.url)

    sent = [[values(s.attributes)["harness.number"] for s in p.spans] for p in receiver.posted]
    assert sent == [[0, 1], [2], [3]]


def test_a_run_without_spans_sends_nothing(tmp_path):
    with new_run(tmp_path, ManualClock()) as trace:
        pass

    assert sent_spans(Journal(trace.journal_path)) == []


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pytest.param("größe 概要 🐣\x00\u2028", "größe 概要 🐣\x00\u2028", id="text"),
        pytest.param("", "", id="empty text"),
        pytest.param(0, 0, id="zero"),
        pytest.param(-1, -1, id="negative"),
        pytest.param(2**63 - 1, 2**63 - 1, id="largest"),
        pytest.param(-(2**63), -(2**63), id="smallest"),
        pytest.param(2**64 - 1, "18446744073709551615", id="too large"),
        pytest.param(False, False, id="boolean"),
        pytest.param(-0.1, -0.1, id="fraction"),
        pytest.param(["a", ""], ["a", ""], id="texts"),
        pytest.param([1, -2], [1, -2], id="numbers"),
        pytest.param([True], [True], id="booleans"),
        pytest.param([], "[]", id="nothing in it"),
        pytest.param([1, 2.5], "[1,2.5]", id="mixed"),
        pytest.param([None], "[null]", id="null in it"),
        pytest.param({"tone": {"é": [1]}}, '{"tone":{"é":[1]}}', id="nested"),
    ],
)
def test_a_value_arrives_as_what_it_is_or_as_json(ours, theirs):
    found = values(trace_pb2.Span.FromString(attributes(9, {"x": ours, "y": None})).attributes)

    assert found == {"x": theirs}
    assert type(found["x"]) is type(theirs)


def test_the_recorded_run_arrives_whole():
    journal = Journal(RECORDED)

    spans = sent_spans(journal, content=True)

    recorded = list(journal.spans())
    assert len({span.span_id for span in spans}) == len(spans) == len(recorded)
    found = [values(span.attributes) for span in spans]
    calls = [one for one in found if one["openinference.span.kind"] == "LLM"]
    recorded_calls = [one.attributes for one in recorded if one.name == "chat"]
    assert sum(one["gen_ai.usage.output_tokens"] for one in calls) == sum(
        one["output_tokens"] for one in recorded_calls
    )
    assert len(calls) == len(recorded_calls)
    assert all(one["input.value"] and one["output.value"] for one in calls)
    results = [
        one for span in spans for one in span.events if one.name == "gen_ai.evaluation.result"
    ]
    evaluations = [one for one in recorded if one.name == "evaluate"]
    assert len(results) == sum(1 + len(one.attributes["scores"]) for one in evaluations)


def test_what_is_sent_is_read_back_without_a_field_left_over(journal):
    with Receiver() as receiver:
        send_otlp(journal, endpoint=receiver.url, content=True)

    body = receiver.posted[0].body
    request = service.ExportTraceServiceRequest.FromString(body)
    request.DiscardUnknownFields()
    again = service.ExportTraceServiceRequest.FromString(request.SerializeToString())
    assert again == service.ExportTraceServiceRequest.FromString(body)
