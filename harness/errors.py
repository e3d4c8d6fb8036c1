"""Every error that `harness` raises on purpose.

An error carries its facts as attributes, which its constructor takes by their names. Its message
says what happened, to what, and what would fix it. Its `code`, such as
`rubric.weight-not-positive`, is stable; the wording is not. A draft that was not accepted is a
result, not an error.
"""

from __future__ import annotations

import copyreg
import difflib
import inspect
import os
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, dataclass_transform


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(field,))
class _FactsByName(Exception):
    """For type checkers: the constructors of errors take what their classes name."""


class HarnessError(_FactsByName):
    """The root: catch this to catch everything that `harness` raises on purpose."""

    statement: str = field(kw_only=False)
    """The message without the place before it: an endpoint, or a file and its line."""
    code: str = "harness.failed"
    """An area and a name, such as `call.timeout`, which stay the same when the message is reworded.
    Each class has a default."""
    told_chars: int = 0
    """How many characters of the reply a stream had given when its call failed."""

    def __init__(self, statement: str, *, code: str | None = None, **facts: object) -> None:
        self.code = code or type(self).code
        named = [name for kind in type(self).mro() for name in inspect.get_annotations(kind)]
        for name, fact in facts.items():
            if name not in named:
                raise TypeError(f"{type(self).__name__} has no '{name}'")
            setattr(self, name, fact)
        # Checked here, since an AttributeError where it is read would be far from the mistake.
        for name in named:
            if not hasattr(self, name):
                raise TypeError(f"{type(self).__name__} needs '{name}'")
        self.statement = self._worded(statement)
        super().__init__(self._place() + self.statement)

    def _place(self) -> str:
        path, line = getattr(self, "path", None), getattr(self, "line", None)
        if path is None:
            return ""
        return f"{path}: " if line is None else f"{path}:{line}: "

    def _worded(self, statement: str) -> str:
        return statement

    def __reduce__(self) -> tuple[Any, ...]:
        # Other exceptions are unpickled by calling the class with `args`; these classes take more.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A warning that a program could react to."""

    code: str
    """Stable, like an error's."""
    message: str

    def __str__(self) -> str:
        return self.message


# --- what a person wrote ---------------------------------------------------------------------


class Mistake(ValueError):
    """Raised by a pydantic validator; the reader of the file makes it an `InvalidInput`."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class InvalidInput(HarnessError):
    """A file, a name or a value that a person gave is not usable."""

    code = "input.invalid"
    path: Path | None = None
    """The file that contains it, if there is one."""
    line: int | None = None
    """Its line, from 1, if known."""


class ConfigurationInvalid(InvalidInput):
    """`harness.toml`, an environment variable or a command-line value does not parse."""

    code = "config.invalid"


class NotTrusted(ConfigurationInvalid):
    """The settings of a folder would send a variable to a host that the user has not allowed."""

    code = "trust.key-not-allowed"
    entry: str
    """The line to add to the user's own file to allow it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake in a file."""

    path: Path | None
    line: int | None
    """From 1, if known."""
    message: str
    code: str

    def __str__(self) -> str:
        return str(InvalidInput(self.message, path=self.path, line=self.line))


class RubricInvalid(InvalidInput):
    """A rubric file is missing or breaks a rule of its format.

    Attributes:
        problems: All mistakes, in the order of the lines; the message is that of the first.
    """

    code = "rubric.invalid"
    further: Sequence[Problem] = ()
    """The mistakes after the first."""

    def _worded(self, statement: str) -> str:
        first = Problem(path=self.path, line=self.line, message=statement, code=self.code)
        self.problems = (first, *self.further)
        more = f" (and {len(self.further)} more, which 'harness rubric check' lists)"
        return statement + (more if self.further else "")


class LabelsInvalid(InvalidInput):
    """A file of labeled drafts has mistakes."""

    code = "labels.invalid"
    problems: Sequence[InvalidInput]
    """All of them; the message has the first few of each kind."""


