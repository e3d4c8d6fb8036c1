# ruff: noqa: RUF001 - quotation marks of several languages are what it looks for
"""Finds text that gives a model orders, by patterns of known attacks in a few languages.

A filter, not security: it stops copies of well-known attacks, and an attacker who knows the
patterns can avoid them. Quotations, as in articles about such attacks, pass.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field

_EXCERPT_CHARACTERS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """Why a text looks like an instruction to a model."""

    code: str
    """Which kind, such as `injection.drop-instructions`."""
    reason: str
    """The kind in words, such as `tells a model to drop its instructions`."""
    excerpt: str
    """The matching words, at most 120 characters; invisible characters as `U+202E`."""


def injected_instruction(text: str) -> Suspicion | None:
    """The first passage of a text that looks like an instruction to a model; None if it is clean.

    Takes time linear in the text's length, for any text.
    """
    if not text.isascii():
        # 1. Invisible characters.
        hidden = _hidden(text)
        if hidden is not None:
            return hidden
        # 2. Letters in disguise.
        text = _plain(text)
    # 3. Words. Case is folded once, so that every pattern begins with letters, which are quick to
    # find; a pattern that began with a condition would try it at each character.
    folded = text.lower()
    for pattern in PATTERNS:
        if any(needle in folded for needle in pattern.needles):
            for count, match in enumerate(pattern.expression.finditer(folded)):
                if count == _MANY or pattern.is_meant(match):
                    return Suspicion(
                        code=pattern.code, reason=pattern.reason, excerpt=_excerpt(match)
                    )
    return None


_MANY = 1000
"""No article quotes so many: from here on a match counts without a further look."""


def _hidden(text: str) -> Suspicion | None:
    # Searching for a few bytes is quick; a pattern would look at each character.
    encoded = text.encode(errors="replace")
    if not any(start in encoded for start in _HIDDEN_STARTS):
        return None
    # Flags of parts of a country are spelled in tags, and end with a tag of their own.
    shown = _FLAG.sub("", text)
    match = _HIDDEN.search(shown)
    if match is None:
        return None
    names = " ".join(f"U+{ord(character):04X}" for character in match[0][:8])
    return Suspicion(
        code="injection.hidden-characters",
        reason="holds invisible characters",
        excerpt=names,
    )


_HIDDEN_STARTS = (b"\xf3\xa0", b"\xe2\x80\xae", b"\xe2\x80\x8b", b"\xe2\x80\x8c", b"\xef\xb8\x80")
_FLAG = re.compile("\U0001f3f4[\U000e0030-\U000e007a]{1,6}\U000e007f")
_HIDDEN = re.compile(
    "[\U000e0001-\U000e007f]"  # tags: ASCII, invisible
    "|\u202e"  # all that follows is drawn from right to left, whatever it is
    "|[\u200b-\u200d\u2060]{8,}"  # bits, as characters of no width
    "|[\ufe00-\ufe0f\U000e0100-\U000e01ef]{3,}"  # bytes, as variants of one character
)


def _plain(text: str) -> str:
    """With plain letters for full-width and mathematical ones, and no breaks in words."""
    encoded = text.encode(errors="replace")
    if any(start in encoded for start in (b"\xef\xbc", b"\xef\xbd", b"\xf0\x9d")):
        text = unicodedata.normalize("NFKC", text)
    if b"\xe2\x80\x8b" in encoded or b"\xe2\x80\x8c" in encoded or b"\xc2\xad" in encoded:
        text = text.translate(_WIDTHLESS)
    return text.replace("\u2019", "'")


_WIDTHLESS = dict.fromkeys((0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, 0xAD))


def _excerpt(match: re.Match[str]) -> str:
    start, end = match.span()
    return " ".join(match.string[start : max(end, start + 80)].split())[:_EXCERPT_CHARACTERS]


# --- patterns --------------------------------------------------------------------------------

# Drawn from published attacks (Perez and Ribeiro: "Ignore Previous Prompt", 2022, arXiv
# 2211.09527; Greshake et al.: "Not what you've signed up for", 2023, arXiv 2302.12173; OWASP: LLM01
# Prompt Injection). All patterns are written for text whose case is folded.


@dataclass(frozen=True, slots=True)
class Pattern:
    """One kind of instruction."""

    reason: str
    needles: tuple[str, ...]
    """A text without any of these has no match, which is quick to find out."""
    expression: re.Pattern[str]
    is_order: bool = False
    """Whether it must be an order: "ignore …" is one, "models that ignore …" is not."""
    code: str = field(kw_only=True)

    def is_meant(self, match: re.Match[str]) -> bool:
        """Whether the words stand by themselves, and are not quoted."""
        start, end = match.span()
        before = match.string[max(0, start - 80) : start]
        if before[-1:].isalnum() and match[0][:1].isascii():
            return False  # the end of a longer word
        if self.is_order and not _ORDER.search(before[-24:]):
            return False
        opening = _OPENING.search(before)
        return opening is None or _CLOSING[opening[1]] not in match.string[end : end + 300]


# Before an order: nothing, the end of a sentence, a mark, or words that lead to an order.
_ORDER = re.compile(
    r"(?:\A|[^\w\s'’]\s{0,4}|\n\s{0,8}|"
    r"\b(?:you|please|now|and|then|must|should|just|also|kindly|instead|so|hey|ok|ai|assistant|"
    r"bitte)"
    r"(?:\s(?:to|must|should|will|shall|can|need\sto|have\sto|are\sto|now|please))?,?\s{1,3})\Z"
)
# Prose, then a quotation mark: not one that begins a text or a JSON value.
_OPENING = re.compile(r"""[^\W_]['*]{0,2}[\s,:(]{1,3}(["“„«`‘])[^"“”„«»`\n]{0,60}\Z""")
_CLOSING = {'"': '"', "“": "”", "„": "“", "«": "»", "`": "`", "‘": "’"}


def _any(words: str) -> str:
    """One of several words or phrases, separated by commas."""
    return f"(?:{'|'.join(word.strip() for word in words.split(','))})".replace(" ", r"\s")


# Every gap has a bound, and no two gaps that can hold the same text meet: a match fails after a
# number of steps that does not grow with the text.
_GAP = r"[\s_*]{1,6}"
_FORGET = _any(
    "ignore, disregard, forget, override, bypass, pay no attention to, do not follow, "
    "don't follow, stop following, do not obey"
)
_ORDERS = _any(
    "instructions?, prompts?, directives?, guidelines, guidance, directions, commands, "
    "programming, safeguards, constraints, orders, context"
)
_WHICH = _any(
    "previous, prior, above, earlier, preceding, foregoing, your, system, original, initial, "
    "existing, former, other"
)
_FILLER = _any("all, any, of, the, my, these, those, and, every, safety")
_ABOVE = _any(
    "above, before, prior, previously, that came before, you were told, you have been told, "
    "you've been told, you know, you were instructed, written above, i said, said before, "
    "said so far"
)
_PROMPT = (
    _any("system, initial, hidden, original, secret, previous, full")
    + r"\s"
    + _any("prompt, message, instructions?")
)
_SECRET = _any(
    "conversation, chat history, chat log, api keys?, api[_-]keys?, passwords?, credentials, "
    "secrets?, system prompt, environment variables, private data, private keys?, personal data, "
    "personal information, contacts, e-?mails, cookies, tokens, access tokens, session data, "
    "user data, messages, files, ssh keys?"
)

_FORGET_ENGLISH = (
    rf"{_FORGET}{_GAP}(?:"
    rf"(?:{_FILLER}{_GAP}){{0,4}}{_WHICH}{_GAP}(?:{_any('system, safety, of')}{_GAP})?"
    rf"(?:\w{{1,14}}{_GAP})?{_ORDERS}\b|"
    rf"(?:everything|anything|all(?:{_GAP}of{_GAP}(?:the|that))?){_GAP}(?:that{_GAP})?{_ABOVE}\b|"
    rf"all{_GAP}(?:of{_GAP})?(?:the{_GAP})?{_any('instructions, prompts, directives')}\b|"
    rf"(?:{_FILLER}{_GAP}){{0,4}}{_ORDERS}{_GAP}"
    rf"{_any('above, before, you were given, you have been given')}\b|"
    rf"the{_GAP}above{_GAP}and{_GAP})"
)
_FORGET_GERMAN = (
    rf"(?:ignorieren?(?:{_GAP}sie)?|vergiss|vergessen{_GAP}sie){_GAP}"
    rf"(?:{_any('alle, die, deine, ihre, sämtliche, diese')}{_GAP}){{0,3}}(?:\w{{1,20}}{_GAP})?"
    rf"{_any('anweisungen, instruktionen, vorgaben, befehle')}\b"
)
_FORGET_ROMANCE = (
    rf"(?:ignore[zr]?|ignora(?:te)?|oublie[zr]?|olvid[ae]|dimentica(?:te)?|esque[çc]a|"
    rf"desconsidere){_GAP}"
    rf"(?:{_any('de, toutes, todas, tutte, les, las, le, as, tus, sus, suas, tes, vos, tue, ces')}"
    rf"{_GAP}){{0,4}}"
    r"(?:instru\w{3,8}|consignes|directives|indica\w{4,7}|istruzioni|[óo]rdenes|reglas)"
    rf"{_GAP}(?:pr[ée]c[ée]d\w{{3,7}}|ci-dessus|ant[ée]ri\w{{3,6}}|pr[eé]vi\w{{1,3}}|acima)"
)
_FORGET_RUSSIAN = (
    rf"(?:игнорируй|забудь|не{_GAP}следуй)(?:те)?{_GAP}"
    rf"(?:{_any('все, всем, всё, эти, свои, твои')}{_GAP}){{0,2}}(?:\w{{1,20}}{_GAP})?"
    r"(?:инструкци|указани|команд|подсказ|правил)"
)
_FORGET_CHINESE = (
    "(?:忽略|无视|忽视|忘记|無視|忽視|忘記)[^。\n]{0,6}?(?:之前|以上|先前|前面|上述|所有|此前)"
    "[^。\n]{0,6}?(?:指令|指示|提示|规则|命令|说明|要求|規則)"
)
_FORGET_JAPANESE = (
    "(?:以前|これまで|上記|前|すべて|全て)の[^。\n]{0,6}?(?:指示|命令|プロンプト|ルール|指令)"
    "(?:を|は)?(?:すべて|全て)?(?:無視し|忘れ)(?:て|ろ|なさい)"
)
_FORGET_KOREAN = (
    r"(?:이전|위의?|모든|앞선)\s?[^.\n]{0,6}?(?:지시|명령|지침|프롬프트)[^.\n]{0,4}?(?:무시하|잊)"
)


def _drop(
    needles: tuple[str, ...], expression: re.Pattern[str], *, is_order: bool = False
) -> Pattern:
    return Pattern(
        "tells a model to drop its instructions",
        needles,
        expression,
        is_order=is_order,
        code="injection.drop-instructions",
    )


PATTERNS = (
    _drop(
        (
            *("ignore", "disregard", "forget", "override", "bypass"),
            *("attention to", "t follow", "p follow", "not obey"),
        ),
        re.compile(_FORGET_ENGLISH),
        is_order=True,
    ),
    _drop(("ignorier", "vergiss", "vergessen sie"), re.compile(_FORGET_GERMAN), is_order=True),
    _drop(
        ("ignor", "oublie", "olvid", "dimentica", "esque", "desconsidere"),
        re.compile(_FORGET_ROMANCE),
    ),
    _drop(("игнорируй", "забудь", "не следуй"), re.compile(_FORGET_RUSSIAN)),
    _drop(("忽略", "无视", "忽视", "忘记", "無視", "忽視", "忘記"), re.compile(_FORGET_CHINESE)),
    _drop(("無視し", "忘れ"), re.compile(_FORGET_JAPANESE)),
    _drop(("무시하", "잊"), re.compile(_FORGET_KOREAN)),
    Pattern(
        "gives a model another role",
        (
            *("you are now", "you are hence", "you will now", "you must now", "from now on"),
            *("pretend", "act as", "anything now", "dan mode", "jailbreak mode"),
            "unrestricted mode",
        ),
        re.compile(
            r"you\s(?:are|will|must)\s(?:now|henceforth|from\snow\son)\s"
            r"(?:act\sas\s|be\s|called\s)?(?:\w{1,14}\s){0,4}?"
            r"(?:ai|assistant|chatbot|bot|model|agent|dan|persona|jailbroken|unrestricted|"
            r"unfiltered|uncensored|evil|hacker|llm|gpt)\b|"
            r"from\snow\son,?\syou\s(?:are\sa|(?:will|must|shall)\s(?:only\s|always\s)?"
            r"(?:act|respond|answer|reply|speak|obey|behave|ignore|say))|"
            r"(?:pretend|act)\s(?:to\sbe|as\sif|that|you\sare|as)\s(?:you\s)?(?:\w{1,12}\s){0,4}?"
            r"(?:ai|assistant|model|chatbot)\s(?:with(?:out|\sno)|that\s(?:has\sno|can|ignores))|"
            r"you\scan\sdo\sanything\snow\b|"
            r"(?:enter|enable|activate|switch\sto|you\sare\s(?:now\s)?in)\s"
            r"(?:dan|jailbreak|unrestricted)\smode\b"
        ),
        code="injection.another-role",
    ),
    Pattern(
        "asks a model for its instructions",
        ("prompt", "your instruction", "your initial", "your hidden", "system message"),
        re.compile(
            r"(?:reveal|print|show|repeat|output|display|leak|tell|give|write\sout|recite|send)\s"
            rf"(?:(?:me|us|back|out|to|the|user)\s){{0,3}}your\s"
            rf"(?:{_any('full, entire, complete, exact, whole, own')}\s){{0,2}}{_PROMPT}|"
            rf"(?:reveal|leak|recite|repeat)\sthe\s(?:{_any('full, entire, exact')}\s){{0,2}}"
            rf"{_PROMPT}"
        ),
        is_order=True,
        code="injection.asks-for-instructions",
    ),
    Pattern(
        "tells a model to hide something from its user",
        ("the user", "the human", "your user", "your operator"),
        re.compile(
            r"(?:do\snot|don't|never)\s(?:ever\s)?"
            r"(?:tell|inform|mention|reveal|disclose|alert|notify|warn|let|show|say)\s"
            r"(?:(?:this|it|that|any|of|anything|about|to)\s){0,4}"
            r"(?:the|your)\s(?:user|human|operator)\b(?!')"
        ),
        is_order=True,
        code="injection.keeps-from-user",
    ),
    Pattern(
        "pretends to be a system message",
        (
            *("system:", "system]", "system>", "message:", "prompt:", "override:", "update:"),
            *("note:", "admin:", "developer:", "instruction:", "instructions:", "ructions for"),
        ),
        re.compile(
            r"(?:system|admin(?:istrator)?|developer)"
            r"(?:\s(?:message|prompt|override|note|notice|instructions?|update))?"
            r"[\]>)*]{0,3}\s?:?[\s*]{0,4}(?:you\s(?:are\snow|must|will|should)\b|"
            r"ignore\b|disregard\b|forget\b|new\sinstruction|from\snow\son|do\snot\s(?:tell|follow))|"
            r"(?:new|updated|real|actual)\s(?:system\s)?instructions?\s?"
            r"(?:for\s(?:the\s)?(?:ai|assistant|model)\s?)?:\s{0,4}"
            r"(?:you|ignore|disregard|forget|from|do|always|never|send|reply|respond|output|print)\b"
        ),
        is_order=True,
        code="injection.voice-of-the-system",
    ),
    Pattern(
        "addresses any model that reads it",
        ("if you are a", "if you're a", "attention", "note to", "message to", "instructions for"),
        re.compile(
            r"if\syou(?:\sare|'re)\s(?:an?\s)(?:ai|llm|(?:large\s)?language\smodel|"
            r"ai\s(?:model|assistant|agent)|assistant|chatbot|bot)\b[^\n]{0,40}?"
            r"(?:,|you\s(?:must|should)|then|please)\s|"
            r"(?:attention|note\sto|message\sto|instructions\sfor)[\s:,]{1,3}"
            r"(?:(?:all|any|the|every)\s)?(?:ai|llm|language\smodel)s?"
            r"(?:\s(?:models?|assistants?|agents?|systems?|reviewers?))?\s?[:,!.]"
        ),
        is_order=True,
        code="injection.speaks-to-models",
    ),
    Pattern(
        "holds the markers that separate the messages of a conversation",
        ("<|", "[inst]", "<<sys>>", "<start_of_turn>", "<system"),
        # Not where a quotation mark stands right before: that is a program, or names one.
        re.compile(
            r"""<\|(?<!["'`“‘]<\|)(?:im_start|im_end|start_header_id|end_header_id|eot_id|"""
            r"begin_of_text|endoftext|system|user|assistant|endofprompt|channel|start|end)\|>|"
            r"""\[inst\](?<!["'`“‘]\[inst\])|<<sys>>(?<!["'`“‘]<<sys>>)|"""
            r"""<start_of_turn>(?<!["'`“‘]<start_of_turn>)|"""
            r"<system[-_](?:prompt|message|instructions?|reminder)>"
        ),
        code="injection.conversation-marks",
    ),
    Pattern(
        "tells a model to send its data elsewhere",
        ("http", "webhook", "@"),
        re.compile(
            r"(?:send|forward|post|upload|e-?mail|exfiltrate|transmit|leak|submit|append|copy)\s"
            r"(?:(?:me|us|all|the|any|your|this|full|entire|whole|complete|user's|user|of|their|"
            rf"its|contents?|my|our|stored|found|a|copy|summary)\s){{1,6}}{_SECRET}\b"
            r"[^\n]{0,60}?\s(?:to|at|via|into|in)\s"
            r"(?:(?:the|this|following|my|our|a|attacker's|external|url|address|endpoint|server)"
            r"[\s:]{1,2}){0,4}"
            r"(?:[`'\"<(]?https?://|webhook|[\w.+-]{1,40}@[\w-]{1,40}\.)"
        ),
        is_order=True,
        code="injection.sends-away",
    ),
    Pattern(
        "holds an image whose address would leak the conversation",
        ("![",),
        re.compile(
            r"!\[[^\]\n]{0,80}\]\(https?://[^\s){}\[<]{1,200}[?&=/]"
            r"(?:\{|\[|<|%7b|%5b)[^\s)]{0,20}(?:conversation|history|secret|data|summary|prompt|"
            r"message|token|password|key|context|chat|info)"
        ),
        code="injection.telltale-image",
    ),
    Pattern(
        "tells a model to decode something and obey it",
        ("decode", "decipher"),
        re.compile(
            r"(?:decode|decipher)\s(?:(?:this|the|following|below|above|base64|base-64|rot13|hex|"
            r"string|text|message|payload|it|encoded|from|and|then|line|block)[\s:,.]{1,3}){0,8}"
            r"(?:[^\s,.]{12,400}[\s,.]{1,3})?(?:and\s|then\s){0,2}"
            r"(?:follow|execute|obey|carry\sout|do\swhat|act\son|comply|perform)\b"
        ),
        is_order=True,
        code="injection.decode-and-obey",
    ),
)
