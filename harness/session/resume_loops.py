"""Revise loops of a run's earlier parts: how far they came, for those that go on with them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.rubric import Rubric
from harness.trace import Journal, NodeOutput
from harness.wiggum import RecordedLoop, Round, recorded_loops, restored_rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierLoops:
    """The loops of a run until now."""

    loops: Mapping[str, RecordedLoop]
    """All of them, by their keys."""
    rounds: Mapping[str, tuple[Round, ...] | str]
    """The rounds of those whose node has not come to its end; in place of those that cannot be had,
    why not."""

    def within(self, calls: Collection[str]) -> tuple[RecordedLoop, ...]:
        """The loops that ended in these calls, or in pipelines that these called.

        Args:
            calls: Their labels.
        """
        return tuple(
            loop
            for key, loop in self.loops.items()
            if loop.stop_reason not in {None, "cancelled"}
            and any(label in calls for label in _around(label_of(key)))
        )


NO_LOOPS = EarlierLoops(loops={}, rounds={})
"""Of a run that is not resumed."""


def earlier_loops(
    journal: Journal, outputs: Iterable[NodeOutput], *, lost: bool = False
) -> EarlierLoops:
    """Reads the loops of a run.

    Args:
        journal: The run's.
        outputs: What its nodes gave.
        lost: Whether records are missing, so that rounds may be: open loops begin anew then.

    Raises:
        JournalInvalid: The journal is damaged.
    """
    loops = recorded_loops(journal)
    ended = {
        one.node if one.item is None else f"{one.node}[{one.item}]" for one in outputs if loops
    }
    open_loops = [loop for key, loop in loops.items() if label_of(key) not in ended]
    if lost:
        why = "the journal was damaged, and may not have all of it"
        return EarlierLoops(loops=loops, rounds={loop.key: why for loop in open_loops})
    return EarlierLoops(loops=loops, rounds=restored_rounds(open_loops, journal))


def loop_key(
    call_key: str, *, task: str, rubric: Rubric, sources: Sequence[str], draft: str | None
) -> str:
    """What a loop is known by: whose it is, and what it is about.

    Args:
        call_key: Of `NodeCall.key`.
        task: The loop's.
        rubric: The same.
        sources: The same.
        draft: The one to begin with, if it is given.
    """
    about = json.dumps([task, rubric.sha256, list(sources), draft])
    return f"{call_key}-{hashlib.sha256(about.encode()).hexdigest()[:16]}"


def label_of(key: str) -> str:
    """The label of the node call that a loop is of."""
    return key.rpartition("#")[0]


def _around(label: str) -> Iterable[str]:
    """A call's label, and those of the calls that it is nested in."""
    while label:
        yield label
        # `answer[3]/brief/findings`: the call around it is `answer[3]`.
        label = label.rpartition("/")[0]
