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

_REFUSED = (
    r"(?:unsupported|not support(?:ed)?\b|n't support|not accept(?:ed)?\b|not permitted|"
    r"not allowed|unknown|unexpected|unrecogni[sz]ed|forbidden|deprecated|extra inputs|"
    r"cannot (?:both )?be (?:used|set|specified)|only be set to|only available|available only)"
)
_BESIDE = r"[^.]{0,60}"
"""What may stand between a field's name and the word that refuses it: not another sentence."""
_ABOUT_A_SCHEMA = re.compile(r"schema|\bproperties\b", re.IGNORECASE)
"""A reply's schema may have a property of a field's name, and be refused for it."""
_BELONGS_TO: Mapping[str, frozenset[str]] = {"logprobs": frozenset({"top_logprobs"})}
"""What goes when a field goes."""
_OTHER_NAMES: Mapping[str, str] = {"max_tokens": "max_completion_tokens"}
"""What OpenAI's reasoning models call a field, and nothing else does."""


class RefusedFields:
    """What is not sent to one model.

    Args:
        known: Fields known to be refused.
        droppable: Fields that a call can do without.
    """

    def __init__(
        self,
        known: Iterable[str] = (),
        *,
        droppable: Iterable[str] = get_args(SamplingField),
    ) -> None:
        self._droppable = tuple(droppable)
        self._refused: set[str] = set()
        self._renamed: dict[str, str] = {}
        for name in known:
            self._refuse(name)

    def without(self, fields: Mapping[str, object]) -> tuple[dict[str, object], tuple[str, ...]]:
        """The fields that may be sent, by their names there, and those that were dropped."""
        kept = {
            self._renamed.get(name, name): value
            for name, value in fields.items()
            if name not in self._refused
        }
        return kept, tuple(name for name in fields if name in self._refused)

    def learn(self, error: InferenceError, sent: Mapping[str, object]) -> bool:
        """Whether the error refuses a field that can be dropped or renamed, which it then will be.

        Args:
            error: What the call ended in.
            sent: The fields it was made with.
        """
        if not isinstance(error, ServerError) or error.status not in {400, 422}:
            return False
        said = str(error)
        if _ABOUT_A_SCHEMA.search(said):
            return False
        renamed = {
            name: other
            for name, other in _OTHER_NAMES.items()
            if name in sent and re.search(rf"use '?{other}'? instead", said, re.IGNORECASE)
        }
        refused = [name for name in self._droppable if name in sent and _refuses(said, name)]
        self._renamed |= renamed
        for name in refused:
            self._refuse(name)
        return bool(renamed or refused)

    def _refuse(self, name: str) -> None:
        self._refused |= {name, *_BELONGS_TO.get(name, ())}


def _refuses(said: str, name: str) -> bool:
    field = rf"(?<!\w){name}(?!\w)"
    return bool(
        re.search(rf"{_REFUSED}{_BESIDE}{field}|{field}{_BESIDE}{_REFUSED}", said, re.IGNORECASE)
    )
