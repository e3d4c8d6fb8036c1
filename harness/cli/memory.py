"""`harness memory`: adds passages to a store, searches it, and maintains it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from functools import wraps
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any, get_args

import click
from rich.console import Console
from rich.text import Text

from harness.cli.arguments import config_option, json_option, read_filter, read_metadata
from harness.cli.consoles import Group, Shown, clean, json_object, results, say, show, write_json
from harness.cli.passage_files import ENDINGS, Defaults, passages_in
from harness.cli.process import FAILED
from harness.cli.project_files import store_place
from harness.cli.run_result import command_here
from harness.cli.tables import UNKNOWN, print_line
from harness.errors import InvalidInput
from harness.memory import (
    Hits,
    MemoryStore,
    Mode,
    Passage,
    Place,
    PrimaryStore,
    Progress,
    Refusal,
    copy,
)
from harness.memory.passage import Stats
from harness.rows import files_named
from harness.session import Settings, load_settings
from harness.session.passages import open_store

_EXCERPT_CHARS = 160
# Passages stored at a time: a tenth of a second's work on two cores, mostly embedding.
_BATCH = 500
_MOST_IDS = 20


def _store_options(command: Callable[..., None]) -> Callable[..., None]:
    option = click.option(
        "--store",
        callback=store_place,
        metavar="DIR|URL",
        help="The store's directory or PostgreSQL url, in place of [memory] path.",
    )
    return option(config_option(command))


def _of_store(command: Callable[..., None]) -> Callable[..., None]:
    """Adds --store and --config to a command, which gets the store, open."""

    @wraps(command)
    def with_store(*, store: Place | None, config: Path | None, **options: Any) -> None:  # noqa: ANN401
        # A search makes no store.
        with open_store(_settings(store, config), make=False) as opened:
            command(store=opened, **options)

    return _store_options(with_store)


def _command(name: str) -> str:
    """What to type for another command on the same store."""
    command = f"{command_here()} memory {name}"
    for option in ("store", "config"):
        value = click.get_current_context().params.get(option)
        if value is not None:
            command += f" --{option} {quote(str(value))}"
    return command


@click.group(cls=Group)
def memory() -> None:
    """The passages that pipelines remember: add, search, maintain.

    Exit codes: 0 done, 1 failed in whole or in part, 2 invalid input, 130 interrupted, 143
    terminated.
    """


@memory.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE|DIR|-...")
@click.option("--jsonl", is_flag=True, help="Read all files as JSON Lines.")
@click.option("--title", default="", help="Title of passages before a document's first heading.")
@click.option("--source", help="Source of the passages; by default the file's name.")
@click.option("--quality", type=click.FloatRange(0, 10), help="Quality of the passages, 0 to 10.")
@click.option(
    "--metadata",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="Metadata of the passages: a number, true, false or text. May be repeated.",
)
@json_option
@_store_options
def add(
    *,
    files: tuple[str, ...],
    jsonl: bool,
    pairs: tuple[str, ...],
    as_json: bool,
    store: Place | None,
    config: Path | None,
    **fields: Any,  # noqa: ANN401 - of `Defaults`
) -> None:
    """Store the passages of files, directories, or standard input (-).

    Markdown and text are split at their headings. A line of JSON Lines is a passage: "text", and
    optionally "_id", "title", "source", "quality", "created", "metadata". Stored passages stay as
    they are, so a command that failed or was interrupted can be run again.
    """
    counts = dict.fromkeys(("new", "known", "merged"), 0)
    refused: list[Refusal] = []
    defaults = Defaults(metadata=read_metadata(pairs), **fields)
    passages = passages_in(files_named(files, endings=ENDINGS), defaults, jsonl=jsonl)
    with (
        _shown_progress() as progress,
        open_store(_settings(store, config), progress=progress) as opened,
    ):
        while batch := [*islice(passages, _BATCH)]:
            added = opened.add(batch)
            for outcome in counts:
                counts[outcome] += len(getattr(added, outcome))
            for refusal in added.refused:
                say(f"harness: refused '{refusal.title or refusal.id}': {refusal.reason}", err=True)
            refused += added.refused
        # Otherwise the next command would have to embed what this one added.
        opened.wait()
        stored = len(opened)
    if as_json:
        outcomes = {**counts, "refused": [*map(asdict, refused)], "passages": stored}
        write_json(json_object(outcomes))
    else:
        numbers = {**counts, "refused": len(refused)}
        parts = [f"{count:,} {outcome}" for outcome, count in numbers.items() if count]
        say(f"{', '.join(parts) or 'nothing to add'}; {stored:,} passages in the store")
    if refused:
        sys.exit(FAILED)


@memory.command()
@click.argument("query")
@click.option("--limit", type=click.IntRange(min=1), default=4, show_default=True)
@click.option(
    "--mode",
    type=click.Choice(get_args(Mode)),
    default="hybrid",
    show_default=True,
    help="hybrid: by words and meaning; lexical: by words; vector: by meaning.",
)
@click.option(
    "--where",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="Only passages with this metadata, source or title, or with a number in a range: "
    "'year>=2024'. May be repeated: all names must match, with any of the values given for a "
    "name, or within all of its bounds.",
)
@click.option(
    "--half-life",
    "half_life_days",
    type=float,
    metavar="DAYS",
    help="The age at which a passage's relevance counts half; without it, age does not count.",
)
@json_option
@_of_store
def search(
    *,
    query: str,
    limit: int,
    mode: Mode,
    pairs: tuple[str, ...],
    half_life_days: float | None,
    as_json: bool,
    store: MemoryStore,
) -> None:
    """Find the passages most relevant to QUERY, best first."""
    where = read_filter(pairs)
    hits = store.search(query, limit=limit, mode=mode, where=where, half_life_days=half_life_days)
    if hits.fallback is not None:
        say(f"by words alone: {hits.fallback}", err=True)
    if hits or as_json:
        show(hits, _print_hits, as_json=as_json, fields=_hits_as_json)
    elif hits.none_match:
        say(f"no passage has {', '.join(pairs)}", err=True)
    else:
        say("no passage is relevant", err=True)


@memory.command()
@click.argument("passage_id", metavar="ID")
@_of_store
def get(*, passage_id: str, store: MemoryStore) -> None:
    """Print the passage with this ID, as JSON."""
    passage = store.get(passage_id)
    if passage is None:
        raise InvalidInput(
            f"no passage '{passage_id}'; '{_command('search')} WORD' shows ids",
            code="memory.unknown-passage",
        )
    write_json(json_object(_passage_as_json(passage)))


@memory.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@_of_store
def delete(*, ids: tuple[str, ...], store: MemoryStore) -> None:
    """Remove the passages with these IDs."""
    requested = dict.fromkeys(ids)
    unknown = [id_ for id_ in requested if not store.delete(id_)]
    say(f"{len(requested) - len(unknown)} deleted")
    if unknown:
        say(f"harness: not in the store: {', '.join(unknown)}", err=True)
        sys.exit(FAILED)


@memory.command()
@json_option
@_of_store
def stats(*, as_json: bool, store: MemoryStore) -> None:
    """Show what the store holds, and the state of its indexes."""
    show(store.stats(), _print_stats, as_json=as_json)


@memory.command()
@json_option
@_of_store
def check(*, as_json: bool, store: MemoryStore) -> None:
    """Read all passages, and name those that are not as they were stored."""
    damaged, count = store.damaged(), len(store)
    if as_json:
        write_json(json_object({"passages": count, "damaged": damaged}))
    else:
        for id_ in damaged:
            results().print(id_)
        say(f"{len(damaged):,} of {count:,} passages are damaged", err=bool(damaged))
    if damaged:
        ids = " ".join(map(quote, damaged[:_MOST_IDS])) + (" …" if damaged[_MOST_IDS:] else "")
        say(f"harness: remove them with '{_command('delete')} {ids}', and add them again", err=True)
        sys.exit(FAILED)


@memory.command()
@_of_store
def rebuild(*, store: MemoryStore) -> None:
    """Rebuild the index of words from the passages, and embed those without a vector.

    Nothing is lost, and it is seldom needed: a damaged index is noticed and rebuilt.
    """
    with _shown_progress() as progress:
        store.rebuild(progress)
        store.wait()
    say(f"made again from {len(store):,} passages")


@memory.command()
@_of_store
def compact(*, store: MemoryStore) -> None:
    """Free the space of deleted passages, and of vectors that are no longer used."""
    before = store.stats().disk_bytes
    store.compact()
    after = store.stats().disk_bytes
    say(f"{before / 1e6:,.1f} MB before, {after / 1e6:,.1f} MB now")


@memory.command("copy")
@click.argument("source", metavar="FROM", callback=store_place)
@click.argument("target", metavar="TO", callback=store_place)
@config_option
def copy_store(*, source: Place, target: Place, config: Path | None) -> None:
    """Copy passages and vectors of a store into another, which is made if need be.

    FROM and TO are directories or PostgreSQL urls. Passages that TO has stay as they are, so an
    interrupted command can be run again.
    """
    with _shown_progress() as progress, ExitStack() as stack:
        cache = _settings(None, config).memory.cache
        origin = stack.enter_context(closing(PrimaryStore.open(source, cache=cache, make=False)))
        opened = PrimaryStore.open(target, language=origin.language, cache=cache)
        new = copy(origin, stack.enter_context(closing(opened)), progress)
        say(f"{new:,} of {len(origin):,} passages are new in {target}, which has {len(opened):,}")


def _settings(store: Place | None, config: Path | None) -> Settings:
    return load_settings(config, environment=os.environ, memory=store)


def _print_stats(figures: Stats, console: Console) -> None:
    for name, value in asdict(figures).items():
        text = f"{value:,}" if isinstance(value, int) else value or UNKNOWN
        print_line(f"{name.replace('_', ' '):<14}{text}", console)


def _print_hits(hits: Hits, console: Console) -> None:
    for hit in hits:
        passage = hit.passage
        text = clean(" ".join(passage.text.split()))
        excerpt = text if len(text) <= _EXCERPT_CHARS else f"{text[:_EXCERPT_CHARS]}…"
        console.print(f"{hit.rank}. {passage.title}".rstrip(), style="bold")
        console.print(excerpt)
        origin = f"{passage.source}, " if passage.source else ""
        console.print(f"{hit.id}, {origin}score {hit.score:.2f}", style="dim")


def _hits_as_json(hits: Hits) -> dict[str, object]:
    figures = ("rank", "score", "fused", "lexical", "vector")
    entries = [
        {name: getattr(hit, name) for name in figures} | _passage_as_json(hit.passage)
        for hit in hits
    ]
    return {"fallback": hits.fallback, "hits": entries}


def _passage_as_json(passage: Passage) -> dict[str, object]:
    return {
        "id": passage.id,
        **asdict(passage),
        "created": None if passage.created is None else passage.created.isoformat(),
    }


@contextmanager
def _shown_progress() -> Iterator[Progress]:
    """Shows on a terminal how far the work is while the block runs."""
    with Shown(stderr=True).status("") as status:

        def update(what: str, done: int, total: int) -> None:
            status.update(Text(f"{what}: {done:,} of {total:,}"))

        yield update
