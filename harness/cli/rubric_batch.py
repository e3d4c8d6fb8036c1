"""Scoring many drafts: read from tables, judged in parallel, saved row by row."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import Any

import click
import orjson
from pydantic import TypeAdapter, ValidationError
from rich.text import Text

from harness.cli.arguments import config_option, read_pairs, role_option
from harness.cli.consoles import Shown, say
from harness.cli.project_files import refusal_after_asking, settings_for_calls
from harness.cli.verdicts import passes_at, verdict_as_json
from harness.errors import HarnessError, InferenceError, InvalidInput
from harness.files import read_text
from harness.rows import Row, RowFile, cell_of, read_rows
from harness.rubric import Draft, Rubric, Verdict, at_any_threshold
from harness.rubric.calibration.labels import is_label, labels_in
from harness.rubric.scoring import samples_of
from harness.session import Settings, open_session
from harness.session.evaluation import ChosenRubric, choose_rubric, evaluate_all

max_parallel_option = click.option(
    "--max-parallel",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Drafts judged at once.",
)
_OF_TEXTS = (
    click.option("--task", default="", help="The drafts' task; @FILE reads it from a file."),
    click.option(
        "--sources",
        multiple=True,
        metavar="FILE",
        help="Texts that the drafts may rely on. May be repeated.",
    ),
    click.option(
        "--columns",
        multiple=True,
        metavar="OURS=THEIRS",
        help="Name of a column in the table, such as draft=answer. May be repeated.",
    ),
)
_OPTIONS = (
    click.argument("rubric", metavar="RUBRIC"),
    click.argument("drafts", nargs=-1, required=True, metavar="DRAFTS..."),
    *_OF_TEXTS,
    max_parallel_option,
    config_option,
    role_option,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The files and settings that the command line names."""

    settings: Settings
    chosen: ChosenRubric
    task: str
    drafts: Mapping[str, Draft]
    """By their ids; at least one."""
    max_parallel: int
    refused: Mapping[str, InvalidInput] = field(default_factory=dict)
    """Rows that are no draft, by where they stand."""
    labels: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """What people said of drafts, by their ids and the columns of `wide`."""

    @property
    def rubric(self) -> Rubric:
        """What the drafts are judged by."""
        return self.chosen.rubric


