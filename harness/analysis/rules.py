"""The table of rules, and what several of them say.

Each rule stands in a `rules_…` file: a function, and above it in `@rule(…)` its code, its meaning,
the layer of its cause and the remedies. A new one needs a recording in the tests that shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from harness.analysis.facts import Observed, Server
from harness.analysis.finding import Expected, Layer, Observation, RunFinding
from harness.analysis.time_budget import TimeKind
from harness.inference.providers import Aim

SHORTER_PROMPTS = (
    "shorten the prompts: fewer or shorter passages, only sources that bear on the task"
)
SAME_PART_FIRST = "put what is the same in every prompt first, so that a prefix cache serves it"
SHORTER_REPLIES = "ask for shorter replies: a lower max_output_tokens"
SMALLER_MODEL = "use smaller weights, or a device with more memory bandwidth"
LESS_TO_COMPUTE = "use a smaller model, or a processor or GPU that computes more"
SMALLER_NEIGHBOR = "use smaller weights for one of them"
FEWER_CALLS = "make fewer calls at once"


# So many places are enough to look at.
MOST_SPANS = 20


class Remedy(NamedTuple):
    """The meaning of a finding, and its remedies."""

    meaning: str
    layer: Layer
    moves: tuple[str | Aim, ...]
    """Most likely to help first; an aim stands for what the server's provider offers for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule, with the meaning and remedies of its findings."""

    look: Callable[[Observed], Observation | None]
    advice: Remedy
    cases: Mapping[str, Remedy]
    """Other advice, by the rule's `case`."""
    explains: tuple[TimeKind, ...]
    """The kinds of time on the critical path that a finding accounts for."""
    explained_by: Collection[str]
    """Rules that name the cause of this: next to one of theirs on the same model, or on the whole
    run, this finding is left out."""

    def finding(self, code: str, observed: Observed) -> RunFinding | None:
        """The findings of the rule with this code in a run."""
        observation = self.look(observed)
        if observation is None:
            return None
        advice = self.cases.get(observation.case, self.advice)
        server = observed.server(observation.server or observation.model or "")
        move, expected = _moves(observation, advice.moves, server)
        return RunFinding(
            rule=code,
            severity=observation.severity,
            model=observation.model,
            seen=observation.seen,
            spans=observation.spans[:MOST_SPANS],
            meaning=advice.meaning,
            layer=advice.layer,
            move=move,
            lost_ns=None if observation.lost_ns is None else round(observation.lost_ns),
            expected=expected,
        )


RULES: dict[str, Rule] = {}
"""By the stable code that findings bear."""

Look = Callable[[Observed], Observation | None]


def rule(
    code: str,
    meaning: str,
    layer: Layer,
    *moves: str | Aim,
    cases: Mapping[str, Remedy] | None = None,
    explains: tuple[TimeKind, ...] = (),
    explained_by: Collection[str] = (),
) -> Callable[[Look], Look]:
    """Puts a function into the table, with what its findings mean and what to change."""

    def put(look: Look) -> Look:
        RULES[code] = Rule(
            look=look,
            advice=Remedy(meaning, layer, moves),
            cases=cases or {},
            explains=explains,
            explained_by=explained_by,
        )
        return look

    return put


def _moves(
    observation: Observation, moves: tuple[str | Aim, ...], server: Server
) -> tuple[tuple[str, ...], Expected | None]:
    """What to change, and what the change that the rule has computed is expected to do."""
    # `computed` is the change that `expected` is of: the first, or, where the rule wants one at the
    # server, that one; none if the server offers no such thing.
    aim, how_far = observation.wanted or (None, "")
    changes, computed = list(observation.first), None if observation.wanted else 0
    for move in moves:
        offered = [*server.remedies(move)] if isinstance(move, Aim) else [server.filled(move)]
        if move == aim and offered:
            computed = len(changes)
            offered[0] += f", for {how_far}" if how_far else ""
        changes += offered
    if computed is None or not changes or observation.expected is None:
        return tuple(changes), None
    changes[computed] += f": {observation.expected}"
    return tuple(changes), observation.expected
