"""Journals of random runs, as code leaves them at its most unruly."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import NamedTuple

from sample_runs import STARTED, write_journal

from harness.trace import CounterSet, Flow, Instant, Journal, Record, SpanEnded, SpanStarted
from harness.trace.records import joined

NAMES = ("run", "node", "chat", "prefill", "evaluate", "open memory")
TRACKS = ("node findings", "model qwen", "server gpu 0", "küche 概要", "Zeile\u2028zwei", "\ud800?")
TEXTS = (
    "", "plain", '"quoted"\n\\back\t', "Übersicht 概要 🐣", "line\u2028separator\u2029s",
    "lone \ud800 surrogate \udfff", "</script>", "\x01\x1f\x7f", "C:\\temp\\", '\\"',
)  # fmt: skip
# No integers of 64 bits without a sign, and no floats of 20 decimals: to Perfetto's JSON importer
# both overflow, in `StringToDouble` of `src/trace_processor/util/json_parser.h`.
NUMBERS = (
    0, -1, 2**31, -(2**53) - 1, 2**63 - 1, -(2**63), 2**64, -(2**70), 0.1, -1e-300, 1.7e308,
    float("nan"), float("inf"),
)  # fmt: skip


class Plan(NamedTuple):
    """A span before it is recorded."""

    id: int
    parent: int | None
    start_ns: int
    end_ns: int
    line_ns: int
    """When its first line is written: for a phase that a server reports, when the call is over."""
    is_open: bool


def write_random_run(path: Path, seed: int) -> Journal:
    """A run with everything that a journal may hold, in every relation of time."""
    randomness = Random(seed)
    # From a few nanoseconds, where everything touches, to hours.
    within_ns = 10 ** randomness.randint(1, 13)
    origin_ns = randomness.choice((0, 7, 10**15))
    plans = _plans(randomness, origin_ns, within_ns)
    timed = [pair for plan in plans for pair in _span_records(randomness, plan)]
    if not seed % 10:
        timed[0][1].attributes["text"] = "ü" * 100_000
    moments = Counter(plan.start_ns for plan in plans)
    for _ in range(randomness.randint(0, 20)):
        time_ns = origin_ns + randomness.randint(0, within_ns)
        plan = randomness.choice([None, *plans])
        if plan is not None:
            time_ns = max(time_ns, plan.line_ns)
        span = None if plan is None else plan.id
        if randomness.random() < 0.3:
            moments[time_ns] += 1
            timed.append((time_ns, Instant(span, "tick", time_ns, attributes(randomness))))
        else:
            timed.append((time_ns, _counter(randomness, time_ns, span)))
    timed.sort(key=lambda pair: pair[0])
    records = [record for _, record in timed]
    # Between spans that nothing else begins together with: elsewhere in Chrome's format an arrow
    # has no end of its own.
    ends = [plan for plan in plans if moments[plan.start_ns] == 1]
    for _ in range(randomness.randint(0, 2 * len(ends))):
        source, target = randomness.choice(ends), randomness.choice(ends)
        if source.start_ns < target.start_ns:
            flow = Flow(randomness.choice(("draft", "needs")), source.id, target.id)
            records.insert(randomness.randint(0, len(records)), flow)
    name = randomness.choice(("essay", *TEXTS[3:6]))
    started = STARTED._replace(name=name, time_ns=origin_ns)
    return write_journal(path, *records, started=started)


def _plans(randomness: Random, origin_ns: int, within_ns: int) -> list[Plan]:
    between = randomness.randint
    plans: list[Plan] = []
    for number in range(1, between(2, 60)):
        parent = randomness.choice([None, *plans[-12:]])
        first_ns, last_ns = origin_ns, origin_ns + within_ns
        if parent is not None:
            first_ns, last_ns = parent.start_ns, parent.end_ns
        start_ns = between(first_ns, last_ns)
        kinds = ("inside", "inside", "whole", "outlives", "anywhere", "moment", "touching", "open")
        kind = randomness.choice(kinds)
        match kind:
            case "inside":
                end_ns = between(start_ns, last_ns)
            case "whole":
                start_ns, end_ns = first_ns, last_ns
            case "outlives":
                end_ns = last_ns + between(0, within_ns // 4)
            case "anywhere":
                start_ns = origin_ns + between(0, within_ns)
                end_ns = start_ns + between(0, within_ns // 2)
            case "touching":
                start_ns = plans[-1].end_ns if plans else start_ns
                end_ns = start_ns + between(0, within_ns // 9)
            case _:
                end_ns = start_ns
        line_ns = randomness.choice((start_ns, end_ns))
        # A span is never written before the one it is in.
        line_ns = line_ns if parent is None else max(line_ns, parent.line_ns)
        parent_id = None if parent is None else parent.id
        plans.append(Plan(number, parent_id, start_ns, end_ns, line_ns, kind == "open"))
    return plans


def _span_records(randomness: Random, plan: Plan) -> list[tuple[int, Record]]:
    """A span's records, and when the lines of each are written."""
    said = attributes(randomness)
    if randomness.random() < 0.2:
        said["track"] = randomness.choice(TRACKS)
    name = randomness.choice(NAMES)
    started = SpanStarted(plan.id, plan.parent, name, plan.start_ns, said)
    if plan.is_open:
        return [(plan.line_ns, started)]
    status = randomness.choice(("ok", "ok", "ok", "error", "cancelled"))
    error = randomness.choice(TEXTS[1:]) if status == "error" else None
    late = attributes(randomness) if randomness.random() < 0.3 else {}
    ended = SpanEnded(plan.id, plan.end_ns, status, error, late)
    if randomness.random() < 0.5:
        return [(plan.line_ns, joined(started, ended))]
    return [(plan.line_ns, started), (max(plan.line_ns, plan.end_ns), ended)]


