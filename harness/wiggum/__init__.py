"""The Wiggum loop: evaluate, send back what failed, revise, keep the best round."""

from harness.wiggum.loop import WiggumResult, revise_until_met
from harness.wiggum.policy import LoopLimits, Revise, Stop, decide
from harness.wiggum.reviser import Reviser
from harness.wiggum.round import Round, StopReason, best_round

__all__ = [
    "LoopLimits",
    "Revise",
    "Reviser",
    "Round",
    "Stop",
    "StopReason",
    "WiggumResult",
    "best_round",
    "decide",
    "revise_until_met",
]
