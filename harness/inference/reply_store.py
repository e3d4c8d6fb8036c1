"""Stored replies: the cache, and a run's replies for its resume.

Both are texts by key. A reply's key is derived from the request and the model.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import json
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path

import orjson
from pydantic import TypeAdapter

from harness.errors import ModelFileInvalid, Notice
from harness.inference.completion import Completion
from harness.inference.endpoint import Endpoint
from harness.inference.json_text import json_of
from harness.inference.model_identity import file_fingerprint
from harness.inference.request import SAMPLING, ChatRequest, Message
from harness.text_store import TextStore
from harness.threads import to_its_end
from harness.trace import Clock, RunTrace, events
from harness.trace.journal_line import dump_json, seal, sealed_number

_FORMAT = 2  # of keys and of stored completions: raise it with any change to either
_COMPLETION = TypeAdapter(Completion)
# Settings that stand in a key only if they are set: keys from before they existed stay the same.
_NEWER = {"top_k", "presence_penalty", "headers", "query"}
_NEWER |= {"reasoning_effort", "extra_body", "tools"}
# The fields of an endpoint that decide its replies, beside its address and its file.
_DECIDES = {"backend", "model_id", "context_tokens", "drop", "prompt_template", "structured"}
_DECIDES |= _NEWER
VARIATION = "~"  # in the label of a call, before the number of its variation


class ReplyCache:
    """Replies to calls that are meant to be answered alike every time: greedy or seeded ones.

    A server that gets other weights under the same name is not noticed. `aclose` closes the store.
    """

    def __init__(self, store: TextStore) -> None:
        self._store = store
        self._under_way: dict[str, asyncio.Future[bool]] = {}

    @asynccontextmanager
    async def slot(
        self, request: ChatRequest, *, identity: str, clock: Clock
    ) -> AsyncIterator[Slot]:
        """The place of a call's reply, with the stored reply to an earlier equal call."""
        slot = Slot()
        # A reply that is drawn by chance is meant to differ every time.
        if request.temperature != 0 and request.seed is None:
            yield slot
            return
        key = call_key(request, identity=identity)
        asked_ns = clock()
        # Of equal calls at the same time, one asks the model. If that is cancelled, the next does.
        while (leader := self._under_way.get(key)) is not None:
            await asyncio.wait([leader])  # awaited by itself, it would be cancelled with this call
            # It has ended. If it has left no stored reply, all who waited ask for themselves.
            if leader.result():
                break
        lead = None
        if leader is None:
            lead = self._under_way[key] = asyncio.get_running_loop().create_future()
        has_ended = True
        try:
            stored = _read_completion(await self._store.find(key))
            if stored is not None:
                slot.stored = _answer_again(stored, request, asked_ns=asked_ns)
            yield slot
            if slot.reply is not None and _is_repeatable(request, slot.reply):
                self._store.keep(key, _completion_as_text(slot.reply))
        except (asyncio.CancelledError, GeneratorExit):
            has_ended = False
            raise
        finally:
            if lead is not None:
                del self._under_way[key]
                lead.set_result(has_ended)

    async def aclose(self) -> None:
        """Writes what is still unwritten, and closes the store."""
        await self._store.aclose()


