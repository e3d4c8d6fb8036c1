"""Which code is the user's own: what a person may edit between two runs of a pipeline."""

from __future__ import annotations

import functools
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

_LIBRARIES = frozenset(
    {
        Path(__file__).resolve().parents[1],
        *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")),
    }
)
# By name, since a project may have its environment beside its files, or more than one.
_INSTALLED = frozenset({"site-packages", "dist-packages"})


@functools.lru_cache(maxsize=4096)
def is_own(filename: str) -> bool:
    """Whether a file is neither Python's, nor installed, nor of this package.

    Args:
        filename: As code objects have it; what was typed in, such as `<stdin>`, is one's own.
    """
    if filename.startswith("<"):
        return not filename.startswith("<frozen ")
    path = Path(filename).resolve()
    return _INSTALLED.isdisjoint(path.parts) and _LIBRARIES.isdisjoint(path.parents)


def is_own_module(module: ModuleType) -> bool:
    """The same of a module; what has no file is built in, unless it is the one being run."""
    filename = getattr(module, "__file__", None)
    return is_own(filename) if filename else module.__name__ == "__main__"


def is_own_class(cls: type) -> bool:
    """The same of a class."""
    module = sys.modules.get(cls.__module__)
    # A pipeline's file may have been loaded without a place among the modules.
    return module is None or is_own_module(module)


def library_name(module: str | None, name: str) -> str:
    """What a function or class of a library is called; Python's own move between its modules."""
    first = (module or "").partition(".")[0].lstrip("_")
    return f"{first if first in sys.stdlib_module_names else module}.{name}"


def imported_files(name: str, *, level: int, names: Iterable[str], package: str) -> list[Path]:
    """The user's own files that an import statement leads to; none of them is imported.

    Args:
        name: The module that it names; may be empty in `from . import x`.
        level: How many dots stand before it.
        names: What is imported from there, which may be modules too.
        package: The one that the statement stands in.
    """
    parts = name.split(".") if name else []
    if level:
        places = getattr(sys.modules.get(_parent(package, level)), "__path__", [])
    else:
        spec = _spec(parts[0])
        if spec is None:
            return []
        if spec.submodule_search_locations is None:
            # What is built in has an origin that is no place.
            is_file = spec.has_location and spec.origin is not None and is_own(spec.origin)
            return [Path(spec.origin or "")] if is_file else []
        places, parts = spec.submodule_search_locations, parts[1:]
    found = [_module_files(places, [*parts, *more]) for more in ((), *((n,) for n in names))]
    return [path for paths in found for path in paths if is_own(str(path))]


def _parent(package: str, level: int) -> str:
    return package.rsplit(".", level - 1)[0]


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):  # one that was not imported as others are
        return None


def _module_files(places: Iterable[str], parts: list[str]) -> Iterator[Path]:
    for place in places:
        path = Path(place, *parts)
        yield from (
            p for p in (path / "__init__.py", path.with_name(f"{path.name}.py")) if p.is_file()
        )
