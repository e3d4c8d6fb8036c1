"""Every error that `harness` raises on purpose.

    HarnessError
    ├── InvalidInput            what a person wrote: files, names, values
    │   ├── ConfigurationInvalid
    │   │   └── NotTrusted      a folder's settings send a key where the user has not allowed it
    │   ├── RubricInvalid
    │   ├── LabelsInvalid
    │   ├── PipelineInvalid
    │   ├── ScriptMismatch      a test's scripted or recorded replies are not those asked for
    │   ├── SameModel           producer and evaluator are one model
    │   └── SameFamily          they are of one family, and the settings forbid that
    ├── InferenceError          one call to a model
    │   ├── EndpointUnreachable
    │   ├── AuthenticationFailed
    │   ├── ModelNotFound
    │   ├── ContextOverflow
    │   ├── Overloaded
    │   │   └── RateLimited
    │   ├── QueueFull           as many calls wait here as `max_queue` allows
    │   ├── CallTimeout
    │   ├── StreamCut
    │   ├── ReplyTooLarge
    │   ├── ReplyInvalid
    │   ├── ReplyCut            it ended too early
    │   │   ├── ReplyFiltered   the provider's filter ended it
    │   │   └── ReplyEmpty      it has no text
    │   ├── NotOffered          the server has no such kind of call
    │   ├── ServerError
    │   └── LoadFailed          a model could not be loaded or unloaded
    ├── ModelFileInvalid        missing, cut, or not a model
    ├── DoesNotFit              a model larger than the budget
    ├── EvaluationFailed        no verdict
    │   └── EvaluatorAbstained  the evaluator answered, but gave no score
    ├── LimitReached            a loop's limit on tokens, cost or time
    │   └── RunLimitReached     a limit of the whole run
    ├── NodeFailed              a pipeline's node raised
    ├── NodeTimedOut            a pipeline's node took too long
    ├── WorkerLost              the worker of a pipeline's node has died, or its machine
    ├── JournalInvalid          a run's journal cannot be read
    ├── ExportFailed            a collector did not accept a run's spans
    ├── McpServerFailed         a server of tools did not start, or has ended
    └── MemoryStoreFailed

An error carries its facts as attributes. Its message says what happened, to what, and what would
fix it. Its `code`, such as `rubric.weight-not-positive`, is stable; the wording is not. A draft
that was not accepted is a result, not an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


class HarnessError(Exception):
    """The root: catch this to catch everything that `harness` raises on purpose.

    Attributes:
        statement: The message without the place before it: an endpoint, or a file and its line.
        code: An area and a name, such as `call.timeout`, which stay the same when the message is
            reworded. Each class has a default.
        told_chars: How many characters of the reply a stream had given when its call failed.
    """

    code: str = "harness.failed"
    told_chars: int = 0

    def __init__(self, message: str, *, code: str | None = None, place: str = "") -> None:
        super().__init__(place + message)
        self.statement = message
        self.code = code or type(self).code

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by calling the class again, as exceptions do: it takes more than the message.
        return _remade, (type(self), self.args, self.__dict__)


def _remade(kind: type[HarnessError], args: tuple[Any, ...], held: dict[str, Any]) -> HarnessError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(held)
    return error


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
    """A file, a name or a value that a person gave is not usable.

    Attributes:
        path: The file that contains it, if there is one.
        line: Its line, from 1, if known.
    """

    code = "input.invalid"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        path: Path | None = None,
        line: int | None = None,
    ) -> None:
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(message, code=code, place=where)
        self.path = path
        self.line = line


class ConfigurationInvalid(InvalidInput):
    """`harness.toml`, an environment variable or a command-line value does not parse."""

    code = "config.invalid"


class NotTrusted(ConfigurationInvalid):
    """The settings of a folder would send a variable to a host that the user has not allowed.

    Attributes:
        entry: The line to add to the user's own file to allow it.
    """

    code = "trust.key-not-allowed"

    def __init__(self, message: str, *, entry: str) -> None:
        super().__init__(message)
        self.entry = entry


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

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        path: Path | None = None,
        line: int | None = None,
        further: Sequence[Problem] = (),
    ) -> None:
        count = f" (and {len(further)} more, which 'harness rubric check' lists)" if further else ""
        super().__init__(message + count, code=code, path=path, line=line)
        first = Problem(path=path, line=line, message=message, code=self.code)
        self.problems = (first, *further)


class LabelsInvalid(InvalidInput):
    """A file of labeled drafts has mistakes.

    Attributes:
        problems: All of them; the message has the first few of each kind.
    """

    code = "labels.invalid"

    def __init__(self, message: str, *, problems: Sequence[InvalidInput]) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


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
    """A call to a model did not give a completion.

    Attributes:
        endpoint: Its tag; empty until `errors_of` has named it.
    """

    code = "call.failed"

    def __init__(self, message: str, *, endpoint: str = "", code: str | None = None) -> None:
        super().__init__(message, code=code, place=f"{endpoint}: " if endpoint else "")
        self.endpoint = endpoint


@contextmanager
def errors_of(endpoint: str) -> Iterator[None]:
    """Has the errors of calls in the block name their endpoint, unless they do."""
    try:
        yield
    except InferenceError as error:
        if not error.endpoint:
            # `str()` of an exception is made of its arguments.
            error.endpoint, error.args = endpoint, (f"{endpoint}: {error}",)
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
    """The prompt, with the room asked for the reply, is longer than the model's context.

    Attributes:
        prompt_tokens: Length of the prompt, if known.
        context_tokens: Length of the context, if known.
    """

    code = "call.context-overflow"

    def __init__(
        self,
        message: str,
        *,
        endpoint: str = "",
        prompt_tokens: int | None = None,
        context_tokens: int | None = None,
    ) -> None:
        super().__init__(message, endpoint=endpoint)
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class Overloaded(InferenceError):
    """The server is loading or full; the same call may succeed later.

    Attributes:
        retry_after_s: How long the server asked callers to wait, if it did.
    """

    code = "call.overloaded"

    def __init__(
        self, message: str, *, endpoint: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, endpoint=endpoint)
        self.retry_after_s = retry_after_s


class RateLimited(Overloaded):
    """The account, not the server, is at its limit (HTTP 429)."""

    code = "call.rate-limited"


class QueueFull(InferenceError):
    """As many calls wait for a place at the endpoint as its `max_queue` allows."""

    code = "call.queue-full"


TimeLimit = Literal[
    "connect_timeout_s", "first_token_timeout_s", "between_tokens_timeout_s", "timeout_s"
]
"""The limits of a call, as an endpoint's settings name them."""


