"""The producer's side of the loop: making the next draft from what failed in the last.

Where there are headings, only sections are written again, and put back: what was not criticised
stays as it was, byte for byte. Findings that name sections lead to one call for each of those;
anything said about the whole leads to one call that is shown the draft and returns the sections
that it changes. Without headings, or when that is asked for, the whole draft is written again; and
so is one that was cut, which has no end to be put back to.

A reply that has no text, or has the marks of a shortened one, changes nothing. One that was cut
loses the sentence that it was cut in.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.compress import apply_edits, edits_in, sentences_of, splice
from harness.compress.condense import MARK
from harness.compress.markdown import blocks_of
from harness.errors import InvalidInput, ReplyInvalid
from harness.inference import ChatRequest, Message, check_whole, most_tokens_of
from harness.rubric import Ask, DimensionScore, Draft
from harness.wiggum.policy import Round
from harness.wiggum.prompts import RevisionPrompts, located

RevisionMode = Literal["sections", "whole"]
"""Whether only sections are written again, where there are headings, or always the whole draft."""

_BYTES_PER_TOKEN = 2
"""Low, so that what is written again may grow to twice its length, in any script; in English there
are about four."""

_LEAST_TOKENS = 256
"""Room for what is a stub: some 190 words."""

_TEMPERATURE = 0.3
"""Some freedom: a greedy model that failed would say the same again."""

_FREQUENCY_PENALTY = 0.2
"""Small models that write something again fall into saying one thing for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """The next draft."""

    text: str
    """Empty when the producer gave none, or none but with the marks of a shortened text."""
    how: Literal["sections", "edits", "whole"]
    """Made of calls for single sections, of the sections that one call returned, or anew."""
    cut: bool = False
    """Whether a reply in it was cut, and had no whole sentence to be trimmed to."""


