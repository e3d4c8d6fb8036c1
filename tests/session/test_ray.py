"""Nodes on Ray: what goes to workers and what stays, what is lost with one, and what is not."""

import asyncio
import copy
import itertools
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
from sample_runs import load_run
from session_runs import codes, fail, instants_of, pipeline_of, refused, run, settings_of, spans_of
from structlog.testing import capture_logs

from harness import Limits, Pipeline, Resources, Run, ScriptedBackend, Timeout
from harness.errors import NodeFailed, ReplyCut, RunLimitReached
from harness.graph.graph import asks_for_workers
from harness.graph.on_ray import _OnRay, _RayConnection, on_ray, task_options
from harness.graph.worker_calls import _path_to_culprit, clock_bounds
from harness.session import load_settings
from harness.trace import Tracer

WORKER = Resources(cpus=1)


def echo():
    return {"producer": ScriptedBackend(lambda asked: asked.messages[-1].content)}


# --- without a cluster ---------------------------------------------------------------------------


def test_without_a_cluster_a_node_that_asks_for_a_worker_runs_here_and_that_is_told_once(tmp_path):
    def here(n: int) -> int:
        return os.getpid() + n

    pipeline = pipeline_of(here, name="here", each={"n": "ns"}, on=WORKER)
    done = run(pipeline, settings_of(tmp_path), {"ns": [0, 0]})

    assert done.result == [os.getpid()] * 2
    assert [one["code"] for one in instants_of(done, "warning")] == ["run.no-workers"]


def test_what_cannot_be_on_a_worker_is_refused_when_written():
    async def items():
        yield 1

    def item() -> int:
        return 1

    with refused("pipeline.on-a-stream"):
        Pipeline("p").node(on=WORKER)(items)
    with refused("pipeline.option-invalid"):
        Pipeline("p").node(on=2)(item)


def test_code_is_sent_to_no_cluster_that_a_strangers_folder_names(tmp_path):
    def here() -> int:
        return 1

    (tmp_path / "harness.toml").write_text('[execution]\nengine = "ray"\naddress = "evil:6379"\n')
    settings = load_settings(tmp_path / "harness.toml", environment={})

    with refused("trust.cluster-not-allowed"):
        run(pipeline_of(here, on=WORKER), settings)


def test_without_ray_it_is_said_how_to_install_it(tmp_path, monkeypatch):
    def here() -> int:
        return 1

    monkeypatch.setitem(sys.modules, "ray", None)
    with refused("ray.not-installed"):
        run(pipeline_of(here, on=WORKER), settings_of(tmp_path, execution={"engine": "ray"}))


def test_ray_is_not_started_for_nodes_that_ask_for_no_worker(tmp_path, monkeypatch):
    def here(n: int) -> int:
        return n

    def without_later(n: int) -> int:
        return n and later

    if tmp_path is None:
        later = 1
    monkeypatch.setitem(sys.modules, "ray", None)
    settings = settings_of(tmp_path, execution={"engine": "ray"})
    assert run(pipeline_of(here), settings, {"n": 1}).result == 1
    assert run(pipeline_of(without_later), settings, {"n": 0}).result == 0


def test_what_cannot_be_pickled_is_named_by_the_variables_that_lead_to_it():
    held = threading.Lock()

    def itself(n: int) -> object:
        return itself(n - 1) if n else held

    def node() -> object:
        return later or itself(1)

    if held is None:
        later = 1
    path = ["the closure's 'itself'", "the closure's 'held'"]
    assert _path_to_culprit("cloudpickle", node) == path


def test_a_pipeline_that_another_ones_node_calls_is_seen_to_need_workers(tmp_path, monkeypatch):
    def there() -> int:
        return 1

    inner = pipeline_of(there, name="inner", on=WORKER)

    async def calls(run: Run) -> int:
        return (await run.call(inner)).result

    async def calls_unseen(run: Run, hidden: object = SimpleNamespace(inner=inner)) -> int:
        return (await run.call(hidden.inner)).result

    monkeypatch.setitem(sys.modules, "ray", None)
    settings = settings_of(tmp_path, execution={"engine": "ray"})
    with refused("ray.not-installed"):
        run(pipeline_of(calls), settings)
    hidden = pipeline_of(calls_unseen)
    assert not asks_for_workers(hidden)
    cause = fail(hidden, settings)
    while cause.__cause__ is not None:
        cause = cause.__cause__
    assert "ray" in str(cause)


