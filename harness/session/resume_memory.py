"""What the nodes of a run's earlier parts remembered, for those that recall it now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from harness.memory import Scalar
from harness.session.passages import PassageLibrary
from harness.trace import Content, Journal, SpanRecord, sha256_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A document that was remembered."""

    document: str | None
    """The text; None where the journal does not have it whole: a secret was left out."""
    title: str
    """For passages before the first heading."""
    source: str
    """Where it is from."""
    quality: float | None
    """How good it was judged to be."""
    metadata: tuple[tuple[str, Scalar], ...]
    """What else was said of it."""
    created: datetime | None
    """When it was remembered; None where an earlier version wrote the journal."""


def remembered_in(journal: Journal) -> tuple[Remembered, ...]:
    """What a run remembered until now, in order; nothing of what outlives the run anyway.

    Raises:
        JournalInvalid: The journal is damaged.
    """
    said: list[Mapping[str, Any]] = [
        item.attributes
        for item in journal.items()
        if isinstance(item, SpanRecord)
        and item.name == "remember"
        and item.status == "ok"
        and item.attributes.get("document_sha256")
    ]
    wanted = {one["document_sha256"] for one in said}
    texts = {
        item.sha256: item.text
        for item in (journal.items() if wanted else ())
        if isinstance(item, Content) and item.sha256 in wanted
    }
    return tuple(
        Remembered(
            document=_whole(texts.get(one["document_sha256"]), digest=one.get("digest")),
            title=one.get("title") or "",
            source=one.get("source") or "",
            quality=one.get("quality"),
            metadata=tuple((one.get("metadata") or {}).items()),
            created=one.get("created") and datetime.fromisoformat(one["created"]),
        )
        for one in said
    )


async def remember_again(remembered: tuple[Remembered, ...], passages: PassageLibrary) -> int:
    """Keeps the documents in a run's passages, each once.

    Returns:
        How many could not be, since the journal does not have them whole.
    """
    lost = 0
    for one in dict.fromkeys(remembered):
        if one.document is None:
            lost += 1
        else:
            await passages.remember(
                one.document,
                title=one.title,
                source=one.source,
                quality=one.quality,
                metadata=dict(one.metadata),
                created=one.created,
            )
    return lost


def _whole(text: str | None, *, digest: object) -> str | None:
    return text if text is not None and sha256_of(text) == digest else None