class PipelineInvalid(InvalidInput):
    """A pipeline has a cycle, an unknown name, or inputs that do not match."""

    code = "pipeline.invalid"


class ScriptMismatch(InvalidInput):
    """In a test, models were not asked for the replies that a script or a recording has."""

    code = "script.mismatch"


class SameModel(InvalidInput):
    """Two roles that must be different models resolve to the same one."""

    code = "roles.same-model"


class SameFamily(InvalidInput):
    """Two roles that must not be relatives resolve to models of one family."""

    code = "roles.same-family"


# --- one call to a model ---------------------------------------------------------------------


class InferenceError(HarnessError):
    """A call to a model did not give a completion."""

    code = "call.failed"
    endpoint: str = ""
    """Its tag; empty until `errors_of` has named it."""

    def _place(self) -> str:
        return f"{self.endpoint}: " if self.endpoint else ""


@contextmanager
def errors_of(endpoint: str) -> Iterator[None]:
    """Makes errors of calls in the block name their endpoint, unless they name one already."""
    try:
        yield
    except InferenceError as error:
        if not error.endpoint:
            error.endpoint = endpoint
            # The message of an exception is its arguments.
            error.args = (f"{endpoint}: {error}",)
        raise


class EndpointUnreachable(InferenceError):
    """Nothing answered at the address; or, by its code, nothing that can be trusted."""

    code = "call.unreachable"


class AuthenticationFailed(InferenceError):
    """The server refused the credentials, or there were none."""

    code = "call.not-authorized"


class ModelNotFound(InferenceError):
    """The server is there, but does not serve this model."""

    code = "call.model-not-found"


LASTING = (EndpointUnreachable, AuthenticationFailed, ModelNotFound)
"""Errors that the next call to the endpoint would meet too."""


class ContextOverflow(InferenceError):
    """The prompt, with the room asked for the reply, is longer than the model's context."""

    code = "call.context-overflow"
    prompt_tokens: int | None = None
    context_tokens: int | None = None


class Overloaded(InferenceError):
    """The server is loading or full; the same call may succeed later."""

    code = "call.overloaded"
    retry_after_s: float | None = None
    """How long the server asked callers to wait, if it did; a day for a quota by the day."""


class RateLimited(Overloaded):
    """The account, not the server, is at its limit (HTTP 429)."""

    code = "call.rate-limited"


class QueueFull(InferenceError):
    """The endpoint's queue is full: as many calls wait as its `max_queue` allows."""

    code = "call.queue-full"


TimeLimit = Literal[
    "connect_timeout_s", "first_token_timeout_s", "between_tokens_timeout_s", "timeout_s"
]
"""The limits of a call, as an endpoint's settings name them."""


class CallTimeout(InferenceError):
    """The call took longer than one of its limits."""

    code = "call.timeout"
    limit: TimeLimit = "timeout_s"


class StreamCut(InferenceError):
    """The stream broke off; what had arrived is not a reply."""

    code = "call.stream-cut"
    has_begun: bool = True
    """Whether anything had arrived."""


class ReplyTooLarge(InferenceError):
    """A reply is longer than the endpoint's `max_reply_bytes`; what had arrived is not a reply."""

    code = "call.reply-too-large"
    max_reply_bytes: int


class ReplyInvalid(InferenceError):
    """A reply arrived whole but is not of the requested form (bad JSON, wrong shape)."""

    code = "call.reply-invalid"
    text: str
    """The reply as it came."""
    problem: str = ""
    """The mistake in it, for the model to fix; if empty, the message says it."""
    from_cache: bool = False
    """Whether the reply came from a cache, and no model was called."""


class ReplyCut(InferenceError):
    """A reply ended too early, at its token limit or the end of the context."""

    code = "call.reply-cut"
    text: str
    """The part that arrived."""
    finish_reason: str
    """Why it ended, as in `Completion.finish_reason`."""
    usage: Any = None
    """Its tokens, a `Usage`; None if unknown."""
    from_cache: bool = False
    """Whether the reply came from a cache, and no model was called."""


