import asyncio

import pytest
from clients import AT_ONCE, client_of
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock
from test_gate import Held, until_idle

from harness.errors import CallTimeout, EndpointUnreachable, QueueFull, ServerError, StreamCut
from harness.inference import ChatRequest, EmbedRequest, Message, ScriptedBackend, as_messages
from harness.inference.gate import (
    Replica,
    ReplicaState,
    choice,
    most_for_one,
    preference,
    stable_prefix,
)
from harness.inference.health import is_replicas_fault, pause_s
from harness.trace import SpanEnded, Tracer

NAMES = ("a:1", "b:1", "c:1")


def state(waiting=0, *, under_way=0, **more):
    return ReplicaState(load=under_way + waiting, **more)


CHOICES = {
    "the one for the prefix, when nothing else goes on": (
        [state(1), state(), state()],
        (0, "prefix"),
    ),
    "it has a call more than the others, as the bound allows": (
        [state(1, under_way=1), state(under_way=1), state()],
        (0, "prefix"),
    ),
    "its load is above the bound": (
        [state(1, under_way=4), state(under_way=1), state(under_way=1)],
        (1, "load"),
    ),
    "the second's is, too": ([state(1, under_way=4), state(under_way=4), state()], (2, "load")),
    "it has no place, and its load is fair": (
        [state(1, under_way=2, has_place=False), state(under_way=2), state(under_way=2)],
        None,
    ),
    "it has no place, and another does nothing": (
        [state(1, under_way=1, has_place=False), state(under_way=1), state()],
        (2, "load"),
    ),
    "none has a place": (
        [state(1, under_way=4, has_place=False)] + 2 * [state(under_way=1, has_place=False)],
        None,
    ),
    "its load is above the bound, and only it has a place": (
        [state(6, under_way=1)] + 2 * [state(under_way=1, has_place=False)],
        (0, "prefix"),
    ),
    "it is left out": ([state(1, is_out=True), state(), state()], (1, "failed over")),
    "all are left out": (3 * [state(1, is_out=True)], (0, "prefix")),
}


@pytest.mark.parametrize(("states", "chosen"), CHOICES.values(), ids=CHOICES)
def test_a_call_goes_to_the_replica_of_its_prefix_unless(states, chosen):
    assert choice((0, 1, 2), states) == chosen


def test_a_replica_that_failed_a_call_does_not_get_it_again_while_another_may():
    states = [state(1), state(), state()]
    assert choice((0, 1, 2), states, tried={0}) == (1, "failed over")
    assert choice((0, 1, 2), [state(1), state(), state(is_out=True)], tried={0, 1}) == (
        2,
        "failed over",
    )
    assert choice((0, 1, 2), states, tried={0, 1, 2}) == (0, "prefix")


def test_in_an_outage_no_replica_is_tried_before_its_time():
    out, due = state(1, is_out=True), state()
    assert choice((0, 1, 2), [out, due, due], tried={1, 2}, is_down=True) == (1, "failed over")
    assert choice((0, 1, 2), 3 * [out], is_down=True) is None


loads = st.lists(st.builds(ReplicaState, load=st.integers(0, 40)), min_size=1, max_size=6)


@given(loads, st.data())
def test_no_replica_is_given_a_call_beyond_the_bound(states, data):
    order = tuple(data.draw(st.permutations(range(len(states)))))
    first = order[0]
    states[first] = ReplicaState(load=states[first].load + 1)
    number, reason = choice(order, states)
    after = [one.load for one in states]
    after[first] -= 1
    after[number] += 1
    assert after[number] <= most_for_one(after)
    assert (reason == "prefix") == (number == first)


@given(st.text(), st.sampled_from(NAMES))
def test_a_replica_less_moves_no_prefix_that_was_another_ones(prefix, gone):
    before = [NAMES[one] for one in preference(prefix, NAMES)]
    left = [name for name in NAMES if name != gone]
    after = [left[one] for one in preference(prefix, left)]
    assert after == [name for name in before if name != gone]


def test_prefixes_are_spread_evenly():
    first = [preference(f"document {number}", NAMES)[0] for number in range(3_000)]
    assert all(900 < first.count(one) < 1_100 for one in range(3))


