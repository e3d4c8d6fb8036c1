"""Compares annotations: may a value of one type be given to a parameter of another?

For checks before there is any value. Only what is certain is refused: classes of which neither
derives from the other, alone, in unions, and as the arguments of equal containers; and different
literals. Type variables, protocols, callables and texts fit everything, as `Any` does.
"""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union

from pydantic import BaseModel

_UNIONS = (Union, types.UnionType)
_UNKNOWN = (Any, object, inspect.Parameter.empty, collections.abc.Callable)
# The types that may be given in place of a number's, by PEP 484.
_PROMOTED: Mapping[type, tuple[type, ...]] = {float: (int,), complex: (int, float)}
# Without items, or without an order of items that is the same in every process.
_NOT_LIST_LIKE = (
    *(str, bytes, bytearray, memoryview, BaseModel),
    *(collections.abc.Set, collections.abc.Mapping),
)
_STREAMS = (collections.abc.Iterable, collections.abc.AsyncIterable)

P = ParamSpec("P")
R = TypeVar("R")


def remembered(function: Callable[P, R]) -> Callable[P, R]:
    """Caches a function by annotation: large graphs have few different ones."""
    cached = lru_cache(maxsize=1024)(function)

    @wraps(function)
    def ask(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            # Some annotations have no hash, such as `Annotated[str, {}]`: these are not cached.
            return cached(*args, **kwargs)  # type: ignore[arg-type]  # whether they have a hash
        except TypeError:
            return function(*args, **kwargs)

    return ask


@remembered
def fits(produced: object, required: object) -> bool:
    """Whether a value of the first annotation may be given to a parameter of the second.

    A union fits if any of its members does, on either side: `str | None` may be a `str`, and only
    the run shows it. A base class may turn out to be the derived class; a number fits upwards from
    bool to int to float to complex, never down.
    """
    try:
        return any(_fits(p, w) for p in members_of(produced) for w in members_of(required))
    except (RecursionError, TypeError):
        return True  # aliases that contain themselves, as one of any JSON does; odd metaclasses


def _fits(produced: object, required: object) -> bool:
    p_class, w_class = _class_of(produced), _class_of(required)
    if p_class is None or w_class is None:
        return True
    p, w = _arguments(produced), _arguments(required)
    if typing.get_origin(produced) is typing.get_origin(required) is Literal:
        return p == w
    if p_class is w_class:
        if not p or not w:
            return True
        p = p[:1] * len(w) if Ellipsis in p else p  # a tuple of any length
        w = w[:1] * len(p) if Ellipsis in w else w
        return len(p) == len(w) and all(map(fits, p, w))
    return (
        issubclass(p_class, (w_class, *_PROMOTED.get(w_class, ())))
        or issubclass(w_class, p_class)
        or (inspect.isabstract(p_class) and inspect.isabstract(w_class))  # a class may be both
    )


@remembered
def item_of(annotation: object) -> object:
    """The annotation of the items of a type with ordered items: lists, tuples, streams.

    Returns:
        `object` if the items' type is unknown; None for types without ordered items: numbers,
        texts, mappings, models, sets.
    """
    items = [item for item in map(_item_of, members_of(annotation)) if item is not None]
    return Union[tuple(items)] if items else None  # noqa: UP007 - they are not known here


def is_mapping(annotation: object) -> bool:
    """Whether it is of mappings alone."""
    classes = map(_class_of, members_of(annotation))
    return all(cls is not None and issubclass(cls, Mapping) for cls in classes)


def _item_of(annotation: object) -> object:
    cls = _class_of(annotation)
    if cls is None:
        return object
    if issubclass(cls, _NOT_LIST_LIKE):
        return None
    if not issubclass(cls, _STREAMS):
        # `__getitem__` alone will do to be walked, and an abstract class may have such a subclass.
        return object if inspect.isabstract(cls) or hasattr(cls, "__getitem__") else None
    arguments = [argument for argument in typing.get_args(annotation) if argument is not Ellipsis]
    if cls is tuple and arguments:
        return Union[tuple(arguments)]  # noqa: UP007 - as above
    # What the arguments of other classes mean is theirs to say.
    is_known = cls.__module__ in {"builtins", "collections", "collections.abc"}
    return arguments[0] if arguments and is_known else object


def members_of(annotation: object) -> list[object]:
    """An annotation without aliases and `Annotated`: the members of a union, single literals."""
    if isinstance(annotation, typing.NewType):
        return members_of(annotation.__supertype__)
    if type(annotation).__name__ == "TypeAliasType":  # PEP 695, from Python 3.12 on
        return members_of(annotation.__value__)  # type: ignore[attr-defined]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return members_of(arguments[0])
    if origin is Literal:
        return [Literal[argument] for argument in arguments]
    if origin in _UNIONS:
        return [member for argument in arguments for member in members_of(argument)]
    return [types.NoneType if annotation is None else annotation]


def described(annotation: object) -> str:
    """An annotation in few words, for messages: `list[str]`, `str | None`, `Answer`."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return described(arguments[0])
    if origin in _UNIONS:
        return " | ".join(map(described, arguments))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin is not None:
        # A tuple of nothing has no arguments either.
        return f"{described(origin)}[{', '.join(map(described, arguments)) or '()'}]"
    return _one_word(annotation)


def _one_word(annotation: object) -> str:
    if isinstance(annotation, str):
        return annotation
    if annotation is None or annotation is types.NoneType:
        return "None"
    if annotation is Ellipsis:
        return "..."
    if isinstance(annotation, list):  # the parameters of a Callable
        return f"[{', '.join(map(described, annotation))}]"
    return str(getattr(annotation, "__name__", repr(annotation)))


def _class_of(annotation: object) -> type | None:
    """The class of its values; None for an unknown one."""
    if typing.get_origin(annotation) is Literal:
        return type(typing.get_args(annotation)[0])
    cls = _generic_model(annotation).get("origin") or typing.get_origin(annotation) or annotation
    if cls in _UNKNOWN or not isinstance(cls, type) or getattr(cls, "_is_protocol", False):
        return None
    # Not `is_typeddict`: typing_extensions has its own, which pydantic needs before Python 3.12.
    return dict if hasattr(cls, "__required_keys__") and hasattr(cls, "__total__") else cls


def _arguments(annotation: object) -> tuple[object, ...]:
    return _generic_model(annotation).get("args") or typing.get_args(annotation)


def _generic_model(annotation: object) -> Mapping[str, Any]:
    """What a generic model was made of: pydantic makes a class of each `Box[int]`."""
    return getattr(annotation, "__pydantic_generic_metadata__", None) or {}
