"""Journals of random runs, as code leaves them at its most unruly."""

from __future__ import annotations

from pathlib import Path
from random import Random

from sample_runs import STARTED, span, write_journal

from harness.trace import CounterSet, Flow, Instant, Journal, Record, SpanEnded, SpanStarted

NAMES = ("run", "node", "chat", "prefill", "evaluate", "open memory")
TRACKS = ("node findings", "model qwen", "server gpu 0", "küche 概要", "Zeile\u2028zwei", "\ud800?")
TEXTS = (
    "", "plain", '"quoted"\n\\back\t', "Übersicht 概要 🐣", "line\u2028separator\u2029s",
    "lone \ud800 surrogate \udfff", "</script>", "\x01\x1f\x7f", "C:\\temp\\", '\\"',
)  # fmt: skip
NUMBERS = (
    0, -1, 2**31, -(2**53) - 1, 2**63 - 1, -(2**63), 2**64 - 1, 2**64, -(2**70), 0.1, -1e-300,
    1.7e308, 0.00012345678901234567, 5e-324, float("nan"), float("inf"),
)  # fmt: skip


def write_random_run(path: Path, seed: int) -> Journal:
    """A run with everything that a journal may hold, in every relation of time."""
    randomness = Random(seed)
    between, choice = randomness.randint, randomness.choice
    # From a few nanoseconds, where everything touches, to hours.
    within_ns = 10 ** between(1, 13)
    origin_ns = choice((0, 7, 10**15))
    whole = span(0, origin_ns, origin_ns + within_ns)
    spans = []
    for number in range(1, between(2, 60)):
        parent = choice([None, *spans[-12:]])
        first_ns, last_ns = (parent or whole)[3:5]
        start_ns = choice((first_ns, between(first_ns, last_ns), between(*whole[3:5])))
        anywhere_ns = start_ns + between(0, within_ns // 2)
        end_ns = choice((start_ns, max(start_ns, last_ns), between(start_ns, anywhere_ns)))
        said = attributes(randomness)
        if randomness.random() < 0.2:
            said["track"] = choice(TRACKS)
        status = choice(("ok", "ok", "ok", "error", "cancelled"))
        made = span(number, start_ns, end_ns, name=choice(NAMES), status=status, **said)
        error = choice(TEXTS[1:]) if status == "error" else None
        spans.append(made._replace(parent=parent and parent.id, error=error))
    if not seed % 10:
        spans[0].attributes["text"] = "ü" * 100_000

    begins, ends, marks = [], [], []
    for one in spans:
        way = choice(("whole", "whole", "two ends", "open"))
        begun = SpanStarted(one.id, one.parent, one.name, one.start_ns, one.attributes)
        begins.append(one if way == "whole" else begun)
        if way == "two ends":
            late = attributes(randomness)
            ends.append(SpanEnded(one.id, one.end_ns, one.status, one.error, late))
    for _ in range(between(0, 20)):
        time_ns = origin_ns + between(0, within_ns)
        around = choice([None, *(one.id for one in spans)])
        tick = Instant(around, "tick", time_ns, attributes(randomness))
        marks.append(choice((tick, _counter(randomness, time_ns, around))))
    for _ in range(between(0, 2 * len(spans))):
        source, target = choice(spans), choice(spans)
        if source.start_ns < target.start_ns:
            marks.append(Flow(choice(("draft", "needs")), source.id, target.id))
    randomness.shuffle(ends)
    started = STARTED._replace(name=choice(("essay", *TEXTS[3:6])), time_ns=origin_ns)
    return write_journal(path, *begins, *marks, *ends, started=started)


def _counter(randomness: Random, time_ns: int, span: int | None) -> Record:
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
    return said


def value(randomness: Random, level: int = 0) -> object:
    """Of an attribute; values inside it are on the next level."""
    match randomness.randint(0, 7 if level < 3 else 5):
        case 0:
            return randomness.choice((None, True, False))
        case 1 | 2:
            return randomness.choice(NUMBERS)
        case 3 | 4 | 5:
            return randomness.choice(TEXTS)
        case 6:
            # Nothing empty: Perfetto gives what has no value no place in a list.
            some = (0.25, -7, "x", True, ["x"], {"a": "x", "ü": 1})
            return [randomness.choice(some) for _ in range(randomness.randint(0, 3))]
        case _:
            chosen = randomness.sample(("a", "b", "tone of voice", "ü"), randomness.randint(0, 3))
            return {key: value(randomness, level + 1) for key in chosen}
