"""Reads from a run's journal what its next part needs; `PipelineRun` wrote it there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.errors import EvaluationFailed, HarnessError, InvalidInput, Notice, did_you_mean
from harness.files import path_in_locale, path_text
from harness.graph import Answers, Earlier, Execution, Graph, Question, bind_inputs, graph_inputs
from harness.graph.outcome import Asked, answer_problem
from harness.graph.reuse import MisledCall
from harness.graph.values import digest, leave_unset, value_form
from harness.inference import Limits, Spent
from harness.inference.call_spans import most_tokens_of_conversation
from harness.inference.request import most_tokens_in
from harness.memory import Place, place_of
from harness.trace import Instant, Journal, NodeOutput, SpanRecord, calls_of, events, sha256_of
from harness.trace.calls import charges_of
from harness.trace.node_records import attempt_status
from harness.trace.records import node_of_all
from harness.wiggum import EarlierLoops, earlier_loops


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The source of a command's pipeline and settings."""

    target: str
    """The file, with the pipeline's name if that was given; or a shipped pattern's name."""
    config: Path | None = None
    """The settings file; None without one."""
    roles: Mapping[str, str] = field(default_factory=dict)
    memory: Place | None = None
    seed: int | None = None
    engine: str | None = None
    limits: Limits | None = None
    """Limits of the command alone: not recorded, so that a further part has its own."""


def origin_fields(origin: Origin | None) -> dict[str, Any]:
    """The fields of a `PipelineEvent` from which `EarlierRun.origin` restores the origin."""
    if origin is None:
        return {**dict.fromkeys(("target", "config", "memory", "seed", "engine")), "roles": {}}
    return {
        "target": path_text(origin.target),
        "config": path_text(origin.config) if origin.config else None,
        "memory": path_text(str(origin.memory)) if origin.memory else None,
        "seed": origin.seed,
        "engine": origin.engine,
        "roles": dict(origin.roles),
    }


