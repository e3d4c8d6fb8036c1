"""Stored replies: the cache, a run's replies for its resume, and cached outputs of nodes.

All are texts by key in SQLite. A reply's key is derived from the request and the model.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import orjson
from pydantic import TypeAdapter

from harness.errors import ConfigurationInvalid, ModelFileInvalid, Notice
from harness.files import make_private
from harness.inference.completion import Completion
from harness.inference.endpoint import Endpoint
from harness.inference.model_identity import file_fingerprint
from harness.inference.request import ChatRequest, Message
from harness.inference.to_its_end import to_its_end
from harness.log import log_warning
from harness.trace import Clock, RunTrace
from harness.trace.journal import resolve

T = TypeVar("T")

_FORMAT = 1
"""Of keys and of stored completions: raise it with any change to either."""
_COMPLETION = TypeAdapter(Completion)
_OPTIONAL = ("reasoning_effort", "extra_body")
_NEWER = ("top_k", "presence_penalty", "headers", "query", *_OPTIONAL)
"""Settings that keys have only where they are set."""
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
"""The fields of an endpoint that decide its replies, beside its address and its file."""
_REPLIES_ENDING = ".replies.sqlite"
VARIATION = "~"
"""In the label of a call, before the number of its variation."""
OUTPUT_CACHE = "outputs.sqlite"
"""The name of the file of `StoredOutputs`, among the runs."""


class ReplyCache:
    """Replies to calls that are meant to be answered alike every time: greedy or seeded ones.

    It does not notice when a server comes to serve other weights by the same name. The store is
    closed with it.
    """

    def __init__(self, store: TextStore) -> None:
        self._store = store
        self._under_way: dict[str, asyncio.Future[bool]] = {}

    @asynccontextmanager
    async def slot(
        self, request: ChatRequest, *, identity: str, clock: Clock
    ) -> AsyncIterator[Slot]:
        """The place of a call's reply; `known` if an earlier call that was the same has one.

        Of equal calls at the same time one asks, and the others wait for its reply. If it is
        cancelled, the next one asks; if it fails, or its reply is not kept, each asks for itself.
        """
        slot = Slot()
        if request.temperature != 0 and request.seed is None:
            yield slot
            return
        key, asked_ns = call_key(request, identity=identity), clock()
        while (leader := self._under_way.get(key)) is not None:
            await asyncio.wait([leader])  # awaited by itself, it would be cancelled with this call
            if leader.result():
                break
        own = None
        if leader is None:
            own = self._under_way[key] = asyncio.get_running_loop().create_future()
        is_over = True
        try:
            known = _read_completion(await self._store.find(key))
            if known is not None:
                slot.known = _answer_again(known, request, asked_ns=asked_ns)
            yield slot
            if slot.reply is not None and _is_repeatable(request, slot.reply):
                self._store.keep(key, _completion_as_text(slot.reply))
        except (asyncio.CancelledError, GeneratorExit):
            is_over = False
            raise
        finally:
            if own is not None:
                del self._under_way[key]
                own.set_result(is_over)

    async def aclose(self) -> None:
        """Writes what is still unwritten."""
        await self._store.aclose()


class KeptReplies:
    """The replies of one run to calls of nodes that have not ended, for when it is resumed.

    A node's output is in the journal once the node has ended. The replies that it got until then
    are here: a resumed run asks for none of them again, sampled or greedy. The file lies beside the
    journal, and is deleted when the run is finished; a batch, which may go on changed, keeps it.

    Of two calls of one node that are the same, each has its own reply, in the order they were made.
    A reply that holds a secret is not kept. `resumed` says whether there may be replies of earlier
    parts; without `is_wanted`, replies stay in memory, for further attempts of a node. A reply is
    kept once its cost is in the `trace`. A label may end in `VARIATION` and a number, whose replies
    are others.

    Attributes:
        used_again: How many replies came from earlier parts.
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
        self._renewed: set[str] = set()
        """Keys of replies of this part to calls that were asked anew."""
        self._store = TextStore(
            self._path if is_wanted else None,  # in memory, for further attempts of this part
            unusable=lambda error: warn(
                Notice(
                    code="resume.replies-not-kept",
                    message=f"replies are not kept, so a resumed run repeats its calls: {error}",
                )
            ),
            # The record of their cost first, so that the run knows the price of all that is kept;
            # and at once, since a kill between the two has them asked and paid again.
            before=trace.flush,
        )

    @asynccontextmanager
    async def slot(self, request: ChatRequest, *, label: str) -> AsyncIterator[Slot]:
        """The place of one call's reply, which an earlier part of the run may have filled."""
        slot = Slot()
        call = label, call_key(request, identity=self._identity(request.model))
        # Before anything is awaited: calls that are made together differ only by their order.
        taken = self._taken[call]
        number = next(one for one in count(1) if one not in taken)
        taken.add(number)
        key = hashlib.sha256("\n".join([*call, str(number)]).encode()).hexdigest()
        node = label.partition(VARIATION)[0]
        is_anew = node in self._anew and key not in self._renewed
        if (self._resumed or node in self._begun_again) and not is_anew:
            asked_ns = self._trace.now_ns()
            known = _read_completion(await self._store.find(key))
            if known is not None and known.endpoint is not None:
                # A fallback answered, whose settings are no part of the key.
                same = await self._store.find(f"{key} by") == self._identity(known.endpoint)
                known = known if same else None
            if known is not None:
                self.used_again += 1
                slot.known = _answer_again(known, request, asked_ns=asked_ns)
        try:
            yield slot
        except BaseException:
            taken.remove(number)  # for the call that repeats this one
            raise
        if slot.reply is not None:
            if node in self._anew:
                self._renewed.add(key)
            await self._keep(key, slot.reply)

    def ask_anew(self, labels: Collection[str]) -> None:
        """Forgets the replies to these calls of nodes, which would fail again with them."""
        self._anew = labels

    def give_again(self, label: str) -> None:
        """Gives the call of a node the replies again that it got: it is made from its beginning."""
        self._begun_again.add(label)
        for call in [one for one in self._taken if one[0].partition(VARIATION)[0] == label]:
            del self._taken[call]

    def drop(self) -> None:
        """Has the file deleted on closing: there is nothing left to resume."""
        self._is_finished = True

    async def aclose(self) -> None:
        """Closes the file, and deletes it when there is nothing left to resume."""
        await self._store.aclose()
        if self._is_finished:
            for ending in ("", "-wal", "-shm", "-journal"):
                self._path.with_name(self._path.name + ending).unlink(missing_ok=True)

    async def _keep(self, key: str, reply: Completion) -> None:
        # The resumed run asks again for what a limit cut: it may have a higher one.
        # What a filter ended is nothing to give a further attempt.
        is_filtered = reply.finish_reason == "content_filter"
        if reply.cut_by is not None or is_filtered or self._holds_a_secret(reply):
            return
        texts = {key: _completion_as_text(reply)}
        if reply.endpoint is not None:
            texts[f"{key} by"] = self._identity(reply.endpoint)
        await self._store.keep_now(texts)

    def _identity(self, model: str) -> str:
        if model not in self._identities:
            endpoint = self._endpoints.get(model)
            try:
                identity = model if endpoint is None else reply_identity(endpoint)
            except ModelFileInvalid:
                return model  # its file is gone: the call will say so
            self._identities[model] = identity
        return self._identities[model]

    def _holds_a_secret(self, completion: Completion) -> bool:
        calls = completion.tool_calls
        extras = [json.dumps(extra) for extra in (completion.extra, *(c.extra for c in calls))]
        arguments = [call.arguments for call in calls]
        said = "\n".join((completion.text, completion.reasoning, *arguments, *extras))
        return self._trace.redactor.clean(said) != said


