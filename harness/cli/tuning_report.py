"""What `harness rubric tune` found, as a page with plots.

Sentences and tables are those of the terminal; plots show the same figures.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.table import Table

from harness.cli.consoles import cleaner
from harness.page import Axis, Element, Plot, Point, element, percent, round_step, table, write_page
from harness.rubric import Rubric
from harness.rubric.calibration.bounds import interval
from harness.rubric.calibration.labels import COMPOSITE
from harness.rubric.calibration.tuning import Tuning

_BINS = 20
_NO_SCORES = "The labels have no scores by people, only decisions."
_SAID = {True: "accept", False: "reject"}


def write_report(
    path: Path,
    tuning: Tuning,
    rubric: Rubric,
    *,
    origin: Mapping[str, str],
    own: str,
    risk: str,
    claim: Iterable[str],
    said: Iterable[str],
    tables: Sequence[Table],
) -> None:
    """Writes the page.

    `origin` says what the figures come from, `own` what the rubric's threshold does, `risk` of what
    an error rate is a share; `claim`, `said` and `tables` are all that the terminal shows, the
    thresholds first.
    """
    write_page(
        path,
        f"{rubric.title}: thresholds by labels",
        element("p", " ".join(line.strip() for line in claim), class_="claim"),
        element("ul", *(element("li", line.strip()) for line in said), class_="lines"),
        element("h2", "Thresholds"),
        element("div", *_by_threshold(tuning, rubric, own, risk), class_="plots"),
        *(_as_html(rows) for rows in tables[:1]),
        element("h2", "Evaluator and people"),
        *([] if tuning.agreements else [element("p", _NO_SCORES)]),
        *(_as_html(rows) for rows in tables[1:] if rows.row_count),
        *_disagreements(tuning),
        table("What these figures come from", ["", ""], [*origin.items()]),
        clean=cleaner(),
    )


def _as_html(rows: Table) -> Element:
    columns = [[str(cell) for cell in column.cells] for column in rows.columns]
    head = [str(column.header) for column in rows.columns]
    return table(str(rows.title), head, list(zip(*columns, strict=True)))


# --- thresholds ------------------------------------------------------------------------------


def _by_threshold(tuning: Tuning, rubric: Rubric, own: str, risk: str) -> Iterator[Element]:
    composites = [draft.composite for draft in tuning.counted]
    width = round_step((max(composites) - min(composites) or 1) / _BINS)
    width = max(width, rubric.scale.composite_step)
    ends = [*composites, rubric.pass_at]
    low = math.floor(min(ends) / width - 1) * width
    x = Axis(label="composite", low=low, high=math.ceil(max(ends) / width + 1) * width)
    if tuning.steps:
        yield _rates(tuning, x, own, risk)
    yield _histograms(tuning, x, width)


def _rates(tuning: Tuning, x: Axis, own: str, risk: str) -> Element:
    aim, steps = tuning.aim, tuning.steps[::-1]
    plot = Plot(
        "Error rate and share accepted, by threshold",
        f"Threshold {own}. The lower the threshold, the more are accepted.",
        x=Axis(label="threshold", low=x.low, high=x.high),
        y=Axis(label="share of drafts", low=0, high=1, shown=percent),
    )

    def stepped(shares: Iterable[float]) -> list[Point]:
        # Up to a composite, a threshold accepts the draft that has it.
        begins = [x.low, *(at.threshold for at in steps)]
        stretches = zip(begins, steps, shares, strict=False)
        return [point for start, at, y in stretches for point in ((start, y), (at.threshold, y))]

    tried = [(at.wrong, at.trials(aim.risk)) for at in steps]
    if all(trials for _, trials in tried):
        bounds = [interval(*pair, confidence=aim.confidence) for pair in tried]
        lower, upper = (stepped(side) for side in zip(*bounds, strict=True))
        plot.band(lower, upper, name=f"{percent(aim.confidence)} interval at each threshold")
        plot.line(stepped(wrong / of for wrong, of in tried), "first", name=risk)
    plot.line(stepped(at.accepted / at.drafts for at in steps), "second", name="accepted, of all")
    plot.rule("target", y=aim.target, name=f"target {percent(aim.target)}")
    _mark(plot, tuning)
    return plot.figure("The band is of one threshold at a time; the claim is of all together.")


def _mark(plot: Plot, tuning: Tuning) -> None:
    plot.rule("mark", x=tuning.own.threshold, name=f"pass_at {tuning.own.threshold:g}")
    if tuning.named is not None:
        claim = tuning.named.threshold
        plot.rule("claim", x=claim, name=f"threshold {claim:g}, which the claim is of")


def _histograms(tuning: Tuning, x: Axis, width: float) -> Element:
    """Accepted drafts above the line, rejected ones below."""
    sides = {side: [d.composite for d in tuning.counted if d.accept is side] for side in _SAID}
    bins = {
        side: Counter(math.floor((composite - x.low) / width + 1e-9) for composite in composites)
        for side, composites in sides.items()
    }
    high, low = (max(bins[side].values(), default=0) for side in _SAID)
    room = 0.15 * max(1, high + low)  # for a line of text
    y = Axis(label="drafts", low=-low - room, high=high + room, shown=lambda n: f"{abs(n):g}")
    sentences = [
        f"people {verb} {len(scores)}"
        + (f", in the median {statistics.median(scores):g}" if scores else "")
        for verb, scores in zip(_SAID.values(), sides.values(), strict=True)
    ]
    title = "Composites of drafts that people accept and reject"
    plot = Plot(title, f"A histogram: {'; '.join(sentences)}.", x=x, y=y)
    for side, counts in bins.items():
        for place, number in counts.items():
            start, ends = x.low + place * width, (0, number) if side else (-number, 0)
            corners = (start, ends[0]), (start + width, ends[1])
            plot.bar(*corners, "first" if side else "second")
    plot.line([(x.low, 0), (x.high, 0)], "equal")
    _mark(plot, tuning)
    plot.text(f"above: people accept ({len(sides[True])})", (x.low, y.high), rise=-14)
    plot.text(f"below: people reject ({len(sides[False])})", (x.low, y.low), rise=6)
    blocked = sum(draft.blocked for draft in tuning.counted)
    fails = f" {blocked} of them fail at every threshold: below a floor, or not all scored."
    return plot.figure(f"{len(tuning.counted)} drafts that count.{fails * (blocked > 0)}")


# --- disagreements -----------------------------------------------------------------------------


def _disagreements(tuning: Tuning) -> Iterator[Element]:
    if not tuning.disagreements:
        return
    yield element("h2", "Decided otherwise than by people")
    yield element("p", "At the rubric's own threshold, the farthest from it first.", class_="quiet")
    for draft in tuning.disagreements:
        labeled, names = draft.labeled, [name for name in draft.scores if name != COMPOSITE]
        means = {name: statistics.fmean(by.values()) for name, by in labeled.people.items()}
        scores = [
            f"{name} {draft.scores[name]:g}"
            + (f" (people {means[name]:.3g})" if name in means else "")
            for name in names
        ]
        verb = "rejects" if draft.accept else "accepts"
        decided = f"people {_SAID[draft.accept]}, the rubric {verb}"
        task = [f"Task: {labeled.task}"] if labeled.task else []
        yield element(
            "article",
            element("h3", f"{labeled.id}: composite {draft.composite:g}; {decided}"),
            *(element("p", line, class_="quiet") for line in [", ".join(scores), *task]),
            element("pre", labeled.draft or "(The labels do not have its text.)", tabindex=0),
        )
