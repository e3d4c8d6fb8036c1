"""Journals of random runs, as code leaves them at its most unruly.

Times are drawn before the records are made of them, so that whatever a test expects comes from the
journal's lines and not from what placed the spans.
"""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sample_runs import STARTED, write_journal

from harness.trace import (
    CounterSet,
    Flow,
    Instant,
    Journal,
    Record,
    SpanEnded,
    SpanStarted,
)
from harness.trace.records import joined

NAMES = ("run", "node", "chat", "prefill", "evaluate", "open memory")
TRACKS = ("node findings", "model qwen", "server gpu 0", "küche 概要", "Zeile\u2028zwei", "\ud800?")
TEXTS = (
    "",
    "plain",
    '"quoted"\n\\back\t',
    "Übersicht 概要 🐣",
    "line\u2028separator\u2029s",
    "lone \ud800 surrogate \udfff",
    "</script>",
    "\x01\x1f\x7f",
    "C:\\temp\\",
    '\\"',
)
# No integers of 64 bits without a sign, and no floats of 20 decimals: to Perfetto's JSON importer
# both overflow, in `StringToDouble` of `src/trace_processor/util/json_parser.h`.
NUMBERS = (
    0,
    -1,
    2**31,
    -(2**53) - 1,
    2**63 - 1,
    -(2**63),
    2**64,
    -(2**70),
    0.1,
    -1e-300,
    1.7e308,
    float("nan"),
    float("inf"),
)

Timed = tuple[int, Record]
"""A record, and when its line is written."""


def write_random_run(path: Path, seed: int) -> Journal:
    """A run with everything that a journal may hold, in every relation of time."""
    return _RandomRun(seed).write(path)


@dataclass(kw_only=True)
class _Plan:
    """A span before it is recorded."""

    id: int
    parent: int | None
    start_ns: int
    end_ns: int
    line_ns: int
    """When its first line is written: for a phase that a server reports, when the call is over."""
    is_open: bool = False