class Reviser:
    """Revises the drafts of a loop with the producer model.

    It keeps nothing from one revision to the next: the same rounds lead to the same prompts.

    Args:
        ask: Reaches the model.
        model: Tag of the producer's endpoint.
        requirements: What the rubric asks of a draft. Every call is reminded of all of it, lest a
            draft lose on one dimension what it gains on another.
        max_output_tokens: The most room for a call. A short section is given less, about twice its
            length; so is everything, if it is None.
        mode: How.
        shorten_over: A draft of more characters is shown as its outline, with what is to be
            changed in full.
    """

    def __init__(
        self,
        *,
        ask: Ask,
        model: str,
        requirements: Sequence[str],
        max_output_tokens: int | None,
        mode: RevisionMode = "sections",
        shorten_over: int = 5_000,
    ) -> None:
        self._ask = ask
        self._model = model
        self._max_output_tokens = max_output_tokens
        self._mode = mode
        self._prompts = RevisionPrompts(requirements=tuple(requirements), shorten_over=shorten_over)

    async def revise(
        self, draft: Draft, focus: Sequence[DimensionScore], *, rounds: Sequence[Round]
    ) -> Revision:
        """The next draft.

        Args:
            draft: What to start from: that of one of the rounds.
            focus: The dimensions that failed.
            rounds: All so far, at least one. Their number seeds the sampling, so that runs repeat.

        Raises:
            InferenceError: The model gave no revision, or failed at one of several sections.
            LimitReached: The loop's limits left no room for it.
        """
        if requests := self._section_requests(draft, focus, rounds):
            return await self._with_sections(draft, requests)
        if self._has_sections(draft):
            edited = await self._edited(draft, focus, rounds)
            if edited.text:
                return edited
        text, cut = await self._text(self._whole_request(draft, focus, rounds))
        return Revision(text="" if _is_shortened(text, draft.text) else text, how="whole", cut=cut)

    def most_tokens(
        self, draft: Draft, focus: Sequence[DimensionScore], *, rounds: Sequence[Round]
    ) -> int:
        """What that revision takes at most."""
        return sum(most_tokens_of(request) for request in self._requests(draft, focus, rounds))

    def most_output_tokens(
        self, draft: Draft, focus: Sequence[DimensionScore], *, rounds: Sequence[Round]
    ) -> int:
        """How much of that is written: by so much, at most, is the next draft longer."""
        return sum(r.max_output_tokens or 0 for r in self._requests(draft, focus, rounds))

    # --- what is asked ---------------------------------------------------------------------------

    def _requests(
        self, draft: Draft, focus: Sequence[DimensionScore], rounds: Sequence[Round]
    ) -> list[ChatRequest]:
        """All that may be asked."""
        if by_section := self._section_requests(draft, focus, rounds):
            return list(by_section.values())
        whole = self._whole_request(draft, focus, rounds)
        if not self._has_sections(draft):
            return [whole]
        return [self._edit_request(draft, focus, rounds)[0], whole]

    def _has_sections(self, draft: Draft) -> bool:
        """Whether it can be revised by section."""
        by_section = self._mode == "sections" and not draft.cut
        return by_section and any(section.level for section in draft.sections)

    def _section_requests(
        self, draft: Draft, focus: Sequence[DimensionScore], rounds: Sequence[Round]
    ) -> dict[int, ChatRequest]:
        """One for each section that something is said against; none when sections are no way."""
        findings = located(focus, draft.sections) if self._has_sections(draft) else None
        return {
            # No more than it needs: a small model fills all the room there is.
            index: self._request(prompt, rounds, room=self._enough(draft.sections[index].body))
            for index, prompt in self._prompts.sections(draft, findings or {}, rounds).items()
        }

    def _enough(self, *texts: str) -> int:
        """Room to write these texts again, as far as it was given."""
        written = sum(len(text.encode("utf-8", "replace")) for text in texts) // _BYTES_PER_TOKEN
        enough = max(written, _LEAST_TOKENS)
        return min(enough, self._max_output_tokens or enough)

    def _edit_request(
        self, draft: Draft, focus: Sequence[DimensionScore], rounds: Sequence[Round]
    ) -> tuple[ChatRequest, tuple[int, ...]]:
        """With the sections that it shows in full: no other may be written again."""
        prompt, shown = self._prompts.edits(draft, focus, rounds)
        room = self._max_output_tokens or self._enough(*(draft.sections[i].text for i in shown))
        return self._request(prompt, rounds, room=room), shown

    def _whole_request(
        self, draft: Draft, focus: Sequence[DimensionScore], rounds: Sequence[Round]
    ) -> ChatRequest:
        room = self._max_output_tokens or self._enough(draft.text)
        return self._request(self._prompts.whole(draft, focus, rounds), rounds, room=room)

    def _request(self, prompt: str, rounds: Sequence[Round], *, room: int) -> ChatRequest:
        return ChatRequest(
            model=self._model,
            role="producer",
            messages=(Message("user", prompt),),
            max_output_tokens=room,
            temperature=_TEMPERATURE,
            frequency_penalty=_FREQUENCY_PENALTY,
            seed=rounds[-1].number + 1,
        )

    # --- what is made of the replies -------------------------------------------------------------

    async def _with_sections(self, draft: Draft, requests: Mapping[int, ChatRequest]) -> Revision:
        """The draft with these sections written again; empty when no call gave any text."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {
                    index: group.create_task(self._text(request))
                    for index, request in requests.items()
                }
        except ExceptionGroup as failed:
            # One failed call ends the round; the first says why.
            raise failed.exceptions[0] from None
        written, cut = {}, False
        for index, task in tasks.items():
            text, is_cut = task.result()
            if text and not _is_shortened(text, draft.sections[index].body):
                written[index], cut = text, cut or is_cut
        try:
            text = splice(draft.text, written) if written else ""
            return Revision(text=text, how="sections", cut=cut)
        except InvalidInput as error:
            raise self._misfit(error, written.values()) from error

    async def _edited(
        self, draft: Draft, focus: Sequence[DimensionScore], rounds: Sequence[Round]
    ) -> Revision:
        """The draft with the sections that the reply has; empty when it has none."""
        request, shown = self._edit_request(draft, focus, rounds)
        reply, cut = await self._text(request)
        edits = edits_in(reply, draft.text, allowed=shown)
        seen = {index: text for index, text in edits.replacements.items() if index in shown}
        edits = replace(edits, replacements=seen)
        try:
            text = apply_edits(draft.text, edits) if edits else ""
            return Revision(text=text, how="edits", cut=cut)
        except InvalidInput as error:
            raise self._misfit(error, [reply]) from error

    async def _text(self, request: ChatRequest) -> tuple[str, bool]:
        """A reply, if cut trimmed to its last whole sentence; and whether it is cut still."""
        completion = await self._ask(request)
        text = completion.text.strip()
        if completion.finish_reason == "length":
            return without_broken_end(text), is_broken(text)
        check_whole(completion, endpoint=self._model)
        return text, False

    def _misfit(self, error: InvalidInput, replies: Iterable[str]) -> ReplyInvalid:
        return ReplyInvalid(
            f"the revision cannot be put back into the draft: {error}",
            endpoint=self._model,
            text="\n\n".join(replies),
        )


def _is_shortened(text: str, before: str) -> bool:
    """Whether a reply took over the marks of a text that it was only shown in part."""
    return bool(MARK.search(text)) and not MARK.search(before)


_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<info>[^\r\n]*)")
_ENDED = re.compile(r"[.!?…。！？][\"'”’»)\]*_`」』）]*\Z")  # noqa: RUF001 - of several scripts

_PROSE = {"paragraph", "item", "quote"}


def without_broken_end(text: str) -> str:
    """A cut reply without the sentence, the row or the line of code that it was cut in.

    A code fence that is open is closed. Left as it is when that would leave nothing.
    """
    if not text.strip():
        return text
    last = blocks_of(text)[-1]
    before = text[: len(text) - len(last.text)]
    if opening := _open_fence(last.text):
        start, closing = opening
        lines = last.text[start:].splitlines(keepends=True)
        code = "".join(lines[:-1] if len(lines) > 2 else lines)
        return f"{before}{last.text[:start]}{code.rstrip()}\n{closing}"
    lines = last.text.rstrip().splitlines(keepends=True)
    if _ENDED.search(text.rstrip()):
        return text
    if last.kind == "table":
        return (before + "".join(lines[:-1])).rstrip()
    if last.kind not in _PROSE or _FENCE.match(lines[-1]):
        return text
    cut_in = sentences_of(last.text)[-1]
    return text[: text.rindex(cut_in)].rstrip() or text


def is_broken(text: str) -> bool:
    """Whether a cut reply ends where it was cut, since nothing whole would be left before that."""
    return without_broken_end(text) == text and not _ENDED.search(text.rstrip())


def _open_fence(text: str) -> tuple[int, str] | None:
    """Where a fence begins that is never closed, and what closes it."""
    opened: tuple[int, str] | None = None
    start = 0
    for line in text.splitlines(keepends=True):
        if found := _FENCE.match(line):
            fence, info = found["fence"], found["info"].strip()
            if opened is None:
                opened = (start, found["indent"] + fence)
            elif fence.startswith(opened[1].strip()) and not info:
                opened = None
        start += len(line)
    return opened
