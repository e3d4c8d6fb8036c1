"""Tests pipelines without models: scripted replies and scores take their place."""

from __future__ import annotations

import atexit
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from textwrap import shorten
from typing import Any

import orjson
from pydantic_core import to_jsonable_python

from harness.errors import ScriptMismatch
from harness.graph import Asker, Question
from harness.inference import Backend, ChatRequest, ScriptedBackend, ScriptedReply, ToolCall
from harness.inference.call_spans import conversation_text
from harness.recording import Recording
from harness.rubric.prompt import FENCED
from harness.session import Pipeline, RunResult, Settings, refuse_running_loop, run_to_its_end
from harness.session.roles import EVALUATOR, PRODUCER
from harness.session.settings import TraceSettings
from harness.trace.tracer import node_under_way

__all__ = [
    "Judge",
    "Recording",
    "Script",
    "ScriptMismatch",
    "ScriptedReply",
    "ToolCall",
    "run_pipeline",
    "run_pipeline_async",
]

Scores = float | Mapping[str, float]
"""One score for all dimensions of a rubric, or a score for each dimension."""

_MOST_QUESTIONS = 1000  # of one call of a node, to which `answers` has the same answer each time
_SHOWN_CALLS = 20
_SHOWN_CHARS = 80


def run_pipeline(
    pipeline: Pipeline,
    script: Script | Recording,
    inputs: Mapping[str, object] | None = None,
    /,
    *,
    settings: Settings | None = None,
    answers: Mapping[str, object] | None = None,
    asker: Asker | None = None,
    **named: object,
) -> RunResult:
    """Runs a pipeline on a script: `run_pipeline(brief, Script({"producer": ["A draft."]}))`.

    Reads no `harness.toml` and reaches no network. The run's files go to a temporary folder that
    lasts as long as the process.

    Args:
        pipeline: What to run.
        script: What the models reply, for one run.
        inputs: By name; this way an input can be called `settings`.
        settings: In place of the defaults; runs then go to their `traces`.
        answers: What a person says to each question: by its key, its text, or the node that asks,
            also inside an agent. Without an answer, the run ends as waiting.
        asker: Answers what `answers` do not.
        named: Inputs.

    Raises:
        ScriptMismatch: A call has no reply, or one of a list, or an answer, was not asked for.
        NodeFailed: A node raised.
        InvalidInput: As `Pipeline.run`.
    """
    refuse_running_loop("await run_pipeline_async(…)")
    return run_to_its_end(
        run_pipeline_async(
            pipeline, script, inputs, settings=settings, answers=answers, asker=asker, **named
        )
    )


async def run_pipeline_async(
    pipeline: Pipeline,
    script: Script | Recording,
    inputs: Mapping[str, object] | None = None,
    /,
    *,
    settings: Settings | None = None,
    answers: Mapping[str, object] | None = None,
    asker: Asker | None = None,
    **named: object,
) -> RunResult:
    """As `run_pipeline`, where an event loop is running."""
    if settings is None:
        # Without timelines, and without the records that only a killed run would need.
        trace = TraceSettings(timelines=(), durability="exit", sample_ms=0)
        settings = Settings(traces=Path(mkdtemp(dir=_folder())), trace=trace)
    person = _Person(answers or {}, asker)
    try:
        async with script.opened() as (roles, backends):
            result = await pipeline.run_async(
                {**(inputs or {}), **named},
                settings=settings.model_copy(update={"roles": {**settings.roles, **roles}}),
                backends=backends,
                asker=person,
            )
            person.check()
            script.check()
    except Exception as error:
        # A node may have caught the mismatch, so that the run failed by a consequence of it.
        if script.mistake not in (None, error):
            raise script.mistake from error
        raise
    return result