class _RandomRun:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.randomness = random.Random(seed)
        # From a few nanoseconds, where everything touches, to hours.
        self.within_ns = 10 ** self.randomness.randint(1, 13)
        self.origin_ns = self.randomness.choice((0, 7, 10**15))
        self.plans: list[_Plan] = []
        self.moments: Counter[int] = Counter()
        """How many spans and instants begin at once."""

    def write(self, path: Path) -> Journal:
        name = self.randomness.choice(("essay", *TEXTS[3:6]))
        self.plan_spans(self.randomness.randint(1, 40))
        self.moments.update(plan.start_ns for plan in self.plans)
        timed = [pair for plan in self.plans for pair in self.span_records(plan)]
        instants = [self.instant() for _ in range(self.randomness.randint(0, 8))]
        self.moments.update(time_ns for time_ns, _ in instants)
        timed += instants
        timed += [self.counter() for _ in range(self.randomness.randint(0, 20))]
        timed.sort(key=lambda pair: pair[0])
        records = [record for _, record in timed]
        for flow in self.flows():
            records.insert(self.randomness.randint(0, len(records)), flow)
        return write_journal(
            path, *records, started=STARTED._replace(name=name, time_ns=self.origin_ns)
        )

    def plan_spans(self, count: int) -> None:
        choose, between = self.randomness.choice, self.randomness.randint
        self.plan(None, self.origin_ns, self.origin_ns + between(0, self.within_ns))
        while len(self.plans) < count:
            parent = choose([None, *self.plans[-12:]])
            first_ns, last_ns = self.origin_ns, self.origin_ns + self.within_ns
            if parent is not None:
                first_ns, last_ns = parent.start_ns, parent.end_ns
            start_ns = between(first_ns, last_ns)
            match choose(
                ("inside", "inside", "inside", "reported", "fan", "outlives", "anywhere", "moment",
                 "touching", "whole", "open")
            ):  # fmt: skip
                case "inside":
                    self.plan(parent, start_ns, between(start_ns, last_ns))
                case "reported":
                    end_ns = between(start_ns, last_ns)
                    middle_ns = between(start_ns, end_ns)
                    self.plan(parent, start_ns, middle_ns, is_reported=True)
                    self.plan(parent, middle_ns, end_ns, is_reported=True)
                case "fan":
                    middle_ns = (first_ns + last_ns) // 2
                    for _ in range(choose((2, 3, 8, 64))):
                        self.plan(parent, between(first_ns, middle_ns), between(middle_ns, last_ns))
                case "outlives":
                    self.plan(parent, start_ns, last_ns + between(0, self.within_ns // 4))
                case "anywhere":
                    start_ns = self.origin_ns + between(0, self.within_ns)
                    self.plan(parent, start_ns, start_ns + between(0, self.within_ns // 2))
                case "moment":
                    self.plan(parent, start_ns, start_ns)
                case "touching":
                    start_ns = choose(self.plans).end_ns
                    self.plan(parent, start_ns, start_ns + between(0, self.within_ns // 9))
                case "whole":
                    self.plan(parent, first_ns, last_ns)
                case _:
                    self.plan(parent, start_ns, start_ns, is_open=True)

    def plan(
        self,
        parent: _Plan | None,
        start_ns: int,
        end_ns: int,
        *,
        is_reported: bool = False,
        is_open: bool = False,
    ) -> None:
        line_ns = end_ns if is_reported else start_ns
        self.plans.append(
            _Plan(
                id=len(self.plans) + 1,
                parent=None if parent is None else parent.id,
                start_ns=start_ns,
                end_ns=end_ns,
                # A span is never written before the one it is in.
                line_ns=line_ns if parent is None else max(line_ns, parent.line_ns),
                is_open=is_open,
            )
        )

    def span_records(self, plan: _Plan) -> list[Timed]:
        attributes = self.attributes()
        if self.randomness.random() < 0.2:
            attributes["track"] = self.randomness.choice(TRACKS)
        if plan.id == 1 and not self.seed % 10:
            attributes["text"] = "ü" * 100_000
        name = self.randomness.choice(NAMES)
        started = SpanStarted(plan.id, plan.parent, name, plan.start_ns, attributes)
        if plan.is_open:
            return [(plan.line_ns, started)]
        status = self.randomness.choice(("ok", "ok", "ok", "error", "cancelled"))
        error = self.randomness.choice(TEXTS[1:]) if status == "error" else None
        late = self.attributes() if self.randomness.random() < 0.3 else {}
        ended = SpanEnded(plan.id, plan.end_ns, status, error, late)
        if self.randomness.random() < 0.5:
            return [(plan.line_ns, joined(started, ended))]
        return [(plan.line_ns, started), (max(plan.line_ns, plan.end_ns), ended)]

    def instant(self) -> Timed:
        span = self.randomness.choice([None, *self.plans])
        time_ns = self.origin_ns + self.randomness.randint(0, self.within_ns)
        if span is None:
            return time_ns, Instant(None, "tick", time_ns, self.attributes())
        time_ns = max(time_ns, span.line_ns)
        return time_ns, Instant(span.id, "tick", time_ns, self.attributes())

    def counter(self) -> Timed:
        time_ns = self.origin_ns + self.randomness.randint(0, self.within_ns)
        span, track = None, None
        if self.randomness.random() < 0.4:
            track = self.randomness.choice(TRACKS)
        elif self.randomness.random() < 0.7:
            plan = self.randomness.choice(self.plans)
            time_ns, span = max(time_ns, plan.line_ns), plan.id
        name, unit = self.randomness.choice((("queue", "calls"), ("größe", "bytes"), ("x y", "%")))
        value = self.randomness.choice((0, 7, -3, 0.1, 2**53, -(2**62), 1e300, -2.5e-7))
        return time_ns, CounterSet(name, unit, time_ns, value, span, track)

    def flows(self) -> Iterator[Flow]:
        """Between spans that nothing else begins together with: elsewhere in Chrome's format an
        arrow has no end of its own.
        """
        ends = [plan for plan in self.plans if self.moments[plan.start_ns] == 1]
        for _ in range(self.randomness.randint(0, 2 * len(ends))):
            source, target = self.randomness.choice(ends), self.randomness.choice(ends)
            if source.start_ns < target.start_ns:
                yield Flow(self.randomness.choice(("draft", "needs")), source.id, target.id)

    def attributes(self) -> dict[str, object]:
        """What a span or an instant may carry."""
        keys = ("model", "küken 概要", 'a "key"', "x_ns", "dotted.key")
        attributes = {
            self.randomness.choice(keys): self.value(0)
            for _ in range(self.randomness.randint(0, 4))
        }
        if self.randomness.random() < 0.2:
            attributes["label"] = self.randomness.choice((*TEXTS, "sections[2]", 7))
        if self.randomness.random() < 0.02:
            deep: object = "bottom"
            for _ in range(60):
                deep = [deep] if self.randomness.random() < 0.5 else {"k": deep}
            attributes["deep"] = deep
        return attributes

    def value(self, level: int) -> object:
        match self.randomness.randint(0, 9 if level < 3 else 6):
            case 0:
                return None
            case 1:
                return self.randomness.random() < 0.5
            case 2 | 3:
                return self.randomness.choice(NUMBERS)
            case 4 | 5 | 6:
                return self.randomness.choice(TEXTS)
            case 7:
                # Nothing empty: Perfetto gives what has no value no place in a list.
                some = (0.25, -7, "x", True, ["x"], {"a": "x", "ü": 1})
                return [self.randomness.choice(some) for _ in range(self.randomness.randint(0, 3))]
            case _:
                keys = ("a", "b", "tone of voice", "ü")
                chosen = self.randomness.sample(keys, self.randomness.randint(0, 3))
                return {key: self.value(level + 1) for key in chosen}
