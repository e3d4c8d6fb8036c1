"""A loop in a run's journal: its records, and their one reader.

A loop is a span `wiggum`, with a span `evaluate` and an instant `round` for each evaluated draft. A
resumed run continues a loop in another span with the same key. Reports, resuming and the audit log
all read `RecordedLoop`.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

from pydantic import TypeAdapter
from pydantic_core import from_json

from harness.errors import InvalidInput
from harness.rubric import Rubric, Verdict
from harness.trace import Instant, Journal, NodeOutput, SpanRecord, SpanStatus, Tracer, events
from harness.trace.records import label_of
from harness.wiggum.policy import FINAL_TEXT, Round


def verdict_attributes(verdict: Verdict) -> dict[str, object]:
    """What the span of an evaluation records of its verdict."""
    judges = verdict.judges
    return {
        "composite": verdict.composite,
        "passed": verdict.passed,
        "scores": verdict.vector,
        "evaluator": verdict.evaluator or "checks",
        "unjudged": list(verdict.unjudged),
        "missing": list(verdict.missing),
        "gates": list(verdict.gates),
        "compressed": verdict.compressed,
        "judgements": judges.judgements if judges else 0,
        "abstentions": judges.abstentions if judges else 0,
        "spread": judges.spread if judges else None,
        "borderline": judges.borderline if judges else None,
    }


def reasons_in(verdict: Verdict) -> list[str]:
    """Why each score is not higher. Quotes the draft, so it is recorded only where texts are."""
    return [f"{score.name}: {score.reason}" for score in verdict.scores if score.reason]


def record_round(round_: Round, tracer: Tracer) -> None:
    """Writes a round so that `rounds_in` can read it back."""
    spent = round_.spent
    # Without the draft, whose text the journal has once, under its own digest.
    as_json = partial(_as_json().dump_json, round_, exclude={"draft"})
    tracer.instant(
        events.RoundEvent(
            round=round_.number,
            base_round=round_.base_round,
            composite=round_.verdict.composite,
            passed=round_.verdict.passed,
            cut=round_.cut,
            changed_chars=round_.changed_chars,
            calls=spent.calls,
            input_tokens=spent.input_tokens,
            output_tokens=spent.output_tokens,
            cost_usd=spent.cost_usd,
            seconds=spent.seconds,
            draft_chars=len(round_.draft),
            draft_sha256=tracer.content(round_.draft),
            round_sha256=tracer.content(lambda: as_json().decode()),
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLoop:
    """A loop as a journal has it, whole or cut off, all parts of the run together."""

    key: str | None  # see `loop_key`; None for a loop outside a pipeline's node
    node: str | None
    rubric: str  # the rubric's id
    rubric_sha256: str
    composites: tuple[float, ...]  # the composite of each evaluated round, in points
    best_round: int | None  # the round whose draft was returned, counted from 1; None if none was
    passed: bool | None  # whether that draft met the rubric
    stop_reason: str | None  # why the loop ended; None if it did not end
    stop_detail: str = ""  # more about the reason, for people; often empty
    status: SpanStatus
    duration_ns: int
    prompts_sha256: str | None = None  # digest of its prompts' templates; None in older journals
    task_sha256: events.Sha256 = None  # digest of its task, a text of runs that recorded texts
    # Digest of the prompt for a first draft (`conversation_text`), also if a draft was given.
    prompt_sha256: events.Sha256 = None
    rounds: tuple[events.RoundEvent, ...] = ()  # `rounds_in` makes rounds of them

    @property
    def has_ended(self) -> bool:
        """Whether the loop ended for a reason of its own."""
        return _has_ended(self.stop_reason)

    @property
    def call(self) -> str:
        """Label of the node call that its key names."""
        return (self.key or "").rpartition("#")[0]


def _has_ended(stop_reason: str | None) -> bool:
    # A cancelled loop continues in the next part of the run.
    return stop_reason not in {None, "cancelled"}


def recorded_loops(journal: Journal) -> tuple[RecordedLoop, ...]:
    """The loops of a journal, in the order in which they began."""
    return loops_in(events.Events(journal.items(SpanRecord, Instant)))


def loops_in(recorded: events.Events) -> tuple[RecordedLoop, ...]:
    """The loops among a journal's events, in the order in which they began."""
    # 1. Loop → its spans, one in each part of the run.
    spans_by_loop = defaultdict[object, list[events.LoopEvent]](list)
    for loop in recorded[events.LoopEvent]:
        # A loop without a key cannot be continued, so it has one span.
        spans_by_loop[loop.key or loop.id].append(loop)
    # 2. Span → what was recorded inside it.
    composites_by_span = defaultdict[int | None, list[float]](list)
    for verdict in recorded[events.Evaluate]:
        if verdict.composite is not None:
            composites_by_span[verdict.parent].append(verdict.composite)
    rounds = defaultdict[int | None, list[events.RoundEvent]](list)
    for round_ in recorded[events.RoundEvent]:
        rounds[round_.span].append(round_)
    nodes = {node.id: node.caption for node in recorded[events.NodeAttempt]}
    details = {stop.span: stop.detail or "" for stop in recorded[events.StopEvent]}
    # 3. Both together.
    loops = []
    for spans in spans_by_loop.values():
        loop = _counting_part(spans, rounds)
        composites: Sequence[float] | None = loop.composites
        # A killed loop did not record its composites, but its rounds did. Of evaluations, which
        # count only without rounds, a round may have several: one for each finalist.
        if composites is None:
            composites = [round_.composite for round_ in rounds[loop.id]] or [
                composite for span in spans for composite in composites_by_span[span.id]
            ]
        loops.append(
            RecordedLoop(
                key=loop.key,
                node=nodes.get(spans[0].parent or 0),
                rubric=loop.rubric,
                rubric_sha256=loop.rubric_sha256,
                composites=tuple(float(n) for n in composites if isinstance(n, int | float)),
                best_round=loop.best_round,
                passed=loop.passed,
                stop_reason=loop.stop_reason,
                stop_detail=details.get(loop.id, ""),
                status=loop.status,
                duration_ns=sum(span.duration_ns for span in spans),
                prompts_sha256=loop.prompts_sha256,
                task_sha256=loop.task_sha256,
                prompt_sha256=loop.prompt_sha256,
                rounds=tuple(rounds[loop.id]),
            )
        )
    return tuple(loops)


