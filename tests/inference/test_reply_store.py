"""Replies that are kept and given again, and the file they are kept in."""

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import asynccontextmanager, closing
from dataclasses import fields, replace

import pytest
from clients import client_of
from manual_clock import ManualClock
from structlog.testing import capture_logs

from harness.errors import ConfigurationInvalid, ModelFileInvalid, StreamCut
from harness.inference import (
    ChatRequest,
    Completion,
    Endpoint,
    Image,
    Message,
    ScriptedBackend,
    ToolCall,
    ToolSpec,
    Usage,
    as_messages,
)
from harness.inference.completion import InterTokenLatency, Phase
from harness.inference.reply_store import ReplyCache, reply_identity
from harness.text_store import TextStore
from harness.trace import SpanEnded, SpanRecord, Tracer

REQUEST = ChatRequest(model="m", messages=as_messages("Write."))


class Answering(ScriptedBackend):
    """Answers every call with one completion."""

    def __init__(self, completion):
        super().__init__([])
        self._completion = completion

    async def chat(self, request):
        self.requests.append(request)
        return self._completion


@asynccontextmanager
async def cached(backend, *, path=None, clock=None, tracer=None):
    cache = ReplyCache(TextStore(path))
    tracer = tracer or Tracer(clock=clock or ManualClock())
    try:
        yield client_of(backend, line={"identity": "m"}, cache=cache, tracer=tracer)
    finally:
        await cache.aclose()


def texts(requests, path=None):
    """What comes of these calls, and how many of them were asked of the model."""

    async def main():
        backend = ScriptedBackend(["first", "second", "third"])
        async with cached(backend, path=path) as calls:
            return [(await calls.chat(one)).text for one in requests], len(backend.requests)

    return asyncio.run(main())


# --- which calls are the same ----------------------------------------------------------------


def test_a_call_that_was_made_before_is_answered_as_it_was_then_and_by_a_later_run(tmp_path):
    path = tmp_path / "cache" / "calls.sqlite"

    assert texts([REQUEST, REQUEST, REQUEST], path) == (["first"] * 3, 1)
    assert texts([REQUEST], path) == (["first"], 0)


TOOL = ToolSpec("look", "Looks.", {"type": "object"})
ANOTHER = [
    {"messages": as_messages("Write!")},
    {"messages": (Message("system", "Write."),)},
    {"messages": (*REQUEST.messages, Message("assistant", "Well."))},
    {"max_output_tokens": 64},
    {"goes_on": True},
    {"ignore_eos": True},
    {"temperature": 0.7, "seed": 7},
    {"top_p": 0.9},
    {"top_k": 40},
    {"min_p": 0.05},
    {"frequency_penalty": 0.5},
    {"presence_penalty": 0.5},
    {"reasoning_effort": "none"},
    {"extra_body": {"user": "u"}},
    {"messages": (Message("user", "Write.", extra={"name": "ann"}),)},
    {"seed": 7},
    {"stop": ("END",)},
    {"reply_schema": {"type": "object"}},
    {"tools": (TOOL,)},
    {"tools": (TOOL,), "tool_choice": "required"},
    {"messages": (Message("assistant", "Write.", tool_calls=(ToolCall("call_1", "look", "{}"),)),)},
    {"messages": (Message("tool", "Write.", answers="call_1"),)},
    {"messages": (Message("user", "Write.", images=(Image.from_url("https://owl.example/1"),)),)},
]
THE_SAME = [
    {"allow_empty": True},
    {"role": "evaluator"},
    {"asks_again": True},
    {"timeout_s": 9.0},
    {"priority": 1},
    {"on_text": str},
    {"on_piece": list},
    {"temperature": 0},
]


@pytest.mark.parametrize(
    ("change", "calls"),
    [*((change, 2) for change in ANOTHER), *((change, 1) for change in THE_SAME)],
    ids=str,
)
def test_a_call_that_may_be_answered_otherwise_is_another(change, calls):
    assert texts([REQUEST, replace(REQUEST, **change)])[1] == calls


