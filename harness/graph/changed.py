"""Outputs that a node changed after they were written down.

All nodes that take an output are given one and the same object. Where one of them changes it, the
others see that or not, as chance has it; in a run that goes on from the journal they never do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.graph.outcome import Skipped
from harness.graph.state import Blocked, State
from harness.graph.values import ValueForm, digest

_UNCHANGING = frozenset({str, int, float, bool, bytes, type(None), Skipped, Blocked})


def changed_outputs(states: Iterable[State]) -> Iterator[str]:
    """The calls whose outputs are not any more what the journal has, by their labels.

    Args:
        states: Those of a run that is over.
    """
    for state in states:
        if not state.step.mapped:
            if _is_changed(state.outcome, state.step.form, state.digest):
                yield state.path
        elif state.items is not None and isinstance(state.outcome, list):
            for item, value in enumerate(state.items):
                if _is_changed(value, state.step.form, state.digests[item]):
                    yield state.label(item)
        if state.step.gives_items and state.has_changed_lists():
            yield state.path


def _is_changed(value: object, form: ValueForm, written: str) -> bool:
    if type(value) in _UNCHANGING:
        return False
    try:
        return digest(form.encode(value)) != written
    except TypeError:
        return True
