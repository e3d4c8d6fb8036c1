"""The Wiggum loop: evaluate, send back what failed, revise, keep the best round."""

from harness.inference.limits import (
    FIELD_OF,
    NOTHING,
    LimitName,
    Limits,
    Refusal,
    Room,
    Spent,
    left_of,
    merged,
    refusal,
    seconds_left,
)
from harness.wiggum.charges import Charges, TokenPrice
from harness.wiggum.loop import WiggumResult, check_rounds, lengthened, revise_until_met
from harness.wiggum.meter import LoopLimits, Meter
from harness.wiggum.policy import (
    LoopPolicy,
    Revise,
    Round,
    Stop,
    StopReason,
    best_round,
    decide,
    decide_on_draft,
    next_revision,
)
from harness.wiggum.record import (
    RecordedLoop,
    reasons_in,
    recorded_loops,
    restored_rounds,
    rounds_from,
    verdict_attributes,
)
from harness.wiggum.reviser import Reviser, Revision, RevisionMode

__all__ = [
    "FIELD_OF",
    "NOTHING",
    "Charges",
    "LimitName",
    "Limits",
    "LoopLimits",
    "LoopPolicy",
    "Meter",
    "RecordedLoop",
    "Refusal",
    "Revise",
    "Reviser",
    "Revision",
    "RevisionMode",
    "Room",
    "Round",
    "Spent",
    "Stop",
    "StopReason",
    "TokenPrice",
    "WiggumResult",
    "best_round",
    "check_rounds",
    "decide",
    "decide_on_draft",
    "left_of",
    "lengthened",
    "merged",
    "next_revision",
    "reasons_in",
    "recorded_loops",
    "refusal",
    "restored_rounds",
    "revise_until_met",
    "rounds_from",
    "seconds_left",
    "verdict_attributes",
]
