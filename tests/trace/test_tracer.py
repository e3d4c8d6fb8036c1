import asyncio
import hashlib

import numpy as np
import pytest
from manual_clock import ManualClock

from harness.trace import (
    Content,
    CounterSet,
    Flow,
    Flows,
    Instant,
    NodeOutput,
    SpanEnded,
    SpanRecord,
    SpanStarted,
    Tracer,
)


class Recorder(list):
    """The records of a tracer, and a way to look spans up in them."""

    def begun(self, name):
        (found,) = [r for r in self if isinstance(r, SpanStarted) and r.name == name]
        return found

    def ended(self, name):
        began = self.begun(name)
        (found,) = [r for r in self if isinstance(r, SpanEnded) and r.id == began.id]
        return found

    def parents(self):
        """The name around each span, by the span's."""
        names = {r.id: r.name for r in self if isinstance(r, SpanStarted)}
        return {r.name: names.get(r.parent) for r in self if isinstance(r, SpanStarted)}

    def of(self, *kinds):
        return [record for record in self if isinstance(record, kinds)]


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def records():
    return Recorder()


@pytest.fixture
def tracer(records, clock):
    return Tracer(records.append, clock=clock)


# --- spans -----------------------------------------------------------------------------------


def test_a_span_is_recorded_when_it_begins_and_when_it_ends(tracer, records, clock):
    clock.advance(ns=5)
    with tracer.span("chat", model="small") as span:
        assert records == [
            SpanStarted(id=1, parent=None, name="chat", time_ns=5, attributes={"model": "small"})
        ]
        clock.advance(ns=10)
        span.set(output_tokens=3)
        span.set(finish_reason="stop")

    assert records[1:] == [
        SpanEnded(id=1, time_ns=15, attributes={"output_tokens": 3, "finish_reason": "stop"})
    ]


def test_a_span_lies_in_the_span_around_it(tracer, records):
    def generator():
        with tracer.span("in a generator"):
            yield

    with tracer.span("run"):
        with tracer.span("draft"), tracer.span("chat"):
            pass
        with tracer.span("evaluate"):
            # It ends around an open one, and gives its place back.
            tracer.span("never ended").__enter__()
        with tracer.span("revise"):
            late = generator()
            next(late)
    late.close()  # and moves nothing into its place
    with tracer.span("next run"):
        pass

    assert records.parents() == {
        "run": None,
        "draft": "run",
        "chat": "draft",
        "evaluate": "run",
        "never ended": "evaluate",
        "revise": "run",
        "in a generator": "revise",
        "next run": None,
    }
    assert [r.id for r in records.of(SpanStarted)] == list(range(1, 9))


def test_what_is_started_inside_a_span_is_inside_it(tracer, records):
    def checks():
        with tracer.span("in a thread"):
            pass

    async def work(name, barrier):
        with tracer.span(name):
            await barrier.wait()  # both are open now
            with tracer.span(f"{name}'s call"):
                await barrier.wait()

    async def main():
        barrier = asyncio.Barrier(2)
        with tracer.span("run"):
            async with asyncio.TaskGroup() as group:
                group.create_task(work("first", barrier))
                group.create_task(work("second", barrier))
            tracer.instant("joined")
            await asyncio.to_thread(checks)

    asyncio.run(main())

    assert records.parents() == {
        "run": None,
        "first": "run",
        "second": "run",
        "first's call": "first",
        "second's call": "second",
        "in a thread": "run",
    }
    assert [one.span for one in records.of(Instant)] == [records.begun("run").id]


@pytest.mark.parametrize(
    ("error", "status", "described"),
    [
        pytest.param(ValueError("boom"), "error", "ValueError: boom", id="error"),
        pytest.param(SystemExit(2), "error", "SystemExit: 2", id="exit"),
        pytest.param(asyncio.CancelledError(), "cancelled", "CancelledError", id="cancelled"),
        pytest.param(KeyboardInterrupt(), "cancelled", "KeyboardInterrupt", id="Ctrl-C"),
    ],
)
def test_what_leaves_a_span_is_recorded_and_goes_on(tracer, records, error, status, described):
    def fail():
        with tracer.span("chat") as span:
            span.set(attempt=1)
            raise error

    with pytest.raises(type(error)) as caught:
        fail()

    assert caught.value is error
    ended = records.ended("chat")
    assert (ended.status, ended.error, ended.attributes) == (status, described, {"attempt": 1})
    with tracer.span("after it"):
        assert records.parents()["after it"] is None


