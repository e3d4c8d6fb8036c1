import math
import multiprocessing
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from threading import Event, Thread
from types import SimpleNamespace

import pytest
import tantivy
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import InvalidInput, MemoryStoreFailed
from harness.memory.checksums import damaged_file
from harness.memory.lexical import LexicalLane
from harness.memory.passage import Passage
from harness.memory.truth import Truth
from harness.memory.where import Where


def add(truth, *texts, **fields):
    truth.add([(Passage(text=text, **fields), None) for text in texts], embedder=None)


def read_on(lane, truth):
    lane.catch_up(until=truth.last_sequence())


@pytest.fixture
def truth(tmp_path):
    opened = Truth.open(tmp_path)
    add(opened, "red apples and green apples", "a red house", "green pears", "houses of brick")
    yield opened
    opened.close()


@pytest.fixture
def lane(tmp_path, truth):
    return LexicalLane.open(tmp_path / "lexical", truth)


@pytest.fixture(scope="module")
def shared_lane(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shared")
    truth = Truth.open(directory)
    add(truth, "red apples", "NOT and OR or AND", "naïve café 日本語", "\x00 nul", title="A title")
    yield LexicalLane.open(directory / "lexical", truth)
    truth.close()


# --- searching -------------------------------------------------------------------------------


def test_scores_are_those_of_the_published_formula(lane):
    # Robertson and Zaragoza 2009, with k1 = 1.2, b = 0.75 and Lucene's idf. tantivy rounds the
    # length of a document, but not below 40 words.
    documents = {
        1: ["red", "appl", "and", "green", "appl"],
        2: ["a", "red", "hous"],
        3: ["green", "pear"],
        4: ["hous", "of", "brick"],
        0: [],  # where the lane notes how far it has read
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

    assert lane.search("RED red apple", limit=10) == pytest.approx(
        {n: score for n, score in naive.items() if score}, rel=1e-5
    )
    assert lane.scores("RED red apple", [2, 3]) == pytest.approx({2: naive[2]}, rel=1e-5)


@pytest.mark.parametrize(
    "query",
    ["body:apples", "+apples -red", "(apples", "[a TO apples", "apples^", "apples~2", "*", '"red'],
)
def test_the_signs_of_query_languages_mean_nothing(lane, query):
    found = lane.search(query, limit=10)

    assert found == lane.search("".join(c if c.isalnum() else " " for c in query), limit=10)


def test_a_phrase_in_quotes_counts_extra(lane, truth):
    add(truth, "apples, and something red", "something like apples red and round")
    read_on(lane, truth)

    first = next(iter(lane.search('"apples red"', limit=10)))
    assert truth.fetch([first])[first].text == "something like apples red and round"
    assert len(lane.search('"apples red"', limit=10)) > 1  # it is not required


def test_a_word_of_a_title_counts_extra(lane, truth):
    add(truth, "On their colours.", title="Plums")
    add(truth, "Plums, plums, plums and other fruit.", title="Fruit")
    read_on(lane, truth)

    without, with_title = (next(iter(lane.search(q, limit=9))) for q in ("plums", "title:plums"))
    assert (without, with_title) == (6, 5)


def test_no_score_exceeds_the_ceiling_and_a_passage_of_nothing_else_comes_near(lane, truth):
    add(truth, "quince " * 200)
    lane.rebuild()

    (score,) = lane.search("quince", limit=1).values()
    assert 0.95 * lane.ceiling("quince") < score <= lane.ceiling("quince")
    # A word that is nowhere counts as the rarest.
    assert lane.ceiling("quince medlar") == pytest.approx(2 * lane.ceiling("quince"))
    assert lane.ceiling("...") == 0


def test_a_filter_leaves_the_scores_as_they_are(lane, truth):
    add(truth, "red plums", metadata={"ripe": True, "year": 2024})
    add(truth, "red cherries", metadata={"ripe": True, "year": 2025}, source="orchard")
    read_on(lane, truth)
    everything = lane.search("red", limit=10)

    def found(**where):
        return lane.search("red", limit=10, where=Where.parse(where))

    assert found(ripe=True) == {n: everything[n] for n in everything if n in (5, 6)}
    assert list(found(year=[2025, 2026])) == list(found(source="orchard")) == [6]
    assert found(ripe=True, year=1999) == {}


def test_the_limit_keeps_the_best(lane):
    everything = lane.search("red green house", limit=10)

    assert list(lane.search("red green house", limit=2)) == list(everything)[:2]


def test_words_are_those_of_the_stores_language(tmp_path):
    truth = Truth.open(tmp_path, language="german")
    add(truth, "Die Häuser stehen leer.", "Der Hausherr schläft.")
    lane = LexicalLane.open(tmp_path / "lexical", truth)

    assert list(lane.search("haus", limit=5)) == [1]
    truth.close()


def test_a_language_that_nobody_knows_is_the_users_mistake(tmp_path):
    with pytest.raises(InvalidInput, match="no language 'germann'; did you mean 'german'"):
        Truth.open(tmp_path, language="germann")


@settings(deadline=None)  # it reads a disk
@given(query=st.text(st.characters(exclude_categories=[])), limit=st.integers(1, 10**12))
def test_any_text_is_a_query_and_any_number_its_limit(shared_lane, query, limit):
    scores = list(shared_lane.search(query, limit=limit).values())

    assert scores == sorted(scores, reverse=True)
    assert all(0 < score < shared_lane.ceiling(query) for score in scores)


def test_a_megabyte_of_different_words_is_a_query(lane):
    many = " ".join(f"word{n}" for n in range(100_000))

    assert list(lane.search(f"apples {many}", limit=10)) == [1]


def test_the_ceiling_stays_above_all_scores_when_most_that_have_a_word_are_deleted(lane, truth):
    texts = [f"quince number {n}" for n in range(500)]
    truth.add([(Passage(id=t, text=t), None) for t in texts], embedder=None, merge=False)
    read_on(lane, truth)
    truth.delete(texts[:-1])
    read_on(lane, truth)

    assert len(lane) == len(truth)
    (score,) = lane.search("quince", limit=5).values()
    assert 0 < score < lane.ceiling("quince")


# --- reading on ------------------------------------------------------------------------------


def test_it_catches_up_from_where_it_was(lane, truth):
    add(truth, "purple plums")
    assert not lane.search("plum", limit=10)

    read_on(lane, truth)
    assert len(lane.search("plum", limit=10)) == 1
    assert len(lane) == len(truth)


def test_what_was_deleted_or_changed_is_found_no_more(lane, truth):
    apples, house = truth.fetch([1, 2]).values()
    truth.delete([apples.id])
    truth.update(Passage(id=house.id, text="a blue boat"), None, None)
    read_on(lane, truth)

    assert lane.search("apples", limit=10) == {}
    assert lane.search("house", limit=10).keys() == {4}
    assert lane.search("boat", limit=10).keys() == {6}
    assert len(lane) == len(truth) == 3


def test_a_lane_behind_a_compaction_is_made_again(tmp_path, lane, truth):
    truth.delete([truth.fetch([1])[1].id])
    truth.compact(SimpleNamespace(name="none", dimensions=2))

    again = LexicalLane.open(tmp_path / "lexical", truth)
    assert again.search("apples", limit=10) == {}
    read_on(lane, truth)
    assert lane.search("apples", limit=10) == {}


def test_two_lanes_on_one_directory_read_each_passage_once(tmp_path, lane, truth):
    other = LexicalLane.open(tmp_path / "lexical", truth)
    add(truth, "purple plums")

    read_on(lane, truth)
    read_on(other, truth)
    assert len(lane) == len(other) == len(truth)


def test_threads_search_while_one_of_them_reads_on(lane, truth):
    faults = []

    def look():
        try:
            for _ in range(50):
                assert lane.search("red", limit=10).keys() >= {1, 2}
        except BaseException as error:  # noqa: BLE001 - a thread's, for the test to see
            faults.append(error)

    def write():
        try:
            for number in range(20):
                add(truth, f"plum number {number}")
                read_on(lane, truth)
                assert list(lane.search(f"{number}", limit=1)) == [truth.last_sequence()]
        except BaseException as error:  # noqa: BLE001 - a thread's, for the test to see
            faults.append(error)

    threads = [Thread(target=act) for act in (look, look, look, write)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


def hold(directory, holds, done):
    from harness.memory.lexical import LexicalLane
    from harness.memory.truth import Truth

    lane = LexicalLane.open(directory / "lexical", Truth.open(directory))
    with lane._turn(5):
        holds.set()
        done.wait(30)


def test_only_what_is_ones_own_is_worth_waiting_for(tmp_path, lane, truth):
    spawn = multiprocessing.get_context("spawn")
    holds, done = spawn.Event(), spawn.Event()
    process = spawn.Process(target=hold, args=(tmp_path, holds, done))
    process.start()
    assert holds.wait(30)
    before = lane.position
    add(truth, "purple plums")

    lane.catch_up(until=before)  # somebody else's: found later
    assert lane.position == before
    waiting = Thread(target=read_on, args=(lane, truth))
    waiting.start()
    done.set()
    waiting.join(30)
    process.join(30)
    assert lane.search("plums", limit=1)


def test_where_another_program_writes_a_lane_fails_and_is_not_thrown_away(tmp_path, lane, truth):
    add(truth, "purple plums")
    files = set((tmp_path / "lexical").iterdir())
    writer = tantivy.Index.open(str(tmp_path / "lexical")).writer(15_000_000, 1)

    with pytest.raises(MemoryStoreFailed, match="try again when it is done"):
        LexicalLane.open(tmp_path / "lexical", truth)
    assert files <= set((tmp_path / "lexical").iterdir())

    writer.wait_merging_threads()
    assert LexicalLane.open(tmp_path / "lexical", truth).search("plum", limit=10)


def test_where_nothing_may_be_written_the_lane_is_in_memory(tmp_path, truth):
    truth.close()
    closed = Truth.open(tmp_path, read_only=True)

    assert is_whole(tmp_path / "lexical", closed)
    assert not (tmp_path / "lexical").exists()
    closed.close()


def test_single_passages_do_not_pile_up_segments(lane, truth):
    for number in range(30):
        add(truth, f"number {number}")
        read_on(lane, truth)

    assert lane._index.searcher().num_segments < 15


def test_searches_find_what_there_is_while_the_lane_is_made_again(lane, truth):
    texts = [f"quince number {n}" for n in range(2000)]
    truth.add([(Passage(id=t, text=t), None) for t in texts], embedder=None, merge=False)
    read_on(lane, truth)
    remaking = Thread(target=lane.rebuild)

    remaking.start()
    found = [len(lane.search("quince", limit=7))]
    while remaking.is_alive():
        found.append(len(lane.search("quince", limit=7)))
    remaking.join()
    assert set(found) == {7}


NO_ROOM = """
import resource, signal, sys
from pathlib import Path
from harness.errors import MemoryStoreFailed
from harness.memory import lexical, truth

directory = Path(sys.argv[1])
opened = truth.Truth.open(directory)
lane = lexical.LexicalLane.open(directory / "lexical", opened)
behind = truth.Passage(text=" ".join(f"word{n}" for n in range(50_000)))
opened.add([(behind, None)], embedder=None)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
for attempt in (
    lambda: lane.catch_up(until=opened.last_sequence()),
    lambda: lane.rebuild(),
    lambda: lexical.LexicalLane.open(directory / "lexical", opened),
):
    try:
        attempt()
    except MemoryStoreFailed as error:
        assert "see that the disk has room" in str(error), error
    else:
        raise AssertionError("there was room")
    assert list(lane.search("apples", limit=5)) == [1]
assert not (directory / "lexical.new").exists()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
lane.catch_up(until=opened.last_sequence())
assert list(lane.search("word49999", limit=5)) == [5]
"""


def test_without_room_on_the_disk_what_was_there_stays_and_goes_on_when_there_is(tmp_path, truth):
    # In a process of its own, which may write no file of more than 100 kB.
    ran = subprocess.run(
        [sys.executable, "-c", NO_ROOM, str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert ran.returncode == 0, ran.stderr


# --- damage ----------------------------------------------------------------------------------


def is_whole(directory, truth):
    lane = LexicalLane.open(directory, truth)
    return len(lane) == len(truth) and list(lane.search("apples", limit=10)) == [1]


def test_a_lane_that_was_deleted_is_made_again(tmp_path, lane, truth):
    shutil.rmtree(tmp_path / "lexical")

    assert is_whole(tmp_path / "lexical", truth)


@pytest.mark.parametrize("content", [b"", b"garbage", None], ids=["empty", "garbage", "gone"])
@pytest.mark.parametrize("suffix", ["meta.json", ".managed.json", ".term", ".idx", ".pos", ".fast"])
def test_a_lane_with_a_damaged_file_is_made_again(tmp_path, lane, truth, suffix, content):
    damaged = [f for f in (tmp_path / "lexical").iterdir() if f.name.endswith(suffix)]
    assert damaged
    for file in damaged:
        file.unlink()  # to cut off a file that a process has mapped would end the process
        if content is not None:
            file.write_bytes(content)

    assert is_whole(tmp_path / "lexical", truth)


@pytest.mark.parametrize("suffix", [".term", ".idx", ".pos", ".fast", ".fieldnorm"])
def test_a_single_wrong_bit_is_noticed(tmp_path, lane, truth, suffix):
    (file,) = (tmp_path / "lexical").glob(f"*{suffix}")
    content = bytearray(file.read_bytes())
    content[len(content) // 4] ^= 1
    file.unlink()
    file.write_bytes(content)

    assert damaged_file(tmp_path / "lexical") == file
    assert is_whole(tmp_path / "lexical", truth)
    assert damaged_file(tmp_path / "lexical") is None


def test_a_lane_that_is_damaged_while_it_is_open_is_made_again(tmp_path, lane, truth):
    shutil.rmtree(tmp_path / "lexical")
    add(truth, "purple plums")
    read_on(lane, truth)

    assert lane.search("plums", limit=1)
    assert is_whole(tmp_path / "lexical", truth)


def test_a_lane_that_is_made_again_is_never_there_in_part(tmp_path, lane):
    # tantivy makes an empty index where it finds a directory without one.
    for number in range(300):
        (tmp_path / "lexical" / f"another {number}").touch()
    seen, done = [], Event()

    def look():
        directory = tmp_path / "lexical"
        while not done.is_set():
            with suppress(FileNotFoundError):
                this = directory.stat().st_ino
                found = (directory / "meta.json").exists()
                if directory.stat().st_ino == this:
                    seen.append(found)

    looking = Thread(target=look)
    looking.start()
    for _ in range(5):
        lane.rebuild()
    done.set()
    looking.join()
    assert seen
    assert all(seen)
    assert not list(tmp_path.glob("lexical.[no]*"))


def test_a_lane_without_its_table_of_contents_is_made_again(tmp_path, lane, truth):
    (tmp_path / "lexical" / "meta.json").unlink()

    assert is_whole(tmp_path / "lexical", truth)


def test_a_lane_of_another_schema_is_made_again(tmp_path, truth):
    (tmp_path / "lexical").mkdir()
    schema = tantivy.SchemaBuilder().add_text_field("body", tokenizer_name="english-0").build()
    tantivy.Index(schema, path=str(tmp_path / "lexical"))

    assert is_whole(tmp_path / "lexical", truth)


def test_a_lane_that_is_ahead_of_its_truth_is_made_again(tmp_path, truth):
    (tmp_path / "other").mkdir()
    longer = Truth.open(tmp_path / "other")
    add(longer, *(f"number {n}" for n in range(10)))
    LexicalLane.open(tmp_path / "lexical", longer)
    longer.close()

    assert is_whole(tmp_path / "lexical", truth)


def test_a_lane_that_lacks_a_passage_is_made_again(tmp_path, lane, truth):
    writer = lane._index.writer(15_000_000, 1)
    writer.delete_documents_by_query(lane._schema.numbered([3]))
    writer.commit()
    writer.wait_merging_threads()

    assert is_whole(tmp_path / "lexical", truth)


def test_a_place_that_cannot_hold_a_lane_is_an_error_with_the_path_of_the_store(tmp_path, truth):
    (tmp_path / "lexical").write_text("a file")

    with pytest.raises(MemoryStoreFailed, match="may be written") as caught:
        LexicalLane.open(tmp_path / "lexical", truth)
    assert caught.value.path == tmp_path
