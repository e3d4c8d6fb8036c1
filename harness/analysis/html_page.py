"""The HTML file of a page: its JSON, and the script that draws it.

Nothing in a page is loaded from elsewhere, and no text becomes HTML.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Literal

from harness.trace.journal_line import dump_json

PageKind = Literal["run", "evaluation"]

_PARTS = Path(__file__).with_name("page")
_BATCH = 500


def object_json(
    fields: Mapping[str, object],
    lists: Mapping[str, Iterable[object]],
    *,
    clean: Callable[[bytes], bytes],
) -> Iterator[bytes]:
    """A JSON object in pieces: `fields`, then `lists` in batches; `clean` changes each as JSON."""
    # Without the closing brace, since the lists follow.
    yield clean(dump_json(fields)).rstrip()[:-1]
    for name, values in lists.items():
        yield b',"%b":[' % name.encode()
        items = iter(values)
        separator = b""
        while batch := list(islice(items, _BATCH)):
            # Without the brackets of its own list.
            yield separator + clean(dump_json(batch)).strip()[1:-1]
            separator = b","
        yield b"]"
    yield b"}"


def html_of(
    page: Iterable[bytes], *, nonce: str, is_live: bool = False, kind: PageKind = "run"
) -> Iterator[bytes]:
    """The whole file, from the pieces of a page's JSON.

    The secret `nonce` lets only its own script run. A live page asks a server for news.
    """
    parts = {
        "nonce": nonce,
        "connect": "'self'" if is_live else "'none'",
        "live": "yes" if is_live else "no",
        "css": _part("run.css"),
        "js": _part("elements.js") + _part(f"{kind}.js"),
    }
    before, after = (
        re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], half).encode()
        for half in _part(f"{kind}.html").split("{{data}}")
    )
    yield before
    # Without `<`, no text can end the element that the JSON stands in, or begin a comment there.
    yield from (piece.replace(b"<", rb"\u003c") for piece in page)
    yield after


def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="utf-8")
