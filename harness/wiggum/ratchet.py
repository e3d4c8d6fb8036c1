"""Chooses among candidates of a revision: section by section, where the checks' rank rises.

Pure: no model, clock, tracer or file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from harness.compress import Section, sections_of, splice
from harness.errors import InvalidInput
from harness.rubric import Checked, Draft

Outcome = Literal["taken", "finalist", "outdone", "no_gain", "unusable", "failed"]
"""The fate of a candidate.

- `taken`: it is in the round's draft.
- `finalist`: it is in a draft that the evaluator scored lower than the round's.
- `outdone`: another candidate for the same place was better.
- `no_gain`: with it, the checks score the draft no higher.
- `unusable`: it has no text, changes nothing, or cannot be put into the draft.
- `failed`: its call failed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A text that was sampled for a draft or for one of its sections."""

    # Counted from 1 for each section; 0 for the section's text without the sentences that checks
    # criticized, which takes no call.
    number: int
    section: int | None = None  # index of the section to replace; None for the whole draft
    text: str = ""  # empty if the reply could not be used
    cut: bool = False  # whether the reply was cut, and had no whole sentence to be trimmed to
    seed: int | None = None
    span: int | None = None  # id of the span of its call, for the trace's arrows
    error: str = ""  # the error of the call, if there is no reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A candidate and its fate, for the journal."""

    number: int
    section: str | None
    """Title of its section; None for the whole draft."""
    section_index: int | None
    """Its index in `sections_of` the revised draft: titles may repeat."""
    seed: int | None
    outcome: Outcome
    checked: float | None = None
    """The checks' weighted mean for the draft with this candidate; None if it was not scored."""
    text: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """A draft made of candidates, for the evaluator to score."""

    text: str
    taken: tuple[Candidate, ...] = ()
    cut: bool = False  # whether one of the replies in it was cut


How = Literal["sections", "edits", "whole"]
"""Whether drafts are made by calls for single sections, by one for several, or as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A round's draft: the candidate that there was, or the checks' choice among several."""

    # The drafts to evaluate, best first; none, or one without text, if no reply is taken.
    finalists: tuple[Finalist, ...]
    # All candidates, with their outcomes if the first finalist becomes the round's draft; empty for
    # a single candidate, which is always taken.
    tried: tuple[Tried, ...] = ()
    how: How = "whole"

    @property
    def best(self) -> Finalist:
        """The first finalist; a finalist without text if there is none."""
        return self.finalists[0] if self.finalists else Finalist(text="")


Rank = tuple[bool, bool, float]
"""The rank of a draft by the checks, as in `Checked.rank`: the higher, the better."""

Put = Callable[[Mapping[int | None, str]], str]
"""Makes the draft with these texts in place of its sections; `InvalidInput` if they do not fit."""


def select(
    base: Draft,
    candidates: Sequence[Candidate],
    *,
    put: Put,
    check: Callable[[Draft], Checked],
    undecided: Collection[int | None] = (),
    finalists: int = 1,
    how: How = "whole",
) -> Selection:
    """Takes, section by section, the candidate that the checks rank highest.

    A candidate is taken only if it raises the draft's rank; in an `undecided` section, which a
    model criticized, only if it does not lower it. The second finalist is made of the second-best
    candidates, and so on.
    """
    climbs = [
        _climb(base, candidates, put=put, check=check, undecided=undecided, place=place)
        for place in range(finalists)
    ]
    drafts: dict[str, Finalist] = {}
    for climb in climbs:
        if climb.finalist.taken:
            # If several climbs make the same text, the best climb's finalist stays.
            drafts.setdefault(climb.finalist.text, climb.finalist)
    return Selection(
        finalists=tuple(drafts.values()),
        tried=tuple(_tried(base, candidate, climbs[0]) for candidate in candidates),
        how=how,
    )


def gains(checked: Checked, *, over: Rank, undecided: bool) -> bool:
    """Whether a candidate may be taken: see `select`."""
    return checked.rank > over or (undecided and checked.rank == over)


def best_of(
    drafts: Sequence[Candidate], *, base: Draft, check: Callable[[Draft], Checked], finalists: int
) -> Selection:
    """Takes the first drafts that the checks rank highest; the text of `base` does not count.

    In the best one, a section of another draft takes the place of its namesake where that raises
    the rank.
    """
    # 1. Rank whole drafts.
    written = [draft for draft in drafts if draft.text]
    scores = {
        draft.number: check(replace(base, text=draft.text, cut=draft.cut)) for draft in written
    }
    # A cut draft cannot pass, so any whole one goes before it.
    ranked = sorted(
        written,
        key=lambda draft: (not draft.cut, scores[draft.number].rank, -draft.number),
        reverse=True,
    )
    chosen: dict[str, Finalist] = {}
    for draft in ranked[:finalists]:
        chosen.setdefault(draft.text, _finalist(draft.text, [draft]))
    best_first = [*chosen.values()]
    tried: list[Tried] = []
    for draft in drafts:
        outcome: Outcome = "taken" if draft in ranked[:1] else "outdone"
        if not draft.text:
            outcome = "failed" if draft.error else "unusable"
        mean = scores[draft.number].mean if draft.text else None
        tried.append(_record(draft, outcome=outcome, section=None, checked=mean))
    # 2. Mix the best one with sections of the others.
    if ranked:
        best = replace(base, text=ranked[0].text, cut=ranked[0].cut)
        # The best draft is the base: only parts that raise its rank are taken.
        mixed = select(
            best,
            [part for draft in ranked[1:] if not draft.cut for part in _parts(draft, of=best)],
            put=partial(put_sections, best.text),
            check=check,
        )
        tried += mixed.tried
        for better in mixed.finalists:
            best_first[0] = replace(better, taken=(ranked[0], *better.taken))
    return Selection(finalists=tuple(best_first), tried=tuple(tried))


