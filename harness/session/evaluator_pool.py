"""The evaluator pool: who of several judges a run, so that no judge's bias is every run's.

Whoever may not judge is left out first, by the settings and by the servers' word. Of the others one
is drawn, and the same seed, settings and models behind them give the same judge; or all judge
together, as a panel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from harness.errors import ConfigurationInvalid
from harness.rubric.verdict import Combine
from harness.session.separation import ComparedModels
from harness.session.settings import PoolHash
from harness.trace import sha256_of


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorDraw:
    """Who was drawn, and out of what."""

    evaluator: str
    """The tag drawn."""
    seed: str
    """What it was drawn by."""
    pool: tuple[str, ...]
    """The tags it was drawn from, in order."""
    excluded: Mapping[str, str]
    """Those that were not in the draw, and why."""
    pool_hash: PoolHash
    """How it was drawn."""

    @property
    def pool_sha256(self) -> str:
        """Of the tags it was drawn from, one per line."""
        return sha256_of("\n".join(self.pool))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorPanel:
    """Those who judge every draft together."""

    members: tuple[str, ...]
    """Their tags, each once, in the order of the settings."""
    excluded: Mapping[str, str]
    """Those of the pool who may not, and why."""
    combine: Combine
    """How their judgements become one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorPool:
    """Those who may evaluate a producer's output."""

    members: tuple[str, ...]
    """Their tags, in the order of the settings; at least one."""
    excluded: Mapping[str, str]
    """Who was in the settings beside them, and why they may not."""

    def draw(self, seed: str, *, pool_hash: PoolHash) -> EvaluatorDraw:
        """One member, by the seed alone."""
        if pool_hash == "modulo":
            evaluator = self.members[_number_of(seed) % len(self.members)]
        else:
            # Highest random weight (Thaler and Ravishankar, 1998).
            evaluator = max(self.members, key=lambda tag: (_number_of(f"{seed}\n{tag}"), tag))
        return EvaluatorDraw(
            evaluator=evaluator,
            seed=seed,
            pool=self.members,
            excluded=self.excluded,
            pool_hash=pool_hash,
        )

    def seat(self, combine: Combine) -> EvaluatorPanel:
        """All members, to judge together."""
        members = tuple(dict.fromkeys(self.members))
        return EvaluatorPanel(members=members, excluded=self.excluded, combine=combine)


def evaluator_pool(
    tags: tuple[str, ...], *, producer: str | None, models: ComparedModels
) -> EvaluatorPool:
    """Those of the tags that may evaluate what the producer writes.

    Args:
        tags: As the settings have them, blanks stripped.
        producer: Its tag; None when it cannot be told, and then nobody is excluded.
        models: What is behind the tags.

    Raises:
        ConfigurationInvalid: None is left.
        ModelFileInvalid: A file among them cannot be read.
    """
    excluded = {}
    if producer is not None:
        for tag in tags:
            reason = _why_not(producer, tag, models)
            if reason is not None:
                excluded[tag] = reason
    members = tuple(tag for tag in tags if tag not in excluded)
    if not members:
        reasons = "; ".join(f"'{tag}': {reason}" for tag, reason in excluded.items())
        raise ConfigurationInvalid(
            f"the pool of evaluators is empty{': ' if reasons else ''}{reasons}; under [roles] in "
            "harness.toml, give evaluator endpoints with models of other families than the "
            "producer's",
            code="roles.pool-empty",
        )
    return EvaluatorPool(members=members, excluded=excluded)


def _why_not(producer: str, tag: str, models: ComparedModels) -> str | None:
    if tag == producer:
        return "is the producer"
    kinship = models.kinship(producer, tag)
    objection = models.objection(kinship)
    if objection is None:
        return None
    ways = [chain for chain in (kinship.producer, kinship.evaluator) if len(chain) > 1]
    over = "".join(f", by the fallbacks {' -> '.join(chain)}" for chain in ways)
    return f"it and the producer '{producer}' {objection}{over}"


def _number_of(text: str) -> int:
    # MD5 since the pattern's published code draws by it: the same seed, the same evaluator.
    return int(hashlib.md5(text.encode("utf-8", "replace"), usedforsecurity=False).hexdigest(), 16)
