"""Fixtures that pytest finds by itself; see `harness.testing`."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

_MOST_BYTES = 200  # of a recording's name: a file's name has at most 255


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that has `harness_recording` record in place of replaying."""
    parser.getgroup("harness").addoption(
        "--harness-record",
        action="store_true",
        help="ask real models, and write what they say to the tests' recordings",
    )


# First, since pytest then makes its report of the traceback.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> None:
    """Removes harness's frames from the traceback of a failed node, whose own error is chained."""
    if call.excinfo is None or call.excinfo.typename != "NodeFailed":
        return
    package = Path(__file__).parent
    frame = call.excinfo.tb
    while frame.tb_next is not None:
        if package in Path(frame.tb_next.tb_frame.f_code.co_filename).parents:
            frame.tb_next = None
            return
        frame = frame.tb_next


# Imported inside the functions, since every run of pytest loads this file, and few use pipelines.


@pytest.fixture
def harness_run(tmp_path: Path) -> partial[Any]:
    """`run_pipeline`, with the runs' files in `tmp_path / "traces"`."""
    from harness.session import Settings  # noqa: PLC0415
    from harness.testing import run_pipeline  # noqa: PLC0415

    return partial(run_pipeline, settings=Settings(traces=tmp_path / "traces"))


@pytest.fixture
def harness_recording(request: pytest.FixtureRequest) -> object:
    """The `Recording` of this test, in a folder `recordings` beside its file."""
    from harness.recording import Recording  # noqa: PLC0415

    def place(test: str, checksum: str = "") -> Path:
        name = re.sub(r"[^\w.-]+", "-", f"{request.path.stem}.{test}").strip("-")
        name = name[: _MOST_BYTES - len(checksum)] if checksum else name
        return request.path.parent / "recordings" / f"{name}{checksum}.jsonl"

    test = request.node.nodeid.partition("::")[2]
    # Without a checksum, `test[C]` and `test[C++]` would have one file.
    is_plain = re.fullmatch(r"[\w:]+(\[[\w.-]*[\w.]\])?", test) and len(test) <= _MOST_BYTES
    path = place(test, "" if is_plain else f".{crc32(test.encode()):08x}")
    older = place(request.node.name)  # before names had a class and a checksum
    recording = Recording(path, record=request.config.getoption("--harness-record"))
    if not recording._record and not path.exists() and older.exists():  # noqa: SLF001 - knows the variable
        return Recording(older)
    return recording
