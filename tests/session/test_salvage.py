"""Going on with a run whose journal is damaged: never to another result."""

from __future__ import annotations

import gzip
import re
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_runs import BAD, GOOD, codes, fail, refused, run, settings_of

from harness import Pipeline, Run, ScriptedBackend
from harness.analysis.salvage import salvage_run
from harness.errors import InvalidInput, JournalInvalid
from harness.session import read_earlier_run
from harness.trace import Journal

INPUTS = {"task": "two words", "times": 4}


class Disk:
    """Lets a run come to its end, or not; no part of a node's code."""

    mended = False


def report():
    """A pipeline with inputs that have defaults, maps and a revise loop."""
    pipeline = Pipeline("report")

    @pipeline.node
    async def notes(run: Run, task: str, times: int = 2) -> str:
        return await run.chat("producer", f"notes on {task}, {times} of them")

    @pipeline.node
    def words(task: str) -> list[str]:
        return task.split()

    @pipeline.node(each={"word": "words"})
    async def said(run: Run, word: str, times: int = 2) -> str:
        return await run.chat("producer", f"{word} {times}")

    @pipeline.node
    async def draft(run: Run, task: str, said: list[str]) -> str:
        result = await run.wiggum(task, sources=[GOOD], rubric="answer", draft=BAD, max_rounds=2)
        return f"{result.stop_reason} {result.text}"

    @pipeline.node
    async def last(run: Run, draft: str, notes: str, said: list[str]) -> list[str]:
        if not Disk.mended:
            raise OSError("the disk is full")
        return [draft, notes, *said]

    return pipeline


def answer(request):
    text = request.messages[-1].content
    return GOOD if "900 years" in text else f"said: {text}"


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """A run in two parts, the second with another input; and what it comes to."""
    tmp_path = tmp_path_factory.mktemp("failed")
    how = {"backends": {"producer": ScriptedBackend(answer)}}
    Disk.mended = False
    fail(report(), settings_of(tmp_path), {**INPUTS, "times": 3}, **how)
    fail(report(), settings_of(tmp_path), {"times": 4}, resume="latest", **how)
    shutil.copytree(tmp_path / "traces", tmp_path / "kept")
    Disk.mended = True
    result = run(report(), settings_of(tmp_path), resume="latest", **how)
    assert (result.parts, result.passed) == (3, True)
    return tmp_path / "kept", result


def journal_in(traces):
    (path,) = (one for one in traces.glob("2*.jsonl") if "." not in one.stem)
    return path


def again(traces, inputs):
    return run(
        report(),
        settings_of(traces.parent),
        inputs,
        backends={"producer": ScriptedBackend(answer)},
        resume=journal_in(traces),
    )


