"""What the tests of the hardware arithmetic share."""

import pytest


@pytest.fixture
def rewrite(tmp_path):
    """Replace the content of one file, without the wait of opening it anew each time."""
    path = tmp_path / "m.gguf"
    with path.open("wb", buffering=0) as file:

        def rewrite(data, room=0):
            file.seek(0)
            file.write(data)
            file.truncate(len(data) + room)
            return path

        yield rewrite