def test_ray_is_told_in_its_own_words_what_a_node_asks_for():
    assert task_options(Resources(), asks=True) == {
        "num_cpus": 1,
        "num_gpus": 0,
        "memory": None,
        "resources": None,
        "accelerator_type": None,
        "runtime_env": None,
        "scheduling_strategy": "DEFAULT",
        "max_retries": 0,
    }
    everything = Resources(
        cpus=2,
        gpus=0.5,
        memory="1 KiB",
        custom={"license": 1},
        accelerator_type="A100",
        runtime_env={"pip": ["polars"]},
        placement="spread",
        max_retries=5,
    )
    assert task_options(everything, asks=False) == {
        "num_cpus": 2,
        "num_gpus": 0.5,
        "memory": 1024,
        "resources": {"license": 1},
        "accelerator_type": "A100",
        "runtime_env": {"pip": ["polars"]},
        "scheduling_strategy": "SPREAD",
        "max_retries": 5,
    }


def test_of_equal_large_inputs_one_is_put_into_the_object_store():
    stored = []
    ray = SimpleNamespace(put=stored.append, exceptions=SimpleNamespace(RayError=OSError))
    executor = _OnRay(ray, tracer=Tracer(), content="full", give_again=print)
    document = b"x" * 200_000
    for n in range(40):
        executor._put(bytes(document))
        executor._put(str(n).encode())
    assert stored.count(document) == 1
    assert len(stored) == 41


def test_an_address_where_no_cluster_answers_is_refused_before_ray_waits_for_it():
    ray = Starting()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with refused("ray.unreachable"):
            _RayConnection().join(ray, address, Future())
    assert not ray.begun.is_set()


class Starting:
    """Stands for Ray while it starts, which takes until it may."""

    __name__ = "ray"

    def __init__(self):
        self.begun, self.may_start = threading.Event(), threading.Event()
        self.exceptions = SimpleNamespace(RayError=OSError)

    def is_initialized(self):
        return self.may_start.is_set()

    def init(self, **_how):
        self.begun.set()
        self.may_start.wait()


def test_a_run_that_is_cancelled_while_ray_starts_ends_at_once_and_does_not_use_it(monkeypatch):
    ray = Starting()
    monkeypatch.setitem(sys.modules, "ray", ray)

    async def use():
        how = {"tracer": Tracer(), "content": "full", "give_again": print}
        async with on_ray("local", **how):
            raise AssertionError

    async def main():
        using = asyncio.create_task(use())
        await asyncio.to_thread(ray.begun.wait)
        using.cancel()
        await asyncio.wait({using})

    began_s = time.monotonic()
    asyncio.run(main())  # waits for its threads
    assert time.monotonic() - began_s < 30
    ray.may_start.set()


def test_a_process_that_has_a_cluster_is_refused_another():
    ray, connection = Starting(), _RayConnection()
    ray.may_start.set()
    ray.is_initialized = ray.begun.is_set
    connection.join(ray, "ray://10.0.0.7", Future())
    connection.join(ray, "ray://10.0.0.7", Future())
    with refused("ray.other-address"):
        connection.join(ray, "ray://10.0.0.8", Future())


