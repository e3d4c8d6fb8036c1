"""Named sets of defaults, which a rubric chooses by `preset`.

`book` has the values of the book *Agentic Harness Engineering*, `code` those of its author's public
code. A file's own values go before what it extends, and that before its preset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "book": {
        "scale": {"step": 0.5},
        "pass_at": 8.0,
        "focus_below": 7.0,
        "shorten": {"evaluate_over": 6_000, "revise_over": 5_000, "cap": 20_000},
    },
    "code": {
        "scale": {"step": 1},
        "pass_at": 8.0,
        "focus_below": 7.0,
        "shorten": {"evaluate_over": 32_000, "revise_over": 5_000, "cap": None},
    },
}
"""What each says of fields that a file leaves out, by its name. Weights are 1, unless given."""