@dataclass(slots=True)
class Slot:
    """The place of one call's reply."""

    known: Completion | None = None
    """The reply of an earlier part of the run; None if the model has to be asked."""
    reply: Completion | None = None


class StoredOutputs:
    """Outputs of nodes over many runs, for nodes with a `Cache`; see `harness.graph.OutputCache`.

    The file is opened when a node first asks for an output. Where it cannot be, `warn` is told
    once, and nodes are called as without it. An output that holds a secret is not kept.
    """

    def __init__(
        self,
        path: Path,
        *,
        warn: Callable[[Notice], None],
        clean: Callable[[str], str] = str,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._store = TextStore(
            path,
            unusable=lambda error: warn(
                Notice(
                    code="cache.outputs-not-kept",
                    message=f"outputs are not kept for other runs: {error}",
                )
            ),
            clean=clean,
        )
        self._wall_s = wall_s

    async def find(self, key: str, *, max_age_s: float | None) -> bytes | None:
        """The output of this key, if it is not older than that."""
        text = await self._store.find(key)
        if text is None:
            return None
        stored_s, _, value = text.partition("\n")
        if max_age_s is not None and self._wall_s() - float(stored_s) > max_age_s:
            return None
        return value.encode()

    def keep(self, key: str, value: bytes) -> None:
        """Stores an output."""
        self._store.keep(key, f"{self._wall_s()}\n{value.decode()}")

    async def aclose(self) -> None:
        """Writes what is still unwritten."""
        await self._store.aclose()


# --- keys, and replies as texts -------------------------------------------------------------------


def _is_repeatable(request: ChatRequest, completion: Completion) -> bool:
    """Whether the reply would come again: a field that the model refuses may have made it so."""
    if "seed" in completion.dropped:
        return request.temperature == 0 and "temperature" not in completion.dropped
    return request.seed is not None or "temperature" not in completion.dropped


def call_key(request: ChatRequest, *, identity: str) -> str:
    """The same for two calls if one reply answers both: SHA-256, hexadecimal.

    What a call is for, how long it may take and who listens makes no difference.
    """
    schema = request.reply_schema
    content = {
        "format": _FORMAT,
        "identity": identity,
        "goes_on": request.goes_on,
        "messages": [_said(message) for message in request.messages],
        "max_output_tokens": request.max_output_tokens,
        "temperature": float(request.temperature),
        # Left out when they are not set: keys from before there were such fields stay the same.
        **request.sampling,
        "frequency_penalty": float(request.frequency_penalty),
        "seed": request.seed,
        "stop": request.stop,
        # As written: the reply's fields follow its order.
        "reply_schema": None if schema is None else orjson.dumps(schema).decode(),
        "top_logprobs": request.top_logprobs,
        **({"ignore_eos": True} if request.ignore_eos else {}),
        **{name: value for name in _OPTIONAL if (value := getattr(request, name)) is not None},
        **({"tools": request.tools, "tool_choice": request.tool_choice} if request.tools else {}),
    }
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _said(message: Message) -> list[object]:
    """What a message holds, without what it has not: its key is then as it was before tools."""
    more: tuple[object, ...] = ()
    if message.tool_calls or message.answers:
        calls = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in message.tool_calls]
        more = (calls, message.answers)
    beside: dict[str, object] = {}
    if message.images:
        beside["images"] = [image.digest for image in message.images]
    if message.extra_names:
        beside["extra"] = [message.extra, *(call.extra for call in message.tool_calls)]
    return [message.role, message.content, *more, *([beside] if beside else [])]