@dataclass(frozen=True, slots=True)
class RecordedInput:
    """An input that a run was given."""

    text: str | None
    """The value as JSON, without secrets; None if it has no JSON, or the text is lost."""
    digest: str
    """The digest of the JSON with its secrets, which tells whether `text` is complete."""
    unset: Sequence[Sequence[str]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRun:
    """The work of all parts of a run so far."""

    journal: Journal
    beginning: events.PipelineEvent
    """The record of how its last part began."""
    inputs: Mapping[str, RecordedInput]
    """The inputs given to the last part, by name."""
    outputs: Earlier
    answers: Answers
    questions: tuple[Question, ...]
    """The questions without an answer."""
    loops: EarlierLoops
    misled: Mapping[str, MisledCall]
    """The calls whose last failure may be due to a model's reply, by label."""
    lost: tuple[str, ...]
    """The losses of a salvaged journal, in words."""
    sizes: tuple[int, ...]
    """Bytes of each of its files when they were read."""

    @property
    def origin(self) -> Origin | None:
        """Where its pipeline and settings are from; None if it was begun from Python."""
        event = self.beginning
        if event.target is None:
            return None
        return Origin(
            target=path_in_locale(event.target),
            config=Path(path_in_locale(event.config)) if event.config else None,
            roles=dict(event.roles),
            memory=place_of(path_in_locale(event.memory)) if event.memory else None,
            seed=event.seed,
            engine=event.engine,
        )

    @property
    def limits(self) -> Limits:
        """The limits that were given, which override those of the pipeline and of the settings."""
        return Limits(**self.beginning.limits)

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do, if code and inputs are the same."""
        return self.journal.ended is not None and self.journal.ended.status == "ok"

    def check_unchanged(self) -> None:
        """Refuses to resume a run to which records were added after it was read."""
        if _sizes(self.journal) != self.sizes:
            raise InvalidInput(
                "the run was still going when it was read; resume it again",
                path=self.journal.path,
                code="resume.still-going",
            )

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Warnings about its missing parts."""
        return tuple(Notice(code="resume.salvaged", message=loss) for loss in self.lost)

    @property
    def spent(self) -> Spent:
        """What calls of all its parts took, and its time."""
        return run_spent(self.journal)


# --- read by the next part ----------------------------------------------------------------------


def read_earlier_run(path: Path) -> EarlierRun:
    """Reads the journal of a run to resume.

    Raises:
        InvalidInput: It was killed before it had begun, or records no texts.
        JournalInvalid: It is damaged, or cannot be read.
    """
    journal = Journal(path)
    # Taken before the records are read, so that `check_unchanged` notices later additions.
    sizes = _sizes(journal)
    collected = _JournalFindings()
    for item in journal.items(SpanRecord, Instant, NodeOutput):
        if isinstance(item, NodeOutput):
            collected.outputs.append(item)
        elif isinstance(item, Instant):
            collected.note_instant(item)
        elif attempt := events.NodeAttempt.of(item):
            collected.note_attempt(attempt)
    if collected.beginning is None:
        raise InvalidInput(
            "it ended before anything was recorded, or an earlier version recorded it; begin a "
            "new run",
            path=path,
            code="resume.never-began",
        )
    if collected.beginning.content != "full":
        raise InvalidInput(
            f'it recorded no texts (content = "{collected.beginning.content}"), so there are no '
            'outputs to resume from; to resume later runs, set content = "full" under [trace]',
            path=path,
            code="resume.no-texts",
        )
    texts = journal.texts({event.value_sha256 for event in collected.inputs.values()} - {None})
    return EarlierRun(
        journal=journal,
        beginning=collected.beginning,
        inputs={
            name: RecordedInput(texts.get(event.value_sha256), event.digest or "", event.unset)
            for name, event in collected.inputs.items()
        },
        outputs=Earlier(collected.outputs, collected.codes, continues={"failure"}),
        answers=collected.answers,
        questions=tuple(collected.questions.values()),
        loops=earlier_loops(journal, collected.outputs, lost=bool(collected.lost)),
        misled=collected.misled,
        lost=tuple(collected.lost),
        sizes=sizes,
    )


def _sizes(journal: Journal) -> tuple[int, ...]:
    return tuple(path.stat().st_size for path in journal.paths)


class _JournalFindings:
    """The fields of an `EarlierRun`, as far as the records up to now tell them."""

    def __init__(self) -> None:
        self.outputs: list[NodeOutput] = []
        self.beginning: events.PipelineEvent | None = None
        self.inputs: dict[str, events.InputEvent] = {}
        # What was asked → the answer.
        self.answers: dict[Asked, object] = {}
        # Key → a question without an answer.
        self.questions: dict[str, Question] = {}
        self.misled: dict[str, MisledCall] = {}
        # Label → the last attempt of a call that failed in this part.
        self.failed: dict[str, events.NodeAttempt] = {}
        # The same for an earlier part, by an error that need not come from a reply.
        self.failed_once: dict[str, events.NodeAttempt] = {}
        self.lost: list[str] = []
        # Digest of a node's code, or of what a call used → its parts.
        self.codes: dict[str, Mapping[str, str]] = {}

    def note_attempt(self, attempt: events.NodeAttempt) -> None:
        status = attempt_status(attempt)
        if status == "done":
            for labels in (self.misled, self.failed, self.failed_once):
                labels.pop(attempt.label, None)
        elif status == "failed":
            self.failed[attempt.label] = attempt

    def note_end_of_part(self) -> None:
        """Decides which of the calls that failed in this part get other replies in the next."""
        # A part that was killed has no such end. What had failed in it may have had attempts left,
        # which are made again, with the same replies.
        for label, attempt in self.failed.items():
            error = attempt.reason or attempt.error_class
            if error in _names_under(EvaluationFailed):
                self.misled[label] = MisledCall(attempt.variation, None)
                continue
            if error in _names_under(HarnessError, OSError):
                # A server was down, a file was missing or a nested node failed; or a call had no
                # usable reply, and that call asks for another by itself.
                continue
            # Of earlier versions' records, it is unknown whether the code has been mended since.
            is_of_values = attempt.code is not None and error in _names_under(*_VALUE_ERRORS)
            if is_of_values or label in self.failed_once:
                self.misled[label] = MisledCall(attempt.variation, attempt.code)
            else:
                # It may have been the failure of another service, which is over now. If it comes
                # again, the replies are taken to be its cause.
                self.failed_once[label] = attempt
        self.failed = {}

    def note_instant(self, instant: Instant) -> None:
        if pipeline := events.PipelineEvent.of(instant):
            self.beginning = pipeline
            self.failed = {}
            # An input without a later record of its own is lost.
            self.inputs = {
                name: events.InputEvent(input=name, value_sha256=None, digest="")
                for name in pipeline.inputs
            }
        elif input_ := events.InputEvent.of(instant):
            self.inputs[input_.input] = input_
        elif asked := events.QuestionEvent.of(instant):
            node, _, _ = asked.key.rpartition("/")
            self.questions[asked.key] = Question(
                key=asked.key,
                node=node,
                text=asked.text or "",
                form=asked.form,
                schema=asked.schema,
                about=asked.about or "",
            )
        elif answer := events.AnswerEvent.of(instant):
            answered = Asked(answer.key, answer.text or "", answer.about or "")
            self.answers[answered] = answer.answer
            unanswered = self.questions.get(answer.key)
            if unanswered is not None and unanswered.text == answer.text:
                del self.questions[answer.key]
        elif code := events.CodeEvent.of(instant):
            self.codes[code.code] = code.parts
        elif salvaged := events.Salvaged.of(instant):
            self.lost.append(salvaged.detail)
        elif outcome := events.Outcome.of(instant):
            self.note_end_of_part()
            # A question that a part did not ask before it ended is obsolete.
            self.questions = {
                key: question
                for key, question in self.questions.items()
                if key in outcome.questions
            }


# Errors that a node's code raises for a reply that it did not expect.
_VALUE_ERRORS = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
)


