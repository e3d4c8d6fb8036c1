"""Compares annotations: does a value of one type fit a parameter of another?

For checks before there is any value: only pairs that can never fit are refused. Unknown annotations
(type variables, protocols, callables, texts) fit everything.
"""

from __future__ import annotations

import collections
import collections.abc
import inspect
import types
import typing
from collections.abc import Callable, Iterable
from functools import lru_cache, wraps
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union

from pydantic import BaseModel

_PLAIN_COLLECTIONS = {"builtins", "collections", "collections.abc", "typing"}
"""Modules of classes whose arguments are understood."""
_NOT_LIST_LIKE = (
    str,
    bytes,
    bytearray,
    memoryview,
    # They have no order that is the same in every process.
    collections.abc.Set,
    collections.abc.Mapping,
    BaseModel,
)
_STREAMS = (collections.abc.Iterable, collections.abc.AsyncIterable)


P = ParamSpec("P")
R = TypeVar("R")


def remembered(function: Callable[P, R]) -> Callable[P, R]:
    """Caches a function by annotation: large graphs have few different ones."""
    known = lru_cache(maxsize=1024)(function)

    @wraps(function)
    def ask(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return known(*args, **kwargs)  # type: ignore[arg-type]  # whether they have a hash
        except TypeError:
            return function(*args, **kwargs)

    return ask


@remembered
def fits(produced: object, wanted: object) -> bool:
    """Whether a value of the first annotation may be given to a parameter of the second.

    A union fits if any of its members does, on either side: `str | None` may be a `str`, and only
    the run shows it. A base class may turn out to be the derived class; a number fits upwards from
    bool to int to float to complex, never down. Containers fit as their items do, although an empty
    one would fit everywhere.
    """
    try:
        return _fits(produced, wanted)
    except RecursionError:
        return True  # aliases that contain themselves, as one of any JSON does


def _fits(produced: object, wanted: object) -> bool:
    produced, wanted = _bare(produced), _bare(wanted)
    if _is_unknown(produced) or _is_unknown(wanted):
        return True
    if _is_union(produced) or _is_union(wanted):
        return any(_fits(p, w) for p in _members(produced) for w in _members(wanted))
    if typing.get_origin(produced) is Literal:
        return any(_literal_fits(value, wanted) for value in typing.get_args(produced))
    if typing.get_origin(wanted) is Literal:
        return any(_fits(produced, type(value)) for value in typing.get_args(wanted))
    return _classes_fit(_class_of(produced), _class_of(wanted)) and _arguments_fit(produced, wanted)


@remembered
def item_of(annotation: object) -> object:
    """The annotation of the items of a type with ordered items: lists, tuples, streams.

    Returns:
        `object` if the items' type is unknown; None for types without ordered items: numbers,
        texts, mappings, models, sets.
    """
    annotation = _bare(annotation)
    if _is_union(annotation):
        items = [item_of(member) for member in _members(annotation)]
        return _union_of(item for item in items if item is not None)
    if typing.get_origin(annotation) is Literal:
        return None
    if _is_unknown(annotation):
        return object
    cls = _class_of(annotation)
    if issubclass(cls, _NOT_LIST_LIKE):
        return None
    if issubclass(cls, _STREAMS):
        return _iterated(annotation)
    return object if inspect.isabstract(cls) or hasattr(cls, "__getitem__") else None


@remembered
def asks_for(annotation: object, cls: type) -> bool:
    """Whether an annotation names a class: alone, or as a member of a union.

    Its items are another question: `asks_for(item_of(annotation), cls)`.
    """
    return any(_bare(member) is cls for member in _members(_bare(annotation)))


def without_names(annotation: object) -> object:
    """An annotation with its aliases and new types replaced by what they name."""
    while True:
        if annotation is None:
            return types.NoneType
        if isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":  # PEP 695, from Python 3.12 on
            annotation = annotation.__value__  # type: ignore[attr-defined]
        else:
            return annotation


def described(annotation: object) -> str:
    """An annotation in few words, for messages: `list[str]`, `str | None`, `Answer`."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return described(arguments[0])
    if _is_union(annotation):
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
    name = getattr(annotation, "__name__", None)
    return name if isinstance(name, str) else repr(annotation)


# --- what an annotation is ----------------------------------------------------------------------


def _bare(annotation: object) -> object:
    """An annotation without aliases, new types and `Annotated`."""
    annotation = without_names(annotation)
    while typing.get_origin(annotation) is Annotated:
        annotation = without_names(typing.get_args(annotation)[0])
    return annotation


def _is_unknown(annotation: object) -> bool:
    if annotation is Any or annotation is object or annotation is inspect.Parameter.empty:
        return True
    if _is_union(annotation) or typing.get_origin(annotation) is Literal:
        return False
    cls = _origin(annotation)
    if cls is collections.abc.Callable or not isinstance(cls, type):
        return True
    return bool(getattr(cls, "_is_protocol", False))


def _is_union(annotation: object) -> bool:
    return typing.get_origin(annotation) in {Union, types.UnionType}


def _members(annotation: object) -> tuple[object, ...]:
    return typing.get_args(annotation) if _is_union(annotation) else (annotation,)


def _union_of(annotations: Iterable[object]) -> object:
    """None without members; the member itself if there is one."""
    members = tuple(annotations)
    return Union[members] if members else None  # noqa: UP007 - its members are not known here


def _origin(annotation: object) -> object:
    generic = _generic_model(annotation)
    return generic[0] if generic else typing.get_origin(annotation) or annotation


def _class_of(annotation: object) -> type:
    """The class of its values; not for an unknown one."""
    cls = _origin(annotation)
    assert isinstance(cls, type)
    return dict if _is_typed_dict(cls) else cls


def _is_typed_dict(cls: object) -> bool:
    # Not `is_typeddict`: typing_extensions has its own, which pydantic needs before Python 3.12.
    return hasattr(cls, "__required_keys__") and hasattr(cls, "__total__")


def _generic_model(annotation: object) -> tuple[type, tuple[object, ...]] | None:
    """A generic model and its arguments: pydantic makes a class of each `Box[int]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        made_from = annotation.__pydantic_generic_metadata__
        if made_from["origin"] is not None:
            return made_from["origin"], made_from["args"]
    return None


# --- classes and their arguments ----------------------------------------------------------------


def _literal_fits(value: object, wanted: object) -> bool:
    if typing.get_origin(wanted) is Literal:
        return any(type(value) is type(w) and value == w for w in typing.get_args(wanted))
    return _fits(type(value), wanted)


def _classes_fit(produced: type, wanted: type) -> bool:
    if _is_subclass(produced, wanted) or _is_subclass(wanted, produced):
        return True
    if wanted is float or wanted is complex:  # PEP 484's promotions
        return issubclass(produced, (int, float) if wanted is complex else int)
    # A class may implement both.
    return inspect.isabstract(produced) and inspect.isabstract(wanted)


def _is_subclass(cls: type, other: type) -> bool:
    try:
        return issubclass(cls, other)
    except TypeError:
        return True  # a class that does not answer


def _arguments_fit(produced: object, wanted: object) -> bool:
    p_class, w_class = _class_of(produced), _class_of(wanted)
    if issubclass(p_class, tuple) and issubclass(w_class, tuple):
        return _tuples_fit(produced, wanted)
    are_mappings = all(
        issubclass(cls, collections.abc.Mapping) and cls.__module__ in _PLAIN_COLLECTIONS
        for cls in (p_class, w_class)
    )
    if are_mappings or p_class is w_class:
        pairs = zip(_arguments(produced), _arguments(wanted), strict=False)
        return all(_fits(p, w) for p, w in pairs)
    if issubclass(p_class, _STREAMS) and issubclass(w_class, _STREAMS):
        asked = _iterated(wanted)
        items = _tuple_items(produced) if issubclass(p_class, tuple) else (_iterated(produced),)
        return all(_fits(item, asked) for item in items)
    return True


def _arguments(annotation: object) -> tuple[object, ...]:
    """The arguments in its brackets; empty without."""
    if _is_typed_dict(_origin(annotation)):
        return (str, object)
    generic = _generic_model(annotation)
    return generic[1] if generic else typing.get_args(annotation)


def _iterated(annotation: object) -> object:
    """The annotation of what iteration yields: a mapping's keys; `object` if unknown."""
    cls = _class_of(annotation)
    if issubclass(cls, str):
        return str
    if issubclass(cls, bytes | bytearray):
        return int
    if issubclass(cls, tuple):
        return _union_of(_tuple_items(annotation)) or object
    arguments = _arguments(annotation) if cls.__module__ in _PLAIN_COLLECTIONS else ()
    return arguments[0] if arguments else object


def _tuples_fit(produced: object, wanted: object) -> bool:
    p_items, w_items = _tuple_items(produced), _tuple_items(wanted)
    if _is_endless(produced) or _is_endless(wanted):  # which has one kind of item
        return all(_fits(p, w) for p in p_items for w in w_items)
    return len(p_items) == len(w_items) and all(map(_fits, p_items, w_items))


def _is_endless(annotation: object) -> bool:
    """Whether a tuple has any length; that of a `NamedTuple` class counts as unknown."""
    return typing.get_origin(annotation) is not tuple or Ellipsis in typing.get_args(annotation)


def _tuple_items(annotation: object) -> tuple[object, ...]:
    if typing.get_origin(annotation) is not tuple:
        return (object,)
    return tuple(item for item in typing.get_args(annotation) if item is not Ellipsis)
