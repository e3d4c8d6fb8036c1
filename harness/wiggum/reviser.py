"""The producer's side of the loop: the next draft, made from what failed in the last.

- If every finding names a section, each of these sections is written again by a call of its own.
- If a finding is about the whole draft, one call sees the draft and returns the sections to change.
- If there are no headings, if the draft was cut, or with `mode="whole"`, the whole draft is written
  again.

Sections without findings stay byte for byte. A reply without text, or with the marks of a shortened
text, changes nothing. A reply that was cut loses its last, broken sentence.

With several candidates, each call is made so many times, and `ratchet` chooses among the replies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from harness.compress import edits_in, splice
from harness.compress.condense import LEFT_OUT
from harness.errors import InvalidInput, ReplyInvalid
from harness.inference import ChatRequest, Completion, Message
from harness.inference.answer import check_whole
from harness.inference.request import most_tokens_of
from harness.rubric import Ask, Checked, Draft
from harness.text.sentences import ends_sentence
from harness.trace import Tracer
from harness.wiggum.policy import check_choice, check_count
from harness.wiggum.prompts import (
    FailedDraft,
    RevisionPrompts,
    cited,
    located,
    place_of,
    without_criticized,
)
from harness.wiggum.ratchet import (
    Candidate,
    Contest,
    Finalist,
    How,
    Selection,
    put_sections,
    select,
)
from harness.wiggum.reply_text import text_in, without_broken_end
from harness.wiggum.sampling import SampledPlace, sample

RevisionMode = Literal["sections", "whole"]
"""`sections`: section by section if there are headings; `whole`: always the whole draft."""

# Low, so that a text may grow to twice its length, in any script; English has about four.
_BYTES_PER_TOKEN = 2
# Room for a short section to grow: about 190 words.
_LEAST_TOKENS = 256
# For another try: a greedy model would say the same again.
_TEMPERATURE = 0.3
# Small models that rewrite a text fall into repeating themselves.
_FREQUENCY_PENALTY = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """One way to make the next draft: what is asked for, and how replies are put into it."""

    how: How
    places: Sequence[SampledPlace]
    contest: Contest
    # Section → its text, and its findings.
    criticized: Mapping[int | None, tuple[str, Sequence[str]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviser:
    """Revises the drafts of a loop with the producer model.

    It has no state: the same rounds lead to the same prompts. Raises `InvalidInput` for a wrong
    mode or number.
    """

    ask: Ask
    model: str
    # The most room of a call. A section gets less, about twice its length; if this is None, so does
    # a whole draft.
    max_output_tokens: int | None
    prompts: RevisionPrompts = field(default_factory=RevisionPrompts)
    mode: RevisionMode = "sections"
    candidates: int = 1
    finalists: int = 1
    at_once: int | None = None  # calls that the model answers at once; None if unknown
    first_seed: int = 0
    check: Callable[[Draft], Checked] = lambda _: Checked()  # chooses among several candidates
    tracer: Tracer = field(default_factory=Tracer)

    def __post_init__(self) -> None:
        check_choice("revise", self.mode, RevisionMode)
        check_count("candidates", self.candidates)
        check_count("finalists", self.finalists)

    async def revise(self, failed: FailedDraft) -> Selection:
        """The next draft; the number of rounds seeds the sampling.

        Raises `InferenceError` if the model gave no revision, or failed at one of several sections,
        and `LimitReached` if the loop's limits left no room for it.
        """
        selection = Selection(finalists=())
        for plan in self._plans(failed):
            selection = replace(await self._chosen(plan), how=plan.how)
            # If no candidate gains anything, that is a result too, a plateau.
            if selection.best.text or any(fate.outcome == "no_gain" for fate in selection.tried):
                break
        return selection

    def most_tokens(self, failed: FailedDraft) -> tuple[int, int]:
        """The most that this revision can use, and by which the next draft can be longer."""
        # After edits that cannot be used, the whole is asked for.
        requests = [place.request for plan in self._plans(failed) for place in plan.places]
        used = self.candidates * sum(most_tokens_of(request) for request in requests)
        return used, sum(request.max_output_tokens or 0 for request in requests)

    async def sampled(self, places: Sequence[SampledPlace]) -> tuple[Candidate, ...]:
        """The candidates for these places; see `sample`."""
        return await sample(
            places, times=self.candidates, at_once=self.at_once, ask=self.ask, tracer=self.tracer
        )

    # --- what is asked ---------------------------------------------------------------------------

    def _plans(self, failed: FailedDraft) -> Iterator[_Plan]:
        """The ways to revise a draft; each but the first is for replies that cannot be used."""
        draft = failed.draft
        by_section = self.mode == "sections" and not draft.cut
        if by_section and any(section.level for section in draft.sections):
            if findings := located(failed.focus, draft.sections):
                yield self._section_by_section(failed, findings)
                return
            yield self._by_edits(failed)
        yield self._as_a_whole(failed)

    def _section_by_section(
        self, failed: FailedDraft, findings: Mapping[int, Sequence[str]]
    ) -> _Plan:
        """A call for each section with findings."""
        draft = failed.draft
        sections = draft.sections
        judged = [score for score in failed.focus if score.source == "judged"]
        return _Plan(
            how="sections",
            places=[
                self._place(
                    failed,
                    prompt,
                    # No more than it needs: a small model fills all the room there is.
                    room=self._enough(sections[index].body),
                    text_of=partial(_fitting, before=sections[index].text),
                    section=index,
                )
                for index, prompt in self.prompts.sections(failed, findings).items()
            ],
            contest=Contest(
                base=draft,
                check=self.check,
                put=partial(put_sections, draft.text),
                undecided=cited(judged, sections),
            ),
            criticized={index: (sections[index].body, findings[index]) for index in findings},
        )

    def _by_edits(self, failed: FailedDraft) -> _Plan:
        """One call for the sections that change."""
        prompt, in_full = self.prompts.edits(failed)
        shown = (failed.draft.sections[index].text for index in in_full)

        def applied(reply: str) -> str:
            # Only sections that the prompt shows in full may be rewritten.
            edits = edits_in(reply, failed.draft.text, allowed=in_full)
            # Without edits that fit, the reply is unusable, and the whole draft is asked for.
            with suppress(InvalidInput):
                if edits:
                    insertions = edits.insertions
                    return splice(failed.draft.text, edits.replacements, insertions=insertions)
            return ""

        room = self.max_output_tokens or self._enough(*shown)
        place = self._place(failed, prompt, room=room, text_of=applied)
        return _Plan(how="edits", places=[place], contest=self._contest_of_wholes(failed))

    def _as_a_whole(self, failed: FailedDraft) -> _Plan:
        """One call for the whole draft."""
        draft = failed.draft
        findings = [finding.message for score in failed.focus for finding in score.findings]
        room = self.max_output_tokens or self._enough(draft.text)
        text_of = partial(_fitting, before=draft.text)
        return _Plan(
            how="whole",
            places=[self._place(failed, self.prompts.whole(failed), room=room, text_of=text_of)],
            contest=self._contest_of_wholes(failed),
            criticized={None: (draft.text, findings)},
        )

    def _contest_of_wholes(self, failed: FailedDraft) -> Contest:
        undecided = (None,) if any(score.source == "judged" for score in failed.focus) else ()
        return Contest(base=failed.draft, check=self.check, undecided=undecided)

    def _enough(self, *texts: str) -> int:
        """Tokens to write these texts again, within `max_output_tokens`."""
        size_bytes = sum(len(text.encode("utf-8", "replace")) for text in texts)
        enough = max(size_bytes // _BYTES_PER_TOKEN, _LEAST_TOKENS)
        return min(enough, self.max_output_tokens or enough)

    def _place(
        self,
        failed: FailedDraft,
        prompt: Message,
        *,
        room: int,
        text_of: Callable[[str], str],
        section: int | None = None,
    ) -> SampledPlace:
        # Each round has a seed of its own, which is the same when the loop is resumed.
        seed = self.first_seed + failed.rounds[-1].number + 1
        request = ChatRequest(
            model=self.model,
            role="producer",
            messages=(prompt,),
            max_output_tokens=room,
            temperature=_TEMPERATURE,
            frequency_penalty=_FREQUENCY_PENALTY,
            seed=seed,
        )
        return SampledPlace(
            request=request,
            read=partial(self._read, text_of=text_of),
            base_seed=seed,
            section=section,
            afresh="" if section is None else self.prompts.afresh(failed, section),
        )

    # --- what is made of the replies -------------------------------------------------------------

    async def _chosen(self, plan: _Plan) -> Selection:
        """Samples the candidates of a plan, and chooses the next draft among them."""
        if self.candidates == 1:
            return await self._only(plan)
        candidates = [*_shortened(plan)]
        places = plan.places
        # If several finalists go to the evaluator, checks alone must not end the sampling.
        if self.finalists == 1:
            base = plan.contest.base
            is_enough = partial(_is_enough, plan.contest, self.check(base))
            # If it is enough to leave the criticized sentences out, the section needs no call.
            done = {candidate.section for candidate in candidates if is_enough(candidate)}
            places = [
                replace(place, is_enough=is_enough) for place in places if place.section not in done
            ]
        candidates += await self.sampled(places)
        return select(plan.contest, candidates, finalists=self.finalists)

    async def _only(self, plan: _Plan) -> Selection:
        """The draft made of the only candidate of each place, which no check compares."""
        sampled = await self.sampled(plan.places)
        usable = [candidate for candidate in sampled if candidate.text]
        texts = {candidate.section: candidate.text for candidate in usable}
        try:
            text = plan.contest.put(texts) if texts else ""
        except InvalidInput as error:
            raise ReplyInvalid(
                f"the revision cannot be put back into the draft: {error}",
                endpoint=self.model,
                text="\n\n".join(texts.values()),
            ) from error
        only = Finalist(text=text, cut=any(candidate.cut for candidate in usable))
        return Selection(finalists=(only,))

    def _read(self, completion: Completion, *, text_of: Callable[[str], str]) -> tuple[str, bool]:
        """The candidate's text, which `text_of` makes of a reply, and whether its end is broken."""
        text = completion.text.strip()
        # Only a reply at its token limit is mended; any other that is not whole is an error.
        if completion.finish_reason == "length":
            mended = without_broken_end(text)
            # It is the same if no whole sentence stands before the place where it was cut.
            return text_of(mended), mended == text and not ends_sentence(text)
        check_whole(completion, endpoint=self.model)
        return text_of(text), False


