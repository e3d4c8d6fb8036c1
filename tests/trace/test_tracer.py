import asyncio
import hashlib
from decimal import Decimal

import numpy as np
import pytest

from harness.trace import (
    Content,
    CounterSet,
    Flow,
    Flows,
    Instant,
    ManualClock,
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

    def parent_name(self, name):
        parent = self.begun(name).parent
        names = {r.id: r.name for r in self if isinstance(r, SpanStarted)}
        return None if parent is None else names[parent]


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def records():
    return Recorder()


@pytest.fixture
def tracer(records, clock):
    return Tracer(records.append, clock=clock)


def test_a_span_lies_in_the_span_around_it(tracer, records):
    with tracer.span("run"):
        with tracer.span("draft"), tracer.span("chat"):
            pass
        with tracer.span("evaluate"):
            pass
    with tracer.span("next run"):
        pass

    parents = {name: records.parent_name(name) for name in ("run", "draft", "chat", "evaluate")}
    assert parents == {"run": None, "draft": "run", "chat": "draft", "evaluate": "run"}
    assert records.parent_name("next run") is None
    assert [r.id for r in records if isinstance(r, SpanStarted)] == [1, 2, 3, 4, 5]


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


def test_a_task_started_inside_a_span_is_inside_it(tracer, records):
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

    asyncio.run(main())

    assert records.parent_name("first") == records.parent_name("second") == "run"
    assert records.parent_name("first's call") == "first"
    assert records.parent_name("second's call") == "second"
    (joined,) = [r for r in records if isinstance(r, Instant)]
    assert joined.span == records.begun("run").id


def test_a_thread_started_for_a_span_is_inside_it(tracer, records):
    def work():
        with tracer.span("checks"):
            pass

    async def main():
        with tracer.span("node"):
            await asyncio.to_thread(work)

    asyncio.run(main())

    assert records.parent_name("checks") == "node"


@pytest.mark.parametrize(
    ("error", "status", "described"),
    [
        pytest.param(ValueError("boom"), "error", "ValueError: boom", id="error"),
        pytest.param(KeyError(), "error", "KeyError", id="error without a message"),
        pytest.param(SystemExit(2), "error", "SystemExit: 2", id="exit"),
        pytest.param(asyncio.CancelledError(), "cancelled", "CancelledError", id="cancelled"),
        pytest.param(KeyboardInterrupt(), "cancelled", "KeyboardInterrupt", id="Ctrl-C"),
        pytest.param(GeneratorExit(), "cancelled", "GeneratorExit", id="generator closed"),
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
        assert records.parent_name("after it") is None


def test_cancelling_a_task_ends_its_spans_as_cancelled(tracer, records):
    async def wait_for_ever(entered):
        with tracer.span("node"), tracer.span("chat"):
            entered.set()
            await asyncio.Event().wait()

    async def main():
        entered = asyncio.Event()
        task = asyncio.create_task(wait_for_ever(entered))
        await entered.wait()
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())

    assert records.ended("chat").status == records.ended("node").status == "cancelled"


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


def test_two_tracers_keep_their_spans_apart(clock):
    outer_records, inner_records = Recorder(), Recorder()
    outer = Tracer(outer_records.append, clock=clock)
    inner = Tracer(inner_records.append, clock=clock)

    with outer.span("node"):
        inner.instant("begun")
        with inner.span("run"), inner.span("chat"):
            pass
        with outer.span("chat"):
            pass

    assert inner_records[0].span is None
    assert inner_records.parent_name("run") is None
    assert inner_records.parent_name("chat") == "run"
    assert outer_records.parent_name("chat") == "node"


@pytest.mark.parametrize(
    ("start_ns", "end_ns", "ends_at_ns"),
    [
        pytest.param(3, 8, 8, id="in the past"),
        pytest.param(3, 3, 3, id="no length"),
        pytest.param(8, 3, 8, id="ends before it starts"),
    ],
)
def test_a_completed_span_has_the_times_it_is_given(tracer, records, start_ns, end_ns, ends_at_ns):
    with tracer.span("chat"):
        tracer.completed_span("prefill", start_ns=start_ns, end_ns=end_ns, source="reported")
        tracer.instant("after it")

    (prefill,) = [r for r in records if isinstance(r, SpanRecord)]
    assert (prefill.start_ns, prefill.end_ns) == (start_ns, ends_at_ns)
    assert prefill.attributes == {"source": "reported"}
    assert prefill.parent == records.begun("chat").id
    # It is over already, so nothing comes to lie in it.
    (after,) = [r for r in records if isinstance(r, Instant)]
    assert after.span == records.begun("chat").id


def test_what_is_told_later_is_told_before_its_span_ends(tracer, records):
    def told():
        yield Instant(span.id, "first token", 5)
        yield SpanRecord(tracer.new_id(), span.id, "prefill", 1, 5)
        span.set(output_tokens=3)

    with tracer.span("chat") as span:
        tracer.later(told)

    assert [type(record) for record in records] == [SpanStarted, Instant, SpanRecord, SpanEnded]
    assert records[-1].attributes == {"output_tokens": 3}
    assert records[2].id not in {0, span.id}


def test_texts_in_what_is_told_later_are_hashed_too(tracer, records):
    tracer.later(lambda: [Instant(None, "said", 1, {"text_sha256": tracer.content("hello")})])

    content, said = records
    assert content.text == "hello"
    assert said.attributes == {"text_sha256": content.sha256}


def test_instants_and_counters_carry_the_time(tracer, records, clock):
    clock.advance(ns=7)
    tracer.instant("stop", reason="passed")
    tracer.instant("first token", at_ns=2)
    tracer.counter("composite", 7.5, unit="points")

    assert records == [
        Instant(span=None, name="stop", time_ns=7, attributes={"reason": "passed"}),
        Instant(span=None, name="first token", time_ns=2),
        CounterSet(name="composite", unit="points", time_ns=7, value=7.5),
    ]


def test_a_counter_is_set_by_the_span_around_it_unless_it_names_a_track(tracer, records):
    with tracer.span("node"):
        tracer.counter("queue", 3, unit="calls")
        tracer.counter("queue", 4, unit="calls", track="model qwen")

    assert [(r.span, r.track) for r in records if isinstance(r, CounterSet)] == [
        (1, None),
        (None, "model qwen"),
    ]


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(float("nan"), id="not a number"),
        pytest.param(float("inf"), id="infinity"),
        pytest.param(float("-inf"), id="negative infinity"),
        pytest.param(10**400, id="beyond a double"),
    ],
)
def test_a_counter_takes_finite_values_only(tracer, records, value):
    tracer.counter("composite", value, unit="points")

    assert records == []


