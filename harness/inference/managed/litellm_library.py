"""litellm itself: imported when it is needed, and told of the call it makes."""

from __future__ import annotations

import os
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import httpx

from harness.errors import NotTrusted
from harness.inference.endpoint import Endpoint
from harness.inference.managed.finish_word import FinishWord


@dataclass(slots=True, kw_only=True)
class HttpCall:
    """What the HTTP client under litellm and its caller tell each other past litellm."""

    endpoint: Endpoint
    """Who is called. What its address has as its query, litellm is not told: it would add paths to
    it."""
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


def import_litellm() -> Any:  # noqa: ANN401 - litellm's own types are incomplete
    """The module, without network and noise, and nothing read from files called `.env`.

    Takes 1.4 s the first time.
    """
    # Unless told otherwise it fetches price lists and header lists from the network, and puts what
    # a .env file in any directory above it says into this process's environment.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS", "True")
    os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
    import litellm  # noqa: PLC0415

    from harness.inference.managed.litellm_connections import (  # noqa: PLC0415
        CLIENT,
        CarefulCache,
    )

    litellm.telemetry = False
    litellm.suppress_debug_info = True
    # A hundred equal pieces in a row are a table's line as often as a model that is stuck.
    litellm.REPEATED_STREAMING_CHUNK_LIMIT = 1_000_000_000  # type: ignore[attr-defined]
    # aiohttp's sessions complain when the process ends, and httpx is what we make careful.
    litellm.disable_aiohttp_transport = True
    litellm.aclient_session = CLIENT
    if not isinstance(litellm.in_memory_llm_clients_cache, CarefulCache):
        litellm.in_memory_llm_clients_cache = CarefulCache()
    # What it does on every call, and nobody here can change.
    warnings.filterwarnings(
        "ignore",
        message=r"Accessing the 'model_(computed_)?fields' attribute on the instance",
        category=DeprecationWarning,
        module=r"litellm\.",
    )
    warnings.filterwarnings(
        "ignore", message=r"Item '\w+' on TypedDict class 'ChatCompletion", category=UserWarning
    )
    return litellm
