"""How a run of a graph ended: outputs, failures, skipped nodes and open questions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import to_json

from harness.errors import NodeFailed, RunLimitReached
from harness.graph.annotations import described
from harness.text.typed_json import TypedJson
from harness.trace import events

RunStatus = Literal["finished", "failed", "stopped", "waiting"]
"""How a run ended. `stopped`: a limit was reached. `waiting`: a person has to answer first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """The output of a skipped node.

    Only nodes with a parameter annotated `str | Skipped` receive it. Other nodes are skipped too; a
    node that takes a list of items receives the existing ones.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailure:
    """A call of a node whose last attempt raised."""

    node: str
    """Its label: `findings`, `findings[2]` for an item, `answer/brief/findings[2]` for a node of a
    nested pipeline."""
    error: BaseException
    attempts: int
    beside: tuple[str, ...] = ()
    """If it raised a group of errors, class and first line of each but `error`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSkip:
    """A call of a node that was not made, or was not finished."""

    node: str
    """Its label, as in `NodeFailure`."""
    reason: str
    because_of: str | None = None
    """The node whose end was the reason; None if it was a `when=` or a limit."""


class Asked(NamedTuple):
    """What an answer belongs to."""

    key: str  # of the question
    text: str
    # Digest of the inputs of the call that asked, since a person who allowed one draft has not seen
    # another; empty in journals of earlier versions.
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question of a node to a person, not yet answered."""

    key: str
    """The node's label and the number of the question: `ship/ask`, `ship/ask#2`."""
    node: str
    """The label of the node that asks."""
    text: str
    form: str
    """The kind of answer, in words: `yes or no`."""
    problem: str = ""
    """Why an earlier answer was refused; empty without one."""
    schema: Mapping[str, Any] | None = field(default=None, hash=False)
    """The JSON Schema of an answer in JSON; None for another form."""
    about: str = field(default="", repr=False, compare=False)
    """Digest of the inputs of the node's call."""

    @property
    def asked(self) -> Asked:
        """What its answer belongs to."""
        return Asked(self.key, self.text, self.about)

    @property
    def form_with_fields(self) -> str:
        """The form; for JSON also its fields, with their types and choices."""
        return self.form if self.schema is None else f"{self.form}: {_in_words(self.schema)}"