def reply_settings(endpoint: Endpoint) -> dict[str, object]:
    """The settings of an endpoint that change its replies, but for its address.

    Raises:
        ModelFileInvalid: Its file is not there.
    """
    said = endpoint.model_dump(mode="json", include=_DECIDES)
    for name in ("tools", *_NEWER):
        if not said[name]:
            del said[name]  # keys from before there was such a setting stay the same
    if endpoint.path is not None:
        said["file"] = file_fingerprint(endpoint.path)
    return said


def reply_identity(endpoint: Endpoint) -> str:
    """A text that two endpoints share only if they would reply alike.

    Raises:
        ModelFileInvalid: The file is not there.
    """
    # What another server has under the same name may be packed in another way.
    said = reply_settings(endpoint) | {"url": endpoint.url}
    return orjson.dumps(said, option=orjson.OPT_SORT_KEYS).decode()


def _completion_as_text(completion: Completion) -> str:
    return json.dumps(completion, default=_fields_of)


def _fields_of(part: Any) -> dict[str, object]:  # noqa: ANN401 - of a completion
    return {one.name: getattr(part, one.name) for one in fields(part)}


def _read_completion(text: str | None) -> Completion | None:
    """A completion as it was kept; None if missing or unreadable."""
    try:
        # Python's own json, as on writing: a log probability may be minus infinity.
        return None if text is None else _COMPLETION.validate_python(json.loads(text))
    except ValueError:
        return None


def _answer_again(known: Completion, request: ChatRequest, *, asked_ns: int) -> Completion:
    """The same reply, without what the call that it is from took and cost.

    The listener of the request is told.
    """
    if request.on_text and known.text:
        request.on_text(known.text)
    return replace(
        known,
        sent_ns=asked_ns,
        first_token_ns=None,
        phases=(),
        itl=None,
        cost_usd=None if known.cost_usd is None else 0.0,
        cache_saved_usd=None,
        from_cache=True,
    )


# --- the file -------------------------------------------------------------------------------------

_APPLICATION_ID = int.from_bytes(b"hrnc")
"""Tells the file from other programs' databases; `file` shows it too."""
_VERSION = 1
_BUSY_S = 5.0
"""Longest wait for another process that is writing."""