class CallTimeout(InferenceError):
    """The call took longer than one of its limits.

    Attributes:
        limit: Which.
    """

    code = "call.timeout"

    def __init__(self, message: str, *, endpoint: str = "", limit: TimeLimit = "timeout_s") -> None:
        super().__init__(message, endpoint=endpoint)
        self.limit = limit


class StreamCut(InferenceError):
    """The stream broke off; what had arrived is not a reply.

    Attributes:
        has_begun: Whether anything had arrived.
    """

    code = "call.stream-cut"

    def __init__(
        self, message: str, *, endpoint: str = "", code: str | None = None, has_begun: bool = True
    ) -> None:
        super().__init__(message, endpoint=endpoint, code=code)
        self.has_begun = has_begun


class ReplyTooLarge(InferenceError):
    """A reply is longer than the endpoint's `max_reply_bytes`; what had arrived is not a reply.

    Attributes:
        max_reply_bytes: The limit.
    """

    code = "call.reply-too-large"

    def __init__(self, message: str, *, endpoint: str = "", max_reply_bytes: int) -> None:
        super().__init__(message, endpoint=endpoint)
        self.max_reply_bytes = max_reply_bytes


class ReplyInvalid(InferenceError):
    """A reply arrived whole but is not what was asked for (bad JSON, wrong shape).

    Attributes:
        text: The reply as it came.
        problem: What is wrong with it, for the model to fix.
        from_cache: Whether it was stored, so that no model was asked.
    """

    code = "call.reply-invalid"

    def __init__(
        self,
        message: str,
        *,
        endpoint: str = "",
        text: str,
        problem: str = "",
        from_cache: bool = False,
    ) -> None:
        super().__init__(message, endpoint=endpoint)
        self.text = text
        self.problem = problem or message
        self.from_cache = from_cache


