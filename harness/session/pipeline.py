"""`Pipeline`: a graph that can be run, from plain or async code."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from harness.errors import InvalidInput, PipelineInvalid
from harness.graph import Asker, Graph, graph_inputs
from harness.graph.graph import ResultT
from harness.graph.node import PolicyOptions
from harness.graph.picture import NodeSeen, as_mermaid, drawing_of, nodes_seen
from harness.inference import Backend, Limits
from harness.session.batch import Batch
from harness.session.batch_files import BatchResult
from harness.session.batch_rows import BatchRows, Inputs
from harness.session.open_run import SharedParts
from harness.session.own_loop import in_own_loop
from harness.session.pipeline_run import PipelineRun
from harness.session.result import RunEvents, RunResult
from harness.session.resume import Origin
from harness.session.run import Run
from harness.session.settings import Settings, settings_or_default
from harness.trace import Journal, Sink

if TYPE_CHECKING:
    import networkx  # it takes 0.2 s to import, which only those pay who ask for a graph


class Pipeline(Graph[ResultT]):
    """A pipeline of functions, joined by the names of their parameters.

    `Pipeline[str]("brief")` states the type of its result, for type checkers.

    Args:
        name: The name of its runs.
        retry: Whether a failed call of a node is repeated. This and the next four are defaults for
            its nodes.
        timeout: Time limits of a call of a node.
        cache: Whether outputs of earlier runs are reused.
        concurrency: How many calls of one node run at once.
        on_error: What happens when a node's last attempt raised: `"fail"`, `"skip"`, or
            `Default(value)`.
        fail_fast: Whether the first failure ends the whole run, not only the nodes that depend on
            it.
        result: The node whose output is the result; the last one when None.
        limits: Limits of a whole run; they override those of the settings.
        max_parallel: How many calls of all nodes run at once; no limit when None.
    """

    def __init__(
        self,
        name: str,
        *,
        fail_fast: bool = False,
        result: str | None = None,
        limits: Limits | None = None,
        max_parallel: int | None = 16,
        **policies: Unpack[PolicyOptions],
    ) -> None:
        super().__init__(name, fail_fast=fail_fast, result=result, **policies)
        check_options(limits=limits, max_parallel=max_parallel)
        self.limits = limits
        self.max_parallel = max_parallel

    def check(self) -> None:
        """Checks the pipeline as a whole, before every run.

        Raises:
            PipelineInvalid: See `Graph.check`; or there are no nodes, or a node's parameter for its
                `Run` has another name than `run`.
        """
        super().check()
        if not self.nodes:
            raise PipelineInvalid(
                f"pipeline '{self.name}' has no nodes; add one: @pipeline.node",
                code="pipeline.empty",
            )
        for name, item in graph_inputs(self).items():
            if item.annotation is Run:
                raise PipelineInvalid(
                    f"node '{item.node.name}' takes the run as '{name}', which would be an input; "
                    "call the parameter 'run'",
                    path=item.node.path,
                    line=item.node.line,
                    code="pipeline.run-parameter-misnamed",
                )

    def graph(self, run: Journal | None = None) -> networkx.DiGraph:
        """Its nodes by name, in the order of definition, each with an edge to its dependents.

        With a run, such as `Journal(result.files.journal)`, the nodes have the attributes
        `status`, `items`, `busy_ns`, `calls`, `input_tokens`, `output_tokens` and `is_critical`.
        """
        graph = super().graph()
        if run is not None:
            figures = nodes_seen(run)
            graph.add_nodes_from(
                (name, asdict(figures.get(name, NodeSeen()))) for name in self.nodes
            )
        return graph

    def _repr_mimebundle_(self, **_options: object) -> dict[str, str]:
        """Its flowchart, where a notebook shows the value of a cell."""
        text = as_mermaid(drawing_of(self))
        # JupyterLab draws the first from version 4.1 on; other notebooks show the text.
        return {"text/vnd.mermaid": text, "text/plain": text}

    async def run_async(
        self,
        inputs: Mapping[str, object] | None = None,
        /,
        *,
        resume: str | Path | None = None,
        answers: Mapping[str, object] | None = None,
        asker: Asker | None = None,
        limits: Limits | None = None,
        settings: Settings | None = None,
        backends: Mapping[str, Backend] | None = None,
        observers: Sequence[Sink] = (),
        origin: Origin | None = None,
        **named: object,
    ) -> RunResult[ResultT]:
        """Runs the pipeline: `await pipeline.run_async(task="…")`, or `run_async({"task": "…"})`.

        However it ends, its journal, its timelines and its line in the audit log are written.

        A resumed run repeats no finished call whose code and inputs are unchanged, and continues
        revise loops where they were. If that leaves nothing to do, the result is read from the
        journal.

        Args:
            inputs: Inputs by name, which may equal the name of an option below. A resumed run keeps
                inputs that are not given again.
            resume: A run to resume: its id or a part of it, `latest`, or one of its files.
            answers: Answers to the questions of the run to resume, by the question's key, by its
                text, or by the node's name if it asked only one.
            asker: Asks a person at once: a function of the `Question`, plain or async. Without it,
                or if it returns None, the run ends as waiting.
            limits: Limits of the whole run, over all its parts. Each overrides the same limit of
                the run to resume, of the pipeline, and of the settings.
            settings: Used in place of the settings of the directory and the environment.
            backends: Ready-made backends by tag, beside those of the settings. A backend with a
                role's name as its tag plays that role, over the settings.
            observers: Receive each record of the run as it happens.
            origin: The pipeline's source, for `harness resume`.
            named: Inputs.

        Returns:
            All outputs, or those that exist when the run was stopped at a limit or waits for an
            answer; `status` says which.

        Raises:
            InvalidInput: The pipeline, the settings, the inputs or a rubric are invalid, or the run
                cannot be resumed.
            NodeFailed: A node raised. The cause is chained; `result` has the outputs that exist.
        """
        return await run_pipeline(
            self,
            inputs,
            named,
            resume=resume,
            answers=answers,
            asker=asker,
            limits=limits,
            settings=settings,
            backends=backends,
            observers=observers,
            origin=origin,
        )

    run = in_own_loop(run_async, instead="await pipeline.run_async(…)")

    def events(self, inputs: Mapping[str, object] | None = None, /, **options: Any) -> RunEvents:  # noqa: ANN401
        """Runs the pipeline as `run_async` does; yields its events as they happen.

            async for event in brief.events(task="…"):
                if event.kind == "text":
                    print(event.text, end="")

        The last event is `done`. Texts come as they arrive, also from replies that fail and are
        retried; replies kept from an earlier part of the run give no events. See `RunEvents` for
        slow readers and readers that leave.

        Args:
            inputs: By name.
            options: Inputs, and all that `run_async` takes.
        """
        observers = options.pop("observers", ())
        return RunEvents(lambda own: self.run_async(inputs, observers=(*observers, own), **options))

    async def batch(
        self,
        inputs: Inputs,
        *,
        output: str | Path | None = None,
        columns: Mapping[str, str] | None = None,
        every: Mapping[str, object] | None = None,
        bad_rows: Literal["stop", "skip"] = "stop",
        max_failures: float | None = 0.5,
        sample: int | None = None,
        seed: int = 0,
        max_parallel: int | None = 16,
        limits: Limits | None = None,
        settings: Settings | None = None,
        backends: Mapping[str, Backend] | None = None,
        observers: Sequence[Sink] = (),
    ) -> BatchResult:
        """Runs the pipeline once for each row, all as one run; a row that fails stops no other.

        With an output, the same call goes on with the rows that have none yet: after a kill, with
        other rows, with a changed pipeline. A row is known by its inputs and its `id`.

        Args:
            inputs: CSV, JSON Lines or Parquet files, texts, folders of them; or mappings. Columns
                are inputs by name; those that are none are kept beside the output.
            output: A `.jsonl`, `.csv` or `.parquet` file, to which rows are added as they end. The
                failures go beside it, into `OUTPUT.failures.jsonl`, and `OUTPUT.batch` names the
                run.
            columns: What a column is called there, by the input's name.
            every: Inputs of every row. `{column}` stands for what the row has, and a text that
                begins with `@` for that file, which with a column is looked for beside the table.
            bad_rows: Whether rows that do not fit the pipeline stop the batch before anything runs,
                or fail alone.
            max_failures: Failures for one reason that end the batch, which then goes on later: a
                count that is exceeded, or as a `float` a share of the rows that have ended (of at
                least 20 failures). None for any number.
            sample: Only so many rows, drawn by the seed.
            seed: A larger sample by the same seed holds the smaller one.
            max_parallel: How many calls of nodes run at once, over all rows.
            limits: Of the whole batch, over all its parts; the pipeline's own do not apply.
            settings: As for `run_async`, as are the next two.
            backends: Ready-made backends by tag.
            observers: Receive each record of the run.

        Raises:
            InvalidInput: A row does not fit the pipeline, the output is not of this batch, or
                another argument is invalid; nothing was run.
        """
        check_options(
            sample=sample,
            max_failures=max_failures,
            max_parallel=max_parallel,
            limits=limits,
            backends=backends,
            observers=observers,
        )
        rows = BatchRows(
            self, inputs, columns=columns, every=every, bad_rows=bad_rows, sample=sample, seed=seed
        )
        batch = Batch(
            rows,
            output=None if output is None else Path(output),
            max_failures=max_failures,
            max_parallel=max_parallel,
            limits=limits,
            settings=settings_or_default(settings),
            backends=backends,
            observers=observers,
        )
        return await batch.run()


async def run_pipeline(
    pipeline: Pipeline[ResultT],
    inputs: Mapping[str, object] | None,
    named: Mapping[str, object],
    *,
    shared: SharedParts | None = None,
    **options: Any,  # noqa: ANN401 - of `Pipeline.run_async`
) -> RunResult[ResultT]:
    """Checks the arguments of `Pipeline.run_async`, or of `Session.run`, and makes the run.

    `shared` are the session's parts, and `options` the keywords of that method by name.
    """
    if not isinstance(inputs, Mapping | None):
        raise InvalidInput(
            f"inputs are {type(inputs).__name__}; give a mapping of names to values, or inputs by "
            "name",
            code="pipeline.inputs-not-mapping",
        )
    # An option with the name of an input is ambiguous, unless inputs are a mapping.
    if inputs is None:
        _refuse_inputs_among(pipeline, options)
    elif twice := inputs.keys() & named.keys():
        raise InvalidInput(
            f"input '{min(twice)}' is given twice, in the mapping and by name",
            code="pipeline.input-given-twice",
        )
    resume, answers = options.pop("resume", None), options.pop("answers", None)
    if not isinstance(resume, str | Path | None):
        raise InvalidInput(
            f"resume is {type(resume).__name__}; give a run's id, 'latest', or its file",
            code="resume.not-a-run",
        )
    check_options(**options)
    if shared is None:
        options["settings"] = settings_or_default(options.get("settings"))
    else:
        options["settings"], options["backends"] = shared.setup.settings, shared.setup.backends
        options["observers"] = (*shared.observers, *options.get("observers", ()))
    run = PipelineRun(
        graph=pipeline,
        own_limits=pipeline.limits,
        max_parallel=pipeline.max_parallel,
        shared=shared,
        **options,
    )
    arguments = {**(inputs or {}), **named}
    if resume is not None:
        return await run.resume(resume, arguments, answers=answers or {})
    if answers:
        raise InvalidInput(
            "an answer belongs to a run that asked; name the run to resume",
            code="answer.without-run",
        )
    return await run.begin(arguments)


def _refuse_inputs_among(pipeline: Pipeline, options: Mapping[str, object]) -> None:
    """Refuses an option with a value and the name of an input, which may be meant instead."""
    parameters = graph_inputs(pipeline)
    for name, value in options.items():
        if name in parameters and value not in (None, (), []):
            raise InvalidInput(
                f"'{name}' is an input of '{pipeline.name}' and an option of run; give inputs as a "
                f'mapping, run({{"{name}": …}}), beside which {name}= is the option',
                code="pipeline.input-is-option",
            )


def check_options(
    *,
    limits: object = None,
    backends: object = None,
    observers: object = (),
    max_parallel: int | None = None,
    sample: int | None = None,
    max_failures: float | None = None,
    **_others: object,
) -> None:
    """Raises `InvalidInput` for an invalid option of a run, a batch or a session."""
    if not isinstance(limits, Limits | None):
        raise InvalidInput(
            f"limits={limits!r} is no Limits object; write Limits(max_calls=9), for example",
            code="pipeline.limits-invalid",
        )
    if not isinstance(backends, Mapping | None):
        raise InvalidInput(
            f"backends={backends!r:.80} maps no tags to backends; write "
            '{"producer": ScriptedBackend(["A reply."])}, for example',
            code="pipeline.backends-invalid",
        )
    for tag, backend in (backends or {}).items():
        if not hasattr(backend, "chat"):
            raise InvalidInput(
                f"backends[{tag!r}] is {backend!r:.80}, no backend; give ScriptedBackend(["
                '"A reply."]), for example, or backends=Script({"producer": "A reply.", '
                '"evaluator": Judge(9)}).backends of harness.testing',
                code="pipeline.backends-invalid",
            )
    if not isinstance(observers, Sequence) or not all(map(callable, observers)):
        raise InvalidInput(
            f"observers={observers!r:.80} is no list of functions that take a record; write "
            "[Metrics()], for example",
            code="pipeline.observers-invalid",
        )
    # Unchecked, max_parallel=0 would wait for ever, and sample=0 would run nothing silently.
    if max_parallel is not None and not (isinstance(max_parallel, int) and max_parallel >= 1):
        raise InvalidInput(
            f"max_parallel={max_parallel!r} is no number of calls; give a whole number, 1 or more",
            code="pipeline.parallel-calls-not-positive",
        )
    if sample is not None and not (isinstance(sample, int) and sample >= 1):
        raise InvalidInput(
            f"sample={sample!r} draws no row; give 1 or more", code="batch.sample-not-positive"
        )
    most = 1 if isinstance(max_failures, float) else math.inf
    if max_failures is not None and not 0 <= max_failures <= most:
        raise InvalidInput(
            f"max_failures={max_failures} is neither a number of rows, such as 5, nor a share of "
            "them, such as 0.5",
            code="batch.max-failures-no-share",
        )
