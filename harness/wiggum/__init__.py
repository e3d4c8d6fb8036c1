"""The Wiggum loop: evaluate, send back what failed, revise, keep the best round."""

from harness.inference import Limits
from harness.wiggum.loop import WiggumResult, check_rounds, lengthened, revise_until_met
from harness.wiggum.loop_meter import LoopLimits, LoopMeter
from harness.wiggum.policy import STOPPED_SINCE, LoopPolicy, Round, best_round
from harness.wiggum.ratchet import Candidate, Tried, best_of
from harness.wiggum.record import (
    LOOP_RECORDS,
    EarlierLoops,
    RecordedLoop,
    earlier_loops,
    loop_key,
    reasons_in,
    recorded_loops,
    restored_rounds,
    rounds_from,
    rounds_in,
    texts_of,
    verdict_attributes,
)
from harness.wiggum.reviser import Reviser, RevisionMode
from harness.wiggum.sampling import Place, first_seed, sample

__all__ = [
    "LOOP_RECORDS",
    "STOPPED_SINCE",
    "Candidate",
    "EarlierLoops",
    "Limits",
    "LoopLimits",
    "LoopMeter",
    "LoopPolicy",
    "Place",
    "RecordedLoop",
    "Reviser",
    "RevisionMode",
    "Round",
    "Tried",
    "WiggumResult",
    "best_of",
    "best_round",
    "check_rounds",
    "earlier_loops",
    "first_seed",
    "lengthened",
    "loop_key",
    "reasons_in",
    "recorded_loops",
    "restored_rounds",
    "revise_until_met",
    "rounds_from",
    "rounds_in",
    "sample",
    "texts_of",
    "verdict_attributes",
]
