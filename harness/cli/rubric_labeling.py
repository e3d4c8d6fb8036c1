"""`harness rubric label`: shows drafts one by one, without scores, for a person to accept or not.

Each answer is written to the output at once, and the same command continues after it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import randbelow
from typing import Any

import click
from rich.text import Text

from harness.cli.arguments import config_option, find_journal, traces_directory, traces_option
from harness.cli.consoles import failures_told, log_to_stderr, results, say
from harness.cli.rubric_batch import drafts_in, of_texts, verdict_in
from harness.cli.rubric_command import own_rubrics, read_named
from harness.cli.verdicts import passes_at
from harness.errors import InvalidInput
from harness.rows import Row, RowFile, read_rows
from harness.rubric import Draft, Rubric, Verdict
from harness.session.batch_rows import DraftRows
from harness.trace import Journal
from harness.trace.run_list import journals_in
from harness.wiggum import recorded_loops, rounds_in, texts_of

_ACCEPT = "accept"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    draft: Draft
    known: dict[str, Any]
    """What else its first row has: `group`, `split`, and the evaluator's `score` and tag."""
    verdict: Verdict | None


@click.command()
@click.argument("rubric", metavar="RUBRIC")
@click.argument("drafts", nargs=-1, metavar="[DRAFTS...]")
@of_texts
@click.option("--output", type=click.Path(path_type=Path), required=True, help="A .jsonl file.")
@click.option(
    "--rater", envvar="USER", default="me", help=("The labeler's name.  [default: $USER]")
)
@click.option("--dimensions", is_flag=True, help="Ask for a score in each dimension too.")
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
    task: str,
    sources: tuple[str, ...],
    columns: tuple[str, ...],
    output: Path,
    rater: str,
    dimensions: bool,
    scores: Path | None,
    runs: tuple[str, ...],
    above: float | None,
    suggest: int | None,
    traces: Path | None,
    config: Path | None,
) -> None:
    """Label DRAFTS, or drafts that RUBRIC scored in runs, for harness rubric tune.

    DRAFTS are as for harness rubric score. They come in random order, without their scores, which
    go into the output. Answer y or n; s skips a draft until the next time, b takes the last answer
    back, v shows the sources, q ends. Each answer is saved at once; the same command continues.
    Exit codes: 0 ended, also by q, 2 invalid input, 130 interrupted.
    """
    log_to_stderr()
    with failures_told(arguments_are_journals=True):
        if output.suffix.lower() != ".jsonl" or "-" in drafts:
            raise InvalidInput(
                "labels are written as .jsonl, and standard input is for answers, not for drafts",
                code="label.output-or-input",
                path=output,
            )
        chosen = read_named(rubric, own_rubrics(config)).rubric
        items: dict[str, _Item] = {}
        if drafts or not runs:
            source = drafts_in(drafts, task=task, sources=sources, columns=columns)
            for failure in source.refused:
                say(f"left out: {failure.place}: {failure.reason}", err=True)
            items.update(_with_scores(source, chosen, scores))
        for run in runs:
            journals = journals_in(traces_directory(traces)) if run == "all" else None
            for path in journals or [find_journal(run, traces)]:
                items.update(_of_run(Journal(path), chosen))
        chooses = above is not None or suggest is not None
        if (scores or chooses) and not any(item.verdict for item in items.values()):
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
            labeling.ask(chosen, dimensions=dimensions)


def _with_scores(
    table: DraftRows, rubric: Rubric, path: Path | None
) -> Iterator[tuple[str, _Item]]:
    """The drafts, each with its scores if there are any."""
    scored: dict[object, Row] = {}
    for entry in read_rows([str(path)]) if path else ():
        if isinstance(entry, InvalidInput):
            raise entry
        if entry.fields.get("rubric_sha256") == rubric.sha256 and "outdated" not in entry.fields:
            scored[entry.fields.get("sha256")] = entry
    for name, draft in table.drafts.items():
        first = table.rows[name]
        about = {key: first.fields[key] for key in ("group", "split") if key in first.fields}
        verdict = None
        if row := scored.get(draft.sha256):
            columns = {f"score.{dimension.name}": dimension.name for dimension in rubric.dimensions}
            # A list, where each draft was judged several times.
            scores = {n: row.fields[key] for key, n in columns.items() if key in row.fields}
            about |= {"score": scores, "evaluator": row.fields.get("evaluator")}
            verdict = verdict_in(row.fields, row.path)
        yield name, _Item(draft=draft, known=about, verdict=verdict)


def _of_run(journal: Journal, rubric: Rubric) -> Iterator[tuple[str, _Item]]:
    """The drafts of a run's loops that this rubric scored as they are."""
    loops = recorded_loops(journal)
    texts = texts_of(loops, journal)
    for number, loop in enumerate(loops, start=1):
        try:
            rounds = rounds_in(loop, texts, journal)
        except InvalidInput as error:
            say(f"left out: {error}", err=True)
            continue
        group, task = f"{journal.started.run_id}/{number}", texts.get(loop.task_sha256 or "", "")
        for round_ in rounds:
            verdict = round_.verdict
            # Scores of another version, or of a shortened draft, do not compare.
            if verdict.rubric_sha256 != rubric.sha256 or verdict.compressed:
                continue
            about = {"group": group, "score": verdict.vector, "evaluator": verdict.evaluator}
            draft = Draft(text=round_.draft, task=task)
            yield f"{group}/{round_.number}", _Item(draft=draft, known=about, verdict=verdict)


