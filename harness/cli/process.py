"""The command as a process: subcommands imported late, exit codes, signals, standard streams."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Mapping
from errno import EPIPE
from importlib import import_module
from typing import TYPE_CHECKING, Any, TextIO

import click

from harness.errors import ConfigurationInvalid
from harness.plugins import load_plugin, plugin_names

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

FAILED = 1
UNUSABLE = 2  # an argument or a file that the user gave is not usable
STOPPED = 3  # a run was stopped at a limit and can be resumed
WAITING = 4  # a run waits for a person's answer and can be resumed
INTERRUPTED = 130  # by Ctrl-C
TERMINATED = 143  # by SIGTERM, from a supervisor or `timeout`

_STDIN, _STDOUT, _STDERR = range(3)


class LazyGroup(click.Group):
    """A group that imports some subcommands when they are called: `--help` answers at once.

    `lazy` is name → `module:attribute` of the subcommand and its line in the help. With
    `takes_plugins`, the group has the commands of other distributions too.
    """

    def __init__(
        self,
        *,
        lazy: Mapping[str, tuple[str, str]] | None = None,
        takes_plugins: bool = False,
        **how: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**how)
        self._lazy = lazy or {}
        self._takes_plugins = takes_plugins

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all subcommands."""
        return sorted([*super().list_commands(ctx), *self._lazy, *self._plugins()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The subcommand, imported if need be."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name) or self._plugins().get(cmd_name)
        module, name = self._lazy[cmd_name][0].split(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def _plugins(self) -> dict[str, click.Command]:
        if not self._takes_plugins:
            return {}
        commands: dict[str, click.Command] = {}
        for name in plugin_names("commands"):
            try:
                commands[name] = load_plugin(
                    "commands", name, lambda it: isinstance(it, click.Command), taken=self._lazy
                )
            except ConfigurationInvalid as error:
                click.echo(f"harness: left out: {error}", err=True)
        return commands

    def format_commands(  # noqa: D102 - see `click.Group`
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        commands = {**self.commands, **self._plugins()}
        lines = {name: command.get_short_help_str(limit=80) for name, command in commands.items()}
        lines |= {name: text for name, (_, text) in self._lazy.items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted(lines.items()))


class Interrupts:
    """Makes SIGTERM raise `KeyboardInterrupt` too, so that a run is closed as after Ctrl-C."""

    def __init__(self) -> None:
        self.exit_code = INTERRUPTED  # of the process, after an interrupt
        signal.signal(signal.SIGTERM, self._interrupt)

    def _interrupt(self, _number: int, _frame: object) -> None:
        self.exit_code = TERMINATED
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # A shell has commands in the background ignore SIGINT.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)


def steady_streams() -> Callable[[], OSError | None]:
    """Replaces standard output and error by streams to which writing never raises.

    Returns a function to call at the end: the error if standard output could not be written, and
    None if it could, or if its reader, such as `head`, wanted no more.
    """
    # A stream that is closed at the start gets the null device: the next file to be opened would
    # get its number.
    while (spare := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(spare)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.FileIO(_STDIN, closefd=False), encoding="utf-8")
    output = _Steady(_STDOUT, "wb", closefd=False)
    sys.stdout = _text_stream(output, sys.stdout)
    sys.stderr = _text_stream(_Steady(_STDERR, "wb", closefd=False), sys.stderr)

    def output_error() -> OSError | None:
        sys.stdout.flush()
        return None if output.error is None or output.error.errno == EPIPE else output.error

    return output_error


class _Steady(io.FileIO):
    """A file to which writing never raises."""

    error: OSError | None = None
    """The first error; what is written after it is dropped."""

    def write(self, data: ReadableBuffer, /) -> int:
        if self.error is None:
            try:
                return super().write(data)
            except OSError as error:
                self.error = error
        return memoryview(data).nbytes


def _text_stream(raw: _Steady, replaced: TextIO | None) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=replaced.encoding if replaced else "utf-8",
        # A character that the encoding lacks is written as its number.
        errors="backslashreplace",
        line_buffering=raw.isatty() or raw.fileno() == _STDERR,
    )
