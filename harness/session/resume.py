"""A run as its journal has it, for a further part of it to go on with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import HarnessError, InvalidInput, Notice, ReplyCut, ReplyInvalid
from harness.graph import Answers, Earlier, Question
from harness.session.resume_loops import EarlierLoops, earlier_loops
from harness.session.resume_record import Beginning, RecordedInput, read_beginning
from harness.session.run_spent import RunSpent, run_spent
from harness.trace import Content, Instant, Journal, NodeOutput, SpanRecord
from harness.trace.node_records import attempt_status


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRun:
    """What all parts of a run did until now."""

    journal: Journal
    """All of it."""
    beginning: Beginning
    """What the last part began with."""
    inputs: Mapping[str, RecordedInput]
    """Those that the last part had, without those that the code has a default for."""
    outputs: Earlier
    """What nodes gave."""
    answers: Answers
    """What people answered."""
    questions: tuple[Question, ...]
    """What they were asked and have not answered."""
    loops: EarlierLoops
    """How far revise loops came."""
    misled: frozenset[str]
    """Calls of nodes that failed, perhaps of what a model said: by their labels."""
    lost: tuple[str, ...]
    """What a damaged journal lost before it was salvaged, in words."""
    sizes: tuple[int, ...]
    """Of the files of its parts when they were read, in bytes."""

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to do, if code and inputs are as they were."""
        return self.journal.ended is not None and self.journal.ended.status == "ok"

    def check_unchanged(self) -> None:
        """That nothing was added since it was read, now that nobody else can any more.

        Raises:
            InvalidInput: It was still going then.
        """
        if _sizes(self.journal) != self.sizes:
            raise InvalidInput(
                "the run was still going when it was read; resume it again",
                path=self.journal.path,
                code="resume.still-going",
            )

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What is to be kept in mind about what there is of it."""
        return tuple(Notice(code="resume.salvaged", message=one) for one in self.lost)

    @property
    def spent(self) -> RunSpent:
        """What it took."""
        return run_spent(self.journal)


def read_earlier_run(path: Path) -> EarlierRun:
    """Reads a run that is to be resumed.

    Args:
        path: Its journal.

    Raises:
        InvalidInput: It was killed before it had begun, or records no texts.
        JournalInvalid: It is damaged, or cannot be read.
    """
    journal = Journal(path)
    sizes = _sizes(journal)
    found = _Found()
    for item in journal.items():
        if isinstance(item, NodeOutput):
            found.outputs.append(item)
        elif isinstance(item, Instant):
            found.take(item)
        elif isinstance(item, SpanRecord) and item.name == "node":
            found.note_call(item)
    if found.beginning is None:
        raise InvalidInput(
            "it ended before anything of it could be written down, or an earlier version made it; "
            "run the pipeline anew",
            path=path,
            code="resume.never-began",
        )
    if found.beginning.content != "full":
        raise InvalidInput(
            f'it recorded no texts (content = "{found.beginning.content}"), and so no outputs to '
            'go on from; runs that are to be resumed need content = "full" under [trace]',
            path=path,
            code="resume.no-texts",
        )
    return EarlierRun(
        journal=journal,
        beginning=found.beginning,
        inputs=_with_texts(
            {**{name: {} for name in found.beginning.inputs or ()}, **found.inputs}, journal
        ),
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
    """What was read of a journal so far."""

    def __init__(self) -> None:
        self.outputs: list[NodeOutput] = []
        self.beginning: Beginning | None = None
        self.inputs: dict[str, Mapping[str, Any]] = {}
        self.answers: dict[tuple[str, str], object] = {}
        self.questions: dict[str, Question] = {}
        self.misled: set[str] = set()
        self.lost: list[str] = []
        self.codes: dict[str, Mapping[str, str]] = {}

    def note_call(self, span: SpanRecord) -> None:
        """Takes in a call of a node; of several attempts the last one counts."""
        label = str(span.attributes.get("label"))
        self.misled.discard(label)
        if attempt_status(span) == "failed" and _may_be_of_a_reply(span.error or ""):
            self.misled.add(label)

    def take(self, instant: Instant) -> None:
        """Takes in something that happened."""
        said: Mapping[str, Any] = instant.attributes
        match instant.name:
            case "pipeline":
                self.beginning = read_beginning(said)
                self.inputs.clear()
            case "input":
                self.inputs[said["input"]] = said
            case "question":
                self.questions[said["key"]] = _question(said)
            case "answer":
                self.answers[said["key"], said["text"]] = said["answer"]
                asked = self.questions.get(said["key"])
                if asked is not None and asked.text == said["text"]:
                    del self.questions[said["key"]]
            case "code":
                self.codes[said["code"]] = said["parts"]
            case "salvaged":
                self.lost.append(said["detail"])
            case "outcome":
                # What a part did not ask that came to its end, nobody asks any more.
                self.questions = {
                    key: one for key, one in self.questions.items() if key in said["questions"]
                }


def _may_be_of_a_reply(error: str) -> bool:
    """Whether what a model said may have made a node fail: it raised itself, or could not use it.

    A server that is down, or a nested node that failed, is nothing of the kind.
    """
    kind = error.partition(":")[0]
    of_replies = {ReplyInvalid.__name__, *_names_under(ReplyCut)}
    return kind in of_replies or kind not in _names_under(HarnessError)


def _names_under(kind: type[HarnessError]) -> set[str]:
    """The names of a class of errors and of all that derive from it."""
    return {kind.__name__}.union(*map(_names_under, kind.__subclasses__()))


def _question(said: Mapping[str, Any]) -> Question:
    node, _, _ = said["key"].rpartition("/")
    return Question(key=said["key"], node=node, text=said["text"] or "", form=said["form"])


def _with_texts(
    inputs: Mapping[str, Mapping[str, Any]], journal: Journal
) -> dict[str, RecordedInput]:
    wanted = {said.get("value_sha256") for said in inputs.values()} - {None}
    texts = {
        item.sha256: item.text
        for item in (journal.items() if wanted else ())
        if isinstance(item, Content) and item.sha256 in wanted
    }
    return {
        name: RecordedInput(
            name=name, text=texts.get(said.get("value_sha256", "")), digest=said.get("digest") or ""
        )
        for name, said in inputs.items()
    }
