"""The Wiggum loop: evaluate, send back what failed, revise, keep the best round."""

from harness.wiggum.longest import lengthened
from harness.wiggum.loop import WiggumResult, revise_until_met
from harness.wiggum.meter import Meter, TokenPrice
from harness.wiggum.policy import (
    LoopLimits,
    LoopPolicy,
    Revise,
    Stop,
    decide,
    decide_on_draft,
    next_revision,
)
from harness.wiggum.recorded import reasons_in, rounds_from, verdict_attributes
from harness.wiggum.reviser import Reviser, Revision, RevisionMode
from harness.wiggum.round import Round, StopReason, best_round
from harness.wiggum.spent import Spent

__all__ = [
    "LoopLimits",
    "LoopPolicy",
    "Meter",
    "Revise",
    "Reviser",
    "Revision",
    "RevisionMode",
    "Round",
    "Spent",
    "Stop",
    "StopReason",
    "TokenPrice",
    "WiggumResult",
    "best_round",
    "decide",
    "decide_on_draft",
    "lengthened",
    "next_revision",
    "reasons_in",
    "revise_until_met",
    "rounds_from",
    "verdict_attributes",
]