SYSTEM = Message("system", "You judge." * 500)


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        pytest.param(
            [Message("user", "rubric, source: draft 1", shared_chars=(15, 20))],
            [Message("user", "rubric, source: another", shared_chars=(15, 23))],
            True,
            id="drafts behind one rubric and source",
        ),
        pytest.param(
            [SYSTEM, Message("user", "rubric, source: draft", shared_chars=(15,))],
            [SYSTEM, Message("user", "rubric, others: draft", shared_chars=(15,))],
            False,
            id="other sources",
        ),
        pytest.param(
            as_messages("Hello."),
            [*as_messages("Hello."), Message("assistant", "Yes?"), Message("user", "Go on.")],
            True,
            id="a conversation that has grown",
        ),
        pytest.param(
            as_messages("A long document. " * 200 + "Who?"),
            as_messages("A long document. " * 200 + "When?"),
            True,
            id="questions behind one document",
        ),
        pytest.param(
            [SYSTEM, *as_messages("Who?")],
            [SYSTEM, *as_messages("When?")],
            False,
            id="one system prompt alone",
        ),
    ],
)
def test_calls_have_one_prefix_if_they_begin_alike(one, other, together):
    ends = {stable_prefix(ChatRequest(model="m", messages=tuple(said))) for said in (one, other)}
    assert len(ends) == (1 if together else 2)


def test_embeddings_are_spread_by_their_texts():
    requests = (EmbedRequest(model="m", texts=(text, "same")) for text in ("a", "b"))
    assert len({stable_prefix(request) for request in requests}) == 2


@pytest.mark.parametrize(
    ("error", "is_its_fault"),
    [
        (EndpointUnreachable("no", endpoint="m"), True),
        (StreamCut("no", endpoint="m"), True),
        (ServerError("no", endpoint="m", status=500), True),
        (ServerError("no", endpoint="m", status=400), False),
        (CallTimeout("no", endpoint="m", limit="first_token_timeout_s"), True),
        (CallTimeout("no", endpoint="m", limit="timeout_s"), False),
    ],
)
def test_another_replica_is_asked_where_it_may_do_better(error, is_its_fault):
    assert is_replicas_fault(error) == is_its_fault


def test_a_replica_is_left_out_longer_each_time_up_to_a_minute():
    assert [pause_s(failures) for failures in (1, 2, 3, 20)] == [1.0, 2.0, 4.0, 60.0]
    assert pause_s(20, is_outage=True) == 15.0
    assert 7.5 <= pause_s(9, is_outage=True, jitter=0.9) < 15.0


# --- the gate and the client ------------------------------------------------------------------


class Down(ScriptedBackend):
    """Fails every call until it is mended."""

    def __init__(self):
        super().__init__(lambda _request: "mended")
        self.is_down = True

    async def chat(self, request):
        if self.is_down:
            self.requests.append(request)
            raise EndpointUnreachable("nothing answers", endpoint="m")
        return await super().chat(request)


class Two:
    """A client of two replicas, `a` and `b`, and where its calls went."""

    def __init__(self, a, b, *, max_parallel=None, **gate):
        self.clock, self.spans = ManualClock(), []
        self.client = client_of(
            a,
            tracer=Tracer(self._take, clock=self.clock),
            gate={
                "replicas": [Replica(name="a"), Replica(name="b")],
                "max_parallel": max_parallel,
                **gate,
            },
            replicas=(b,),
            retry=AT_ONCE,
        )

    def _take(self, record):
        if isinstance(record, SpanEnded) and "replica" in record.attributes:
            self.spans.append((record.attributes["replica"], record.attributes["replica_reason"]))

    def chat(self, text, **more):
        request = ChatRequest(model="m", messages=as_messages(text), **more)
        return self.client.chat(request)


def texts_for(name, count):
    """Prompts whose replica this is."""
    wanted = "ab".index(name)
    prompts = (f"prompt {number}" for number in range(10_000))
    return [text for text in prompts if preference(text, ("a", "b"))[0] == wanted][:count]


def answers(text):
    return ScriptedBackend(lambda _request: text)


