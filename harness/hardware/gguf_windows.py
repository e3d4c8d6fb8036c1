"""Which layers of a GGUF model look back through a window only, and how far.

As llama.cpp b11434 has it: `load_arch_hparams` in src/models/, `load_swa_pattern`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from harness.hardware.gguf_keys import ModelKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class _Windows:
    """How an architecture says it. A pattern in the header goes before the period."""

    period: int | None = None
    """One layer of so many sees all, with 0 none does; None if the header must have a pattern."""
    first_sees_all: bool = False
    """Whether it is the first of them; else it is the last."""
    default_tokens: int = 0
    """Length of the window where the header has none; 0 for no windows."""
    fixed_tokens: int = 0
    """Length of the window whatever the header says, unless it says 0."""


_ARCHITECTURES: Final = {
    "afmoe": _Windows(period=4),
    "cohere2": _Windows(period=4),
    "cohere2moe": _Windows(period=4, first_sees_all=True),
    "exaone-moe": _Windows(period=4, default_tokens=128),
    "gemma2": _Windows(period=2, default_tokens=4096),
    "gemma3": _Windows(period=6),
    "gemma3n": _Windows(period=5),
    "gemma4": _Windows(),
    "gpt-oss": _Windows(period=2),
    "granite_swa": _Windows(),
    "laguna": _Windows(period=4, first_sees_all=True),
    "lfm2": _Windows(period=0),
    "llama4": _Windows(period=4, default_tokens=8192, fixed_tokens=8192),  # chunks of so many
    "maple": _Windows(),
    "mellum": _Windows(period=4),
    "mimo2": _Windows(),
    "muse-glimmer": _Windows(period=4),
    "olmo2": _Windows(period=4),
    "plamo3": _Windows(period=8),
    "smallthinker": _Windows(period=4, first_sees_all=True, fixed_tokens=4096),
    "spark2_5": _Windows(),
    "step35": _Windows(),
}
_EXAONE4_LARGE: Final = _Windows(period=4, default_tokens=4096)
_EXAONE4_LARGE_LAYERS: Final = 64  # its smaller sizes have no windows, whatever their headers say
_IGNORED: Final = frozenset({"exaone4", "lfm2moe", "phi3"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWindows:
    """What is known of a model's windows."""

    tokens: int
    """How far they look back."""
    layers: tuple[bool, ...] | None
    """Which layers have one; None if that is not known."""


def layer_windows(keys: ModelKeys) -> LayerWindows:
    """The windows of a model's layers.

    Raises:
        ModelFileInvalid: A key makes no sense.
    """
    none = LayerWindows(tokens=0, layers=(False,) * keys.layers)
    windows = _ARCHITECTURES.get(keys.architecture)
    if keys.architecture == "exaone4" and keys.layers == _EXAONE4_LARGE_LAYERS:
        windows = _EXAONE4_LARGE
    if windows is None:
        ignored = keys.architecture in _IGNORED or not keys.any_begins("attention.sliding_window")
        return none if ignored else LayerWindows(tokens=0, layers=None)
    tokens = keys.count("attention.sliding_window", default=windows.default_tokens)
    if not tokens:
        return none
    return LayerWindows(tokens=windows.fixed_tokens or tokens, layers=_pattern(keys, windows))


def _pattern(keys: ModelKeys, windows: _Windows) -> tuple[bool, ...] | None:
    key = "attention.sliding_window_pattern"
    told = keys.flags(key)
    if told is not None:
        return told
    if windows.period is None or keys.is_untold(key):
        return None
    period = keys.count(key, default=windows.period)
    if period == 0:
        return (True,) * keys.layers
    one = 0 if windows.first_sees_all else period - 1
    return tuple(number % period != one for number in range(keys.layers))
