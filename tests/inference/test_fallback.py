import asyncio
from dataclasses import replace

import pytest

from harness.errors import (
    AuthenticationFailed,
    CallTimeout,
    ConfigurationInvalid,
    ContextOverflow,
    EndpointUnreachable,
    ModelNotFound,
    NotOffered,
    Overloaded,
    RateLimited,
    ReplyInvalid,
    ServerError,
    StreamCut,
)
from harness.inference import ChatRequest, CountRequest, EmbedRequest, ScriptedBackend, as_messages
from harness.inference.around.fallback import FallingBack, another_may_answer
from harness.trace import Tracer

REQUEST = ChatRequest(model="large", messages=as_messages("Write."), seed=7)


def down(tag):
    return EndpointUnreachable("nothing answers", endpoint=tag)


class Chain:
    """A backend `large` with `small` and `tiny` to fall back on."""

    def __init__(self, large, small=(), tiny=()):
        self.records = []
        self.backends = {
            tag: ScriptedBackend(replies) if not isinstance(replies, ScriptedBackend) else replies
            for tag, replies in {"large": large, "small": small, "tiny": tiny}.items()
        }
        first, *others = self.backends.items()
        self.calls = FallingBack(first[1], others=dict(others), tracer=Tracer(self.records.append))

    def chat(self, request=REQUEST):
        return asyncio.run(self.calls.chat(request))

    @property
    def asked(self):
        return {tag: backend.requests for tag, backend in self.backends.items()}


@pytest.mark.parametrize(
    ("error", "falls_back"),
    [
        (down("m"), True),
        (Overloaded("loading", endpoint="m"), True),
        (RateLimited("slow down", endpoint="m"), True),
        (StreamCut("it broke off", endpoint="m"), True),
        (CallTimeout("300 s", endpoint="m"), True),
        (CallTimeout("5 s", endpoint="m", limit="connect_timeout_s"), True),
        (ServerError("boom", endpoint="m", status=500), True),
        (ServerError("boom", endpoint="m", status=502), True),
        (ServerError("not loaded", endpoint="m"), True),
        (ServerError("no such field", endpoint="m", status=400), False),
        (AuthenticationFailed("no", endpoint="m"), False),
        (ModelNotFound("no", endpoint="m"), False),
        (ContextOverflow("too long", endpoint="m"), False),
        (ReplyInvalid("not JSON", endpoint="m", text=""), False),
        (NotOffered("it does not chat", endpoint="m"), False),
    ],
    ids=repr,
)
def test_another_is_asked_only_where_no_person_has_to_mend_anything(error, falls_back):
    chain = Chain([error], ["A draft."])

    assert another_may_answer(error) == falls_back
    if falls_back:
        assert chain.chat().text == "A draft."
    else:
        with pytest.raises(type(error)) as caught:
            chain.chat()
        assert caught.value is error
        assert chain.asked["small"] == []


def test_one_that_answers_is_asked_alone_and_as_it_was_meant():
    chain = Chain(["A draft."])

    assert chain.chat().text == "A draft."
    assert chain.asked["large"][0] is REQUEST
    assert chain.asked["small"] == chain.asked["tiny"] == []
    assert chain.records == []


def test_the_others_are_asked_in_order_each_by_its_own_tag():
    busy = Overloaded("loading", endpoint="small")
    chain = Chain([down("large")], [busy], ["A draft."])

    assert chain.chat().endpoint == "tiny"
    assert chain.asked == {
        "large": [REQUEST],
        "small": [replace(REQUEST, model="small")],
        "tiny": [replace(REQUEST, model="tiny")],
    }
    assert [(record.name, dict(record.attributes)) for record in chain.records] == [
        (
            "fallback",
            {
                "model": "large",
                "to": "small",
                "reason": "EndpointUnreachable",
                "detail": "large: nothing answers",
            },
        ),
        (
            "fallback",
            {
                "model": "small",
                "to": "tiny",
                "reason": "Overloaded",
                "detail": "small: loading",
            },
        ),
    ]


@pytest.mark.parametrize(
    "last",
    [down("tiny"), ModelNotFound("no", endpoint="tiny")],
    ids=["unable too", "to be mended"],
)
def test_when_nobody_answers_the_first_error_tells_of_the_others(last):
    first = down("large")
    chain = Chain([first], [StreamCut("it broke off", endpoint="small")], [last])

    with pytest.raises(EndpointUnreachable) as caught:
        chain.chat()
    assert caught.value is first
    assert caught.value.__notes__ == [
        "'small', asked instead: StreamCut: small: it broke off",
        f"'tiny', asked instead: {type(last).__name__}: {last}",
    ]


def test_one_that_is_set_up_wrongly_does_not_end_the_chain():
    def unusable(_request):
        raise ConfigurationInvalid("the key is not set")

    chain = Chain([down("large")], unusable, ["A draft."])

    assert chain.chat().endpoint == "tiny"


def test_a_calls_own_time_is_for_all_of_them_together():
    chain = Chain([down("large")], ["A draft."])

    chain.chat(replace(REQUEST, timeout_s=9.0))
    (first,), (second,) = chain.asked["large"], chain.asked["small"]
    assert first.deadline is second.deadline
    assert first.deadline.left_s == 9.0


def test_who_answered_in_anothers_place_is_told():
    assert Chain([down("large")], ["A draft."]).chat().endpoint == "small"
    assert Chain(["A draft."]).chat().endpoint is None


def test_an_error_that_is_no_models_own_is_not_covered_up():
    def unusable(_request):
        raise ConfigurationInvalid("the key is not set")

    chain = Chain(unusable, ["A draft."])

    with pytest.raises(ConfigurationInvalid):
        chain.chat()


class Breaking(ScriptedBackend):
    """Says a piece, if it is given one, and breaks off."""

    def __init__(self, piece):
        super().__init__([StreamCut("it broke off", endpoint="large")])
        self._piece = piece

    async def chat(self, request):
        if self._piece:
            request.on_text(self._piece)
        return await super().chat(request)


@pytest.mark.parametrize("piece", ["Once", ""], ids=["a piece was heard", "nothing was heard"])
def test_whoever_has_heard_a_piece_hears_no_other_answer(piece):
    heard = []
    chain = Chain(Breaking(piece), ["A draft."])

    if piece:
        with pytest.raises(StreamCut):
            chain.chat(replace(REQUEST, on_text=heard.append))
        assert heard == ["Once"]
    else:
        assert chain.chat(replace(REQUEST, on_text=heard.append)).text == "A draft."


def test_vectors_and_counts_are_only_ever_the_first_ones():
    async def main():
        chain = Chain([], [])
        with pytest.raises(NotOffered) as caught:
            await chain.calls.embed(EmbedRequest(model="large", texts=("a",)))
        assert caught.value.endpoint == "large"
        count = CountRequest(model="large", messages=as_messages("Two words"))
        assert await chain.calls.count_tokens(count) == 2

    asyncio.run(main())
