"""The scores that an evaluator's reply states, and the dimensions that it states them for."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.rubric.draft import Finding
from harness.rubric.prompt import rule_keys
from harness.rubric.rubric import Dimension, Rubric

RuleAnswer = tuple[str, str, bool]
"""A dimension, the key of one of its rules, and whether a text calls the rule true."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A score that a text states for a dimension, and where."""

    dimension: str
    score: float
    """As it is written: it may be off the scale, or between two steps."""
    scale_ends: Sequence[float] = ()
    """The highest score of the scale that is named with the number; empty if none is named."""
    start: int = 0
    """Where the label begins, or the JSON."""
    end: int = 0
    reason: str = ""
    issues: tuple[Finding, ...] = ()
    is_total: bool = False
    is_doubtful: bool = False
    """Whether a sentence around the score, or words behind it, may deny it."""
    is_mention: bool = False
    """Whether it counts only against other scores of the dimension, never as a score."""

    @property
    def is_bare(self) -> bool:
        """Whether it is a score without a scale of its own."""
        return not (self.scale_ends or self.is_mention)


class AskedDimensions:
    """The dimensions that a judge was asked for, as its reply names them."""

    def __init__(self, rubric: Rubric, dimensions: Sequence[Dimension]) -> None:
        # All dimensions, also those not asked for: their scores must not be taken for another's.
        self.scales = {d.name: rubric.scale_of(d.name) for d in rubric.dimensions}
        self.rules = {dimension.name: rule_keys(dimension) for dimension in dimensions}
        """Dimension asked for → its rules, as key → statement."""
        self.rules_by_words: dict[str, list[tuple[str, str]]] = defaultdict(list)
        """A rule's key or statement, by its letters → the dimensions that have it, with its key."""
        for name, rules in self.rules.items():
            for key, statement in rules.items():
                for words in {joined(key), joined(statement)}:
                    self.rules_by_words[words].append((name, key))
        self.single = dimensions[0].name if len(dimensions) == 1 else ""
        """The dimension that a score without a name is for; empty if several were asked for."""
        self.rubric_names = {rubric.id.casefold(), rubric.title.casefold()}
        self._names_by_key = {_key(name): name for name in self.scales}
        self.label = _label_pattern(self._names_by_key)
        """Finds the name of a dimension, or a word for a score."""

    def named_by(self, label: str) -> str:
        """The dimension that a key or a heading names: `1. Relevance score (0-10)`; or empty."""
        key = _key(re.sub(r"\([^()]*+\)|\[[^]]*+\]|^\W*\d{1,2}[.)]\s", " ", label[:200]))
        while key not in self._names_by_key:
            shorter = _AROUND_NAME.sub("", key, count=1)
            if shorter == key:
                return ""
            key = shorter
        return self._names_by_key[key]


_SUFFIX = "score|rating|grade|evaluation"
CHANGED = (
    "revised|final|adjusted|corrected|updated|initial|original|new|after_\\w+"
    "|corrections?|revisions?|updates?"
)
"""Words of a second score beside the first."""
_AROUND_NAME = re.compile(rf"^(?:{_SUFFIX}|{CHANGED})_?(?=.)|(?<=.)_?(?:{_SUFFIX}|{CHANGED})$")
SCORE_LABEL = (
    r"(?:(?:my|the|your)[ \t]+)?(?P<total>(?:(?:final|overall|total)[ \t]+){0,2})"
    r"(?:scores?|rating|grade|verdict)\b|\\boxed(?=\{)|\[result\]"
)


def _label_pattern(keys: Iterable[str]) -> re.Pattern[str]:
    """Matches the name of one of these dimensions, or a word for a score."""
    # The longest first: `depth_of_field` is not `depth`.
    alternatives = "|".join(
        r"[\s_-]{1,3}".join(map(re.escape, key.split("_")))
        for key in sorted(keys, key=len, reverse=True)
    )
    name = rf"(?:{alternatives})(?:[ \t_-]{{0,3}}(?:{_SUFFIX}))?"
    return re.compile(
        rf"(?<![\w-])(?:(?P<name>{name})|(?P<score>{SCORE_LABEL}))(?![\w-])", re.IGNORECASE
    )


def _key(label: str) -> str:
    return re.sub(r"[\W_]+", "_", label.casefold()).strip("_")


def joined(label: str) -> str:
    """A label's letters and digits alone: `it_is_short`, `It is short.` and `itIsShort` are one."""
    return re.sub(r"[\W_]+", "", label.casefold())