def _names_under(*errors: type[Exception]) -> set[str]:
    """The names of classes of errors and of all their subclasses."""
    names = {error.__name__ for error in errors}
    return names.union(*(_names_under(*error.__subclasses__()) for error in errors))


# --- inputs -------------------------------------------------------------------------------------


def inputs_now(
    graph: Graph, inputs: Mapping[str, object], earlier: EarlierRun
) -> tuple[dict[str, object], frozenset[str]]:
    """The value of every input of a resumed run, and the names of those given, now or before.

    Refuses another pipeline's run, and an input that is lost or does not fit.
    """
    if earlier.journal.started.name != graph.name:
        raise InvalidInput(
            f"a run of the pipeline '{earlier.journal.started.name}', not of '{graph.name}'; "
            "resume it with that one",
            path=earlier.journal.path,
            code="resume.other-pipeline",
        )
    values = dict(inputs)
    parameters = graph_inputs(graph)
    for name, recorded in earlier.inputs.items():
        # An input that is given now replaces the recorded one; others may be no inputs any more.
        if name in values or name not in parameters:
            continue
        try:
            values[name] = value_form(parameters[name].annotation).restore(_json_of(recorded))
            leave_unset(values[name], recorded.unset)
        except TypeError as error:
            raise InvalidInput(
                f"input '{name}' cannot be restored from the journal ({error}); give it again: "
                f"--set {name}=…, or by its name to Pipeline.run",
                code="resume.input-lost",
            ) from error
    return bind_inputs(graph, values), frozenset(values)


def _json_of(recorded: RecordedInput) -> bytes:
    if recorded.text is None:
        raise TypeError("it has no form in JSON, or is lost")
    data = recorded.text.encode()
    if digest(data) != recorded.digest:
        raise TypeError("a secret was left out of it")
    return data


# --- renamed nodes ------------------------------------------------------------------------------


def labels_before(ended: Execution) -> frozenset[str]:
    """The labels of the reused calls, as the earlier parts of the run have them."""
    return frozenset(ended.renamed.get(label, label) for label in ended.reused)


def renamed_nodes(ended: Execution) -> dict[str, str]:
    """Name of a reused node now → its name in the earlier parts of the run."""
    return {node_of_all(new): node_of_all(before) for new, before in ended.renamed.items()}


def rename_notices(ended: Execution) -> Iterator[Notice]:
    """A notice for each node that was recognized under a new name."""
    for new, before in renamed_nodes(ended).items():
        yield Notice(
            code="resume.node-renamed",
            message=f"'{new}' has the code that '{before}' had: its output is used again under "
            "the new name",
        )


# --- answers ------------------------------------------------------------------------------------


def match_answers(
    new_answers: Mapping[str, object], questions: Sequence[Question]
) -> dict[Asked, object]:
    """A question → the answer; refuses an answer without a question or its form."""
    answers: dict[Asked, object] = {}
    for name, answer in new_answers.items():
        question = question_named(name, questions)
        problem = answer_problem(answer, question.form)
        if problem:
            raise InvalidInput(
                f"question '{question.key}' ({_title(question)}): {problem}", code="answer.invalid"
            )
        answers[question.asked] = answer
    return answers


def _title(question: Question) -> str:
    # After the first line of a question, a whole draft may follow.
    return question.text.partition("\n")[0]