@pytest.mark.parametrize(
    ("value", "recorded"),
    [
        pytest.param(2**63 - 1, 2**63 - 1, id="largest exact"),
        pytest.param(-(2**63), -(2**63), id="smallest exact"),
        pytest.param(2**63, 2.0**63, id="one larger"),
        pytest.param(-(2**70), -(2.0**70), id="much smaller"),
    ],
)
def test_a_counter_larger_than_64_bits_is_a_float(tracer, records, value, recorded):
    tracer.counter("tokens", value, unit="tokens")

    (counter,) = records
    assert (counter.value, type(counter.value)) == (recorded, type(recorded))


def test_an_arrow_has_two_ends(tracer, records):
    with tracer.span("draft") as draft:
        pass
    with tracer.span("evaluate") as evaluate:
        tracer.flow("draft", source=draft.id, target=evaluate.id)
        tracer.flow("draft", source=None, target=evaluate.id)
        tracer.flow("draft", source=draft.id, target=None)

    assert [r for r in records if isinstance(r, Flow)] == [Flow("draft", source=1, target=2)]


def test_arrows_from_several_spans_to_one_are_one_record(tracer, records):
    with tracer.span("node") as node:
        tracer.flows("output", sources=[7, 8], target=node.id)
        tracer.flows("output", sources=[], target=node.id)
        tracer.flows("output", sources=[7], target=None)

    assert [r for r in records if isinstance(r, Flow | Flows)] == [Flows("output", (7, 8), 1)]


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


def test_a_text_that_is_no_valid_unicode_is_recorded_under_the_digest_of_what_is(tracer, records):
    tracer.instant("kept", draft_sha256=tracer.content("caf\ud800"))

    assert records[1].attributes == {"draft_sha256": sha256("caf?")}


def test_a_text_that_cannot_be_made_says_why_and_the_run_goes_on(tracer, records):
    tracer.instant("kept", draft_sha256=tracer.content(lambda: {}["draft"]))

    content, instant = records
    assert content.text == "<KeyError: 'draft'>"
    assert instant.attributes == {"draft_sha256": content.sha256}


