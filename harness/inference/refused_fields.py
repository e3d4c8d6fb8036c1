"""Fields that a model or its server refuses: detected once, then left out."""

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
# What may stand between a field's name and the word that refuses it: not another sentence.
_BESIDE = r"[^.]{0,60}"
# How a field is named, and not merely mentioned: an error may quote the prompt.
_NAMED = (
    r"['\"`]{name}['\"`]"
    r"|: (?:\w+, )*{name}\b"  # at the beginning, or in a list
    r"|\b(?:parameter|argument|field|property|body)\W{{1,4}}{name}\b"
    r"|\b{name} (?:parameter|argument|field|property)\b"
    r"|\b{name}="
)
# A reply's schema may have a property of a field's name, and be refused for it.
_ABOUT_A_SCHEMA = re.compile(r"schema|\bproperties\b", re.IGNORECASE)
_ROOM, _OTHER_ROOM = "max_tokens", "max_completion_tokens"
"""The field for the room of a reply, and its name for OpenAI's reasoning models alone."""
_RENAMED = re.compile(rf"use '?{_OTHER_ROOM}'? instead", re.IGNORECASE)
_THINKING = ("think", "thinking", "enable_thinking", "reasoning", "chat_template_kwargs")
"""Fields by which servers take how much a model thinks."""


class RefusedFields:
    """The fields that one model is not sent: `dropped` ones, and refused ones of `_droppable`."""

    def __init__(self, dropped: Iterable[str] = (), *, droppable: Iterable[str] = ()) -> None:
        self._droppable = (*get_args(SamplingField), *_THINKING, *droppable)
        self._dropped = frozenset(dropped)
        self._refused: set[str] = set()
        self._renames = False  # whether `_ROOM` is sent as `_OTHER_ROOM`

    def without(self, fields: Mapping[str, object]) -> tuple[dict[str, object], tuple[str, ...]]:
        """The fields that may be sent, by the server's names, and the names of the dropped ones."""
        refused = self._dropped | self._refused
        sent = {name: value for name, value in fields.items() if name not in refused}
        if self._renames and _ROOM in sent:
            sent[_OTHER_ROOM] = sent.pop(_ROOM)
        # The names are recorded: a call works without a sampling field, but gets another reply.
        return sent, tuple(name for name in fields if name in refused)

    def learn(self, error: InferenceError, sent: Mapping[str, object]) -> bool:
        """Drops or renames the fields that an error refuses; False if it refuses none of those."""
        if not isinstance(error, ServerError) or error.status not in {400, 422}:
            return False
        message = str(error)
        fields = () if _ABOUT_A_SCHEMA.search(message) else sent.keys()
        refused = [name for name in self._droppable if name in fields and _refuses(message, name)]
        if re.search(r"\bboth\b", message):
            # Newer Claude models take one of `temperature` and `top_p`: the first may stay.
            refused = refused[1:] or refused
        renames = _ROOM in fields and _RENAMED.search(message) is not None
        if renames or refused:
            self._renames |= renames
            self._refused.update(refused)
            return True
        # It failed for another reason, and maybe did so before: the fields that it was sent without
        # are sent again, and a later call learns of their refusal anew if there is one.
        self._renames &= _OTHER_ROOM not in sent
        self._refused &= sent.keys()
        return False


def _refuses(message: str, name: str) -> bool:
    name = name.replace("_", "[._]")  # `reasoning.effort`, by OpenAI's newer protocol
    named = rf"(?:{_NAMED.format(name=name)})"
    patterns = (
        rf"{named}{_BESIDE}{_REFUSED}",
        rf"{_REFUSED}{_BESIDE}{named}",
        rf"{_REFUSED} (?:[\w-]+ )?{name}\b",
    )
    return any(re.search(pattern, message, re.IGNORECASE) for pattern in patterns)
