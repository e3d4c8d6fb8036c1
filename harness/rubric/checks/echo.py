"""Words of the loop in a draft: its prompts, findings and scores, and talk of the revision itself.

Lines of the prompts are found in every language. Talk of the revision ("Here is the revised
version:") is found in English, by its shape. What the task or the sources say is no echo.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.rubric.draft import Draft, Finding
from harness.text.sentences import sentences_of
from harness.text.words import terms

_LONG_WORDS = 6  # this many words of a prompt are an echo anywhere
_SHORT_WORDS = 3  # this many only as a whole line, or as a line's beginning up to a colon

_MADE = r"(?:rewritten|revised|improved|updated|edited|corrected|refined|polished|final)"
_EARLIER = r"(?:previous|earlier|existing|original|old)"
_TEXT = r"(?:summary|answer|version|draft|response|output|text|brief|section|paragraph|passage)"
_TALK = re.compile(
    "|".join(
        (
            # Here is the corrected text:
            (
                rf"^\W*(?:(?:sure|certainly|of course)\b\W*)?(?:here(?: is|['\u2019]s)|below is)"
                rf" (?:the|your|my|an?) (?:{_MADE}|{_EARLIER}) {_TEXT}\b"
            ),
            # I'll provide a rewritten version; we will return the original summary. Of other verbs,
            # or of a final version, people write in letters.
            (
                r"\b(?:I|we)(?:['\u2019]ll|['\u2019]ve| will| have)?"
                r" (?:provide|return|give|write|present)d? (?:\w+ ){0,2}"
                rf"(?:re\w+ed|improved|edited|corrected|polished|{_EARLIER}) {_TEXT}\b"
            ),
            r"\bwith my (?:edits|changes|revisions|corrections)\b",
            # The previous answer was:  The existing summary is more comprehensive.
            (
                rf"^\W*(?:the|your|my) (?:{_EARLIER}|{_MADE}) (?:summary|answer|response|output)"
                rf" (?:was|is|remains|has|does)\b"
            ),
            rf"^\W*(?:the|your|my) (?:{_EARLIER}|{_MADE}) {_TEXT}(?: was| is)?:",
            r"^\W*no (?:changes?|refinements?|revisions?)(?: is| are)? (?:needed|required)",
            rf"^\W*return (?:the )?{_EARLIER} {_TEXT}\b",
            # Headings and labels: Revised Output, Key Changes Made, Score: 8/10 alone
            rf"^\W*{_MADE} {_TEXT}\W*$",
            r"^\W*(?:key |main )?(?:changes|edits|revisions|improvements) made\W*$",
            r"^\W*scores so far\W*:|^\W*(?:overall )?score\W*:\W*\d+(?:\.\d+)?\s*/\s*10\W*$",
        )
    ),
    re.IGNORECASE,
)


def echoes(draft: Draft) -> tuple[Finding, ...]:
    """A finding for each section in which a line has words of the loop."""
    evidence = _spaced(draft.evidence)
    sources = _spaced("\n".join(draft.sources))
    prompts = [words for words in map(_spaced, _pieces(draft)) if words not in evidence]
    # If there are sources, a draft may have the title of the task, but no whole sentence of it.
    task = map(_spaced, sentences_of(draft.task) if draft.has_sources else [draft.task])
    phrases = [*prompts, *(words for words in task if words not in sources)]
    long_phrases = [words for words in phrases if len(words.split()) >= _LONG_WORDS]
    whole_lines = {words for words in prompts if len(words.split()) >= _SHORT_WORDS}

    def is_echo(line: str) -> bool:
        talk = _TALK.search(line)
        if talk and _spaced(talk[0]) not in evidence:
            return True
        if _spaced(line.partition(":")[0]) in whole_lines:  # a label of a prompt, or a whole line
            return True
        words_of_line = _spaced(line)
        is_heading = line.lstrip().startswith("#")
        return not is_heading and any(phrase in words_of_line for phrase in long_phrases)

    message = "write the text alone: this line is about the task or the revision"
    return tuple(
        draft.finding(message, index, code="check.echo")
        for index, section in enumerate(draft.sections)
        if any(map(is_echo, section.text.splitlines()))
    )


def _spaced(text: str) -> str:
    """The words of a text with blanks around them, so that phrases match whole words only."""
    return f" {' '.join(terms(text))} "


def _pieces(draft: Draft) -> Iterator[str]:
    """The sentences of the producer's prompts, each up to its first quotation or placeholder."""
    for text in draft.told:
        for line in text.splitlines():
            for sentence in sentences_of(line):
                yield re.split(r"[\"\u201c{]", sentence)[0]
