"""Whether the remedies that a diagnosis names help.

    python tests/benchmarks/bench_remedies.py [NAME ...] [--json]

Each row makes a run with a fault, reads the remedy in the words of its finding, follows it to the
number, and makes the run again: on the demo's model in the embedded engine, or on a paced loopback
server (`planted_bottlenecks.py`). A remedy that lengthens the run by more than a tenth does harm.
Let nothing else run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from planted_bottlenecks import (
    HANDBOOK,
    LETTERS,
    QUESTIONS,
    Behavior,
    Build,
    Further,
    asking_each,
    listing,
    performed,
    prose,
)

from harness import Pipeline, Run
from harness.analysis import RunFinding, diagnose
from harness.session.settings import demo_endpoint
from harness.trace import Journal

HARM = 1.1


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A fault, and how its remedy is followed."""

    rule: str
    remedy: str
    """A pattern of the remedy's words; its group is the number to follow, if there is one."""
    build: Build
    behavior: Behavior | None = None
    """Of the paced server; the demo's model when None."""
    faulty: Mapping[str, Any] = field(default_factory=dict)
    """Changes to what `performed` and `Pipeline` take."""
    mended: Callable[[int], Mapping[str, Any]]
    """The same with the remedy, by its number; 0 where it has none."""


class Row(NamedTuple):
    """What became of one remedy."""

    name: str
    remedy: str
    run_before_s: float
    run_after_s: float
    is_mended: bool = False
    """Whether the rule finds nothing more."""
    is_of_time: bool = False
    """Whether the finding is of lost time; a whole reply takes longer than a cut one."""

    @property
    def does_harm(self) -> bool:
        return self.is_of_time and self.run_after_s > HARM * self.run_before_s


def stamped(*, first: bool) -> Build:
    """Prompts with a time stamp before the handbook, or after it."""

    def build(pipeline: Pipeline) -> None:
        listing(pipeline, "questions", QUESTIONS[:6])

        @pipeline.node(each={"question": "questions"}, models=["producer"])
        async def answers(run: Run, question: str) -> str:
            stamp = f"It is the time of '{question}'."
            parts = [stamp, HANDBOOK] if first else [HANDBOOK, stamp]
            return str(await run.chat("producer", "\n\n".join([*parts, question])))

    return build


def in_turn(pipeline: Pipeline) -> None:
    @pipeline.node(models=["producer"])
    async def answers(run: Run) -> list[str]:
        return [str(await run.chat("producer", letter)) for letter in LETTERS[:8]]


def drafts_and_checks(pipeline: Pipeline) -> None:
    @pipeline.node(models=["producer", "reader"])
    async def notes(run: Run) -> list[str]:
        options: Any = {"max_output_tokens": 12, "on_cut": "keep"}
        read = []
        for thing in ("tea", "salt", "rain"):
            draft = await run.chat("producer", f"Write one line about {thing}.", **options)
            read.append(await run.chat("reader", f"Is it true? {draft}", **options))
        return read


def long_prompt(pipeline: Pipeline) -> None:
    @pipeline.node(models=["producer"])
    async def note(run: Run) -> str:
        return str(await run.chat("producer", prose(500, 3), max_output_tokens=60, on_cut="keep"))


def long_reply(pipeline: Pipeline) -> None:
    @pipeline.node(models=["producer"])
    async def numbers(run: Run) -> str:
        return str(
            await run.chat(
                "producer",
                "Count from 1 to 1000, with commas.",
                max_output_tokens=400,
                on_cut="keep",
            )
        )


SHORT = {"max_output_tokens": 24, "on_cut": "keep"}
SMALL = {"context_tokens": 2048, "slots": 1}
DEMO = demo_endpoint()
TWO_MODELS = {
    "endpoint": SMALL,
    "others": {
        "reader": Further(endpoint={**DEMO.model_dump(include={"backend", "path"}), **SMALL})
    },
    "at_once": 1,
}