class TextStore:
    """Texts by key, in one SQLite file that several processes may share.

    It grows until the file is deleted. Not for network drives, on which SQLite's write-ahead log
    does not work. One thread reads and writes, so that no call waits for another. An error after
    the file was opened fails no call: it is logged once, and the model is asked. Without a path
    everything stays in memory. A text that `clean` takes a secret out of is not kept.

    With `unusable`, the file is opened when it is first needed; where it cannot be, `unusable` is
    told once, and nothing is kept.

    Raises:
        ConfigurationInvalid: The file cannot be opened, or is something else.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        clean: Callable[[str], str] = str,
        unusable: Callable[[ConfigurationInvalid], None] | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = path
        self._clean = clean
        self._before = before
        # What `keep_now` was given and is not written yet, and who waits for it.
        self._unwritten = deque[tuple[Mapping[str, str], asyncio.Future[None]]]()
        self._is_writing = False
        self._unusable = unusable
        self._db = _open(path) if unusable is None else None
        self._is_used = unusable is None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="text store")
        self._has_warned = False

    async def find(self, key: str) -> str | None:
        """The text of this key; None when there is none."""
        return await asyncio.wrap_future(self._soon(self._find, key))

    def keep(self, key: str, text: str) -> None:
        """Stores a text, soon: found from now on, written at the latest on closing."""
        self._soon(self._keep, {key: text})

    async def keep_now(self, texts: Mapping[str, str]) -> None:
        """Stores texts; returns when a killed process would not lose them.

        Those of calls that end together are written together. Who is cancelled does not wait.
        """
        loop = asyncio.get_running_loop()
        written = loop.create_future()
        self._unwritten.append((texts, written))
        if not self._is_writing:
            self._is_writing = True
            self._soon(self._write, loop)
        await written

    async def aclose(self) -> None:
        """Writes what is still to be written, and closes the file."""
        if self._is_used:
            await to_its_end(self._close, thread=self._thread)
        self._thread.shutdown(wait=False)

    def _soon(self, work: Callable[..., T], *arguments: object) -> Future[T]:
        """Does it in the store's thread, which first opens the file."""
        if not self._is_used:
            self._is_used = True
            self._thread.submit(self._open)
        return self._thread.submit(work, *arguments)

    def _open(self) -> None:
        try:
            self._db = _open(self._path)
        except ConfigurationInvalid as error:
            assert self._unusable is not None
            self._unusable(error)

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()

    def _find(self, key: str) -> str | None:
        if self._db is None:
            return None
        try:
            row = self._db.execute("SELECT text FROM reply WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            self._warn(
                "a reply cannot be looked up in the call cache", error, code="cache.not-read"
            )
            return None
        return row[0] if row else None

    def _write(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_writing = False  # before the rest: what comes from now on has its own turn
        waiting = [self._unwritten.popleft() for _ in range(len(self._unwritten))]
        try:
            self._before()
            self._keep({key: text for texts, _ in waiting for key, text in texts.items()})
        finally:
            with suppress(RuntimeError):  # the loop is closed by now
                loop.call_soon_threadsafe(resolve, [future for _, future in waiting])

    def _keep(self, texts: Mapping[str, str]) -> None:
        rows = [(key, text) for key, text in texts.items() if self._clean(text) == text]
        if self._db is None or not rows:
            return
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT OR REPLACE INTO reply VALUES (?, ?)", rows)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._db.rollback()
            self._warn("a reply cannot be kept in the call cache", error, code="cache.not-written")

    def _warn(self, what: str, error: sqlite3.Error, *, code: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            log_warning(what, code=code, path=str(self._path), error=str(error))


def _open(path: Path | None) -> sqlite3.Connection:
    with _translated(path):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            make_private(path)
        db = sqlite3.connect(
            path or ":memory:",
            timeout=_BUSY_S,
            isolation_level=None,  # every statement is its own transaction
            check_same_thread=False,  # opened here, used in the cache's thread alone
        )
    try:
        with _translated(path):
            _prepare(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, path: Path | None) -> None:
    # Another process may be making the same file at this moment.
    db.execute("BEGIN IMMEDIATE")
    application_id, version, tables = (
        db.execute(query).fetchone()[0]
        for query in (
            "PRAGMA application_id",
            "PRAGMA user_version",
            "SELECT count(*) FROM sqlite_master",
        )
    )
    if application_id == 0 and tables == 0:
        db.execute("CREATE TABLE reply (key TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID")
        db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {_VERSION}")
    elif application_id != _APPLICATION_ID:
        raise ConfigurationInvalid(
            "is another program's database; name another file for the call cache",
            code="cache.other-program",
            path=path,
        )
    elif version > _VERSION:
        raise ConfigurationInvalid(
            f"was written by a newer harness (version {version}; this one reads up to {_VERSION}); "
            "upgrade harness, or name another file for the call cache",
            code="cache.newer-version",
            path=path,
        )
    db.execute("COMMIT")
    db.execute("PRAGMA journal_mode = WAL")
    # The last replies may be lost when the power fails; nothing else.
    db.execute("PRAGMA synchronous = NORMAL")


@contextmanager
def _translated(path: Path | None) -> Iterator[None]:
    """What keeps the file from being opened, as this package's error."""
    try:
        yield
    except (sqlite3.OperationalError, OSError) as error:
        raise ConfigurationInvalid(
            f"the call cache cannot be opened ({error}); name a file that can be written to",
            code="cache.not-openable",
            path=path,
        ) from error
    except sqlite3.Error as error:
        raise ConfigurationInvalid(
            f"is not a call cache, or is damaged ({error}); delete it, or name another file",
            code="cache.damaged",
            path=path,
        ) from error
