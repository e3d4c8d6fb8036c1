"""Training data made of the loops in journals: rows as the trainers of TRL take them.

A row's prompt is what the producer is asked for a first draft. Two drafts make a pair only if they
were scored alike: in one loop, so by one rubric and its prompts; by the same evaluator; in the same
dimensions, all of them anew and by the whole text. What makes no row is counted by the reason.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Literal

from harness.errors import InvalidInput
from harness.inference import Message
from harness.inference.call_spans import conversation_text
from harness.rows import ColumnKind
from harness.trace.calls import calls_of
from harness.trace.journal_reader import Journal
from harness.trace.node_records import models_by_role
from harness.trace.secrets import REDACTED
from harness.wiggum import RecordedLoop, Round, best_round, recorded_loops, rounds_in, texts_of

TrainingFormat = Literal["sft", "dpo", "reward"]
"""By the trainer: `sft` takes good drafts, the others pairs of a better and a worse one."""

LeftOut = Literal[
    "no-draft",
    "texts-not-recorded",
    "secret-left-out",
    "round-unreadable",
    "not-passed",
    "not-comparable",
    "near-tie",
    "failed",
    "cut",
    "candidate-in-part",
    "candidate-not-evaluated",
    "duplicate",
]
"""Why something makes no row.

- A loop: `no-draft`: none was evaluated. `texts-not-recorded`: the run kept hashes alone, or is of
  a version that did not record prompts. `round-unreadable`: another version wrote it. `not-passed`:
  the best draft does not meet the rubric; for `sft` alone.
- A loop or a pair: `secret-left-out`: a text had a secret in it, which the journal does not have.
- A pair: `not-comparable`: scored by another evaluator or in other dimensions, in part, or by a
  shortened text. `near-tie`: the scores differ by less than the margin. `failed`: the draft with
  the higher score failed, at a floor say, and the other passed. `cut`: the better draft was cut.
- A candidate that was left: `candidate-in-part`: it is for a section, and the journal does not have
  the draft with it. `candidate-not-evaluated`: checks ranked it, while the draft's verdict is by a
  model too.
- A row: `duplicate`: the same texts are there already.
"""

_ORIGIN: dict[str, ColumnKind] = {
    "run": "text",
    "pipeline": "text",
    "node": "text",
    "loop": "count",
    "rubric": "text",
    "rubric_sha256": "text",
    "prompts_sha256": "text",
    "evaluator": "text",
    "producer_model": "text",
    "evaluator_model": "text",
}
_PAIR: dict[str, ColumnKind] = {
    "prompt": "messages",
    "chosen": "messages",
    "rejected": "messages",
    "score_chosen": "number",
    "score_rejected": "number",
    "scores_chosen": "scores",
    "scores_rejected": "scores",
    "round_chosen": "count",
    "round_rejected": "count",
    "rejected_is": "text",
    **_ORIGIN,
}
COLUMNS: Mapping[TrainingFormat, Mapping[str, ColumnKind]] = {
    "sft": {
        "prompt": "messages",
        "completion": "messages",
        "score": "number",
        "scores": "scores",
        "round": "count",
        **_ORIGIN,
    },
    "dpo": _PAIR,
    "reward": {**_PAIR, "margin": "number"},
}
"""The columns of each format. A trainer reads those named `prompt`, `completion`, `chosen` and
`rejected`; RewardTrainer's loss also `margin`. The others say where the row comes from."""

