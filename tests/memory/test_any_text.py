"""Any text is a query, and any text that a file can hold is a passage."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import InvalidInput
from harness.memory import MemoryStore, Passage

OPERATORS = [
    *(
        '"',
        '""',
        '"a b',
        "title:",
        'title:"',
        "text:x",
        "source:*",
        "a:b:c",
        "AND",
        "OR NOT",
        "+",
        "-",
    ),
    *(
        "(",
        "))",
        "[a TO b]",
        "{",
        "^2",
        "~3",
        "*",
        "?",
        "\\",
        "/a+/",
        "'",
        ";--",
        "%",
        "_",
        "\0",
        "\n",
    ),
    *(
        "\u202e",
        "\ufeff",
        "\u200b",
        "e\u0301",
        "ﬁ",
        "İ",
        "ß",
        "日本語",
        "ภาษาไทย",
        "👩‍👩‍👧",
        "\U000e0041",
    ),
]
ugly = st.one_of(
    st.text(max_size=200),
    st.text(st.characters(exclude_categories=[]), max_size=40),  # with halves of surrogate pairs
    st.lists(st.sampled_from(OPERATORS), max_size=12).map("".join),
    st.lists(st.one_of(st.sampled_from(OPERATORS), st.text(max_size=8)), max_size=8).map(" ".join),
    # Up to a megabyte, of one thing over and over.
    st.tuples(st.text(min_size=1, max_size=12), st.integers(1, 80_000)).map(lambda t: t[0] * t[1]),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory, embedder):
    with MemoryStore.open(tmp_path_factory.mktemp("store"), embedder=embedder) as opened:
        opened.add([Passage(text="Otters float on their backs.", title="Otters", source="a")])
        yield opened


@given(query=ugly, mode=st.sampled_from(["hybrid", "lexical", "vector"]), limit=st.integers(1, 20))
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_text_is_a_query(store, query, mode, limit):
    hits = store.search(query, mode=mode, limit=limit)

    assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
    assert len(hits) <= limit
    assert hits.fallback is None


@given(text=ugly, title=ugly, source=ugly, query=ugly)
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_text_is_a_passage_or_refused_with_its_reason(store, text, title, source, query):
    try:
        passage = Passage(text=text, title=title, source=source, metadata={"heard": "twice"})
    except InvalidInput:
        return
    added = store.add([passage])

    ends = [*added.new, *added.known, *(m.id for m in added.merged), *(r.id for r in added.refused)]
    assert ends == [passage.id]
    if added.new:
        kept = store.get(passage.id)
        assert (kept.text, kept.title, kept.source) == (text, title, source)
    store.search(query)
    store.search(text[:300], where={"source": source, "heard": ["once", "twice"]})
