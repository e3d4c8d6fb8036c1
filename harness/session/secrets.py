"""What must not reach a file: the values that are secret as far as anyone told us."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping
from urllib.parse import unquote, unquote_plus, urlsplit

from harness.inference import Endpoint
from harness.log import log_warning
from harness.trace.secrets import secret_values

_SECRET_PARAMETER = re.compile(
    r"key|token|secret|passw|auth|signature|credential|^(?:x-.*-)?sig$|^code$", re.IGNORECASE
)


def secret_variables(endpoints: Iterable[Endpoint], *, named: Collection[str]) -> tuple[str, ...]:
    """The variables that are secret because somebody says so, whatever their names.

    Args:
        endpoints: Name the variables of their keys.
        named: Further ones, as `[trace] secrets` has them.
    """
    keys = {key for one in endpoints for key in (one.api_key_env, one.control_key_env) if key}
    return tuple(sorted(keys.union(named)))


def known_secrets(
    endpoints: Iterable[Endpoint], *, environment: Mapping[str, str], named: Collection[str]
) -> frozenset[str]:
    """The values to keep out of everything that is written.

    Args:
        endpoints: Name the variables of their keys; their addresses may hold credentials.
        environment: Holds the values. Every variable whose name says so is secret too, since
            litellm reads its providers' keys from there.
        named: Further variables, as `[trace] secrets` has them. Of one that is not set there is
            nothing to hide, or its name is misspelt: a warning tells.
    """
    endpoints = tuple(endpoints)
    for name in named:
        if name not in environment:
            log_warning(
                "a variable of [trace] secrets is not set",
                code="trace.secret-not-set",
                variable=name,
            )
    values = secret_values(environment, named=secret_variables(endpoints, named=named))
    for endpoint in endpoints:
        if endpoint.url is not None:
            values.update(_credentials(endpoint.url))
    return frozenset(values)


def _credentials(url: str) -> set[str]:
    """What an address holds, as it stands there, as it is meant, and as a client sends it."""
    address = urlsplit(url)
    found = set()
    if address.username is not None:
        user, password = address.username, address.password
        # A name beside a password is none of it; a name alone is all there is.
        secret = user if password is None else password
        sent = b64encode(f"{unquote(user)}:{unquote(password or '')}".encode()).decode()
        found |= {secret, unquote(secret), sent, sent.rstrip("=")}
    for parameter in address.query.split("&"):
        name, _, value = parameter.partition("=")
        if _SECRET_PARAMETER.search(unquote(name)):
            found |= {value, unquote(value), unquote_plus(value)}
    return found - {""}
