"""Images in messages: read and checked once, then identified by their digest."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict

from harness.errors import InvalidInput

MOST_BYTES = 20 << 20
"""The most bytes of one image; most providers take less."""
# The first bytes of an image → its media type.
_KINDS = {
    rb"\x89PNG\r\n\x1a\n": "image/png",
    rb"\xff\xd8\xff": "image/jpeg",
    rb"GIF8": "image/gif",
    rb"(?s)RIFF.{4}WEBP": "image/webp",  # RIFF holds sound and video, too
}
_URL_SAFE = str.maketrans("-_", "+/")  # base64 for URLs; Python's decoder skips these letters


@dataclass(frozen=True)
class Image:
    """An image for a model: its bytes, or an address from which the provider fetches it.

    `from_path`, `from_bytes` and `from_url` make it from a PNG, JPEG, WebP or GIF of up to 20 MiB;
    otherwise they raise `InvalidInput`.
    """

    # For images in the outputs of nodes, which the journal keeps as JSON.
    __pydantic_config__: ClassVar = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    media_type: str
    """`image/png` and so on; empty for an address."""
    data: bytes = field(default=b"", repr=False)
    """Empty for an address."""
    url: str | None = None
    """Passed on unchanged: harness fetches nothing."""

    @classmethod
    def from_path(cls, path: Path | str) -> Self:
        """The image in a file, which is read at once."""
        try:
            with Path(path).open("rb") as file:
                # A byte more than is allowed shows that it is too large.
                return cls.from_bytes(file.read(MOST_BYTES + 1), name=f"the image {path}")
        except OSError as error:
            raise InvalidInput(
                f"the image {path} cannot be read ({error.strerror})", code="image.unreadable"
            ) from error

    @classmethod
    def from_bytes(
        cls, data: bytes, media_type: str | None = None, *, name: str = "the image"
    ) -> Self:
        """The image in these bytes; `media_type` must match them, `name` names it in errors."""
        if len(data) > MOST_BYTES:
            raise InvalidInput(
                f"{name} has more than {MOST_BYTES >> 20} MiB; scale it down",
                code="image.too-large",
            )
        media = next((kind for begin, kind in _KINDS.items() if re.match(begin, data)), None)
        if media is None or media_type not in {None, media}:
            raise InvalidInput(
                f"{name} holds {media or 'no known image'}, not "
                f"{media_type or 'an image that models take'}; give a PNG, JPEG, WebP or GIF",
                code="image.not-an-image",
            )
        return cls(media, data)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The image at an `http` or `https` address, or in a `data:` address."""
        if url.startswith(("http://", "https://")):
            return cls("", url=url)
        head, _, body = url.partition(";base64,")
        with suppress(ValueError):  # for letters that are not ASCII, it is no `binascii.Error`
            if head.startswith("data:") and body:
                body = "".join(unquote(body).split()).translate(_URL_SAFE).rstrip("=")
                return cls.from_bytes(base64.b64decode(body + -len(body) % 4 * "=", validate=True))
        raise InvalidInput(
            f"the address of the image is {url!r:.80}; give one that begins with http://, https:// "
            "or data:image/…;base64, and has nothing but base64 behind that",
            code="image.bad-address",
        )

    @cached_property
    def encoded(self) -> str:
        """The bytes in base64."""
        return base64.b64encode(self.data).decode()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the bytes, or of the address."""
        return hashlib.sha256(self.data or str(self.url).encode()).hexdigest()

    @property
    def address(self) -> str:
        """The address; for bytes, a `data:` address that holds them."""
        return self.url or f"data:{self.media_type};base64,{self.encoded}"

    @property
    def shown(self) -> str:
        """The image as the trace shows it."""
        what = self.url or f"{self.media_type}, {len(self.data)} bytes"
        return f"[image {what}, sha256 {self.digest}]"


def numbered(value: object, images: list[Image]) -> object:
    """The value as JSON, with texts such as `[image 1]` for its images, which `images` gets."""
    match value:
        case Image():
            images.append(value)
            return f"[image {len(images)}]"
        case Mapping():
            return {key: numbered(part, images) for key, part in value.items()}
        case BaseModel():  # by its iterator: a field may be called `keys`
            return {name: numbered(part, images) for name, part in value}
        case list() | tuple() | set() | frozenset():
            return [numbered(part, images) for part in value]
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {f.name: numbered(getattr(value, f.name), images) for f in fields(value)}
    return value
