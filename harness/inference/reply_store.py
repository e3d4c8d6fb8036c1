"""Stored replies: the cache, a run's replies for its resume, and cached outputs of nodes.

All are texts by key in SQLite. A reply's key is derived from the request and the model.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path

import orjson
from pydantic import TypeAdapter

from harness.errors import ConfigurationInvalid, ModelFileInvalid, Notice
from harness.files import make_private
from harness.inference.completion import Completion
from harness.inference.endpoint import Endpoint
from harness.inference.request import ChatRequest, Message
from harness.inference.to_its_end import to_its_end
from harness.log import log_warning
from harness.trace import RunTrace

_FORMAT = 1
"""Of keys and of stored completions: raise it with any change to either."""
_COMPLETION = TypeAdapter(Completion)
_DECIDES = {
    "backend",
    "url",
    "model_id",
    "context_tokens",
    "drop",
    "prompt_template",
    "structured",
    "tools",
}
"""The fields of an endpoint that decide its replies, beside the file."""
_REPLIES_ENDING = ".replies.sqlite"
OUTPUT_CACHE = "outputs.sqlite"
"""The name of the file of `StoredOutputs`, among the runs."""


class ReplyCache:
    """Replies to calls that are meant to be answered alike every time: greedy or seeded ones.

    It does not notice when a server comes to serve other weights by the same name. The store is
    closed with it.
    """

    def __init__(self, store: TextStore) -> None:
        self._store = store

    async def find(
        self, request: ChatRequest, *, identity: str, asked_ns: int
    ) -> Completion | None:
        """The reply to an earlier call that was the same; None if there was none."""
        if not _is_meant_to_repeat(request):
            return None
        known = _read_completion(await self._store.find(call_key(request, identity=identity)))
        return None if known is None else _answer_again(known, request, asked_ns=asked_ns)

    def keep(self, request: ChatRequest, completion: Completion, *, identity: str) -> None:
        """Keeps a reply that would come again."""
        if _is_meant_to_repeat(request) and _is_repeatable(request, completion):
            self._store.keep(call_key(request, identity=identity), _completion_as_text(completion))

    async def aclose(self) -> None:
        """Writes what is still unwritten."""
        await self._store.aclose()


class KeptReplies:
    """The replies of one run to calls of nodes that have not ended, for when it is resumed.

    A node's output is in the journal once the node has ended. The replies that it got until then
    are here: a resumed run asks for none of them again, sampled or greedy. The file lies beside the
    journal, and is deleted when the run is finished.

    Of two calls of one node that are the same, each has its own reply, in the order they were made.
    A reply that holds a secret is not kept. `resumed` says whether there may be replies of earlier
    parts, `is_wanted` whether any are to be kept. A reply is kept once its cost is in the `trace`.

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
        self._is_finished = False
        self._resumed = resumed
        self._trace = trace
        self._taken: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self._anew: Collection[str] = ()
        self._begun_again: set[str] = set()
        self._is_wanted = is_wanted
        self._file = _LateStore(
            self._path,
            unusable=lambda error: warn(
                Notice(
                    code="resume.replies-not-kept",
                    message=f"replies are not kept, so a resumed run repeats its calls: {error}",
                )
            ),
        )

    @asynccontextmanager
    async def slot(self, request: ChatRequest, *, label: str) -> AsyncIterator[Slot]:
        """The place of one call's reply, which an earlier part of the run may have filled."""
        slot = Slot()
        store = self._file.opened() if self._is_wanted else None
        if store is None:
            yield slot
            return
        call = label, call_key(request, identity=self._identity(request.model))
        # Before anything is awaited: calls that are made together differ only by their order.
        taken = self._taken[call]
        number = next(one for one in count(1) if one not in taken)
        taken.add(number)
        key = hashlib.sha256("\n".join([*call, str(number)]).encode()).hexdigest()
        if label in self._begun_again or (self._resumed and label not in self._anew):
            asked_ns = self._trace.now_ns()
            known = _read_completion(await store.find(key))
            if known is not None:
                self.used_again += 1
                slot.known = _answer_again(known, request, asked_ns=asked_ns)
        try:
            yield slot
        except BaseException:
            taken.remove(number)  # for the call that repeats this one
            raise
        if slot.reply is not None:
            await self._keep(store, key, slot.reply)

    def ask_anew(self, labels: Collection[str]) -> None:
        """Forgets the replies to these calls of nodes, which would fail again with them."""
        self._anew = labels

    def give_again(self, label: str) -> None:
        """Gives the call of a node the replies again that it got: it is made from its beginning."""
        self._begun_again.add(label)
        for call in [one for one in self._taken if one[0] == label]:
            del self._taken[call]

    def drop(self) -> None:
        """Has the file deleted on closing: there is nothing left to resume."""
        self._is_finished = True

    async def aclose(self) -> None:
        """Closes the file, and deletes it when there is nothing left to resume."""
        await self._file.aclose()
        if self._is_finished:
            for path in self._path.parent.glob(f"{self._path.name}*"):
                path.unlink(missing_ok=True)

    async def _keep(self, store: TextStore, key: str, reply: Completion) -> None:
        # The resumed run asks again for what a limit cut: it may have a higher one.
        if reply.cut_by is not None or self._holds_a_secret(reply):
            return
        text = _completion_as_text(reply)
        try:
            # The record of its cost first, so that the run knows the price of all that is kept; and
            # at once, since a kill between the two has it asked and paid again.
            self._trace.flush()
            await store.keep_now(key, text)
        except asyncio.CancelledError:
            store.keep(key, text)  # paid for, although the node's call was ended meanwhile
            raise

    def _identity(self, model: str) -> str:
        endpoint = self._endpoints.get(model)
        try:
            return model if endpoint is None else reply_identity(endpoint)
        except ModelFileInvalid:
            return model  # its file is gone: the call will say so

    def _holds_a_secret(self, completion: Completion) -> bool:
        arguments = (call.arguments for call in completion.tool_calls)
        said = "\n".join((completion.text, completion.reasoning, *arguments))
        return self._trace.redactor.clean(said) != said