class ReplyFiltered(ReplyCut):
    """The provider's filter ended the reply, or withheld it."""

    code = "call.reply-filtered"


class ReplyEmpty(ReplyCut):
    """The reply has no visible text, and calls no tool that was offered."""

    code = "reply.empty"


class NotOffered(InferenceError):
    """The server or its model cannot do this kind of call, such as embedding."""

    code = "call.not-offered"


class ServerError(InferenceError):
    """The server failed, or refused the request for a reason of its own."""

    code = "call.server-error"
    status: int | None = None
    """The HTTP status, if there was one."""


class LoadFailed(InferenceError):
    """A model could not be loaded or unloaded."""

    code = "model.load-failed"
    out_of_memory: bool = False
    """Whether memory was short; loading may succeed after other models are unloaded."""


# --- the machine -----------------------------------------------------------------------------


class ModelFileInvalid(HarnessError):
    """A model file is missing, or its header cannot be read."""

    code = "model.file-invalid"
    path: Path
    offset: int | None = None
    """Byte at which reading stopped; None if the file could not be opened."""

    def _place(self) -> str:
        return ""  # what shows the statement alone does not name the file

    def _worded(self, statement: str) -> str:
        place = "" if self.offset is None else f" at byte {self.offset}:"
        return f"{self.path}:{place} {statement}"


class DoesNotFit(HarnessError):
    """A model needs more memory than the whole budget has."""

    code = "budget.does-not-fit"
    model: str
    need_bytes: int
    capacity_bytes: int
    """The whole budget."""


# --- a run -----------------------------------------------------------------------------------


class EvaluationFailed(HarnessError):
    """No valid verdict could be reached; this is never a score of zero."""

    code = "evaluation.failed"


class EvaluatorAbstained(EvaluationFailed):
    """The evaluator answered, but gave no score."""

    code = "evaluation.abstained"
    abstentions: int = 1
    """How many judgments were asked for."""


class LimitReached(HarnessError):
    """A call was not sent, or not waited for, because of a loop's limits."""

    code = "loop.limit-reached"
    limit: Literal["tokens", "cost", "time", "calls", "journal", "outage", "failures"]
    """The kind of limit. `journal`: the run's journal can no longer be written. `outage`: an
    endpoint was down for too long. `failures`: too many rows of a batch failed."""


class RunLimitReached(LimitReached):
    """A limit of the whole run was reached, and the run ends; finished work is kept."""

    code = "run.limit-reached"


class NodeFailed(HarnessError):
    """A node of a pipeline raised; the cause is chained.

    Attributes:
        node: Its name, with the item's index for a mapped node: `findings[2]`.
        result: The `RunResult` of a run, or the `Execution` nested in a node, that failed: with
            everything that was done, and every failure.
    """

    code = "node.failed"

    result: Any = None

    def __init__(
        self,
        node: str,
        cause: BaseException,
        *,
        attempts: int = 1,
        others: int = 0,
        beside: Sequence[str] = (),
    ) -> None:
        message = message_of(cause)
        if not isinstance(cause, HarnessError):
            # With the class, since the message of a KeyError('x') is only 'x'.
            message = f"{type(cause).__name__}: {message}{place_of(cause)}"
        message = "; ".join([message, *beside])
        nodes = "node" if others == 1 else "nodes"
        ending = f" (and {others} more {nodes} failed)" if others else ""
        tried = f" (called {attempts} times)" if attempts > 1 else ""
        super().__init__(f"node '{node}' failed: {message}{tried}{ending}")
        self.node = node


class NodeTimedOut(HarnessError):
    """A call of a node took longer than its `Timeout` allows."""

    code = "node.timeout"
    limit: Literal["total_s", "idle_s"]


class WorkerLost(HarnessError):
    """The worker that a call of a node ran on was lost: its process, machine, or network."""

    code = "node.worker-lost"
    workers: int = 1
    """How many were lost, if the engine itself had made the call again."""