def of_drafts(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the arguments that say what is judged; the command gets `read`, which reads them."""

    @wraps(command)
    def called(**given: Any) -> None:  # noqa: ANN401 - by click, as the options say
        asked = {name: given.pop(name) for name in signature(_read).parameters}
        command(read=partial(_read, **asked), **given)

    for option in reversed(_OPTIONS):
        called = option(called)
    return called


def _read(
    *,
    rubric: str,
    drafts: tuple[str, ...],
    task: str,
    sources: tuple[str, ...],
    columns: tuple[str, ...],
    max_parallel: int,
    config: Path | None,
    roles: tuple[str, ...],
) -> Given:
    assigned = read_pairs(roles, option="--role", form="role=tag")
    settings = settings_for_calls(config, roles=assigned, produces=False)
    chosen = choose_rubric(rubric, rubrics=settings.rubrics, refuse=refusal_after_asking)
    found = drafts_in(drafts, task=task, sources=sources, columns=columns)
    return Given(
        settings=settings,
        chosen=chosen,
        task=_asked(task),
        drafts=found.drafts,
        refused=found.refused,
        labels=found.labels,
        max_parallel=max_parallel,
    )


def of_texts(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that `drafts_in` takes."""
    for option in reversed(_OF_TEXTS):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class DraftRows:
    """Drafts as tables, files and folders have them, by their ids."""

    drafts: dict[str, Draft]
    """At least one."""
    rows: dict[str, Row]
    """The first row of each."""
    labels: dict[str, dict[str, object]]
    """By the columns of `wide`."""
    refused: dict[str, InvalidInput]
    """Rows that are no draft, by where they stand."""


def drafts_in(
    names: Sequence[str], *, task: str, sources: Sequence[str], columns: Sequence[str]
) -> DraftRows:
    """The drafts of files.

    Raises:
        InvalidInput: There is no draft, or no such file.
    """
    asked = _asked(task)
    evidence = tuple(read_text("source", Path(name)) for name in sources)
    found = DraftRows({}, {}, {}, {})
    for row in read_rows(
        names, columns=read_pairs(columns, option="--columns", form="ours=theirs")
    ):
        try:
            if isinstance(row, InvalidInput):
                raise row
            if row.id not in found.drafts:
                found.drafts[row.id] = _draft_of(row, task=asked, sources=evidence)
                found.rows[row.id] = row
            elif not _is_of(found.drafts[row.id], row):
                raise row.refusal(f"the id '{row.id}' occurs twice", code="row.id-twice")
            found.labels.setdefault(row.id, {}).update(labels_in(row))
        except InvalidInput as error:
            line = "" if error.line is None else f":{error.line}"
            found.refused[row.place if isinstance(row, Row) else f"{error.path}{line}"] = error
    if not found.drafts:
        none = InvalidInput("there is no draft", code="row.no-rows")
        raise next(iter(found.refused.values()), none)
    return found


def _asked(task: str) -> str:
    return read_text("task", Path(task[1:])) if task.startswith("@") else task


def _is_of(draft: Draft, row: Row) -> bool:
    """Whether the row has more labels of a draft: by another rater, or of another dimension."""
    return bool(row.fields.keys() & {"rater", "dimension"}) and row.draft in {None, draft.text}


def _draft_of(row: Row, *, task: str, sources: Sequence[str]) -> Draft:
    text = row.draft
    if text is None:
        has = ", ".join(map(str, row.fields))
        raise row.refusal(
            f"it needs either 'draft', a text, or 'path', a file; it has {has}. If a column has "
            "another name, say --columns draft=NAME",
            code="row.no-draft",
        )
    own = row.sources if "sources" in row.fields else tuple(sources)
    return Draft(text=text, task=str(row.fields.get("task", task)), sources=own)


def as_file_name(tag: str) -> str:
    """An endpoint's tag as a part of a file's name."""
    return re.sub(r"[^a-zA-Z0-9_.-]+", "-", tag)


def score_drafts(given: Given, *, samples: int | None, output: Path | None) -> Batch:
    """Has drafts scored; after Ctrl-C or an error it says what is kept.

    `samples` is how often each is judged, if that is fixed; `output` has some of the scores, and
    gets the others.

    Raises:
        InvalidInput: The file has something else.
        HarnessError: No draft could be scored.
    """
    with ExitStack() as stack:
        kept = None
        if output is not None:
            given = _drawn_alike(given, output)
            labels = dict.fromkeys(name for said in given.labels.values() for name in said)
            kept = RowFile(output, columns=_columns(given.rubric), more=labels)
            stack.enter_context(kept)
        batch = Batch(given, samples=samples, kept=kept)
        try:
            asyncio.run(_score(batch))
        except (KeyboardInterrupt, HarnessError):
            batch.tell_what_is_kept()
            raise
    if batch.stopped is not None:
        batch.tell_what_is_kept()
    return batch


def _drawn_alike(given: Given, output: Path) -> Given:
    """With a seed for the pool of evaluators, so that the command goes on with the same one."""
    rules = given.settings.separation
    if rules.pool_seed or given.task:
        return given
    seeded = rules.model_copy(update={"pool_seed": f"{given.rubric.id} {output}"})
    return replace(given, settings=given.settings.model_copy(update={"separation": seeded}))


async def _score(batch: Batch) -> None:
    given, rubric = batch.given, batch.given.rubric
    async with open_session(
        given.settings,
        name=f"score {rubric.id}",
        task=given.task,
        environment=os.environ,
        produces=False,
    ) as session:
        evaluators = session.roles.evaluators
        batch.run_id, batch.journal = session.trace.run_id, session.trace.journal_path
        batch.decided = bool(evaluators) or all(d.optional for d in rubric.judged)
        todo = batch.begin(evaluators)
        try:
            with progress(given, before=len(batch.verdicts)) as tell:
                batch.stopped = await evaluate_all(
                    session,
                    todo,
                    given.chosen if batch.decided else _checks_alone(given.chosen),
                    max_parallel=given.max_parallel,
                    samples=batch.samples,
                    told=(batch.hear, tell),
                )
        finally:
            session.scored.extend(batch.outcomes())
        unanswered = [e for e in batch.failed.values() if isinstance(e, InferenceError)]
        if unanswered and not batch.verdicts:
            raise unanswered[0]


def _checks_alone(chosen: ChosenRubric) -> ChosenRubric:
    """The rubric with its judged dimensions optional, unless it has no others."""
    rubric = chosen.rubric
    if not rubric.checked:
        return chosen  # its evaluator will say what is missing
    dimensions = tuple(
        dimension.model_copy(update={"optional": dimension.optional or dimension.judge is not None})
        for dimension in rubric.dimensions
    )
    return replace(chosen, rubric=rubric.model_copy(update={"dimensions": dimensions}))


class Batch:
    """Drafts on their way to their scores.

    `kept` has some of the scores, and gets the others.

    Attributes:
        verdicts: By draft, as they come.
        failed: Why a draft has none.
        evaluator: Tags of its endpoints, for people; empty if code alone scores.
        decided: Whether passing is known: no dimension still needs an evaluator.
        stopped: Why not all drafts were judged.
    """

    def __init__(self, given: Given, *, samples: int | None, kept: RowFile | None) -> None:
        self.given = given
        self.samples = samples
        self.verdicts: dict[str, Verdict] = {}
        self.failed: dict[str, HarnessError] = dict(given.refused)
        self.evaluator = ""
        self.decided = True
        self.stopped: HarnessError | None = None
        self.run_id, self.journal = "", Path()
        self.kept = kept
        self._by: dict[str, object] = {}

    def begin(self, evaluators: Sequence[str]) -> Mapping[str, Draft]:
        """The drafts that are not scored yet.

        Raises:
            InvalidInput: The scores that are there are by something else.
        """
        of_rubric = {"rubric": self.given.rubric.id, "rubric_sha256": self.given.rubric.sha256}
        self.evaluator = ", ".join(evaluators)
        self._by = {**of_rubric, "evaluator": self.evaluator, "samples": self.samples}
        # With a fixed number of samples, the threshold has no part in scores, only in votes.
        votes = self.given.settings.evaluation.panel == "majority"
        alike = at_any_threshold(self.given.rubric) if self.samples and not votes else {}
        latest: dict[str, Mapping[str, Any]] = {}
        for row in self.kept.rows if self.kept else ():
            assert self.kept is not None
            for name, now in self._by.items():
                if str(row[name] or "") != str(now or "") and row[name] not in alike:
                    raise InvalidInput(
                        f"it has scores with another {name} ('{row[name] or ''}', now "
                        f"'{now or ''}'), which cannot be compared; give another --output",
                        code="row.output-other-run",
                        path=self.kept.path,
                    )
            # A draft that has changed since is scored again, as one that is new.
            draft = self.given.drafts.get(row["id"])
            if draft is not None and draft.sha256 == row["sha256"]:
                self.verdicts[row["id"]] = _by_threshold_of(
                    self.given.rubric, verdict_in(row, self.kept.path)
                )
                latest[row["id"]] = row
        # What people or the threshold now say otherwise goes into a row behind.
        for name, row in latest.items():
            if self.kept and _said_in(row) != _said_in(self.row_of(name)):
                self.kept.append(self.row_of(name))
        return {n: draft for n, draft in self.given.drafts.items() if n not in self.verdicts}

    def hear(self, name: str, outcome: Verdict | HarnessError) -> None:
        """Notes what became of a draft."""
        if isinstance(outcome, HarnessError):
            self.failed[name] = outcome
            return
        self.verdicts[name] = outcome
        if self.kept:
            self.kept.append(self.row_of(name))

    @property
    def in_order(self) -> Mapping[str, Verdict]:
        """The verdicts, in the order in which the drafts were given."""
        return {n: self.verdicts[n] for n in self.given.drafts if n in self.verdicts}

    def passed(self, name: str) -> bool | None:
        """Whether a draft that has a verdict passed; None if that is not known."""
        verdict = self.verdicts[name]
        return verdict.passed if self.decided or verdict.below_floor else None

    def row_of(self, name: str) -> dict[str, object]:
        """What is written of a draft that has a verdict."""
        verdict = self.verdicts[name]
        scores: dict[str, object] = dict(verdict.vector)
        if verdict.judges and verdict.judges.each and self.samples:
            scores |= samples_of(verdict.judges)
        return {
            **dict.fromkeys(_columns(self.given.rubric)),
            "id": name,
            **self.given.labels.get(name, {}),
            **verdict_as_json(verdict),
            "passed": self.passed(name),
            **{f"score.{one}": score for one, score in scores.items()},
            **self._by,
            "sha256": self.given.drafts[name].sha256,
            "error": None,
        }

    def outcomes(self) -> Iterator[bool]:
        """Whether each draft passed, as far as that is known; one without a verdict did not."""
        yield from (False for _ in self.given.drafts.keys() - self.verdicts.keys())
        yield from (False for _ in self.given.refused)
        yield from (passed for n in self.verdicts if (passed := self.passed(n)) is not None)

    def tell_what_is_kept(self) -> None:
        """Says on standard error how to go on, if that is possible."""
        if self.kept is not None and self.verdicts:
            say(
                f"{len(self.verdicts):,} of {len(self.given.drafts):,} drafts are scored and kept "
                f"in {self.kept.path}; the same command goes on",
                err=True,
            )


_TEXTS = {"id", "sha256", "rubric", "rubric_sha256", "evaluator"}
_VERDICT = TypeAdapter(Verdict)


def _columns(rubric: Rubric) -> list[str]:
    """Of a file of scores: what a table shows first, and what a verdict is made of again."""
    scores = [f"score.{dimension.name}" for dimension in rubric.dimensions]
    why = ["below_floor", "gates", "missing", "unjudged"]
    by = ["rubric", "rubric_sha256", "evaluator", "samples", "sha256"]
    return ["id", "passed", "composite", *scores, *why, *by, "scores", "judges"]


def _said_in(row: Mapping[str, Any]) -> dict[str, str]:
    """What people say of a row's draft, and by which threshold it passed."""
    cells = {name: cell_of(value) for name, value in row.items()}
    return {n: c for n, c in cells.items() if c and (is_label(n) or n == "rubric_sha256")}


def verdict_in(row: Mapping[str, Any], path: Path) -> Verdict:
    """The verdict that a row was written of, whose cells are JSON in a CSV file."""
    try:
        if isinstance(row["composite"], str):
            plain = {name for name in row if name in _TEXTS or is_label(name)}
            row = {n: orjson.loads(c) if c and n not in plain else c for n, c in row.items()}
        return _VERDICT.validate_python(
            {**row, "passed": bool(row["passed"]), "judges": row["judges"] or None}
        )
    except (orjson.JSONDecodeError, ValidationError) as error:
        raise InvalidInput(
            f"the row of '{row['id']}' has been changed; delete it to score the draft again",
            code="row.output-changed",
            path=path,
        ) from error


def _by_threshold_of(rubric: Rubric, verdict: Verdict) -> Verdict:
    """The verdict, of a rubric that differs in its threshold alone."""
    if verdict.rubric_sha256 == rubric.sha256:
        return verdict
    passed = passes_at(verdict, rubric.pass_at)
    return replace(verdict, passed=passed, rubric_sha256=rubric.sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Earlier scores of drafts."""

    verdicts: Mapping[str, Verdict]
    """By draft, without their judges."""
    evaluator: str
    samples: int | None
    """How often each was judged; None if that was not fixed."""


def kept_verdicts(given: Given, path: Path) -> Kept:
    """What a file of scores has of the drafts, told by what they say.

    Raises:
        InvalidInput: It cannot be read, or has scores of none of them by this rubric.
    """
    known = at_any_threshold(given.rubric)
    rows: dict[object, Row] = {}
    for row in read_rows([str(path)]):
        if isinstance(row, InvalidInput):
            raise row
        if row.fields.get("rubric_sha256") in known:
            rows[row.fields.get("sha256")] = row
    found = {n: rows[draft.sha256] for n, draft in given.drafts.items() if draft.sha256 in rows}
    by = {(row.fields.get("evaluator", ""), row.fields.get("samples")) for row in found.values()}
    if len(by) != 1:
        said = "by several evaluators, or numbers of samples" if by else "of none of the drafts"
        raise InvalidInput(
            f"it has scores {said}, by the current version of rubric '{given.rubric.id}'; give an "
            "output of 'harness rubric score', and the same --task and --sources",
            code="row.scores-unusable",
            path=path,
        )
    [(evaluator, samples)] = by
    return Kept(
        verdicts={
            name: _by_threshold_of(
                given.rubric, verdict_in({"passed": None, **row.fields, "judges": None}, row.path)
            )
            for name, row in found.items()
        },
        evaluator=str(evaluator),
        samples=int(samples) if samples else None,
    )


@contextmanager
def progress(
    given: Given, *, before: int = 0
) -> Iterator[Callable[[str, Verdict | HarnessError], None]]:
    """Tells how far a batch is: in a line of a terminal; elsewhere, in a line now and then.

    `before` counts those that were scored before.
    """
    total, done, failed = len(given.drafts), before, 0
    began_s = told_s = time.monotonic()
    console = Shown(stderr=True)
    status = console.status("scoring")

    def tell(name: str, outcome: Verdict | HarnessError) -> None:
        nonlocal done, failed, told_s
        done += 1
        failed += isinstance(outcome, HarnessError)
        now_s = time.monotonic()
        left_s = (now_s - began_s) / (done - before) * (total - done)
        lasting = f"{left_s:.0f} s" if left_s < 120 else f"{left_s / 60:.0f} min"
        said = f"{done:,} of {total:,} drafts judged, {failed:,} failed, {lasting} left"
        if console.is_terminal:
            status.update(Text(f"{said} ({name})"))
        elif total >= _MANY and (
            done * _MANY // total > (done - 1) * _MANY // total or now_s > told_s + _SILENT_S
        ):
            told_s = now_s
            say(said, err=True)

    if before:
        say(f"{before:,} of {total:,} drafts were judged before", err=True)
    with status if console.is_terminal else nullcontext():
        yield tell


_MANY = 20
"""Drafts from which progress is told where there is no terminal, so many times."""
_SILENT_S = 30
LISTED = 10
"""How many of a kind are named."""


def not_judged(failed: Mapping[str, HarnessError]) -> Iterator[str]:
    """Which drafts, or rows, have no verdict, and why."""
    for name, error in islice(failed.items(), LISTED):
        yield f"Not judged: {error if isinstance(error, InvalidInput) else f'{name}: {error}'}"
    if len(failed) > LISTED:
        yield f"… and {len(failed) - LISTED} more; --json has all."