class _Person:
    """Answers a run's questions by name; the asker answers the others."""

    def __init__(self, answers: Mapping[str, object], asker: Asker | None) -> None:
        self._answers = answers
        self._asker = asker
        self._questions: list[Question] = []
        self._counts = Counter[str]()  # of the questions, by node
        self._unused = set(answers)
        self._mistake: ScriptMismatch | None = None

    def __call__(self, question: Question) -> object:
        """Answers a question; None if there is no answer."""
        self._questions.append(question)
        self._counts[question.node] += 1
        outermost_node = re.split(r"[/\[]", question.node)[0]  # `answer` of `answer[3]/agent`
        names = (question.key, question.text, question.node, outermost_node)
        name = next((name for name in names if name in self._answers), None)
        if name is None:
            return self._asker(question) if self._asker else None
        self._unused.discard(name)
        fault = question.problem
        if self._counts[question.node] > _MOST_QUESTIONS:
            fault = f"the node has asked {_MOST_QUESTIONS} times; give an asker= in its place"
        if fault:
            # Not raised here, since an agent would pass the error to its model.
            self._mistake = self._mistake or ScriptMismatch(
                f"the answer to '{question.key}' ({_short(question.text)}) cannot be used: {fault}",
                code="script.answer-invalid",
            )
            return None
        return self._answers[name]

    def check(self) -> None:
        """Raises a `ScriptMismatch` if an answer cannot be used, or no question asked for it."""
        if self._mistake is not None:
            raise self._mistake
        if self._unused:
            unused = ", ".join(map(repr, sorted(self._unused)))
            asked = "; ".join(f"{q.key}: {_short(q.text)}" for q in self._questions) or "none"
            raise ScriptMismatch(
                f"no question was asked for the answers {unused}; asked were: {asked}",
                code="script.unused-answers",
            )


@cache
def _folder() -> str:
    """A temporary folder that lasts as long as the process."""
    folder = mkdtemp(prefix="harness-testing-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class Script:
    """The replies of models in a test, by role or by node.

        Script({"planner": [["tea", "milk"]], "findings[1]": ["Milk."], "producer": "A note."})

    A call is answered by the entry for its node's call (`findings[1]`), its node (`findings`), its
    role, or else the producer; an evaluator's by `evaluator` alone. An entry is one of these:

    - a list: each call of a node has its replies in order, from the first;
    - a mapping from texts to entries: the first text that the prompt contains decides;
    - a function of the request, a `Judge`, or one reply: for every call.

    A reply is a text, a `ScriptedReply`, an error to raise, or a value of the type that the call
    `returns`, which is sent as the JSON that a model would write.

    Args:
        replies: The entries by role or node. Every reply of a list must be used.

    Attributes:
        backends: The backends by tag, for `Pipeline.run(backends=…)`.
        mistake: The first call that had no reply; None if there was none.
    """

    def __init__(self, replies: Mapping[str, object]) -> None:
        self._entries = dict(replies)
        # Keys of a reply: its entry's name, the texts that the prompt contained, its number in a
        # list. Of each call, by its label, and list: the number of its next reply.
        self._next_numbers: Counter[tuple[str, ...]] = Counter()
        self._used: set[tuple[str, ...]] = set()  # the keys of replies that were used
        self._calls: list[str] = []  # a line for each call, for messages
        self._backend = ScriptedBackend(self._reply)
        # Without an entry for it, there is no evaluator.
        tags = (PRODUCER, EVALUATOR) if EVALUATOR in replies else (PRODUCER,)
        self.backends: Mapping[str, Backend] = dict.fromkeys(tags, self._backend)
        self.mistake: ScriptMismatch | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[Mapping[str, str], Mapping[str, Backend]]]:
        """No roles, and the backends; as a `Recording` has them."""
        yield {}, self.backends

    @property
    def requests(self) -> Sequence[ChatRequest]:
        """Every request so far, of all roles, in order."""
        return tuple(self._backend.requests)

    def check(self) -> None:
        """Raises a `ScriptMismatch` if a call had no reply, or a reply of a list was not used."""
        if self.mistake is not None:
            raise self.mistake
        required = _required_replies(self._entries)
        unused = [repr(reply) for keys, reply in required if keys not in self._used]
        if unused:
            raise ScriptMismatch(
                f"{len(unused)} replies of the script were not used: "
                f"{', '.join(map(_short, unused))}. Each call of a node reads a list from its "
                "first reply; to script one node alone, write its name in place of the role. "
                f"{self._calls_in_words()}",
                code="script.unused-replies",
            )

    def _reply(self, request: ChatRequest) -> str | ScriptedReply:
        """The reply to a call; raises, and records, a `ScriptMismatch` if there is none."""
        label = node_under_way() or ""
        role = request.role or ""
        content = _short(request.messages[-1].content)
        self._calls.append(f"{label or 'no node'} ({role or 'no role'}): {content}")
        names: tuple[str, ...] = (EVALUATOR,)
        if role != EVALUATOR:
            nodes = (label, re.sub(r"\[\d+\]$", "", label)) if label else ()
            names = tuple(dict.fromkeys((*nodes, role, PRODUCER)))
        try:
            name = next((name for name in names if name in self._entries), None)
            if name is None:
                raise self._no_reply(f"there is no entry {' or '.join(map(repr, names))}")
            return self._reply_in(self._entries[name], request, label, name)
        except ScriptMismatch as mistake:
            self.mistake = self.mistake or mistake
            raise

    def _reply_in(
        self, entry: object, request: ChatRequest, label: str, *keys: str
    ) -> str | ScriptedReply:
        """The reply in an entry, to which these keys lead, to a call of the node call `label`."""
        if isinstance(entry, Mapping):
            prompt = conversation_text(request.messages)
            text = next((text for text in entry if text in prompt), None)
            if text is None:
                raise self._no_reply(f"its prompt contains none of {', '.join(map(repr, entry))}")
            return self._reply_in(entry[text], request, label, *keys, text)
        if isinstance(entry, list):
            # Counted by the label, so that each of a node's parallel calls begins with the first
            # reply, and their order does not matter.
            number = self._next_numbers[label, *keys]
            self._next_numbers[label, *keys] += 1
            if number >= len(entry):
                raise self._no_reply(
                    f"'{' … '.join(keys)}' has {len(entry)} for each call of a node, and this is "
                    f"call {number + 1} of '{label}'"
                )
            entry = entry[number]
            keys = (*keys, str(number))
        self._used.add(keys)
        if isinstance(entry, Judge):
            return entry.reply(request, label)
        return _as_sent(entry(request) if callable(entry) else entry, request)

    def _no_reply(self, reason: str) -> ScriptMismatch:
        return ScriptMismatch(
            f"the script has no reply for a call: {reason}. {self._calls_in_words()}",
            code="script.no-reply",
        )

    def _calls_in_words(self) -> str:
        lines = "".join(f"\n  {call}" for call in self._calls[-_SHOWN_CALLS:])
        return f"The calls so far, the last {_SHOWN_CALLS} at most:{lines or ' none'}"