def test_each_prefix_has_its_replica_and_the_trace_says_why():
    two = Two(answers("a"), answers("b"))
    [first], [second] = texts_for("a", 1), texts_for("b", 1)

    async def main():
        return [(await two.chat(text)).text for text in (first, second, first)]

    assert asyncio.run(main()) == ["a", "b", "a"]
    assert two.spans == [("a", "prefix"), ("b", "prefix"), ("a", "prefix")]


def test_a_replica_that_fails_is_left_out_and_tried_again_with_one_call():
    down = Down()
    two = Two(down, answers("b"))
    texts = texts_for("a", 3)

    async def main():
        first = [(await two.chat(text)).text for text in texts]
        tried = len(down.requests)
        two.clock.advance(ms=1_001)
        still = (await two.chat(texts[0])).text
        down.is_down = False
        two.clock.advance(ms=2_001)
        return first, tried, still, (await two.chat(texts[0])).text

    assert asyncio.run(main()) == (["b", "b", "b"], 1, "b", "mended")
    assert len(down.requests) == 3
    assert two.spans == [
        ("a", "prefix"),
        *3 * [("b", "failed over")],
        ("a", "prefix"),
        ("b", "failed over"),
        ("a", "prefix"),
    ]


def test_while_one_call_tries_a_replica_again_the_others_go_elsewhere():
    held = Held()
    two = Two(held, answers("b"))
    texts = texts_for("a", 3)

    async def main():
        first = asyncio.create_task(two.chat(texts[0]))
        await until_idle()
        held.fail(texts[0])
        assert (await first).text == "b"
        two.clock.advance(ms=1_001)
        trying = asyncio.create_task(two.chat(texts[1]))
        await until_idle()
        assert (await two.chat(texts[2])).text == "b"
        held.answer(texts[1])
        return (await trying).text

    assert asyncio.run(main()) == texts_for("a", 3)[1]


def test_a_call_that_no_replica_answers_fails_with_their_error():
    a, b = Down(), Down()
    with pytest.raises(EndpointUnreachable):
        asyncio.run(Two(a, b).chat("anything"))
    attempts = AT_ONCE.max_attempts
    assert (len(a.requests), len(b.requests)) == (attempts, attempts)


def test_calls_that_wait_for_a_replica_go_to_one_that_has_nothing_to_do():
    held, other = Held(), Held()
    two = Two(held, other, max_parallel=1)
    texts = texts_for("a", 4)

    async def main():
        calls = [asyncio.create_task(two.chat(text)) for text in texts]
        await until_idle()
        assert (held.begun, other.begun) == (texts[:1], texts[1:2])
        for text in texts[1:]:
            other.answer(text)
            await until_idle()
        held.answer(texts[0])
        return [(await call).text for call in calls]

    assert asyncio.run(main()) == texts
    assert other.begun == texts[1:]


def test_the_highest_priority_goes_first_and_a_full_queue_refuses():
    held = Held()
    limited = client_of(held, gate={"max_parallel": 1, "max_queue": 2})

    def ask(text, priority=0):
        request = ChatRequest(model="m", messages=as_messages(text), priority=priority)
        return asyncio.create_task(limited.chat(request))

    async def main():
        calls = [ask("a"), ask("b"), ask("c", priority=1)]
        await until_idle()
        with pytest.raises(QueueFull) as refused:
            await ask("d")
        for name in "acb":
            held.answer(name)
            await until_idle()
        return refused.value.code, [(await call).text for call in calls]

    assert asyncio.run(main()) == ("call.queue-full", ["a", "b", "c"])
    assert held.begun == ["a", "c", "b"]


def test_a_full_queue_sends_a_call_to_the_fallback():
    held = Held()
    both = client_of(held, gate={"max_parallel": 1, "max_queue": 0}, others={"n": answers("n")})

    async def main():
        def ask(text):
            return both.chat(ChatRequest(model="m", messages=as_messages(text)))

        first = asyncio.create_task(ask("a"))
        await until_idle()
        second = await ask("b")
        held.answer("a")
        return (await first).text, second.text, second.endpoint

    assert asyncio.run(main()) == ("a", "n", "n")
