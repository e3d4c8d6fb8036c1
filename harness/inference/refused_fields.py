"""Fields that a model or its server refuses: detected once, then left out.

A call works without a sampling field; the omission is recorded, since it may change the reply.
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
_NAMED = (
    r"['\"`]{name}['\"`]"
    r"|: (?:\w+, )*{name}\b"  # at the beginning, or in a list
    r"|\b(?:parameter|argument|field|property|body)\W{{1,4}}{name}\b"
    r"|\b{name} (?:parameter|argument|field|property)\b"
    r"|\b{name}="
)
"""How a field is named, and not merely mentioned: an error may quote the prompt."""
_ABOUT_A_SCHEMA = re.compile(r"schema|\bproperties\b", re.IGNORECASE)
"""A reply's schema may have a property of a field's name, and be refused for it."""
_BELONGS_TO: Mapping[str, frozenset[str]] = {"logprobs": frozenset({"top_logprobs"})}
"""What goes when a field goes."""
_OTHER_NAMES: Mapping[str, str] = {"max_tokens": "max_completion_tokens"}
"""What OpenAI's reasoning models call a field, and nothing else does."""


class RefusedFields:
    """What is not sent to one model.

    A call works without `droppable` fields.
    """

    def __init__(
        self,
        known: Iterable[str] = (),
        *,
        droppable: Iterable[str] = get_args(SamplingField),
    ) -> None:
        self._droppable = tuple(droppable)
        self._known = _with_what_belongs(known)
        self._learnt: set[str] = set()
        self._renamed: dict[str, str] = {}

    def without(self, fields: Mapping[str, object]) -> tuple[dict[str, object], tuple[str, ...]]:
        """The fields that may be sent, by their names there, and the dropped ones."""
        refused = self._known | self._learnt
        kept = {
            self._renamed.get(name, name): value
            for name, value in fields.items()
            if name not in refused
        }
        return kept, tuple(name for name in fields if name in refused)

    def learn(self, error: InferenceError, sent: Mapping[str, object]) -> bool:
        """Whether the error refuses a field that can be dropped or renamed, which it then will be.

        Where a request is refused for something else, what it was sent without may never have been
        what was wrong: it is forgotten, and a later call detects it again if needed.
        """
        if not isinstance(error, ServerError) or error.status not in {400, 422}:
            return False
        said = str(error)
        about_fields = not _ABOUT_A_SCHEMA.search(said)
        renamed = {
            name: other
            for name, other in _OTHER_NAMES.items()
            if about_fields and name in sent and _is_called(said, other)
        }
        refused = [
            name
            for name in self._droppable
            if about_fields and name in sent and _refuses(said, name)
        ]
        if re.search(r"\bboth\b", said):
            # Newer Claude models take one of `temperature` and `top_p`: the first may stay.
            refused = refused[1:] or refused
        if not renamed and not refused:
            self._learnt &= sent.keys()
            self._renamed = {n: other for n, other in self._renamed.items() if other not in sent}
            return False
        self._learnt |= _with_what_belongs(refused)
        self._renamed |= renamed
        return True


def _with_what_belongs(names: Iterable[str]) -> set[str]:
    return {each for name in names for each in (name, *_BELONGS_TO.get(name, ()))}


def _is_called(said: str, other: str) -> bool:
    return bool(re.search(rf"use '?{other}'? instead", said, re.IGNORECASE))


def _refuses(said: str, name: str) -> bool:
    named = rf"(?:{_NAMED.format(name=name)})"
    ways = (
        rf"{named}{_BESIDE}{_REFUSED}",
        rf"{_REFUSED}{_BESIDE}{named}",
        rf"{_REFUSED} (?:[\w-]+ )?{name}\b",
    )
    return any(re.search(way, said, re.IGNORECASE) for way in ways)