def _counting_part(
    spans: Sequence[events.LoopEvent], rounds: Mapping[int | None, Sequence[events.RoundEvent]]
) -> events.LoopEvent:
    """The part with the most rounds since the last end of a loop, the last of equals.

    Of parts with 3 rounds (killed) and 1 (killed) it is the first: the second was killed while it
    repeated them. Of 5 (killed), 4 (ended), 4 (killed) it is the third, a new attempt of the node.
    """
    ended = [number for number, span in enumerate(spans) if _has_ended(span.stop_reason)]
    since = spans[ended[-1] :] if ended else spans
    return max(reversed(since), key=lambda span: len(rounds[span.id]))


def rounds_from(journal: Journal, *, loop: int = 0) -> tuple[Round, ...]:
    """The rounds of a run's loop, for another loop to continue; `loop` counts from 0.

    Raises:
        InvalidInput: There is no such loop; the run did not record texts; or a draft contained a
            secret, which the journal leaves out.
        JournalInvalid: The journal is damaged.
    """
    loops = recorded_loops(journal)
    if not 0 <= loop < len(loops):
        raise InvalidInput(
            f"there is no loop {loop} in {journal.path}; it has {len(loops)}, counted from 0",
            code="loop.not-found",
        )
    return rounds_in(loops[loop], texts_of(loops[loop : loop + 1], journal), journal)