class KeptReplies:
    """The replies of one run to calls of nodes that have not ended, for when it is resumed.

    A node's output is in the journal once the node has ended. Until then its replies are here, so
    that a resumed run asks for none of them again, sampled or greedy. The file lies beside the
    journal, and is deleted when the run is finished; a batch, which may go on changed, keeps it.

    Without `is_wanted`, replies stay in memory, for further attempts of a node. `used_again` counts
    the stored ones that were used.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        *,
        is_wanted: bool,
        trace: RunTrace,
        warn: Callable[[Notice], None],
    ) -> None:
        self.used_again = 0
        self._path = trace.journal_path.with_suffix(".replies")
        self._endpoints = endpoints
        self._identities: dict[str, str] = {}
        self._is_finished = False
        self._trace = trace
        # Node call → the label and the key of a call → numbers that equal calls leave free, a heap.
        self._free = defaultdict[str, dict[str, list[int]]](dict)
        self._log = ReplyLog(
            self._path if is_wanted else None,  # in memory, for further attempts of this part
            troubled=lambda what: warn(
                Notice(
                    code="resume.replies-not-kept",
                    message=f"replies are not kept, so a resumed run repeats their calls: {what}",
                )
            ),
        )

    @asynccontextmanager
    async def slot(self, request: ChatRequest, *, label: str) -> AsyncIterator[Slot]:
        """The place of a call's reply, with the one it got before the node call began again."""
        slot = Slot()
        call = f"{label}\n{call_key(request, identity=self._identity(request.model))}"
        # 1. Number it among equal calls, before anything is awaited: calls that are made together
        #    differ only by their order, and each has its own reply.
        free = self._free[label.partition(VARIATION)[0]].setdefault(call, [1])
        number = heapq.heappop(free)
        if not free:  # none had it or a higher number
            free.append(number + 1)
        key = hashlib.sha256(f"{call}\n{number}".encode()).hexdigest()
        # 2. Find the stored reply.
        slot.stored = await self._stored_reply(key, request)
        # 3. Keep the reply that it gets now.
        try:
            yield slot
        except BaseException:
            heapq.heappush(free, number)  # for the call that repeats this one
            raise
        if slot.reply is not None:
            self._keep(key, slot.reply)

    def give_again(self, label: str) -> None:
        """Gives a node call, which begins again, the replies that it got before."""
        self._free.pop(label, None)

    def drop(self) -> None:
        """Notes that there is nothing left to resume, so that `close` deletes the file."""
        self._is_finished = True

    def close(self) -> None:
        """Closes the file, and deletes it when there is nothing left to resume."""
        self._log.close()
        if self._is_finished:
            self._path.unlink(missing_ok=True)

    async def _stored_reply(self, key: str, request: ChatRequest) -> Completion | None:
        asked_ns = self._trace.now_ns()
        if (stored := _read_completion(await self._log.find(key))) is None:
            return None
        # The key has the settings of the requested endpoint, and not of a fallback that answered.
        fallback = stored.endpoint
        if fallback and await self._log.find(f"{key} by") != self._identity(fallback):
            return None
        self.used_again += 1
        usage = stored.usage
        again = events.ReplyAgain(
            model=request.model,
            cost_usd=stored.cost_usd,
            input_tokens=None if usage is None else usage.input_tokens,
            output_tokens=None if usage is None else usage.output_tokens,
        )
        self._trace.instant(again)
        return _answer_again(stored, request, asked_ns=asked_ns)

    def _keep(self, key: str, reply: Completion) -> None:
        # A resumed run asks again for a reply that a limit cut, since its limit may be higher. A
        # reply that a filter ended is of no use to a further attempt.
        if reply.cut_by is not None or reply.finish_reason == "content_filter":
            return
        texts = {key: _completion_as_text(reply)}
        if self._trace.redactor.clean(texts[key]) != texts[key]:
            return  # it holds a secret
        if reply.endpoint is not None:
            texts[f"{key} by"] = self._identity(reply.endpoint)
        # The journal with their cost is written first, so that the run knows the cost of every kept
        # reply. If a kill comes between the two, the reply is asked for and paid again.
        self._trace.flush()
        self._log.keep(texts)

    def _identity(self, model: str) -> str:
        if model not in self._identities:
            endpoint = self._endpoints.get(model)
            try:
                identity = model if endpoint is None else reply_identity(endpoint)
            except ModelFileInvalid:
                return model  # its file is gone: the call will say so
            self._identities[model] = identity
        return self._identities[model]


@dataclass(slots=True)
class Slot:
    """The place of one call's reply."""

    stored: Completion | None = None  # an earlier call's; None if the model has to be asked
    reply: Completion | None = None  # the model's, which the call sets to have it stored


class ReplyLog:
    """Texts by key; a killed process loses none that was kept. Without a path they stay in memory.

    Each text is a line with a checksum, in a private file that the first one creates. `troubled` is
    called with the reason if texts cannot be kept, and with the number of damaged lines.
    """

    def __init__(self, path: Path | None, *, troubled: Callable[[str], None]) -> None:
        self._path = path
        self._troubled = troubled
        self._descriptor: int | None = None
        self._size = 0
        self._is_usable = True
        self._is_read = False
        self._reading = asyncio.Lock()
        # Key → the offset and the length of its latest line in the file.
        self._places: dict[str, tuple[int, int]] = {}
        self._texts: dict[str, str] = {}  # key → text, if there is no file

    async def find(self, key: str) -> str | None:
        """The text under this key; None if there is none."""
        if self._path is None:
            return self._texts.get(key)
        async with self._reading:
            if not self._is_read:
                try:
                    if self._path.exists():
                        # In this thread, as in `keep`: only one may find where the file ends.
                        self._opened()
                        self._places = {**await to_its_end(self._read), **self._places}
                except OSError as error:
                    self._fail(error)
                self._is_read = True
        place = self._places.get(key)
        if place is None or self._descriptor is None:
            return None
        start, length = place
        line = os.pread(self._descriptor, length, start)
        entry = orjson.loads(line) if sealed_number(line) else {}
        return str(entry["text"]) if entry.get("key") == key else None

    def keep(self, texts: Mapping[str, str]) -> None:
        """Keeps texts; when this returns, a killed process does not lose them."""
        if self._path is None:
            self._texts.update(texts)
            return
        if not self._is_usable or not texts:
            return
        try:
            # Not a database: opening one costs more than all else that a short run does.
            descriptor = self._opened()
            for key, text in texts.items():
                line = seal(dump_json({"key": key, "text": text}) + b"\n", 1)
                self._places[key] = self._size, len(line)
                self._size += len(line)
                while line:
                    line = line[os.write(descriptor, line) :]
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _opened(self) -> int:
        """The file's descriptor, opened and at the beginning of a line."""
        if self._descriptor is None:
            assert self._path is not None
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            self._size = os.fstat(self._descriptor).st_size
            if self._size and os.pread(self._descriptor, 1, self._size - 1) != b"\n":
                # A line that a kill cut off must not spoil the next line.
                self._size += os.write(self._descriptor, b"\n")
        return self._descriptor

    def _fail(self, error: OSError) -> None:
        if self._is_usable:
            self._is_usable = False
            self._troubled(str(error))

    def _read(self) -> dict[str, tuple[int, int]]:
        """The places of the texts that earlier parts of the run kept."""
        places: dict[str, tuple[int, int]] = {}
        assert self._path is not None
        start = damaged = 0
        with self._path.open("rb") as file:
            for line in file:
                if sealed_number(line) is not None:
                    places[orjson.loads(line)["key"]] = start, len(line)
                elif line.endswith(b"}\n"):  # it is whole; others were cut off by a kill
                    damaged += 1
                start += len(line)
        if damaged:
            self._troubled(f"{damaged} of its lines are damaged")
        return places


