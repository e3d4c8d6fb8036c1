import asyncio

import pytest

from harness.errors import StreamCut
from harness.inference import ChatRequest, Phase, ScriptedBackend, as_messages
from harness.trace import ManualClock


def request(text="Write two words."):
    return ChatRequest(model="m", messages=as_messages(text))


def test_replies_are_given_out_in_order_and_requests_kept():
    async def main():
        backend = ScriptedBackend(["one", "two"])
        requests = [request("first"), request("second")]
        assert [(await backend.chat(r)).text for r in requests] == ["one", "two"]
        assert backend.requests == requests
        await backend.aclose()

    asyncio.run(main())


def test_a_function_is_asked_at_every_call():
    async def main():
        backend = ScriptedBackend(lambda r: r.messages[-1].content.upper())
        assert (await backend.chat(request("again"))).text == "AGAIN"
        assert (await backend.chat(request("and again"))).text == "AND AGAIN"

    asyncio.run(main())


@pytest.mark.parametrize("as_function", [False, True], ids=["list", "function"])
def test_an_error_in_the_script_is_raised(as_function):
    cut = StreamCut("it broke off", endpoint="m")
    backend = ScriptedBackend((lambda _: cut) if as_function else [cut])

    with pytest.raises(StreamCut) as caught:
        asyncio.run(backend.chat(request()))
    assert caught.value is cut


def test_a_script_that_is_over_says_at_which_call():
    async def main():
        backend = ScriptedBackend(["one"])
        await backend.chat(request())
        with pytest.raises(LookupError, match="no reply for call 2"):
            await backend.chat(request())

    asyncio.run(main())


def test_other_tasks_run_while_it_answers():
    async def main():
        order = []
        backend = ScriptedBackend(lambda _: order.append("reply") or "")

        async def other():
            order.append("other")

        async with asyncio.TaskGroup() as group:
            group.create_task(backend.chat(request()))
            group.create_task(other())
        assert order == ["other", "reply"]

    asyncio.run(main())


def test_a_completion_counts_words_and_is_timed_by_the_given_clock():
    clock = ManualClock(5_000)

    def answer(_request):
        clock.advance(ms=3)
        return "two words"

    completion = asyncio.run(ScriptedBackend(answer, clock=clock).chat(request()))

    assert completion.usage.input_tokens == 3
    assert completion.usage.output_tokens == 2
    assert completion.usage.cached_tokens is None
    assert completion.finish_reason == "stop"
    assert completion.model_id == "m"
    assert completion.sent_ns == 5_000
    assert completion.first_token_ns == 3_005_000
    assert completion.phases == (
        Phase(name="prefill", start_ns=5_000, end_ns=3_005_000, source="derived"),
    )
