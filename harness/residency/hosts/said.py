"""What a server says for itself when it does not do what it is asked."""

from __future__ import annotations

from collections.abc import Mapping

from harness.residency.hosts.control import Page


def said(page: Page) -> str:
    """Its status, and the words of an error in OpenAI's shape, in Ollama's, or in none."""
    reply = page.json
    error = reply.get("error") if isinstance(reply, Mapping) else None
    words = error.get("message") if isinstance(error, Mapping) else error
    return f"HTTP {page.status}: {words or page.body.decode('utf-8', 'replace').strip()[:500]}"
