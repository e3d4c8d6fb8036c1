"""Joins the outputs of a batch's shards, once all of them are complete."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from harness.errors import InvalidInput
from harness.files import write_whole, writing
from harness.rows import check_output, replace_rows, rows_saved, write_rows
from harness.session.batch_files import failures_of, manifest_of, only_writer, state_of
from harness.session.batch_rows import BatchRows, Shard


@dataclass(kw_only=True)
class MergedBatch:
    """What the shards of a batch have made together; its manifest."""

    shards: int = 0
    rows: int = 0
    done: int = 0
    failed: int = 0
    runs: list[str] = field(default_factory=list)
    """By shard."""
    complete: bool = True


def merge_shards(rows: BatchRows, output: Path) -> MergedBatch:
    """Writes one output in the order of the table, and one file of failures.

    Each line also names its `run`, in which `row` is its number.

    Raises:
        InvalidInput: A shard is missing, incomplete, or of another table; or the output is of a
            batch without shards. Nothing is written then.
    """
    check_output(output, {".csv", ".jsonl", ".parquet"})
    before = manifest_of(output)
    if "shards" not in before and (before or output.exists()):
        raise InvalidInput(
            "it is there, and no merge has made it; give another --output",
            code="batch.output-not-merged",
            path=output,
        )
    order = {row.id: number for number, row in enumerate(rows.given.values())}
    merged, problems = MergedBatch(), []
    lines: list[dict[str, Any]] = []
    failures: list[dict[str, Any]] = []
    for shard in _shards_of(output):
        path = shard.path(output)
        manifest, made = manifest_of(path), rows_saved(path) if path.exists() else []
        if problem := _problem(path, manifest, made, table=rows.identity["table"], ids=order):
            problems.append(f"  --shard {shard}: {problem}")
            continue
        run = {"run": manifest["run"]}
        lines += ({**line, **run} for line in made)
        failed = rows_saved(failures_of(path)) if manifest["failed"] else []
        failures += ({**line, **run} for line in failed)
        merged.shards += 1
        merged.rows += manifest["rows"]
        merged.done += manifest["done"]
        merged.failed += manifest["failed"]
        merged.runs.append(manifest["run"])
    if problems:
        raise InvalidInput(
            f"{len(problems)} of {len(problems) + merged.shards} shards cannot be merged yet; run "
            "the same command again, in place of --merge with:\n" + "\n".join(problems),
            code="batch.shards-incomplete",
            path=output,
        )
    inputs = dict.fromkeys(name for row in rows.given.values() for name in row.fields)
    columns = ["row", "id", "file", "line", *(f"inputs.{name}" for name in inputs)]
    columns = [*dict.fromkeys([*columns, *(name for line in lines for name in line)])]
    lines.sort(key=lambda line: order[line["id"]])
    with only_writer(output):
        _write(output, lines, failures, columns=columns)
        write_whole(state_of(output), orjson.dumps(asdict(merged)) + b"\n")
    return merged


def _write(
    output: Path,
    lines: list[dict[str, Any]],
    failures: list[dict[str, Any]],
    *,
    columns: Sequence[str],
) -> None:
    if output.suffix.lower() == ".parquet":
        write_rows(output, ({name: line.get(name) for name in columns} for line in lines))
    else:
        is_csv = output.suffix.lower() == ".csv"
        with replace_rows(output, lines, columns=columns if is_csv else ["id"]):
            pass
    with writing(failures_of(output)):
        failures_of(output).unlink(missing_ok=True)
    write_rows(failures_of(output), failures)


def _shards_of(output: Path) -> list[Shard]:
    """All shards, of as many as the files beside an output say."""
    ending = re.escape(output.suffix)
    named = re.compile(rf"{re.escape(output.stem)}\.\d+-of-(\d+){ending}(?:\.batch)?")
    numbers = {int(m[1]) for path in output.parent.glob("*") if (m := named.fullmatch(path.name))}
    if len(numbers) != 1:
        counts = " and ".join(map(str, sorted(numbers)))
        raise InvalidInput(
            f"there are shards of {counts}; move those away that are out of date"
            if numbers
            else "there is no shard of it; run the same command with --shard 1/5, 2/5 and so on",
            code="batch.shards-unclear",
            path=output,
        )
    (of,) = numbers
    return [Shard(number=number, of=of) for number in range(1, of + 1)]


def _problem(
    path: Path,
    manifest: Mapping[str, Any],
    made: list[Mapping[str, Any]],
    *,
    table: str | None,
    ids: Mapping[str, int],
) -> str | None:
    """Why a shard cannot be merged."""
    if not manifest:
        first = f"; delete {path.name} before, or put the file back" if path.exists() else ""
        return f"{state_of(path).name} is missing{first}"
    if "done" not in manifest:
        return "still going, or ended from outside"
    if not manifest["complete"]:
        return f"incomplete, with {manifest['done']:,} of {manifest['rows']:,} rows"
    if manifest["table"] != table:
        return "its table had other rows, or ids; what is still right is not made again"
    lacks_failures = manifest["failed"] and not failures_of(path).is_file()
    current = [line for line in made if not line.get("outdated")]
    has_others = not ids.keys() >= {line["id"] for line in made}
    if lacks_failures or has_others or len(current) != manifest["done"]:
        changed = failures_of(path) if lacks_failures else path
        return f"{changed.name} was changed since, and is written anew"
    return None
