"""What `harness rubric tune` found, as a page with plots.

Sentences and tables are those of the terminal; plots show the same figures.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table

from harness.cli.consoles import cleaner
from harness.page import Axis, Element, Plot, element, percent, round_step, table, write_page
from harness.rubric import Rubric
from harness.rubric.calibration.bounds import Risk, interval
from harness.rubric.calibration.calibration_files import Calibration
from harness.rubric.calibration.labels import COMPOSITE
from harness.rubric.calibration.tuning import Scored, Tuning

_BINS = 20
_CELLS = 40
"""In which dots of a scatter plot are gathered, along each side."""
_ROW = 38
_RATES: dict[Risk, str] = {
    "accepted": "wrong, of the accepted",
    "rejected": "accepted, of those that people reject",
    "all": "accepted and wrong, of all",
}
_COUNTS: dict[Risk, str] = {
    "accepted": "{} of {} accepted drafts are wrong",
    "rejected": "{} of {} drafts that people reject are accepted",
    "all": "{} of {} drafts are accepted and wrong",
}


def was_set_by(before: Calibration | None, tuning: Tuning) -> bool:
    """Whether the rubric's threshold comes of these labels."""
    set_by = (before.at.threshold, before.labels_sha256) if before else None
    return set_by == (tuning.own.threshold, tuning.labels_sha256)


def write_report(
    path: Path,
    tuning: Tuning,
    rubric: Rubric,
    *,
    evaluator: str | None,
    is_set_by_labels: bool,
    said: Sequence[str],
    tables: Sequence[Table],
) -> None:
    """Writes the page.

    Args:
        path: Its file.
        tuning: What labels say.
        rubric: Of which they say it.
        evaluator: Who gave the scores, if the labels do not say.
        is_set_by_labels: Whether its threshold comes of these labels.
        said: What the terminal says of them, in lines.
        tables: What the terminal shows.

    Raises:
        InvalidInput: It cannot be written.
    """
    who = tuning.evaluators or evaluator or "an unnamed evaluator"
    who = who if rubric.judged else "code alone"
    agreeing = [*_by_dimension(tuning), *_against_people(tuning, rubric)]
    body = [
        element(
            "p", _claim(tuning, rubric, who, is_set_by_labels=is_set_by_labels), class_="claim"
        ),
        element("ul", *(element("li", line.strip()) for line in said if line), class_="lines"),
        element("h2", "Thresholds"),
        element("div", *_by_threshold(tuning, rubric), class_="plots"),
        *(_as_html(one) for one in tables[:1]),
        element("h2", "Evaluator and people"),
    ]
    if agreeing:
        body.append(element("div", *agreeing, class_="plots"))
    else:
        body.append(element("p", "The labels have no scores by people, only decisions."))
    body += [*(_as_html(one) for one in tables[1:]), *_disagreements(tuning)]
    write_page(path, f"{rubric.title}: thresholds by labels", *body, clean=cleaner())


def _claim(tuning: Tuning, rubric: Rubric, who: str, *, is_set_by_labels: bool) -> str:
    """All that matters, in one sentence."""
    aim, own, named, missing = tuning.aim, tuning.own, tuning.named, tuning.missing
    sure = f"{percent(aim.confidence)} sure"
    bound = f"at most {percent(tuning.own_bound)}, {sure}, if chosen before these labels were seen"
    said = (
        f"Rubric '{rubric.id}', scored by {who}: at its pass_at {own.threshold:g}, "
        f"{_COUNTS[aim.risk].format(own.wrong, own.trials(aim.risk))} "
        f"({'which these labels set' if is_set_by_labels else bound}); "
    )
    kept = f"at most {percent(aim.target)} of them, {sure}"
    if named is not None:
        return f"{said}threshold {named.threshold:g} keeps it to {kept}."
    if tuning.needed is None and own.rejects:
        more = "more labels would hardly help"
    else:
        more = f"at least {missing[0]} more labels are missing" if missing else "no draft can pass"
    return f"{said}no threshold keeps it to {kept} ({more})."


def _as_html(shown: Table) -> Element:
    columns = [[str(cell) for cell in column.cells] for column in shown.columns]
    head = [str(column.header) for column in shown.columns]
    return table(str(shown.title), head, list(zip(*columns, strict=True)))


# --- thresholds ------------------------------------------------------------------------------


def _by_threshold(tuning: Tuning, rubric: Rubric) -> Iterator[Element]:
    composites = [one.composite for one in tuning.counted]
    width = round_step((max(composites) - min(composites) or 1) / _BINS)
    width = max(width, rubric.scale.composite_step)
    ends = [*composites, rubric.pass_at]
    low = math.floor(min(ends) / width - 1) * width
    x = Axis(label="composite", low=low, high=math.ceil(max(ends) / width + 1) * width)
    if tuning.steps:
        yield _rates(tuning, x)
    yield _histograms(tuning, x, width)
    yield _tenths(tuning, x)