def test_every_field_of_a_request_is_known_to_be_in_the_key_or_not():
    # A new one has to be put in `call_key`, or else into the second list.
    known = {name for change in (*ANOTHER, *THE_SAME) for name in change}
    assert {one.name for one in fields(ChatRequest)} == known | {"model"}


@pytest.mark.parametrize(
    ("change", "dropped", "kept"),
    [
        pytest.param({}, (), True, id="greedy"),
        pytest.param({"temperature": 0.7, "seed": 0}, (), True, id="seeded"),
        pytest.param({"temperature": 0.7}, (), False, id="left to chance"),
        pytest.param({}, ("temperature",), False, id="greedy was refused"),
        pytest.param({"temperature": 0.7, "seed": 7}, ("seed",), False, id="the seed was refused"),
        pytest.param({"seed": 7}, ("seed",), True, id="a seed of a greedy call"),
    ],
)
def test_a_reply_is_kept_only_if_what_was_sent_would_give_it_again(change, dropped, kept):
    async def main():
        async with cached(Answering(replace(WHOLE, dropped=dropped))) as calls:
            await calls.chat(replace(REQUEST, **change))
            return (await calls.chat(replace(REQUEST, **change))).from_cache

    assert asyncio.run(main()) is kept


def test_a_call_that_failed_is_made_again():
    async def main():
        backend = ScriptedBackend([StreamCut("it broke off", endpoint="m"), "A draft."])
        async with cached(backend) as calls:
            with pytest.raises(StreamCut):
                await calls.chat(REQUEST)
            assert (await calls.chat(REQUEST)).text == "A draft."

    asyncio.run(main())