def damaged(data, how, where, bit):
    """A file's bytes after something happened to it."""
    place = int(where * len(data))
    lines = data.splitlines(keepends=True)
    line = int(where * len(lines))
    match how:
        case "bit":
            return data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]
        case "cut line":
            lines[line] = lines[line][: len(lines[line]) // 2]
        case "no line":
            del lines[line]
        case "zeros":
            return data[:place] + bytes(len(data[place : place + 512])) + data[place + 512 :]
    return b"".join(lines)


def asks_for_inputs(traces):
    """Whether the journal does not say any more what the run was given."""
    try:
        again(traces, {})
    except InvalidInput as error:
        if error.code != "resume.input-lost":
            raise
        return True
    return False


DAMAGE = st.tuples(
    st.sampled_from(["bit", "cut line", "no line", "zeros"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 7),
)
PARTS = st.sampled_from(["", ".1"])


@pytest.mark.parametrize(
    "examples", [10, pytest.param(100, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_a_salvaged_run_comes_to_the_result_of_an_undamaged_one(failed, tmp_path_factory, examples):
    kept, undamaged = failed

    @settings(max_examples=examples)
    @given(damage=DAMAGE, part=PARTS, is_packed=st.booleans())
    def property_holds(damage, part, is_packed):
        traces = tmp_path_factory.mktemp("damaged") / "traces"
        shutil.copytree(kept, traces)
        path = journal_in(traces)
        file = path.with_suffix(f"{part}.jsonl")
        data = file.read_bytes()
        file.write_bytes(damaged(gzip.compress(data) if is_packed else data, *damage))

        try:
            salvage_run(path)
        except JournalInvalid as error:
            if error.code != "journal.beginning-lost" and error.line != 1:
                raise
            return
        # Of a run that has finished, the result is read from the journal.
        result = again(traces, INPUTS if asks_for_inputs(traces) else {})

        assert result.outputs == undamaged.outputs
        assert (result.status, result.passed) == ("finished", True)
        assert [*Journal(path).items()]

    property_holds()


def without(traces, kind, *, part=""):
    """The journal without its first line of a kind."""
    path = journal_in(traces)
    file = path.with_suffix(f"{part}.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    lost = next(n for n, line in enumerate(lines) if kind in line)
    file.write_bytes(b"".join(lines[:lost] + lines[lost + 1 :]))
    return path


def test_a_damaged_journal_is_kept_and_what_is_lost_is_said(failed, tmp_path):
    traces = shutil.copytree(failed[0], tmp_path / "traces")
    path = without(traces, b'"node":"words"')
    damaged = path.read_bytes()
    with refused("journal.invalid"):
        again(traces, {})

    salvage_run(path)
    (loss,) = read_earlier_run(path).lost
    result = again(traces, {})

    assert path.with_name(f"{path.name}.damaged").read_bytes() == damaged
    assert re.fullmatch(rf"{path.name}: \d+ lines? lost, .*(; these outputs .*)?", loss)
    assert codes(result.warnings) == ["resume.salvaged"]
    assert result.outputs == failed[1].outputs


@pytest.mark.parametrize("cut", [0.5, 0.9, -3])
def test_a_packed_journal_that_was_cut_is_salvaged_as_far_as_it_can_be_read(failed, tmp_path, cut):
    traces = shutil.copytree(failed[0], tmp_path / "traces")
    path = journal_in(traces)
    data = path.read_bytes()
    packed = gzip.compress(data)
    path.write_bytes(packed[: cut if cut < 0 else int(cut * len(packed))])
    with refused("journal.invalid"):
        again(traces, {})

    salvage_run(path)

    (loss,) = read_earlier_run(path).lost
    kept = data.count(b"\n") if cut < 0 else int(cut * data.count(b"\n"))
    assert int(re.findall(r"from line (\d+)", loss)[0]) > 0.6 * kept
    assert again(traces, {}).outputs == failed[1].outputs


def test_an_output_of_whose_call_something_is_lost_is_not_trusted(failed, tmp_path):
    traces = shutil.copytree(failed[0], tmp_path / "traces")
    # A round of the loop that its node was still in then.
    path = without(traces, b'"name":"revise"')

    salvage_run(path)

    (loss,) = read_earlier_run(path).lost
    assert loss.endswith("; these outputs are made again: draft")
    assert not path.read_bytes().count(b'"kind":"output","node":"draft"')


@pytest.mark.parametrize("part", ["", ".1"])
def test_an_input_that_is_lost_is_asked_for_and_no_default_taken(failed, tmp_path, part):
    traces = shutil.copytree(failed[0], tmp_path / "traces")
    salvage_run(without(traces, b'"input":"times"', part=part))

    if part:
        with refused("resume.input-lost"):
            again(traces, {})
    assert again(traces, INPUTS).outputs == failed[1].outputs


@pytest.mark.parametrize("part", ["", ".1"])
@pytest.mark.parametrize(
    ("line", "code"),
    [(b'"kind":"run"', "journal.invalid"), (b'"name":"pipeline"', "journal.beginning-lost")],
)
def test_a_part_whose_beginning_is_lost_is_not_salvaged(failed, tmp_path, line, code, part):
    traces = shutil.copytree(failed[0], tmp_path / "traces")
    path = without(traces, line, part=part)
    before = {one.name: one.read_bytes() for one in traces.iterdir()}

    with refused(code):
        salvage_run(path)

    assert {one.name: one.read_bytes() for one in traces.iterdir()} == before


def test_of_a_file_that_holds_nothing_certain_nothing_is_made(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"{}\n" * 9)

    with refused("journal.invalid"):
        salvage_run(path)

    assert path.read_bytes() == b"{}\n" * 9
    assert [one.name for one in tmp_path.iterdir()] == ["run.jsonl"]
