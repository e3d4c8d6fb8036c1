"""Compares annotations: may a value of one type be given to a parameter of another?

The checks of a graph ask this before there is any value. Only certain mistakes are refused: two
classes of which neither derives from the other, alone, in unions, and as the arguments of equal
containers. A literal counts by its class. Type variables, protocols, callables and annotations that
are texts fit everything, as `Any` does.
"""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union

_UNIONS = (Union, types.UnionType)
_UNKNOWN = (Any, object, inspect.Parameter.empty, collections.abc.Callable)
# The types that may be given in place of a number's, by PEP 484.
_PROMOTED: Mapping[type, tuple[type, ...]] = {float: (int,), complex: (int, float)}

P = ParamSpec("P")
R = TypeVar("R")


def cached_by_annotation(function: Callable[P, R]) -> Callable[P, R]:
    """Caches a function of annotations: a large graph has few different ones."""
    cached = lru_cache(maxsize=1024)(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return cached(*args, **kwargs)  # type: ignore[arg-type]  # they may have no hash
        except TypeError:
            # An annotation without a hash, such as `Annotated[str, {}]`, cannot be a cache's key.
            return function(*args, **kwargs)

    return call


@cached_by_annotation
def fits(produced: object, required: object) -> bool:
    """Whether a value of the type `produced` may be given to a parameter of the type `required`.

    A union fits if any of its members does, on either side: a value of `str | None` may be a `str`,
    which only the run shows. A value of a base class may be of the derived class. A number fits
    upwards, from bool to int to float to complex, never down.
    """
    try:
        return any(
            _member_fits(produced_member, required_member)
            for produced_member in members_of(produced)
            for required_member in members_of(required)
        )
    # An alias that contains itself, such as one of any JSON, recurs without end; `issubclass` may
    # raise TypeError for a class with an odd metaclass. Neither is certain to be a mistake.
    except (RecursionError, TypeError):
        return True


def _member_fits(produced: object, required: object) -> bool:
    """As `fits`, for two annotations of `members_of`, so that neither is a union."""
    produced_class = _class_of(produced)
    required_class = _class_of(required)
    if produced_class is None or required_class is None:
        return True
    if produced_class is required_class:
        return _arguments_fit(typing.get_args(produced), typing.get_args(required))
    return (
        issubclass(produced_class, (required_class, *_PROMOTED.get(required_class, ())))
        or issubclass(required_class, produced_class)
        # The value may be of a class that derives from both.
        or (inspect.isabstract(produced_class) and inspect.isabstract(required_class))
    )


def _arguments_fit(produced: tuple[object, ...], required: tuple[object, ...]) -> bool:
    if not produced or not required:
        return True
    # An ellipsis stands in a tuple of any length: `tuple[str, ...]`.
    if Ellipsis in produced:
        produced = produced[:1] * len(required)
    if Ellipsis in required:
        required = required[:1] * len(produced)
    return len(produced) == len(required) and all(map(fits, produced, required))


@cached_by_annotation
def item_of(annotation: object) -> object:
    """The annotation of the items of lists, tuples and streams; None for other types.

    `object` if the items' type is unknown.
    """
    items: list[object] = []
    for member in members_of(annotation):
        cls = _class_of(member)
        if cls is not None and not _may_be_list(cls):
            continue
        arguments = [argument for argument in typing.get_args(member) if argument is not Ellipsis]
        if cls is tuple and arguments:
            items += arguments
        elif cls is None or not arguments or cls.__module__ not in {"builtins", "collections.abc"}:
            # In a class of another module, the first argument need not be the type of the items.
            items.append(object)
        else:
            items.append(arguments[0])
    return Union[tuple(items)] if items else None  # noqa: UP007 - made at run time


def _may_be_list(cls: type) -> bool:
    """Whether a value of the class may be a list, a tuple or a stream, which `each=` takes."""
    if issubclass(cls, list | tuple | collections.abc.AsyncIterable):
        return True
    return cls.__module__ == "collections.abc" and issubclass(list, cls)


def is_mapping(annotation: object) -> bool:
    """Whether every value of the annotation is a mapping."""
    classes = map(_class_of, members_of(annotation))
    return all(cls is not None and issubclass(cls, Mapping) for cls in classes)


def members_of(annotation: object) -> list[object]:
    """The members of a union, without aliases and `Annotated`; else the annotation alone.

    A `Literal` counts as a union of the classes of its values.
    """
    if isinstance(annotation, typing.NewType):
        return members_of(annotation.__supertype__)
    if type(annotation).__name__ == "TypeAliasType":  # PEP 695, from Python 3.12 on
        return members_of(annotation.__value__)  # type: ignore[attr-defined]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return members_of(arguments[0])
    if origin is Literal:
        return [*map(type, arguments)]
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
        # Only the empty tuple has no arguments: `tuple[()]`.
        return f"{described(origin)}[{', '.join(map(described, arguments)) or '()'}]"
    return _described_plain(annotation)


def _described_plain(annotation: object) -> str:
    """As `described`, for an annotation without arguments."""
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
    """The class of an annotation's values; None if they may be of any class."""
    cls = typing.get_origin(annotation) or annotation
    if cls in _UNKNOWN or not isinstance(cls, type) or getattr(cls, "_is_protocol", False):
        return None
    # pydantic makes a class of each generic model such as `Box[int]`, and none of them derives from
    # another.
    generic = getattr(cls, "__pydantic_generic_metadata__", {})
    return generic.get("origin") or cls
