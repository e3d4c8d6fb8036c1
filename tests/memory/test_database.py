"""Where a store may be: what a url may say, and that no password is in it."""

import sys
from pathlib import Path

import pytest
from stored import failing

from harness.errors import ConfigurationInvalid, InvalidInput
from harness.memory import MemoryStore, place_of
from harness.memory.postgres_url import PostgresUrl

URLS = {
    "all of it": "postgresql://ann%40x@[::1]:5433/my%20db?schema=mine",
    "nothing": "postgresql:///",
    "the directory of a socket": "postgresql://%2Frun%2Fpg/db",
}
WRONG = {
    "a password": ("postgresql://ann:hunter2@h/db", "memory.url-password"),
    "a password as parameter": ("postgres://h/db?password=hunter2", "memory.url-password"),
    "another address": ("postgresql://h/db?hostaddr=6.6.6.6", "memory.url-parameter"),
    "another file of passwords": ("postgresql://h/db?passfile=hunter2", "memory.url-parameter"),
    "another scheme": ("postgresql+psycopg://ann:hunter2@h/db", "memory.url-invalid"),
    "a scheme in capitals": ("PostgreSQL://ann:hunter2@h/db", "memory.url-password"),
    "a password with a slash": ("postgresql://ann:12/hunter2@h/db", "memory.url-invalid"),
    "a password with a #": ("postgresql://ann:12#hunter2@h/db", "memory.url-invalid"),
    "several hosts": ("postgresql://h:1,g:2/db", "memory.url-invalid"),
    "no schema's name": ("postgresql://h/db?schema=a;b", "memory.url-parameter"),
}


@pytest.mark.parametrize("text", URLS.values(), ids=URLS)
def test_a_url_says_again_what_it_was_read_from(text):
    url = place_of(text)
    assert str(url) == text
    assert place_of(str(url)) == url == url.absolute()


def test_a_url_is_read_as_libpq_wants_it():
    url = place_of(URLS["all of it"])
    assert url == PostgresUrl(host="::1", port=5433, user="ann@x", database="my db", schema="mine")
    assert place_of("postgres") == Path("postgres")
    assert place_of("postgres://h/db") == PostgresUrl(host="h", database="db")


@pytest.mark.parametrize(("text", "code"), WRONG.values(), ids=WRONG)
def test_a_url_with_a_password_or_another_way_out_is_refused_and_not_repeated(text, code):
    with pytest.raises(InvalidInput) as caught:
        place_of(text)
    assert caught.value.code == code
    assert "hunter2" not in str(caught.value)
    with failing(InvalidInput, code):
        MemoryStore.open(text)


def test_without_the_client_a_url_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "harness.memory.postgres", raising=False)
    with failing(ConfigurationInvalid, "memory.no-psycopg"):
        MemoryStore.open("postgresql://127.0.0.1:9/m")