class JournalInvalid(HarnessError):
    """A run's journal cannot be read."""

    code = "journal.invalid"
    path: Path
    line: int | None = None
    """The first line that is not a record, counted from 1; None if it has no lines."""


class ExportFailed(HarnessError):
    """A collector rejected a run's spans, or some of them."""

    code = "export.failed"
    address: str
    """Where they were sent, without credentials."""
    status: int | None = None
    """The HTTP status of its reply, if there was one."""
    rejected_spans: int = 0
    """How many it rejected, by its own count."""


class McpServerFailed(HarnessError):
    """An MCP server did not start, has ended, or does not keep to the protocol."""

    code = "mcp.failed"
    server: str
    """Its command or its address."""


class MemoryStoreFailed(HarnessError):
    """The memory store could not be opened, read or written."""

    code = "memory.failed"
    path: Path | str
    """The store's directory, or its url as text."""


def place_of(error: BaseException) -> str:
    """The user's file and line where an exception was raised, as the end of a message."""
    # Imported only after a failure.
    import sysconfig  # noqa: PLC0415

    package = str(Path(__file__).parent)
    folders = (package, sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
    libraries = ("<frozen ", *(f"{folder}{os.sep}" for folder in folders))
    frames = traceback.extract_tb(error.__traceback__)
    # The innermost frame in a user's file, since the error itself may be raised in a library.
    user_frames = [frame for frame in frames if not frame.filename.startswith(libraries)]
    if not user_frames:
        return ""
    return f" ({Path(user_frames[-1].filename).name}:{user_frames[-1].lineno})"


_LONGEST_MESSAGE = 4_000  # characters of another library's error, which may quote a whole file


def message_of(error: BaseException) -> str:
    """The message of an error; for a group, with the messages of its errors."""
    try:
        if not isinstance(error, BaseExceptionGroup):
            text = str(error)
            if isinstance(error, HarnessError) or len(text) <= _LONGEST_MESSAGE:
                return text
            # Whole words only: half a secret would not be recognized, and so not be masked.
            start = re.sub(r"\S*\Z", "", text[:_LONGEST_MESSAGE])
            return f"{start}… ({len(text) - len(start):,} more characters)"
        # A group's own message says only how many errors there are.
        inner = [
            f"{type(e).__name__}: {message_of(e)}".removesuffix(": ") for e in error.exceptions
        ]
        return f"{error.message}: {'; '.join(inner)}"
    except Exception:  # noqa: BLE001 - `__str__` of some errors raises another one
        return "(its message cannot be read)"


def who_left(error: SystemExit) -> str:
    """A message about code in a run that called `sys.exit`: the place, and what to do instead."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return (
        f"{os.path.relpath(last.filename)}:{last.lineno}: {last.name} called "
        f"sys.exit({error.code!r}); let a node that cannot go on raise an error instead"
    )


def nearest_names(name: str, names: Iterable[str]) -> list[str]:
    """The known names of which `name` may be a misspelling: three at most, the nearest first."""
    candidates = sorted(names)
    # A shared ending such as `.py` is left out, since it makes no names similar. What looks like
    # one in `gpt-4.1` is none, and no other name has it.
    ending = Path(name).suffix
    if not any(candidate.endswith(ending) for candidate in candidates):
        ending = ""
    by_stem = {candidate.removesuffix(ending): candidate for candidate in candidates}
    near = difflib.get_close_matches(name.removesuffix(ending), by_stem, n=3, cutoff=0.6)
    return [by_stem[stem] for stem in near]


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known names, or all of them."""
    names = sorted({*candidates})
    near = nearest_names(name, names)
    if near:
        return "did you mean " + " or ".join(f"'{known}'" for known in near) + "?"
    return "known: " + ", ".join(names) if names else "there are none"


def fault_of(problem: Mapping[str, Any]) -> str:
    """The message of one of pydantic's `errors()`; of a validator's error, without a prefix."""
    return str(problem.get("ctx", {}).get("error", problem["msg"]))
