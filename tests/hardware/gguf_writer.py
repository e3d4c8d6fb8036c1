"""A tiny writer of GGUF files, so that tests can have any."""

import struct

U8, U16, U32, I32, F32, BOOL, STRING, ARRAY, U64 = 0, 2, 4, 5, 6, 7, 8, 9, 10
CODES = {U8: "B", U16: "H", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q"}

SMALL = {
    "general.architecture": (STRING, "llama"),
    "general.name": (STRING, "Tiny"),
    "general.file_type": (U32, 15),
    "llama.block_count": (U32, 2),
    "llama.context_length": (U32, 2048),
    "llama.embedding_length": (U32, 64),
    "llama.feed_forward_length": (U32, 128),
    "llama.attention.head_count": (U32, 4),
    "llama.attention.head_count_kv": (U32, 2),
    "tokenizer.ggml.tokens": (STRING, ["<s>", "</s>", "a"]),
    "tokenizer.ggml.scores": (F32, [0.0] * 3),
}
TENSORS = [
    ("token_embd.weight", (64, 3), 1),  # F16: 64 * 3 * 2 = 384 bytes
    ("blk.0.attn_norm.weight", (64,), 0),  # F32: 256 bytes
    ("blk.0.ffn_up.weight", (256, 2), 12),  # Q4_K: 2 * 144 = 288 bytes
]
TENSOR_BYTES = 384 + 256 + 288


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def items(kind, values):
    return b"".join(
        string(value) if kind == STRING else struct.pack("<" + CODES[kind], value)
        for value in values
    )


def value(kind, content):
    if isinstance(content, list):
        return struct.pack("<IIQ", ARRAY, kind, len(content)) + items(kind, content)
    return struct.pack("<I", kind) + items(kind, [content])


def header(values, tensors=TENSORS, *, version=3):
    data = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values))
    data += b"".join(string(key) + value(*pair) for key, pair in values.items())
    for name, shape, kind, *offset in tensors:
        data += string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        data += struct.pack("<IQ", kind, *offset or [0])
    return data
