"""Replies of real models, recorded once by a test and then replayed without models."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter

from harness.errors import ScriptMismatch
from harness.inference import Backend, ChatRequest, Client, Completion, ScriptedBackend
from harness.inference.call_spans import conversation_text
from harness.inference.reply_store import call_key
from harness.session import load_settings, open_shim
from harness.session.models import known_endpoints
from harness.session.settings import RoleTags
from harness.session.trust import known_secrets
from harness.trace import Redactor
from harness.trace.tracer import node_under_way

_COMPLETION = TypeAdapter(Completion)
# Fields of a reply that belong to the call that was recorded, and their values in a replay.
_OF_ITS_CALL = {"sent_ns": 0, "first_token_ns": None, "phases": (), "itl": None, "cost_usd": None}
# Fields of a request that a recording has elsewhere, or that do not matter to the reply.
_NOT_OPTIONS = {"model", "role", "messages", "timeout_s", "on_text", "on_piece"}
_DIFF_LINES = 40
_REMEDY = (
    "to record what your models say now, run the test with `pytest --harness-record`, or with the "
    "variable HARNESS_RECORD=1"
)


class Recording:
    """Replies from a file, in place of a `Script`. A call is found by its whole request.

    When it records, it calls the models of this directory's `harness.toml`, and writes the file
    again when the run has ended well. Secrets are masked; vectors are not recorded.

    Args:
        path: The file, to be kept with the tests: one line of JSON for each reply.
        record: Whether to record; the variable `HARNESS_RECORD=1` has the same effect.

    Attributes:
        mistake: The first call that had no reply; None if there was none.
    """

    def __init__(self, path: Path | str, *, record: bool = False) -> None:
        self.mistake: ScriptMismatch | None = None
        self._path = Path(path)
        self._record = record or os.environ.get("HARNESS_RECORD") == "1"
        self._lines: list[dict[str, Any]] = []  # of the file: first roles and models, then replies
        self._replies: dict[str, list[Mapping[str, Any]]] = {}  # of the file, by key
        self._replayed: Counter[str] = Counter()  # the number of calls so far, by key

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[Mapping[str, RoleTags], Mapping[str, Backend]]]:
        """The models by role, and the backends by model, for one run."""
        if not self._record:
            # The file is read once, since one test may run a pipeline several times.
            head = self._lines[0] if self._lines else self._read()
            backend = ScriptedBackend(self._find)
            yield head["roles"], _backends(head["models"], head["roles"], backend)
            return
        settings = load_settings(environment=os.environ)
        endpoints = known_endpoints(settings)
        named = [name for name in settings.trace.secrets if name in os.environ]
        secrets = known_secrets(endpoints.values(), environment=os.environ, named=named)
        head = {"roles": settings.roles, "models": [*endpoints]}
        self._lines = self._lines or [head]
        async with open_shim(settings=settings) as client:
            recorder = _Recorder(client, self._lines, Redactor(secrets))
            yield settings.roles, _backends(endpoints, settings.roles, recorder)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Sorted, since the order of the replies differs from run to run.
        lines = [head, *sorted(self._lines[1:], key=lambda line: str(line["node"]))]
        self._path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))

    def check(self) -> None:
        """Raises a `ScriptMismatch` if a call had no reply."""
        if self.mistake is not None:
            raise self.mistake

    def _read(self) -> dict[str, Any]:
        replies: dict[str, list[Mapping[str, Any]]] = {}
        try:
            head, *lines = map(orjson.loads, self._path.read_bytes().splitlines())
            roles = {
                role: tuple(tags) if isinstance(tags, list) else tags
                for role, tags in head["roles"].items()
            }
            head = {"roles": roles, "models": [*head["models"]]}
            for line in lines:
                replies.setdefault(line["key"], []).append(line["reply"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ScriptMismatch(
                f"is no recording ({error}); {_REMEDY}", path=self._path, code="script.no-recording"
            ) from error
        self._lines, self._replies = [head, *lines], replies
        return head

    def _find(self, request: ChatRequest) -> Completion:
        """The reply to a call; if several replies to it were recorded, the next of them."""
        key = _key(request)
        replies = self._replies.get(key, [])
        self._replayed[key] += 1
        if self._replayed[key] > len(replies):
            self.mistake = self.mistake or self._missing(request, times=len(replies))
            raise self.mistake
        return _reply(replies[self._replayed[key] - 1], request)

    def _missing(self, request: ChatRequest, *, times: int) -> ScriptMismatch:
        """The error for a call without a reply, with a diff to the most similar recorded call."""
        text = _request_text(request)
        recorded_texts = [line["asked"] for line in self._lines[1:] if line["role"] == request.role]
        # Not by `ratio`, whose time grows with the square of a prompt's length.
        similarities = {
            t: difflib.SequenceMatcher(None, t, text).quick_ratio() for t in recorded_texts
        }
        nearest = max(similarities, key=similarities.__getitem__, default="")
        lines = nearest.splitlines(), text.splitlines()
        diff = [*difflib.unified_diff(*lines, "recorded", "asked", n=1, lineterm="")]
        reason = f"it was recorded {times} times, and is asked once more" if times else "it is new"
        return ScriptMismatch(
            f"has no reply for a call of {node_under_way()} ({request.role}): {reason}; {_REMEDY}\n"
            + "\n".join(diff[:_DIFF_LINES]),
            path=self._path,
            code="script.not-recorded",
        )


class _Recorder(ScriptedBackend):
    """Sends calls to a client, and adds its replies to the lines of a recording."""

    def __init__(self, client: Client, lines: list[dict[str, Any]], redactor: Redactor) -> None:
        super().__init__([])
        self._client = client
        self._lines = lines
        self._redactor = redactor

    async def chat(self, request: ChatRequest) -> Completion:
        """Calls a model; returns the reply as a replay will return it."""
        reply = await self._client.chat(request)
        reply_fields = orjson.loads(orjson.dumps(asdict(reply)))
        line = {
            "node": node_under_way() or "",
            "role": request.role,
            "served_by": reply_fields.pop("model_id"),
            "asked": _request_text(request),
            # Without empty fields, which would only make diffs longer.
            "reply": {
                name: value
                for name, value in reply_fields.items()
                if value and name not in _OF_ITS_CALL
            },
        }
        cleaned: Any = self._redactor.clean_values(line)
        # The key is of the request with its secrets, since a replay computes it from that.
        self._lines.append({"key": _key(request), **cleaned})
        # Made from the line, so that the rest of the run is the same in a replay.
        return _reply(cleaned["reply"], request)


def _backends(
    tags: Iterable[str], roles: Mapping[str, RoleTags], backend: Backend
) -> dict[str, Backend]:
    """The backend by the tag of each endpoint, except endpoints named like a role of another."""
    # A backend with the name of a role would play that role.
    backends: dict[str, Backend] = {}
    for tag in tags:
        role_tags = roles.get(tag, tag)  # of the role that is named like the endpoint
        if role_tags == tag or not isinstance(role_tags, str):
            backends[tag] = backend
    return backends


def _reply(reply_fields: Mapping[str, Any], request: ChatRequest) -> Completion:
    empty = {"text": "", "reasoning": "", "usage": None, "model_id": request.model}
    return _COMPLETION.validate_python({**_OF_ITS_CALL, **empty, **reply_fields})


def _key(request: ChatRequest) -> str:
    return call_key(request, identity=f"{request.role} {request.model}")


def _request_text(request: ChatRequest) -> str:
    """The conversation and the options of a call as text, for people to compare."""
    options = {
        field.name: getattr(request, field.name)
        for field in fields(request)
        if field.name not in _NOT_OPTIONS and getattr(request, field.name) != field.default
    }
    texts = [f"{name} = {orjson.dumps(value).decode()}" for name, value in options.items()]
    return "\n".join([conversation_text(request.messages), "", *texts]).strip()
