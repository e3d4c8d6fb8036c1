"""Model files, told apart by what is in them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from harness.errors import ModelFileInvalid

_SAMPLE_BYTES = 1 << 20


def file_fingerprint(path: Path) -> str:
    """A file's size and the digest of its first and last MiB: copies and links share it.

    Raises:
        ModelFileInvalid: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.sha256(file.read(_SAMPLE_BYTES))
            size = file.seek(0, 2)
            file.seek(max(0, size - _SAMPLE_BYTES))
            digest.update(file.read())
    except OSError as error:
        raise ModelFileInvalid(f"cannot be read ({error.strerror})", path=path) from error
    return f"{size}-{digest.hexdigest()[:16]}"
