"""How a run of a graph ended: what it gave, what failed, what was left out because of that."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pydantic import TypeAdapter

from harness.errors import RunLimitReached
from harness.graph.annotations import described

RunStatus = Literal["finished", "failed", "stopped", "waiting"]
"""How a run ended. `stopped`: a limit was reached. `waiting`: a person has to answer first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """What stands in for the output of a node that was not run.

    A node that takes it must ask for it: a parameter annotated `str | Skipped` receives it. A node
    that does not ask is skipped too, and one that takes a list of items receives those that there
    are.
    """

    reason: str
    """Why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailure:
    """A call of a node whose last attempt raised."""

    node: str
    """Its name, with the item's index for a mapped node: `findings[2]`; of a nested pipeline's,
    after the node that called it: `answer/brief/findings[2]`."""
    error: BaseException
    """What it raised at last."""
    attempts: int
    """How often it was called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSkip:
    """A call of a node that was not made, or was not finished."""

    node: str
    """As in `NodeFailure`."""
    reason: str
    """Why."""
    because_of: str | None = None
    """The node whose end was the reason; None when it was a `when=` or a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a node asked a person, still to be answered."""

    key: str
    """Names it: the node's label, and which of its questions it is: `ship/ask`, `ship/ask#2`."""
    node: str
    """Who asks, as in `NodeFailure`."""
    text: str
    """What."""
    form: str
    """What kind of answer is wanted, in words: `yes or no`."""
    problem: str = ""
    """What was wrong with the answer that was given, if one was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """A call of a node that was made again, although an earlier part of the run has its output."""

    node: str
    """As in `NodeFailure`."""
    reason: str
    """What changed: `its code changed: 'helper' (nodes.py:12)`, or `its input 'question' changed`.
    What its function refers to is part of its code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What became of one run of a graph."""

    outputs: Mapping[str, object]
    """What every node gave that gave something, in the order of definition."""
    failures: tuple[NodeFailure, ...] = ()
    """What failed, in the order it did."""
    skips: tuple[NodeSkip, ...] = ()
    """What was left out."""
    questions: tuple[Question, ...] = ()
    """What has to be answered before the rest can go on."""
    reused: tuple[str, ...] = ()
    """Calls whose outputs are from an earlier part of the run, or from a cache; what an earlier
    attempt of a node gave is not among them."""
    reruns: tuple[Rerun, ...] = ()
    """Calls that were made again, and why."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Of the reused calls, those whose node had another name before, with their label then."""
    stopped_by: RunLimitReached | None = None
    """The limit that ended it; None when none did."""

    @property
    def status(self) -> RunStatus:
        """The worst of what happened."""
        if self.failures:
            return "failed"
        if self.stopped_by is not None:
            return "stopped"
        return "waiting" if self.questions else "finished"


@dataclass(slots=True, kw_only=True)
class Log:
    """What is to be said of a run when it is over; grows on the way."""

    skips: list[NodeSkip] = field(default_factory=list)
    """What was left out."""
    failed_inside: list[NodeFailure] = field(default_factory=list)
    """What failed in nested graphs, whatever became of their callers."""
    reused: dict[str, None] = field(default_factory=dict)
    """Whose outputs earlier parts of the run had, or a cache; as keys: each once."""
    reruns: dict[Rerun, None] = field(default_factory=dict)
    """What was made again, and why; as keys."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Those of the reused that had another label in the earlier parts, with that."""
    codes: set[str] = field(default_factory=set)
    """The digests of code whose parts stand in the journal."""
    left_behind: set[asyncio.Task[object]] = field(default_factory=set)
    """Calls that did not end when they were cancelled."""


_FORMS: dict[object, str] = {
    bool: "yes or no",
    int: "a whole number",
    float: "a number",
    str: "a text",
}


def form_of_answer(returns: Any) -> str:  # noqa: ANN401 - whatever a node asks for
    """What kind of answer is wanted, in words."""
    if returns in _FORMS:
        return _FORMS[returns]
    choices = get_args(returns)
    if choices and all(isinstance(one, str) for one in choices):
        return "one of " + ", ".join(map(str, choices))
    return f"JSON of {described(returns)}"


def parse_answer(given: object, returns: Any) -> object:  # noqa: ANN401
    """The answer as a value.

    Args:
        given: A text as somebody typed it, or the value itself.
        returns: Its type.

    Raises:
        ValueError: It is no such answer.
    """
    adapter: TypeAdapter[object] = TypeAdapter(returns)
    if not isinstance(given, str) or returns is str:
        return adapter.validate_python(given)
    text = given.strip()
    try:
        return adapter.validate_python(text)  # 'yes' is true, '3' is three
    except ValueError:
        return adapter.validate_json(text)


def answer_problem(given: object, form: str) -> str:
    """Why something cannot be an answer, as far as the words for its form tell; empty if it may be.

    Args:
        given: The answer.
        form: As `form_of_answer` says it.
    """
    returns = next((one for one, words in _FORMS.items() if words == form), None)
    choices = form.removeprefix("one of ")
    try:
        if returns is not None:
            parse_answer(given, returns)
        # A choice may have a comma in it: nothing that is one is refused.
        elif choices != form and f", {str(given).strip()}, " not in f", {choices}, ":
            return not_an_answer(given, form)
    except ValueError:
        return not_an_answer(given, form)
    return ""


def not_an_answer(given: object, form: str) -> str:
    """What to say to somebody who answered in another form."""
    return f"{given!r} is not {form}"
