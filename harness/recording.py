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
# What a reply has of the call that it came from, and another call has not.
_OF_ITS_CALL = {"sent_ns": 0, "first_token_ns": None, "phases": (), "itl": None, "cost_usd": None}
# Fields of a request that are told by themselves, or do not matter to the reply.
_UNSAID = {"model", "role", "messages", "timeout_s", "on_text", "on_piece"}
_DIFF_LINES = 40
_REMEDY = (
    "to record what your models say now, run the test with `pytest --harness-record`, or with the "
    "variable HARNESS_RECORD=1"
)


class Recording:
    """Answers from a file, in place of a `Script`. A call is found by all that it asks.

    To record it, the models of this directory's `harness.toml` are asked, and the file is written
    again when the run has ended well. Secrets are taken out of what it holds; vectors are not
    recorded.

    Args:
        path: The file, to be kept with the tests: one line of JSON for each reply.
        record: Whether to record; the variable `HARNESS_RECORD=1` says so too.

    Attributes:
        mistake: The first call that had no reply; None if there was none.
    """

    def __init__(self, path: Path | str, *, record: bool = False) -> None:
        self.mistake: ScriptMismatch | None = None
        self._path = Path(path)
        self._record = record or os.environ.get("HARNESS_RECORD") == "1"
        self._lines: list[dict[str, Any]] = []
        self._given: Counter[str] = Counter()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[Mapping[str, RoleTags], Mapping[str, Backend]]]:
        """Which model plays which role, and what answers for each model."""
        if not self._record:
            # One test may run a pipeline several times: the file is read once.
            head = self._lines[0] if self._lines else self._read()
            roles = {
                role: tuple(tags) if isinstance(tags, list) else tags
                for role, tags in head["roles"].items()
            }
            yield roles, _backends(head["models"], roles, ScriptedBackend(self._find))
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
        # Not in the order of the replies, which differs from time to time.
        lines = [head, *sorted(self._lines[1:], key=lambda line: str(line["node"]))]
        self._path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))

    def check(self) -> None:
        """Raises a `ScriptMismatch` if a call had no reply."""
        if self.mistake is not None:
            raise self.mistake

    def _read(self) -> dict[str, Any]:
        try:
            self._lines = [*map(orjson.loads, self._path.read_bytes().splitlines())]
            return self._lines[0]
        except (OSError, ValueError, IndexError) as error:
            raise ScriptMismatch(
                f"is no recording ({error}); {_REMEDY}",
                path=self._path,
                code="script.no-recording",
            ) from error

    def _find(self, request: ChatRequest) -> Completion:
        """The reply to a call; of several to the same call the next."""
        key = _key(request)
        replies = [line["reply"] for line in self._lines[1:] if line["key"] == key]
        self._given[key] += 1
        if self._given[key] > len(replies):
            self.mistake = self.mistake or self._missing(request, times=len(replies))
            raise self.mistake
        return _reply(replies[self._given[key] - 1], request)

    def _missing(self, request: ChatRequest, *, times: int) -> ScriptMismatch:
        conversation = _asked(request)
        recorded = [line["asked"] for line in self._lines[1:] if line["role"] == request.role]
        # Not `ratio`, whose time grows with the square of a prompt's length.
        likeness = [
            difflib.SequenceMatcher(None, text, conversation).quick_ratio() for text in recorded
        ]
        nearest = recorded[likeness.index(max(likeness))] if recorded else ""
        lines = nearest.splitlines(), conversation.splitlines()
        diff = [*difflib.unified_diff(*lines, "recorded", "asked", n=1, lineterm="")]
        why = f"it was recorded {times} times, and is asked once more" if times else "it is new"
        return ScriptMismatch(
            f"has no reply for a call of {node_under_way()} ({request.role}): {why}; {_REMEDY}\n"
            + "\n".join(diff[:_DIFF_LINES]),
            path=self._path,
            code="script.not-recorded",
        )


class _Recorder(ScriptedBackend):
    """Asks a client, and adds what it says to the lines of a recording."""

    def __init__(self, client: Client, lines: list[dict[str, Any]], redactor: Redactor) -> None:
        super().__init__([])
        self._client = client
        self._lines = lines
        self._redactor = redactor

    async def chat(self, request: ChatRequest) -> Completion:
        """The reply as it will be given again."""
        reply = await self._client.chat(request)
        fields_said = orjson.loads(orjson.dumps(asdict(reply)))
        line = {
            "node": node_under_way() or "",
            "role": request.role,
            "served_by": fields_said.pop("model_id"),
            "asked": _asked(request),
            # What is empty is not worth a place in a diff.
            "reply": {
                n: value for n, value in fields_said.items() if value and n not in _OF_ITS_CALL
            },
        }
        # The key is of the request as it is: a replay computes it from the same.
        cleaned: Any = self._redactor.clean_values(line)
        self._lines.append({"key": _key(request), **cleaned})
        # Read back: what follows from it is the same in a replay.
        return _reply(cleaned["reply"], request)


def _backends(
    tags: Iterable[str], roles: Mapping[str, RoleTags], backend: Backend
) -> dict[str, Backend]:
    """The backend for each endpoint, but for one that bears the name of another's role."""
    # As a backend that is given in code, such a one would play the role.
    return {
        tag: backend
        for tag in tags
        if not isinstance(played_by := roles.get(tag, tag), str) or played_by == tag
    }


def _reply(line: Mapping[str, Any], request: ChatRequest) -> Completion:
    empty = {"text": "", "reasoning": "", "usage": None, "model_id": request.model}
    return _COMPLETION.validate_python({**_OF_ITS_CALL, **empty, **line})


def _key(request: ChatRequest) -> str:
    return call_key(request, identity=f"{request.role} {request.model}")


def _asked(request: ChatRequest) -> str:
    """What a call asks, for people to compare."""
    options = {
        field.name: getattr(request, field.name)
        for field in fields(request)
        if field.name not in _UNSAID and getattr(request, field.name) != field.default
    }
    texts = [f"{name} = {orjson.dumps(value).decode()}" for name, value in options.items()]
    return "\n".join([conversation_text(request.messages), "", *texts]).strip()