# --- keys, and replies as texts -------------------------------------------------------------------


def _is_repeatable(request: ChatRequest, completion: Completion) -> bool:
    """Whether an equal call would get this reply, without the fields that the model refused."""
    if "seed" in completion.dropped:
        return request.temperature == 0 and "temperature" not in completion.dropped
    return request.seed is not None or "temperature" not in completion.dropped


# A reply does not depend on what a call is for, how long it may take and who listens. `call_key`
# adds the settings of the second line only if they are set.
_INDECISIVE = {"model", "role", "asks_again", "timeout_s", "priority", "on_text", "on_piece"}
_INDECISIVE |= {"allow_empty", *SAMPLING}
_DECISIVE = [part.name for part in fields(ChatRequest) if part.name not in _INDECISIVE]


def call_key(request: ChatRequest, *, identity: str) -> str:
    """A digest that two calls share if one reply answers both: SHA-256, hexadecimal."""
    schema = request.reply_schema
    content = {
        **{name: getattr(request, name) for name in _DECISIVE},
        **request.sampling,
        "format": _FORMAT,
        "top_logprobs": None,  # earlier versions had this field: their replies are under such keys
        "identity": identity,
        "messages": [_decisive_parts(message) for message in request.messages],
        "temperature": float(request.temperature),
        "frequency_penalty": float(request.frequency_penalty),
        # As written: the reply's fields follow its order.
        "reply_schema": None if schema is None else json_of(schema).decode(),
    }
    return hashlib.sha256(json_of(content, sort_keys=True)).hexdigest()


def _decisive_parts(turn: Message) -> list[object]:
    calls = [[call.id, call.name, call.arguments, call.extra] for call in turn.tool_calls]
    images = [image.digest for image in turn.images]
    layout = [turn.layout] if turn.layout else []  # keys from before there was one stay the same
    return [turn.role, turn.content, turn.extra, calls, turn.answers, images, *layout]


def reply_settings(endpoint: Endpoint) -> dict[str, object]:
    """The settings of an endpoint that change its replies, but for its address."""
    settings = endpoint.model_dump(mode="json", include=_DECIDES)
    for name in _NEWER:
        if not settings[name]:
            del settings[name]
    if endpoint.path is not None:
        settings["file"] = file_fingerprint(endpoint.path)
    return settings


def reply_identity(endpoint: Endpoint) -> str:
    """A text that two endpoints share only if they would reply alike; raises `ModelFileInvalid`."""
    # Another server may have the same name's weights packed in another way.
    settings = reply_settings(endpoint) | {"url": endpoint.url}
    return orjson.dumps(settings, option=orjson.OPT_SORT_KEYS).decode()


def _completion_as_text(completion: Completion) -> str:
    return json.dumps(
        completion, default=lambda part: {f.name: getattr(part, f.name) for f in fields(part)}
    )


def _read_completion(text: str | None) -> Completion | None:
    """A completion as it was kept; None if missing or unreadable."""
    try:
        return None if text is None else _COMPLETION.validate_python(json.loads(text))
    except ValueError:
        return None


def _answer_again(stored: Completion, request: ChatRequest, *, asked_ns: int) -> Completion:
    """The stored reply as the answer to a further call, which takes no time and costs nothing."""
    if request.on_text and stored.text:
        request.on_text(stored.text)
    return replace(
        stored,
        sent_ns=asked_ns,
        first_token_ns=None,
        phases=(),
        itl=None,
        cost_usd=None if stored.cost_usd is None else 0.0,
        cache_saved_usd=None,
        from_cache=True,
    )