_ROLE = conversation_text([Message("user", "")])
_CODE = "checks"
"""In place of an evaluator, where code alone decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scored:
    """A draft with its score."""

    text: str
    score: float
    round: int
    measure: tuple[str, ...] | None
    """The evaluator, and what else it was scored by: scores with equal ones compare. None if its
    score compares with no other."""
    scores: Mapping[str, float]
    """By dimension; one of all checks where these ranked it among candidates."""
    kind: Literal["round", "finalist", "candidate"] = "round"
    passed: bool = False
    cut: bool = False


class TrainingRows:
    """Makes rows of one journal after the other.

    Args:
        form: Which trainer they are for.
        margin: The least difference of two scores of a pair, in points of the rubric's scale.

    Attributes:
        loops: How many there were.
        left_out: What makes no row, by the reason.
    """

    def __init__(self, form: TrainingFormat, *, margin: float) -> None:
        self.loops = 0
        self.left_out: Counter[LeftOut] = Counter()
        self._form = form
        self._margin = margin
        self._seen: set[bytes] = set()

    def of_run(self, journal: Journal) -> list[dict[str, object]]:
        """The rows of a run, by the columns of `COLUMNS`.

        Raises:
            JournalInvalid: The journal is damaged; then it has no rows.
        """
        loops = recorded_loops(journal.items())
        texts = texts_of(loops, journal)
        models = models_by_role(calls_of(journal.spans()))
        rows: list[dict[str, object]] = []
        self.loops += len(loops)
        for number, loop in enumerate(loops, start=1):
            if not loop.rounds:
                self.left_out["no-draft"] += 1
                continue
            try:
                rounds = rounds_in(loop, texts, journal)
            except InvalidInput as error:
                self.left_out[_UNUSABLE[error.code]] += 1
                continue
            prompt = texts.get(str(loop.prompt_sha256), "").removeprefix(_ROLE)
            if not prompt:
                self.left_out["texts-not-recorded"] += 1
                continue
            origin = {
                "run": journal.started.run_id,
                "pipeline": journal.started.name,
                "node": loop.node or "",
                "loop": number,
                "rubric": loop.rubric,
                "rubric_sha256": loop.rubric_sha256,
                "prompts_sha256": loop.prompts_sha256 or "",
                "producer_model": ", ".join(models.get("producer", ())),
                "evaluator_model": ", ".join(models.get("evaluator", ())),
            }
            made = self._good if self._form == "sft" else self._paired
            for texts_in, row in made(loop, rounds, texts):
                if self._is_new(prompt, *texts_in):
                    row |= {"prompt": _said("user", prompt), **origin}
                    rows.append({name: row[name] for name in COLUMNS[self._form]})
        return rows

    def _good(
        self, _loop: RecordedLoop, rounds: Sequence[Round], _texts: Mapping[str, str]
    ) -> Iterator[tuple[tuple[str, ...], dict[str, object]]]:
        """The draft that a loop returned, if it passed; with its texts."""
        best = best_round(rounds)
        if not best.verdict.passed or best.cut:
            self.left_out["not-passed"] += 1
            return
        yield (
            (best.draft,),
            {
                "completion": _said("assistant", best.draft),
                "score": best.verdict.composite,
                "scores": _listed(best.verdict.vector),
                "round": best.number,
                "evaluator": best.verdict.evaluator or _CODE,
            },
        )

    def _paired(
        self, loop: RecordedLoop, rounds: Sequence[Round], texts: Mapping[str, str]
    ) -> Iterator[tuple[tuple[str, ...], dict[str, object]]]:
        """The pairs of a loop, with their texts."""
        evaluated = [_of_round(one) for one in rounds]
        pairs = list(combinations(evaluated, 2))
        for one, scored in zip(rounds, evaluated, strict=True):
            pairs += ((scored, other) for other in _finalists(one, scored, loop, texts))
            pairs += self._candidates(one)
        for pair in pairs:
            worse, better = sorted(pair, key=lambda one: one.score)
            margin = round(better.score - worse.score, 6)
            if better.measure is None or better.measure != worse.measure:
                self.left_out["not-comparable"] += 1
            elif not margin or margin < self._margin:
                self.left_out["near-tie"] += 1
            elif worse.passed and not better.passed:
                self.left_out["failed"] += 1
            elif better.cut:
                self.left_out["cut"] += 1
            else:
                row = {
                    "chosen": _said("assistant", better.text),
                    "rejected": _said("assistant", worse.text),
                    "score_chosen": better.score,
                    "score_rejected": worse.score,
                    "scores_chosen": _listed(better.scores),
                    "scores_rejected": _listed(worse.scores),
                    "round_chosen": better.round,
                    "round_rejected": worse.round,
                    "rejected_is": worse.kind,
                    "evaluator": better.measure[0],
                    "margin": margin,
                }
                yield (better.text, worse.text), row

    def _candidates(self, one: Round) -> Iterator[tuple[_Scored, _Scored]]:
        """The round's draft with each candidate that was left, both by what checks gave them."""
        took = (t.checked for t in one.tried if t.outcome == "taken" and t.text == one.draft)
        checked, verdict = next(took, None), one.verdict
        for other in one.tried:
            if other.outcome not in {"outdone", "no_gain"}:
                continue
            if other.section_index is not None:
                self.left_out["candidate-in-part"] += 1
            elif verdict.judges or verdict.gates or checked is None or other.checked is None:
                self.left_out["candidate-not-evaluated"] += 1
            else:
                by_checks = partial(_Scored, round=one.number, measure=(_CODE,))
                yield (
                    by_checks(text=one.draft, score=checked, scores={_CODE: checked}, cut=one.cut),
                    by_checks(
                        text=other.text,
                        score=other.checked,
                        scores={_CODE: other.checked},
                        kind="candidate",
                    ),
                )

    def _is_new(self, *texts: str) -> bool:
        if any(REDACTED in text for text in texts):
            self.left_out["secret-left-out"] += 1
            return False
        key = hashlib.sha256("\0".join(texts).encode("utf-8", "replace")).digest()
        if key in self._seen:
            self.left_out["duplicate"] += 1
            return False
        self._seen.add(key)
        return True