def _required_replies(entry: object, *keys: str) -> Iterator[tuple[tuple[str, ...], object]]:
    """The replies of an entry's lists with the keys that lead to them, which must all be used.

    A `Judge` gives the scores that no draft had.
    """
    if isinstance(entry, Mapping):
        for key, inner in entry.items():
            yield from _required_replies(inner, *keys, key)
    elif isinstance(entry, list | Judge):
        replies = entry.left if isinstance(entry, Judge) else entry
        for number, reply in enumerate(replies):
            yield (*keys, str(number)), reply


def _as_sent(reply: object, request: ChatRequest) -> str | ScriptedReply:
    """A reply as a model would send it; raises it if it is an error."""
    if isinstance(reply, BaseException):
        raise reply
    if isinstance(reply, ScriptedReply):
        return reply
    schema: Mapping[str, Any] = request.reply_schema or {}
    properties = schema.get("properties")
    # For a type that is no object, the schema and the reply have an object with the key `answer`.
    is_wrapped = isinstance(properties, Mapping) and set(properties) == {"answer"}
    if isinstance(reply, str):
        is_value = is_wrapped and _allows_text(schema["properties"]["answer"], schema)
        if not is_value or reply.lstrip().startswith("{"):
            return reply
    if request.reply_schema is None:
        raise ScriptMismatch(
            f"the script has {_short(repr(reply))} for a call that asks for a text; write a "
            f"text, or a ScriptedReply. It asked: {_short(request.messages[-1].content)}",
            code="script.not-a-text",
        )
    value = to_jsonable_python(reply)
    if is_wrapped and not (isinstance(value, dict) and set(value) == {"answer"}):
        value = {"answer": value}
    return orjson.dumps(value).decode()