def put_sections(markdown: str, texts: Mapping[int | None, str]) -> str:
    """The document with these texts in place of its sections, by index; see `Put`."""
    return splice(markdown, {key: text for key, text in texts.items() if key is not None})


def _parts(draft: Candidate, *, of: Draft) -> Iterator[Candidate]:
    """The sections of another draft that have a namesake in this one, as candidates for it."""
    theirs = _by_name(sections_of(draft.text))
    for name, (index, _) in _by_name(of.sections).items():
        if name in theirs:
            yield replace(draft, section=index, text=theirs[name][1].body.strip())


def _by_name(sections: Sequence[Section]) -> dict[tuple[str, int], tuple[int, Section]]:
    """Sections with a heading, and their indices, by title and its earlier occurrences."""
    counts = Counter[str]()
    parts = {}
    for index, section in enumerate(sections):
        if section.level:
            parts[section.title, counts[section.title]] = index, section
            counts[section.title] += 1
    return parts


def with_winner(
    tried: Iterable[Tried], *, winner: Finalist, scored: Iterable[Finalist]
) -> tuple[Tried, ...]:
    """The record if the evaluator preferred another finalist than the checks."""
    outcomes: dict[tuple[int | None, int], Outcome] = {}
    for draft in (*scored, winner):  # the winner last, whose outcome is another
        for candidate in draft.taken:
            key = candidate.section, candidate.number
            outcomes[key] = "taken" if draft is winner else "finalist"
    return tuple(
        replace(trial, outcome=outcomes.get((trial.section_index, trial.number), trial.outcome))
        for trial in tried
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Climb:
    finalist: Finalist
    # The checks' score with each candidate in place, by section and number.
    means: Mapping[tuple[int | None, int], float]
    # The candidates with which the rank rose, or did not fall in an undecided section.
    gained: Collection[tuple[int | None, int]]


def _climb(
    base: Draft,
    candidates: Sequence[Candidate],
    *,
    put: Put,
    check: Callable[[Draft], Checked],
    undecided: Collection[int | None],
    place: int,
) -> _Climb:
    """One draft, with the candidate in this place of the order at each section."""
    text, rank = base.text, check(base).rank
    chosen: dict[int | None, Candidate] = {}
    means: dict[tuple[int | None, int], float] = {}
    gained: list[tuple[int | None, int]] = []
    for section in dict.fromkeys(candidate.section for candidate in candidates):
        better = []
        for candidate in candidates:
            if candidate.section != section or not candidate.text:
                continue
            try:
                # With what earlier sections have taken: the rank is of the draft as a whole.
                trial = put({**{key: c.text for key, c in chosen.items()}, section: candidate.text})
            except InvalidInput:
                continue
            checked = check(replace(base, text=trial, cut=candidate.cut))
            means[section, candidate.number] = checked.mean
            if gains(checked, over=rank, undecided=section in undecided and trial != text):
                gained.append((section, candidate.number))
                better.append((checked.rank, -candidate.number, candidate, trial))
        if better:
            # By rank and number alone: candidates have no order.
            better.sort(key=lambda gain: gain[:2], reverse=True)
            # A section with fewer gains than places gives its last to all further drafts.
            rank, _, chosen[section], text = better[min(place, len(better) - 1)]
    return _Climb(finalist=_finalist(text, chosen.values()), means=means, gained=gained)


def _finalist(text: str, candidates: Iterable[Candidate]) -> Finalist:
    chosen = tuple(candidates)
    return Finalist(text=text, taken=chosen, cut=any(candidate.cut for candidate in chosen))


def _tried(base: Draft, candidate: Candidate, climb: _Climb) -> Tried:
    key = candidate.section, candidate.number
    outcome: Outcome = "no_gain"
    if candidate in climb.finalist.taken:
        outcome = "taken"
    elif candidate.error:
        outcome = "failed"
    elif key not in climb.means:
        outcome = "unusable"
    elif key in climb.gained:
        outcome = "outdone"
    title = None if candidate.section is None else base.sections[candidate.section].title
    return _record(candidate, outcome=outcome, section=title, checked=climb.means.get(key))


def _record(
    candidate: Candidate, *, outcome: Outcome, section: str | None, checked: float | None
) -> Tried:
    return Tried(
        number=candidate.number,
        section=section,
        section_index=candidate.section,
        seed=candidate.seed,
        outcome=outcome,
        checked=None if checked is None else round(checked, 3),
        text=candidate.text,
        error=candidate.error,
    )
