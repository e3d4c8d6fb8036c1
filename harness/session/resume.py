"""The records that make a run resumable: written by one part of the run, read by the next."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from harness.errors import EvaluationFailed, HarnessError, InvalidInput, Notice, did_you_mean
from harness.graph import Answers, Earlier, Execution, Graph, Question, bind_inputs, graph_inputs
from harness.graph.outcome import answer_problem
from harness.graph.values import digest, value_form
from harness.inference import Limits
from harness.memory import Place, place_of
from harness.session.result import RunSpent, run_spent
from harness.session.settings import Engine
from harness.trace import (
    ContentPolicy,
    Instant,
    Journal,
    NodeOutput,
    SpanRecord,
    Tracer,
    events,
    sha256_of,
)
from harness.trace.node_records import attempt_status
from harness.wiggum import EarlierLoops, earlier_loops

_MOST = 20
"""Most names in one record; the spans of the calls have the others."""


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
    engine: Engine | None = None
    limits: Limits | None = None
    """Of the command alone: not recorded, so a further part of the run has its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The beginning of a part of a run."""

    origin: Origin | None
    """None if it was begun from Python."""
    limits: Limits
    """As given, beside the limits of the pipeline and of the settings."""
    content: ContentPolicy
    inputs: tuple[str, ...] = ()
    is_batch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedInput:
    """An input that a run was given."""

    text: str | None
    """The value as JSON, without secrets; None if it has no JSON, or the text is lost."""
    digest: str
    """Digest of the JSON with secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRun:
    """The work of all parts of a run so far."""

    journal: Journal
    beginning: Beginning
    """Of the last part."""
    inputs: Mapping[str, RecordedInput]
    """The inputs given to the last part, by name."""
    outputs: Earlier
    answers: Answers
    questions: tuple[Question, ...]
    """The questions without an answer."""
    loops: EarlierLoops
    misled: frozenset[str]
    """Labels of the calls that failed, perhaps because of a model's reply."""
    lost: tuple[str, ...]
    """The losses of a salvaged journal, in words."""
    sizes: tuple[int, ...]
    """Bytes of the files of its parts when they were read."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do, if code and inputs are the same."""
        return self.journal.ended is not None and self.journal.ended.status == "ok"

    def check_unchanged(self) -> None:
        """Checks that nothing was added between reading the run and locking it.

        Raises:
            InvalidInput: It was still going when it was read.
        """
        if _sizes(self.journal) != self.sizes:
            raise InvalidInput(
                "the run was still going when it was read; resume it again",
                path=self.journal.path,
                code="resume.still-going",
            )

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Warnings about its missing parts."""
        return tuple(Notice(code="resume.salvaged", message=one) for one in self.lost)

    @property
    def spent(self) -> RunSpent:
        """Its use."""
        return run_spent(self.journal)


# --- written by each part -----------------------------------------------------------------------


def record_beginning(
    tracer: Tracer,
    graph: Graph,
    inputs: Mapping[str, object],
    *,
    beginning: Beginning,
) -> None:
    """Records the beginning of a run, with only the given inputs."""
    origin = beginning.origin
    limits = {name: one for name, one in asdict(beginning.limits).items() if one is not None}
    tracer.instant(
        events.Pipeline(
            pipeline=graph.name,
            content=beginning.content,
            target=origin.target if origin else None,
            config=str(origin.config) if origin and origin.config else None,
            roles=dict(origin.roles) if origin else {},
            memory=str(origin.memory) if origin and origin.memory else None,
            seed=origin.seed if origin else None,
            engine=origin.engine if origin else None,
            inputs=tuple(inputs),
            limits=limits,
            is_batch=beginning.is_batch,
            result=graph.result,
        )
    )
    known = graph_inputs(graph)
    for name, value in inputs.items():
        try:
            data = value_form(known[name].annotation).encode(value)
        except TypeError:
            tracer.instant(events.Input(input=name))
        else:
            given = events.Input(
                input=name,
                value_sha256=tracer.content(data.decode()),
                digest=tracer.excerpt(digest(data)),
            )
            tracer.instant(given)


def record_outcome(tracer: Tracer, ended: Execution) -> None:
    """Records how a part of a run ended."""
    tracer.instant(
        events.Outcome(
            status=ended.status,
            failed=tuple(one.node for one in ended.failures[:_MOST]),
            failures=len(ended.failures),
            skips=len(ended.skips),
            reused=len(ended.reused),
            made_again=len(ended.reruns),
            questions=tuple(one.key for one in ended.questions),
        )
    )


# --- read by the next part ----------------------------------------------------------------------


def read_earlier_run(path: Path) -> EarlierRun:
    """Reads the journal of a run to resume.

    Raises:
        InvalidInput: It was killed before it had begun, or records no texts.
        JournalInvalid: It is damaged, or cannot be read.
    """
    journal = Journal(path)
    sizes = _sizes(journal)
    found = _Found()
    for item in journal.items(SpanRecord, Instant, NodeOutput):
        if isinstance(item, NodeOutput):
            found.outputs.append(item)
        elif isinstance(item, Instant):
            found.take(item)
        elif attempt := events.NodeAttempt.of(item):
            found.note_call(attempt)
    if found.beginning is None:
        raise InvalidInput(
            "it ended before anything was recorded, or an earlier version recorded it; begin a "
            "new run",
            path=path,
            code="resume.never-began",
        )
    if found.beginning.content != "full":
        raise InvalidInput(
            f'it recorded no texts (content = "{found.beginning.content}"), so there are no '
            'outputs to resume from; to resume later runs, set content = "full" under [trace]',
            path=path,
            code="resume.no-texts",
        )
    texts = journal.texts({one.value_sha256 for one in found.inputs.values()} - {None})
    return EarlierRun(
        journal=journal,
        beginning=found.beginning,
        inputs={
            name: RecordedInput(text=texts.get(one.value_sha256), digest=one.digest or "")
            for name in {**dict.fromkeys(found.beginning.inputs), **found.inputs}
            for one in [
                found.inputs.get(name) or events.Input(input=name, value_sha256=None, digest="")
            ]
        },
        outputs=Earlier(found.outputs, found.codes),
        answers=found.answers,
        questions=tuple(found.questions.values()),
        loops=earlier_loops(journal, found.outputs, lost=bool(found.lost)),
        misled=frozenset(found.misled),
        lost=tuple(found.lost),
        sizes=sizes,
    )


def _sizes(journal: Journal) -> tuple[int, ...]:
    return tuple(path.stat().st_size for path in journal.paths[: journal.parts])


class _Found:
    """What was read so far."""

    def __init__(self) -> None:
        self.outputs: list[NodeOutput] = []
        self.beginning: Beginning | None = None
        self.inputs: dict[str, events.Input] = {}
        self.answers: dict[tuple[str, str], object] = {}
        self.questions: dict[str, Question] = {}
        self.misled: set[str] = set()
        self.lost: list[str] = []
        self.codes: dict[str, Mapping[str, str]] = {}

    def note_call(self, attempt: events.NodeAttempt) -> None:
        """Adds a call of a node; the last of several attempts counts."""
        self.misled.discard(attempt.label)
        if attempt_status(attempt) == "failed" and _may_be_of_a_reply(attempt.error_class):
            self.misled.add(attempt.label)

    def take(self, instant: Instant) -> None:
        """Adds an instant."""
        if pipeline := events.Pipeline.of(instant):
            self.beginning = _beginning(pipeline)
            self.inputs.clear()
        elif given := events.Input.of(instant):
            self.inputs[given.input] = given
        elif asked := events.Question.of(instant):
            node, _, _ = asked.key.rpartition("/")
            self.questions[asked.key] = Question(
                key=asked.key, node=node, text=asked.text or "", form=asked.form
            )
        elif answered := events.Answer.of(instant):
            self.answers[answered.key, answered.text or ""] = answered.answer
            question = self.questions.get(answered.key)
            if question is not None and question.text == answered.text:
                del self.questions[answered.key]
        elif code := events.Code.of(instant):
            self.codes[code.code] = code.parts
        elif salvaged := events.Salvaged.of(instant):
            self.lost.append(salvaged.detail)
        elif outcome := events.Outcome.of(instant):
            # A question that a part did not ask before it ended is obsolete.
            self.questions = {
                key: one for key, one in self.questions.items() if key in outcome.questions
            }


def _beginning(said: events.Pipeline) -> Beginning:
    return Beginning(
        origin=None
        if said.target is None
        else Origin(
            target=said.target,
            config=Path(said.config) if said.config else None,
            roles=dict(said.roles),
            memory=place_of(said.memory) if said.memory else None,
            seed=said.seed,
            engine=cast("Engine | None", said.engine),
        ),
        limits=Limits(**said.limits),
        content=said.content,
        inputs=said.inputs,
        is_batch=said.is_batch,
    )


def _may_be_of_a_reply(kind: str) -> bool:
    """Whether a node may have failed because of a reply that it was given.

    False if a server was down, a nested node failed, or a call had no usable reply: that call asks
    for another by itself.
    """
    return kind in _names_under(EvaluationFailed) or kind not in _names_under(HarnessError)


def _names_under(kind: type[HarnessError]) -> set[str]:
    """The names of a class of errors and of all its subclasses."""
    return {kind.__name__}.union(*map(_names_under, kind.__subclasses__()))


# --- inputs -------------------------------------------------------------------------------------


def inputs_now(
    graph: Graph, inputs: Mapping[str, object], earlier: EarlierRun
) -> tuple[dict[str, object], frozenset[str]]:
    """The value of every input of a resumed run, and the names of the given ones.

    Given ones go before the recorded ones.

    Raises:
        InvalidInput: It is another pipeline's run, or an input is lost or does not fit.
    """
    if earlier.journal.started.name != graph.name:
        raise InvalidInput(
            f"a run of the pipeline '{earlier.journal.started.name}', not of '{graph.name}'; "
            "resume it with that one",
            path=earlier.journal.path,
            code="resume.other-pipeline",
        )
    given = _with_recorded(graph, earlier, inputs)
    return bind_inputs(graph, given), frozenset(given)


def _with_recorded(
    graph: Graph, earlier: EarlierRun, inputs: Mapping[str, object]
) -> dict[str, object]:
    given = dict(inputs)
    known = graph_inputs(graph)
    for name, one in earlier.inputs.items():
        if name in given or name not in known:  # replaced, or no longer an input
            continue
        try:
            if one.text is None:
                raise TypeError("it has no form in JSON, or is lost")
            if digest(one.text.encode()) != one.digest:
                raise TypeError("a secret was left out of it")
            given[name] = value_form(known[name].annotation).restore(one.text.encode())
        except TypeError as error:
            raise InvalidInput(
                f"input '{name}' cannot be restored from the journal ({error}); give it again: "
                f"--set {name}=…, or by its name to Pipeline.run",
                code="resume.input-lost",
            ) from error
    return given


# --- renamed nodes ------------------------------------------------------------------------------


def labels_before(ended: Execution) -> frozenset[str]:
    """The labels that the reused calls have in the earlier parts of the run."""
    return frozenset(ended.renamed.get(label, label) for label in ended.reused)


def renamed_nodes(ended: Execution) -> dict[str, str]:
    """The names that reused nodes had in the earlier parts of the run, by their names now."""
    return {_node_of(now): _node_of(before) for now, before in ended.renamed.items()}


def rename_notices(ended: Execution) -> Iterator[Notice]:
    """A notice for each node that was recognized under a new name."""
    for now, before in renamed_nodes(ended).items():
        yield Notice(
            code="resume.node-renamed",
            message=f"'{now}' has the code that '{before}' had: its output is used again under "
            "the new name",
        )


def _node_of(label: str) -> str:
    return re.sub(r"\[\d+\]", "", label)


# --- answers ------------------------------------------------------------------------------------


def match_answers(
    given: Mapping[str, object], questions: Sequence[Question]
) -> dict[tuple[str, str], object]:
    """Finds the question that each answer is for.

    Answers are by a question's key, or by the node if it asks only one.

    Raises:
        InvalidInput: There is no such question, or its answer has another form.
    """
    answers: dict[tuple[str, str], object] = {}
    for name, answer in given.items():
        question = _asked(name, questions)
        problem = answer_problem(answer, question.form)
        if problem:
            raise InvalidInput(
                f"question '{question.key}' ({_title(question)}): {problem}", code="answer.invalid"
            )
        answers[question.key, question.text] = answer
    return answers


def only_question(questions: Sequence[Question]) -> Question:
    """The question that an answer without a name is for.

    Raises:
        InvalidInput: No question waits, or several do.
    """
    if not questions:
        raise InvalidInput(
            "no question of this run waits for an answer; leave out --answer",
            code="answer.none-asked",
        )
    if len(questions) > 1:
        listed = "; ".join(f"{one.key}: {_title(one)}" for one in questions)
        raise InvalidInput(
            f"{len(questions)} questions wait for an answer ({listed}); name one: --answer "
            f"{questions[0].key}=…",
            code="answer.several-asked",
        )
    return questions[0]


def _title(question: Question) -> str:
    """The first line; a whole draft may follow."""
    return question.text.partition("\n")[0]


def _asked(name: str, questions: Sequence[Question]) -> Question:
    asked = [one for one in questions if one.key == name]
    asked = asked or [one for one in questions if one.node == name]
    if len(asked) == 1:
        return asked[0]
    if asked:
        keys = ", ".join(one.key for one in asked)
        raise InvalidInput(
            f"node '{name}' asks {len(asked)} questions; name one of them: {keys}",
            code="answer.several-of-node",
        )
    if not questions:
        raise InvalidInput(
            f"no question waits, so '{name}' cannot be answered", code="answer.none-waits"
        )
    raise InvalidInput(
        f"no question '{name}' waits for an answer; "
        + did_you_mean(name, [one.key for one in questions]),
        code="answer.question-unknown",
    )


# --- memory -------------------------------------------------------------------------------------


def remembered_in(journal: Journal) -> tuple[list[dict[str, Any]], int]:
    """The documents that a run remembered, except in a store that outlives it, each once, in order.

    Returns:
        The arguments of `PassageLibrary.remember` for each, and how many the journal does not have
        whole, since a secret was left out.

    Raises:
        JournalInvalid: The journal is damaged.
    """
    remembered = [
        one
        for one in events.Events(journal.spans())[events.Remember]
        if one.status == "ok" and one.document_sha256
    ]
    texts = journal.texts({one.document_sha256 for one in remembered})
    documents: list[dict[str, Any]] = []
    for one in remembered:
        document = {
            "document": _whole(texts.get(one.document_sha256), digest=one.digest),
            "title": one.title or "",
            "source": one.source or "",
            "quality": one.quality,
            "metadata": one.metadata or {},
            # An earlier version did not record it.
            "created": one.created and datetime.fromisoformat(one.created),
        }
        if document not in documents:
            documents.append(document)
    whole = [one for one in documents if one["document"] is not None]
    return whole, len(documents) - len(whole)


def _whole(text: str | None, *, digest: object) -> str | None:
    return text if text is not None and sha256_of(text) == digest else None
