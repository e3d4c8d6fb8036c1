"""Values of Python as JSON, the same in every process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from pydantic import RootModel
from pydantic_core import to_json, to_jsonable_python

_COLLECTIONS = (list, tuple, set, frozenset, deque)


def text_of(value: object) -> str:
    """A text as it is; any other value as JSON, as in the journal; NaN is null."""
    if isinstance(value, str):
        return value
    plain = to_jsonable_python(
        value, by_alias=False, round_trip=True, bytes_mode="base64", fallback=_number_or_text
    )
    return to_json(sets_in_order(plain, value), inf_nan_mode="null").decode()


def _number_or_text(value: Any) -> object:  # noqa: ANN401 - of any type
    # A number or a truth of NumPy. The item of a long float is one again, of a time a plain number.
    item = value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else None
    is_number = type(item) in (int, float) and isinstance(value, Real)
    return item if is_number or type(item) is bool else str(value)


def sets_in_order(plain: object, value: object) -> object:
    """`plain`, the JSON of `value`, with the members of sets sorted.

    The order of a set differs from process to process.
    """
    if isinstance(value, RootModel):
        value = value.root
    if type(plain) is list and isinstance(value, _COLLECTIONS) and len(plain) == len(value):
        items = [*map(sets_in_order, plain, value)]
        # By `repr`, since members of several types have no order of their own.
        return sorted(items, key=repr) if isinstance(value, set | frozenset) else items
    if type(plain) is dict:
        # The fields of a model or a dataclass, or the values of a mapping.
        values: Iterable[object] = [getattr(value, name, None) for name in plain]
        if isinstance(value, Mapping) and len(plain) == len(value):
            values = value.values()
        return dict(zip(plain, map(sets_in_order, plain.values(), values), strict=True))
    return plain
