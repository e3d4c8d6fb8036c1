"""Arguments of the command line: `name=value`, `name=@file`, typed metadata, and runs.

An argument that is not usable raises `InvalidInput`, or `click.BadParameter` while it is parsed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harness.errors import InvalidInput
from harness.files import read_text
from harness.trace import run_list

if TYPE_CHECKING:
    from harness.memory import Filter, Scalar

T = TypeVar("T")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Callback = Callable[[click.Context, click.Parameter, str | None], T | None]

config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="Settings file; by default harness.toml in this directory.",
)

traces_option = click.option(
    "--traces",
    type=click.Path(path_type=Path),
    help="Directory of runs; by default as in harness.toml, or traces/.",
)

role_option = click.option(
    "--role",
    "roles",
    multiple=True,
    metavar="ROLE=TAG",
    help="Endpoint that plays a role, in place of [roles]; or a model with its provider, such as "
    "openai/gpt-4o. May be repeated.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def together(*options: Callable[[Decorated], Decorated]) -> Callable[[Decorated], Decorated]:
    """One decorator that adds several options to a command, in this order."""

    def decorate(command: Decorated) -> Decorated:
        # The decorator that is applied last is the first in the help.
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def parsed_by(parse: Callable[[str], T]) -> Callback[T]:
    """A callback that parses an option's text; an error of `parse` becomes one of the usage."""

    def parsed(_: click.Context, __: click.Parameter, text: str | None) -> T | None:
        try:
            return None if text is None else parse(text)
        except (InvalidInput, ValueError) as error:
            raise click.BadParameter(str(error)) from error

    return parsed


def once(what: str) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], str | None]:
    """A callback of an option with `multiple=True` that refuses all but one value.

    Without it, click takes the last value and says nothing.
    """

    def taken(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> str | None:
        if len(values) > 1:
            raise click.BadParameter(
                f"one {what} at a time; run the command for each, with an --output of its own"
            )
        return values[0] if values else None

    return taken


def share(text: str) -> float:
    """The number of `10%` or `0.1`, which lies between 0 and 1."""
    with suppress(ValueError):
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        if 0 < value < 1:
            return value
    raise ValueError(f"'{text}' is not a share, such as 10% or 0.1")


def read_inputs(assignments: Iterable[str]) -> dict[str, str]:
    """Name → value of the inputs of `--set`; a value `@FILE` is the text of that file."""
    return {
        name: read_text(f"input '{name}'", Path(value[1:])) if value.startswith("@") else value
        for name, value in read_pairs(assignments, option="--set", form="name=value").items()
    }


def read_pairs(assignments: Iterable[str], *, option: str, form: str) -> dict[str, str]:
    """Name → value of the assignments `name=value`, which `option` and `form` name in errors."""
    pairs: dict[str, str] = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator or not name:
            raise InvalidInput(
                f"{option} {assignment!r} is not of the form {form}", code="option.malformed"
            )
        if name in pairs:
            raise InvalidInput(f"{option} gives '{name}' twice", code="option.given-twice")
        pairs[name] = value
    return pairs


def read_metadata(pairs: Iterable[str]) -> dict[str, Scalar]:
    """Name → value of `--metadata`."""
    texts = read_pairs(pairs, option="--metadata", form="name=value")
    return {name: scalar_of(text) for name, text in texts.items()}


_RANGE = re.compile(r"([^<>=]+)(>=|<=|>|<)(.+)", re.DOTALL)


def read_filter(pairs: Iterable[str]) -> Filter | None:
    """Name → the values or the range of `--where`; None without any."""
    values: dict[str, list[Scalar]] = {}
    ranges: dict[str, dict[str, Scalar]] = {}  # name → comparison, such as `>=`, → bound
    for pair in pairs:
        if comparison := _RANGE.fullmatch(pair):
            name, sign, bound = comparison[1].strip(), comparison[2], comparison[3]
            bounds = ranges.setdefault(name, {})
            if sign in bounds:
                raise InvalidInput(f"--where gives '{name}{sign}' twice", code="option.given-twice")
            bounds[sign] = scalar_of(bound)
            continue
        ((name, text),) = read_pairs([pair], option="--where", form="name=value").items()
        # A title or a source is always a text.
        values.setdefault(name, []).append(text if name in {"title", "source"} else scalar_of(text))
    if in_both := values.keys() & ranges.keys():
        raise InvalidInput(
            f"--where has values and a range for '{min(in_both)}'; give it one of them",
            code="filter.range",
        )
    return {**values, **ranges} or None


def scalar_of(text: str) -> Scalar:
    """The value of a number, boolean or quoted text in JSON; any other text as it is."""
    try:
        # Python would read NaN and Infinity as JSON: they stay texts.
        value = json.loads(text, parse_constant=str)
    except ValueError:
        return text
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput(f"{text} is too large a number", code="option.too-large")
    return value if isinstance(value, str | int | float | bool) else text


def traces_directory(option: Path | None) -> Path:
    """The directory of runs: the option's, else that of `harness.toml`."""
    if option is not None:
        return option
    # Not at the top: it imports the whole engine, which `--help` does not need.
    from harness.session import load_settings  # noqa: PLC0415

    # Without `HARNESS_ENDPOINTS`, in which a mistake must not keep anyone from reading a run.
    return load_settings(environment={}).traces


def find_journal(run: str, traces: Path | None) -> Path:
    """The journal of a run: `latest`, a run's id, any part of it, or a file of the run."""
    return run_list.find_journal(run, partial(traces_directory, traces))


run_argument = click.argument("run", default=run_list.LATEST)


def of_run(command: Callable[..., None]) -> Callable[..., None]:
    """Adds RUN and --traces to a command, which gets the path of the run's journal."""

    @wraps(command)
    def with_journal(*, run: str, traces: Path | None, **options: Any) -> None:  # noqa: ANN401
        command(journal=find_journal(run, traces), **options)

    return run_argument(traces_option(with_journal))
