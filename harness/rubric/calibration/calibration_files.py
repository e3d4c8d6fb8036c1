"""The files of tuning beside a rubric: its attempts, its calibration, and its threshold.

`essay.attempts.json` records which scores were compared with which labels. A rubric edited after a
look at labels fits them better than new ones, and adding labels until a threshold comes out favors
one: so all looks at the same labels share the allowed risk. `essay.calibration.json` holds the
evidence for a threshold.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict

from harness.errors import InvalidInput, RubricInvalid
from harness.files import shipped_directory, whole_file, writing
from harness.rubric.calibration.bounds import AtThreshold, RiskAim
from harness.rubric.load import RubricFile
from harness.rubric.noise import RubricRecord
from harness.rubric.prompt import prompt_sha256
from harness.rubric.rubric import Rubric
from harness.rubric.written import read_written


class Attempt(BaseModel):
    """The scores of one rubric and evaluator on labeled drafts that someone looked at."""

    pass_at: tuple[float, ...]
    """The thresholds that the rubric had."""
    drafts: tuple[int, ...]
    """How many drafts counted at each look: a look at more drafts is another look."""
    scores: dict[str, float | None]
    """Digest of a label → the highest threshold at which its draft passes; None for none."""

    def has_scores_of(self, look: Attempt) -> bool:
        """Whether it saw some of the same labels, and the same scores of each."""
        shared = self.scores.keys() & look.scores.keys()
        return bool(shared) and all(self.scores[label] == look.scores[label] for label in shared)


class Attempts(RubricRecord):
    """All looks at labels by a rubric and its earlier versions."""

    kind = "attempts"

    attempts: tuple[Attempt, ...] = ()

    @classmethod
    def beside(cls, rubric: Rubric, directory: Path) -> Self:
        """The attempts of the rubric, and of all others in its folder."""
        attempts = cls.read(rubric, directory) or cls()
        # A copy of a rubric has another name, and does not look at the labels for free.
        for path in sorted(directory.glob(f"*.{cls.kind}.json")):
            attempts = attempts.joined(cls.read_file(path).attempts)
        return attempts

    def after(self, pass_at: float, scores: Mapping[str, float | None], *, drafts: int) -> Self:
        """These attempts and a look with `pass_at` at so many drafts."""
        return self.joined([Attempt(pass_at=(pass_at,), drafts=(drafts,), scores=dict(scores))])

    def joined(self, looks: Iterable[Attempt]) -> Self:
        """These attempts and other looks; looks at the same scores become one attempt."""
        attempts = [*self.attempts]
        for look in looks:
            # The look has its own scores, so it is among `same`.
            same = [attempt for attempt in (*attempts, look) if attempt.has_scores_of(look)]
            attempts = [attempt for attempt in attempts if attempt not in same]
            new = Attempt(
                pass_at=tuple(sorted({at for attempt in same for at in attempt.pass_at})),
                drafts=tuple(sorted({size for attempt in same for size in attempt.drafts})),
                scores={label: score for a in same for label, score in a.scores.items()},
            )
            attempts.append(new)
        return self.model_copy(update={"attempts": tuple(attempts)})

    def on(self, scores: Mapping[str, float | None]) -> tuple[Attempt, ...]:
        """The attempts that saw any of these labels."""
        return tuple(attempt for attempt in self.attempts if attempt.scores.keys() & scores.keys())


class Calibration(RubricRecord):
    """What a rubric's threshold rests on."""

    model_config = ConfigDict(extra="ignore")  # older files have the noise of the samples, too
    kind = "calibration"

    rubric_sha256: str
    """The digest of the rubric with this threshold."""
    prompt_sha256: str
    """Digest of the evaluator's prompts without task, sources and draft; as in `Judges`."""
    evaluator: str | None
    """Tag of its endpoint, or the tags of a panel; None if code alone scores."""
    samples: tuple[int, ...]
    """How many judgements a draft had: one number if all had as many."""
    labels_sha256: str
    at: AtThreshold
    """The rubric's threshold."""
    aim: RiskAim
    """The claim about the threshold."""
    method: str
    accept_at: float | None
    """The mean of people's scores from which they accept; None if they decided themselves."""

    def differences(self, rubric: Rubric, evaluator: str) -> tuple[str, ...]:
        """What has changed since the calibration, in words; empty if the claim still holds."""
        parts = []
        if rubric.sha256 != self.rubric_sha256:
            parts.append("the rubric")
        if prompts_digest(rubric) != self.prompt_sha256:
            parts.append("the evaluator's prompts")
        # A rubric of checks alone has no evaluator that could change.
        if rubric.judged and evaluator != (self.evaluator or ""):
            parts.append(
                f"the evaluator ({self.evaluator or 'none'} then, {evaluator or 'none'} now)"
            )
        return tuple(parts)


def prompts_digest(rubric: Rubric) -> str:
    """Digest of an evaluator's prompts for drafts with sources."""
    joint = rubric.judge == "joint"
    return prompt_sha256(rubric, [rubric.judged] if joint else [[d] for d in rubric.judged])


def write_pass_at(file: RubricFile, value: float) -> Rubric:
    """Writes a threshold into a rubric's file, where all else stays; returns the rubric with it.

    Raises:
        InvalidInput: The rubric ships with the program, the file cannot be written, or other values
            would change too.
    """
    path = file.written.path
    if path.resolve().is_relative_to(shipped_directory("rubrics").resolve()):
        raise InvalidInput(
            "it ships with the program; make one of your own first: harness new rubric "
            f"{path.stem} --from {path.stem}",
            code="tune.rubric-ships",
            path=path,
        )
    before = read_written(path)
    threshold = float(f"{value:g}")
    with writing(path), whole_file(path) as partial:
        os.fchmod(partial.fileno(), path.stat().st_mode)
        partial.write(_with_pass_at(path.read_bytes().decode(), value).encode())
        partial.flush()
        # Without its base, which is looked up by the file's name.
        after = None
        with suppress(RubricInvalid):
            after = read_written(Path(partial.name)).plain()
        if after != {**before.plain(), "pass_at": threshold}:
            raise InvalidInput(
                f"the threshold cannot be put into it; write pass_at: {value:g} yourself",
                code="tune.threshold-not-written",
                path=path,
                line=before.fields.get("pass_at", before).line,
            )
    return file.rubric.model_copy(update={"pass_at": threshold})


def _with_pass_at(text: str, value: float) -> str:
    """The text with this threshold in place of its own, else below its title or its base."""
    root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    entries = {name.value: (name, node) for name, node in root.value}
    if "pass_at" in entries:
        name, old = entries["pass_at"]
        start, end = old.start_mark.index, old.end_mark.index
        if start < name.start_mark.index:  # an alias, with the marks of what it stands for
            start = text.index("*", name.end_mark.index)
            end = start + len(re.split(r"[\s,}]", text[start:], maxsplit=1)[0])
        return f"{text[:start]}{value:g}{text[end:]}"
    own = [name for name in entries if name in {"title", "extends"}] or [*entries]
    end_mark = entries[own[0]][1].end_mark
    # A text of several lines ends at the beginning of the next one.
    is_line_start = end_mark.column == 0
    whole = text if text.endswith("\n") else f"{text}\n"
    below = end_mark.index if is_line_start else whole.index("\n", end_mark.index) + 1
    newline = "\r\n" if whole[:below].endswith("\r\n") else "\n"
    return f"{whole[:below]}pass_at: {value:g}{newline}{whole[below:]}"