def _is_enough(contest: Contest, checked: Checked, candidate: Candidate) -> bool:
    """Whether a candidate gains over the base, and its section then satisfies all checks."""
    base = contest.base
    entry = None if candidate.cut else contest.entry(candidate)
    if entry is None or not contest.gains(entry, text=base.text, checked=checked):
        return False
    short = entry.checked.short
    if candidate.section is None:
        return not short
    # The candidate may have headings, so that it takes up several sections.
    sections = entry.draft.sections
    added = len(sections) - len(base.sections)
    rewritten = range(candidate.section, candidate.section + 1 + added)
    # Findings that remain must be about other sections.
    return all(
        score.findings and all(place_of(f, sections) not in rewritten for f in score.findings)
        for score in short
    )


def _shortened(plan: _Plan) -> Iterator[Candidate]:
    """Texts without the sentences that checks criticized: candidates that cost no call."""
    for section, (text, findings) in plan.criticized.items():
        remaining = without_criticized(text, findings)
        if section not in plan.contest.undecided and remaining not in ("", text.strip()):
            yield Candidate(number=0, section=section, text=remaining)


def _fitting(reply: str, *, before: str) -> str:
    """The text of a reply; empty if it copied a mark of omitted text, which the prompt may have."""
    # A mark that was in the draft before is a part of its text.
    return "" if LEFT_OUT in reply and LEFT_OUT not in before else text_in(reply, before=before)
