"""From what nodes ask in roles to the models that play them in one run."""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import ConfigurationInvalid
from harness.session.course import Plan, Rounds, Stretch
from harness.session.node_uses import MEMORY, Loop, NodeUses, Turn
from harness.session.roles import EVALUATOR, PRODUCER, Roles
from harness.session.usual_rounds import NOTHING_USUAL, UsualRounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """Who plays what in a run, and how long its loops usually are. Fallbacks are left out.

    So is, of what is certain, who shortens drafts: most are short enough.
    """

    roles: Roles
    """The roles that models are asked in."""
    summariser: str | None = None
    """Tag of the endpoint that shortens drafts that are too long for the evaluator."""
    embedder: str | None = None
    """Tag of the endpoint that makes the vectors of passages."""
    usual: UsualRounds = NOTHING_USUAL
    """What loops took before."""

    def plan_of(self, uses: NodeUses) -> Plan:
        """What a call of a node is expected to ask."""
        parts: list[Stretch | Rounds] = []
        for use in uses.uses:
            if isinstance(use, Loop):
                parts.append(self.rounds_of(use))
            else:
                parts += self._stretches_of(use)
        return Plan(parts=tuple(parts), is_all=uses.is_all)

    def rounds_of(self, loop: Loop, *, rounds_before: int = 0, is_judged: bool = True) -> Rounds:
        """What a revise loop asks.

        Args:
            loop: As the source has it, or as it has begun.
            rounds_before: Those that it goes on behind.
            is_judged: Whether its rubric has anything that a model must judge.
        """
        revision = self._stretches_of(Turn(roles=(PRODUCER,)))
        usual = self.usual.of(loop.rubric)
        return Rounds(
            drafting=revision if rounds_before or not loop.has_draft else (),
            evaluation=self._evaluation() if is_judged else (),
            revision=revision,
            most=max(loop.max_rounds - rounds_before, 0),
            usual=None if usual is None else usual - rounds_before,
        )

    def _stretches_of(self, turn: Turn) -> tuple[Stretch, ...]:
        if turn.roles == (EVALUATOR,):
            return self._evaluation()
        models = tuple(dict.fromkeys(tag for role in turn.roles for tag in self._tags_of(role)))
        return (Stretch(models=models, comes_again=len(models) > 1),) if models else ()

    def _evaluation(self) -> tuple[Stretch, ...]:
        """All evaluators side by side."""
        judges = self.roles.evaluators
        return (Stretch(models=judges),) if judges else ()

    def _tags_of(self, role: str) -> tuple[str, ...]:
        if role == MEMORY:
            return (self.embedder,) if self.embedder else ()
        if role == EVALUATOR:
            return tuple(self.roles.evaluators)
        try:
            return (self.roles.model(role),)
        except ConfigurationInvalid:
            return ()  # whoever asks is told
