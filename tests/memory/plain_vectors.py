"""Vectors that no model made, and what a plain search finds among them."""

import numpy as np

from harness.memory.passage import Passage


class Named:
    """An embedder of texts that say their vectors, such as `7 0.6 0.8`."""

    def __init__(self, name="flat", dimensions=3):
        self.name = name
        self.dimensions = dimensions

    def embed(self, texts):
        return unit([[float(number) for number in text.split()[1:]] for text in texts])


def unit(vectors):
    vectors = np.asarray(vectors, dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def add(primary, vectors, embedder):
    """Passages with these vectors; returns their sequence numbers."""
    first = primary.last_sequence() + 1
    passages = [
        (Passage(text=f"{first + i} {' '.join(map(str, v))}", id=f"p{first + i}"), v)
        for i, v in enumerate(vectors)
    ]
    primary.add(passages, embedder=embedder, merge=False)
    return list(range(first, first + len(passages)))


def clustered(count, *, dimensions=16, seed=1):
    """Around some hundred centres, as the vectors of texts are."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((100, dimensions))
    noise = 0.5 * random.standard_normal((count, dimensions))
    return unit(centres[random.integers(0, 100, count)] + noise)


def naive(vectors, query, *, limit=None):
    """Number, from 1, to cosine, best first, by Python's own sum and sort."""
    cosines = {
        number: sum(float(a) * float(b) for a, b in zip(vector, query, strict=True))
        for number, vector in enumerate(vectors, start=1)
    }
    best = sorted(cosines, key=lambda number: (-cosines[number], number))[:limit]
    return {number: cosines[number] for number in best}
