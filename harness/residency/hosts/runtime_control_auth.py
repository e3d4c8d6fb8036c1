"""How requests to TensorRT-LLM's control pages are signed: HMAC-SHA256, with a shared key.

From its docs/source/features/sleep-wakeup.md and tensorrt_llm/serve/runtime_control_auth.py. The
feature is a prototype, and its signature changed in 2026: first only the body was signed, then a
text that also names the page, the time and a nonce, so that no request can be sent twice.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final

_SIGNATURE: Final = "x-trtllm-runtime-control-auth"
_TIMESTAMP: Final = "x-trtllm-runtime-control-timestamp"
_NONCE: Final = "x-trtllm-runtime-control-nonce"


def signed_headers(
    key: str,
    *,
    method: str,
    path: str,
    body: bytes = b"",
    now_s: Callable[[], float] = time.time,
    nonce: Callable[[], str] = lambda: secrets.token_hex(16),
) -> Mapping[str, str]:
    """The headers of one request; they are good for one, and for five minutes.

    Args:
        key: The server's `TRTLLM_RUNTIME_CONTROL_API_KEY`.
        method: `GET` or `POST`.
        path: The page, from its slash on, without a query.
        body: As it is sent; empty for none.
        now_s: Seconds since 1970.
        nonce: 32 hexadecimal digits, others each time.
    """
    timestamp, once = str(int(now_s())), nonce()
    signed = f"trtllm-runtime-control-v1\n{method}\n{path}\n{timestamp}\n{once}\n".encode() + body
    return {_SIGNATURE: _signature(key, signed), _TIMESTAMP: timestamp, _NONCE: once}


def early_signed_headers(key: str, *, body: bytes = b"") -> Mapping[str, str]:
    """The same for servers of the first versions, which sign the body alone."""
    return {_SIGNATURE: _signature(key, body)}


def _signature(key: str, signed: bytes) -> str:
    return "sha256=" + hmac.new(key.encode(), signed, hashlib.sha256).hexdigest()
