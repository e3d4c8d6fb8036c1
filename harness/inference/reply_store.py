"""Stored replies: the cache, and a run's replies for its resume.

Both are texts by key. A reply's key is derived from the request and the model.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, replace
from itertools import count
from pathlib import Path
from typing import TypeVar

import orjson
from pydantic import TypeAdapter

from harness.errors import ModelFileInvalid, Notice
from harness.inference.completion import Completion
from harness.inference.endpoint import Endpoint
from harness.inference.model_identity import file_fingerprint
from harness.inference.request import ChatRequest, Message
from harness.text_store import TextStore
from harness.threads import to_its_end
from harness.trace import Clock, RunTrace, events
from harness.trace.journal_line import dump_json, seal, sealed_number

T = TypeVar("T")

_FORMAT = 2  # of keys and of stored completions: raise it with any change to either
_COMPLETION = TypeAdapter(Completion)
# Settings that keys have only where they are set.
_NEWER = ("top_k", "presence_penalty", "headers", "query", "reasoning_effort", "extra_body")
# The fields of an endpoint that decide its replies, beside its address and its file.
_DECIDES = {
    "backend",
    "model_id",
    "context_tokens",
    "drop",
    "prompt_template",
    "structured",
    "tools",
    *_NEWER,
}
_REPLIES_ENDING = ".replies"
VARIATION = "~"  # in the label of a call, before the number of its variation


class ReplyCache:
    """Replies to calls that are meant to be answered alike every time: greedy or seeded ones.

    It does not notice if a server gets other weights of the same name. It closes the store, too.
    """

    def __init__(self, store: TextStore) -> None:
        self._store = store
        self._under_way: dict[str, asyncio.Future[bool]] = {}

    @asynccontextmanager
    async def slot(
        self, request: ChatRequest, *, identity: str, clock: Clock
    ) -> AsyncIterator[Slot]:
        """The place of a call's reply; `known` if an earlier call that was the same has one."""
        slot = Slot()
        # Asked for by chance: it is meant to differ every time.
        if request.temperature != 0 and request.seed is None:
            yield slot
            return
        key, asked_ns = call_key(request, identity=identity), clock()
        # One of several equal calls at the same time asks. If it is cancelled, the next one asks.
        while (leader := self._under_way.get(key)) is not None:
            await asyncio.wait([leader])  # awaited by itself, it would be cancelled with this call
            # It has its reply, which is stored now, or none that is: then each asks for itself.
            if leader.result():
                break
        lead = None
        if leader is None:
            lead = self._under_way[key] = asyncio.get_running_loop().create_future()
        is_over = True
        try:
            stored = _read_completion(await self._store.find(key))
            if stored is not None:
                slot.stored = _answer_again(stored, request, asked_ns=asked_ns)
            yield slot
            if slot.reply is not None and _is_repeatable(request, slot.reply):
                self._store.keep(key, _completion_as_text(slot.reply))
        except (asyncio.CancelledError, GeneratorExit):
            is_over = False
            raise
        finally:
            if lead is not None:
                del self._under_way[key]
                lead.set_result(is_over)

    async def aclose(self) -> None:
        """Writes what is still unwritten, and closes the store."""
        await self._store.aclose()


