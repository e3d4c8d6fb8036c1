"""`harness memory` as a person meets it."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from command import NOBODY, Done, harness, serving
from golden import assert_shown
from servers.openai_dialects import DIALECTS
from servers.openai_server import OpenAIServer

from harness.cli.arguments import scalar_of
from harness.cli.passage_files import Defaults, passages_in
from harness.errors import InvalidInput
from harness.memory import MemoryStore, Scalar

GUIDE = "Before.\n\n# Otters\n\nThey float on their backs.\n\n# Herons\n\nThey stand still.\n"
LINES = (
    '{"_id": "d1", "title": "Foxes", "text": "They hunt voles.", "metadata": {"year": 2024}}\n'
    "\n"
    '{"_id": "d2", "text": "A log is written first.", "quality": 9, "source": "manual"}\n'
)
HIDDEN = "invoice\u202efdp.exe"


def memory(*arguments: str, cwd: Path, stdin: str | io.BytesIO = "", columns: int = 200) -> Done:
    """The command, with a store called `kept` unless it is told otherwise."""
    store = () if (cwd / "harness.toml").exists() else ("--store", "kept")
    return harness("memory", *arguments, *store, cwd=cwd, stdin=stdin, COLUMNS=str(columns))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with files, and a store `kept` of them; not to be changed."""
    place = tmp_path_factory.mktemp("memory")
    (place / "notes" / ".hidden").mkdir(parents=True)
    (place / "notes/guide.md").write_text(GUIDE)
    (place / "notes/more.jsonl").write_text(LINES)
    (place / "notes/photo.png").write_bytes(b"\x89PNG")
    (place / "notes/.hidden/secret.md").write_text("# Not to be read")
    done = memory("add", "notes", "--json", cwd=place)
    assert done.json == {"new": 5, "known": 0, "merged": 0, "refused": [], "passages": 5}
    assert done.stderr == "", "no bar where nobody watches"
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy of one's own."""
    return shutil.copytree(made, tmp_path / "place")


# --- add -----------------------------------------------------------------------------------------


def test_standard_input_is_a_document_with_what_the_options_say(tmp_path: Path) -> None:
    added = memory(
        *("add", "-", "--title", "Tides", "--source", "almanac", "--quality", "8.5"),
        *("--metadata", "year=2024", "--metadata", "checked=true", "--json"),
        cwd=tmp_path,
        stdin="The sea rises twice a day.",
    )
    assert added.json["new"] == 1
    (hit,) = memory("search", "when does the sea rise", "--json", cwd=tmp_path).json["hits"]
    assert (hit["title"], hit["source"], hit["quality"]) == ("Tides", "almanac", 8.5)
    assert hit["metadata"] == {"year": 2024, "checked": True}


def test_lines_are_passages_and_a_mistake_is_told(tmp_path: Path) -> None:
    done = memory("add", "-", "--jsonl", cwd=tmp_path, stdin=LINES + "oops\n")
    assert_shown("memory", "add: a line that is none", done)
    assert memory("add", "-", "--jsonl", cwd=tmp_path, stdin=LINES).exit_code == 0
    got = memory("get", "d1", cwd=tmp_path).json
    assert (got["title"], got["text"]) == ("Foxes", "They hunt voles.")
    assert (got["source"], got["quality"]) == ("standard input", None)
    again = memory("add", "-", "--jsonl", "--json", cwd=tmp_path, stdin=LINES)
    assert (again.exit_code, again.json["known"]) == (0, 2)


def test_lines_of_standard_input_are_not_taken_for_a_document(tmp_path: Path) -> None:
    refused = memory("add", "-", "--json", cwd=tmp_path, stdin=LINES)
    assert (refused.exit_code, refused.code) == (2, "passage.needs-jsonl")
    assert memory("add", "-", cwd=tmp_path, stdin=f"# A line\n\n{LINES}").exit_code == 0


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ('"titel": "y"', "passage.malformed"),
        ('"turn": {"conversation": "c", "position": 1, "at": 2}', "passage.malformed"),
        ('"turn": {"conversation": "c"}', "passage.malformed"),
        ('"turn": 3', "passage.malformed"),
        ('"quality": 11', "passage.quality-out-of-range"),
        ('"created": "2026-01-01T00:00"', "passage.no-time-zone"),
    ],
)
def test_a_line_that_is_no_passage_is_told_with_its_number(
    tmp_path: Path, field: str, code: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "fine"}}\n\n{{"text": "x", {field}}}\n')
    with pytest.raises(InvalidInput) as caught:
        list(passages_in([path], Defaults(), jsonl=False))
    assert (caught.value.path, caught.value.line, caught.value.code) == (path, 3, code)
    assert_shown("memory", f"add: {field}", str(caught.value), masks={str(tmp_path): "/place"})


