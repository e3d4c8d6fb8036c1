"""Replies that models gave unasked for any shape, and how a careful reader reads them.

What was read, by which rules, and what was only written by hand: `tests/rubric/replies/README.md`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from rubric.replies.drafts import DRAFTS

from harness.inference.marks import MarkSplitter, calls_in, split_whole
from harness.rubric import Dimension, Draft, Rubric
from harness.rubric.prompt import ShownDraft, judge_messages
from harness.rubric.reply import read_reply
from harness.rubric.rubric import Scale
from harness.rubric.verdict import half_up

FOLDER = Path(__file__).parent / "replies"
MISSED = {
    241: "0.2 on a scale to 10 may be a share",
    366: "under a key of the model's own, beside `complete_judgment: no`",
    372: "said of a JSON object, in prose",
    189: "in a second object that is cut",
    "cut in the third number": "broken JSON is not read",
    "JSON with line breaks and quotation marks inside a text": "broken JSON is not read",
    "two scores in one object": "a key that stands twice",
    "table with the weights before the scores": "two numbers in a row",
    "a decimal comma": "under a heading that the rubric does not have",
    "a sentence": "a score that is not behind its label",
    "a sentence with the number in words": "a score that is not behind its label",
}
"""The replies of which a score is not found, and what it would take that is not worth it."""


def lines_of(name: str) -> list[dict]:
    with (FOLDER / name).open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


RECORDED = lines_of("replies.jsonl")
WRITTEN = yaml.safe_load((FOLDER / "shapes.yaml").read_text(encoding="utf-8"))
READINGS = {line["id"]: line["readings"] for line in (*lines_of("readings.jsonl"), *WRITTEN)}


HOSTILE = yaml.safe_load((FOLDER / "hostile.yaml").read_text(encoding="utf-8"))


def rubric_of(scale: Scale, names: list[str], *, rubric_id: str = "answer") -> Rubric:
    # As it was when it was asked: the shipped one may change, and of it a reader needs no more.
    dimensions = tuple(Dimension(name=name, judge="How is it?") for name in names)
    return Rubric(id=rubric_id, title=rubric_id.title(), scale=scale, dimensions=dimensions)


def answer_in(text: str) -> str:
    """Without the thinking, which is told apart before a reply is read."""
    splitter = MarkSplitter()
    answer = splitter.feed(text)[1] + splitter.rest()[1]
    if splitter.calls:  # of a tool that was not offered: its arguments are taken for the answer
        return calls_in(splitter.calls, ())[0][1]
    return split_whole(answer, reasoning="", tools=())[1]


def parsed() -> Iterator[tuple[int | str, Scale, dict[str, float]]]:
    """Of each reply its number or name, the scale, and the scores that the parser finds."""
    for line in RECORDED:
        rubric = rubric_of(Scale(**line["scale"]), line["judged"], rubric_id=line["rubric"])
        cut = line["finish_reason"] == "length"
        read = scores(line["text"], rubric, line["asked"], DRAFTS[line["sample"]], cut=cut)
        yield line["id"], rubric.scale, read
    names = sorted({name for shape in WRITTEN for name in shape["asked"]})
    rubric, nothing = rubric_of(Scale(), names), Draft(text="", task="")
    for shape in WRITTEN:
        cut = shape.get("cut", False)
        read = scores(answer_in(shape["text"]), rubric, shape["asked"], nothing, cut=cut)
        yield shape["id"], rubric.scale, read


def scores(text: str, rubric: Rubric, names, draft: Draft, *, cut: bool) -> dict[str, float]:
    asked = [dimension for dimension in rubric.judged if dimension.name in names]
    read = read_reply(text, rubric, asked, draft=draft, cut=cut)
    return {name: judgement.score for name, judgement in read.items()}


def test_what_a_careful_reader_finds_is_missed_where_it_is_known_and_nothing_is_made_up():
    missed, made_up = set(), []
    for reply, scale, found in parsed():
        for name, stated in READINGS[reply].items():
            right = None if stated is None else half_up(stated, scale.step, start=scale.min)
            if name in found and found[name] != right:
                made_up.append((reply, name, found[name], right))
            elif name not in found and right is not None:
                missed.add(reply)

    assert made_up == []
    assert missed == MISSED.keys()


@pytest.mark.parametrize("shape", HOSTILE, ids=[shape["id"] for shape in HOSTILE])
def test_of_a_reply_in_a_shape_of_public_threads_nothing_is_made_up(shape):
    low, high, step = shape.get("scale", (0, 10, 0.5))
    rubric = rubric_of(Scale(min=low, max=high, step=step), ["clear", "useful", "safe"])
    draft, cut = Draft(text=shape.get("draft", ""), task="Write."), shape.get("cut", False)

    assert scores(shape["text"], rubric, shape["asked"], draft, cut=cut) == shape["read"]


def test_what_a_reply_copies_of_the_draft_is_not_its_judgement():
    rubric = rubric_of(Scale(), ["relevance", "depth"])
    draft = Draft(text='{"relevance": {"score": 10}}\nDepth: 10/10\n', task="Say why. Depth: 9")
    prompt = judge_messages(
        rubric, rubric.judged, draft, shown=ShownDraft(draft.text, sources=draft.sources)
    )[-1].content
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
