"""Checks of our own for the rubrics beside this file: a share from 0 to 1, and what is wrong."""

import re

from harness import Draft

Graded = tuple[float, list[str]]


def keeps_every_figure(draft: Draft) -> Graded:
    """Every figure of the sources is in the text."""
    figures = re.findall(r"\d+(?:[.,]\d+)*", "\n".join(draft.sources))
    return _graded(figures, draft, fault="this figure is lost")


def names_every_finding(draft: Draft) -> Graded:
    """Every finding stands in the review, by its line, in its own words."""
    findings = [source for source in draft.sources if source.startswith("line ")]
    return _graded(findings, draft, fault="this finding is lost")


def _graded(wanted: list[str], draft: Draft, *, fault: str) -> Graded:
    lost = [one for one in dict.fromkeys(wanted) if one not in draft.text]
    return 1 - len(lost) / max(len(set(wanted)), 1), [f"{fault}: {one}" for one in lost]
