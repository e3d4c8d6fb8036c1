"""The rounds of a revise loop: their scores, what was criticized, candidates and changes."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from itertools import takewhile
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.cli.consoles import say
from harness.cli.tables import known, plain_table
from harness.cli.verdicts import points, verdict_as_json, why_not_more, with_scores
from harness.compress import sections_of
from harness.trace import Journal
from harness.wiggum import RecordedLoop, Round, recorded_loops, rounds_in, texts_of

# Words shown before the first difference of two long texts.
_WORDS_BEFORE = 4


def print_rounds(journal: Journal, console: Console) -> None:
    """Prints each round of each loop of a run; without a loop, says so on standard error.

    Raises:
        InvalidInput: The run did not record texts, or a draft had a secret in it.
        JournalInvalid: The journal is damaged.
    """
    loops = _loops(journal)
    if not loops:
        say("this run has no revise loop", err=True)
    for loop, rounds in loops:
        where = f"{loop.node}: " if loop.node else ""
        end = loop.stop_reason or "not over"
        console.print(f"{where}rubric '{loop.rubric}', {end}", style="bold")
        console.print(rounds_table(rounds, best=loop.best_round))
        for round_ in rounds:
            _print_round(round_, rounds, console)


def rounds_as_json(journal: Journal) -> list[dict[str, object]]:
    """The rounds of each loop, for scripts."""
    return [
        {
            "node": loop.node,
            "rubric": loop.rubric,
            "stop_reason": loop.stop_reason,
            "best_round": loop.best_round,
            "rounds": [round_as_json(round_) for round_ in rounds],
        }
        for loop, rounds in _loops(journal)
    ]


def round_as_json(round_: Round) -> dict[str, object]:
    """A round, for scripts."""
    return {
        "round": round_.number,
        "base_round": round_.base_round,
        "changed_chars": round_.changed_chars,
        **verdict_as_json(round_.verdict),
        "draft": round_.draft,
        "candidates": [asdict(candidate) for candidate in round_.tried],
    }


def rounds_table(rounds: Sequence[Round], *, best: int | None) -> Table:
    """The scores of each round, with a star at the one that was returned."""
    table = plain_table("", "round", ())
    titles = (f"{r.number}*" if r.number == best else f"{r.number}" for r in rounds)
    return with_scores(table, dict(zip(titles, (r.verdict for r in rounds), strict=True)))


class Change(NamedTuple):
    """A section, before and after."""

    title: str | None
    before: str
    after: str

    def shown(self, *, chars: int | None = None) -> Text:
        """Both versions, each cut to `chars`; from shortly before the first difference on."""
        old, new = self.before.strip(), self.after.strip()
        if chars is not None:
            pairs = zip(old.split(), new.split(), strict=False)
            common = [word for word, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
            hidden = len(common) - _WORDS_BEFORE if len(" ".join(common)) > chars / 2 else 0
            old, new = _cut(old, hidden, chars), _cut(new, hidden, chars)
        title = (f"{self.title}\n", "bold") if self.title else ("", "")
        return Text.assemble(title, (f"- {old}\n", "red"), (f"+ {new}", "green"))


def _cut(text: str, hidden: int, chars: int) -> str:
    """The text without its first `hidden` words, cut to `chars`."""
    rest = " ".join(text.split()[max(hidden, 0) :])
    return textwrap.shorten(f"… {rest}" if hidden > 0 else rest, chars, placeholder=" …")


def changes(before: str, after: str) -> list[Change]:
    """The sections that differ; the whole texts if their sections have other titles."""
    old, new = sections_of(before), sections_of(after)
    if [section.title for section in old] != [section.title for section in new]:
        return [Change(None, before, after)]
    return [
        Change(was.title, was.body, now.body)
        for was, now in zip(old, new, strict=True)
        if was.body.strip() != now.body.strip()
    ]


def _loops(journal: Journal) -> list[tuple[RecordedLoop, tuple[Round, ...]]]:
    loops = recorded_loops(journal)
    texts = texts_of(loops, journal)
    return [(loop, rounds_in(loop, texts, journal)) for loop in loops]


def _print_round(round_: Round, rounds: Sequence[Round], console: Console) -> None:
    console.print()
    base = None if round_.base_round is None else rounds[round_.base_round - 1]
    origin = "the first draft" if base is None else f"from round {base.number}"
    console.print(f"Round {round_.number}, {origin}", style="bold")
    if round_.tried:
        console.print(_candidates(round_))
    for change in changes(base.draft, round_.draft) if base else ():
        console.print(change.shown())
    for score in round_.verdict.scores:
        for line in why_not_more(score):
            console.print(f"{score.name} {points(score)}: {line}")


def _candidates(round_: Round) -> Table:
    table = plain_table("", "candidate for", ("number", "seed", "by the checks"))
    table.add_column("outcome", overflow="fold")
    for candidate in round_.tried:
        error = f": {candidate.error}" if candidate.error else ""
        table.add_row(
            candidate.section or "the draft",
            f"{candidate.number}" if candidate.number else "cut",
            known(candidate.seed, str),
            known(candidate.checked, "{:.2f}".format),
            f"{candidate.outcome}{error}",
        )
    return table