def test_a_text_is_made_only_when_it_is_recorded():
    def make():
        raise AssertionError("nobody reads it")

    Tracer().instant("kept", draft_sha256=Tracer().content(make))
    Tracer([].append, content="none").instant("kept", draft_sha256=Tracer().content(make))


@pytest.mark.parametrize(
    ("content", "attributes", "error", "output", "excerpt"),
    [
        pytest.param(
            "full",
            {"n": 1, "prompt_sha256": sha256("a prompt")},
            "ValueError: a prompt: bad",
            "a text",
            "a query",
            id="full",
        ),
        pytest.param(
            "hash",
            {"n": 1, "prompt_sha256": sha256("a prompt")},
            "ValueError",
            None,
            None,
            id="hash",
        ),
        pytest.param("none", {"n": 1}, "ValueError", None, None, id="none"),
    ],
)
def test_what_is_recorded_of_texts_is_a_choice(content, attributes, error, output, excerpt):
    records = Recorder()
    tracer = Tracer(records.append, content=content)
    with (
        pytest.raises(ValueError, match="bad"),
        tracer.span("chat", n=1, prompt_sha256=tracer.content("a prompt")),
    ):
        raise ValueError("a prompt: bad")
    tracer.output("plan", "a text", item=1)

    assert records.begun("chat").attributes == attributes
    assert records.ended("chat").error == error
    assert records[-1] == NodeOutput("plan", 1, output)
    assert tracer.excerpt("a query") == excerpt
    contents = [r for r in records if isinstance(r, Content)]
    assert [one.text for one in contents] == (["a prompt"] if content == "full" else [])


def test_the_output_of_a_node_is_recorded_with_its_item(tracer, records):
    tracer.output("plan", {"topics": ["a"]})
    tracer.output("sections", "text", item=2)

    assert records == [
        NodeOutput(node="plan", item=None, value={"topics": ["a"]}),
        NodeOutput(node="sections", item=2, value="text"),
    ]


@pytest.mark.parametrize(
    ("content", "recorded"),
    [
        ("full", ("text", {"task": "d16e"}, "c0de", "when: 'a text'", "7e87")),
        ("hash", (None, {"task": "d16e"}, "c0de", "when", "7e87")),
        ("none", (None, {}, "c0de", "when", None)),
    ],
)
def test_what_a_node_was_made_of_is_recorded_with_its_output(content, recorded):
    records = []
    tracer = Tracer(records.append, content=content)

    tracer.output("a/b", "text", item=1, inputs={"task": "d16e"}, code="c0de",
                  skipped="when: 'a text'", digest="7e87")  # fmt: skip

    assert records == [NodeOutput("a/b", 1, *recorded)]


def test_a_tracer_without_a_sink_records_nothing():
    tracer = Tracer()
    with tracer.span("chat") as span:
        span.set(model="small")
        tracer.instant("first token")
        tracer.counter("queue", 1, unit="calls")
        tracer.flow("draft", source=span.id, target=span.id)
        tracer.completed_span("decode", start_ns=1, end_ns=2)
        tracer.output("plan", "text")
        assert tracer.current_id == span.id
    asyncio.run(tracer.persisted())


def test_a_generator_that_is_closed_late_moves_nothing_into_its_place(tracer, records):
    def generator():
        with tracer.span("inside the generator"):
            yield

    with tracer.span("first"):
        late = generator()
        next(late)
    late.close()
    with tracer.span("second"):
        pass

    assert records.parent_name("inside the generator") == "first"
    assert records.parent_name("second") is None


def test_a_span_that_ends_around_an_open_one_gives_its_place_back(tracer, records):
    with tracer.span("run"):
        with tracer.span("first"):
            tracer.span("never ended").__enter__()
        with tracer.span("second"):
            pass

    assert records.parent_name("second") == "run"


@pytest.mark.parametrize(
    ("value", "recorded"),
    [
        pytest.param(np.float32(1.5), 1.5, id="numpy's float"),
        pytest.param(np.bool_(1), 1.0, id="numpy's bool"),
        pytest.param(Decimal("2.5"), 2.5, id="decimal"),
        pytest.param(2**70, 2.0**70, id="beyond 64 bits"),
        pytest.param(10**400, None, id="beyond a double"),
        pytest.param(float("nan"), None, id="no number"),
        pytest.param("many", None, id="a word"),
    ],
)
def test_a_counter_takes_any_finite_number(tracer, records, value, recorded):
    tracer.counter("composite", value, unit="points")

    assert [record.value for record in records] == ([] if recorded is None else [recorded])
