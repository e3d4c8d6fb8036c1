"""The table of rules, and the remedies that several of them name.

Each rule stands in a `rules_…` file: a function, and above it in `@rule(…)` its code, its meaning,
the layer of its cause and the remedies. A new rule needs a recording in the tests that shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from harness.analysis.finding import Layer, Observation, Observations, RunFinding, quoted
from harness.analysis.observed import Observed, Server
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
# A person looks at no more spans of one finding.
MOST_SPANS = 20


class Remedy:
    """The meaning of a finding, the layer of its cause, and the moves that help."""

    def __init__(self, meaning: str, layer: Layer, *moves: str | Aim) -> None:
        self.meaning: str = meaning
        self.layer: Layer = layer
        # Most likely to help first. An aim stands for what the server's provider offers for it.
        self.moves: tuple[str | Aim, ...] = moves


Check = Callable[[Observed], Observations]  # looks for one fault in a run


@dataclass(frozen=True, slots=True)
class Rule:
    """A check, with the meaning and remedies of its findings."""

    check: Check
    advice: Remedy
    cases: Mapping[str, Remedy]  # `Observation.case` → the advice in place of `advice`
    explains: tuple[TimeKind, ...]  # kinds of time that a finding accounts for
    # Codes of rules that name the cause of this one's findings. A finding is left out next to one
    # of theirs on the same model; a finding on the whole run, next to any of theirs.
    explained_by: Collection[str]

    def finding(self, code: str, observed: Observed) -> RunFinding | None:
        """The worst that the check saw in a run, if it cost enough; `code` is this rule's."""
        costly = [seen for seen in self.check(observed) if observed.is_costly(seen)]
        if not costly:
            return None
        # If no time was lost, the worst has the most spans that show it.
        observation = max(costly, key=lambda seen: (seen.lost_ns or 0, len(seen.spans)))
        advice = self.cases.get(observation.case, self.advice)
        server = observed.server(observation.server or observation.model or "")
        kind = (observation.case, observation.severity)
        alike = [seen.model for seen in costly if (seen.case, seen.severity) == kind and seen.model]
        others = quoted(model for model in alike if model != observation.model)
        return RunFinding(
            rule=code,
            severity=observation.severity,
            model=observation.model,
            seen=observation.seen + (f" The same was seen of {others}." if others else ""),
            spans=observation.spans[:MOST_SPANS],
            meaning=advice.meaning,
            layer=advice.layer,
            move=tuple(_moves(observation, advice.moves, server)),
            lost_ns=None if observation.lost_ns is None else round(observation.lost_ns),
        )


RULES: dict[str, Rule] = {}  # stable code → rule


def rule(
    code: str,
    meaning: str,
    layer: Layer,
    *moves: str | Aim,
    cases: Mapping[str, Remedy] | None = None,
    explains: tuple[TimeKind, ...] = (),
    explained_by: Collection[str] = (),
) -> Callable[[Check], Check]:
    """Puts a check into `RULES`, with what its findings mean and the moves that help."""

    def put(check: Check) -> Check:
        advice = Remedy(meaning, layer, *moves)
        RULES[code] = Rule(check, advice, cases or {}, explains, explained_by)
        return check

    return put


def _moves(observation: Observation, moves: tuple[str | Aim, ...], server: Server) -> Iterator[str]:
    """The texts of all moves; `target` stands at the first change of the first aim."""
    yield from observation.first_moves
    target = observation.target
    for move in moves:
        if not isinstance(move, Aim):
            yield server.filled(move)
            continue
        changes = [*server.remedies(move, target)]
        if changes and target:
            unit = "calls at once" if move is Aim.ANSWER_MORE_AT_ONCE else "tokens"
            changes[0] += f", for {target:,} {unit}"
        target = 0
        yield from changes
