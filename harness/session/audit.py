"""A run's line in the audit log.

Field names are those of the Agentic Harness Engineering series, so that its readers open our file
and our readers open theirs. Fields that a run of ours never has (tool calls, searches) are there
and empty. `schema_version` says which fields are ours. Names that end in `_s` are seconds, in `_ms`
milliseconds, as there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Literal

from harness.inference import NOTHING, Spent
from harness.session.casting import Casting
from harness.session.result import all_passed
from harness.trace import (
    Call,
    CallGroup,
    ContentPolicy,
    Journal,
    Redactor,
    RunEnded,
    SpanRecord,
    group_calls,
    sha256_of,
)
from harness.wiggum import RecordedLoop, Round, WiggumResult, restored_rounds

SCHEMA_VERSION = 1

RunVerdict = Literal["PASS", "FAIL", "DONE", "SKIPPED", "ERROR", "WAITING", "STOPPED"]
"""PASS: every loop, or every draft of a scoring batch, passed. DONE: it finished, and nothing was
judged. SKIPPED: it finished, and the node that gives its result was skipped. ERROR: the run did not
finish.

The series has only PASS, FAIL and ERROR, and its readers count ERROR as a fault. A run that waits
for an answer, or that a limit stopped, has none and may be resumed.
"""


def audit_line(
    journal: Journal,
    *,
    calls: Sequence[Call],
    task: str,
    casting: Casting,
    loops: Sequence[WiggumResult],
    earlier_loops: Sequence[RecordedLoop] = (),
    scored: Sequence[bool] = (),
    redactor: Redactor,
    content: ContentPolicy = "full",
) -> dict[str, object]:
    """The log's line about a run.

    The line holds no more of texts than `content` says.
    """
    started, ended = journal.started, journal.ended
    stages = {
        stage.name or "other": _stage_use(stage)
        for stage in group_calls(calls, by=lambda call: call.role)
    }
    spans = [span for span in journal.spans() if span.name in {"node", "recall"}]
    earlier = restored_rounds(earlier_loops, journal)
    entries = (
        *(_earlier_entry(one, earlier[str(one.key)], redactor, content) for one in earlier_loops),
        *(_loop_entry(loop, redactor, content) for loop in loops),
    )
    passed = all(scored) if scored else all_passed([*earlier_loops, *loops])
    is_skipped = any(one.code == "run.result-skipped" for one in casting.warnings)
    roles, draw, separation = casting.roles, casting.draw, casting.separation
    return {
        **series_fields(stages, entries),
        "run_id": started.run_id,
        "timestamp": datetime.fromtimestamp(started.wall_ns / 1e9, tz=UTC).isoformat(),
        "pipeline": started.name,
        "task": task if content == "full" else "",
        "producer_model": roles.producer,
        "evaluator_model": ", ".join(roles.evaluators) or None,  # None when only code checked
        # What the evaluator was drawn from a pool by. A task's text may be the seed.
        "evaluator_seed": draw.seed if draw is not None and content == "full" else None,
        "separation": separation.relation if separation is not None else None,
        "warnings": [asdict(one) for one in casting.warnings],
        "run_duration_s": journal.duration_ns / 1e9,
        "subtask_count": sum(span.name == "node" for span in spans),
        "memory_context_titles": tuple(_recalled_titles(spans)),
        "loops": entries,
        "final": _final(ended, is_skipped=is_skipped, passed=passed),
        "error": ended.error if ended else "killed",
    }


def series_fields(
    stages: Mapping[str, Mapping[str, Any]], loops: Sequence[Mapping[str, Any]]
) -> dict[str, object]:
    """The fields of the series that summarize the calls by role, and the last loop."""
    return {**_NOT_OURS, **_totals(stages), **_of_last_loop(loops)}


# Fields of the series that say something our runs do not have, or do not know.
_NOT_OURS: dict[str, object] = {
    "schema_version": SCHEMA_VERSION,
    "session_id": None,
    "project_id": None,
    "parent_run_id": None,
    "experiment_id": None,
    "treatment_level": None,
    "task_id": None,
    "task_type": None,
    "tool_calls": (),
    "plan": None,
    "novelty_scores": (),
    "search_rounds": 0,
    "total_search_chars": 0,
    "quality_floor_hit": False,
    "injection_stripped": False,
    "orchestrated": True,
    "output_path": None,
}


def _totals(stages: Mapping[str, Mapping[str, Any]]) -> dict[str, object]:
    uses = stages.values()
    eval_ms = sum(use["eval_ms"] for use in uses)
    rates = [(use["tok_s"], use["eval_ms"]) for use in uses if use["tok_s"] is not None]
    return {
        "input_tokens": sum(use["input"] for use in uses),
        "output_tokens": sum(use["output"] for use in uses),
        "total_tokens": sum(use["input"] + use["output"] for use in uses),
        "total_eval_ms": eval_ms,
        "total_prompt_ms": sum(use["prompt_ms"] for use in uses),
        # Each stage's rate weighed by how long it decoded: tokens over time, loading left out.
        "generation_tok_s": sum(rate * ms for rate, ms in rates) / sum(ms for _, ms in rates)
        if rates
        else None,
        "total_thinking_chars": 0,
        "tokens_by_stage": stages,
    }


def _of_last_loop(loops: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """The series knows one loop a run: the last."""
    last: Mapping[str, Any] = loops[-1] if loops else {}
    rounds = last.get("rounds", ())
    scores = [one["score"] for one in rounds]
    # By its number: a draft that a gate stopped may have a higher score and still be worse.
    best: Mapping[str, Any] = next(
        (one for one in rounds if one["round"] == last["best_round"]), {}
    )
    return {
        "wiggum_rounds": len(rounds),
        "wiggum_scores": scores,
        "wiggum_dims": [one["dims"] for one in rounds],
        "wiggum_eval_log": rounds,
        "first_score": scores[0] if scores else None,
        "best_score": best.get("score"),
        "last_score": scores[-1] if scores else None,
        "best_round": last.get("best_round"),
        "stop_reason": last.get("stop_reason"),
        "rubric_id": last.get("rubric"),
        "rubric_sha256": last.get("rubric_sha256"),
        "prompt_sha256": best.get("prompt_sha256"),
        "prompts_sha256": last.get("prompts_sha256"),
    }


def _final(ended: RunEnded | None, *, is_skipped: bool, passed: bool | None) -> RunVerdict:
    match ended:
        case RunEnded(status="ok") if is_skipped:
            return "SKIPPED"
        case RunEnded(status="ok"):
            return "DONE" if passed is None else "PASS" if passed else "FAIL"
        case RunEnded(status="waiting"):
            return "WAITING"
        case RunEnded(status="stopped"):
            return "STOPPED"
        case _:
            return "ERROR"


def _stage_use(calls: CallGroup) -> dict[str, Any]:
    return {
        "input": calls.input_tokens,
        "output": calls.output_tokens,
        "calls": calls.calls,  # attempts
        "total_ms": calls.total_ns / 1e6,  # loading and queueing included
        "prompt_ms": calls.prefill_ns / 1e6,
        "eval_ms": calls.decode_ns / 1e6,
        "tok_s": calls.decode_tokens_per_s,  # after the first token
        "thinking_chars": 0,  # reasoning is not counted apart
    }


def _recalled_titles(spans: Sequence[SpanRecord]) -> Iterator[str]:
    for span in spans:
        hits: Any = span.attributes.get("hits", ()) if span.name == "recall" else ()
        yield from (hit["title"] for hit in hits if hit["title"])


def _loop_entry(loop: WiggumResult, redactor: Redactor, content: ContentPolicy) -> dict[str, Any]:
    return {
        "rubric": loop.rubric.id,
        "rubric_sha256": loop.rubric.sha256,
        "prompts_sha256": loop.rubric.prompts.sha256,
        "stop_reason": loop.stop_reason,
        "best_round": loop.best.number,
        "rounds": tuple(_round_entry(one, redactor, content) for one in loop.rounds),
        **_took(loop.spent),
    }


def _earlier_entry(
    loop: RecordedLoop, rounds: Sequence[Round] | str, redactor: Redactor, content: ContentPolicy
) -> dict[str, Any]:
    """A loop as the journal has it; without its rounds if they cannot be restored."""
    rounds = () if isinstance(rounds, str) else rounds
    return {
        "rubric": loop.rubric,
        "rubric_sha256": loop.rubric_sha256,
        "prompts_sha256": loop.prompts_sha256,
        "stop_reason": loop.stop_reason or "cancelled",
        "best_round": loop.best_round,
        "rounds": tuple(_round_entry(one, redactor, content) for one in rounds),
        **_took(sum((one.spent for one in rounds), NOTHING)),
    }


def _took(spent: Spent) -> dict[str, Any]:
    return {
        "calls": spent.calls,
        "input_tokens": spent.input_tokens,
        "output_tokens": spent.output_tokens,
        "cost_usd": spent.cost_usd,
    }


def _round_entry(one: Round, redactor: Redactor, content: ContentPolicy) -> dict[str, Any]:
    """One evaluation. Scores from shortened drafts, or from other prompts, do not compare."""
    verdict, judges = one.verdict, one.verdict.judges
    reasons = tuple(score.reason for score in verdict.scores if score.reason)
    return {
        "round": one.number,
        "score": verdict.composite,
        "dims": verdict.vector,
        "issues": reasons if content == "full" else (),
        "content_sha256": sha256_of(redactor.clean(one.draft)) if content != "none" else None,
        "compressed": verdict.compressed,
        # Of what the evaluator was told except task, sources and draft; None when only code judged.
        "prompt_sha256": judges.prompt_sha256 if judges else None,
        "judgements": judges.judgements if judges else 0,
        "abstentions": judges.abstentions if judges else 0,  # replies that could not be read
        "spread": judges.spread if judges else None,  # standard deviation of the composites
        "changed_chars": one.changed_chars,  # against the draft it was made from
    }
