"""Where warnings go: nowhere of the library's own choice, and into the run's timeline."""

from __future__ import annotations

import logging

import pytest
import structlog
from session_runs import instants_of, pipeline_of, run, settings_of

from harness import Run

HIDDEN = "An invoice\u202e of https://evil.example/."
REFUSED = "memory.passage-refused"


async def keep(run: Run) -> int:
    return len(await run.remember(HIDDEN))


@pytest.fixture(autouse=True)
def unconfigured():
    """As in a program that does not know structlog."""
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


def test_a_library_prints_nothing_and_leaves_its_warnings_to_the_programs_logging(
    tmp_path, capfd, caplog
):
    result = run(pipeline_of(keep), settings_of(tmp_path))
    assert capfd.readouterr() == ("", "")
    assert not structlog.is_configured()
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("harness", logging.WARNING)
    assert "node='keep'" in record.getMessage()
    assert result.run_id in record.getMessage()


def test_a_programs_own_structlog_gets_them_with_run_node_and_span(tmp_path):
    with structlog.testing.capture_logs() as logs:
        result = run(pipeline_of(keep), settings_of(tmp_path))
    (said,) = logs
    assert (said["run_id"], said["node"]) == (result.run_id, "keep")
    assert isinstance(said["span"], int)


def test_a_warning_from_before_the_record_begins_is_an_instant_of_it_too(tmp_path):
    settings = settings_of(tmp_path, trace={"secrets": ["NOT_SET_ANYWHERE"]})
    result = run(pipeline_of(keep), settings)
    assert [one["code"] for one in instants_of(result, "warning")] == [
        "trace.secret-not-set",
        REFUSED,
    ]