@pytest.mark.parametrize(
    "error",
    [
        ReplyCut("cut", endpoint="e", text="t", finish_reason="length"),
        NodeFailed("n", KeyError("x"), attempts=2),
        RunLimitReached("over", limit="calls"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_an_error_is_the_same_in_another_process(error):
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(other), str(other), vars(other)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize(
    ("before", "now", "then"),
    [
        pytest.param(None, (-5, 9), (-5, 9), id="the first call"),
        pytest.param((-5, 9), (-2, 20), (-2, 9), id="a call narrows it"),
        pytest.param((-5, 9), (12, 20), (12, 20), id="drifted apart"),
    ],
)
def test_each_call_narrows_what_is_known_of_a_machines_clock(before, now, then):
    assert clock_bounds(before, now) == then


# --- on a cluster --------------------------------------------------------------------------------


OWN = {"RAY_OVERRIDE_RESOURCES": '{"license": 1, "accelerator_type:A100": 1}'}
"""What the cluster has besides CPUs, however it is started."""


# First, since the others begin with a connection.
@pytest.mark.slow
def test_runs_side_by_side_share_the_connection_and_leave_it_to_the_next(tmp_path, monkeypatch):
    for name, value in OWN.items():
        monkeypatch.setenv(name, value)

    def slept(s: float) -> float:
        time.sleep(s)
        return s

    def on_its_own(s):
        settings = settings_of(tmp_path / str(s), execution={"engine": "ray"})
        return pipeline_of(slept, on=WORKER).run_async(s=s, settings=settings)

    async def both():
        return await asyncio.gather(on_its_own(0.1), on_its_own(4.0))

    ray = pytest.importorskip("ray", reason="ray is not installed")
    assert [done.result for done in asyncio.run(both())] == [0.1, 4.0]
    assert ray.is_initialized()  # for the next run


@pytest.fixture(scope="module")
def ray():
    """One on this machine, of two workers."""
    ray = pytest.importorskip("ray", reason="ray is not installed")
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled", **OWN)
    if not ray.is_initialized():
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.fixture
def settings(ray, tmp_path):
    return settings_of(tmp_path, execution={"engine": "ray"})


@pytest.mark.slow
def test_a_worker_asks_the_driver_and_its_spans_are_in_the_journal(settings):
    pipeline = Pipeline("both")

    @pipeline.node(on=WORKER)
    def plain(n: int) -> list[int]:
        return [n, os.getpid()]

    @pipeline.node(on=WORKER, timeout=Timeout(idle_s=30))
    async def asks(run: Run, plain: list[int]) -> list[str]:
        run.beat()
        with run.span("parse", rows=1) as span:
            run.counter("rows", 3, unit="rows")
            span.set(found=2)
        replies = await asyncio.gather(*(run.chat("producer", one) for one in "ab"))
        return [*replies, run.id]

    @pipeline.node
    def stays(asks: list[str]) -> int:
        return os.getpid()

    done = run(pipeline, settings, {"n": 7}, backends=echo())

    assert done.outputs["plain"][0] == 7
    assert done.outputs["plain"][1] != os.getpid() == done.outputs["stays"]
    assert done.outputs["asks"] == ["a", "b", done.run_id]
    spans = {one.id: one for one in load_run(done.files.journal).spans}
    (parse,) = (one for one in spans.values() if one.name == "parse")
    worker = spans[parse.parent]
    node = spans[worker.parent]
    assert parse.attributes == {"rows": 1, "found": 2}
    assert (worker.name, node.attributes["label"]) == ("worker", "asks")
    assert worker.attributes["track"].startswith("worker ")
    assert node.start_ns < worker.start_ns <= parse.start_ns <= parse.end_ns <= worker.end_ns
    assert worker.end_ns < node.end_ns
    assert {spans[one.parent].id for one in spans.values() if one.name == "chat"} == {node.id}


@pytest.mark.slow
def test_a_node_has_what_it_asks_for_and_waits_only_where_that_is_free(settings):
    on = Resources(
        cpus=1,
        custom={"license": 1},
        accelerator_type="A100",
        placement="spread",
        runtime_env={"env_vars": {"COLOUR": "blue"}},
    )

    def licensed(n: int) -> list[object]:
        began = time.time()
        time.sleep(0.3)
        return [began, time.time(), os.environ["COLOUR"]]

    pipeline = pipeline_of(licensed, each={"n": "ns"}, on=on, timeout=Timeout(total_s=90))
    done = run(pipeline, settings, {"ns": [1, 2, 3]})
    spans = sorted(done.result)
    assert {colour for *_, colour in spans} == {"blue"}
    assert all(ended <= began for (_, ended, _), (began, *_) in itertools.pairwise(spans))


@pytest.mark.slow
def test_what_ray_refuses_is_told_with_the_nodes_place(settings, tmp_path):
    def near() -> int:
        return 1

    on = Resources(runtime_env={"working_dir": str(tmp_path)})
    cause = fail(pipeline_of(near, on=on), settings).__cause__
    assert cause.code == "ray.resources-refused"
    assert (cause.path, cause.line) == (Path(__file__), near.__code__.co_firstlineno)


@pytest.mark.slow
def test_a_node_that_waits_for_a_model_gives_its_cpu_back(settings, tmp_path):
    """Else it would wait for ever: the model replies only once the other node has run."""
    everything, path = Resources(cpus=2), tmp_path / "computed"
    asked = tmp_path / "asked"
    pipeline = Pipeline("lends")

    @pipeline.node(on=everything)
    async def waits(run: Run) -> str:
        return await run.chat("producer", "reply once it is there")

    @pipeline.node(on=everything)
    def computes(path: str, asked: str) -> bool:
        Path(path).touch()
        return Path(asked).exists()

    class Patient(ScriptedBackend):
        async def chat(self, request):
            asked.touch()
            until_s = time.monotonic() + 60
            while not path.exists() and time.monotonic() < until_s:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            return await super().chat(request)

    models = {"producer": Patient(lambda _: "there" if path.exists() else "never")}
    inputs = {"path": str(path), "asked": str(asked)}
    done = run(pipeline, settings, inputs, backends=models)
    assert done.outputs["waits"] == "there"  # whichever of the two began first


@pytest.mark.slow
def test_a_node_that_waits_for_a_model_can_still_clean_up_when_it_is_cancelled(settings, tmp_path):
    pipeline, path = Pipeline("ends"), tmp_path / "cleaned"

    @pipeline.node(on=WORKER, timeout=Timeout(total_s=8))
    async def waits(run: Run, path: str) -> str:
        try:
            return await run.chat("producer", "answered too late")
        finally:
            Path(path).touch()  # noqa: ASYNC240 - quick

    models = {"producer": ScriptedBackend("late", delay_s=60)}
    error = fail(pipeline, settings, {"path": str(path)}, backends=models)
    assert error.__cause__.code == "node.timeout"
    until_s = time.monotonic() + 10
    while not path.exists() and time.monotonic() < until_s:
        time.sleep(0.1)
    assert path.exists()


@pytest.mark.slow
def test_a_large_input_reaches_every_call(settings):
    def counted(document: str, letter: str) -> int:
        return document.count(letter)

    document = "ab" * 150_000 + "c"
    inputs = {"document": document, "letters": ["a", "b", "c"]}
    done = run(pipeline_of(counted, each={"letter": "letters"}, on=WORKER), settings, inputs)
    assert done.result == [150_000, 150_000, 1]


@pytest.mark.slow
@pytest.mark.parametrize("on", [Resources(cpus=999), Resources(accelerator_type="unknown")])
def test_what_no_machine_has_is_told(settings, on):
    def wide() -> int:
        return 1

    pipeline = pipeline_of(wide, on=on, timeout=Timeout(total_s=2))
    with capture_logs() as logs, pytest.raises(NodeFailed):
        run(pipeline, settings)
    assert "ray.no-such-worker" in [log["code"] for log in logs]


@pytest.mark.slow
def test_limits_hold_exactly_over_all_workers(settings):
    pipeline = Pipeline("many")

    @pipeline.node(each={"item": "items"}, on=WORKER)
    async def asks(run: Run, item: str) -> str:
        return await run.chat("producer", item)

    models = echo()
    items = [str(n) for n in range(9)]
    done = run(pipeline, settings, {"items": items}, backends=models, limits=Limits(max_calls=4))

    assert (done.status, len(models["producer"].requests)) == ("stopped", 4)


def die_once(path):
    if not Path(path).exists():
        Path(path).touch()
        os._exit(1)


@pytest.mark.slow
def test_a_lost_worker_loses_its_own_call_only_and_no_reply(settings, tmp_path):
    pipeline = Pipeline("dies")

    @pipeline.node(on=WORKER)
    async def dies(run: Run, path: str) -> str:
        said = await run.chat("producer", "once")
        die_once(path)
        return said

    @pipeline.node(on=WORKER)
    def without_run(other: str) -> str:
        die_once(other)
        return "once more"

    @pipeline.node(on=Resources(max_retries=1), on_error="skip")
    def always(n: int) -> str:
        os._exit(1)

    models = echo()
    inputs = {"path": str(tmp_path / "died"), "other": str(tmp_path / "died too"), "n": 1}
    done = run(pipeline, settings, inputs, backends=models)

    assert done.outputs["dies"] == "once"
    assert len(models["producer"].requests) == 1
    assert done.outputs["without_run"] == "once more"
    assert done.retries == {"dies": 1, "without_run": 1, "always": 1}
    assert "WorkerLost" in done.outputs["always"].reason
    assert codes(done.warnings) == ["run.result-skipped"]


class Odd(Exception):
    def __init__(self, text, *, more):
        super().__init__(text)
        self.more = more


LOCK = threading.Lock()


@pytest.mark.slow
def test_errors_say_what_and_where_as_they_do_here(settings):
    def raises() -> str:
        raise KeyError("x")

    def odd() -> str:
        raise Odd("y", more=1)

    async def maps(run: Run) -> list[str]:
        return await run.map(str, [1])

    def returns() -> object:
        return LOCK

    held = threading.Lock()

    def helper() -> None:
        held.acquire()

    def closure() -> str:
        helper()
        return ""

    for function, said in (
        (raises, "KeyError: 'x'"),
        (odd, "Odd: y"),
        (maps, "run.map does not work in a worker"),
        (returns, "cannot pickle '_thread.lock'"),
        (closure, f"{__file__}:{closure.__code__.co_firstlineno}: node 'closure' cannot be sent"),
        (closure, "the closure's 'helper' → the closure's 'held' cannot be pickled"),
    ):
        assert said in str(fail(pipeline_of(function, on=WORKER), settings))
    failed = fail(pipeline_of(raises, on=WORKER), settings)
    (span,) = spans_of(failed.result, "node")
    assert 'raise KeyError("x")' in span["traceback"]


@pytest.mark.slow
def test_a_call_that_takes_too_long_ends_on_its_worker_too(settings, tmp_path):
    def sleeps(path: str) -> None:
        Path(path).write_text(str(os.getpid()))
        while True:
            try:
                time.sleep(60)
            except KeyboardInterrupt:
                continue

    path = tmp_path / "pid"
    error = fail(
        pipeline_of(sleeps, on=WORKER, timeout=Timeout(idle_s=8)), settings, {"path": str(path)}
    )

    assert error.__cause__.code == "node.timeout"
    until_s = time.monotonic() + 10
    while Path(f"/proc/{path.read_text()}").exists() and time.monotonic() < until_s:
        time.sleep(0.1)
    assert not Path(f"/proc/{path.read_text()}").exists()


@pytest.mark.slow
def test_a_question_of_a_worker_waits_for_its_answer_in_the_next_part(settings):
    pipeline = Pipeline("asking")

    @pipeline.node(on=WORKER)
    async def asks(run: Run) -> str:
        return await run.ask("Which?")

    first = run(pipeline, settings)
    then = run(pipeline, settings, resume=first.run_id, answers={"asks": "this"})

    assert (first.status, then.result) == ("waiting", "this")


@pytest.mark.slow
def test_a_batch_survives_the_kill_of_a_machine_and_of_its_driver(tmp_path):
    pytest.importorskip("ray", reason="ray is not installed")
    script = Path(__file__).with_name("kill_on_ray.py")
    told = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "--rows", "30", "--json"],
        stdout=subprocess.PIPE,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
        },
        check=True,
    )
    said = json.loads(told.stdout.splitlines()[-1])
    assert [said[one] for one in ("lost", "wrong", "again")] == [0, 0, 0]


