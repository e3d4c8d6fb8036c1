"""The course of one call of a node: which models it still asks, as far as that is known.

Told what the call does, it drops what lies behind. What the call asks that was not foreseen stands
first as long as it lasts. Knows tags, and neither roles nor the budget.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Models that are asked before the turn of others comes."""

    models: tuple[str, ...]
    """Tags, at least one; several side by side, each done when its calls have ended."""
    comes_again: bool = False
    """Whether they are asked one after the other instead, again and again, nobody knows how
    often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """A revise loop, from its first draft on."""

    drafting: tuple[Stretch, ...]
    """Before its first evaluation; none where it is given a draft."""
    evaluation: tuple[Stretch, ...]
    """Each."""
    revision: tuple[Stretch, ...]
    """Before each further one."""
    most: int
    """Evaluations at most."""
    usual: int | None = None
    """What such loops took before; None when nobody knows."""

    @property
    def models(self) -> frozenset[str]:
        """All that a further round asks."""
        return frozenset(m for one in (*self.revision, *self.evaluation) for m in one.models)

    @property
    def expected(self) -> int:
        """How many are taken for certain at first: those that are usual, and else all."""
        return self.most if self.usual is None else min(max(self.usual, 1), self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a call is expected to ask before it begins."""

    parts: tuple[Stretch | Rounds, ...] = ()
    """In order."""
    is_all: bool = True
    """Whether it asks nothing else."""


@dataclass(slots=True, eq=False)
class LoopAhead:
    """A revise loop of a course.

    Attributes:
        rounds: What it is made of.
        promised: How many of its rounds were expected by now.
        has_begun: Whether it is no mere plan.
    """

    rounds: Rounds
    promised: int
    has_begun: bool = False

    @property
    def may_go_on(self) -> bool:
        """Whether there can be more rounds than are expected."""
        return self.promised < self.rounds.most


@dataclass(slots=True, eq=False)
class _Piece:
    """A stretch that has not ended."""

    stretch: Stretch
    ahead: tuple[str, ...]
    loop: LoopAhead | None = None
    has_begun: bool = False

    def ask(self, model: str) -> None:
        self.has_begun = True
        models = self.stretch.models
        if self.stretch.comes_again:
            place = models.index(model)
            self.ahead = models[place:] + models[:place]
        elif model not in self.ahead:
            self.ahead = (model, *self.ahead)


class Course:
    """What one call of a node still asks.

    Args:
        plan: What it is expected to ask.

    Attributes:
        was_surprised: Whether a model was asked out of its turn, so that more than this may still
            be asked.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # How many calls of each model are under way.
        self._calls: Counter[str] = Counter()
        self._pieces: list[_Piece] = []
        self._loop: LoopAhead | None = None
        self._has_moved = False
        self.was_surprised = False
        self._begin()

    @property
    def ahead(self) -> tuple[str, ...]:
        """Tags, the present or next one first, each stretch of one once."""
        tags = itertools.chain.from_iterable(piece.ahead for piece in self._pieces)
        return tuple(tag for tag, _ in itertools.groupby(tags))

    @property
    def perhaps(self) -> frozenset[str]:
        """What further rounds ask that a loop may still have, beyond those that are expected."""
        loops = {piece.loop for piece in self._pieces} | {self._loop}
        going_on = [loop.rounds.models for loop in loops if loop is not None and loop.may_go_on]
        return frozenset().union(*going_on)

    # --- what the call does -----------------------------------------------------------------------

    def begin_anew(self) -> None:
        """A further attempt."""
        if self._has_moved:
            self._calls.clear()
            self._begin()

    def asks(self, model: str) -> None:
        """A call of a model begins."""
        self._has_moved = True
        self._calls[model] += 1
        index = self._index_of(model)
        if index is None or (index and self._is_asking_another(model)):
            self.was_surprised = True
        if index is None:
            self._drop_if_begun()
            self._pieces.insert(0, _Piece(Stretch(models=(model,)), (model,)))
        else:
            del self._pieces[:index]
        self._pieces[0].ask(model)

    def answered(self, model: str) -> None:
        """A call of a model has ended, however it did."""
        # Of an attempt that failed, calls may end after the next has begun.
        self._calls[model] = max(self._calls[model] - 1, 0)
        if self._calls[model] > 0 or not self._pieces:
            return
        piece = self._pieces[0]
        if piece.stretch.comes_again or model not in piece.ahead or len(piece.ahead) == 1:
            return  # the last is the present one until another's turn comes: there may be more
        piece.ahead = tuple(other for other in piece.ahead if other != model)

    def begin_loop(self, rounds: Rounds) -> LoopAhead:
        """A revise loop begins, now that it is known what it is made of."""
        self._has_moved = True
        loop = LoopAhead(rounds, rounds.expected, has_begun=True)
        for index, piece in enumerate(self._pieces):
            if piece.stretch.comes_again and rounds.models <= {*piece.stretch.models}:
                return loop  # one of several; together they come by turns
            if piece.loop is not None and not piece.loop.has_begun:
                planned = piece.loop
                self._pieces = [one for one in self._pieces[index:] if one.loop is not planned]
                break
        else:
            self._drop_if_begun()
        self._loop = loop
        self._pieces[:0] = _pieces_of(loop)
        return loop

    def end_loop(self, loop: LoopAhead) -> None:
        """It has ended; what it would still have asked is not asked."""
        if self._loop is loop:
            self._loop = None
        self._pieces = [piece for piece in self._pieces if piece.loop is not loop]

    # --- pieces -----------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._loop = None
        self._has_moved = False
        self._pieces = []
        for part in self._plan.parts:
            if isinstance(part, Stretch):
                self._pieces.append(_Piece(part, part.models))
            else:
                self._pieces += _pieces_of(LoopAhead(part, part.expected))

    def _index_of(self, model: str) -> int | None:
        """Where a model's next turn is; None if it was not expected to have one."""
        loop = self._loop
        if loop is None:
            return _first(self._pieces, model)
        # Beside a loop that goes on, others may run. Its own turns are not theirs.
        end = max((n + 1 for n, piece in enumerate(self._pieces) if piece.loop is loop), default=0)
        index = _first(self._pieces[:end], model)
        if index is None and loop.may_go_on and model in loop.rounds.models:
            loop.promised += 1
            self._pieces[end:end] = _as_pieces(
                (*loop.rounds.revision, *loop.rounds.evaluation), loop
            )
            index = _first(self._pieces, model)
        return index

    def _is_asking_another(self, model: str) -> bool:
        """Whether calls are under way of a stretch that would be taken to lie behind."""
        return any(self._calls[one] > 0 for one in self._pieces[0].stretch.models if one != model)

    def _drop_if_begun(self) -> None:
        """What was asked last is over, if it is no loop's: that goes on behind what comes now."""
        if self._pieces and self._pieces[0].has_begun and self._pieces[0].loop is None:
            del self._pieces[0]


def _pieces_of(loop: LoopAhead) -> list[_Piece]:
    rounds = loop.rounds
    if not rounds.most:
        return []
    first = (*rounds.drafting, *rounds.evaluation)
    further = (*rounds.revision, *rounds.evaluation) * (loop.promised - 1)
    return _as_pieces((*first, *further), loop)


def _as_pieces(stretches: Iterable[Stretch], loop: LoopAhead) -> list[_Piece]:
    return [_Piece(one, one.models, loop) for one in stretches]


def _first(pieces: Sequence[_Piece], model: str) -> int | None:
    return next((n for n, one in enumerate(pieces) if model in one.stretch.models), None)
