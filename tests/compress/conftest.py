from pathlib import Path

import pytest

LONG_DOCUMENTS = sorted(Path(__file__).parents[3].glob("shared/data/longdocs/*.md"))


@pytest.fixture(
    params=[pytest.param(path, marks=[pytest.mark.slow] * (n > 1), id=path.stem[:40])
            for n, path in enumerate(LONG_DOCUMENTS)]
    or [pytest.param(None, marks=pytest.mark.skip(reason="no documents in shared/data/longdocs"))],
)  # fmt: skip
def long_document(request: pytest.FixtureRequest) -> str:
    """A real README or manual page, at least 8,000 characters long."""
    return request.param.read_text(encoding="utf-8")