def test_a_generator_may_be_closed_from_another_task(tracer, records):
    async def numbers():
        with tracer.span("stream"):
            yield 1
            yield 2

    async def main():
        generator = numbers()
        await anext(generator)
        await asyncio.create_task(generator.aclose())

    asyncio.run(main())

    assert records.ended("stream").status == "cancelled"


@pytest.mark.parametrize(("start_ns", "end_ns", "ends_at_ns"), [(3, 8, 8), (8, 3, 8)])
def test_a_completed_span_has_the_times_it_is_given(tracer, records, start_ns, end_ns, ends_at_ns):
    with tracer.span("chat"):
        tracer.completed_span("prefill", start_ns=start_ns, end_ns=end_ns, source="reported")
        tracer.instant("after it")  # it is over already, so nothing comes to lie in it

    _, prefill, after, _ = records
    assert prefill == SpanRecord(2, 1, "prefill", start_ns, ends_at_ns, "ok", None,
                                 {"source": "reported"})  # fmt: skip
    assert after.span == 1


# --- instants, counters, arrows --------------------------------------------------------------


def test_instants_and_counters_carry_the_time_and_what_is_around(tracer, records, clock):
    clock.advance(ns=7)
    tracer.instant("stop", reason="passed")
    tracer.instant("first token", at_ns=2)
    tracer.counter("composite", 7.5, unit="points")
    with tracer.span("node"):
        tracer.counter("queue", 3, unit="calls")
        tracer.counter("queue", 4, unit="calls", track="model qwen")

    assert records.of(Instant, CounterSet) == [
        Instant(span=None, name="stop", time_ns=7, attributes={"reason": "passed"}),
        Instant(span=None, name="first token", time_ns=2),
        CounterSet("composite", "points", 7, 7.5),
        CounterSet("queue", "calls", 7, 3, 1),
        CounterSet("queue", "calls", 7, 4, None, "model qwen"),
    ]


@pytest.mark.parametrize(
    ("value", "recorded"),
    [
        pytest.param(2**63 - 1, 2**63 - 1, id="largest exact"),
        pytest.param(2**63, 2.0**63, id="one larger"),
        pytest.param(np.bool_(1), 1.0, id="numpy's bool"),
        pytest.param(10**400, None, id="beyond a double"),
        pytest.param(float("nan"), None, id="no number"),
        pytest.param("many", None, id="a word"),
    ],
)
def test_a_counter_takes_any_finite_number(tracer, records, value, recorded):
    tracer.counter("composite", value, unit="points")

    found = [(record.value, type(record.value)) for record in records]
    assert found == ([] if recorded is None else [(recorded, type(recorded))])


def test_an_arrow_has_two_ends(tracer, records):
    with tracer.span("draft") as draft:
        pass
    with tracer.span("evaluate") as evaluate:
        tracer.flow("draft", source=draft.id, target=evaluate.id)
        tracer.flow("draft", source=None, target=evaluate.id)
        tracer.flow("draft", source=draft.id, target=None)
        tracer.flow("draft", source=tracer.span("never entered").id, target=evaluate.id)
        tracer.flows("output", sources=[7, 8], target=evaluate.id)
        tracer.flows("output", sources=[], target=evaluate.id)
        tracer.flows("output", sources=[7], target=None)

    assert records.of(Flow, Flows) == [Flow("draft", 1, 2), Flows("output", (7, 8), 2)]


