"""Removes secrets from everything that a run writes.

Known values (keys, and settings marked as secret) are replaced everywhere. Servers also echo
unknown keys, so a value is replaced too if it has a name that only secrets have, follows `Bearer`,
is in an address before its host, or has the shape of a well-known key. Not found are an unknown
secret in prose, in a list under a secret's name, or cut in two, and a known one in an encoding
other than those of URLs and JSON.

Models and servers can say anything, so every pattern takes time in proportion to a text's length:
repeats are bounded, or never given back once matched: `++`, and of a group `(?>(?:…)+)`, since
CPython before 3.11.5 matches a possessive repeat of a group wrongly.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from urllib.parse import quote, quote_plus

import orjson

from harness.trace.journal_line import dump_json

REDACTED = "[redacted]"

SHORTEST = 6  # characters of a secret that is not known, where its name or place tells it
# Characters of a known secret. To replace shorter values everywhere would garble ordinary texts.
_SHORTEST_KNOWN = 8
# Words that people give as a key to a client whose server needs none, and that examples have.
_PLACEHOLDERS = """
a abc abc123 abcd anything api apikey change changeme cpp default demo dev development dummy empty
example fake foo goes here ignored in insert is it key keys litellm llama llamacpp llamafile lm
lmstudio local localai localhost me mock model my na necessary need needed nil no nokey none not
nothing notneeded null ollama open openai optional password placeholder replace required sample
secret server set sk some something source studio test testing the this to token unneeded unset
unused used value vllm with xinference your
"""

# Fields of a record whose values are the journal's own words, or digests of what a node was given:
# under a parameter's name they might look like secrets, and without them no run could be resumed.
_CLOSED = ("kind", "status", "inputs", "code", "digest")
_COMMON = frozenset(_PLACEHOLDERS.split())
# --- names -----------------------------------------------------------------------------------
# A variable, attribute, header or parameter whose name ends in one of these is a secret.
_WORD = (
    r"(?:authorization|(?:api|access|secret|private|account|subscription)[-_ ]?key"
    r"|(?:access|refresh|auth|session)[-_]?token|secret|passw(?:or)?d|passphrase)"
)

# --- texts -----------------------------------------------------------------------------------
_QUOTE = r"\\{0,15}[\"']"  # JSON within JSON text has its quotes escaped
_IS = rf"(?:{_QUOTE})? {{0,4}}[:=]\s{{0,8}}(?:{_QUOTE})?"
_SCHEME = r"(?:basic|bearer|token|apikey)\s{1,4}"
_CHARACTER = r"[^\s\"'\\,;&<>()\[\]{}|`]"
# Ordinary words have no digits and are shorter, and secrets by chance nearly always have some.
_RANDOM = rf"(?={_CHARACTER}{{0,64}}\d|[a-z\d+/=-]{{20}}){_CHARACTER}{{8,}}+"
# "Token" is also what models count by, and there are many numbers of those.
_LETTERED = rf"(?={_CHARACTER}{{0,64}}[a-z]){_RANDOM}"
_KEY = r"(?:sk-|sk_|pk_|gsk_|hf_|r8_|ghp_|xoxb-)"
_HOST = r"[^\s/@:\"'<>\\]"  # what may stand before a colon or an @ in an address

_NAME = re.compile(rf"[\w.-]*?(?:{_WORD}|(?P<token>token))", re.IGNORECASE | re.ASCII)
# Variables have more such names, and parts after them: `MY_KEYS`, `GH_PAT`, `DB_PASS_2`.
_VARIABLE = re.compile(
    r"(.*_)?(key|pat|pass(word|wd|phrase)?|credential|token|secret)s?(?P<more>_.*)?", re.IGNORECASE
)
_TOKEN = re.compile(_LETTERED, re.IGNORECASE | re.ASCII)
# How names look in a folded text, see `_folded`, when a value follows.
_NAMES = (
    b"authorization=", b"key=", b"token=", b"secret=", b"passwd=", b"password=", b"passphrase=",
)  # fmt: skip
_KINDS = tuple(
    (hints, re.compile(pattern, re.IGNORECASE | re.ASCII))
    for hints, pattern in (
        # What a name has in JSON, and in what Python says of a dictionary: all up to the quote.
        (
            _NAMES,
            rf"({_WORD}{_QUOTE} {{0,4}}:\s{{0,8}}(?P<r>{_QUOTE}))(?>(?:(?!(?<!\\)(?P=r))[^\n])+)",
        ),
        # In plain text, what follows a scheme: `Authorization: Basic anything`.
        ((b"authorization=",), rf"(authorization{_IS}{_SCHEME}){_CHARACTER}{{{SHORTEST},}}+"),
        # A password in plain text: `password=anything`.
        (
            (b"passwd=", b"password=", b"passphrase="),
            rf"((?:passw(?:or)?d|passphrase){_IS}){_CHARACTER}{{{SHORTEST},}}+",
        ),
        # Another name in plain text, which prose may have too: `x-api-key: 0123456789`.
        (_NAMES, rf"({_WORD}{_IS}(?:{_SCHEME})?){_RANDOM}"),
        # A token, in whatever form: `HF_TOKEN=abc123def`.
        ((b"token=",), rf"((?<!per[-_])token{_IS}){_LETTERED}"),
        # In an address: `?api_key=anything&sig=anything`.
        (
            (*_NAMES, b"sig=", b"signature="),
            rf"([?&][\w.%-]{{0,40}}?(?:{_WORD}|token|sig|signature)=)[^&\s\"'\\#<>\[]++",
        ),
        # Parameters by names that others have too: `?key=0123456789`, `signature=0123456789`.
        (
            (b"key=", b"sig=", b"signature="),
            rf"((?:[?&]key|(?<![a-z])(?:sig|signature))=){_RANDOM}",
        ),
        # `Bearer 0123456789`.
        ((b"bearer",), rf"(\bbearer\s{{1,8}}){_RANDOM}"),
        # `https://me:anything@host`.
        ((b"@",), rf"(://{_HOST}{{0,128}}:)[^\s/@\"'<>\\\[]{{1,512}}+(?=@)"),
        # `https://0123456789@host`.
        ((b"@",), rf"(://)(?={_HOST}{{0,64}}\d){_HOST}{{8,512}}+(?=@)"),
        # Well-known keys, their first letters first; a line may begin with one, in JSON text too.
        (
            (b"sk_", b"pk_", b"hf_", b"r8_", b"ghp_", b"xoxb_"),
            rf"()(?=[sphgrx])(?:(?<![\w-])|(?<=\\[nrt])){_KEY}(?=[\w-]{{0,200}}\d)[\w-]{{16,}}+",
        ),
    )
)
"""Pairs of hints and a pattern: only a folded text with one of the hints is searched for the
pattern. The first group of a match stays, and the rest is replaced."""

# Most lines have no hint, and to look for hints is thirty times faster than to match patterns.
_HINTS = tuple(dict.fromkeys(hint for hints, _ in _KINDS for hint in hints))
_FOLDING = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ-:", b"abcdefghijklmnopqrstuvwxyz_=")
# The bytes that are in no hint, except letters, without which other words would look like hints.
_IGNORED = bytes(
    {*range(256)}
    - {*string.ascii_letters.encode(), *b"-:"}
    - {byte for hint in _HINTS for byte in hint}
)


class Redactor:
    """Replaces secrets in texts: the known `secrets` that are `searchable`, and unknown ones."""

    def __init__(self, secrets: Collection[str] = ()) -> None:
        # As a journal has them: characters that are no valid Unicode are written as `?`.
        values = {secret.strip().encode("utf-8", "replace").decode() for secret in secrets}
        self._values = set(filter(searchable, values))
        forms: set[str] = set()
        for value in self._values:
            # The value itself, and as it is in a URL, in JSON, and in JSON within JSON.
            escaped = _escaped(value)
            forms |= {value, quote(value, safe=""), quote_plus(value), *escaped}
            forms.update(*map(_escaped, escaped))
        # The longest first, since a secret may contain another.
        self._forms = sorted(forms, key=len, reverse=True)
        self._encoded_forms = [form.encode() for form in self._forms]

    def clean(self, text: str) -> str:
        """The text without its secrets."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, REDACTED)
        folded = _folded(text.encode("utf-8", "replace"))
        hinted = {hint for hint in _HINTS if hint in folded}
        if hinted:
            for hints, pattern in _KINDS:
                if not hinted.isdisjoint(hints):
                    text = pattern.sub(rf"\1{REDACTED}", text)
        return text

    def clean_line(self, line: bytes) -> bytes:
        """A record's line without its secrets; the words of the journal and times stay."""
        if not self.finds_any(line):
            return line
        record = orjson.loads(line)
        cleaned = {
            name: self.clean_values(value)
            if isinstance(value, str | list | dict) and name not in _CLOSED
            else value
            for name, value in record.items()
        }
        return line if cleaned == record else dump_json(cleaned) + b"\n"

    def finds_any(self, lines: bytes) -> bool:
        """Whether lines may hold a secret. Quick, so that many lines are looked at together."""
        return _any_in(self._encoded_forms, lines) or _any_in(_HINTS, _folded(lines))

    def clean_values(self, value: object) -> object:
        """A JSON value without its secrets."""
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, list):
            return [self.clean_values(item) for item in value]
        if isinstance(value, dict):
            return {
                self.clean_values(name): REDACTED
                if isinstance(name, str) and _is_secret(name, item)
                else self.clean_values(item)
                for name, item in value.items()
            }
        # A known secret may be written as a number.
        return REDACTED if str(value) in self._values else value


