"""Asking the user, once and at a terminal, for what the files of a folder may not do unasked."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from harness.cli.consoles import hide, say
from harness.cli.pipeline_file import target_file
from harness.errors import InvalidInput, Notice
from harness.session import Settings, load_settings
from harness.session.secrets import known_secrets
from harness.session.trust import not_allowed, project_of, refusal_to_run, remember


def settings_for_calls(
    config: Path | None,
    *,
    roles: Mapping[str, str] | None = None,
    memory: Path | None = None,
) -> Settings:
    """As `load_settings`, for a command that calls models.

    What is not allowed here, an endpoint says when it is opened.
    """
    settings = load_settings(config, environment=os.environ, roles=roles, memory=memory)
    named = [name for name in settings.trace.secrets if name in os.environ]
    hide(known_secrets(settings.endpoints.values(), environment=os.environ, named=named))
    for endpoint in settings.endpoints.values():
        for refusal in not_allowed(endpoint, os.environ):
            what, _, folder = refusal.entry.partition(" ")
            name, _, host = what.partition("@")
            # Of a variable that is not set, nothing would be sent.
            if name == "*" or os.environ.get(name):
                said = "whatever credentials litellm finds" if name == "*" else name
                if _is_allowed(f"The settings in {folder} would send {said} to {host}."):
                    _remember(refusal.entry)
    return settings


def refusal_after_asking(path: Path) -> Notice | None:
    """As `refusal_to_run`; at a terminal, the user may allow it."""
    refusal = refusal_to_run(path, environment=os.environ)
    project = project_of(path)
    asked: set[Path] = click.get_current_context().meta.setdefault(__name__, set())
    if refusal is not None and project not in asked:
        asked.add(project)
        if _is_allowed(f"The code of {project} would be run."):
            _remember(str(project))
            return None
    return refusal


def check_may_run(path: Path, *, named_in: Path) -> None:
    """Before a file is run that another file names.

    Raises:
        InvalidInput: The user does not allow it.
    """
    refusal = refusal_after_asking(path)
    if refusal is not None:
        raise InvalidInput(refusal.message, path=named_in, code=refusal.code)


def remember_run(target: str, settings: Path | None) -> None:
    """What a user has carried out himself may be carried out when its runs are resumed.

    Called before the target runs: what runs is allowed to.
    """
    for path in (target_file(target), settings):
        if path is not None and refusal_to_run(path, environment=os.environ) is not None:
            _remember(str(path.resolve()))


def _is_allowed(what: str) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    return click.confirm(f"{repr(what)[1:-1]} Do you allow that, from now on?", err=True)


def _remember(entry: str) -> None:
    try:
        remember(entry, os.environ)
    except OSError as error:
        say(f"harness: this cannot be remembered ({error.strerror})", err=True)
