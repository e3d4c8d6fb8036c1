"""Fields that a model or its server refuses, found out once and then left out.

A call can do without a sampling field; that it was left out is recorded, since without it the reply
may be another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import get_args

from harness.errors import InferenceError, ServerError
from harness.inference.endpoint import SamplingField

_REFUSAL = re.compile(
    r"unsupported|not support|does not accept|not permitted|not allowed|unknown|unexpected|"
    r"unrecognized|forbidden|deprecated|extra inputs|cannot be (?:used|set|specified)|"
    r"only .*default",
    re.IGNORECASE,
)
_BELONGS_TO: Mapping[str, frozenset[str]] = {"logprobs": frozenset({"top_logprobs"})}
"""What goes when a field goes."""


class RefusedFields:
    """What is not sent to one model.

    Args:
        known: Fields known to be refused.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._refused: set[str] = set()
        for name in known:
            self._refuse(name)

    def without(self, fields: Mapping[str, object]) -> tuple[dict[str, object], tuple[str, ...]]:
        """The fields that may be sent, and the names of those that were dropped."""
        kept = {name: value for name, value in fields.items() if name not in self._refused}
        return kept, tuple(name for name in fields if name in self._refused)

    def learn(self, error: InferenceError, sent: Mapping[str, object]) -> bool:
        """Whether the error refuses a field that can be dropped, which it then will be."""
        if not isinstance(error, ServerError) or error.status not in {400, 422}:
            return False
        said = str(error)
        if not _REFUSAL.search(said):
            return False
        found = [
            name
            for name in get_args(SamplingField)
            if name in sent and re.search(rf"(?<![\w]){name}(?![\w])", said)
        ]
        for name in found:
            self._refuse(name)
        return bool(found)

    def _refuse(self, name: str) -> None:
        self._refused |= {name, *_BELONGS_TO.get(name, ())}
