"""The keys of a model's own architecture, such as `llama.block_count`, by what follows the dot."""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import ModelFileInvalid
from harness.hardware.gguf_file import MAX_LAYERS, GgufFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKeys:
    """What a header says of its model's shape. All methods raise ModelFileInvalid for nonsense."""

    file: GgufFile
    """The header."""
    architecture: str
    """What its keys begin with."""
    layers: int
    """How many there are."""

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number from 0, or `default` if there is one and the key is missing."""
        return self.file.count(f"{self.architecture}.{key}", default=default)

    def counts(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """One whole number for each layer; a single number stands for all of them.

        The default, if there is one, stands for what a server left out, too.
        """
        if default is not None and self.is_untold(key):
            return default
        return self.file.counts(f"{self.architecture}.{key}", layers=self.layers, default=default)

    def flags(self, key: str) -> tuple[bool, ...] | None:
        """Whether each layer is of a kind; None if the key holds no array."""
        return self.file.flags(f"{self.architecture}.{key}", layers=self.layers)

    def is_untold(self, key: str) -> bool:
        """Whether the key is there, but a server left out the array it holds."""
        value = self.file.values.get(f"{self.architecture}.{key}")
        return value is not None and value.offset is None and value.content is None

    def any_begins(self, *beginnings: str) -> bool:
        """Whether a key begins so and does not hold 0, which is how a converter says "none"."""
        prefixes = tuple(f"{self.architecture}.{beginning}" for beginning in beginnings)
        return any(
            key.startswith(prefixes) and value.content != 0
            for key, value in self.file.values.items()
        )

    def unusable(self, key: str, problem: str) -> ModelFileInvalid:
        """The error for a key whose value makes no sense."""
        return self.file.unusable(f"{self.architecture}.{key}", problem)


def model_keys(file: GgufFile) -> ModelKeys:
    """The keys of the model in `file`.

    Raises:
        ModelFileInvalid: It does not say what it is, or how many layers it has.
    """
    architecture = file.text("general.architecture")
    key = f"{architecture}.block_count"
    layers = file.count(key)
    if not 0 < layers <= MAX_LAYERS:
        raise file.unusable(
            key, f"is {layers:,}, not 1 to {MAX_LAYERS:,}; the file is damaged, download it again"
        )
    return ModelKeys(file=file, architecture=architecture, layers=layers)
