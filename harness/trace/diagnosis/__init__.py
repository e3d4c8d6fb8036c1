"""What was wrong with a run, told from its journal alone.

Rules look at calls, counters and texts, and each knows one fault: what it looks like, what it
means, which layer of the stack owns it, and what to change there. They say nothing of a run whose
figures are as they should be, and nothing of what a journal cannot show: whether the device was
busy, what else ran on the machine, whether the replies were any good.
"""

from harness.trace.diagnosis.diagnose import RULES, diagnose
from harness.trace.diagnosis.diagnosis import Diagnosis
from harness.trace.diagnosis.finding import LAYERS, Evidence, Finding, Layer, Severity

__all__ = ["LAYERS", "RULES", "Diagnosis", "Evidence", "Finding", "Layer", "Severity", "diagnose"]