_UNUSABLE: Mapping[str, LeftOut] = {
    "loop.texts-not-recorded": "texts-not-recorded",
    "loop.draft-redacted": "secret-left-out",
    "loop.round-unreadable": "round-unreadable",
}
"""By the code of the error."""


def _of_round(one: Round) -> _Scored:
    verdict, judges = one.verdict, one.verdict.judges
    told = judges.prompt_sha256 if judges else ""
    measure = (verdict.evaluator or _CODE, told, *sorted(verdict.vector))
    return _Scored(
        text=one.draft,
        score=verdict.composite,
        round=one.number,
        measure=None if verdict.carried or verdict.compressed else measure,
        scores=verdict.vector,
        passed=verdict.passed,
        cut=one.cut,
    )


def _finalists(
    one: Round, scored: _Scored, loop: RecordedLoop, texts: Mapping[str, str]
) -> Iterator[_Scored]:
    """The drafts that the evaluator scored beside the round's, and found worse."""
    for left in loop.left:
        text, score, scores = (left.get(name) for name in ("draft_sha256", "composite", "scores"))
        text = texts.get(str(text))
        if left.get("round") != one.number or text is None:
            continue
        if not isinstance(score, int | float) or not isinstance(scores, dict):
            continue  # its evaluation failed
        alike = (
            left.get("evaluator") == (one.verdict.evaluator or _CODE)
            and scores.keys() == scored.scores.keys()
            and not (left.get("carried") or left.get("compressed"))
        )
        yield _Scored(
            text=text,
            score=score,
            round=one.number,
            measure=scored.measure if alike else None,
            scores=scores,
            kind="finalist",
            passed=left.get("passed") is True,
        )


def _said(role: str, text: str) -> list[dict[str, str]]:
    return [{"role": role, "content": text}]


def _listed(scores: Mapping[str, float]) -> list[dict[str, object]]:
    """As a list, since the dimensions of another rubric would be other columns."""
    return [{"dimension": name, "score": float(score)} for name, score in scores.items()]
