"""Training data from the loops in journals, as rows for TRL's trainers.

A row's prompt is what the producer is asked for a first draft. Two drafts make a pair only if they
were scored in the same way. Drafts that make no row are counted by reason.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, Literal, cast

from harness.errors import InvalidInput
from harness.inference import Message
from harness.inference.call_spans import conversation_text
from harness.trace.calls import calls_of
from harness.trace.journal_reader import Journal
from harness.trace.node_records import models_by_role
from harness.trace.secrets import REDACTED
from harness.wiggum import Round, best_round, recorded_loops, rounds_in, texts_of

TrainingFormat = Literal["sft", "dpo", "reward"]
"""The trainer: `sft` takes good drafts, the others pairs of a better and a worse one."""

# fmt: off
LeftOut = Literal[
    "run-unreadable", "no-draft", "texts-not-recorded", "draft-redacted", "round-unreadable",
    "not-passed", "one-draft", "not-comparable", "near-tie", "failed", "cut", "duplicate",
]
# fmt: on
"""Why something is left out; `harness runs export` has the words."""

Row = dict[str, Any]

# The recorded text of a prompt begins with it.
_PROMPT_START = conversation_text([Message("user", "")])
_TEXT_COLUMNS = ("prompt", "completion", "chosen", "rejected")
# In place of an evaluator's name, if code alone decided.
_CODE = "checks"


class TrainingRows:
    """Makes rows of one journal after the other.

    Args:
        form: Which trainer they are for.
        margin: The least difference of two scores of a pair, in points of the rubric's scale.

    Attributes:
        left_out: Drafts that made no row, by reason.
    """

    def __init__(self, form: TrainingFormat, *, margin: float) -> None:
        self.loops = self.made = 0
        self.left_out: Counter[LeftOut] = Counter()
        self._form, self._margin = form, margin
        self._seen: set[bytes] = set()

    def of_run(self, journal: Journal) -> list[Row]:
        """The rows of a run; none of one whose journal is damaged, which raises JournalInvalid."""
        loops = recorded_loops(journal)
        texts = texts_of(loops, journal)
        models = models_by_role(calls_of(journal.spans()))
        rows: list[Row] = []
        self.loops += len(loops)
        for number, loop in enumerate(loops, start=1):
            if not loop.rounds:
                self.left_out["no-draft"] += 1
                continue
            try:
                rounds = rounds_in(loop, texts, journal)
            except InvalidInput as error:
                # The codes of `rounds_in` are reasons of `LeftOut`.
                self.left_out[cast(LeftOut, error.code.removeprefix("loop."))] += 1
                continue
            prompt = texts.get(str(loop.prompt_sha256), "").removeprefix(_PROMPT_START)
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
            candidates = self._good(rounds) if self._form == "sft" else self._pairs(rounds)
            full_rows = (
                {"prompt": _conversation("user", prompt), **row, **origin} for row in candidates
            )
            rows += filter(self._accept, full_rows)
        self.made += len(rows)
        return rows

    def _good(self, rounds: Sequence[Round]) -> Iterator[Row]:
        """The draft that a loop returned, if it passed."""
        best = best_round(rounds)
        if best.verdict.passed:
            yield {
                "completion": _conversation("assistant", best.draft),
                "score": best.verdict.composite,
                "scores": _scores(best),
                "round": best.number,
                "evaluator": best.verdict.evaluator or _CODE,
            }
        else:
            self.left_out["not-passed"] += 1

    def _pairs(self, rounds: Sequence[Round]) -> Iterator[Row]:
        """The pairs of drafts of a loop that were scored in the same way, and differ enough."""
        # Candidates make no pairs: checks alone chose among most, and a section is no draft.
        self.left_out["one-draft"] += len(rounds) == 1
        for pair in combinations(rounds, 2):
            worse, better = sorted(pair, key=lambda scored: scored.verdict.composite)
            # In floats 8.3 - 8.0 is more than 0.3.
            margin = round(better.verdict.composite - worse.verdict.composite, 6)
            if not _scoring(better) or _scoring(better) != _scoring(worse):
                self.left_out["not-comparable"] += 1
            elif not margin or margin < self._margin:
                self.left_out["near-tie"] += 1
            elif worse.verdict.passed and not better.verdict.passed:
                self.left_out["failed"] += 1
            elif better.cut:
                self.left_out["cut"] += 1
            else:
                yield {
                    "chosen": _conversation("assistant", better.draft),
                    "rejected": _conversation("assistant", worse.draft),
                    # RewardTrainer's loss subtracts a column of this name.
                    **({"margin": margin} if self._form == "reward" else {}),
                    "score_chosen": better.verdict.composite,
                    "score_rejected": worse.verdict.composite,
                    "scores_chosen": _scores(better),
                    "scores_rejected": _scores(worse),
                    "round_chosen": better.number,
                    "round_rejected": worse.number,
                    "evaluator": better.verdict.evaluator or _CODE,
                }

    def _accept(self, row: Row) -> bool:
        """Whether to keep a row. A row that is redacted, or has known texts, is counted instead."""
        columns = [row[name] for name in _TEXT_COLUMNS if name in row]
        texts = [message["content"] for messages in columns for message in messages]
        # Digests, so that the texts of all runs need not be in memory.
        key = hashlib.sha256("\0".join(texts).encode("utf-8", "replace")).digest()
        if any(REDACTED in text for text in texts):
            self.left_out["draft-redacted"] += 1
            return False
        if key in self._seen:
            self.left_out["duplicate"] += 1
            return False
        self._seen.add(key)
        return True


def _scoring(scored: Round) -> object:
    """How a draft was scored: drafts with equal values can be compared. None for no such draft."""
    # The rounds of one loop share the rubric and its prompts; all else may differ.
    verdict, judges = scored.verdict, scored.verdict.judges
    if verdict.compressed:
        return None
    return verdict.evaluator, judges and judges.prompt_sha256, sorted(verdict.vector)


def _conversation(role: str, text: str) -> list[dict[str, str]]:
    return [{"role": role, "content": text}]


def _scores(scored: Round) -> list[dict[str, object]]:
    # A list, since the dimensions of another rubric would be other columns.
    return [{"dimension": name, "score": score} for name, score in scored.verdict.vector.items()]