def question_named(name: str, questions: Sequence[Question]) -> Question:
    """The question with this key or text, or else of this node if it asks only one.

    An empty name means the only question of the run.

    Raises:
        InvalidInput: There is no such question, or there are several.
    """
    matching = [question for question in questions if question.key == name]
    matching = matching or [question for question in questions if name == question.text]
    matching = matching or [question for question in questions if name in ("", question.node)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        listed = "; ".join(f"{question.key}: {_title(question)}" for question in matching)
        raise InvalidInput(
            f"{len(matching)} questions wait for an answer ({listed}); name one: --answer "
            f"{matching[0].key}=…",
            code="answer.several-asked",
        )
    if not questions:
        raise InvalidInput(
            "no question of this run waits for an answer; leave out --answer",
            code="answer.none-asked",
        )
    raise InvalidInput(
        f"no question '{name}' waits for an answer; "
        + did_you_mean(name, [question.key for question in questions]),
        code="answer.question-unknown",
    )


# --- memory -------------------------------------------------------------------------------------


def remembered_in(journal: Journal) -> tuple[list[dict[str, Any]], int]:
    """The documents that a run remembered in a store of its own, each once and in order.

    Returns:
        The arguments of `PassageLibrary.remember` for each document; and the number of documents
        that are left out, since a secret is missing from their texts.
    """
    remembered = [
        event
        for event in events.Events(journal.spans())[events.Remember]
        if event.status == "ok" and event.document_sha256
    ]
    texts = journal.texts({event.document_sha256 for event in remembered})
    documents: dict[str, dict[str, Any]] = {}
    for event in remembered:
        text = texts.get(event.document_sha256)
        is_whole = text is not None and sha256_of(text) == event.digest
        document = {
            "document": text if is_whole else None,
            "title": event.title or "",
            "source": event.source or "",
            "quality": event.quality,
            "metadata": event.metadata or {},
            # Journals of earlier versions do not have the date.
            "created": event.created and datetime.fromisoformat(event.created),
        }
        documents.setdefault(repr(document), document)
    complete = [document for document in documents.values() if document["document"] is not None]
    return complete, len(documents) - len(complete)


# --- what it took ---------------------------------------------------------------------------------

# What comes before a call is sent: waits for room, for a place, for an outage's end; and probes.
_BEFORE = (events.WaitForRoom, events.Queue, events.Hold, events.SchemaProbe, events.ToolProbe)
_WAITS = {*map(events.name_of, _BEFORE)}


def run_spent(journal: Journal) -> Spent:
    """Adds up the use of a run: its calls to models, including embeddings and failed attempts."""
    recorded = events.Events()
    unsent: set[int | None] = set()  # span ids of calls that still waited when they ended

    def noted(spans: Iterable[SpanRecord]) -> Iterator[SpanRecord]:
        for span in spans:
            if span.name in _WAITS and span.status in {"cancelled", "unfinished"}:
                unsent.add(span.parent)
            yield span

    calls = calls_of(noted(recorded.noted(journal.items(SpanRecord, Instant))))
    sent: list[events.Request] = [
        call
        for call in (*calls, *recorded[events.OtherRequest])
        if call.was_sent and not call.from_cache and call.id not in unsent
    ]
    # Calls that were under way when the run was killed have no count of tokens either.
    uncounted = [call for call in sent if call.input_tokens is None and not call.was_free]
    _estimate([call for call in uncounted if call.prompt_estimate is None], journal)
    charges = charges_of(sent, recorded[events.EndpointEvent])
    return Spent(
        calls=sum(1 + call.refused_requests for call in sent),
        input_tokens=sum(call.charged_input_tokens or 0 for call in sent),
        output_tokens=sum(call.output_tokens or 0 for call in sent),
        cost_usd=sum(charges.values()) if charges else None,
        time_ns=journal.duration_ns,
        estimated_calls=len(uncounted),
        unpriced_calls=sum(call.id not in charges and not call.was_free for call in sent),
    )


def _estimate(calls: Sequence[events.Request], journal: Journal) -> None:
    """Gives chats high estimates of their tokens, as far as texts were recorded."""
    chats = [call for call in calls if isinstance(call, events.Chat)]
    hashes = {chat.prompt_sha256 for chat in chats} | {chat.reply_sha256 for chat in chats}
    texts = journal.texts(hashes - {None})
    for chat in chats:
        if prompt := texts.get(chat.prompt_sha256):
            chat.learn(prompt_estimate=most_tokens_of_conversation(prompt))
        if reply := texts.get(chat.reply_sha256):
            chat.learn(output_tokens=most_tokens_in(reply))