Asker = Callable[[Question], Awaitable[object | None] | object | None]
"""Asks a person at once; returns None without an answer. A plain one runs in a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """A call that was made again, although an earlier part of the run has its output."""

    node: str
    """Its label, as in `NodeFailure`."""
    reason: str
    """The change: `its code changed: 'helper' (nodes.py:12)`, or `its input 'question' changed`.
    Everything its function refers to is part of its code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The result of one run of a graph."""

    outputs: Mapping[str, object]
    """The outputs of all nodes that have one, in the order of definition."""
    failures: tuple[NodeFailure, ...] = ()
    """In the order of time."""
    skips: tuple[NodeSkip, ...] = ()
    questions: tuple[Question, ...] = ()
    """A person has to answer them before the run can go on."""
    reused: tuple[str, ...] = ()
    """Labels of the calls whose outputs are from an earlier part of the run, or from a cache; not
    from an earlier attempt of a node."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """The labels now of reused calls of renamed nodes → their labels in the earlier part."""
    reruns: tuple[Rerun, ...] = ()
    stopped_by: RunLimitReached | None = None
    """The limit that ended the run; None if none did."""
    cut: int = 0  # how many calls, not counting nested ones, have a loop that ended too early

    @property
    def status(self) -> RunStatus:
        """The worst of what happened: a failure, then a limit, then an open question."""
        if self.failures:
            return "failed"
        if self.stopped_by is not None:
            return "stopped"
        return "waiting" if self.questions else "finished"

    @property
    def error(self) -> NodeFailed:
        """The error to raise for the first failure."""
        first, *others = self.failures
        failed = NodeFailed(
            first.node,
            first.error,
            attempts=first.attempts,
            others=len(others),
            beside=first.beside,
        )
        failed.__cause__ = first.error
        # The graph around a nested one reads its failures here: `_Running._blocked_by_failure`.
        failed.result = self
        return failed


@dataclass(slots=True, kw_only=True)
class Log:
    """Collects the events of a run and of its nested graphs, for the `Execution`."""

    skips: list[NodeSkip] = field(default_factory=list)
    reused: dict[str, None] = field(default_factory=dict)
    """An ordered set."""
    renamed: dict[str, str] = field(default_factory=dict)
    reruns: dict[Rerun, None] = field(default_factory=dict)
    """An ordered set."""
    codes: set[str] = field(default_factory=set)
    """Digests of the functions, models and rubrics whose parts are in the journal."""
    cut: int = 0

    def drop_skips_in(self, label: str) -> None:
        """Leaves out the skips of calls that are nested in this one."""
        self.skips[:] = [skip for skip in self.skips if not skip.node.startswith(f"{label}/")]


# --- answers ------------------------------------------------------------------------------------

_MOST_FAULTS = 3  # of an answer, in a message
_FORMS: dict[object, str] = {
    bool: "yes or no",
    int: "a whole number",
    float: "a number",
    str: "a text",
}


def form_of_answer(returns: Any) -> tuple[str, dict[str, Any] | None]:  # noqa: ANN401 - any type
    """`form` and `schema` of a `Question` that asks for a type."""
    if returns in _FORMS:
        return _FORMS[returns], None
    choices = get_args(returns)
    if choices and all(isinstance(choice, str) for choice in choices):
        return events.QuestionEvent.form_of(choices), None
    schema = None
    with suppress(PydanticUserError):  # pydantic reads the type, and has no schema for it
        schema = TypeAdapter(returns).json_schema()
    return f"JSON of {described(returns)}", schema


_TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "array": "list",
}


def _in_words(schema: Mapping[str, Any], defined: Mapping[str, Any] | None = None) -> str:
    """A JSON Schema in words; `defined` has the schemas that it may refer to."""
    defined = schema.get("$defs", {}) if defined is None else defined
    if "$ref" in schema:
        name = str(schema["$ref"].rpartition("/")[2])
        # Within its own schema, a type that holds itself is only named.
        others = {key: inner for key, inner in defined.items() if key != name}
        return _in_words(defined[name], others) if name in defined else name
    if "const" in schema or "enum" in schema:
        choices = schema.get("enum") or [schema["const"]]
        return " or ".join(to_json(choice).decode() for choice in choices)
    if members := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(_in_words(member, defined) for member in members)
    if "properties" in schema:
        required = schema.get("required", ())
        fields = (
            f'"{name}": {_in_words(field, defined)}'
            + ("" if name in required else " (may be left out)")
            for name, field in schema["properties"].items()
        )
        return f"{{{', '.join(fields)}}}"
    if "items" in schema:
        return f"list of {_in_words(schema['items'], defined)}"
    kind = str(schema.get("type", "any value"))
    return _TYPES.get(kind, kind)


def parse_answer(answer: object, returns: Any) -> object:  # noqa: ANN401
    """The answer as a value of the type, from a typed text or from a value.

    Raises:
        ValueError: It is not of that type.
    """
    text_or_value = answer.strip() if isinstance(answer, str) and returns is not str else answer
    # 'yes' is true, '3' is three
    return TypedJson(TypeAdapter(returns).core_schema).read_value(text_or_value)


def answer_problem(answer: object, form: str) -> str:
    """Why an answer cannot have a form of `form_of_answer`; empty if it may have it."""
    returns = next((kind for kind, words in _FORMS.items() if words == form), None)
    if returns is not None:
        try:
            parse_answer(answer, returns)
        except ValueError:
            return not_an_answer(answer, form)
    choices = events.QuestionEvent.choices_of(form)
    # A choice may contain a comma, so this accepts some texts that are no choice.
    if choices is not None and f", {str(answer).strip()}, " not in f", {choices}, ":
        return not_an_answer(answer, form)
    return ""


def not_an_answer(answer: object, form: str, error: ValueError | None = None) -> str:
    """The message for an answer of the wrong form; `error` says what is wrong with its JSON."""
    problem = f"{answer!r} is not {form}"
    if not isinstance(error, ValidationError):
        return problem
    faults = (
        ": ".join(filter(None, [".".join(map(str, fault["loc"])), fault["msg"]]))
        for fault in error.errors()[:_MOST_FAULTS]
    )
    return f"{problem}: {'; '.join(faults)}"
