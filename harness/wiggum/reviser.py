"""The producer's side of the loop: the next draft, made from what failed in the last.

- If every finding names a section, each of these sections is written again by a call of its own.
- If a finding is about the whole draft, one call sees the draft and returns the sections to change.
- If there are no headings, if the draft was cut, or with `mode="whole"`, the whole draft is written
  again.

What was not criticised stays as it was, byte for byte. A reply without text, or with the marks of a
shortened text, changes nothing. A reply that was cut loses its last, broken sentence.
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
"""`sections` where there are headings, else the whole draft; or always `whole`."""

_BYTES_PER_TOKEN = 2
"""Low, so that a text may grow to twice its length, in any script; English has about four."""

_LEAST_TOKENS = 256
"""Room for a short section to grow: some 190 words."""

_TEMPERATURE = 0.3
"""A greedy model that failed would say the same again."""

_FREQUENCY_PENALTY = 0.2
"""Small models that rewrite a text fall into repeating themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """The next draft."""

    text: str
    """Empty if no reply could be used."""
    how: Literal["sections", "edits", "whole"]
    """From calls for single sections, from the sections that one call returned, or all new."""
    cut: bool = False
    """Whether a reply in it was cut, and had no whole sentence to be trimmed to."""


class Reviser:
    """Revises the drafts of a loop with the producer model.

    It has no state: the same rounds lead to the same prompts.

    Args:
        ask: Reaches the model.
        model: Tag of the producer's endpoint.
        requirements: What the rubric asks of a draft. Every prompt has all of it, so that a draft
            does not lose on one dimension what it gains on another.
        max_output_tokens: The most room for a call. A short section gets less, about twice its
            length; so does everything, if this is None.
        mode: What is written again.
        shorten_over: A draft of more characters is shown as an outline, with what has to change in
            full.
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
            draft: The draft of one of the rounds.
            focus: The dimensions that failed.
            rounds: All so far, at least one. Their number seeds the sampling.

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
        """The output's part of that: the next draft is longer by this at most."""
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
        """One request for each section with findings; empty if that cannot mend the draft."""
        findings = located(focus, draft.sections) if self._has_sections(draft) else None
        return {
            # No more than it needs: a small model fills all the room there is.
            index: self._request(prompt, rounds, room=self._enough(draft.sections[index].body))
            for index, prompt in self._prompts.sections(draft, findings or {}, rounds).items()
        }

    def _enough(self, *texts: str) -> int:
        """Room to write these texts again, within `max_output_tokens`."""
        written = sum(len(text.encode("utf-8", "replace")) for text in texts) // _BYTES_PER_TOKEN
        enough = max(written, _LEAST_TOKENS)
        return min(enough, self._max_output_tokens or enough)

    def _edit_request(
        self, draft: Draft, focus: Sequence[DimensionScore], rounds: Sequence[Round]
    ) -> tuple[ChatRequest, tuple[int, ...]]:
        """The request, and the sections that it shows in full: only these may be rewritten."""
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
        """A reply, without its broken end if it was cut; and whether it is broken still."""
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
    """Whether a reply copied the marks of a text that it was shown in part."""
    return bool(MARK.search(text)) and not MARK.search(before)


_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<info>[^\r\n]*)")
_ENDED = re.compile(r"[.!?…。！？][\"'”’»)\]*_`」』）]*\Z")  # noqa: RUF001 - of several scripts

_PROSE = {"paragraph", "item", "quote"}


def without_broken_end(text: str) -> str:
    """A cut reply without the sentence, table row or line of code that it was cut in.

    An open code fence is closed. If that would leave nothing, the reply stays as it is.
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
    """Whether a cut reply still ends where it was cut, since nothing whole stands before that."""
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
