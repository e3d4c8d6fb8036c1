"""The page of an evaluation, or of two side by side: its rows and figures as JSON.

`page/evaluation.html` and its script draw them; see `html_page.html_of`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from harness.analysis.html_page import object_json
from harness.errors import InvalidInput
from harness.rows import Row, read_rows
from harness.rubric.calibration.evaluation_rows import (
    PairNames,
    is_evaluation,
    object_in,
    scores_in,
    whole_number_in,
)
from harness.rubric.calibration.score_figures import Reducer, Sample, summaries
from harness.session.batch_files import ROWS, failures_of, manifest_of
from harness.trace import Journal
from harness.trace.journal_reader import JOURNAL_SUFFIX
from harness.trace.node_records import node_records

# Columns whose values are JSON, also in files of text.
_JSON = frozenset({"inputs", "scores", "reasons", "findings", "models", "target", "sources"})
# Columns that each epoch of a row has of its own.
_EPOCH = ("output", "reasons", "findings", "models", "seconds", "cost_usd", "outdated", "no_score")


def is_evaluation_file(path: Path) -> bool:
    """Whether a file has the rows of an evaluation."""
    if path.suffix.lower() not in {".csv", ".jsonl", ".parquet", ".eval", ".json"}:
        return False
    first = next(iter(read_rows([str(path)])), None) if path.is_file() else None
    return isinstance(first, Row) and is_evaluation(first.fields)


def evaluation_json(
    paths: Sequence[Path], *, traces: Path, clean: Callable[[bytes], bytes] = bytes
) -> Iterator[bytes]:
    """The page's JSON, in pieces: for each file its name, failures, figures and rows with epochs.

    Times and costs are from the run's journal in `traces`, if it is there. `clean` changes each
    piece, which is JSON itself.

    Raises:
        InvalidInput: A file has no rows of an evaluation.
    """
    yield b'{"sides":['
    for number, path in enumerate(paths):
        rows = _rows_of(path, _spent_in(path, traces))
        failures_file = failures_of(path)
        failed = read_rows([str(failures_file)]) if failures_file.is_file() else ()
        failures = [dict(row.fields) for row in failed if isinstance(row, Row)]
        head = {"name": path.name, "failures": failures, **_figures(path, rows)}
        yield b"," if number else b""
        yield from object_json(head, {"rows": rows}, clean=clean)
    yield b"]}"


def _rows_of(path: Path, spent: Mapping[int, Mapping[str, float]]) -> list[dict[str, Any]]:
    """The rows of a file in their order, each with its epochs; `spent` as `_spent_in` returns."""
    rows: dict[str, dict[str, Any]] = {}
    first_numbers: dict[str, int] = {}  # id of a row → the lowest number of its epochs in the run
    names = PairNames()
    for row in read_rows([str(path)], whole=_JSON):
        if isinstance(row, InvalidInput):
            raise row
        fields = {**row.fields, **{name: object_in(row.fields, name) for name in _JSON}}
        if "epoch" not in fields:
            raise row.refusal("it is no row of an evaluation", code="evaluation.not-rows")
        name = names.assign(row, fields["inputs"] or {})
        if row.id not in rows:
            named = {"name": name} if name != row.id else {}
            entry = {"id": row.id, "target": fields["target"], "inputs": fields["inputs"]}
            rows[row.id] = {**entry, "group": fields.get("group", ""), **named, "epochs": []}
        number = whole_number_in(row, "row") if "row" in fields else -1
        first_numbers[row.id] = min(number, first_numbers.get(row.id, number))
        epoch = {key: fields[key] for key in _EPOCH if fields.get(key) not in (None, "", {}, [])}
        epoch |= {"epoch": whole_number_in(row, "epoch"), "scores": scores_in(row)}
        rows[row.id]["epochs"].append({**spent.get(number, {}), **epoch})
    for entry in rows.values():
        entry["epochs"].sort(key=lambda epoch: epoch["epoch"])
    # In a file that a later command has added to, lines stand in the order in which rows ended.
    return sorted(rows.values(), key=lambda entry: first_numbers[entry["id"]])


def _figures(path: Path, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures of each score. Epochs are reduced as in the evaluation, by the mean if unknown."""
    settings = manifest_of(path).get("evaluation", {})
    reduce = settings.get("reduce", "mean")
    valid = [(row, epoch) for row in rows for epoch in row["epochs"] if not epoch.get("outdated")]
    names = dict.fromkeys(chain.from_iterable(epoch["scores"] for _, epoch in valid))
    samples = [
        Sample(
            row=row["id"],
            scores=epoch["scores"],
            group=str(row["group"]),
            no_score=epoch.get("no_score", ()),
        )
        for row, epoch in valid
    ]
    epochs = max((len(row["epochs"]) for row in rows), default=1)
    with suppress(InvalidInput):  # too few epochs are left for the reducer
        figures = summaries(
            samples,
            reducer=Reducer.named(reduce, epochs=epochs),
            success=dict.fromkeys(names, 1.0) | settings.get("success", {}),
        )
        return {"reduce": reduce, "figures": [asdict(figure) for figure in figures]}
    return {"reduce": reduce, "figures": []}


def _spent_in(path: Path, traces: Path) -> dict[int, dict[str, float]]:
    """Number of a row in its run → the seconds that its output took, and the cost of the row."""
    spent: defaultdict[int, dict[str, float]] = defaultdict(dict)
    with suppress(OSError, ValueError, KeyError, TypeError):
        journal = traces / Path(str(manifest_of(path)["run"])).with_suffix(JOURNAL_SUFFIX).name
        for record in node_records(Journal(journal), latest=True) if journal.is_file() else ():
            match = re.match(r"(\w+)\[(\d+)\](/)?", record.label)
            if match is None:
                continue
            node, number, nested = match.groups()
            row = spent[int(number)]
            # Calls inside a row's pipeline take part of the row's own time.
            if node == ROWS and not nested:
                row["seconds"] = record.duration_ns / 1e9
            if record.cost_usd is not None:
                row["cost_usd"] = row.get("cost_usd", 0.0) + record.cost_usd
    return spent
