"""PostgreSQL as the primary store: several machines, lost connections, and what it refuses."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from itertools import count
from pathlib import Path
from threading import Event, Thread

import postgres
import pytest
from stored import Letters, add, failing, put
from structlog.testing import capture_logs

from harness import Pipeline, Run, Settings
from harness.errors import MemoryStoreFailed, NodeFailed
from harness.memory import MemoryStore, Passage, copy, place_of
from harness.memory.passage import wanted_tags
from harness.memory.primary import PrimaryStore
from harness.memory.sqlite import SCHEMA_VERSION

psycopg = pytest.importorskip("psycopg", reason="no postgresql: psycopg is not installed")
pytestmark = pytest.mark.slow


@pytest.fixture
def url(postgres_server, tmp_path, monkeypatch) -> str:
    monkeypatch.setenv("HOME", str(tmp_path))
    return postgres_server.url()


@pytest.fixture
def own_server():
    """One that a test may stop."""
    if reason := postgres.missing():
        pytest.skip(reason)
    with postgres.server() as running:
        yield running


def until(holds, timeout_s=10.0):
    """Waits until something holds."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- two machines ----------------------------------------------------------------------------


def test_what_one_machine_writes_another_indexes_without_being_asked(url, tmp_path):
    with (
        MemoryStore.open(url, embedder=Letters(), cache=tmp_path / "a") as one,
        MemoryStore.open(url, embedder=Letters(), cache=tmp_path / "b") as other,
    ):
        one.add([Passage(text="Badgers dig setts.", id="b"), Passage(text="Otters swim.", id="o")])
        until(lambda: other._primary.seen_sequence() == 2 and other.behind == 0)
        assert [hit.id for hit in other.search("badgers", mode="lexical")] == ["b"]
        one.delete("b")
        until(lambda: other.search("badgers", mode="lexical") == [])
        one.add([Passage(text="Foxes hunt.", id="f")])
        assert other.wait(10)
        assert other.search("foxes", mode="lexical")[0].id == "f"
        assert (other._primary.last_sequence(), other.behind) == (4, 0)
        lexical = {path.parent.name for path in tmp_path.glob("*/*/lexical")}
        assert len(lexical) == 1, "named after the store, not after how it is reached"


def test_a_search_asks_the_server_once(url, tmp_path, monkeypatch):
    from harness.memory.postgres import _Statements

    with MemoryStore.open(url, embedder=Letters(), cache=tmp_path) as store:
        store.add([Passage(text=f"An otter swims, {n}.") for n in range(40)])
        assert store.wait(10)
        until(lambda: store._primary.database.seen() == 40)
        execute, asked = _Statements.execute, []

        def heard(*call):
            asked.append((threading.get_ident(), call[1]))
            return execute(*call)

        monkeypatch.setattr(_Statements, "execute", heard)
        assert len(store.search("otter", mode="lexical")) == 4
        # The store's own threads look for passages of others meanwhile.
        own = [text for thread, text in asked if thread == threading.get_ident()]
        assert len(own) == 1, own


def test_numbers_are_committed_in_their_order_whoever_writes(url):
    writers = [PrimaryStore.open(place_of(url)) for _ in range(4)]
    reader = PrimaryStore.open(place_of(url))

    def write(number, primary):
        for i in range(30):
            add(primary, f"{number} {i}")

    threads = [Thread(target=write, args=one) for one in enumerate(writers)]
    for thread in threads:
        thread.start()
    held, position = [], 0
    while position < 120:
        last = reader.last_sequence()
        held += [number for number, _ in reader.passages_between(position, last)]
        position = last
    for one in (*threads, *writers, reader):
        (one.join if isinstance(one, Thread) else one.close)()
    assert held == list(range(1, 121))


