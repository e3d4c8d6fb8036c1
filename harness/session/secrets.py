"""What must not reach a file: the values that are secret as far as anyone told us."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

from harness.inference import Endpoint

_SECRET_VARIABLE = re.compile(r"(API_?KEY|ACCESS_KEY|TOKEN|SECRET|PASSWORD)$")
_SECRET_PARAMETER = re.compile(r"key|token|secret|password|signature", re.IGNORECASE)


def known_secrets(
    endpoints: Iterable[Endpoint], *, environment: Mapping[str, str], named: Collection[str]
) -> frozenset[str]:
    """The values to keep out of everything that is written.

    Args:
        endpoints: Name the variables of their keys; their addresses may hold credentials.
        environment: Holds the values. Every variable whose name says so is secret too, since
            litellm reads its providers' keys from there.
        named: Further variables, as `[trace] secrets` has them.
    """
    variables = {*named, *(name for name in environment if _SECRET_VARIABLE.search(name.upper()))}
    values = set()
    for endpoint in endpoints:
        if endpoint.api_key_env is not None:
            variables.add(endpoint.api_key_env)
        if endpoint.url is not None:
            address = urlsplit(endpoint.url)
            if address.password is not None:
                values |= {address.password, unquote(address.password)}
            values |= {
                value for name, value in parse_qsl(address.query) if _SECRET_PARAMETER.search(name)
            }
    return frozenset(values | {environment[name] for name in variables if name in environment})
