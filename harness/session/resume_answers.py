"""Answers to a run's questions, told apart and looked at before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.errors import InvalidInput, did_you_mean
from harness.graph import Question
from harness.graph.answer import answer_problem


def match_answers(
    given: Mapping[str, object], questions: Sequence[Question]
) -> dict[tuple[str, str], object]:
    """Which question each answer is for, as the graph takes them.

    Args:
        given: By a question's key, or by the node that asks if it asks but one.
        questions: Those that wait.

    Raises:
        InvalidInput: There is no such question, or it is no such answer.
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
    """The one that an answer without a name is for.

    Raises:
        InvalidInput: There is none, or more than one.
    """
    if not questions:
        raise InvalidInput(
            "the run asks nothing that waits for an answer; leave --answer out",
            code="answer.none-asked",
        )
    if len(questions) > 1:
        listed = "; ".join(f"{one.key}: {_title(one)}" for one in questions)
        raise InvalidInput(
            f"{len(questions)} questions wait for an answer ({listed}); say which one it is for: "
            f"--answer {questions[0].key}=…",
            code="answer.several-asked",
        )
    return questions[0]


def _title(question: Question) -> str:
    """Its first line: a whole draft may follow."""
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
            f"no question waits for an answer, so none for '{name}'", code="answer.none-waits"
        )
    raise InvalidInput(
        f"no question '{name}' waits for an answer; "
        + did_you_mean(name, [one.key for one in questions]),
        code="answer.question-unknown",
    )