def test_a_store_that_is_made_by_several_at_once_is_made_once(url):
    stores, faults = [], []

    def make():
        try:
            stores.append(PrimaryStore.open(place_of(url)))
        except MemoryStoreFailed as error:
            faults.append(error)

    threads = [Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert len({store.directory for store in stores}) == 1
    for store in stores:
        store.close()


# --- what fails ------------------------------------------------------------------------------


def test_a_lost_connection_is_made_again_and_a_server_that_is_gone_is_said(
    own_server, tmp_path, monkeypatch
):
    monkeypatch.setattr("harness.memory.postgres.RESTART_S", 0.1)
    with MemoryStore.open(own_server.url(), embedder=Letters(), cache=tmp_path) as store:
        store.add([Passage(text="one", id="1")])
        for how in (signal.SIGINT, signal.SIGQUIT):
            own_server.stop(how)
            until(lambda: store.behind is None)
            with failing(MemoryStoreFailed, "memory.server-unreachable"):
                store.add([Passage(text="lost")])
            own_server.start()
            store.add([Passage(text=f"after {how.name}", id=how.name)])
            assert store.get(how.name)
        until(lambda: store._primary.database.seen() == 3)
        assert len(store) == 3
    own_server.stop()
    with failing(MemoryStoreFailed, "memory.server-unreachable"):
        MemoryStore.open(own_server.url(), embedder=Letters(), cache=tmp_path)
    own_server.start()


def test_a_question_that_breaks_off_is_asked_again_where_the_connection_seems_open(
    url, tmp_path, monkeypatch
):
    breaks = iter([True])
    whole = psycopg.Cursor.executemany

    def executemany(cursor, *arguments, **options):
        if next(breaks, False):
            # libpq's, of a server that shut down while the results of a pipeline were read.
            raise psycopg.OperationalError("cannot exit pipeline mode while busy")
        return whole(cursor, *arguments, **options)

    with MemoryStore.open(url, embedder=Letters(), cache=tmp_path) as store:
        store.add([Passage(text="one", id="1")])
        monkeypatch.setattr(psycopg.Cursor, "executemany", executemany)
        assert store._primary.known([Passage(text="one", id="1")]) == {"1": 1}
    assert next(breaks, None) is None


def test_a_store_waits_through_restarts_and_each_write_is_made_once(own_server, tmp_path):
    """Two clean ones and two crashes, while two threads write and read without a pause."""
    added, faults, is_over = [], [], Event()
    with (
        capture_logs() as logs,
        MemoryStore.open(own_server.url(), embedder=Letters(), cache=tmp_path) as store,
    ):

        def work(name):
            try:
                for n in count():
                    if is_over.is_set():
                        return
                    new = store.add([Passage(text=f"{name} {n}")]).new
                    added.extend(new)
                    assert store.search(f"{name} {n}", mode="lexical")
                    if n % 3 == 0:
                        # Its own: the other thread may not have looked for its last one yet.
                        assert store.delete(*new) in (0, 1)
            except BaseException as error:  # noqa: BLE001 - told below
                faults.append(error)

        threads = [Thread(target=work, args=name) for name in "ab"]
        for thread in threads:
            thread.start()
        for how in (signal.SIGINT, signal.SIGQUIT) * 2:
            before = len(added)
            until(lambda before=before: len(added) > before + 5 or faults)
            own_server.stop(how)
            time.sleep(0.5)
            own_server.start()
        is_over.set()
        for thread in threads:
            thread.join()
        assert faults == []
        assert len(set(added)) == len(added)
        last = store._primary.last_sequence()
        stored = [passage.id for _, passage in store._primary.passages_between(0, last)]
        gone = store._primary.removed_between(0, last)
    assert set(stored) <= set(added)
    assert len(stored) + len(gone) == len(added) == last - len(gone)
    told = [log for log in logs if log["code"] == "memory.server-away"]
    assert 1 <= len(told) <= 4, "once for each time that it was away"
    assert {log["code"] for log in logs} == {"memory.server-away"}


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_write_whose_end_was_not_heard_is_neither_lost_nor_made_twice(
    url, monkeypatch, is_stored
):
    primary = PrimaryStore.open(place_of(url))
    add(primary, "zero", id="0")
    from harness.memory.postgres import _Statements

    execute, lost = _Statements.execute, []

    def once(self, statement, values=()):
        if statement != "COMMIT" or lost:
            return execute(self, statement, values)
        lost.append(statement)
        if is_stored:
            execute(self, statement, values)
        self.connection.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(_Statements, "execute", once)
    texts = {"0": "zero", "1": "one", "m": "one ", "2": "two"}
    passages = [Passage(text=text, id=name) for name, text in texts.items()]
    added = primary.add([(one, None) for one in (*passages, passages[1])], embedder=None)
    assert (added.new, added.known) == (("1", "2"), ("0", "1"))
    assert [(one.id, one.into) for one in added.merged] == [("m", "1")]
    lost.clear()
    assert primary.delete(["1", "1", "unknown"]) == 1
    assert [passage.id for _, passage in primary.passages_between(0, 9)] == ["0", "2"]
    assert primary.last_sequence() == 4
    primary.close()


def test_a_store_that_is_closed_waits_no_longer_for_its_server(own_server, tmp_path):
    store = MemoryStore.open(own_server.url(), embedder=Letters(), cache=tmp_path)
    own_server.stop()
    caught = []

    def look():
        try:
            store.get("1")
        except MemoryStoreFailed as error:
            caught.append(error.code)

    with capture_logs() as logs:
        looking = Thread(target=look)
        looking.start()
        until(lambda: logs)
        store.close()
        looking.join(10)
    assert caught == ["memory.store-closed"]
    own_server.start()


def test_a_writer_that_hangs_or_a_slow_server_is_no_endless_wait(url, postgres_server, monkeypatch):
    schema = place_of(url).schema
    primary = PrimaryStore.open(place_of(url), wait_s=0.1)
    with postgres_server.connect() as other:
        other.execute(f"BEGIN; SELECT 1 FROM {schema}.state FOR UPDATE")
        with failing(MemoryStoreFailed, "memory.store-busy"):
            put(primary, "one")
        assert len(primary) == 0
        other.execute("ROLLBACK")
        put(primary, "one")
        other.execute(f"BEGIN; LOCK {schema}.passage")
        monkeypatch.setattr("harness.memory.postgres._STATEMENT_S", 1)
        patient = PrimaryStore.open.__func__
        with failing(MemoryStoreFailed, "memory.server-slow"):
            patient(PrimaryStore, place_of(url), wait_s=60)
        other.execute("ROLLBACK")
    assert len(primary) == 1
    primary.close()


def test_a_writer_that_was_cut_off_is_told_that_its_connection_is_lost(url):
    primary = PrimaryStore.open(place_of(url))
    with failing(MemoryStoreFailed, "memory.server-lost"), primary.database.writing() as db:
        db.execute("SET LOCAL idle_in_transaction_session_timeout = 1")
        assert select.select([db.connection], [], [], 10)[0]
        db.execute("SELECT 1")
    primary.close()


def test_a_notification_of_another_program_is_not_heeded(url, postgres_server, tmp_path):
    with (
        MemoryStore.open(url, embedder=Letters(), cache=tmp_path / "a") as store,
        MemoryStore.open(url, embedder=Letters(), cache=tmp_path / "b") as writer,
        postgres_server.connect() as other,
    ):
        database = store._primary.database
        until(lambda: database.seen() == 0)
        other.execute("SELECT pg_notify(%s, 'hello')", (database._channel,))
        writer.add([Passage(text="one")])
        until(lambda: database.seen() == 1)


FOREIGN = {
    "no version": ("", "memory.foreign-database"),
    "a newer one": (str(SCHEMA_VERSION + 1), "memory.schema-newer"),
    "an older one": ("1", "memory.schema-older"),
}


@pytest.mark.parametrize(("version", "code"), FOREIGN.values(), ids=FOREIGN)
def test_tables_of_another_program_or_version_are_no_store(url, postgres_server, version, code):
    schema = place_of(url).schema
    with postgres_server.connect() as db:
        db.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.state (x int)")
        db.execute(f"COMMENT ON TABLE {schema}.state IS '{version}'")
    with failing(MemoryStoreFailed, code):
        PrimaryStore.open(place_of(url))


def test_passages_of_a_version_before_are_found_by_range(url, postgres_server):
    with MemoryStore.open(url, embedder=Letters()) as store:
        store.add([Passage(text="one", quality=8), Passage(text="two", metadata={"n": 2})])
    schema = place_of(url).schema
    with postgres_server.connect() as db:
        db.execute(f"CREATE TABLE {schema}.merged (id TEXT)")
        db.execute(f"DROP TABLE {schema}.amount")
        db.execute(f"COMMENT ON TABLE {schema}.state IS '4'")
    primary = PrimaryStore.open(place_of(url))
    assert [passage.text for _, passage in primary.passages_between(0, 2)] == ["one", "two"]
    with postgres_server.connect() as db:
        db.execute(f"UPDATE {schema}.passage SET source = 'another' WHERE text = 'one'")
    assert len(primary.damaged()) == 1
    wanted = wanted_tags({"n": {">": 1, "<=": 2}}, primary.tags_within)
    assert primary.tagged(wanted).tolist() == [2]
    primary.close()


UPGRADE = """
import sys
from harness.memory import place_of, postgres
from harness.memory.primary import PrimaryStore

upgrade = postgres.upgrade

def slow(db, version):
    upgrade(db, version)
    print("upgraded, not committed", flush=True)
    sys.stdin.read()

postgres.upgrade = slow
PrimaryStore.open(place_of(sys.argv[1]))
"""


def test_an_upgrade_that_is_killed_leaves_the_store_as_it_was(url, postgres_server):
    with MemoryStore.open(url, embedder=Letters()) as store:
        store.add([Passage(text="one", quality=8)])
    schema = place_of(url).schema

    def tables():
        with postgres_server.connect() as db:
            query = (
                "SELECT relname, obj_description(oid) FROM pg_class "
                "WHERE relkind = 'r' AND relnamespace = to_regnamespace(%s)"
            )
            return dict(db.execute(query, (schema,)).fetchall())

    new = tables()
    with postgres_server.connect() as db:
        db.execute(f"CREATE TABLE {schema}.merged (id TEXT)")
        db.execute(f"DROP TABLE {schema}.amount")
        db.execute(f"COMMENT ON TABLE {schema}.state IS '4'")
    old = tables()
    command = [sys.executable, "-c", UPGRADE, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as upgrading:
        assert upgrading.stdout.readline()
        assert tables() == old
        upgrading.kill()
    assert tables() == old
    PrimaryStore.open(place_of(url)).close()
    assert tables() == new


def test_an_identity_that_would_lead_out_of_the_cache_is_refused(url, postgres_server, tmp_path):
    PrimaryStore.open(place_of(url), cache=tmp_path / "cache").close()
    with postgres_server.connect() as db:
        db.execute(f"UPDATE {place_of(url).schema}.state SET place = %s", (str(tmp_path / "out"),))
    with failing(MemoryStoreFailed, "memory.foreign-database"):
        PrimaryStore.open(place_of(url), cache=tmp_path / "cache")
    assert not (tmp_path / "out").exists()


def test_who_may_only_read_is_told(url, postgres_server):
    schema = place_of(url).schema
    with postgres_server.connect() as db:
        PrimaryStore.open(place_of(url)).close()
        db.execute(f"CREATE ROLE r{schema} LOGIN; GRANT USAGE ON SCHEMA {schema} TO r{schema}")
        db.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO r{schema}")
    primary = PrimaryStore.open(place_of(url.replace("harness@", f"r{schema}@")))
    assert len(primary) == 0
    with failing(MemoryStoreFailed, "memory.store-read-only"):
        put(primary, "one")
    primary.close()


def test_an_id_that_no_index_can_hold_is_refused_with_its_reason(url):
    primary = PrimaryStore.open(place_of(url))
    id_ = "".join(f"{n:x}" for n in range(4000))
    with failing(MemoryStoreFailed, "memory.id-too-long"):
        add(primary, "one", id=id_)
    primary.close()


def test_a_password_gets_into_no_error_and_into_no_file_of_a_run(
    postgres_server, tmp_path, monkeypatch
):
    url = postgres_server.url().replace("harness@", f"{postgres.LOCKED}@")
    with postgres_server.connect() as db:
        db.execute(f"CREATE ROLE {postgres.LOCKED} LOGIN PASSWORD 'hunter2'")
        db.execute(f"GRANT CREATE ON DATABASE postgres TO {postgres.LOCKED}")
    pipeline = Pipeline("remembering")

    @pipeline.node
    async def remember(run: Run) -> int:
        await run.remember(f"Otters swim: {os.environ['PGPASSWORD']}.", source="a")
        return len(await run.recall("otters"))

    memory = {"path": place_of(url), "cache": tmp_path / "cache"}
    settings = Settings(traces=tmp_path / "traces", memory=memory)
    monkeypatch.setenv("PGPASSWORD", "wrong-hunter3")
    with pytest.raises(NodeFailed) as caught:
        pipeline.run(settings=settings)
    assert caught.value.__cause__.code == "memory.server-unreachable"
    assert "hunter3" not in str(caught.value)
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    assert pipeline.run(settings=settings).result == 1
    files = [path.read_bytes() for path in (tmp_path / "traces").rglob("*") if path.is_file()]
    assert len(files) > 4
    assert not any(b"hunter" in content for content in files)


def test_the_commands_take_a_url_and_only_add_makes_a_store(url, postgres_server, tmp_path):
    def memory(*arguments):
        command = [sys.executable, "-m", "harness", "memory", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    assert memory("search", "otters", "--store", url)[0] == 2
    assert memory("copy", url, "here")[0] == 2
    with postgres_server.connect() as db:
        query = "SELECT to_regnamespace(%s)"
        assert db.execute(query, (place_of(url).schema,)).fetchone() == (None,)
    (tmp_path / "note.md").write_text("# Otters\n\nThey float on their backs.\n")
    assert memory("add", "note.md", "--store", url)[0] == 0
    code, said, _ = memory("stats", "--json", "--store", url)
    assert (code, json.loads(said)["passages"]) == (0, 1)
    # As a folder's settings say, it needs the user's leave.
    (tmp_path / "harness.toml").write_text(f'[memory]\npath = "{url}"\n')
    code, _, told = memory("search", "otters")
    assert (code, "export HARNESS_ALLOW_KEYS=PGPASSWORD@127.0.0.1:" in told) == (2, True)
    assert memory("copy", url, "here")[1] == "1 of 1 passages are new in here, which has 1\n"


# --- moving ----------------------------------------------------------------------------------


@pytest.mark.parametrize("back", [False, True], ids=["to PostgreSQL", "to a directory"])
def test_a_copy_holds_all_of_a_store_and_can_be_made_again(url, tmp_path, back):
    places = (url, tmp_path / "m") if back else (tmp_path / "m", url)
    texts = [f"Passage {n} holds a \0 and a \x1a0." for n in range(600)]
    with MemoryStore.open(places[0], embedder=Letters(), language="german") as store:
        store.add(Passage(text=text, id=str(n), metadata={"n": n}) for n, text in enumerate(texts))
        store.add([Passage(text=f" {texts[3]}", id="again")])
        store.delete("7")
        hits = {mode: store.search(texts[5], mode=mode) for mode in ("lexical", "vector")}
    done = []
    for new in (599, 0):
        source = PrimaryStore.open(place_of(places[0]))
        target = PrimaryStore.open(place_of(places[1]), language=source.language)
        assert copy(source, target, lambda *one: done.append(one)) == new
        source.close()
        target.close()
    with MemoryStore.open(places[1], embedder=Letters()) as moved:
        stats = moved.stats()
        assert (stats.passages, stats.unembedded, stats.language) == (599, 0, "german")
        for mode, found in hits.items():
            assert [hit.passage for hit in moved.search(texts[5], mode=mode)] == [
                hit.passage for hit in found
            ]
    assert done[-1] == ("copying passages", 600, 601) or done[-1][1] == 600


# --- kills -----------------------------------------------------------------------------------


def test_what_was_acknowledged_outlives_killed_writers_and_a_crash_of_the_server(tmp_path):
    if reason := postgres.missing():
        pytest.skip(reason)
    script = Path(__file__).with_name("kill_and_reopen.py")
    done = subprocess.run(
        [sys.executable, script, tmp_path, "10", "postgres"], capture_output=True, check=False
    )
    tally = json.loads(done.stdout)
    assert tally["faults"] == []
    assert tally["kills"] == 10
    assert tally["acknowledged_writes"] > 0