TRIALS: Mapping[str, Trial] = {
    "slots of an engine": Trial(
        rule="queueing",
        remedy=r"for (\d+) calls at once",
        build=asking_each(QUESTIONS[:6], **SHORT),
        faulty={"endpoint": {"slots": 1, "context_tokens": 1024}},
        mended=lambda places: {"endpoint": {"slots": places, "context_tokens": 1024}},
    ),
    "slots of a server": Trial(
        rule="queueing",
        remedy=r"for (\d+) calls at once",
        build=asking_each(LETTERS[:8]),
        behavior=Behavior(places=1, reply_tokens=35, reports_timings=True),
        faulty={"endpoint": {"backend": "llamacpp"}},
        mended=lambda places: {
            "behavior": Behavior(places=places, reply_tokens=35, reports_timings=True)
        },
    ),
    "turns at an endpoint": Trial(
        rule="max-parallel",
        remedy=r"under \[endpoints\.\w+\] \(now (\d+)\)",
        build=asking_each(QUESTIONS[:8]),
        behavior=Behavior(reply_tokens=35, reports_counters=True),
        faulty={"endpoint": {"max_parallel": 1, "backend": "vllm"}},
        mended=lambda now: {"endpoint": {"max_parallel": 2 * now, "backend": "vllm"}},
    ),
    "turns at a crowded server": Trial(
        rule="max-parallel",
        remedy=r"under \[endpoints\.\w+\] \(now (\d+)\)",
        build=asking_each(LETTERS[:24]),
        behavior=Behavior(places=32, reply_tokens=35, crowded_from=4),
        faulty={"endpoint": {"max_parallel": 4}},
        mended=lambda now: {"endpoint": {"max_parallel": 2 * now}},
    ),
    "places of a pipeline": Trial(
        rule="max-parallel",
        remedy=r"in Pipeline\(…\) \(now (\d+)\)",
        build=asking_each(QUESTIONS[:8]),
        behavior=Behavior(reply_tokens=35),
        faulty={"at_once": 2},
        mended=lambda now: {"at_once": 2 * now},
    ),
    "a loop as a mapped node": Trial(
        rule="serial-client",
        remedy="mapped node",
        build=in_turn,
        behavior=Behavior(reply_tokens=35),
        mended=lambda _: {"build": asking_each(LETTERS[:8])},
    ),
    "fewer calls at a crowded server": Trial(
        rule="slow-decode",
        remedy="fewer calls at once",
        build=asking_each(LETTERS[:24]),
        behavior=Behavior(places=32, reply_tokens=35, crowded_from=4),
        faulty={"at_once": 24},
        mended=lambda _: {"at_once": 12},
    ),
    "stamp after the handbook": Trial(
        rule="drifting-prefix",
        remedy="after what stays the same",
        build=stamped(first=True),
        behavior=Behavior(keeps_prefixes=True, reports_prefixes=True, reply_tokens=8),
        faulty={"endpoint": {"max_parallel": 1}},
        mended=lambda _: {"build": stamped(first=False)},
    ),
    "room for both models": Trial(
        rule="swap-thrash",
        remedy=r'capacity = "(\d+) MiB"',
        build=drafts_and_checks,
        faulty=TWO_MODELS | {"budget": {"capacity": "200 MiB"}},
        mended=lambda mib: TWO_MODELS | {"budget": {"capacity": f"{mib} MiB"}},
    ),
    "context for a prompt": Trial(
        rule="failed-calls",
        remedy=r"for ([\d,]+) tokens",
        build=long_prompt,
        faulty={"endpoint": {"context_tokens": 256}},
        mended=lambda tokens: {"endpoint": {"context_tokens": tokens}},
    ),
    "context for a reply": Trial(
        rule="filled-context",
        remedy=r"for ([\d,]+) tokens",
        build=long_reply,
        faulty={"endpoint": {"context_tokens": 256}},
        mended=lambda tokens: {"endpoint": {"context_tokens": tokens}},
    ),
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("names", nargs="*", metavar="NAME", help="of a row; all by default")
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    rows = [
        row_of(name, trial)
        for name, trial in TRIALS.items()
        if not options.names or name in options.names
    ]
    if options.json:
        print(json.dumps([row._asdict() for row in rows], indent=2))
        return
    for row in rows:
        mended = "mended" if row.is_mended else ""
        harm = "  HARM" if row.does_harm else ""
        print(
            f"{row.name:<32}{mended:<8}{row.run_before_s:>7.1f} -> {row.run_after_s:.1f} s{harm}"
            f"  {row.remedy}"
        )


def row_of(name: str, trial: Trial) -> Row:
    with tempfile.TemporaryDirectory() as directory:
        before = made(trial, trial.faulty, Path(directory) / "before")
        findings = [one for one in diagnose(before).findings if one.rule == trial.rule]
        remedy, number = followed(trial, findings)
        if not remedy:
            rules = ", ".join(one.rule for one in diagnose(before).findings)
            reason = f"no such remedy: {rules or 'no finding'}"
            return Row(name, reason, _run_s(before), _run_s(before))
        after = made(trial, trial.faulty | trial.mended(number), Path(directory) / "after")
        is_mended = trial.rule not in {one.rule for one in diagnose(after).findings}
        is_of_time = findings[0].lost_ns is not None
        return Row(name, remedy, _run_s(before), _run_s(after), is_mended, is_of_time)


def followed(trial: Trial, findings: Sequence[RunFinding]) -> tuple[str, int]:
    """The first remedy in these words, and its number; empty without such a one."""
    for move in (move for finding in findings for move in finding.move):
        if match := re.search(trial.remedy, move):
            return move, int(match[1].replace(",", "")) if match.groups() else 0
    return "", 0


def made(trial: Trial, changes: Mapping[str, Any], directory: Path) -> Journal:
    options: dict[str, Any] = {"endpoint": {}, "others": {}, "at_once": 16, **changes}
    pipeline = Pipeline("trial", max_parallel=options.pop("at_once"))
    options.pop("build", trial.build)(pipeline)
    behavior = options.pop("behavior", trial.behavior)
    return Journal(performed(pipeline, directory, behavior, **options))


def _run_s(journal: Journal) -> float:
    return journal.duration_ns / 1e9


if __name__ == "__main__":
    main()
