"""How many tokens a call takes at most, where nobody counts them."""

import asyncio

import pytest

from harness.inference import ChatRequest, CountRequest, EmbeddedLlamaCpp, Message
from harness.inference.token_bound import most_prompt_tokens, most_tokens_in, most_tokens_of
from harness.session.demo_model import demo_endpoint

ENGLISH = "The weights are read from disk before the first prompt can be processed.\n" * 20


def request(text, room):
    message = Message("user", text)
    return ChatRequest(model="writer", messages=(message,), max_output_tokens=room)


@pytest.mark.parametrize(
    ("text", "most"),
    [
        pytest.param("", 0, id="nothing"),
        pytest.param("x" * 300, 100, id="three letters a token"),
        pytest.param("x" * 301, 101, id="rounded up"),
        pytest.param("\u65f6" * 100, 100, id="a letter of Chinese for each"),
        pytest.param("\ud800", 1, id="half a letter"),
    ],
)
def test_a_text_has_at_most_a_token_for_three_bytes(text, most):
    assert most_tokens_in(text) == most


def test_a_call_takes_its_prompt_and_its_room_at_most():
    assert most_tokens_of(request("x" * 300, 50)) == 150
    assert most_prompt_tokens(request("x" * 300, 50)) == 100


def test_a_real_tokenizer_makes_no_more_of_english():
    assert 0 < counted(ENGLISH) <= most_tokens_in(ENGLISH)


def counted(text):
    """By the demo's model, its template's own tokens taken off."""

    async def main():
        model = EmbeddedLlamaCpp(demo_endpoint())
        await model.load()
        try:
            counts = [
                await model.count_tokens(CountRequest(model="m", messages=(Message("user", said),)))
                for said in ("", text)
            ]
        finally:
            await model.unload()
        return counts[1] - counts[0]

    return asyncio.run(main())