def searchable(value: str) -> bool:
    """Whether a value is looked for in texts: it is not short, and not made of common words."""
    # `OPENAI_API_KEY=ollama` must not take every "ollama" out of a model's replies.
    words = re.split(r"[\s_.:/-]+", value.strip().lower().strip("<>[](){}*._-"))
    is_placeholder = all(
        word in _COMMON or len(set(word)) <= 1 or "1234567890".startswith(word) for word in words
    )
    return len(value.strip()) >= _SHORTEST_KNOWN and not is_placeholder


def secrets_of(environment: Mapping[str, str], *, named: Iterable[str]) -> dict[str, str]:
    """The variables that are secret by their names, or that are `named`."""
    names = {*named}
    return {n: value for n, value in environment.items() if n in names or _is_variable(n, value)}


@lru_cache(maxsize=4096)
def _is_variable(name: str, value: str) -> bool:
    """Whether a variable holds a secret, and not a number of tokens or the path of a key's file."""
    match = _VARIABLE.fullmatch(name)
    # `MAX_TOKENS=4096` is a limit; `PASSWORD=4096` is not (`_NAME`).
    if match is None or value.isdigit():
        return _NAME.fullmatch(name) is not None
    return match["more"] is None or not value.startswith(("/", "~"))


def _is_secret(name: str, value: object) -> bool:
    """Whether an attribute is secret by its name, or by its value where the name leaves doubt."""
    match = _NAME.fullmatch(name)
    if match is None or isinstance(value, bool):
        return False
    if match["token"]:
        return isinstance(value, str) and _TOKEN.match(value) is not None
    return isinstance(value, str | int | float)


def _escaped(text: str) -> set[str]:
    return {orjson.dumps(text).decode()[1:-1], json.dumps(text)[1:-1]}


def _folded(text: bytes) -> bytes:
    """Letters and the characters of hints, in one form each: few hints find many spellings."""
    return text.translate(_FOLDING, _IGNORED)


def _any_in(needles: Iterable[bytes], text: bytes) -> bool:
    for needle in needles:  # noqa: SIM110 - as `any`, it takes twice as long
        if needle in text:
            return True
    return False
