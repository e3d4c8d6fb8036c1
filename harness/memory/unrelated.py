"""How alike an embedder finds texts that have nothing to do with each other.

Cosines of one embedder do not compare with another's: where some put unrelated texts at 0.1, others
put them at 0.7. So each is asked about the same texts, once, and what it says is kept with its
vectors.
"""

from __future__ import annotations

import numpy as np

from harness.memory.embedder import Embedder, embed

_DEVIATIONS = 2

# Of an embedder that finds all texts alike: there must be room above it.
_AT_MOST = 0.99

# One from each of many fields, in the length and the tone of what is asked and stored.
_TEXTS = (
    "Knead the dough for ten minutes and let it rise under a damp cloth.",
    "The goalkeeper saved a penalty in the last minute of the final.",
    "A patient with chest pain needs an electrocardiogram without delay.",
    "Interest rates rose again, and mortgages became more expensive.",
    "How do I prune roses so that they flower in the following summer?",
    "The violin concerto was first performed in Vienna in 1806.",
    "Tectonic plates drift a few centimetres a year.",
    "To change a bicycle's tyre, begin on the side away from the valve.",
    "The tenant may give three months' notice in writing.",
    "Penguins take turns to warm the egg through the winter.",
    "An index makes a query faster and every insertion slower.",
    "Her novel follows three sisters through the siege of their town.",
    "Which vaccines does a traveller need for the tropics?",
    "Sand the wood along the grain before you put on the varnish.",
    "The airline cancelled all flights because of fog.",
    "Photosynthesis turns light, water and carbon dioxide into sugar.",
    "The senate rejected the bill by two votes.",
    "Medieval monks copied manuscripts by hand on parchment.",
    "A kitten should be fed four times a day with small portions.",
    "The telescope saw a galaxy whose light is twelve billion years old.",
    "Prime numbers are infinite in number, as Euclid proved.",
    "The dress is of silk, with embroidered sleeves and a high collar.",
    "Steel rusts where salt water reaches it and the paint is gone.",
    "Children learn the rules of their language without being taught.",
    "The winery harvests its grapes at night, while they are cool.",
    "How many people lived in Rome under the emperor Augustus?",
    "The lawyer advised her client to say nothing.",
    "Chess players castle early to bring the king into safety.",
)


def unrelated_cosine(embedder: Embedder) -> float:
    """Above which cosine two texts have something to do with each other, by this embedder.

    The mean of the cosines of all pairs of 28 texts about different things, and two standard
    deviations more; at most 0.99. Always the same for an embedder. With `WordLlamaEmbedder` it is
    0.16, as it would be with the questions of the Cranfield collection, which are about flight,
    and the 7,710 passages of SQLite's documentation.

    Raises:
        InvalidInput: The embedder gave something else than vectors.
    """
    vectors = embed(embedder, _TEXTS)
    cosines = (vectors @ vectors.T)[np.triu_indices(len(_TEXTS), k=1)].astype(np.float64)
    return min(_AT_MOST, float(cosines.mean() + _DEVIATIONS * cosines.std()))
