import json
from random import Random

import pytest
import tantivy

from harness.memory.checksums import damaged_file


@pytest.fixture
def directory(tmp_path):
    """An index as tantivy wrote it, of two segments, with a deletion."""
    schema = tantivy.SchemaBuilder().add_text_field("body", stored=True).build()
    index = tantivy.Index(schema, path=str(tmp_path))
    for text in ("red otters", "red herons"):
        writer = index.writer(15_000_000, 1)
        for word in (text, "green"):
            document = tantivy.Document()
            document.add_text("body", word)
            writer.add_document(document)
        writer.commit()
        writer.wait_merging_threads()
    writer = index.writer(15_000_000, 1)
    writer.delete_documents_by_term("body", "otters")
    writer.commit()
    writer.wait_merging_threads()
    return tmp_path


KINDS = ["term", "idx", "pos", "fieldnorm", "fast", "store", "del"]


def replace(file, content):
    file.unlink()
    file.write_bytes(content)


def test_an_index_as_it_was_written_is_whole(directory):
    assert {file.suffix[1:] for file in directory.iterdir()} >= set(KINDS)
    assert damaged_file(directory) is None


@pytest.mark.parametrize("place", ["first", "last before the footer", "last"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_single_wrong_bit_is_found(directory, kind, place):
    file = min(directory.glob(f"*.{kind}"))
    content = bytearray(file.read_bytes())
    footer_length = int.from_bytes(content[-8:-4], "little") + 8
    at = {"first": 0, "last before the footer": -footer_length - 1, "last": -1}[place]
    content[at] ^= 1
    replace(file, content)

    assert damaged_file(directory) == file


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"red", id="shorter than any"),
        pytest.param(bytes(100), id="zeros"),
        pytest.param(b"\xff\xff\xff\xff\x39\x05\x00\x00", id="a footer longer than the file"),
        pytest.param(b"nojson\x06\x00\x00\x00\x39\x05\x00\x00", id="a footer that is no JSON"),
        pytest.param(b"[]\x02\x00\x00\x00\x39\x05\x00\x00", id="a footer of another form"),
    ],
)
def test_what_tantivy_did_not_write_is_damaged(directory, content):
    file = min(directory.glob("*.term"))
    replace(file, content)

    assert damaged_file(directory) == file


def test_a_file_that_was_cut_off_is_damaged(directory):
    file = min(directory.glob("*.store"))
    replace(file, file.read_bytes()[:-1])

    assert damaged_file(directory) == file


def test_a_file_of_several_blocks_is_read_to_its_end(tmp_path):
    schema = tantivy.SchemaBuilder().add_bytes_field("raw", stored=True).build()
    writer = tantivy.Index(schema, path=str(tmp_path)).writer(15_000_000, 1)
    document = tantivy.Document()
    document.add_bytes("raw", Random(0).randbytes(3 << 20))
    writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()
    (file,) = tmp_path.glob("*.store")
    content = bytearray(file.read_bytes())

    assert damaged_file(tmp_path) is None
    content[5 << 19] ^= 1
    replace(file, content)
    assert damaged_file(tmp_path) == file


def test_files_that_belong_to_no_segment_are_left_alone(directory):
    (directory / f"{'0' * 32}.term").write_bytes(b"half of a")

    assert damaged_file(directory) is None


@pytest.mark.parametrize("content", ["", "{", "{}", "[]"], ids=["empty", "cut off", "{}", "[]"])
def test_a_table_of_contents_that_cannot_be_read_is_an_error(directory, content):
    (directory / "meta.json").write_text(content)

    with pytest.raises(ValueError, match=r"meta\.json"):
        damaged_file(directory)


def test_segments_are_those_of_the_table_of_contents(directory):
    contents = json.loads((directory / "meta.json").read_text())
    gone = contents["segments"].pop(0)["segment_id"].replace("-", "")
    (directory / "meta.json").write_text(json.dumps(contents))
    for file in directory.glob(f"{gone}.*"):
        replace(file, b"")

    assert damaged_file(directory) is None
