"""What other distributions add is found by name; what is broken among it is named and left out."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from command import harness
from installed import Distribution
from pipelines import ECHO

from harness.errors import ConfigurationInvalid
from harness.plugins import load_plugin, plugin_names

MODULE = """
import click

@click.command()
def hello():
    '''Say hello.'''
    click.echo("hello")

NUMBER = 5

def export_lines(journal, target):
    target.output.write_text(str(sum(1 for _ in journal.spans())))
    return f"{target.output} written"
"""


def is_command(added: object) -> bool:
    return isinstance(added, click.Command)


@pytest.fixture
def distribution(distribution: Distribution, tmp_path: Path) -> Distribution:
    """With a module `added` that has a command and an exporter."""
    (tmp_path / "added.py").write_text(MODULE)
    return distribution


def test_ray_and_otlp_are_found_as_what_others_add_is() -> None:
    assert "ray" in plugin_names("executors")
    assert "otlp" in plugin_names("exporters")


def test_no_other_distribution_takes_over_a_name_of_harness(distribution: Distribution) -> None:
    distribution("aaa", "[harness.exporters]\notlp = added:export_lines\n")
    exporter = load_plugin("exporters", "otlp", callable)
    assert exporter.__module__ == "harness.analysis.otlp"


def test_a_command_of_another_distribution_is_one_of_harness(
    distribution: Distribution, tmp_path: Path
) -> None:
    distribution("greeting", "[harness.commands]\nhello = added:hello\n")
    assert harness("hello", cwd=tmp_path).stdout == "hello\n"
    assert "Say hello." in harness("--help", cwd=tmp_path).stdout


def test_an_exporter_of_another_distribution_writes_where_it_is_told(
    distribution: Distribution, tmp_path: Path
) -> None:
    distribution("lines", "[harness.exporters]\nlines = added:export_lines\n")
    (tmp_path / "echo.py").write_text(ECHO)
    export = ("trace", "export", "--format")

    assert harness("run", "echo.py", "--task", "tea", cwd=tmp_path).exit_code == 0
    done = harness(*export, "lines", "--output", "spans.txt", cwd=tmp_path)
    unknown = harness(*export, "line", cwd=tmp_path)

    assert (done.exit_code, done.stdout) == (0, "spans.txt written\n")
    assert int((tmp_path / "spans.txt").read_text()) > 0
    assert (unknown.exit_code, "did you mean 'lines'" in unknown.stderr) == (2, True)


def test_what_is_broken_or_has_a_name_that_is_taken_is_left_out_and_named(
    distribution: Distribution, tmp_path: Path
) -> None:
    (tmp_path / "ends.py").write_text("raise SystemExit('bye')\n")
    distribution(
        "mixed",
        "[harness.commands]\nhello = added:hello\nlost = added:nothing\nrun = added:hello\n"
        "number = added:NUMBER\nends = ends:hello\n"
        "far = not_installed:hello [far]\n",
    )

    codes = {}
    for name in {*plugin_names("commands")} - {"hello"}:
        with pytest.raises(ConfigurationInvalid) as caught:
            load_plugin("commands", name, is_command, taken=["run"])
        codes[name] = caught.value.code
    shown = harness("--help", cwd=tmp_path)

    assert codes == {
        "ends": "plugin.broken",
        "far": "plugin.package-missing",
        "lost": "plugin.broken",
        "number": "plugin.broken",
        "run": "plugin.name-taken",
    }
    assert "Say hello." in shown.stdout
    left_out = [line for line in shown.stderr.splitlines() if " left out: " in line]
    assert [line.split("'")[1] for line in left_out] == sorted(codes)
    assert "pip install 'mixed[far]'" in left_out[1]


def test_one_that_is_asked_for_by_name_and_is_not_there_is_an_error(
    distribution: Distribution,
) -> None:
    distribution("greeting", "[harness.commands]\nhello = added:hello\n")
    with pytest.raises(ConfigurationInvalid, match="did you mean 'hello'") as caught:
        load_plugin("commands", "helo", is_command)
    assert caught.value.code == "plugin.unknown"


def test_of_two_with_one_name_that_of_the_first_distribution_counts(
    distribution: Distribution,
) -> None:
    distribution("b-second", "[harness.commands]\nhello = added:export_lines\n")
    distribution("a-first", "[harness.commands]\nhello = added:hello\n")
    assert load_plugin("commands", "hello", callable).name == "hello"
