import math
import shutil
from collections import Counter

import pytest
import tantivy
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import MemoryStoreFailed
from harness.memory.lexical import LexicalLane
from harness.memory.passage import Passage
from harness.memory.truth import Truth


def add(truth, *texts):
    truth.add([(Passage(text=text), b"") for text in texts], embedder="none")


@pytest.fixture
def truth(tmp_path):
    opened = Truth(tmp_path)
    add(opened, "red apples and green apples", "a red house", "green pears", "houses of brick")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def shared_lane(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shared")
    truth = Truth(directory)
    add(truth, "red apples", "NOT and OR or AND", "naïve café 日本語", "\x00 nul")
    yield LexicalLane.open(directory / "lexical", truth)
    truth.close()


@settings(deadline=None)  # it reads a disk
@given(query=st.text())
def test_any_text_is_a_query(shared_lane, query):
    scores = list(shared_lane.search(query, limit=10).values())

    assert scores == sorted(scores, reverse=True)
    assert all(score > 0 for score in scores)


@pytest.mark.parametrize(
    "query",
    ['"red', "body:apples", "+apples -red", "(apples", "[a TO apples", "apples^", "apples~2", "*"],
)
def test_the_signs_of_query_languages_mean_nothing(shared_lane, query):
    found = shared_lane.search(query, limit=10)
    words_only = shared_lane.search("".join(c if c.isalnum() else " " for c in query), limit=10)

    assert found == words_only


def test_scores_are_those_of_the_published_formula(tmp_path, truth):
    # Robertson and Zaragoza 2009, with k1 = 1.2, b = 0.75 and Lucene's idf. tantivy rounds the
    # length of a document, but not below 40 words.
    documents = {
        1: ["red", "appl", "and", "green", "appl"],
        2: ["a", "red", "hous"],
        3: ["green", "pear"],
        4: ["hous", "of", "brick"],
    }
    mean_length = sum(map(len, documents.values())) / len(documents)

    def bm25(words, query):
        total = 0.0
        for word in query:
            n = sum(word in other for other in documents.values())
            idf = math.log(1 + (len(documents) - n + 0.5) / (n + 0.5))
            tf = Counter(words)[word]
            total += idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * len(words) / mean_length))
        return total

    naive = {n: bm25(words, ["red", "red", "appl"]) for n, words in documents.items()}

    lane = LexicalLane.open(tmp_path / "lexical", truth)
    assert lane.search("RED red apple", limit=10) == pytest.approx(
        {n: score for n, score in naive.items() if score}, rel=1e-5
    )


def test_the_limit_keeps_the_best(tmp_path, truth):
    lane = LexicalLane.open(tmp_path / "lexical", truth)

    everything = lane.search("red green house", limit=10)
    assert list(lane.search("red green house", limit=2)) == list(everything)[:2]


def test_it_catches_up_from_where_it_was(tmp_path, truth):
    lane = LexicalLane.open(tmp_path / "lexical", truth)
    add(truth, "purple plums")
    assert not lane.search("plum", limit=10)

    lane.catch_up(truth)
    assert len(lane.search("plum", limit=10)) == 1
    assert len(lane) == len(truth)


def test_two_lanes_on_one_directory_read_each_passage_once(tmp_path, truth):
    one = LexicalLane.open(tmp_path / "lexical", truth)
    other = LexicalLane.open(tmp_path / "lexical", truth)
    add(truth, "purple plums")

    one.catch_up(truth)
    other.catch_up(truth)
    assert len(one) == len(other) == len(truth)


def test_while_another_writes_a_lane_fails_and_is_not_thrown_away(tmp_path, truth):
    LexicalLane.open(tmp_path / "lexical", truth)
    add(truth, "purple plums")
    files = set((tmp_path / "lexical").iterdir())
    writer = tantivy.Index.open(str(tmp_path / "lexical")).writer(15_000_000, 1)

    with pytest.raises(MemoryStoreFailed, match="try again when it is done"):
        LexicalLane.open(tmp_path / "lexical", truth)
    assert files <= set((tmp_path / "lexical").iterdir())

    writer.wait_merging_threads()
    assert LexicalLane.open(tmp_path / "lexical", truth).search("plum", limit=10)


def test_single_passages_do_not_pile_up_segments(tmp_path, truth):
    lane = LexicalLane.open(tmp_path / "lexical", truth)
    for number in range(30):
        add(truth, f"number {number}")
        lane.catch_up(truth)

    assert lane._index.searcher().num_segments < 15


def is_whole(directory, truth):
    lane = LexicalLane.open(directory, truth)
    return len(lane) == len(truth) and list(lane.search("apples", limit=10)) == [1]


def test_a_lane_that_was_deleted_is_made_again(tmp_path, truth):
    LexicalLane.open(tmp_path / "lexical", truth)
    shutil.rmtree(tmp_path / "lexical")

    assert is_whole(tmp_path / "lexical", truth)


@pytest.mark.parametrize("content", [b"", b"garbage"], ids=["empty", "garbage"])
@pytest.mark.parametrize("suffix", ["meta.json", ".managed.json", ".store", ".term", ".idx"])
def test_a_lane_with_a_damaged_file_is_made_again(tmp_path, truth, suffix, content):
    LexicalLane.open(tmp_path / "lexical", truth)
    damaged = [f for f in (tmp_path / "lexical").iterdir() if f.name.endswith(suffix)]
    assert damaged
    for file in damaged:
        file.write_bytes(content)

    assert is_whole(tmp_path / "lexical", truth)


def test_a_lane_without_its_table_of_contents_is_made_again(tmp_path, truth):
    LexicalLane.open(tmp_path / "lexical", truth)
    (tmp_path / "lexical" / "meta.json").unlink()

    assert is_whole(tmp_path / "lexical", truth)


def test_a_lane_of_another_schema_is_made_again(tmp_path, truth):
    (tmp_path / "lexical").mkdir()
    schema = tantivy.SchemaBuilder().add_text_field("body", tokenizer_name="english-0").build()
    tantivy.Index(schema, path=str(tmp_path / "lexical"))

    assert is_whole(tmp_path / "lexical", truth)


def test_a_lane_that_is_ahead_of_its_truth_is_made_again(tmp_path, truth):
    (tmp_path / "other").mkdir()
    longer = Truth(tmp_path / "other")
    add(longer, *(f"number {n}" for n in range(10)))
    LexicalLane.open(tmp_path / "lexical", longer)
    longer.close()

    assert is_whole(tmp_path / "lexical", truth)


def test_a_lane_that_lacks_a_passage_is_made_again(tmp_path, truth):
    lane = LexicalLane.open(tmp_path / "lexical", truth)
    writer = lane._index.writer(15_000_000, 1)
    writer.delete_documents_by_query(lane._any_of("pears"))
    writer.commit()
    writer.wait_merging_threads()

    assert is_whole(tmp_path / "lexical", truth)


def test_a_place_that_cannot_hold_a_lane_is_an_error_with_the_path_of_the_store(tmp_path, truth):
    (tmp_path / "lexical").write_text("a file")

    with pytest.raises(MemoryStoreFailed, match="may be written") as caught:
        LexicalLane.open(tmp_path / "lexical", truth)
    assert caught.value.path == tmp_path
