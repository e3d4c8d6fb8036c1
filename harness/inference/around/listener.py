"""Knowing whether anything of an answer was passed on, since that cannot be taken back."""

from __future__ import annotations

from dataclasses import replace

from harness.inference.request import ChatRequest


class Listener:
    """Stands between a call and whoever listens to its answer.

    Attributes:
        request: The call, to be made in the given one's place; the same when nobody listens.
        told: Whether a piece of an answer was passed on.
    """

    def __init__(self, request: ChatRequest) -> None:
        self._on_text = request.on_text
        self.request = request if request.on_text is None else replace(request, on_text=self._tell)
        self.told = False

    def _tell(self, text: str) -> None:
        assert self._on_text is not None
        self.told = True
        self._on_text(text)