class ReplyCut(InferenceError):
    """A reply ended too early, at its token limit or the end of the context.

    Attributes:
        text: The part that arrived.
        finish_reason: Why it ended, as in `Completion.finish_reason`.
        usage: Its tokens, a `Usage`; None if unknown.
        from_cache: Whether it was stored, so that no model was asked.
    """

    code = "call.reply-cut"

    def __init__(
        self,
        message: str,
        *,
        endpoint: str = "",
        text: str,
        finish_reason: str,
        usage: Any = None,  # noqa: ANN401 - its class stands in a layer above
        from_cache: bool = False,
    ) -> None:
        super().__init__(message, endpoint=endpoint)
        self.text = text
        self.finish_reason = finish_reason
        self.usage = usage
        self.from_cache = from_cache


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
    """The server failed, or refused the request for a reason of its own.

    Attributes:
        status: The HTTP status, if there was one.
    """

    code = "call.server-error"

    def __init__(self, message: str, *, endpoint: str = "", status: int | None = None) -> None:
        super().__init__(message, endpoint=endpoint)
        self.status = status


class LoadFailed(InferenceError):
    """A model could not be loaded or unloaded.

    Attributes:
        out_of_memory: Whether there was no room; loading may succeed when others have left.
    """

    code = "model.load-failed"

    def __init__(
        self,
        message: str,
        *,
        endpoint: str = "",
        out_of_memory: bool = False,
        code: str | None = None,
    ) -> None:
        super().__init__(message, endpoint=endpoint, code=code)
        self.out_of_memory = out_of_memory


# --- the machine -----------------------------------------------------------------------------


class ModelFileInvalid(HarnessError):
    """A model file is missing, or its header cannot be read.

    Attributes:
        path: The file.
        offset: Byte at which reading stopped; None if the file could not be opened.
    """

    code = "model.file-invalid"

    def __init__(self, message: str, *, path: Path, offset: int | None = None) -> None:
        where = f"{path}: " if offset is None else f"{path}: at byte {offset}: "
        super().__init__(where + message)
        self.path = path
        self.offset = offset


class DoesNotFit(HarnessError):
    """A model needs more memory than the whole budget has.

    Attributes:
        model: Its tag.
        need_bytes: What it needs.
        capacity_bytes: The whole budget.
    """

    code = "budget.does-not-fit"

    def __init__(self, message: str, *, model: str, need_bytes: int, capacity_bytes: int) -> None:
        super().__init__(message)
        self.model = model
        self.need_bytes = need_bytes
        self.capacity_bytes = capacity_bytes


# --- a run -----------------------------------------------------------------------------------


class EvaluationFailed(HarnessError):
    """No valid verdict could be reached; this is never a score of zero."""

    code = "evaluation.failed"


class EvaluatorAbstained(EvaluationFailed):
    """The evaluator answered, but gave no score.

    Attributes:
        abstentions: How many judgments were asked for.
    """

    code = "evaluation.abstained"

    def __init__(self, message: str, *, abstentions: int = 1) -> None:
        super().__init__(message)
        self.abstentions = abstentions


class LimitReached(HarnessError):
    """A call was not sent, or not waited for, because of a loop's limits.

    Attributes:
        limit: Which; `journal` if the run's journal can no longer be written, `outage` if an
            endpoint was down for too long, `failures` if too many rows of a batch failed.
    """

    code = "loop.limit-reached"

    def __init__(
        self,
        message: str,
        *,
        limit: Literal["tokens", "cost", "time", "calls", "journal", "outage", "failures"],
        code: str | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.limit = limit


class RunLimitReached(LimitReached):
    """The same for the limits of the whole run, which ends; finished work is kept."""

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
        self, node: str, cause: BaseException, *, attempts: int = 1, others: int = 0
    ) -> None:
        # With the class, except for ours: the message of a KeyError('x') would be only 'x'.
        message = message_of(cause)
        if not isinstance(cause, HarnessError):
            message = f"{type(cause).__name__}: {message}{_place_of(cause)}"
        nodes = "node" if others == 1 else "nodes"
        ending = f" (and {others} more {nodes} failed)" if others else ""
        tried = f" (called {attempts} times)" if attempts > 1 else ""
        super().__init__(f"node '{node}' failed: {message}{tried}{ending}")
        self.node = node