class _Labeling:
    """One rater's answers, on their way into the file of all."""

    def __init__(self, items: Mapping[str, _Item], file: RowFile, *, rater: str) -> None:
        self._items, self._kept, self._rater = items, file, rater
        self._rows = list(file.rows)
        # Each with the number of rows at that time, by which `b` knows what came last.
        self._skipped: list[tuple[int, str]] = []
        for row in self._rows:
            item = items.get(row["id"])
            if item and row.get("draft", item.draft.text) != item.draft.text:
                raise InvalidInput(
                    f"draft '{row['id']}' has changed since it was labeled; give another --output",
                    code="label.draft-changed",
                    path=file.path,
                )
        # The file keeps it: a rater who comes back meets the drafts in the same order.
        seeds = (row["seed"] for row in self._rows if "seed" in row)
        seed = self._seed = next(seeds, randbelow(2**32))
        # By hash and not shuffled: further drafts leave the others in their order.
        places = {n: hashlib.sha256(f"{seed} {rater} {n}".encode()).digest() for n in items}
        self._order = sorted(items, key=places.__getitem__)

    def choose(self, above: float, *, limit: int | None) -> None:
        """Leaves drafts that would be accepted; with a limit one of a group, labeled ones first."""
        verdicts = {name: item.verdict for name, item in self._items.items() if item.verdict}
        accepted = [n for n in self._order if n in verdicts and passes_at(verdicts[n], above)]
        labeled = {name for name, _ in self._answered()}
        # A group keeps the draft of it that was labeled before.
        groups: dict[str, str] = {}
        for name in sorted(accepted, key=lambda name: name not in labeled):
            groups.setdefault(self._items[name].known.get("group", name), name)
        self._order = list(groups.values())[:limit] if limit else accepted
        say(f"{len(self._order)} of {len(accepted)} drafts that would be accepted at {above:g}.")

    def ask(self, rubric: Rubric, *, dimensions: bool) -> None:
        """Asks until all is answered, or the rater ends it."""
        names = [dimension.name for dimension in rubric.dimensions] if dimensions else []
        current = answer = ""
        while answer != "q":
            done, skipped = self._answered(), {name for _, name in self._skipped}
            pairs = ((n, q) for n in self._order if n not in skipped for q in (_ACCEPT, *names))
            name, question = next((pair for pair in pairs if pair not in done), ("", ""))
            if not name:
                break
            draft = self._items[name].draft
            if name != current:
                if draft.task:
                    _print("Task", draft.task)
                _print(f"Draft {self._order.index(name) + 1} of {len(self._order)}", draft.text)
                current = name
            answer = _answer(question, rubric)
            if answer == "s":
                self._skipped.append((len(self._rows), name))
            elif answer == "b":
                self._take_back()
            elif answer == "v":
                _print("Sources", "\n\n".join(draft.sources) or "It has none.")
            elif answer != "q":
                self._add(name, question, answer)
        count = sum((name, _ACCEPT) in self._answered() for name in self._order)
        say(f"\n{count} of {len(self._order)} drafts are labeled, in {self._kept.path}.")

    def _answered(self) -> set[tuple[str, str]]:
        """Drafts, and the questions about them."""
        return {
            (row["id"], question)
            for row in self._rows
            if row["rater"] == self._rater
            for question in (*row.get("human", ()), *(key for key in row if key == _ACCEPT))
        }

    def _add(self, name: str, question: str, answer: str) -> None:
        row: dict[str, Any] = {"id": name, "rater": self._rater}
        if question == _ACCEPT:
            row[_ACCEPT] = answer == "y"
        else:
            row["human"] = {question: float(answer) if answer else None}
        if all(labeled["id"] != name for labeled in self._rows):
            # Once: a score that stands there again would be another sample.
            item, draft = self._items[name], self._items[name].draft
            about = {
                "draft": draft.text,
                "task": draft.task,
                "sources": draft.sources,
                **item.known,
            }
            row |= {"seed": self._seed, **{key: value for key, value in about.items() if value}}
        self._kept.append(row)
        self._rows.append(row)

    def _take_back(self) -> None:
        """Takes the last answer back, or the last skip; no other rater's."""
        last = self._rows[-1] if self._rows else {"rater": None}
        if self._skipped and self._skipped[-1][0] == len(self._rows):
            self._skipped.pop()
        elif last["rater"] == self._rater and last["id"] in self._order:
            self._rows.pop()
            self._kept.drop_last()
        else:
            say("There is no answer to go back to.")


def _answer(question: str, rubric: Rubric) -> str:
    """One of the keys s, b, v and q, `y` or `n`, or a score; empty for no score."""
    scale, prompt = rubric.scale_of(question), "Accept it? y or n"
    low, high = scale.min, scale.max
    if question != _ACCEPT:
        (dimension,) = (dimension for dimension in rubric.dimensions if dimension.name == question)
        _print(question, " ".join(dimension.requirements))
        prompt = f"{low:g} to {high:g}, or nothing"
    while True:
        say(f"{prompt} (s skip, b back, v sources, q quit): ", nl=False)
        # The end of the input ends it, too.
        answer = (sys.stdin.readline() or "q").strip().lower()
        if answer in {"s", "b", "v", "q"}:
            return answer
        if question == _ACCEPT and answer in {"y", "n", "yes", "no"}:
            return answer[0]
        with suppress(ValueError):
            if question != _ACCEPT and (not answer or low <= float(answer) <= high):
                return answer
        usual = "y or n" if question == _ACCEPT else f"a number, {low:g} to {high:g}, such as 7.5"
        say(f"'{answer}' is no answer: {usual}.")


def _print(title: str, text: str) -> None:
    results().print(Text.assemble("\n", (f"--- {title}", "bold"), f"\n{text.strip()}\n"))