def _allows_text(part: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    """Whether a value of this part of a JSON Schema may be a text."""
    if place := part.get("$ref"):
        return _allows_text(schema["$defs"][place.rpartition("/")[2]], schema)
    if choices := part.get("anyOf", part.get("oneOf")):
        return any(_allows_text(choice, schema) for choice in choices)
    if "enum" in part:
        return any(isinstance(value, str) for value in part["enum"])
    return "type" not in part or part["type"] == "string"  # without a type, any value


class Judge:
    """An evaluator in a `Script` that needs only scores, whatever the rubric.

    In each call of a node, the first draft that is judged gets the first scores, another draft the
    next.

    Args:
        scores: One score for all dimensions, or scores by dimension: of every draft, or in a list
            for each draft; or a function of the draft.
        reason: The reason for the score of every dimension, which the reviser gets too.
    """

    def __init__(
        self,
        scores: Scores | Sequence[Scores] | Callable[[str], Scores],
        *,
        reason: str = "Nothing is missing.",
    ) -> None:
        self._scores = (lambda _: scores) if isinstance(scores, float | int | Mapping) else scores
        self._reason = reason
        self._drafts = defaultdict[str, dict[str, int]](dict)  # label of a call → draft → number

    @property
    def left(self) -> Sequence[Scores]:
        """The scores that no draft had; empty if the scores are not a list."""
        if callable(self._scores):
            return ()
        return self._scores[max(map(len, self._drafts.values()), default=0) :]

    def reply(self, request: ChatRequest, label: str) -> str:
        """A judgement in the shape that the request asks for.

        Raises:
            ScriptMismatch: It is no request for a judgement, or there are no scores for it.
        """
        prompt = next((m.content for m in request.messages if m.role == "user"), "")
        draft = next((match for match in FENCED.finditer(prompt) if match[1] == "draft"), None)
        fields: Any = (request.reply_schema or {}).get("properties")
        if draft is None or fields is None:
            raise ScriptMismatch(
                "a Judge answers only calls that judge a draft by a rubric, and this call asks "
                f"for something else: {_short(prompt)}",
                code="script.not-a-judgement",
            )
        # Without its first and last line, whose marks differ from call to call.
        text = draft[0].partition("\n")[2].rpartition("\n")[0]
        scores = self._scores_of(text, label)
        # A prompt that asks about one dimension names it after the draft.
        scored = judgement(fields, scores, reason=self._reason, prompt=prompt[draft.end() :])
        return orjson.dumps(scored).decode()

    def _scores_of(self, draft: str, label: str) -> Scores:
        if callable(self._scores):
            return self._scores(draft)
        # A draft that is judged again, as drafts near the threshold are, gets the same scores.
        numbers = self._drafts[label]
        number = numbers.setdefault(draft, len(numbers))
        if number >= len(self._scores):
            raise ScriptMismatch(
                f"the Judge has scores for {len(self._scores)} drafts, and '{label}' asks about "
                f"another one: {_short(draft)}",
                code="script.no-scores",
            )
        return self._scores[number]


def judgement(
    fields: Mapping[str, Any], scores: Scores, *, reason: str, prompt: str = ""
) -> dict[str, object]:
    """The reply of an evaluator to a schema with these fields.

    `fields` maps names to schemas: of one dimension's judgement, or of a judgement by dimension.
    `prompt` is the end of the prompt.
    """
    if "score" in fields:
        # The schema of a single judgement does not name its dimension, but the prompt's end does.
        dimension = "another one"
        if isinstance(scores, Mapping):
            named = (name for name in re.findall(r"[\w-]+", prompt) if name in scores)
            dimension = next(named, dimension)
        issues = [{"section": "whole text", "problem": reason}]
        answer = {"reason": reason, "issues": issues, "score": _score(scores, dimension)}
        # The other fields are statements on which caps depend.
        return {name: answer.get(name, False) for name in fields}
    return {
        name: judgement(schema["properties"], _score(scores, name), reason=reason)
        for name, schema in fields.items()
    }


def _score(scores: Scores, dimension: str) -> float:
    """The score of a dimension; raises a `ScriptMismatch` if there is none."""
    if not isinstance(scores, Mapping):
        return scores
    if dimension not in scores:
        raise ScriptMismatch(
            f"the Judge has scores for {', '.join(scores)}, and a call asks for {dimension}",
            code="script.no-score",
        )
    return scores[dimension]


def _short(text: str) -> str:
    return shorten(text, _SHOWN_CHARS, placeholder=" …")
