from pathlib import Path

import pytest

LONG_DOCUMENTS = Path(__file__).parents[3] / "shared" / "data" / "longdocs"


@pytest.fixture(
    params=sorted(LONG_DOCUMENTS.glob("*.md"))
    or [pytest.param(None, marks=pytest.mark.skip(reason=f"no documents in {LONG_DOCUMENTS}"))],
    ids=lambda path: path.stem[:40] if path else "none",
)
def long_document(request: pytest.FixtureRequest) -> str:
    """A real README or manual page, at least 8,000 characters long."""
    return request.param.read_text(encoding="utf-8")
