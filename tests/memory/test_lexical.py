"""The lexical index: what it finds, how it follows the primary, and what damage it survives."""

import dataclasses
import fcntl
import math
import shutil
from collections import Counter
from contextlib import suppress
from threading import Event, Thread

import pytest
import tantivy
from stored import add, failing, files_up_to

from harness.errors import InvalidInput, MemoryStoreFailed
from harness.memory import lexical
from harness.memory.lexical import MOST_RECENT, LexicalIndex, damaged_file
from harness.memory.passage import Passage, Turn, wanted_tags
from harness.memory.primary import PrimaryStore
from harness.memory.terms import LexicalSchema


def read_on(index, primary):
    index.catch_up(until=primary.last_sequence())


@pytest.fixture
def primary(primary):
    """One of four passages."""
    add(primary, "red apples and green apples", "a red house", "green pears", "houses of brick")
    return primary


@pytest.fixture
def index(tmp_path, primary):
    return LexicalIndex(tmp_path / "lexical", primary)


# --- searching -------------------------------------------------------------------------------


def test_scores_are_those_of_the_published_formula(index):
    # Robertson and Zaragoza 2009, with k1 = 1.2, b = 0.75 and Lucene's idf. tantivy rounds the
    # length of a document, but not below 40 words.
    documents = {
        1: ["red", "appl", "and", "green", "appl"],
        2: ["a", "red", "hous"],
        3: ["green", "pear"],
        4: ["hous", "of", "brick"],
        0: [],  # where the index notes how far it has read
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
    found = index.search("RED red apple", limit=10)

    assert found == pytest.approx({n: s for n, s in naive.items() if s}, rel=1e-5)
    assert list(index.search("RED red apple", limit=1)) == list(found)[:1]


@pytest.mark.parametrize("query", ["body:apples", "+apples -red", "[a TO apples", "*", '"red'])
def test_the_signs_of_query_languages_mean_nothing(index, query):
    found = index.search(query, limit=10)

    assert found == index.search("".join(c if c.isalnum() else " " for c in query), limit=10)


def test_a_phrase_in_quotes_and_a_word_of_a_title_count_extra(index, primary):
    add(primary, "apples, and something red", "something like apples red and round")
    add(primary, "On their colours.", title="Plums")
    add(primary, "Plums, plums, plums and other fruit.", title="Fruit")
    read_on(index, primary)

    with_phrase = list(index.search('"apples red"', limit=10))
    assert with_phrase[0] == 6
    assert len(with_phrase) > 1  # it is not required
    assert next(iter(index.search("plums", limit=9))) == 8
    assert next(iter(index.search("title:plums", limit=9))) == 7


def test_no_score_exceeds_the_ceiling_and_a_passage_of_nothing_else_comes_near(index, primary):
    add(primary, "quince " * 200)
    index.rebuild()

    (score,) = index.search("quince", limit=1).values()
    assert 0.95 * index.ceiling("quince") < score <= index.ceiling("quince")
    # A word that is nowhere counts as the rarest.
    assert index.ceiling("quince medlar") == pytest.approx(2 * index.ceiling("quince"))
    assert index.ceiling("...") == 0


def test_the_ceiling_stays_above_all_scores_when_most_that_have_a_word_are_deleted(index, primary):
    texts = [f"quince number {n}" for n in range(500)]
    primary.add([(Passage(id=t, text=t), None) for t in texts], embedder=None, merge=False)
    read_on(index, primary)
    primary.delete(texts[:-1])
    read_on(index, primary)

    assert len(index) == len(primary)
    (score,) = index.search("quince", limit=5).values()
    assert 0 < score < index.ceiling("quince")


def test_a_filter_leaves_the_scores_as_they_are(index, primary):
    add(primary, "red plums", metadata={"ripe": True, "year": 2024})
    add(primary, "red cherries", metadata={"ripe": True, "year": 2025}, source="orchard")
    read_on(index, primary)
    everything = index.search("red", limit=10)

    def found(**where):
        return index.search("red", limit=10, where=wanted_tags(where, lambda *_: ()))

    assert found(ripe=True) == {n: everything[n] for n in everything if n in (5, 6)}
    assert list(found(year=[2025, 2026])) == list(found(source="orchard")) == [6]
    assert found(ripe=True, year=1999) == {}


def test_words_are_those_of_the_stores_language(tmp_path):
    with failing(InvalidInput, "memory.unknown-language"):
        PrimaryStore.open(tmp_path, language="germann")
    primary = PrimaryStore.open(tmp_path, language="german")  # nothing was left behind
    add(primary, "Die Häuser stehen leer.", "Der Hausherr schläft.")
    index = LexicalIndex(tmp_path / "lexical", primary)

    assert list(index.search("haus", limit=5)) == [1]
    primary.close()


def test_a_hundred_kilobytes_of_different_words_are_a_query(index):
    many = " ".join(f"word{n}" for n in range(10_000))

    assert list(index.search(f"apples {many}", limit=10)) == [1]


# --- reading on ------------------------------------------------------------------------------


def test_it_follows_what_is_written_and_deleted(index, primary):
    apples, house = primary.fetch([1, 2]).values()
    add(primary, "purple plums")
    primary.delete([apples.id, house.id])
    add(primary, "a blue boat")
    read = index.position

    # Before a commit has it, and after.
    assert index.search("plum", limit=10).keys() == {5}
    assert index.search("apples", limit=10) == {}
    assert index.position == read
    assert index.is_behind
    read_on(index, primary)
    assert index.search("plum", limit=10).keys() == {5}
    assert index.search("apples", limit=10) == {}
    assert index.search("house", limit=10).keys() == {4}
    assert index.search("boat", limit=10).keys() == {8}
    assert len(index) == len(primary) == 4


def test_what_is_not_committed_is_scored_as_what_is(index, primary):
    words = {10: "plums", 7: "a purple house", 5: "apples", 3: "a number", 1: "grain and straw"}
    add(
        primary,
        *(f"{n}: " + ", ".join(w for m, w in words.items() if not n % m) for n in range(500)),
        title="The plum reader",
    )
    read_on(index, primary)
    add(primary, "plums and a purple house", title="A purple plum")
    add(
        primary,
        "the house of a plum",
        *(f"the number {n} of apples" for n in range(20)),
        title="Pears",
    )
    questions = ("plum house", '"purple house"', "title:plum apples", "house number", "unheard")
    before = [index.search(question, limit=9) for question in questions]
    assert index.is_behind

    read_on(index, primary)
    after = [index.search(question, limit=9) for question in questions]
    assert not index.is_behind
    for ours, tantivys in zip(before, after, strict=True):
        assert list(ours) == list(tantivys)
        # The figures are those of the index, without the new passages.
        assert list(ours.values()) == pytest.approx(list(tantivys.values()), rel=0.1)


def test_what_is_not_committed_is_filtered_and_many_wait_for_a_commit(index, primary):
    add(primary, "plums", metadata={"year": 2024})
    add(primary, "plums again", metadata={"year": 2025})
    wanted = wanted_tags({"year": 2025}, primary.tags_within)
    assert list(index.search("plums", limit=9, where=wanted)) == [primary.last_sequence()]

    add(primary, *(f"plum {n}" for n in range(MOST_RECENT)))
    index.search("plums", limit=9)
    assert index.position == primary.last_sequence()


def test_the_length_of_a_turn_hardly_counts(index, primary):
    long = " ".join(["grapes", *(f"word{n}" for n in range(40))])
    turn = Turn(conversation="c", position=1, speaker="Ann")
    add(primary, long, turn=turn)
    add(primary, "grapes", turn=dataclasses.replace(turn, position=2))
    add(primary, long)
    add(primary, "grapes")
    read_on(index, primary)
    last = primary.last_sequence()
    long_turn, turn_, long_text, text = (
        index.search("grapes", limit=9)[last - n] for n in (3, 2, 1, 0)
    )
    assert long_turn == turn_
    assert text > 1.5 * long_text
    assert index.search("ann", limit=9).keys() == {last - 3, last - 2}


def test_only_what_is_ones_own_is_worth_waiting_for(tmp_path, index, primary, monkeypatch):
    monkeypatch.setattr(lexical, "_TURN_WAIT_S", 0)
    before = index.position
    add(primary, "purple plums")

    with (tmp_path / "lexical.lock").open("w") as theirs:  # as another process has it
        fcntl.flock(theirs, fcntl.LOCK_EX)
        index.catch_up(until=before)  # somebody else's: found later
        assert index.position == before
        with failing(MemoryStoreFailed, "memory.lane-busy"):
            read_on(index, primary)
        monkeypatch.undo()
        waiting = Thread(target=read_on, args=(index, primary))
        waiting.start()
    waiting.join()
    assert index.search("plums", limit=1)


@pytest.mark.slow
def test_an_index_that_is_made_again_is_never_there_in_part(tmp_path, index):
    # tantivy makes an empty index where it finds a directory without one.
    directory = tmp_path / "lexical"
    for number in range(300):
        (directory / f"another {number}").touch()
    seen, done = [], Event()

    def look():
        while not done.is_set():
            with suppress(FileNotFoundError):
                this = directory.stat().st_ino
                found = (directory / "meta.json").exists()
                if directory.stat().st_ino == this:
                    seen.append(found)

    looking = Thread(target=look)
    looking.start()
    for _ in range(5):
        index.rebuild()
    done.set()
    looking.join()
    assert seen
    assert all(seen)
    assert not list(tmp_path.glob("lexical.[no]*"))


def test_without_room_on_the_disk_what_was_there_stays_and_goes_on_when_there_is(
    tmp_path, index, primary
):
    add(primary, " ".join(f"word{n}" for n in range(50_000)))
    with files_up_to(100_000):
        for attempt in (
            lambda: read_on(index, primary),
            index.rebuild,
            lambda: LexicalIndex(tmp_path / "lexical", primary),
        ):
            with failing(MemoryStoreFailed, "memory.lane-unreadable"):
                attempt()
            assert list(index.search("apples", limit=5)) == [1]
    assert not (tmp_path / "lexical.new").exists()
    read_on(index, primary)
    assert list(index.search("word49999", limit=5)) == [5]


# --- damage ----------------------------------------------------------------------------------


def replace(file, content):
    """To cut off a file that a process has mapped would end the process."""
    file.unlink()
    if content is not None:
        file.write_bytes(content)


def spoilt(directory, ending, content):
    files = [file for file in directory.iterdir() if file.name.endswith(ending)]
    assert files
    for file in files:
        replace(file, content)


def another_schema(directory):
    shutil.rmtree(directory)
    directory.mkdir()
    schema = tantivy.SchemaBuilder().add_text_field("body", tokenizer_name="english-0").build()
    tantivy.Index(schema, path=str(directory))


def of_a_longer_store(directory):
    shutil.rmtree(directory)
    longer = PrimaryStore.open(directory.with_name("longer"))
    add(longer, *(f"number {n}" for n in range(10)))
    LexicalIndex(directory, longer)
    longer.close()


def one_passage_less(directory):
    writer = tantivy.Index.open(str(directory)).writer(15_000_000, 1)
    writer.delete_documents_by_query(LexicalSchema("english").numbered([3]))
    writer.commit()
    writer.wait_merging_threads()


HARM = {
    "deleted": shutil.rmtree,
    "another schema": another_schema,
    "ahead of its primary": of_a_longer_store,
    "a passage less": one_passage_less,
    "no table of contents at all": lambda directory: spoilt(directory, "meta.json", b""),
    "postings empty": lambda directory: spoilt(directory, ".idx", b""),
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
def test_an_index_that_is_not_as_it_should_be_is_made_again(tmp_path, index, primary, harm):
    directory = tmp_path / "lexical"
    harm(directory)

    again = LexicalIndex(directory, primary)
    assert len(again) == len(primary)
    assert list(again.search("apples", limit=10)) == [1]
    assert damaged_file(directory) is None


def test_an_index_that_is_damaged_while_it_is_open_is_made_again(tmp_path, index, primary):
    shutil.rmtree(tmp_path / "lexical")
    add(primary, "purple plums")
    read_on(index, primary)

    assert index.search("plums", limit=1)
    assert len(LexicalIndex(tmp_path / "lexical", primary)) == 5


def test_a_place_that_cannot_hold_an_index_is_an_error_with_the_stores_path(tmp_path, primary):
    (tmp_path / "lexical").write_text("a file")

    with pytest.raises(MemoryStoreFailed) as caught:
        LexicalIndex(tmp_path / "lexical", primary)
    assert (caught.value.code, caught.value.path) == ("memory.lane-unreadable", tmp_path)


# --- checksums -------------------------------------------------------------------------------

KINDS = ["term", "idx", "pos", "fieldnorm", "fast", "store", "del"]


def test_a_single_wrong_bit_is_found_wherever_it_is(tmp_path, index, primary, monkeypatch):
    primary.delete([primary.fetch([1])[1].id])
    read_on(index, primary)
    monkeypatch.setattr(lexical, "_BLOCK_BYTES", 10)  # a file is read in many parts
    directory = tmp_path / "lexical"
    assert damaged_file(directory) is None
    for kind in KINDS:
        file = min(directory.glob(f"*.{kind}"))
        whole = file.read_bytes()
        footer_length = int.from_bytes(whole[-8:-4], "little") + 8
        for at in (0, -footer_length - 1, -1):
            content = bytearray(whole)
            content[at] ^= 1
            replace(file, content)
            assert damaged_file(directory) == file, (kind, at)
        replace(file, whole)


NOT_TANTIVYS = {
    "shorter than any": b"red",
    "a footer longer than the file": b"\xff\xff\xff\xff\x39\x05\x00\x00",
    "a footer that is no JSON": b"nojson\x06\x00\x00\x00\x39\x05\x00\x00",
    "a footer of another form": b"[]\x02\x00\x00\x00\x39\x05\x00\x00",
}


@pytest.mark.parametrize("content", NOT_TANTIVYS.values(), ids=NOT_TANTIVYS)
def test_what_tantivy_did_not_write_is_damaged(tmp_path, index, content):
    file = min((tmp_path / "lexical").glob("*.term"))
    replace(file, content)

    assert damaged_file(tmp_path / "lexical") == file
