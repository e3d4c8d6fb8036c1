"""Nodes as a linter leaves them: annotations are texts, and some names exist for it alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

if TYPE_CHECKING:
    from decimal import Decimal


async def essay(
    *,
    run: Decimal,
    price: Decimal,
    tone: Literal["plain", "formal"],
    rounds: Annotated[int, "above zero"],
    sources: list[str],
    anything,
) -> Decimal: ...
