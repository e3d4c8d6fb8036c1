"""One call by way of litellm: what its HTTP client and its caller tell each other past litellm."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import httpx
import orjson

from harness.errors import NotTrusted
from harness.inference.endpoint import Endpoint


class FinishWord:
    """Looks for it in what came over the wire, in OpenAI's format and in Anthropic's."""

    def __init__(self) -> None:
        self._has_place = False
        self._word: str | None = None

    def look_in(self, body: bytes) -> None:
        """Looks in a reply, or in one event of a stream."""
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError:
            return  # an event of another kind, such as [DONE]; what is no reply, litellm refuses
        match value:
            case {"choices": [{"index": int(index)}, *_]} if index:
                pass  # a second reply, which was not asked for
            case (
                {"choices": [{"finish_reason": str(word)}, *_]}
                | {"type": "message", "stop_reason": str(word)}
                | {"type": "message_delta", "delta": {"stop_reason": str(word)}}
            ):
                self._has_place = True
                self._word = word or self._word
            case {"choices": [{}, *_]}:
                self._has_place = True

    def or_else(self, translated: str | None) -> str | None:
        """The word; in other formats, what litellm made of it."""
        return self._word if self._has_place else translated


@dataclass(slots=True, kw_only=True)
class HttpCall:
    """What the HTTP client under litellm and its caller tell each other past litellm."""

    endpoint: Endpoint
    """Whose model is called. litellm does not get the query of its address, to which it would add
    paths."""
    check_address: Callable[[str], None]
    """Raises `NotTrusted` for an address that nothing may be sent to."""
    refusal: NotTrusted | None = None
    """What it raised."""
    responses: list[httpx.Response] = field(default_factory=list)
    """What was answered; closed when the call is over, however it ends."""
    finish_word: FinishWord = field(default_factory=FinishWord)
    """How the reply ended, by the provider's word."""


HTTP_CALL: ContextVar[HttpCall | None] = ContextVar("HTTP_CALL", default=None)
"""The call under way."""


@asynccontextmanager
async def http_call(
    endpoint: Endpoint, *, check_address: Callable[[str], None]
) -> AsyncIterator[HttpCall]:
    """The block in which litellm makes a call.

    Raises:
        NotTrusted: It was about to send something where nothing may be sent.
    """
    call = HttpCall(endpoint=endpoint, check_address=check_address)
    token = HTTP_CALL.set(call)
    try:
        yield call
    except Exception:
        # litellm makes an error of its own of it, and says less.
        if call.refusal is None:
            raise
        raise call.refusal from None
    finally:
        HTTP_CALL.reset(token)
        for response in call.responses:
            await response.aclose()