# --- texts and outputs -----------------------------------------------------------------------


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_text_is_recorded_once_before_what_refers_to_its_digest(tracer, records):
    text = "Entwürfe"
    with tracer.span("chat", prompt_sha256=tracer.content(text), n=1) as span:
        span.set(reply_sha256=tracer.content(text), other_sha256=tracer.content("b"))
    tracer.instant("kept", draft_sha256=tracer.content(text))

    assert records == [
        Content(sha256=sha256(text), text=text),
        SpanStarted(1, None, "chat", 0, {"prompt_sha256": sha256(text), "n": 1}),
        Content(sha256=sha256("b"), text="b"),
        SpanEnded(1, 0, attributes={"reply_sha256": sha256(text), "other_sha256": sha256("b")}),
        Instant(None, "kept", 0, {"draft_sha256": sha256(text)}),
    ]


def test_an_odd_text_does_not_stop_the_run(tracer, records):
    tracer.instant("kept", draft_sha256=tracer.content("caf\ud800"))
    tracer.instant("kept", draft_sha256=tracer.content(lambda: {}["draft"]))

    _, not_unicode, content, not_made = records
    assert not_unicode.attributes == {"draft_sha256": sha256("caf?")}
    assert not_made.attributes == {"draft_sha256": content.sha256}
    assert content.text == "<KeyError: 'draft'>"


def test_what_is_told_later_is_told_before_its_span_ends(tracer, records):
    def told():
        yield Instant(span.id, "first token", 5, {"text_sha256": tracer.content("hello")})
        yield SpanRecord(tracer.new_id(), span.id, "prefill", 1, 5)
        span.set(output_tokens=3)

    with tracer.span("chat") as span:
        tracer.later(told)

    _, content, token, prefill, end = records
    assert (content.text, token.attributes) == ("hello", {"text_sha256": content.sha256})
    assert prefill.id not in {0, span.id}
    assert end.attributes == {"output_tokens": 3}


@pytest.mark.parametrize(
    ("content", "attributes", "error", "excerpt", "output"),
    [
        (
            "full",
            {"n": 1, "prompt_sha256": sha256("a prompt")},
            "ValueError: a prompt: bad",
            "a query",
            ("text", {"task": "d16e"}, "c0de", "when: 'a text'", "7e87"),
        ),
        (
            "hash",
            {"n": 1, "prompt_sha256": sha256("a prompt")},
            "ValueError",
            None,
            (None, {"task": "d16e"}, "c0de", "when", "7e87"),
        ),
        ("none", {"n": 1}, "ValueError", None, (None, {}, "c0de", "when", None)),
    ],
)
def test_what_is_recorded_of_texts_is_a_choice(content, attributes, error, excerpt, output):
    records = Recorder()
    tracer = Tracer(records.append, content=content)
    with (
        pytest.raises(ValueError, match="bad"),
        tracer.span("chat", n=1, prompt_sha256=tracer.content("a prompt")),
    ):
        raise ValueError("a prompt: bad")
    made_of = {"inputs": {"task": "d16e"}, "code": "c0de", "digest": "7e87"}
    tracer.output(NodeOutput("a/b", 1, "text", skipped="when: 'a text'", **made_of))

    assert records.begun("chat").attributes == attributes
    assert records.ended("chat").error == error
    assert records[-1] == NodeOutput("a/b", 1, *output)
    assert tracer.excerpt("a query") == excerpt
    texts = [one.text for one in records.of(Content)]
    assert texts == (["a prompt"] if content == "full" else [])


def test_a_tracer_without_a_sink_records_nothing_and_makes_no_text():
    def make():
        raise AssertionError("nobody reads it")

    tracer = Tracer()
    with tracer.span("chat") as span:
        span.set(model="small")
        tracer.instant("first token", draft_sha256=tracer.content(make))
        tracer.counter("queue", 1, unit="calls")
        tracer.flow("draft", source=span.id, target=span.id)
        tracer.completed_span("decode", start_ns=1, end_ns=2)
        tracer.output(NodeOutput("plan", None, "text"))
        assert tracer.current_id == span.id
    asyncio.run(tracer.persisted())
    Tracer([].append, content="none").instant("kept", draft_sha256=tracer.content(make))
