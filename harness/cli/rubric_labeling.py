"""`harness rubric label`: shows drafts one by one, without scores, for a person to accept or not.

Each answer is written to the output at once, and the same command continues after it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from harness.cli.arguments import config_option, find_journal, traces_directory, traces_option
from harness.cli.consoles import JournalCommand, results, say
from harness.cli.rubric_command import own_rubrics, read_named
from harness.cli.rubric_scoring import drafts_in, of_texts
from harness.errors import InvalidInput
from harness.rows import Row, RowFile, read_rows
from harness.rubric import Draft, Rubric
from harness.rubric.calibration.evaluation_rows import as_draft
from harness.rubric.calibration.labels import read_labels
from harness.rubric.calibration.tuning import scored_drafts
from harness.session.batch_rows import DraftRows
from harness.trace import Journal
from harness.trace.run_list import journals_in
from harness.wiggum import recorded_loops, rounds_in, texts_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    draft: Draft
    columns: dict[str, Any]
    """Further columns of its row: `group`, `split`, and those of the evaluator."""
    reached: float | None = None
    """The highest threshold at which it passes, minus infinity if it never does; None without
    scores."""


@click.command(cls=JournalCommand)
@click.argument("rubric", metavar="RUBRIC")
@click.argument("drafts", nargs=-1, metavar="[DRAFTS...]")
@of_texts
@click.option("--output", type=click.Path(path_type=Path), required=True, help="A .jsonl file.")
@click.option(
    "--rater", envvar="USER", default="me", help=("The labeler's name.  [default: $USER]")
)
@click.option("--scores", type=click.Path(path_type=Path), help="Scores from harness rubric score.")
@click.option("--run", "runs", multiple=True, help="Label drafts of this run's loops.")
@click.option("--above", type=float, help="Only drafts that would be accepted at this threshold.")
@click.option(
    "--suggest",
    type=click.IntRange(min=1),
    help="At most this many of these, one of a group, counting labeled ones. Without --above, at "
    "the rubric's pass_at.",
)
@traces_option
@config_option
def label(
    *,
    rubric: str,
    drafts: tuple[str, ...],
    output: Path,
    rater: str,
    scores: Path | None,
    runs: tuple[str, ...],
    above: float | None,
    suggest: int | None,
    traces: Path | None,
    config: Path | None,
    **texts: Any,  # noqa: ANN401 - the options of `of_texts`
) -> None:
    """Label DRAFTS, or drafts that RUBRIC scored in runs, for harness rubric tune.

    DRAFTS are as for harness rubric score. They come in random order, without their scores, which
    go into the output. Answer y or n; s skips a draft until the next time, b takes the last answer
    back, v shows the sources, q ends. Each answer is saved at once; the same command continues.
    Exit codes: 0 ended, also by q, 2 invalid input, 130 interrupted.
    """
    if output.suffix.lower() != ".jsonl" or "-" in drafts:
        raise InvalidInput(
            "labels are written as .jsonl, and standard input is for answers, not for drafts",
            code="label.output-or-input",
            path=output,
        )
    chosen = read_named(rubric, own_rubrics(config)).rubric
    items: dict[str, _Item] = {}
    if drafts or not runs:
        table = drafts_in(drafts, **texts)
        for failure in table.refused:
            say(f"left out: {failure.place}: {failure.reason}", err=True)
        items.update(_with_scores(table, chosen, scores))
    for run in runs:
        # Without any run, `all` is refused as a name of none.
        journals = journals_in(traces_directory(traces)) if run == "all" else []
        for path in journals or [find_journal(run, traces)]:
            items.update(_of_run(Journal(path), chosen))
    chooses = above is not None or suggest is not None
    if (scores or chooses) and all(item.reached is None for item in items.values()):
        raise InvalidInput(
            f"no draft has scores by the current version of rubric '{chosen.id}'; give "
            "--scores FILE, from harness rubric score with the same --task and --sources, or "
            "--run",
            code="label.no-scores",
        )
    with RowFile(output, columns=["id", "rater"]) as file:
        labeling = _Labeling(items, file, rater=rater)
        if chooses:
            labeling.choose(chosen.pass_at if above is None else above, limit=suggest)
        labeling.ask()


def _with_scores(
    table: DraftRows, rubric: Rubric, path: Path | None
) -> Iterator[tuple[str, _Item]]:
    """Pairs of a draft's id and the draft, with its scores if the file at `path` has them."""
    rows = [*read_rows([str(path)], empty={"score"})] if path else []
    drafts = read_labels(path, rubric, columns={}, need="scores", rows=rows).drafts if path else ()
    scored_rows = (as_draft(row, rubric) for row in rows if isinstance(row, Row))
    scored_by_id = {row.id: row.fields for row in scored_rows}
    rated_by_digest = {
        rated.labeled.content: rated
        for rated in scored_drafts(drafts, rubric, accept_at=rubric.pass_at)
        if rated.labeled.rubric_sha256 == rubric.sha256
    }
    for id_, draft in table.drafts.items():
        fields = table.rows[id_].fields
        columns = {name: fields[name] for name in ("group", "split") if name in fields}
        reached = None
        if rated := rated_by_digest.get(draft.sha256):
            # As they were written: a null among the samples says which of them has no score.
            columns |= {
                name: cell
                for name, cell in scored_by_id[rated.labeled.id].items()
                if cell != "" and name.partition(".")[0] in {"score", "evaluator", "unjudged"}
            }
            reached = rated.reached
        yield id_, _Item(draft=draft, columns=columns, reached=reached)