class Slot:
    """The place of one call's reply.

    Attributes:
        known: The reply of an earlier part of the run; None if the model has to be asked.
        reply: The model's reply, to be kept.
    """

    def __init__(self) -> None:
        self.known: Completion | None = None
        self.reply: Completion | None = None


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
        self._file = _LateStore(
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
        store = self._file.opened()
        text = await store.find(key) if store is not None else None
        if text is None:
            return None
        stored_s, _, value = text.partition("\n")
        if max_age_s is not None and self._wall_s() - float(stored_s) > max_age_s:
            return None
        return value.encode()

    def keep(self, key: str, value: bytes) -> None:
        """Stores an output."""
        store = self._file.opened()
        if store is not None:
            store.keep(key, f"{self._wall_s()}\n{value.decode()}")

    async def aclose(self) -> None:
        """Writes what is still unwritten."""
        await self._file.aclose()


# --- keys, and replies as texts -------------------------------------------------------------------


def _is_meant_to_repeat(request: ChatRequest) -> bool:
    return request.temperature == 0 or request.seed is not None


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
        **request.cutoffs,
        "frequency_penalty": float(request.frequency_penalty),
        "seed": request.seed,
        "stop": request.stop,
        # As written: the reply's fields follow its order.
        "reply_schema": None if schema is None else orjson.dumps(schema).decode(),
        "top_logprobs": request.top_logprobs,
        **({"ignore_eos": True} if request.ignore_eos else {}),
        **({"tools": request.tools, "tool_choice": request.tool_choice} if request.tools else {}),
    }
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _said(message: Message) -> list[object]:
    """What a message holds, without what it has not: its key is then as it was before tools."""
    more: tuple[object, ...] = ()
    if message.tool_calls or message.answers:
        more = (message.tool_calls, message.answers)
    images = ({"images": [image.digest for image in message.images]},) if message.images else ()
    return [message.role, message.content, *more, *images]


def reply_identity(endpoint: Endpoint) -> str:
    """A text that two endpoints share only if they would reply alike.

    A file is known by its place, size and time of change.

    Raises:
        ModelFileInvalid: The file is not there.
    """
    said = endpoint.model_dump(mode="json", include=_DECIDES)
    if endpoint.tools is None:
        del said["tools"]  # keys from before there was such a setting stay the same
    if endpoint.path is not None:
        try:
            file = endpoint.path.stat()
        except OSError as error:
            raise ModelFileInvalid(
                f"cannot be read ({error.strerror})", path=endpoint.path
            ) from error
        said["file"] = [str(endpoint.path.resolve()), file.st_size, file.st_mtime_ns]
    return orjson.dumps(said, option=orjson.OPT_SORT_KEYS).decode()


def _completion_as_text(completion: Completion) -> str:
    return json.dumps(asdict(completion))


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

    Raises:
        ConfigurationInvalid: The file cannot be opened, or is something else.
    """

    def __init__(self, path: Path | None, *, clean: Callable[[str], str] = str) -> None:
        self._path = path
        self._clean = clean
        self._db = _open(path)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="text store")
        self._has_warned = False

    async def find(self, key: str) -> str | None:
        """The text of this key; None when there is none."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._find, key)

    def keep(self, key: str, text: str) -> None:
        """Stores a text, soon: found from now on, written at the latest on closing."""
        self._thread.submit(self._keep, key, text)

    async def keep_now(self, key: str, text: str) -> None:
        """Stores a text; returns when a killed process would not lose it."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._keep, key, text)

    async def aclose(self) -> None:
        """Writes what is still to be written, and closes the file."""
        self._thread.submit(self._db.close)
        await to_its_end(self._thread.shutdown)

    def _find(self, key: str) -> str | None:
        try:
            row = self._db.execute("SELECT text FROM reply WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            self._warn(
                "a reply cannot be looked up in the call cache", error, code="cache.not-read"
            )
            return None
        return row[0] if row else None

    def _keep(self, key: str, text: str) -> None:
        if self._clean(text) != text:
            return
        try:
            self._db.execute("INSERT OR REPLACE INTO reply VALUES (?, ?)", (key, text))
        except sqlite3.Error as error:
            self._warn("a reply cannot be kept in the call cache", error, code="cache.not-written")

    def _warn(self, what: str, error: sqlite3.Error, *, code: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            log_warning(what, code=code, path=str(self._path), error=str(error))


class _LateStore:
    """A `TextStore` that is opened when it is needed; `unusable` is told once if it cannot be."""

    def __init__(
        self,
        path: Path,
        *,
        unusable: Callable[[ConfigurationInvalid], None],
        clean: Callable[[str], str] = str,
    ) -> None:
        self._path = path
        self._unusable = unusable
        self._clean = clean
        self._store: TextStore | None = None
        self._was_opened = False

    def opened(self) -> TextStore | None:
        if not self._was_opened:
            self._was_opened = True
            try:
                self._store = TextStore(self._path, clean=self._clean)
            except ConfigurationInvalid as error:
                self._unusable(error)
        return self._store

    async def aclose(self) -> None:
        if self._store is not None:
            await self._store.aclose()


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
