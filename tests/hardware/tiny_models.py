"""Models of every kind of cache, small enough to load in a moment, with nothing but zeros in them.

`tiny_models.json` holds their keys (GGUF's number for the type, then the value), and by shape the
names of the tensors that llama.cpp b11549 asks for.
"""

import json
import math
from pathlib import Path

from gguf_writer import F32, I32, STRING, U32, header

MODELS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

_ALIGNMENT = 32
_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁a", "b"]
_TOKENIZER = {
    "tokenizer.ggml.model": (STRING, "llama"),
    "tokenizer.ggml.tokens": (STRING, _TOKENS),
    "tokenizer.ggml.scores": (F32, [0.0] * len(_TOKENS)),
    "tokenizer.ggml.token_type": (I32, [2, 3, 3, *[6] * 256, 1, 1]),
    "tokenizer.ggml.bos_token_id": (U32, 1),
    "tokenizer.ggml.eos_token_id": (U32, 2),
}


def write_model(path, architecture):
    """Write one; its tensors are a hole in the file."""
    model = MODELS[architecture]
    keys = {f"{architecture}.{key}": tuple(value) for key, value in model["keys"].items()}
    tensors, offset = [], 0
    for shape, names in model["tensors"].items():
        dimensions = [int(length) for length in shape.split()]
        for name in names.split():
            tensors.append((name, dimensions, 0, offset))
            offset += -(-4 * math.prod(dimensions) // _ALIGNMENT) * _ALIGNMENT
    data = header({"general.architecture": (STRING, architecture)} | keys | _TOKENIZER, tensors)
    start = -(-len(data) // _ALIGNMENT) * _ALIGNMENT
    with path.open("wb") as file:
        file.write(data)
        file.truncate(start + offset)
    return path