class KeptReplies:
    """The replies of one run to calls of nodes that have not ended, for when it is resumed.

    A node's output is in the journal once the node has ended. The replies that it got until then
    are here: a resumed run asks for none of them again, sampled or greedy. The file lies beside the
    journal, and is deleted when the run is finished; a batch, which may go on changed, keeps it.

    `resumed` says whether there may be replies of earlier parts; without `is_wanted`, replies stay
    in memory, for further attempts of a node. `used_again` is how many came from earlier parts.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        *,
        resumed: bool,
        is_wanted: bool,
        trace: RunTrace,
        warn: Callable[[Notice], None],
    ) -> None:
        self.used_again = 0
        self._path = trace.journal_path.with_suffix(_REPLIES_ENDING)
        self._endpoints = endpoints
        self._identities: dict[str, str] = {}
        self._is_finished = False
        self._resumed = resumed
        self._trace = trace
        self._taken: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self._anew: Collection[str] = ()
        self._begun_again: set[str] = set()
        # Keys of replies of this part to calls that were asked anew.
        self._renewed: set[str] = set()
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
        """The place of one call's reply, which an earlier part of the run may have filled."""
        slot = Slot()
        call = label, call_key(request, identity=self._identity(request.model))
        # 1. Its number among equal calls, before anything is awaited: calls that are made together
        #    differ only by their order, and each has its own reply.
        used = self._taken[call]
        number = next(candidate for candidate in count(1) if candidate not in used)
        used.add(number)
        key = hashlib.sha256("\n".join([*call, str(number)]).encode()).hexdigest()
        # 2. The reply that an earlier part got to it, unless it is to be asked anew.
        node = label.partition(VARIATION)[0]
        # An earlier part's reply failed this call; one that this part got is used again.
        is_anew = node in self._anew and key not in self._renewed
        if (self._resumed or node in self._begun_again) and not is_anew:
            asked_ns = self._trace.now_ns()
            stored = _read_completion(await self._log.find(key))
            if stored is not None and stored.endpoint is not None:
                # A fallback answered, whose settings are no part of the key.
                same = await self._log.find(f"{key} by") == self._identity(stored.endpoint)
                stored = stored if same else None
            if stored is not None:
                self.used_again += 1
                usage = stored.usage
                again = events.ReplyAgain(
                    model=request.model,
                    cost_usd=stored.cost_usd,
                    input_tokens=None if usage is None else usage.input_tokens,
                    output_tokens=None if usage is None else usage.output_tokens,
                )
                self._trace.instant(again)
                slot.stored = _answer_again(stored, request, asked_ns=asked_ns)
        # 3. The reply that it gets now.
        try:
            yield slot
        except BaseException:
            used.remove(number)  # for the call that repeats this one
            raise
        if slot.reply is not None:
            if node in self._anew:
                self._renewed.add(key)
            self._keep(key, slot.reply)

    def ask_anew(self, labels: Collection[str]) -> None:
        """Forgets the replies to these calls of nodes, which would fail again with them."""
        self._anew = labels

    def give_again(self, label: str) -> None:
        """Gives the call of a node the replies again that it got: it is made from its beginning."""
        self._begun_again.add(label)
        for call in [key for key in self._taken if key[0].partition(VARIATION)[0] == label]:
            del self._taken[call]

    def drop(self) -> None:
        """Has the file deleted on closing: there is nothing left to resume."""
        self._is_finished = True

    def close(self) -> None:
        """Closes the file, and deletes it when there is nothing left to resume."""
        self._log.close()
        if self._is_finished:
            self._path.unlink(missing_ok=True)

    def _keep(self, key: str, reply: Completion) -> None:
        # The resumed run asks again for what a limit cut: it may have a higher one.
        # A reply that a filter ended is of no use to a further attempt.
        if reply.cut_by is not None or reply.finish_reason == "content_filter":
            return
        texts = {key: _completion_as_text(reply)}
        if self._trace.redactor.clean(texts[key]) != texts[key]:
            return  # it holds a secret
        if reply.endpoint is not None:
            texts[f"{key} by"] = self._identity(reply.endpoint)
        # The record of their cost first, so that the run knows the price of all that is kept, and
        # both at once: a kill between the two has them asked and paid again.
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

    A text is a line with a checksum, in a private file that is made when there is the first.
    `troubled` is told once why texts cannot be kept, or how many were damaged.
    """

    def __init__(self, path: Path | None, *, troubled: Callable[[str], None]) -> None:
        self._path = path
        self._troubled = troubled
        self._descriptor: int | None = None
        self._size = 0
        self._is_usable = True
        self._is_read = False
        self._reading = asyncio.Lock()
        # By key, where the latest line of it begins, and its length.
        self._places: dict[str, tuple[int, int]] = {}
        self._texts: dict[str, str] = {}  # by key, if there is no file

    async def find(self, key: str) -> str | None:
        """The text of this key; None when there is none."""
        if self._path is None:
            return self._texts.get(key)
        async with self._reading:
            if not self._is_read:
                try:
                    if self._path.exists():
                        # By the loop, as `keep` does: two would not know where it ends.
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
            # Not a database: for a short run, that costs more than all the rest.
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
        """The places of what earlier parts of the run kept."""
        places: dict[str, tuple[int, int]] = {}
        assert self._path is not None
        start = damaged = 0
        with self._path.open("rb") as file:
            for line in file:
                if sealed_number(line) is not None:
                    places[orjson.loads(line)["key"]] = start, len(line)
                elif line.endswith(b"}\n"):  # a kill may have cut off others
                    damaged += 1
                start += len(line)
        if damaged:
            self._troubled(f"{damaged} of its lines are damaged")
        return places


# --- keys, and replies as texts -------------------------------------------------------------------


def _is_repeatable(request: ChatRequest, completion: Completion) -> bool:
    """Whether the reply would come again: a field that the model refuses may have made it so."""
    if "seed" in completion.dropped:
        return request.temperature == 0 and "temperature" not in completion.dropped
    return request.seed is not None or "temperature" not in completion.dropped


# What a call is for, how long it may take and who listens makes no difference; settings of the
# second line are in a key only where they are set.
_INDECISIVE = {"model", "role", "asks_again", "timeout_s", "priority", "on_text", "on_piece"}
_INDECISIVE |= {"allow_empty", "top_p", "top_k", "min_p", "presence_penalty"}
_DECISIVE = [part.name for part in fields(ChatRequest) if part.name not in _INDECISIVE]


def call_key(request: ChatRequest, *, identity: str) -> str:
    """The same for two calls if one reply answers both: SHA-256, hexadecimal."""
    schema = request.reply_schema
    content = {
        **{name: getattr(request, name) for name in _DECISIVE},
        **request.sampling,
        "format": _FORMAT,
        "top_logprobs": None,  # a field of earlier versions, without which no kept reply is found
        "identity": identity,
        "messages": [_decisive_parts(message) for message in request.messages],
        "temperature": float(request.temperature),
        "frequency_penalty": float(request.frequency_penalty),
        # As written: the reply's fields follow its order.
        "reply_schema": None if schema is None else orjson.dumps(schema).decode(),
    }
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _decisive_parts(m: Message) -> list[object]:
    calls = [[call.id, call.name, call.arguments, call.extra] for call in m.tool_calls]
    images = [image.digest for image in m.images]
    layout = [m.layout] if m.layout else []  # keys from before there was one stay the same
    return [m.role, m.content, m.extra, calls, m.answers, images, *layout]


def reply_settings(endpoint: Endpoint) -> dict[str, object]:
    """The settings of an endpoint that change its replies, but for its address."""
    settings = endpoint.model_dump(mode="json", include=_DECIDES)
    for name in ("tools", *_NEWER):
        if not settings[name]:
            del settings[name]  # keys from before there was such a setting stay the same
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
    """The same reply, without what the call that it is from took and cost."""
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
