"""What a server's refusal to load a model, or to let it go, means."""

from __future__ import annotations

import re
from typing import Final

from harness.errors import AuthenticationFailed, InferenceError, LoadFailed, ModelNotFound
from harness.residency.hosts.control import Control, Page

_NO_ROOM: Final = re.compile(
    r"out[ _]of[ _](?:device[ _])?memory|failed to allocate|unable to allocate|cannot allocate"
    r"|insufficient (?:vram|memory)|not enough (?:free )?memory",
    re.IGNORECASE,
)
"""What CUDA and PyTorch say, and what the servers add: vLLM, TabbyAPI ("Insufficient VRAM")."""


def failure(control: Control, page: Page, *, doing: str) -> InferenceError:
    """The error of an answer that is none.

    Args:
        control: Who asked.
        page: What came.
        doing: What could not be done, as the error says it: `load`.
    """
    error = control.refusal(page)
    if isinstance(error, AuthenticationFailed):
        return _key_refused(control, page.said)
    if isinstance(error, ModelNotFound):
        return error
    return LoadFailed(
        f"the server could not {doing} '{control.endpoint.model_id}': {page.said}",
        endpoint=control.endpoint.tag,
        out_of_memory=_NO_ROOM.search(page.body.decode("utf-8", "replace")) is not None,
    )


def switched_off(control: Control, title: str, *, needs: str) -> LoadFailed:
    """The error of a server that was not started so that its models could be let go."""
    return LoadFailed(
        f"{title} at {control.root} was not started so that its model could be let go and brought "
        f"back: start it with {needs}, or set manage to false",
        code="server.not-manageable",
        endpoint=control.endpoint.tag,
    )


def misread(control: Control, page: Page) -> LoadFailed:
    """The error of an answer that is not of the server's kind."""
    return LoadFailed(
        f"the server at {control.root} does not answer as its kind does: {page.body[:200]!r}; is "
        "the endpoint's backend right?",
        code="server.misread",
        endpoint=control.endpoint.tag,
    )


def _key_refused(control: Control, why: str) -> AuthenticationFailed:
    """The error of a page that wants another key than calls do."""
    return AuthenticationFailed(
        f"the server refused the key to load models and let them go ({why}); set the endpoint's "
        "control_key_env to the name of the variable that holds it",
        endpoint=control.endpoint.tag,
    )
