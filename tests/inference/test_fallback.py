import asyncio
from dataclasses import replace

import pytest
from clients import client_of

from harness.errors import (
    AuthenticationFailed,
    ConfigurationInvalid,
    EndpointUnreachable,
    ModelNotFound,
    Overloaded,
    RunLimitReached,
    StreamCut,
)
from harness.inference import ChatRequest, ScriptedBackend, as_messages
from harness.trace import Instant, Tracer

REQUEST = ChatRequest(model="large", messages=as_messages("Write."), seed=7)


def down(tag):
    return EndpointUnreachable("nothing answers", endpoint=tag)


class Chain:
    """A backend `large` with `small` and `tiny` to fall back on."""

    def __init__(self, large, small=(), tiny=()):
        self.records = []
        self.backends = {
            tag: replies if isinstance(replies, ScriptedBackend) else ScriptedBackend(replies)
            for tag, replies in {"large": large, "small": small, "tiny": tiny}.items()
        }
        others = {tag: one for tag, one in self.backends.items() if tag != "large"}
        self.calls = client_of(
            self.backends["large"], tag="large", others=others, tracer=Tracer(self._take)
        )

    def _take(self, record):
        if isinstance(record, Instant) and record.name == "fallback":
            self.records.append(record)

    def chat(self, request=REQUEST):
        return asyncio.run(self.calls.chat(request))

    @property
    def asked(self):
        return {tag: backend.requests for tag, backend in self.backends.items()}


def test_one_that_answers_is_asked_alone_and_as_it_was_meant():
    chain = Chain(["A draft."])

    completion = chain.chat()

    assert (completion.text, completion.endpoint) == ("A draft.", None)
    assert chain.asked["large"] == [REQUEST]
    assert chain.asked["small"] == chain.asked["tiny"] == []
    assert chain.records == []


def test_the_others_are_asked_in_order_each_by_its_own_tag():
    busy = Overloaded("loading", endpoint="small")
    chain = Chain([down("large")], [busy], ["A draft."])

    assert chain.chat().endpoint == "tiny"
    assert chain.asked == {tag: [replace(REQUEST, model=tag)] for tag in ("large", "small", "tiny")}
    told = [(record.name, dict(record.attributes)) for record in chain.records]
    reasons = {
        "large": {"reason": "EndpointUnreachable", "detail": str(down("large"))},
        "small": {"reason": "Overloaded", "detail": str(busy)},
    }
    assert told == [
        ("fallback", {"model": "large", "to": "small", **reasons["large"]}),
        ("fallback", {"model": "small", "to": "tiny", **reasons["small"]}),
    ]


def test_a_limit_that_is_reached_before_a_stand_in_is_asked_is_what_is_told():
    def refused(_request):
        raise RunLimitReached("all spent", limit="calls")

    with pytest.raises(RunLimitReached):
        Chain([down("large")], ScriptedBackend(refused), ["A draft."]).chat()


@pytest.mark.parametrize(
    "error",
    [AuthenticationFailed("no", endpoint="large"), ConfigurationInvalid("no key")],
    ids=["to be mended", "no model's own"],
)
def test_what_a_person_has_to_mend_is_not_covered_up(error):
    def fails(_request):
        raise error

    chain = Chain(fails, ["A draft."])

    with pytest.raises(type(error)) as caught:
        chain.chat()
    assert caught.value is error
    assert chain.asked["small"] == []


@pytest.mark.parametrize(
    "last", [down("tiny"), ModelNotFound("no", endpoint="tiny")], ids=["unable too", "to be mended"]
)
def test_when_nobody_answers_the_first_error_tells_of_the_others(last):
    first = down("large")
    second = StreamCut("it broke off", endpoint="small")

    with pytest.raises(EndpointUnreachable) as caught:
        Chain([first], [second], [last]).chat()
    assert caught.value is first
    assert len(first.__notes__) == 2
    assert str(second) in first.__notes__[0]
    assert str(last) in first.__notes__[1]


def test_a_calls_own_time_is_for_all_of_them_together():
    chain = Chain([down("large")], ["A draft."])

    chain.chat(replace(REQUEST, timeout_s=9.0))
    (first,), (second,) = chain.asked["large"], chain.asked["small"]
    assert 9.0 >= first.timeout_s > second.timeout_s


@pytest.mark.parametrize("piece", ["Once", ""], ids=["a piece was heard", "nothing was heard"])
def test_whoever_has_heard_a_piece_hears_no_other_answer(piece):
    class Breaking(ScriptedBackend):
        """Says a piece, if it is given one, and breaks off."""

        async def chat(self, request):
            if piece:
                request.on_text(piece)
            return await super().chat(request)

    heard = []
    cut = StreamCut("it broke off", endpoint="large")
    chain = Chain(Breaking([cut]), ["A draft."])
    request = replace(REQUEST, on_text=heard.append)

    if piece:
        with pytest.raises(StreamCut):
            chain.chat(request)
        assert heard == ["Once"]
    else:
        assert chain.chat(request).text == "A draft."