class Held(ScriptedBackend):
    """Answers once it may, or raises."""

    def __init__(self, *outcomes):
        super().__init__([])
        self._outcomes = iter(outcomes)
        self.may_answer = asyncio.Event()

    async def chat(self, request):
        self.requests.append(request)
        await self.may_answer.wait()
        outcome = next(self._outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


async def let_begin(calls, backend, *, requests=1):
    """Tasks of these calls, once the backend has so many requests, and all others wait."""
    tasks = [asyncio.create_task(call) for call in calls]
    async with asyncio.timeout(60):
        # The cache is read in a thread, and tells nobody when.
        while len(backend.requests) < requests:  # noqa: ASYNC110
            await asyncio.sleep(0)
    return tasks


def under_way_together(backend, then=lambda _tasks: None):
    """Sixteen equal calls at once, one of which asks; what came of each, and the requests."""

    async def main():
        async with cached(backend) as calls:
            tasks = await let_begin((calls.chat(REQUEST) for _ in range(16)), backend)
            begun = len(backend.requests)
            then(tasks)
            backend.may_answer.set()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            return begun, ended, len(backend.requests)

    return asyncio.run(main())


def test_of_equal_calls_under_way_one_asks_and_the_others_wait_for_its_reply():
    begun, replies, requests = under_way_together(Held(WHOLE))
    assert (begun, requests) == (1, 1)
    assert {one.text for one in replies} == {WHOLE.text}
    assert sum(one.from_cache for one in replies) == 15


def test_if_the_call_that_asks_is_cancelled_another_one_asks():
    def cancel(tasks):
        tasks[0].cancel()

    _, replies, requests = under_way_together(Held(WHOLE), cancel)
    assert requests == 2
    assert isinstance(replies[0], asyncio.CancelledError)
    assert {one.text for one in replies[1:]} == {WHOLE.text}


def test_if_the_call_that_asks_fails_the_others_ask_for_themselves():
    failure = StreamCut("it broke off", endpoint="m")
    _, replies, requests = under_way_together(Held(failure, *[WHOLE] * 16))
    assert requests == 16
    assert replies[0] is failure
    assert {one.text for one in replies[1:]} == {WHOLE.text}


def test_sampled_calls_under_way_wait_for_no_other():
    async def main():
        backend = Held(*[WHOLE] * 3)
        async with cached(backend) as calls:
            sampled = replace(REQUEST, temperature=0.7)
            asked = (calls.chat(sampled) for _ in range(3))
            tasks = await let_begin(asked, backend, requests=3)
            backend.may_answer.set()
            await asyncio.gather(*tasks)
            return len(backend.requests)

    assert asyncio.run(main()) == 3


SERVED = {"tag": "m", "url": "http://127.0.0.1:8000/v1"}


@pytest.mark.parametrize(
    ("change", "alike"),
    [
        ({"tag": "other", "model_id": "m"}, True),
        ({"max_parallel": 2}, True),
        ({"url": "http://127.0.0.1:8001/v1"}, False),
        ({"drop": ("temperature",)}, False),
    ],
    ids=str,
)
def test_endpoints_share_replies_only_when_they_would_reply_alike(change, alike):
    one, other = Endpoint(**SERVED), Endpoint(**SERVED | change)
    assert (reply_identity(one) == reply_identity(other)) == alike


def test_a_file_that_was_changed_is_another_model(tmp_path):
    endpoint = Endpoint(tag="m", path=tmp_path / "m.gguf")
    with pytest.raises(ModelFileInvalid) as caught:
        reply_identity(endpoint)
    assert caught.value.path == endpoint.path

    endpoint.path.write_bytes(b"GGUF")
    before = reply_identity(endpoint)
    assert before == reply_identity(endpoint)
    endpoint.path.write_bytes(b"GGUF, and more of it")
    assert reply_identity(endpoint) != before


# --- what comes back -------------------------------------------------------------------------

WHOLE = Completion(
    text="Good.",
    reasoning="Let me see.",
    finish_reason="length",
    usage=Usage(
        input_tokens=31, output_tokens=3, cached_tokens=None, reasoning_tokens=2, draft_tokens=0
    ),
    sent_ns=1,
    first_token_ns=2,
    phases=(Phase(name="decode", start_ns=2, end_ns=3, source="measured"),),
    model_id="served-name",
    itl=InterTokenLatency(mean_ns=1, p95_ns=2, p99_ns=3, max_ns=4),
    cost_usd=0.01,
    structured="enforced",
    dropped=("seed",),
)


def twice(completion, *, clock):
    async def main():
        async with cached(Answering(completion), clock=clock) as calls:
            first = await calls.chat(REQUEST)
            clock.advance(ms=5)
            return first, await calls.chat(REQUEST)

    return asyncio.run(main())


def test_a_reply_comes_back_without_what_it_took_and_cost():
    first, again = twice(WHOLE, clock=ManualClock(7))

    assert first == WHOLE
    took = {"first_token_ns": None, "phases": (), "itl": None, "cost_usd": 0.0}
    assert again == replace(WHOLE, sent_ns=5_000_007, from_cache=True, **took)


@pytest.mark.parametrize(("text", "pieces"), [("A draft.", ["A draft."]), ("", [])])
def test_who_listens_is_told_a_known_reply_in_one_piece(text, pieces):
    async def main():
        async with cached(ScriptedBackend([text])) as calls:
            request = replace(REQUEST, allow_empty=not text)
            await calls.chat(request)
            await calls.chat(replace(request, on_text=heard.append))

    heard = []
    asyncio.run(main())
    assert heard == pieces


@pytest.mark.parametrize("text", ["{}", "no JSON"])
def test_what_is_kept_but_is_no_completion_is_asked_for_anew(tmp_path, text):
    path = tmp_path / "calls.sqlite"
    texts([REQUEST], path)
    database(path, f"UPDATE reply SET text = '{text}'")

    assert texts([REQUEST, REQUEST], path) == (["first", "first"], 1)


def test_the_trace_says_that_no_model_was_asked():
    records = []

    async def main():
        tracer = Tracer(records.append)
        async with cached(Answering(WHOLE), tracer=tracer) as calls:
            await calls.chat(REQUEST)
            await calls.chat(REQUEST)

    asyncio.run(main())
    first, again = [record.attributes for record in records if isinstance(record, SpanEnded)]
    assert first["input_tokens"] == 31
    assert (again["from_cache"], again["cost_usd"]) == (True, 0.0)
    assert not {"input_tokens", "ttft_ns", "itl_mean_ns"} & set(again)
    assert len([record for record in records if isinstance(record, SpanRecord)]) == 1


# --- the file --------------------------------------------------------------------------------


def use(path, *keys, **kept):
    """Keeps these texts there, and says what is found of these keys at once."""

    async def main():
        cache = TextStore(path)
        for key, text in kept.items():
            cache.keep(key, text)
        texts = [await cache.find(key) for key in keys]
        await cache.aclose()
        return texts

    return asyncio.run(main())


def database(path, *statements):
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)