def loop_key(
    call_key: str,
    *,
    task: str,
    rubric: Rubric,
    sources: Sequence[str],
    draft: str | Sequence[str] | None,
) -> str:
    """The key of a loop, the same in every part of a run."""
    about = json.dumps([task, rubric.sha256, list(sources), draft])
    return f"{call_key}-{hashlib.sha256(about.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierLoops:
    """The loops of a run that is resumed."""

    ended: tuple[RecordedLoop, ...] = ()
    # Key of a loop whose node did not end → its rounds, or why they cannot be restored.
    rounds: Mapping[str, tuple[Round, ...] | str] = field(default_factory=dict)

    def has_final_text(self, key: str) -> bool:
        """Whether the loop of this key ended with a text that no further round would change."""
        return any(loop.key == key and loop.stop_reason in FINAL_TEXT for loop in self.ended)

    def within(self, calls: Collection[str]) -> tuple[RecordedLoop, ...]:
        """The loops that ended in these node calls (labels), or in pipelines that these called."""
        return tuple(
            loop
            for loop in self.ended
            if any(label in calls for label in _with_outer_calls(loop.call))
        )


def earlier_loops(
    journal: Journal, outputs: Iterable[NodeOutput], *, lost: bool = False
) -> EarlierLoops:
    """The loops of a run that is resumed; unfinished ones begin again if records are `lost`."""
    loops = [loop for loop in recorded_loops(journal) if loop.key]
    is_cut = {label_of(output.node, output.item): output.is_cut for output in outputs}
    # Those of calls without an output, or with one for which a loop had ended too early. Any other
    # call is made again only if it has changed, and then its loops have other keys.
    unfinished = [loop for loop in loops if is_cut.get(loop.call, True)]
    texts = {} if lost else texts_of(unfinished, journal)
    damage = "the journal was damaged, and may not have all of it"
    rounds: dict[str, tuple[Round, ...] | str] = {}
    for loop in unfinished:
        try:
            rounds[str(loop.key)] = damage if lost else rounds_in(loop, texts, journal)
        except InvalidInput as error:
            rounds[str(loop.key)] = str(error)
    return EarlierLoops(ended=tuple(loop for loop in loops if loop.has_ended), rounds=rounds)


def _with_outer_calls(label: str) -> Iterator[str]:
    """A call's label, and those of the calls that it is nested in."""
    while label:
        yield label
        # `answer[3]/brief/findings`: the call around it is `answer[3]`.
        label = label.rpartition("/")[0]


def texts_of(loops: Iterable[RecordedLoop], journal: Journal) -> dict[object, str]:
    """Digest → text, of the texts that these loops refer to: tasks, prompts, drafts and rounds.

    Texts that the run did not record are missing.
    """
    digests: set[object] = set()
    for loop in loops:
        digests |= {loop.task_sha256, loop.prompt_sha256}
        for round_ in loop.rounds:
            digests |= {round_.draft_sha256, round_.round_sha256}
    return journal.texts(digests - {None})


def rounds_in(
    loop: RecordedLoop, texts: Mapping[object, str], journal: Journal
) -> tuple[Round, ...]:
    """The rounds of a loop, by the texts of `texts_of`; raises as `rounds_from`."""
    return tuple(_round(round_, texts, journal) for round_ in loop.rounds)


def _round(recorded: events.RoundEvent, texts: Mapping[object, str], journal: Journal) -> Round:
    draft = texts.get(recorded.draft_sha256)
    other_fields = texts.get(recorded.round_sha256)
    number = recorded.round
    if draft is None or other_fields is None:
        raise InvalidInput(
            f"round {number} cannot be restored from {journal.path}: the run did not record texts; "
            'to resume a run, set content = "full"',
            code="loop.texts-not-recorded",
        )
    # `draft_chars` was counted before secrets were masked.
    if len(draft) != recorded.draft_chars:
        raise InvalidInput(
            f"round {number} cannot be restored from {journal.path}: a secret was removed from "
            "its draft; begin the loop again",
            code="loop.draft-redacted",
        )
    try:
        return _as_json().validate_python({**from_json(other_fields), "draft": draft})
    except ValueError as error:  # also pydantic's errors
        raise InvalidInput(
            f"round {number} cannot be restored from {journal.path}: another version wrote it, or "
            "a secret was removed from it; begin the loop again",
            code="loop.round-unreadable",
        ) from error


@cache
def _as_json() -> TypeAdapter[Round]:
    # Made at the first use: it takes some milliseconds.
    return TypeAdapter(Round)
