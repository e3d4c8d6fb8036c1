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


Put = Callable[[Mapping[int | None, str]], str]
"""Makes the next draft: section index → new text, or None → the whole text. Raises `InvalidInput`
if a text does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedDraft:
    """A draft with a candidate in it, and what the checks say of it."""

    candidate: Candidate
    draft: Draft
    checked: Checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """A draft whose sections candidates compete for, by what the checks say of the whole."""

    base: Draft
    check: Callable[[Draft], Checked]
    put: Put = lambda texts: texts[None]
    # The sections that a model criticized: checks cannot tell whether they have gained.
    undecided: Collection[int | None] = ()

    def entry(self, candidate: Candidate, beside: Iterable[Candidate] = ()) -> CheckedDraft | None:
        """The base with a candidate, and others for other sections; None if it does not fit."""
        if not candidate.text:
            return None
        try:
            text = self.put({taken.section: taken.text for taken in (*beside, candidate)})
        except InvalidInput:
            return None
        draft = replace(self.base, text=text, cut=candidate.cut)
        return CheckedDraft(candidate=candidate, draft=draft, checked=self.check(draft))

    def gains(self, entry: CheckedDraft, *, text: str, checked: Checked) -> bool:
        """Whether a candidate may be taken into a draft of this text: see `select`."""
        # An unchanged text has the same rank too, but is no gain.
        if entry.candidate.section in self.undecided and entry.draft.text != text:
            return entry.checked.rank >= checked.rank
        return entry.checked.rank > checked.rank


def select(contest: Contest, candidates: Sequence[Candidate], *, finalists: int = 1) -> Selection:
    """Takes, section by section, the candidate that the checks rank highest.

    A candidate is taken only if it raises the draft's rank. In an `undecided` section, which a
    model criticized, it need only not lower it. The second finalist is made of the second-best
    candidates, and so on.
    """
    climbs = [_climb(contest, candidates, place=place) for place in range(finalists)]
    drafts: dict[str, Finalist] = {}
    for finalist, _ in climbs:
        if finalist.taken:
            # If several climbs make the same text, the best climb's finalist stays.
            drafts.setdefault(finalist.text, finalist)
    _, fates = climbs[0]
    tried = tuple(_tried(contest.base, candidate, fates) for candidate in candidates)
    return Selection(finalists=tuple(drafts.values()), tried=tried)


def best_of(
    drafts: Sequence[Candidate], *, base: Draft, check: Callable[[Draft], Checked], finalists: int
) -> Selection:
    """Takes the `finalists` first drafts that the checks rank highest.

    In the best one, a section of another draft replaces the section of the same title if that
    raises the rank. `base` gives all but the text, such as the task and the sources.
    """
    # 1. Rank whole drafts.
    contest = Contest(base=base, check=check)
    # A cut draft cannot pass, so any whole one goes before it.
    ranked = sorted(
        filter(None, map(contest.entry, drafts)),
        key=lambda e: (not e.candidate.cut, e.checked.rank, -e.candidate.number),
        reverse=True,
    )
    chosen: dict[str, Finalist] = {}
    fates: dict[Candidate, _Fate] = {}
    for place, entry in enumerate(ranked):
        fates[entry.candidate] = "outdone" if place else "taken", entry.checked.mean
        if place < finalists:
            text = entry.draft.text
            chosen.setdefault(text, _finalist(text, [entry.candidate]))
    best_first = list(chosen.values())
    tried = [_tried(base, candidate, fates) for candidate in drafts]
    # 2. Mix the best one with sections of the others.
    if ranked:
        best = ranked[0].draft
        sections: list[Candidate] = []
        for entry in ranked[1:]:
            if not entry.candidate.cut:
                sections += _sections_for(best, entry.candidate)
        put = partial(put_sections, best.text)
        mixed = select(Contest(base=best, check=check, put=put), sections)
        tried += mixed.tried
        for better in mixed.finalists:
            best_first[0] = replace(better, taken=(ranked[0].candidate, *better.taken))
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
        replace(fate, outcome=outcomes.get((fate.section_index, fate.number), fate.outcome))
        for fate in tried
    )


_Fate = tuple[Outcome, float | None]
"""What becomes of a candidate, and the checks' mean for the draft with it."""


def _climb(
    contest: Contest, candidates: Sequence[Candidate], *, place: int
) -> tuple[Finalist, dict[Candidate, _Fate]]:
    """One draft: at each section the candidate that is best (`place` 0), second-best (1), ...

    Candidates without an entry have no fate.
    """
    text, checked = contest.base.text, contest.check(contest.base)
    chosen: list[Candidate] = []
    fates: dict[Candidate, _Fate] = {}
    for section in dict.fromkeys(candidate.section for candidate in candidates):
        better: list[CheckedDraft] = []
        for candidate in candidates:
            # The candidates of earlier sections stay: the rank is that of the draft as a whole.
            entry = contest.entry(candidate, chosen) if candidate.section == section else None
            if entry is None:
                continue
            fates[candidate] = "no_gain", entry.checked.mean
            if contest.gains(entry, text=text, checked=checked):
                fates[candidate] = "outdone", entry.checked.mean
                better.append(entry)
        if better:
            better.sort(key=lambda e: (e.checked.rank, -e.candidate.number), reverse=True)
            # If a section has too few gains for this place, its last one is taken.
            best = better[min(place, len(better) - 1)]
            text, checked = best.draft.text, best.checked
            chosen.append(best.candidate)
            fates[best.candidate] = "taken", checked.mean
    return _finalist(text, chosen), fates


def _finalist(text: str, candidates: Sequence[Candidate]) -> Finalist:
    return Finalist(text=text, taken=tuple(candidates), cut=any(c.cut for c in candidates))


def _tried(base: Draft, candidate: Candidate, fates: Mapping[Candidate, _Fate]) -> Tried:
    without_entry: _Fate = ("failed" if candidate.error else "unusable", None)
    outcome, checked = fates.get(candidate, without_entry)
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
