"""Where a run's time, tokens and money went, in figures."""

from harness.trace.report.aside import Aside
from harness.trace.report.call_group import CallGroup, call_group, group_calls
from harness.trace.report.goodput import Targets
from harness.trace.report.report import RunReport, report_of

__all__ = ["Aside", "CallGroup", "RunReport", "Targets", "call_group", "group_calls", "report_of"]
