"""Results read from a run's journal: a report, a diagnosis, a comparison, spans for a collector.

Runs nothing and asks no model. Only code that sends spans imports `otlp`, which loads an HTTP
client.
"""

from harness.analysis.diagnosis import diagnose
from harness.analysis.finding import LAYERS, Diagnosis, RunFinding, Severity
from harness.analysis.rules import RULES
from harness.analysis.run_report import Aside, RunReport, Targets, report_of

__all__ = [
    "LAYERS", "RULES", "Aside", "Diagnosis", "RunFinding", "RunReport", "Severity", "Targets",
    "diagnose", "report_of",
]  # fmt: skip
