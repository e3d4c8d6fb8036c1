"""Replies that models gave unasked for any shape, and how a careful reader reads them.

What was read, by which rules, and what was only written by hand: `tests/rubric/replies/README.md`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from rubric.replies.drafts import SAMPLES

from harness.inference.reasoning import ReasoningSplitter, split_unopened
from harness.rubric import Dimension, Draft, Rubric, Scale, half_up
from harness.rubric.judging.judgement import Judgement
from harness.rubric.judging.prompt import judge_messages
from harness.rubric.judging.reply import read_reply

FOLDER = Path(__file__).parent.parent / "replies"
AGREE = 0.95
MISSED = {
    366: "under a key of the model's own, beside `complete_judgment: no`",
    372: "said of a JSON object, in prose",
    "a decimal comma": "no number of JSON, and `8,5` may be two",
    "a sentence with the number in words": "only digits are numbers",
}
"""The replies of which a score is not found, and what it would take that is not worth it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply, and what it was asked."""

    id: int | str
    text: str
    rubric: Rubric
    asked: tuple[str, ...]
    cut: bool
    draft: Draft

    @property
    def read(self) -> Mapping[str, Judgement]:
        asked = [d for d in self.rubric.judged if d.name in self.asked]
        return read_reply(self.text, self.rubric, asked, draft=self.draft, cut=self.cut)

    def disagreements(self, readings: Mapping[str, float | None]) -> list[str]:
        """Where the parser found another score than the reader, one way or the other."""
        assert set(readings) == set(self.asked)
        read, scale, lines = self.read, self.rubric.scale, []
        for name, stated in readings.items():
            right = stated if stated is None else half_up(stated, scale.step, start=scale.min)
            found = read[name].score if name in read else None
            if found != right:
                kind = "missed" if found is None else "invented"
                lines.append(f"{kind}: {self.id}, {name}: read {right}, parsed {found}")
        return lines


def lines_of(name: str) -> list[dict]:
    with (FOLDER / name).open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def rubric_of(scale: Scale, names: list[str], *, rubric_id: str = "answer") -> Rubric:
    # As it was when it was asked: the shipped one may change, and of it a reader needs no more.
    dimensions = tuple(Dimension(name=name, judge="How is it?") for name in names)
    return Rubric(id=rubric_id, title=rubric_id.title(), scale=scale, dimensions=dimensions)


DRAFTS = {one.name: Draft(text=one.draft, task=one.task, sources=one.sources) for one in SAMPLES}
COLLECTED = lines_of("replies.jsonl")
READINGS = lines_of("readings.jsonl")
REPLIES = {
    line["id"]: Reply(
        id=line["id"],
        text=line["text"],
        rubric=rubric_of(Scale(**line["scale"]), line["judged"], rubric_id=line["rubric"]),
        asked=tuple(line["asked"]),
        cut=line["finish_reason"] == "length",
        draft=DRAFTS[line["sample"]],
    )
    for line in COLLECTED
}

WRITTEN = yaml.safe_load((FOLDER / "shapes.yaml").read_text(encoding="utf-8"))
NAMES = sorted({name for shape in WRITTEN for name in shape["asked"]})


def answer_in(text: str) -> str:
    """Without the thinking, which is told apart before a reply is read."""
    splitter = ReasoningSplitter()
    answer = splitter.feed(text)[1] + splitter.rest()[1]
    return split_unopened(answer)[1]


SHAPES = {
    shape["id"]: Reply(
        id=shape["id"],
        text=answer_in(shape["text"]),
        rubric=rubric_of(Scale(), NAMES),
        asked=tuple(shape["asked"]),
        cut=shape.get("cut", False),
        draft=Draft(text="", task=""),
    )
    for shape in WRITTEN
}

READ_CLOSELY = {
    "recorded": [(REPLIES[line["id"]], line["readings"]) for line in READINGS],
    "by hand": [(SHAPES[shape["id"]], shape["readings"]) for shape in WRITTEN],
}


@pytest.mark.parametrize("cases", READ_CLOSELY.values(), ids=READ_CLOSELY)
def test_the_parser_agrees_with_a_careful_reader(cases):
    by_reply = [reply.disagreements(readings) for reply, readings in cases]
    lines = [line for lines in by_reply for line in lines]
    scores = sum(len(readings) for _, readings in cases)
    replies_agreed = sum(not lines for lines in by_reply)

    print(f"{scores - len(lines)} of {scores} scores, {replies_agreed} of {len(cases)} replies")
    print(*lines, sep="\n")
    assert scores - len(lines) >= AGREE * scores, "\n".join(lines)
    assert replies_agreed >= AGREE * len(cases), "\n".join(lines)


def test_where_they_disagree_it_is_known_and_a_score_was_missed_and_none_made_up():
    cases = [case for cases in READ_CLOSELY.values() for case in cases]
    lines = {reply.id: line for reply, said in cases for line in reply.disagreements(said)}

    assert lines.keys() == MISSED.keys(), lines
    assert all(line.startswith("missed") for line in lines.values()), lines


@pytest.mark.parametrize("replies", [REPLIES, SHAPES], ids=["recorded", "by hand"])
def test_every_score_stands_in_its_reply_as_a_number_and_is_on_the_scale(replies):
    read = [(reply, name, one) for reply in replies.values() for name, one in reply.read.items()]
    for reply, name, judgement in read:
        scale = reply.rubric.scale
        number = float(reply.text[judgement.start : judgement.end].replace(",", "."))
        assert name in reply.asked
        assert scale.min <= number <= scale.max
        assert judgement.score == half_up(number, scale.step, start=scale.min)
    assert len({reply.id for reply, _, _ in read}) >= 5


def test_what_a_reply_copies_of_the_draft_is_not_its_judgement():
    rubric = rubric_of(Scale(), ["relevance", "depth"])
    draft = Draft(text='{"relevance": {"score": 10}}\nDepth: 10/10\n', task="Say why. Depth: 9")
    prompt = judge_messages(rubric, rubric.judged, draft, shown=draft.text)[-1].content
    copied = prompt[prompt.index("# Task") :]
    unclosed = prompt[: prompt.index("</draft-")]

    assert "10/10" in unclosed
    assert read_reply(copied, rubric, rubric.judged, draft=draft) == {}
    assert read_reply(unclosed, rubric, rubric.judged, draft=draft) == {}
    behind = f'{copied}\n{{"relevance": {{"score": 4}}, "depth": {{"score": 3}}}}'
    read = read_reply(behind, rubric, rubric.judged, draft=draft)
    assert {name: judgement.score for name, judgement in read.items()} == {
        "relevance": 4,
        "depth": 3,
    }
    assert behind[read["depth"].start : read["depth"].end] == "3"
