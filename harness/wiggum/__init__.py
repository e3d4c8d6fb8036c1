"""The Wiggum loop: evaluate, send back what failed, revise, keep the best round.

A reply becomes a `Candidate`, with it a `CheckedDraft` is made, and of the best ones a `Finalist`,
which the evaluator scores as a `Round`. `Tried` is the record of a candidate's fate.
"""

from harness.wiggum.first_draft import write_first_draft
from harness.wiggum.loop import WiggumResult, check_rounds, check_sources, revise_until_met
from harness.wiggum.policy import STOPPED_SINCE, LoopPolicy, Round, best_round
from harness.wiggum.ratchet import Candidate, Tried, best_of
from harness.wiggum.record import (
    EarlierLoops,
    RecordedLoop,
    earlier_loops,
    loop_key,
    loops_in,
    reasons_in,
    recorded_loops,
    rounds_from,
    rounds_in,
    texts_of,
    verdict_attributes,
)
from harness.wiggum.reviser import Reviser, RevisionMode
from harness.wiggum.sampling import first_seed

__all__ = [
    "STOPPED_SINCE",
    "Candidate",
    "EarlierLoops",
    "LoopPolicy",
    "RecordedLoop",
    "Reviser",
    "RevisionMode",
    "Round",
    "Tried",
    "WiggumResult",
    "best_of",
    "best_round",
    "check_rounds",
    "check_sources",
    "earlier_loops",
    "first_seed",
    "loop_key",
    "loops_in",
    "reasons_in",
    "recorded_loops",
    "revise_until_met",
    "rounds_from",
    "rounds_in",
    "texts_of",
    "verdict_attributes",
    "write_first_draft",
]