HEAD_DIES = """
import time

from harness import Pipeline, Resources

sums = Pipeline("sums")


@sums.node(each={"n": "ns"}, on=Resources(cpus=1))
def slow(n: int) -> int:
    time.sleep(0.5)
    return n


@sums.node
def total(slow: list[int]) -> int:
    return sum(slow)
"""


def children_of(pid):
    """By name, the processes that any thread of a process has started."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    children = [child for one in lists for child in one.read_text().split()]
    return {Path(f"/proc/{child}/comm").read_text().strip(): int(child) for child in children}


@pytest.mark.slow
def test_a_run_whose_clusters_head_is_killed_ends_by_itself_and_is_resumed(tmp_path):
    pytest.importorskip("ray", reason="ray is not installed")
    (tmp_path / "sums.py").write_text(HEAD_DIES)
    names = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "RAY_AUTH_MODE": "disabled"}

    def harness(*words):
        command = [sys.executable, "-m", "harness", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **names}, **pipes)

    numbers = [*range(80)]
    with harness("run", "sums.py", "--set", f"ns={numbers}", "--on", "ray") as first:
        end_s = time.monotonic() + 120
        while not any('"slow"' in one.read_text() for one in tmp_path.glob("traces/*.jsonl")):
            assert first.poll() is None
            assert time.monotonic() < end_s
            time.sleep(0.2)
        os.kill(children_of(first.pid)["gcs_server"], signal.SIGKILL)
        told, _ = first.communicate(timeout=30)
    assert first.returncode not in {0, None}
    assert told == ""

    with harness("resume", "latest", "--json") as then:
        told, said = then.communicate(timeout=300)
    assert then.returncode == 0, said
    assert json.loads(told)["result"] == sum(numbers)