def _rates(tuning: Tuning, x: Axis) -> Element:
    aim, own = tuning.aim, tuning.own
    at = {one: one.trials(aim.risk) for one in reversed(tuning.steps)}
    bounds = [interval(a.wrong, trials, confidence=aim.confidence) for a, trials in at.items()]
    rate = [a.wrong / trials if trials else math.nan for a, trials in at.items()]
    accepted = [one.accepted / one.drafts for one in at]
    plot = Plot(
        "Error rate and share accepted, by threshold",
        f"At the rubric's threshold {own.threshold:g}, {own.accepted} of {own.drafts} drafts are "
        f"accepted; {_COUNTS[aim.risk].format(own.wrong, own.trials(aim.risk))}. {_named(tuning)}",
        x=Axis(label="threshold", low=x.low, high=x.high),
        y=Axis(label="share of drafts", low=0, high=1, shown=percent),
    )

    def stepped(shares: Sequence[float]) -> list[tuple[float, float]]:
        # Up to a composite, a threshold accepts the draft that has it.
        begins = [x.low, *(one.threshold for one in at)]
        each = zip(begins, at, shares, strict=False)
        return [point for left, a, y in each for point in ((left, y), (a.threshold, y))]

    if own.trials(aim.risk):
        lower, upper = (stepped(side) for side in zip(*bounds, strict=True))
        name = f"{percent(aim.confidence)} interval at each threshold"
        plot.band(lower, upper, name=name)
        plot.line(stepped(rate), "first", name=_RATES[aim.risk])
    plot.line(stepped(accepted), "second", name="accepted, of all")
    plot.rule("target", y=aim.target, name=f"target {percent(aim.target)}")
    _mark(plot, tuning)
    return plot.figure("The band is of one threshold at a time; the claim is of all together.")


def _mark(plot: Plot, tuning: Tuning) -> None:
    plot.rule("mark", x=tuning.own.threshold, name=f"pass_at {tuning.own.threshold:g}")
    if tuning.named is not None:
        claim = tuning.named.threshold
        plot.rule("claim", x=claim, name=f"threshold {claim:g}, which the claim is of")


def _named(tuning: Tuning) -> str:
    if tuning.named is None:
        return "No threshold allows the claim."
    return f"Threshold {tuning.named.threshold:g} allows the claim."


def _histograms(tuning: Tuning, x: Axis, width: float) -> Element:
    """Accepted drafts above the line, rejected ones below."""
    bins = Counter(
        (one.accept, math.floor((one.composite - x.low) / width + 1e-9)) for one in tuning.counted
    )
    sides = [[n for (is_good, _), n in bins.items() if is_good is side] for side in (True, False)]
    most_good, most_bad = (max(side, default=0) for side in sides)
    good, bad = map(sum, sides)
    # At either end is room for a line of text.
    room = 0.15 * max(1, most_good + most_bad)
    top, low = most_good + room, -most_bad - room
    blocked = sum(one.blocked for one in tuning.counted)
    plot = Plot(
        "Composites of drafts that people accept and reject",
        f"A histogram. People accept {good} drafts, {_range(tuning.counted, accept=True)}, and "
        f"reject {bad}, {_range(tuning.counted, accept=False)}.",
        x=x,
        y=Axis(
            label="number of drafts",
            low=low,
            high=top,
            shown=lambda number: f"{abs(number):g}",
        ),
    )
    for (is_good, place), number in bins.items():
        left = x.low + place * width
        corners = (0, number) if is_good else (-number, 0)
        plot.bar((left, corners[0]), (left + width, corners[1]), "first" if is_good else "second")
    plot.line([(x.low, 0), (x.high, 0)], "equal")
    _mark(plot, tuning)
    plot.text(f"above: people accept ({good})", (x.low, top), rise=-14)
    plot.text(f"below: people reject ({bad})", (x.low, low), rise=6)
    fails = f" {blocked} of them fail at every threshold: below a floor, or not all scored."
    return plot.figure(f"{len(tuning.counted)} drafts that count.{fails if blocked else ''}")


def _range(drafts: Sequence[Scored], *, accept: bool) -> str:
    own = [one.composite for one in drafts if one.accept is accept]
    if not own:
        return "none"
    return f"from {min(own):g} to {max(own):g} with the median {statistics.median(own):g}"