def _counter(randomness: Random, time_ns: int, span: int | None) -> CounterSet:
    track = randomness.choice(TRACKS) if randomness.random() < 0.4 else None
    name, unit = randomness.choice((("queue", "calls"), ("größe", "bytes"), ("x y", "%")))
    value = randomness.choice((0, 7, -3, 0.1, 2**53, -(2**62), 1e300, -2.5e-7))
    return CounterSet(name, unit, time_ns, value, None if track else span, track)


def attributes(randomness: Random) -> dict[str, object]:
    """What a span or an instant may carry."""
    keys = ("model", "küken 概要", 'a "key"', "x_ns", "dotted.key")
    said = {randomness.choice(keys): value(randomness) for _ in range(randomness.randint(0, 4))}
    if randomness.random() < 0.2:
        said["label"] = randomness.choice((*TEXTS, "sections[2]", 7))
    if randomness.random() < 0.02:
        deep: object = "bottom"
        for _ in range(60):
            deep = [deep] if randomness.random() < 0.5 else {"k": deep}
        said["deep"] = deep
    return said


def value(randomness: Random, level: int = 0) -> object:
    """Of an attribute; values inside it are on the next level."""
    match randomness.randint(0, 9 if level < 3 else 6):
        case 0:
            return None
        case 1:
            return randomness.random() < 0.5
        case 2 | 3:
            return randomness.choice(NUMBERS)
        case 4 | 5 | 6:
            return randomness.choice(TEXTS)
        case 7:
            # Nothing empty: Perfetto gives what has no value no place in a list.
            some = (0.25, -7, "x", True, ["x"], {"a": "x", "ü": 1})
            return [randomness.choice(some) for _ in range(randomness.randint(0, 3))]
        case _:
            keys = ("a", "b", "tone of voice", "ü")
            chosen = randomness.sample(keys, randomness.randint(0, 3))
            return {key: value(randomness, level + 1) for key in chosen}
