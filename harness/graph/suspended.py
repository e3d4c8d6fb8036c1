"""How a node that has to wait for a person leaves the run."""

from __future__ import annotations

from harness.graph.outcome import Question


class Suspended(BaseException):
    """Questions have no answer yet.

    No `Exception`: a node that catches whatever may go wrong must not take this for a mistake.

    Attributes:
        questions: What was asked: more than one where the node asks several things at once.
    """

    def __init__(self, *questions: Question) -> None:
        super().__init__("; ".join(one.text for one in questions))
        self.questions = questions
