"""The provider's own word for how its reply ended.

litellm turns every word that it does not know, and some that tell of a failure, into "stop"; of a
whole reply without any it says the same.
"""

from __future__ import annotations

import orjson


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
                pass  # a second reply, which nobody asked for
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
