"""Entry points by which distributions add to harness, as harness itself adds Ray and PostgreSQL.

A distribution names its objects in its `pyproject.toml`, and harness imports an object when it is
first needed:

    [project.entry-points."harness.executors"]
    dask = "harness_dask:on_dask"

docs/plugins.md says what the objects of each group must be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from harness.errors import ConfigurationInvalid, did_you_mean

_OWN_DISTRIBUTION = "wiggum-harness"
Group = Literal["providers", "executors", "stores", "exporters", "checks", "commands"]


def plugin_names(group: Group) -> tuple[str, ...]:
    """The names in a group, sorted; imports none of them."""
    return tuple(_plugins(group))


def load_plugin(
    group: Group, name: str, fits: Callable[[Any], bool], *, taken: Collection[str] = ()
) -> Any:  # noqa: ANN401 - as `fits` says
    """Imports the object of a group that has this name; `fits` says whether it can be used there.

    Raises:
        ConfigurationInvalid: There is none (`plugin.unknown`), its name is `taken`
            (`plugin.name-taken`), a package that it needs is missing (`plugin.package-missing`), or
            it cannot be imported or does not fit (`plugin.broken`).
    """
    plugins = _plugins(group)
    if name not in plugins:
        kind = group.removesuffix("s")
        raise ConfigurationInvalid(
            f"no {kind} '{name}' is installed; " + did_you_mean(name, plugins),
            code="plugin.unknown",
        )
    plugin = plugins[name]
    if name in taken:
        raise ConfigurationInvalid(
            f"{_described(plugin)} has a name that is taken", code="plugin.name-taken"
        )
    try:
        loaded = plugin.load()
        does_fit = fits(loaded)
    except ModuleNotFoundError as error:
        raise ConfigurationInvalid(
            f"{_described(plugin)} needs a package that is not installed ({error.name}); "
            f"{_remedy(plugin)}",
            code="plugin.package-missing",
        ) from error
    except (Exception, SystemExit) as error:  # whatever its module raises
        problem = f"{_described(plugin)} cannot be imported: {type(error).__name__}: {error}"
        raise ConfigurationInvalid(problem, code="plugin.broken") from error
    if not does_fit:
        problem = f"{_described(plugin)} is {type(loaded).__name__}, which does not fit there"
        raise ConfigurationInvalid(problem, code="plugin.broken")
    return loaded


def _plugins(group: Group) -> dict[str, EntryPoint]:
    """The entry points of a group by name; of several with one name, the first by `_precedence`."""
    plugins: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=f"harness.{group}"), key=_precedence):
        plugins.setdefault(point.name, point)
    return plugins


def _precedence(point: EntryPoint) -> tuple[str, bool, str]:
    """Sorts by name, then harness's own before others, then by the distribution's name."""
    distribution = point.dist.name if point.dist else ""
    # Another package must not replace an object of harness, which may get addresses and
    # credentials.
    return point.name, distribution != _OWN_DISTRIBUTION, distribution


def _described(plugin: EntryPoint) -> str:
    """An entry point in a message: `executor 'dask' of harness-dask`."""
    origin = f" of {plugin.dist.name}" if plugin.dist else ""
    return f"{plugin.group.removeprefix('harness.').removesuffix('s')} '{plugin.name}'{origin}"


def _remedy(plugin: EntryPoint) -> str:
    """The command that installs a plugin with the extras that its entry point names."""
    package = plugin.dist.name if plugin.dist else "its package"
    extras = f"[{','.join(plugin.extras)}]" if plugin.extras else ""
    return f"pip install '{package}{extras}'"
