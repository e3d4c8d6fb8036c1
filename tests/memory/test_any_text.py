"""Any text is a query, and any text that a file can hold is a passage."""

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import InvalidInput
from harness.memory import MemoryStore, Passage

UGLY = (
    '"', '""', '"a b', "title:", 'title:"', "text:x", "source:*", "a:b:c", "AND", "OR NOT",
    "+", "-", "(", "))", "[a TO b]", "{", "^2", "~3", "*", "?", "\\", "/a+/", "'", ";--", "%", "_",
    "\0", "\n", "\u202e", "\ufeff", "\u200b", "e\u0301", "ﬁ", "İ", "ß", "日本語", "ภาษาไทย",
    "👩‍👩‍👧", "\U000e0041",
)  # fmt: skip
ugly = st.one_of(
    st.text(max_size=200),
    st.text(st.characters(exclude_categories=[]), max_size=40),  # with halves of surrogate pairs
    st.lists(st.one_of(st.sampled_from(UGLY), st.text(max_size=8)), max_size=8).map(" ".join),
    st.lists(st.sampled_from(UGLY), max_size=12).map("".join),
    # Up to 64 kB of one thing over and over.
    st.tuples(st.text(min_size=1, max_size=16), st.integers(0, 12)).map(lambda t: t[0] * 2 ** t[1]),
)


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def any_store(request, tmp_path_factory, embedder):
    place = cache = tmp_path_factory.mktemp("store")
    if request.param == "postgres":
        place = request.getfixturevalue("postgres_server").url()
    with MemoryStore.open(place, embedder=embedder, cache=cache) as opened:
        opened.add([Passage(text="Otters float on their backs.", title="Otters", source="a")])
        yield opened


@given(
    parts=st.lists(st.tuples(ugly, ugly, ugly), max_size=4),
    query=ugly,
    mode=st.sampled_from(["hybrid", "lexical", "vector"]),
    limit=st.integers(1, 20),
)
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_text_is_a_query_and_a_passage_or_refused(any_store, parts, query, mode, limit):
    passages = []
    for text, title, source in parts:
        with suppress(InvalidInput):
            passages.append(
                Passage(text=text, title=title, source=source, metadata={"heard": "twice"})
            )
    added = any_store.add(passages)

    ends = [*added.new, *added.known, *(m.id for m in added.merged), *(r.id for r in added.refused)]
    assert sorted(ends) == sorted(passage.id for passage in passages)
    for passage in passages:
        if passage.id in added.new:
            kept = any_store.get(passage.id)
            assert (kept.text, kept.title) == (passage.text, passage.title)
            assert kept.source == passage.source
    for passage in passages[:1]:
        where = {"source": passage.source, "heard": ["once", "twice"]}
        any_store.search(passage.text[:300], where=where)
    hits = any_store.search(query, mode=mode, limit=limit)
    assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
    assert len(hits) <= limit
    assert hits.fallback is None