def test_what_is_kept_is_found_at_once_and_the_last_word_counts(tmp_path):
    path = tmp_path / "calls.sqlite"
    path.write_bytes(b"")  # an empty file becomes a cache

    assert use(path, "a", "b", a="old") == ["old", None]
    assert use(path, "a", a="new") == ["new"]
    assert use(None, "a", a="text") == ["text"]


WRITER = """
import asyncio, sys
from pathlib import Path
from harness.text_store import TextStore

async def main(path, name):
    print("ready", flush=True)
    sys.stdin.readline()
    cache = TextStore(Path(path))
    for number in range(100):
        cache.keep(f"{name}{number}", "x" * 1000)
        assert await cache.find(f"{name}{number}")
    await cache.aclose()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.slow
def test_processes_that_make_and_fill_one_file_at_the_same_time_lose_nothing(tmp_path):
    path = tmp_path / "calls.sqlite"
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, path, name], text=True, **pipes)
        for name in "abc"
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        _, said = writer.communicate(timeout=60)
        assert (writer.returncode, said) == (0, "")

    assert None not in use(path, *(f"{name}{number}" for name in "abc" for number in range(100)))


def test_what_is_known_is_found_while_another_process_writes(tmp_path):
    async def main():
        cache = TextStore(tmp_path / "calls.sqlite")
        cache.keep("a", "text")
        assert await cache.find("a") == "text"
        with closing(sqlite3.connect(tmp_path / "calls.sqlite")) as other:
            other.execute("BEGIN EXCLUSIVE")
            assert await cache.find("a") == "text"
        await cache.aclose()

    asyncio.run(main())


def no_database(path):
    path.write_bytes(b"Dear diary, " * 100)


def another_programs(path):
    database(path, "CREATE TABLE song (title TEXT)")


def a_newer_one(path):
    use(path, a="text")
    database(path, "PRAGMA user_version = 2")


def a_directory(path):
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (no_database, "cache.damaged"),
        (another_programs, "cache.other-program"),
        (a_newer_one, "cache.newer-version"),
        (a_directory, "cache.not-openable"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_file_that_is_no_call_cache_is_said_to_be_none_and_left_alone(tmp_path, make, code):
    path = tmp_path / "calls.sqlite"
    make(path)
    before = path.read_bytes() if path.is_file() else None

    with pytest.raises(ConfigurationInvalid) as caught:
        TextStore(path)
    assert (caught.value.code, caught.value.path) == (code, path)
    assert before is None or path.read_bytes() == before


def test_what_goes_wrong_later_fails_no_call_and_is_said_once(tmp_path):
    path = tmp_path / "calls.sqlite"

    async def main():
        cache = TextStore(path)
        database(path, "DROP TABLE reply")
        cache.keep("a", "text")
        cache.keep("b", "text")
        assert await cache.find("a") is None
        await cache.aclose()

    with capture_logs() as logs:
        asyncio.run(main())
    [log] = logs
    assert (log["log_level"], log["code"]) == ("warning", "cache.not-written")
    assert log["path"] == str(path)
