"""Marks of thought and of calls that a server left in a reply's text, split off by `marks.tsv`.

Marks count where a reply begins, or after a thought; marks of calls also at the beginning of a
line, if tools were offered. Elsewhere, in quotes and in fences, the answer speaks of the marks.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.resources import files
from typing import Any, Literal

import orjson

from harness.inference.json_text import DECODER, at, json_values_in, parsed, rows, without_slips
from harness.inference.request import ToolSpec

_LIKE_A_MARK = re.compile(
    r"<[|\uff5c][^<>\s]{1,60}>|<[^<>\s]{1,60}[|\uff5c]>|\[/?(?:THINK|THOUGHT|TOOL_|REASON)[A-Z_]*\]"
    r"|</?(?:\w+[:_])?(?:think|thought|reason|tool_?call|TOOLCALL|tool_use|function|invoke|scratch_?pad)"
    r"[\w=:-]*[^<>\n]{0,60}>"
)
_QUOTED = re.compile(r"```.*?```|~~~.*?~~~|`[^`\n]*`|(?<=[\"'\u201c\u2018(])<[^<>\n]*>", re.DOTALL)
_FENCE = re.compile(r"\A```\w*|```\Z")
# A tool's name, and behind it nothing but marks before its arguments. It begins where a name may,
# and is no word that may stand behind it: to try each of many takes quadratic time.
_NAMED = re.compile(
    r"(?<![A-Za-z0-9_.-])(?:functions\.|call:)?(?!(?:json|commentary)\b)([A-Za-z_][A-Za-z0-9_.-]*)(?::\d+)?"
    r"(?:\s|<[^<>]*>|\[ARGS\]|```|\(|json\b|commentary\b)*(?=\{)"
)
# Possessive: to give back a long name, or a tag without an end, takes quadratic time.
_TAG = re.compile(r"<(/?)([\w:|\uff5c.-]*+)[^<>]*+>")
_CALL_TAG = re.compile(
    r'<[\w:|\uff5c]*?(?:function(?:_call)?|invoke)(?:=| name=)["\']?([\w.-]++)[^<>]*+>'
    r"|<tool_call>\s*([\w.-]++)\s*(?=<arg_key>|</tool_call>|\Z)"  # GLM
)
_ARGUMENT_TAG = re.compile(
    r'\s*<(?:([\w:|\uff5c]*?parameter)(?:=| name=)["\']?([\w.-]++)[^<>]*+>'
    r"|arg_key>([^<>]+)</arg_key>\s*<arg_value>|([\w.-]++)>)"
)
_CALL_END = re.compile(r"\s*(?:</[\w:|\uff5c]*?(?:function(?:_call)?|invoke|tool_call)>|\Z)")
# Such an end of the last call also ends an argument that has none of its own.
_CLOSED = re.compile(r"(?:\s|</[\w:|\uff5c]*(?:function|tool)_calls?>)*\Z")
# Behind a call, it shows that the call's true end comes later.
_ARGUMENT_END = re.compile(r"</[\w:|\uff5c]*?(?:parameter|arg_value|function|invoke)>")
_PYTHON_CALL = re.compile(r"\[?\s*[A-Za-z_]\w*\(\s*(?:[A-Za-z_]\w*\s*=|\))")
# A text of Python, or a mark around calls.
_TEXT_OR_MARK = re.compile(
    r"""(?s)(\\.|("{3}|'{3}|"|')(?:[^\\]|\\.)*?\2)|```\w*|</?[|\uff5c]?[\w|\uff5c:]+[|\uff5c]?>"""
)
_OBJECT_NEXT = re.compile(r"\s*(?=\{)")
_JSON = re.compile(r'\{(?=\s*["}])|\[(?=\s*\{)')
_GEMMA_TEXT = re.compile(r'(<\|"\|>|<escape>)(.*?)\1', re.DOTALL)
_ABOUT_A_CALL = {"name", "tool_name", "function", "tool", "type", "id", "index"}
_LONGEST_MARK = 64  # with the blanks around it


@cache
def _table() -> tuple[Mapping[str, str], ...]:
    lines = files("harness.inference").joinpath("marks.tsv").read_text(encoding="utf-8")
    entries = (line for line in lines.splitlines() if not line.startswith("#"))
    names, *rows = (line.replace(r"\n", "\n").split("\t") for line in entries)
    return tuple(dict(zip(names, row, strict=True)) for row in rows)


@cache
def _thought_marks() -> Mapping[str, str]:
    """Marks that begin a thought, with the mark that ends it; "" if the mark begins the answer."""
    # The first row with a mark has its usual end.
    thoughts = {row["think_open"]: row["think_close"] for row in reversed(_table())}
    words = {row["think_open"] for row in _table() if row["opening"] == "both"}
    return {mark: close for mark, close in thoughts.items() if mark and mark not in words}


@cache
def _call_marks() -> tuple[str, ...]:
    left_out = {"", *_thought_marks(), *_marks("offered"), *_marks("unsure")}
    marks = dict.fromkeys(row["tool_open"] for row in _table())
    return tuple(mark for mark in marks if mark not in left_out)


@cache
def _marks(opening: str, column: str = "tool_open") -> tuple[str, ...]:
    """The marks of one kind: `offered` and `unsure` are those of calls if tools were offered."""
    return tuple(row[column] for row in _table() if row["opening"] == opening)


_end_marks = partial(_marks, "end", "think_close")  # those that may stand at an answer's end


class MarkSplitter:
    """Divides a reply that arrives piece by piece into reasoning, answer and calls."""

    def __init__(self, close: str = "") -> None:
        self.calls = ""  # as text, marks included; set by `rest`
        self._buffer = ""  # text that may become a mark, until the rest of the mark is here
        self._open, self._close = "", close  # the marks of a thought that the text begins with
        self.apart: list[str] = []  # pieces of reasoning that the server sent beside the text
        self._state: Literal["begin", "between", "reasoning", "answer", "calls"]
        self._state = "reasoning" if close else "begin"

    def feed(self, piece: str) -> tuple[str, str]:
        """Takes in a piece; returns what it adds to the reasoning and what to the answer."""
        self._buffer += piece
        reasoning = ""
        while self._state in {"begin", "between", "reasoning"}:
            if self._state == "reasoning":
                inside, close, behind = self._buffer.partition(self._close)
                if not (behind.strip() if self.apart else close):
                    # Beside reasoning that came apart, what stands behind the thought decides.
                    reasoning += "" if self.apart else self._without_possible_mark((self._close,))
                    break
                if (thought := self._thought(inside, close, behind)) is None:
                    self._buffer, self._state = self._open + self._buffer, "answer"
                    break
                reasoning += thought
                self._buffer, self._state = behind, "between"
            if not self._read_mark():
                break
        answer = self._without_possible_mark(_end_marks()) if self._state == "answer" else ""
        return reasoning, answer

    def rest(self) -> tuple[str, str]:
        """What the buffer adds to the reasoning and to the answer, once the reply is whole."""
        text, self._buffer = self._buffer, ""
        if self._state == "calls":
            self.calls = text
            return "", ""
        if self._state == "reasoning":
            thought = self._thought(*text.partition(self._close))
            if thought is not None:
                return thought, ""
            text = self._open + text
        # There may be several marks, one behind the other.
        while end := next((mark for mark in _end_marks() if text.rstrip().endswith(mark)), ""):
            text = text.rstrip().removesuffix(end)
        return "", text

    def _thought(self, inside: str, close: str, behind: str) -> str | None:
        """What a thought adds to the reasoning; None if the answer speaks of its marks."""
        if not self.apart:
            return inside
        # Some servers send a thought beside the text and in it, or a blank one in it.
        if "".join(self.apart).rstrip("\r\n").endswith(inside.strip("\r\n")) and (close or inside):
            return ""
        # Others send a second thought. A prompt may ask for other tags, or for tags behind it.
        is_second = close and self._open == "<think>"
        return inside if is_second and re.match(r"\s*\Z|[\r\n]\s*[^\s<]", behind) else None

    def _without_possible_mark(self, marks: Sequence[str]) -> str:
        """Takes the text out of the buffer up to where one of these marks may begin."""
        end = len(self._buffer) - _overlap(self._buffer, marks)
        text, self._buffer = self._buffer[:end], self._buffer[end:]
        return text

    def _read_mark(self) -> bool:
        """Sets the state by the mark that the buffer begins with; False if it is too short yet."""
        marks = (*_thought_marks(), *(() if self.apart else _call_marks()))
        start = self._buffer.lstrip()
        if any(mark != start and mark.startswith(start) for mark in marks):
            return False  # it may become a longer mark
        mark = max((mark for mark in marks if start.startswith(mark)), key=len, default=None)
        if mark is None:
            if self._state == "between":
                self._buffer = start  # blank lines behind a thought do not belong to the answer
            self._state = "answer"
        elif mark in _thought_marks():
            self._buffer, self._open = start.removeprefix(mark), mark if self.apart else ""
            self._close = _thought_marks()[mark]
            self._state = "reasoning" if self._close else "between"
        else:
            self._state = "calls"
        return True


def split_whole(answer: str, *, reasoning: str, tools: Sequence[ToolSpec]) -> tuple[str, str, str]:
    """Reasoning, answer and calls of a whole text that does not begin with a mark."""
    # Blanks in place of quoted text keep the positions of all other characters.
    unquoted = _QUOTED.sub(lambda quoted: " " * len(quoted[0]), answer)
    # 1. A thought that ends without having begun: if the reasoning came apart, only that again, or
    #    none. Only the whole text shows it, so a listener to the pieces has heard it as answer.
    for row in _table():
        before, _, behind = answer.partition(row["think_close"] or "\0")
        is_stray = not before.strip() and behind[:1] in {"\r", "\n"}
        may_end = is_stray or reasoning.strip() in {"", before.strip()}
        if may_end and _ends_thought(row, unquoted):
            splitter = MarkSplitter(row["think_close"])
            thought, reply = splitter.feed(answer.lstrip().removeprefix(row["think_open"]))
            thought_end, reply_end = splitter.rest()
            return thought + thought_end, (reply + reply_end).lstrip(), splitter.calls
    if not tools:
        return "", answer, ""
    # 2. Marked calls behind an answer, where a line begins.
    for line in re.finditer(r"^[^\S\n]*(?=\S)", unquoted, re.MULTILINE):
        if unquoted.startswith(_call_marks() + _marks("offered"), line.end()):
            return "", answer[: line.start()].rstrip(), answer[line.end() :]
    # 3. Calls without marks, as of Llama. A false call is worse than a missed one, so what stands
    #    behind half a sentence or a colon is taken for an example.
    before, calls_text = "", _FENCE.sub("", answer.strip()).strip()
    is_whole = calls_text[:1] in {"[", "{"}
    unsure = "|".join(map(re.escape, _marks("unsure")))
    opening = re.search(rf"{unsure}|{_JSON.pattern}", unquoted)
    if opening and not is_whole:
        before, calls_text = answer[: opening.start()].rstrip(), answer[opening.start() :]
    is_apart = bool(is_whole or opening) and before[-1:] in ".!?\u2026\u3002\uff01\uff1f"
    if is_apart and _is_all_calls(calls_text, tools, have_to_fit=not is_whole):
        return "", before, calls_text
    return "", answer, ""


def _is_all_calls(text: str, tools: Sequence[ToolSpec], *, have_to_fit: bool) -> bool:
    """Whether a text is calls of offered tools, with no word beside them."""
    schemas = {tool.name: tool.parameters for tool in tools}
    for name, arguments in calls_in(text, tools):
        values, schema = parsed(arguments), schemas.get(name)
        required, properties = rows(at(schema, "required")), at(schema, "properties") or ()
        fits = isinstance(values, dict) and {*required} <= values.keys() <= {*properties}
        # What cannot be read is its own arguments, see `calls_in`.
        if schema is None or arguments == text or (have_to_fit and not fits):
            return False
    for _, raw in json_values_in(text):
        text = text.replace(raw, "")
    unsure, names = ("|".join(map(re.escape, s)) for s in (_marks("unsure"), schemas))
    marks = rf"<[^<>]*>|```\w*|json\b|functions\.|{unsure}|\b(?:{names})\b"
    # Python's reader takes nothing beside its calls.
    return bool(_PYTHON_CALL.match(text)) or not re.search(r"\w", re.sub(marks, "", text))


def _ends_thought(row: Mapping[str, str], unquoted: str) -> bool:
    """Whether a text has the end of a thought by this row of the table, without its beginning."""
    # The `<think>` may have been the end of the prompt, so that the reply has `</think>` alone.
    opening, kind = row["think_open"], row["opening"]
    before, end, after = unquoted.partition(row["think_close"] or "\0")
    if not end:
        return False
    if kind == "both":  # a word that may begin an answer as well, so `_thought_marks` lacks it
        return before.lstrip().startswith(opening)
    in_a_sentence = before[-1:] == after[:1] == " "
    return kind == "missing" and opening not in before and not in_a_sentence


def mark_in(answer: str, tools: Sequence[ToolSpec] = ()) -> str | None:
    """The first text that looks like a mark or a call left in, outside of quotes; else None."""
    unquoted = _QUOTED.sub("", answer)
    match = _LIKE_A_MARK.search(unquoted)
    if tools and not match:
        name = f"(?:{'|'.join(re.escape(tool.name) for tool in tools)})"
        is_named = rf'"(?:name|tool|function)"\s*:\s*"{name}"\s*,\s*"(?:arg|param|input)\w*"'
        is_called = rf"(?:Calling tool: |\bto=functions\.|\[){name}(?:\(|\s*json)"
        match = re.search(f"{is_named}|{is_called}", unquoted)
    return match[0] if match else None


def _overlap(text: str, marks: Sequence[str]) -> int:
    """The number of characters at a text's end that begin a mark, or are marks and blanks alone."""
    tail = text[-_LONGEST_MARK:]
    near = [mark for mark in marks if mark[0] in tail]
    for start in range(len(tail) if near else 0):  # mostly none is near
        end = tail[start:]
        if any(mark.startswith(end) or not end.replace(mark, "").strip() for mark in near):
            return len(end)
    return 0


# --- calls ------------------------------------------------------------------------------------


def calls_in(text: str, tools: Sequence[ToolSpec]) -> list[tuple[str, str]]:
    """Names and arguments of the calls in a text that `MarkSplitter` took for calls."""
    types = {tool.name: at(tool.parameters, "properties") for tool in tools}  # by parameter
    # MiniMax M3 writes this before its marks.
    text = text.replace("]<]minimax[>[", "")
    with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        if calls := [*_calls(text, types)]:
            return [
                (name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
                for name, value in calls
            ]
    # A text that cannot be read becomes the arguments of a call, whose error the model gets.
    names = (tool.name for tool in tools if tool.name in text)
    return [(min(names, key=text.find, default="unreadable"), text)]


Calls = Iterator[tuple[str, object]]  # (name, arguments)


def _calls(text: str, types: Mapping[str, Any]) -> Calls:
    """The calls by the form whose marks come first: those of others are in their arguments."""
    brace = text.find("{") if "{" in text else len(text)
    tag = _CALL_TAG.search(text)
    without_marks = _TEXT_OR_MARK.sub(lambda part: part[1] or "", text).strip()
    if _PYTHON_CALL.match(without_marks):
        return _python_calls(without_marks)
    if tag and tag.start() < brace:
        return _tagged_calls(text, types)
    return _named_calls(text) if _NAMED.search(text, 0, brace + 1) else _json_calls(text)


def _named_calls(text: str) -> Calls:
    """A name and then JSON: DeepSeek, Mistral, Kimi, harmony; Gemma leaves out quotes."""
    end = 0
    while named := _NAMED.search(text, end):
        try:
            value, end = DECODER.raw_decode(text, named.end())
        except ValueError:
            loose = _GEMMA_TEXT.sub(lambda quoted: json.dumps(quoted[2]), text[named.end() :])
            text = without_slips(loose)
            value, end = DECODER.raw_decode(text)
        yield named[1], value


def _json_calls(text: str) -> Calls:
    """JSON with the name in it: Hermes, Qwen, Llama 3, Granite, Phi, Hunyuan, Command."""
    end = 0
    while opening := _JSON.search(text, end):
        value, end = DECODER.raw_decode(text, opening.start())  # in a broken value is no call
        for call in value if isinstance(value, list) else rows(at(value, "tool_calls")) or [value]:
            function = at(call, "function")
            fields = function if isinstance(function, dict) else call
            names = [at(fields, key) for key in ("name", "tool_name", "function", "tool")]
            if name := next((name for name in names if isinstance(name, str)), None):
                keys = ("arguments", "parameters", "input", "args")
                stated = [fields[key] for key in keys if key in fields]
                bare = {key: value for key, value in fields.items() if key not in _ABOUT_A_CALL}
                yield name, next(filter(None, stated), {}) if stated else bare


def _tagged_calls(text: str, types: Mapping[str, Any]) -> Calls:
    """Elements like those of XML: Qwen3-Coder, Seed, DSML, MiniMax, GLM, Llama 3.1."""
    call = _CALL_TAG.search(text)
    while call:
        name, end = call[1] or call[2], call.end()
        arguments: dict[str, object] = {}
        if body := _OBJECT_NEXT.match(text, end):
            arguments, end = DECODER.raw_decode(text, body.end())
        while argument := _ARGUMENT_TAG.match(text, end):
            key = (argument[2] or argument[3] or argument[4]).strip()
            if key in arguments:
                raise ValueError("an argument twice")
            close, end = _argument_end(text, argument)
            value = text[argument.end() : close]
            arguments[key] = _typed(value, at(types.get(name), key))
        ending, call = _CALL_END.match(text, end), _CALL_TAG.search(text, end)
        if not ending or _ARGUMENT_END.search(
            text, ending.end(), call.start() if call else len(text)
        ):
            raise ValueError("text beside the arguments, or an end inside of one")
        yield name, arguments


def _argument_end(text: str, argument: re.Match[str]) -> tuple[int, int]:
    """Where an argument's text ends, and where what follows its mark begins."""
    element = argument[1] or argument[4] or "arg_value"
    depth, is_plain = 0, True  # of such elements in the text; whether it has no marks of calls
    for tag in _TAG.finditer(text, argument.end()):
        if tag[2] == element and not tag[1]:
            depth += 1
        elif tag[2] == element:
            following = _ARGUMENT_TAG.match(text, tag.end())
            continues = following and following.lastindex == argument.lastindex
            if depth == 0 and (continues or _CALL_END.match(text, tag.end())):
                return tag.start(), tag.end()
            depth = max(0, depth - 1)
        elif not (_CALL_END.match(text, tag.start()) or _CALL_TAG.match(text, tag.start())):
            continue
        elif is_plain and tag[1] and _CLOSED.match(text, tag.end()):
            return tag.start(), tag.start()
        is_plain = False
    raise ValueError("an argument without an end")


def _python_calls(text: str) -> Calls:
    """`[name(key=value)]`: Llama 4, LFM2, Olmo. Raises `ValueError` or `SyntaxError`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # else odd literals are warned of on standard error
        statements = ast.parse(text).body
    for statement in statements:
        value = getattr(statement, "value", None)
        for call in value.elts if isinstance(value, ast.List) else [value]:
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)) or call.args:
                raise ValueError("not a call of a tool")
            if any(keyword.arg is None for keyword in call.keywords):  # of `**{…}`
                raise ValueError("arguments without names")
            arguments = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
            yield call.func.id, arguments


def _typed(value: str, schema: object) -> object:
    """The text, or its JSON value if its schema is not of a text."""
    text = value[1:-1] if value[:1] == value[-1:] == "\n" else value  # Qwen's template adds both
    with suppress(ValueError):
        if at(schema, "type") != "string":
            orjson.loads(text)  # refuses NaN and 1e400, but rounds long integers
            return json.loads(text)
    return text
