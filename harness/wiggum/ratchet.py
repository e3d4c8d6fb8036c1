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

    # The drafts to evaluate, best first. If no reply is taken: none, or one without text.
    finalists: tuple[Finalist, ...]
    # All candidates, with their outcomes if the first finalist becomes the round's draft. Empty for
    # a single candidate, which is always taken.
    tried: tuple[Tried, ...] = ()
    how: How = "whole"
    written_in: int | None = None  # id of the span that it was written in, for the trace's arrows

    @property
    def best(self) -> Finalist:
        """The first finalist; a finalist without text if there is none."""
        return self.finalists[0] if self.finalists else Finalist(text="")


Rank = tuple[bool, bool, float]
"""The rank of a draft by the checks, as in `Checked.rank`: the higher, the better."""

Put = Callable[[Mapping[int | None, str]], str]
"""Makes the next draft: section index → new text, or None → the whole text. Raises `InvalidInput`
if a text does not fit."""


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

    A candidate is taken only if it raises the draft's rank. In an `undecided` section, which a
    model criticized, it need only not lower it. The second finalist is made of the second-best
    candidates, and so on.
    """
    climbs = [
        _climb(base, candidates, put=put, check=check, undecided=undecided, place=place)
        for place in range(finalists)
    ]
    drafts: dict[str, Finalist] = {}
    for finalist, _ in climbs:
        if finalist.taken:
            # If several climbs make the same text, the best climb's finalist stays.
            drafts.setdefault(finalist.text, finalist)
    _, fates = climbs[0]
    return Selection(
        finalists=tuple(drafts.values()),
        tried=tuple(_tried(base, candidate, fates[candidate]) for candidate in candidates),
        how=how,
    )


def gains(checked: Checked, *, over: Rank, undecided: bool) -> bool:
    """Whether a candidate may be taken: see `select`."""
    return checked.rank > over or (undecided and checked.rank == over)


def best_of(
    drafts: Sequence[Candidate], *, base: Draft, check: Callable[[Draft], Checked], finalists: int
) -> Selection:
    """Takes the `finalists` first drafts that the checks rank highest.

    In the best one, a section of another draft replaces the section of the same title if that
    raises the rank. `base` gives all but the text, such as the task and the sources.
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
    best_first = list(chosen.values())
    tried: list[Tried] = []
    for draft in drafts:
        outcome: Outcome = "outdone"
        if not draft.text:
            outcome = "failed" if draft.error else "unusable"
        elif draft == ranked[0]:
            outcome = "taken"
        mean = scores[draft.number].mean if draft.text else None
        tried.append(_tried(base, draft, (outcome, mean)))
    # 2. Mix the best one with sections of the others.
    if ranked:
        best = replace(base, text=ranked[0].text, cut=ranked[0].cut)
        sections: list[Candidate] = []
        for draft in ranked[1:]:
            if not draft.cut:
                sections += _sections_for(best, draft)
        mixed = select(best, sections, put=partial(put_sections, best.text), check=check)
        tried += mixed.tried
        for better in mixed.finalists:
            best_first[0] = replace(better, taken=(ranked[0], *better.taken))
    return Selection(finalists=tuple(best_first), tried=tuple(tried))


def put_sections(markdown: str, texts: Mapping[int | None, str]) -> str:
    """The document with these texts in place of its sections, by index; see `Put`."""
    return splice(markdown, {key: text for key, text in texts.items() if key is not None})


def _sections_for(best: Draft, draft: Candidate) -> Iterator[Candidate]:
    """The sections of a draft whose titles the best draft has too, as candidates for it."""
    replacements = _by_title(sections_of(draft.text))
    for key, (index, _) in _by_title(best.sections).items():
        if key in replacements:
            _, replacement = replacements[key]
            yield replace(draft, section=index, text=replacement.body.strip())


def _by_title(sections: Sequence[Section]) -> dict[tuple[str, int], tuple[int, Section]]:
    """(title, its earlier occurrences) → (index, section), for sections with a heading."""
    counts = Counter[str]()
    result = {}
    for index, section in enumerate(sections):
        if section.level:
            result[section.title, counts[section.title]] = index, section
            counts[section.title] += 1
    return result


def with_winner(
    tried: Iterable[Tried], *, winner: Finalist, scored: Iterable[Finalist]
) -> tuple[Tried, ...]:
    """The candidates with new outcomes, if the evaluator preferred another finalist."""
    outcomes: dict[tuple[int | None, int], Outcome] = {}
    # The winner comes last: a candidate that is also in another finalist is taken.
    for draft in (*scored, winner):
        for candidate in draft.taken:
            key = candidate.section, candidate.number
            outcomes[key] = "taken" if draft is winner else "finalist"
    return tuple(
        replace(trial, outcome=outcomes.get((trial.section_index, trial.number), trial.outcome))
        for trial in tried
    )


_Fate = tuple[Outcome, float | None]
"""What becomes of a candidate, and the checks' mean for the draft with it."""


def _climb(
    base: Draft,
    candidates: Sequence[Candidate],
    *,
    put: Put,
    check: Callable[[Draft], Checked],
    undecided: Collection[int | None],
    place: int,
) -> tuple[Finalist, dict[Candidate, _Fate]]:
    """One draft: at each section the candidate that is best (`place` 0), second-best (1), ..."""
    text, rank = base.text, check(base).rank
    chosen: dict[int | None, Candidate] = {}
    fates: dict[Candidate, _Fate] = {
        candidate: ("failed" if candidate.error else "unusable", None) for candidate in candidates
    }
    for section in dict.fromkeys(candidate.section for candidate in candidates):
        better: list[tuple[Rank, Candidate, str]] = []
        # The candidates of earlier sections stay: the rank is that of the draft as a whole.
        texts = {key: candidate.text for key, candidate in chosen.items()}
        for candidate in candidates:
            if candidate.section != section or not candidate.text:
                continue
            try:
                trial = put({**texts, section: candidate.text})
            except InvalidInput:
                continue
            checked = check(replace(base, text=trial, cut=candidate.cut))
            fates[candidate] = "no_gain", checked.mean
            if gains(checked, over=rank, undecided=section in undecided and trial != text):
                fates[candidate] = "outdone", checked.mean
                better.append((checked.rank, candidate, trial))
        if better:
            better.sort(key=lambda gain: (gain[0], -gain[1].number), reverse=True)
            # If a section has too few gains for this place, its last one is taken.
            rank, best, text = better[min(place, len(better) - 1)]
            chosen[section] = best
            fates[best] = "taken", fates[best][1]
    return _finalist(text, chosen.values()), fates


def _finalist(text: str, candidates: Iterable[Candidate]) -> Finalist:
    chosen = tuple(candidates)
    return Finalist(text=text, taken=chosen, cut=any(candidate.cut for candidate in chosen))


def _tried(base: Draft, candidate: Candidate, fate: _Fate) -> Tried:
    outcome, checked = fate
    index = candidate.section
    return Tried(
        number=candidate.number,
        section=None if index is None else base.sections[index].title,
        section_index=index,
        seed=candidate.seed,
        outcome=outcome,
        checked=None if checked is None else round(checked, 3),
        text=candidate.text,
        error=candidate.error,
    )