def _of_run(journal: Journal, rubric: Rubric) -> Iterator[tuple[str, _Item]]:
    """Pairs of an id and a draft, for the drafts of a run's loops that this rubric scored."""
    loops = recorded_loops(journal)
    texts = texts_of(loops, journal)
    for number, loop in enumerate(loops, start=1):
        try:
            rounds = rounds_in(loop, texts, journal)
        except InvalidInput as error:
            say(f"left out: {error}", err=True)
            continue
        group = f"{journal.started.run_id}/{number}"
        task = texts.get(loop.task_sha256 or "", "")
        for round_ in rounds:
            verdict = round_.verdict
            # Scores by another version, or of a shortened draft, do not compare.
            if verdict.rubric_sha256 != rubric.sha256 or verdict.compressed:
                continue
            columns = {"group": group, "score": verdict.vector, "evaluator": verdict.evaluator}
            is_stopped = verdict.below_floor or verdict.gates or verdict.missing
            yield (
                f"{group}/{round_.number}",
                _Item(
                    draft=Draft(text=round_.draft, task=task),
                    columns=columns,
                    reached=-inf if is_stopped else verdict.composite,
                ),
            )


class _Labeling:
    """One rater's session with a file that has the labels of all raters."""

    def __init__(self, items: Mapping[str, _Item], file: RowFile, *, rater: str) -> None:
        self._items = items
        self._file = file
        self._rater = rater
        self._rows = list(file.rows)
        for row in self._rows:
            item = items.get(row["id"])
            if item and row.get("draft", item.draft.text) != item.draft.text:
                raise InvalidInput(
                    f"draft '{row['id']}' has changed since it was labeled; give another --output",
                    code="label.draft-changed",
                    path=file.path,
                )
        # By hash and not shuffled: a rater who comes back meets the drafts in the same order, each
        # rater in another, and further drafts leave the others in theirs.
        self._order = sorted(items, key=lambda i: hashlib.sha256(f"{rater} {i}".encode()).digest())

    def choose(self, above: float, *, limit: int | None) -> None:
        """Leaves only drafts that the threshold accepts; with a limit, so many, one of a group."""
        accepted = []
        for id_ in self._order:
            reached = self._items[id_].reached
            if reached is not None and reached >= above:
                accepted.append(id_)
        labeled = self._labeled()
        first_of_group: dict[str, str] = {}
        # Labeled drafts first, so that a group keeps its draft that was labeled before.
        for id_ in sorted(accepted, key=lambda id_: id_ not in labeled):
            first_of_group.setdefault(self._items[id_].columns.get("group", id_), id_)
        self._order = list(first_of_group.values())[:limit] if limit else accepted
        say(f"{len(self._order)} of {len(accepted)} drafts that would be accepted at {above:g}.")

    def ask(self) -> None:
        """Asks until every draft has a label or was skipped, or the rater quits."""
        skipped: set[str] = set()
        shown = answer = ""
        while answer != "q":
            done = self._labeled() | skipped
            id_ = next((id_ for id_ in self._order if id_ not in done), None)
            if id_ is None:
                break
            draft = self._items[id_].draft
            if id_ != shown:
                if draft.task:
                    _print("Task", draft.task)
                _print(f"Draft {self._order.index(id_) + 1} of {len(self._order)}", draft.text)
                shown = id_
            answer = _answer()
            match answer:
                case "s":
                    skipped.add(id_)
                case "b":
                    self._take_back()
                case "v":
                    _print("Sources", "\n\n".join(draft.sources) or "It has none.")
                case "y" | "n":
                    self._add(id_, accept=answer == "y")
        count = len(self._labeled() & {*self._order})
        say(f"\n{count} of {len(self._order)} drafts are labeled, in {self._file.path}.")

    def _labeled(self) -> set[str]:
        """The ids of drafts that this rater has labeled."""
        return {r["id"] for r in self._rows if r["rater"] == self._rater and "accept" in r}

    def _add(self, id_: str, *, accept: bool) -> None:
        row: dict[str, Any] = {"id": id_, "rater": self._rater, "accept": accept}
        # Only a draft's first row has its score: a second one would count as another sample.
        if all(earlier["id"] != id_ for earlier in self._rows):
            draft, columns = self._items[id_].draft, self._items[id_].columns
            texts = {"draft": draft.text, "task": draft.task, "sources": draft.sources}
            row |= {name: text for name, text in texts.items() if text} | columns
        self._file.append(row)
        self._rows.append(row)

    def _take_back(self) -> None:
        """Takes back the last answer, also of an earlier time, if this rater gave it."""
        last = self._rows[-1] if self._rows else {"rater": None}
        if last["rater"] == self._rater and last["id"] in self._order:
            self._rows.pop()
            self._file.drop_last()
        else:
            say("There is no answer to go back to.")


def _answer() -> str:
    """Reads one of the keys y, n, s, b, v and q."""
    while True:
        say("Accept it? y or n (s skip, b back, v sources, q quit): ", nl=False)
        # The end of the input ends the session, too.
        answer = (sys.stdin.readline() or "q").strip().lower()
        if answer in {"y", "n", "yes", "no", "s", "b", "v", "q"}:
            return answer[0]
        say(f"'{answer}' is no answer: y or n.")


def _print(title: str, text: str) -> None:
    results().print(Text.assemble("\n", (f"--- {title}", "bold"), f"\n{text.strip()}\n"))
