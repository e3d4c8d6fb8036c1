"""Verdicts and rounds as a run's record has them, and rounds back from there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic_core import from_json

from harness.errors import InvalidInput
from harness.rubric import Verdict
from harness.trace import Attributes, Content, Instant, Journal, SpanRecord, Tracer
from harness.wiggum.policy import Round

_NAME = "round"
_TEXTS = ("draft_sha256", "round_sha256")


def verdict_attributes(verdict: Verdict) -> dict[str, object]:
    """What the span of an evaluation says of its verdict."""
    judges = verdict.judges
    return {
        "composite": verdict.composite,
        "passed": verdict.passed,
        "scores": verdict.vector,
        "evaluator": verdict.evaluator or "checks",
        "unjudged": list(verdict.unjudged),
        "carried": list(verdict.carried),
        "gates": list(verdict.gates),
        "compressed": verdict.compressed,
        "judgements": judges.judgements if judges else 0,
        "abstentions": judges.abstentions if judges else 0,
        "spread": judges.spread if judges else None,
    }


def reasons_in(verdict: Verdict) -> list[str]:
    """Why it is not more, dimension by dimension; quotes the draft, so not for every record."""
    return [f"{score.name}: {score.reason}" for score in verdict.scores if score.reason]


def record_round(one: Round, tracer: Tracer) -> None:
    """Records a round so that it can be restored: its draft and the rest are texts there."""
    spent = one.spent
    tracer.instant(
        _NAME,
        round=one.number,
        base_round=one.base_round,
        composite=one.verdict.composite,
        passed=one.verdict.passed,
        cut=one.cut,
        changed_chars=one.changed_chars,
        calls=spent.calls,
        input_tokens=spent.input_tokens,
        output_tokens=spent.output_tokens,
        cost_usd=spent.cost_usd,
        seconds=spent.seconds,
        draft_chars=len(one.draft),
        draft_sha256=tracer.content(one.draft),
        round_sha256=tracer.content(lambda: _as_json().dump_json(one, exclude={"draft"}).decode()),
    )


def rounds_from(journal: Journal, *, loop: int = 0) -> tuple[Round, ...]:
    """The rounds of a loop as far as it came, for another to go on from.

    Args:
        journal: Of the run.
        loop: Which of the run's loops, in the order that they began, counted from 0.

    Raises:
        InvalidInput: There is no such loop; the run did not record texts; or a draft had a secret
            in it, which the journal leaves out.
        JournalInvalid: The journal is damaged.
    """
    loops: list[int] = []
    recorded: list[Instant] = []
    for item in journal.items():
        if isinstance(item, SpanRecord) and item.name == "wiggum":
            loops.append(item.id)
        elif isinstance(item, Instant) and item.name == _NAME:
            recorded.append(item)
    if not 0 <= loop < len(loops):
        raise InvalidInput(
            f"there is no loop {loop} in {journal.path}; it has {len(loops)}, counted from 0",
            code="loop.not-found",
        )
    rounds = [item.attributes for item in recorded if item.span == loops[loop]]
    texts = _texts_of(rounds, journal)
    return tuple(_round(one, texts, journal) for one in rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLoop:
    """A loop as a run's journal has it, whole or cut off."""

    key: str
    """What it is known by."""
    rubric: str
    """The rubric's id."""
    rubric_sha256: str
    """Digest of its file."""
    composites: tuple[float, ...]
    """Of its rounds, in order."""
    stop_reason: str | None
    """Why it ended; None when it did not."""
    best_round: int | None
    """The round whose draft was returned, counted from 1."""
    passed: bool
    """Whether that draft met the rubric."""
    rounds: Sequence[Attributes]
    """What was recorded of each round; `restored_rounds` makes rounds of it."""


def recorded_loops(journal: Journal) -> dict[str, RecordedLoop]:
    """Every loop of a run that has a key, by that.

    Of several attempts at one loop, the one with the most rounds: a part of the run that went on
    with it may have been killed before it had written the earlier ones down again.

    Raises:
        JournalInvalid: The journal is damaged.
    """
    spans: dict[int, SpanRecord] = {}
    rounds: dict[int, list[Attributes]] = {}
    for item in journal.items():
        if isinstance(item, SpanRecord):
            if item.name == "wiggum" and item.attributes.get("key"):
                spans[item.id] = item
        elif isinstance(item, Instant) and item.name == _NAME and item.span in spans:
            rounds.setdefault(item.span, []).append(item.attributes)
    loops: dict[str, RecordedLoop] = {}
    for span in spans.values():
        loop = _loop(span, rounds.get(span.id, ()))
        known = loops.get(loop.key)
        if known is None or len(loop.rounds) >= len(known.rounds):
            loops[loop.key] = loop
    return loops


def _loop(span: SpanRecord, rounds: Sequence[Attributes]) -> RecordedLoop:
    said: Mapping[str, Any] = span.attributes
    return RecordedLoop(
        key=said["key"],
        rubric=said["rubric"],
        rubric_sha256=said["rubric_sha256"],
        composites=tuple(one["composite"] for one in cast(Any, rounds)),
        stop_reason=said.get("stop_reason"),
        best_round=said.get("best_round"),
        passed=bool(said.get("passed")),
        rounds=tuple(rounds),
    )


def restored_rounds(
    loops: Iterable[RecordedLoop], journal: Journal
) -> dict[str, tuple[Round, ...] | str]:
    """The rounds of loops, by their keys; in place of those that cannot be had, why not.

    Raises:
        JournalInvalid: The journal is damaged.
    """
    chosen = list(loops)
    texts = _texts_of([one for loop in chosen for one in loop.rounds], journal)
    found: dict[str, tuple[Round, ...] | str] = {}
    for loop in chosen:
        try:
            found[loop.key] = tuple(_round(one, texts, journal) for one in loop.rounds)
        except InvalidInput as error:
            found[loop.key] = str(error)
    return found


def _texts_of(rounds: Iterable[Attributes], journal: Journal) -> dict[str, str]:
    """The texts that rounds refer to, by their hashes."""
    wanted = {one.get(name) for one in rounds for name in _TEXTS}
    return {
        item.sha256: item.text
        for item in (journal.items() if wanted else ())
        if isinstance(item, Content) and item.sha256 in wanted
    }


def _round(recorded: Attributes, texts: dict[str, str], journal: Journal) -> Round:
    draft, rest = (texts.get(str(recorded.get(name))) for name in _TEXTS)
    number = recorded.get("round")
    if draft is None or rest is None:
        raise InvalidInput(
            f"round {number} cannot be restored from {journal.path}: the run did not record texts; "
            'runs that are to be gone on with need content = "full"',
            code="loop.texts-not-recorded",
        )
    if len(draft) != recorded.get("draft_chars"):
        raise InvalidInput(
            f"round {number} cannot be restored from {journal.path}: a secret was left out of its "
            "draft; begin the loop anew",
            code="loop.draft-redacted",
        )
    try:
        return _as_json().validate_python({**from_json(rest), "draft": draft})
    except ValueError as error:  # pydantic's errors are of its kind
        raise InvalidInput(
            f"round {number} cannot be restored from {journal.path}: it was written by another "
            "version, or a secret was left out of it; begin the loop anew",
            code="loop.round-unreadable",
        ) from error


@cache
def _as_json() -> TypeAdapter[Round]:
    # Made at the first use: it takes some milliseconds.
    return TypeAdapter(Round)
