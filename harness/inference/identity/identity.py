"""Which model an endpoint really is: two tags, or two addresses, can lead to one.

What is not recognised: a file and a server of the same weights, other quantisations of them, and
relatives of one family. Two servers that both call their model `default` pass for one: give each
endpoint the `model_id` of what it really serves.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from harness.errors import ModelFileInvalid
from harness.inference.endpoint import Endpoint

_SAMPLE_BYTES = 1 << 20


def model_identity(endpoint: Endpoint) -> str:
    """A name that two endpoints share when they are seen to lead to the same model.

    A file is known by its size and the digest of its first and last MiB, so that copies and links
    are the same model; a served model by its name, without namespace, `:latest` and upper case,
    whatever the address.

    Raises:
        ModelFileInvalid: The file cannot be read.
    """
    if endpoint.path is not None:
        return f"file {_fingerprint(endpoint.path)}"
    name = endpoint.model_id.lower().rstrip("/").rsplit("/", 1)[-1]
    return f"served {name.removesuffix(':latest')}"


def _fingerprint(path: Path) -> str:
    try:
        with path.open("rb") as file:
            digest = hashlib.sha256(file.read(_SAMPLE_BYTES))
            size = file.seek(0, 2)
            file.seek(max(0, size - _SAMPLE_BYTES))
            digest.update(file.read())
    except OSError as error:
        raise ModelFileInvalid(f"cannot be read ({error.strerror})", path=path) from error
    return f"{size}-{digest.hexdigest()[:16]}"