def _tenths(tuning: Tuning, x: Axis) -> Element:
    confidence = tuning.aim.confidence
    said = (f"{t.accepted} of {t.drafts} from {t.low:g} to {t.high:g}" for t in tuning.tenths)
    plot = Plot(
        "Share that people accept, by tenth of the composites",
        f"Of each tenth of the drafts, people accept: {'; '.join(said)}.",
        x=x,
        y=Axis(label="share that people accept", low=0, high=1, shown=percent),
    )
    for number, tenth in enumerate(tuning.tenths):
        place = (tenth.low + tenth.high) / 2
        ends = interval(tenth.accepted, tenth.drafts, confidence=confidence)
        plot.line([(place, end) for end in ends], "first")
        if tenth.low < tenth.high:
            share = tenth.accepted / tenth.drafts
            plot.line([(tenth.low, share), (tenth.high, share)], "first")
        name = "" if number else f"a tenth of the drafts, with a {percent(confidence)} interval"
        plot.dot((place, tenth.accepted / tenth.drafts), name=name)
    _mark(plot, tuning)
    return plot.figure("It should rise: a higher composite, more drafts that people accept.")


# --- agreement -------------------------------------------------------------------------------


def _by_dimension(tuning: Tuning) -> Iterator[Element]:
    found = [one for one in tuning.agreements if not one.is_frozen]
    known = [(one, one.estimates["pearson"]) for one in found]
    known = [(one, r) for one, r in known if not math.isnan(r.value)]
    if not known:
        return
    ends = [r.low for _, r in known] + [one.ceiling[0] for one, _ in known]
    lowest = min((end for end in ends if not math.isnan(end)), default=0)
    low = min(0.0, math.floor(lowest * 5) / 5)
    said = (f"{a.name} {r.value:.2f}, from {r.low:.2f} to {r.high:.2f}" for a, r in known)
    plot = Plot(
        "Agreement by dimension",
        f"Pearson's r of the evaluator with the mean of people: {'; '.join(said)}.",
        x=Axis(label="Pearson's r", low=low, high=1),
        y=None,
        height=_ROW * len(known),
    )
    named: set[str] = set()
    for number, (one, r) in enumerate(known):
        y = 1 - (number + 0.65) / len(known)
        plot.text(one.name, (low, y), rise=12)
        if not math.isnan(r.low):
            plot.line([(r.low, y), (r.high, y)], "first")
        interval_name = f"evaluator, with a {percent(tuning.aim.confidence)} interval"
        plot.dot((r.value, y), name=interval_name * ("dot" not in named))
        named.add("dot")
        if not math.isnan(one.ceiling[0]):
            human = "one person with the mean of the others" * ("human" not in named)
            plot.diamond((one.ceiling[0], y), name=human)
            named.add("human")
    yield plot.figure("")


def _against_people(tuning: Tuning, rubric: Rubric) -> Iterator[Element]:
    scale = rubric.scale
    size = (scale.max - scale.min) / _CELLS
    for one in tuning.agreements:
        name = COMPOSITE if one.name == "composite" else one.name
        pairs = [
            (statistics.fmean(people.values()), draft.scores[name])
            for draft in tuning.scored
            if (people := draft.labeled.people.get(name)) and name in draft.scores
        ]
        cells = Counter((round(x / size) * size, round(y / size) * size) for x, y in pairs)
        most = max(cells.values(), default=1)
        r, offset = one.estimates["pearson"].value, one.estimates["offset"].value
        said = "is undefined" if math.isnan(r) else f"is {r:.2f}"
        plot = Plot(
            f"Evaluator against people: {one.name}",
            f"Scores of {one.drafts} drafts. Pearson's r {said}; the evaluator gives "
            f"{abs(offset):.2f} {'more' if offset >= 0 else 'less'} than people in the mean.",
            x=Axis(label="people's mean", low=scale.min, high=scale.max),
            y=Axis(label="evaluator", low=scale.min, high=scale.max),
            height=260,
        )
        plot.line([(scale.min, scale.min), (scale.max, scale.max)], "equal", name="the same")
        for (x, y), number in cells.items():
            plot.dot((x, y), radius=max(2.2, 9 * math.sqrt(number / max(most, 9))))
        yield plot.figure(f"A larger circle is more drafts, up to {most}.")


def _disagreements(tuning: Tuning) -> Iterator[Element]:
    if not tuning.disagreements:
        return
    yield element("h2", "Decided otherwise than by people")
    yield element("p", "At the rubric's own threshold, the farthest from it first.", class_="quiet")
    for draft in tuning.disagreements:
        labeled = draft.labeled
        decided = "people accept, the rubric does not"
        if not draft.accept:
            decided = "people reject, the rubric accepts"
        scores = [
            f"{name} {score:g}" + (f" (people {statistics.fmean(by.values()):.3g})" if by else "")
            for name, score in draft.scores.items()
            if name != COMPOSITE
            for by in [labeled.people.get(name)]
        ]
        yield element(
            "article",
            element("h3", f"{labeled.id}: composite {draft.composite:g}; {decided}"),
            *([element("p", ", ".join(scores), class_="quiet")] if scores else []),
            *([element("p", f"Task: {labeled.task}")] if labeled.task else []),
            element("pre", labeled.draft, tabindex=0)
            if labeled.draft
            else element("p", "The labels do not have its text.", class_="quiet"),
        )
