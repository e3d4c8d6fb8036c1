"""What a run says of itself when it begins and when it ends, so that it can be resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import InvalidInput
from harness.graph import Execution, Graph, graph_inputs
from harness.graph.values import digest, value_form
from harness.trace import Attributes, ContentPolicy, Tracer
from harness.wiggum import Limits

_MOST = 20
"""Names in one record; the spans of the calls have the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a command line had a pipeline and its settings from."""

    target: str
    """The file, and the pipeline's name in it if that was given; or a shipped pattern's name."""
    config: Path | None = None
    """The file of the settings; None when there was none."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """Roles that went before those of the settings."""
    memory: Path | None = None
    """The directory of passages that went before that of the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What a part of a run began with."""

    origin: Origin | None
    """None when it was begun from Python."""
    limits: Limits
    """Those that it was given, beside the pipeline's and those of the settings."""
    content: ContentPolicy
    """What it recorded of texts."""
    inputs: tuple[str, ...] | None = None
    """The names of those that it was given; None if they are lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedInput:
    """An input that a run was given, as its journal has it."""

    name: str
    """Its name."""
    text: str | None
    """The value as JSON, without secrets; None when there is no JSON for it."""
    digest: str
    """Of that JSON before secrets were taken out of it."""

    @property
    def is_whole(self) -> bool:
        """Whether the journal has all of it."""
        return self.text is not None and digest(self.text.encode()) == self.digest


def record_beginning(
    tracer: Tracer,
    graph: Graph,
    inputs: Mapping[str, object],
    *,
    beginning: Beginning,
) -> None:
    """Writes down what a run begins with.

    Args:
        tracer: The run's.
        graph: What is run.
        inputs: Those that were given; what was left out is what the code says, then too.
        beginning: The rest.
    """
    origin = beginning.origin
    tracer.instant(
        "pipeline",
        pipeline=graph.name,
        content=beginning.content,
        target=origin.target if origin else None,
        config=str(origin.config) if origin and origin.config else None,
        roles=dict(origin.roles) if origin else {},
        memory=str(origin.memory) if origin and origin.memory else None,
        inputs=list(inputs),
        limits={name: one for name, one in asdict(beginning.limits).items() if one is not None},
    )
    known = graph_inputs(graph)
    for name, value in inputs.items():
        try:
            data = value_form(known[name].annotation).encode(value)
        except TypeError:
            tracer.instant("input", input=name)
        else:
            tracer.instant(
                "input",
                input=name,
                value_sha256=tracer.content(data.decode()),
                digest=tracer.excerpt(digest(data)),
            )


def record_outcome(tracer: Tracer, ended: Execution) -> None:
    """Writes down how a part of a run ended."""
    tracer.instant(
        "outcome",
        status=ended.status,
        failed=[one.node for one in ended.failures[:_MOST]],
        failures=len(ended.failures),
        skips=len(ended.skips),
        reused=len(ended.reused),
        made_again=len(ended.reruns),
        questions=[one.key for one in ended.questions],
    )


def read_beginning(said: Attributes) -> Beginning:
    """What `record_beginning` wrote of all but the inputs."""
    values: Mapping[str, Any] = said
    target, config, memory = (values.get(name) for name in ("target", "config", "memory"))
    return Beginning(
        origin=target
        and Origin(
            target=target,
            config=Path(config) if config else None,
            roles=values.get("roles") or {},
            memory=Path(memory) if memory else None,
        ),
        limits=Limits(**(values.get("limits") or {})),
        content=values["content"],
        inputs=None if values.get("is_lost") else tuple(values.get("inputs") or ()),
    )


def restored_inputs(
    graph: Graph,
    recorded: Mapping[str, RecordedInput],
    given: Mapping[str, object],
    *,
    are_all_recorded: bool = True,
) -> dict[str, object]:
    """The inputs of a run that is resumed: those given anew, and else those that it had.

    Args:
        graph: What is run.
        recorded: Those that it had.
        given: Those given anew.
        are_all_recorded: Whether it had no others: a damaged journal may have lost them.

    Raises:
        InvalidInput: One cannot be had from the journal.
    """
    inputs = dict(given)
    known = graph_inputs(graph)
    if not are_all_recorded and (lost := known.keys() - given.keys()):
        raise InvalidInput(
            "the journal has lost which inputs the run was given; give each of them again: "
            + ", ".join(sorted(lost)),
            code="resume.inputs-lost",
        )
    for name, one in recorded.items():
        # What the pipeline does not take any more, it does not need.
        if name in given or name not in known:
            continue
        try:
            if one.text is None or not one.is_whole:
                why = (
                    "a secret was left out of it"
                    if one.text
                    else "it has no form in JSON, or is lost"
                )
                raise TypeError(why)
            inputs[name] = value_form(known[name].annotation).restore(one.text.encode())
        except TypeError as error:
            raise InvalidInput(
                f"input '{name}' cannot be restored from the journal ({error}); give it again: "
                f"--set {name}=…, or by its name to Pipeline.run",
                code="resume.input-lost",
            ) from error
    return inputs
