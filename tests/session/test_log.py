"""Where warnings go: nowhere of the library's own choice, and into the run's timeline."""

from __future__ import annotations

import logging
from contextvars import Context

import pytest
import structlog
from sample_runs import load_run
from session_runs import instants_of, pipeline_of, run, settings_of

from harness import Run, ScriptedBackend, add_run_context

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


def test_what_a_node_logs_says_its_run_node_call_and_model(tmp_path):
    logged = structlog.testing.LogCapture()
    structlog.configure(processors=[add_run_context, logged])

    class Logging(ScriptedBackend):
        async def chat(self, request):
            structlog.get_logger().info("asked", model="said by the program")
            structlog.get_logger().info("asked")
            return await super().chat(request)

    async def talk(run: Run) -> str:
        structlog.get_logger().info("begun")
        return await run.chat("producer", "Why?")

    def logged_run():
        structlog.get_logger().info("outside")
        backends = {"producer": Logging(["So."])}
        return run(pipeline_of(talk), settings_of(tmp_path), backends=backends)

    result = Context().run(logged_run)  # an empty one: other tests leave spans open
    outside, begun, own, asked = logged.entries
    assert outside == {"event": "outside", "log_level": "info"}
    assert (begun["run_id"], begun["node"], "call" in begun) == (result.run_id, "talk", False)
    assert (asked["run_id"], asked["node"], asked["model"]) == (result.run_id, "talk", "producer")
    assert own["model"] == "said by the program"
    (call,) = [one for one in load_run(result.files.journal).spans if one.name == "chat"]
    assert asked["call"] == call.id


def test_a_warning_from_before_the_record_begins_is_an_instant_of_it_too(tmp_path):
    settings = settings_of(tmp_path, trace={"secrets": ["NOT_SET_ANYWHERE"]})
    result = run(pipeline_of(keep), settings)
    assert [one["code"] for one in instants_of(result, "warning")] == [
        "trace.secret-not-set",
        REFUSED,
    ]