def test_a_refused_passage_is_told_and_the_others_are_stored(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(f"# Fine\n\nOtters float.\n\n# News\n\n{HIDDEN}\n")
    done = memory("add", "a.md", cwd=tmp_path)
    assert_shown("memory", "add: a refused passage", done)
    (refused,) = memory("add", "a.md", "--json", cwd=tmp_path).json["refused"]
    assert (refused["title"], refused["code"]) == ("News", "injection.hidden-characters")


@pytest.mark.parametrize(
    "arguments", ["nothing.md", "data", "text --metadata title=x", "text --metadata x=1e999"]
)
def test_what_cannot_be_added_is_told(tmp_path: Path, arguments: str) -> None:
    (tmp_path / "data").write_bytes(b"a\0b")
    (tmp_path / "text").write_text("text")
    done = memory("add", *arguments.split(), cwd=tmp_path)
    assert_shown("memory", f"add: {arguments}", done)


def test_the_configuration_names_the_store_and_how_it_is_made(tmp_path: Path) -> None:
    nowhere = harness("memory", "add", "-", "--json", cwd=tmp_path, stdin="text")
    assert_shown("memory", "no store", nowhere.stderr)
    (tmp_path / "harness.toml").write_text('[memory]\npath = "here"\nlanguage = "german"\n')
    assert memory("add", "-", cwd=tmp_path, stdin="Alte Häuser am Fluss.").exit_code == 0
    stats = memory("stats", "--json", cwd=tmp_path).json
    assert (stats["passages"], stats["language"]) == (1, "german")
    assert (tmp_path / "here").is_dir()


class Terminated(io.BytesIO):
    """What is piped in, and then SIGTERM in place of an end."""

    def read1(self, size: int | None = -1) -> bytes:
        data = super().read1(size)
        if not data:
            signal.raise_signal(signal.SIGTERM)
        return data


def test_an_add_that_is_told_to_end_keeps_what_it_stored(tmp_path: Path) -> None:
    lines = "".join(f'{{"text": "number{n} thing{n} of many{n}"}}\n' for n in range(500))
    done = memory("add", "-", "--jsonl", cwd=tmp_path, stdin=Terminated(lines.encode()))
    assert (done.exit_code, done.stdout) == (143, "")
    assert done.stderr == "interrupted\n"
    with MemoryStore.open(tmp_path / "kept") as store:
        assert len(store) == 500


# --- search, get, delete -------------------------------------------------------------------------


def test_a_search_finds_the_part_of_a_document_or_says_that_there_is_none(made: Path) -> None:
    done = memory("search", "float on the back", cwd=made)
    assert_shown("memory", "search", done)
    narrow = memory("search", "float on the back", cwd=made, columns=80).stdout
    assert max(map(len, narrow.splitlines())) <= 80
    assert "They float on their backs." in narrow
    none = memory("search", "quarterly shipping revenue", cwd=made)
    assert_shown("memory", "search: nothing", none)


def test_a_filter_that_no_passage_satisfies_is_said(made: Path) -> None:
    for query, where in (
        ("float", ["source=brief"]),
        ("quarterly revenue", ["year=2024"]),
        ("foxes", ["year=2024", "year>2"]),
        ("foxes", ["year>=2025", "year>=2020"]),
    ):
        options = [part for pair in where for part in ("--where", pair)]
        done = memory("search", query, *options, cwd=made)
        assert_shown("memory", f"search: {query} {' '.join(where)}", done)


def test_a_secret_where_an_excerpt_ends_is_not_printed_in_part(tmp_path: Path) -> None:
    secret = "tawny-owl-in-the-barn"
    texts = (f"otters {'x' * length} {secret} and more of it" for length in range(130, 155, 5))
    lines = "\n".join(json.dumps({"text": text}) for text in texts)
    memory("add", "--jsonl", "-", cwd=tmp_path, stdin=lines)
    many = ["--limit", "9", "--store", "kept"]
    found = harness("memory", "search", "otters", *many, cwd=tmp_path, NEST_KEY=secret).stdout
    assert "[redacted" in found
    assert "tawny" not in found


@pytest.mark.parametrize(
    ("query", "where", "found"),
    [
        pytest.param("foxes and otters", ["year=2024"], {"Foxes"}, id="number"),
        pytest.param("foxes and otters", ["title=Otters", "year=2024"], set(), id="both"),
        pytest.param("foxes", ["year>=2024", "year<2025"], {"Foxes"}, id="range"),
        pytest.param("foxes", ["year>2024"], set(), id="beyond"),
        pytest.param("foxes", ["year >= 2024"], {"Foxes"}, id="blanks"),
        pytest.param(
            "herons and otters", ["title=Otters", "title=Herons"], {"Otters", "Herons"}, id="either"
        ),
    ],
)
def test_a_search_keeps_to_its_filter(
    made: Path, query: str, where: list[str], found: set[str]
) -> None:
    options = [part for pair in where for part in ("--where", pair)]
    hits = memory("search", query, *options, "--json", cwd=made).json["hits"]
    assert {hit["title"] for hit in hits} == found


def test_turns_are_added_from_lines_and_shown(tmp_path: Path) -> None:
    lines = "\n".join(
        json.dumps({"text": text, "turn": {"conversation": "c", "position": n, "speaker": "Ann"}})
        for n, text in enumerate(["Hello.", "Otters float.", "Do they?"])
    )
    assert memory("add", "--jsonl", "-", cwd=tmp_path, stdin=lines).exit_code == 0
    options = ("--limit", "1", "--half-life", "30", "--json")
    (hit,) = memory("search", "otters float", *options, cwd=tmp_path).json["hits"]
    assert hit["turn"] == {"conversation": "c", "position": 1, "speaker": "Ann"}
    wrong = '{"text": "x", "turn": {"conversation": "c", "position": "first"}}'
    done = memory("add", "--jsonl", "-", cwd=tmp_path, stdin=wrong)
    assert done.exit_code == 2
    assert "turn.position" in done.stderr


def test_a_search_by_words_has_no_cosines(made: Path) -> None:
    options = ("--mode", "lexical", "--limit", "1", "--json")
    (hit,) = memory("search", "voles", *options, cwd=made).json["hits"]
    assert (hit["id"], hit["rank"], hit["vector"]) == ("d1", 1, None)
    assert hit["lexical"] > 0


def test_a_deleted_passage_is_gone_and_others_stay(place: Path) -> None:
    done = memory("delete", "d1", "d9", cwd=place)
    assert_shown("memory", "delete", done)
    assert_shown("memory", "compact", memory("compact", cwd=place), masks={r"\d+\.\d+": "0"})
    gone = memory("get", "d1", cwd=place)
    assert gone.exit_code == 2
    assert "'d1'" in gone.stderr
    assert memory("get", "d2", cwd=place).exit_code == 0


@pytest.mark.parametrize("command", ["search x", "get x", "delete x", "rebuild"])
def test_looking_into_a_store_that_is_not_there_makes_none(tmp_path: Path, command: str) -> None:
    done = memory(*command.split(), cwd=tmp_path)
    assert_shown("memory", f"no store: {command}", done)
    assert not (tmp_path / "kept").exists()


def test_a_copy_has_all_that_a_store_has_and_is_made_once(made: Path, tmp_path: Path) -> None:
    for new in (5, 0):
        done = harness("memory", "copy", str(made / "kept"), "other", cwd=tmp_path)
        assert done.stdout == f"{new} of 5 passages are new in other, which has 5\n"
    find = ("memory", "search", "what hunts voles", "--json", "--store")
    here, there = (harness(*find, one, cwd=tmp_path) for one in ("other", str(made / "kept")))
    assert here.json == there.json
    none = harness("memory", "copy", "none", "third", cwd=tmp_path)
    assert (none.exit_code, (tmp_path / "third").exists()) == (2, False)


def test_a_password_in_a_url_is_refused_wherever_it_is_given(made: Path) -> None:
    url = "postgresql://ann:hunter2@127.0.0.1:9/m"
    for arguments in (
        ("memory", "stats", "--store", url),
        ("memory", "copy", "kept", url),
        ("run", "router", "--memory", url),
    ):
        done = harness(*arguments, cwd=made)
        assert (done.exit_code, "holds a password" in done.stderr) == (2, True)
        assert "hunter2" not in done.stderr + done.stdout


# --- upkeep --------------------------------------------------------------------------------------


def test_indexes_can_be_thrown_away_and_made_again(place: Path) -> None:
    for path in sorted((place / "kept").rglob("*"), reverse=True):
        if not path.name.startswith("passages.sqlite"):
            path.rmdir() if path.is_dir() else path.unlink()
    assert memory("rebuild", cwd=place).stdout == "made again from 5 passages\n"
    found = memory("search", "voles", "--json", cwd=place).json
    assert [hit["id"] for hit in found["hits"]] == ["d1"]


def test_stats_say_what_there_is(made: Path) -> None:
    stats = memory("stats", "--json", cwd=made).json
    assert (stats["passages"], stats["unembedded"]) == (5, 0)
    assert stats["embedder"].startswith(("wordllama", "all-MiniLM"))
    masks = {r"(bytes|embedder|dimensions) .*": r"\1"}
    assert_shown("memory", "stats", memory("stats", cwd=made), masks=masks)


def test_what_became_one_is_counted(tmp_path: Path) -> None:
    lines = '{"_id": "a", "text": "It floats."}\n{"_id": "b", "text": " It floats."}\n'
    assert memory("add", "-", "--jsonl", "--json", cwd=tmp_path, stdin=lines).json["merged"] == 1
    assert memory("stats", "--json", cwd=tmp_path).json["passages"] == 1


# --- an endpoint that embeds ---------------------------------------------------------------------

EMBEDDER = """\
[memory]
path = "kept"
embedder = "vectors"

[endpoints.vectors]
url = "{}"
backend = "vllm"
embeddings = true
timeout_s = 2
"""


def test_an_endpoint_may_embed(tmp_path: Path) -> None:
    with serving(OpenAIServer(dialect=DIALECTS["vllm"])) as server:
        (tmp_path / "harness.toml").write_text(EMBEDDER.format(server.url))
        added = memory("add", "-", cwd=tmp_path, stdin=GUIDE)
        assert added.exit_code == 0, added.stderr
        stats = memory("stats", "--json", cwd=tmp_path).json
    assert stats["embedder"].startswith("vectors/")
    assert (stats["passages"], stats["dimensions"], stats["unembedded"]) == (3, 2, 0)
    (tmp_path / "harness.toml").write_text(EMBEDDER.format(f"{NOBODY}/v1"))
    done = memory("add", "-", "--json", cwd=tmp_path, stdin=HIDDEN)
    assert done.exit_code == 1
    assert done.code in {"call.unreachable", "call.timeout"}  # which, a busy machine decides


def test_check_names_what_is_damaged_and_delete_removes_it(tmp_path: Path) -> None:
    lines = '{"_id": "a", "text": "Tea."}\n{"_id": "b", "text": "Bread."}\n'
    memory("add", "-", "--jsonl", cwd=tmp_path, stdin=lines)
    assert memory("check", cwd=tmp_path).exit_code == 0
    with closing(sqlite3.connect(tmp_path / "kept/passages.sqlite")) as db, db:
        db.execute("UPDATE passage SET text = 'Beer.' WHERE id = 'a'")

    checked = memory("check", "--json", cwd=tmp_path)
    assert (checked.exit_code, checked.json) == (1, {"passages": 2, "damaged": ["a"]})
    damaged = memory("get", "a", cwd=tmp_path).stderr
    assert "'a' is damaged" in damaged
    told = damaged + memory("check", cwd=tmp_path).stderr
    remedies = re.findall(r"'[^'\n]*(memory (?:check|delete) [^']*)'", told)
    assert [remedy.partition(" --store kept")[0] for remedy in remedies] == [
        *("memory check", "memory delete", "memory delete")
    ]
    assert harness(*shlex.split(remedies[-1]), cwd=tmp_path).exit_code == 0
    assert memory("check", cwd=tmp_path).exit_code == 0


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [("2024", 2024), ("true", True), ('"2024"', "2024"), ("null", "null"), ("NaN", "NaN")],
)
def test_a_value_is_what_json_says_of_it_and_else_a_text(text: str, value: Scalar) -> None:
    found = scalar_of(text)
    assert (found, type(found)) == (value, type(value))
