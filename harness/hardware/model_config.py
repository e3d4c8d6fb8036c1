"""A `config.json`, by the many names that the same things have in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from harness.errors import ModelFileInvalid
from harness.hardware.safetensors_file import read_json

_TEXT_PARTS: Final = ("text_config", "llm_config", "language_config")
"""Where a model of more than text keeps the shape of the part that writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What a configuration says. Its methods raise ModelFileInvalid for nonsense."""

    path: Path
    """The file."""
    text: bytes
    """As it stands there."""
    whole: Mapping[str, Any]
    """All of it."""
    values: Mapping[str, Any]
    """The part that describes a language model: all of it, or one of its tables."""

    def get(self, *names: str) -> Any:  # noqa: ANN401 - whatever the JSON has
        """What stands under the first of some names that holds anything; null is nothing."""
        held = (values.get(name) for values in (self.values, self.whole) for name in names)
        return next((value for value in held if value is not None), None)

    def count(self, *names: str, default: int | None = None) -> int:
        """A whole number from 0, or `default` if there is one and it is missing."""
        value = self.get(*names)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.unusable(names[0], "is missing; name the folder of a language model")
        if type(value) is not int or value < 0:
            raise self.unusable(names[0], f"is {value!r}, not a count")
        return value

    def unusable(self, name: str, problem: str) -> ModelFileInvalid:
        """The error for what is missing or makes no sense."""
        at = max(self.text.find(f'"{name}"'.encode()), 0)
        return ModelFileInvalid(f"'{name}' {problem}", path=self.path, offset=at)


def read_model_config(path: Path) -> ModelConfig:
    """Read a model's `config.json`.

    Raises:
        ModelFileInvalid: It is missing, or it is not a JSON object.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ModelFileInvalid(
            f"cannot be opened ({error.strerror}); download all files of the model into one folder",
            path=path,
        ) from error
    whole = read_json(text, path=path)
    if not isinstance(whole, dict):
        raise ModelFileInvalid("it is not a JSON object", path=path, offset=0)
    part = next((whole[name] for name in _TEXT_PARTS if isinstance(whole.get(name), dict)), whole)
    return ModelConfig(path=path, text=text, whole=whole, values=part)
