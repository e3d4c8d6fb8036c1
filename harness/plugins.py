"""Entry points: what distributions add to harness; Ray, PostgreSQL and OTLP are added so too.

A distribution names its objects in its `pyproject.toml`, and harness imports one when it is first
asked for:

    [project.entry-points."harness.executors"]
    dask = "harness_dask:on_dask"

What each group's objects must be is said in docs/plugins.md.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from harness.errors import ConfigurationInvalid, did_you_mean
from harness.log import log_warning

Group = Literal["providers", "executors", "stores", "exporters", "checks", "commands"]


def plugin_names(group: Group) -> tuple[str, ...]:
    """The names in a group, sorted; imports none of them."""
    return tuple(sorted(_plugins(group)))


def load_plugin(group: Group, name: str) -> Any:  # noqa: ANN401 - whatever it names
    """Imports the object of a group that has this name.

    Raises:
        ConfigurationInvalid: There is none (`plugin.unknown`), a package that it needs is missing
            (`plugin.package-missing`), or it cannot be imported (`plugin.broken`).
    """
    plugins = _plugins(group)
    if name not in plugins:
        kind = group.removesuffix("s")
        raise ConfigurationInvalid(
            f"no {kind} '{name}' is installed; " + did_you_mean(name, plugins),
            code="plugin.unknown",
        )
    plugin = plugins[name]
    try:
        return plugin.load()
    except ModuleNotFoundError as error:
        raise ConfigurationInvalid(
            f"{_described(plugin)} needs a package that is not installed ({error.name}); "
            f"{_remedy(plugin)}",
            code="plugin.package-missing",
        ) from error
    except Exception as error:
        raise ConfigurationInvalid(
            f"{_described(plugin)} cannot be imported: {type(error).__name__}: {error}",
            code="plugin.broken",
        ) from error


def load_plugins(group: Group) -> dict[str, Any]:
    """All objects of a group, by name. One that cannot be imported is left out, with a warning."""
    loaded = {}
    for name in plugin_names(group):
        try:
            loaded[name] = load_plugin(group, name)
        except ConfigurationInvalid as error:
            log_warning(f"{error}; it is left out", code=error.code)
    return loaded


def _plugins(group: Group) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"harness.{group}")}


def _described(plugin: EntryPoint) -> str:
    origin = f" of {plugin.dist.name}" if plugin.dist else ""
    return f"{plugin.group.removeprefix('harness.').removesuffix('s')} '{plugin.name}'{origin}"


def _remedy(plugin: EntryPoint) -> str:
    """How to install what a plugin needs: the extra that its entry point names, if it names one."""
    package = plugin.dist.name if plugin.dist else "its package"
    extras = f"[{','.join(plugin.extras)}]" if plugin.extras else ""
    return f"pip install '{package}{extras}'"