class NodeTimedOut(HarnessError):
    """A call of a node took longer than its `Timeout` allows.

    Attributes:
        limit: Which.
    """

    code = "node.timeout"

    def __init__(self, message: str, *, limit: Literal["total_s", "idle_s"]) -> None:
        super().__init__(message)
        self.limit = limit


class WorkerLost(HarnessError):
    """The worker that a call of a node ran on has died, its machine, or the way there."""

    code = "node.worker-lost"


class JournalInvalid(HarnessError):
    """A run's journal cannot be read.

    Attributes:
        path: The journal.
        line: The first line that is not a record, counted from 1; None if it has no lines.
    """

    code = "journal.invalid"

    def __init__(
        self, message: str, *, path: Path, line: int | None = None, code: str | None = None
    ) -> None:
        super().__init__(f"{path}:{'' if line is None else f'{line}:'} {message}", code=code)
        self.path = path
        self.line = line


class ExportFailed(HarnessError):
    """A collector rejected a run's spans, or some of them.

    Attributes:
        address: Where they were sent, without credentials.
        status: The HTTP status of its reply, if there was one.
        rejected_spans: How many it rejected, by its own count.
    """

    code = "export.failed"

    def __init__(
        self, message: str, *, address: str, status: int | None = None, rejected_spans: int = 0
    ) -> None:
        super().__init__(message)
        self.address = address
        self.status = status
        self.rejected_spans = rejected_spans


class McpServerFailed(HarnessError):
    """An MCP server did not start, has ended, or does not keep to the protocol.

    Attributes:
        server: Its command or its address.
    """

    code = "mcp.failed"

    def __init__(self, message: str, *, server: str) -> None:
        super().__init__(message)
        self.server = server


class MemoryStoreFailed(HarnessError):
    """The memory store could not be opened, read or written.

    Attributes:
        path: The store's directory, or its url as text.
    """

    code = "memory.failed"

    def __init__(self, message: str, *, path: Path | str, code: str | None = None) -> None:
        super().__init__(f"{path}: {message}", code=code)
        self.path = path


def _place_of(error: BaseException) -> str:
    """Where in the user's own files an exception was raised, as the end of a message."""
    # Imported only after a failure.
    import sysconfig  # noqa: PLC0415
    import traceback  # noqa: PLC0415

    ours = (str(Path(__file__).parent), *(sysconfig.get_path(n) for n in ("stdlib", "purelib")))
    frames = traceback.extract_tb(error.__traceback__)
    # The innermost frame of one's own says where; the error itself may lie deep in a library.
    frames_there = [frame for frame in frames if not frame.filename.startswith(ours)]
    return (
        f" ({Path(frames_there[-1].filename).name}:{frames_there[-1].lineno})"
        if frames_there
        else ""
    )


def message_of(error: BaseException) -> str:
    """The message of an error; some raise another in `__str__`."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - it is not the error to report
        return "(its message cannot be read)"


def nearest_names(name: str, names: Iterable[str]) -> list[str]:
    """The known names that an unknown one may be a slip of; the nearest first, three at most."""
    return difflib.get_close_matches(name, sorted(names), n=3, cutoff=0.6)


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known names, or all of them."""
    names = sorted(candidates)
    if near := nearest_names(name, names):
        return "did you mean " + " or ".join(f"'{n}'" for n in near) + "?"
    return "known: " + ", ".join(names) if names else "there are none"


def fault_of(problem: Mapping[str, Any]) -> str:
    """What one of pydantic's `errors()` says, in a validator's own words where it was one."""
    return str(problem.get("ctx", {}).get("error", problem["msg"]))
