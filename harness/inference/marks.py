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
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import orjson

from harness.inference.json_text import DECODER, at, json_values_in, without_slips
from harness.inference.request import ToolSpec

_LIKE_A_MARK = re.compile(
    r"<[|\uff5c][^<>\s]{1,60}>|<[^<>\s]{1,60}[|\uff5c]>|\[/?(?:THINK|THOUGHT|TOOL_|REASON)[A-Z_]*\]"
    r"|</?(?:\w+:)?(?:think|thought|reason|tool_call|tool_use|function|invoke|scratch_?pad)"
    r"[\w=:-]*[^<>\n]{0,60}>"
)
_QUOTED = re.compile(r"```.*?```|~~~.*?~~~|`[^`\n]*`|(?<=[\"'\u201c\u2018(])<[^<>\n]*>", re.DOTALL)
_FENCE = re.compile(r"```\w*")
# A tool's name, and behind it nothing but marks before its arguments. It begins where a name may,
# and is no word that may stand behind it: to try each of many takes quadratic time.
_NAMED = re.compile(
    r"(?<![A-Za-z0-9_.-])(?:functions\.|call:)?(?!(?:json|commentary)\b)([A-Za-z_][A-Za-z0-9_.-]*)(?::\d+)?"
    r"(?:\s|<[^<>]*>|\[ARGS\]|```|json\b|commentary\b)*(?=\{)"
)
# Tags are found first, and read then: one pattern for both takes quadratic time in an open tag.
_TAG = re.compile(r"<([^<>]*)>")
_FUNCTION = re.compile(r'(?:function=|invoke name=)"?([\w.-]+)')
_PARAMETER = re.compile(r'parameter(?:=| name=)"?([\w.-]+)')
_BARE_TAG = re.compile(r"[\w.-]+")
_GLM_CALL = re.compile(r"<tool_call>\s*([\w.-]+)\s*(?=<|\Z)")
_BEFORE_JSON = re.compile(r"<function=([\w.-]+)>\s*(?=\{)")  # Llama 3.1
_TAGGED = re.compile(
    rf"({_GLM_CALL.pattern})|(?!<function=[\w.-]+>\s*\{{)<[^<>]*{_FUNCTION.pattern}"
)
_GLM_ARGUMENT = re.compile(
    r"\s*<arg_key>([^<>]*)</arg_key>\s*<arg_value>(.*?)(</arg_value>|\Z)", re.DOTALL
)
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
    marks = dict.fromkeys(row["tool_open"] for row in _table() if row["tool_open"])
    return tuple(mark for mark in marks if mark not in _thought_marks())


@cache
def _end_marks() -> tuple[str, ...]:
    """Marks that may stand at the end of an answer."""
    return tuple(row["think_close"] for row in _table() if row["opening"] == "end")


_State = Literal["begin", "between", "reasoning", "answer", "calls"]


class MarkSplitter:
    """Divides a reply that arrives piece by piece into reasoning, answer and calls."""

    def __init__(self, close: str = "") -> None:
        self.calls = ""  # as text, marks included; set by `rest`
        self._buffer = ""  # text that may become a mark, until the rest of the mark is here
        self._close = close  # the mark that ends the reasoning, which the reply may begin with
        self._state: _State = "reasoning" if close else "begin"

    def feed(self, piece: str) -> tuple[str, str]:
        """Takes in a piece; returns what it adds to the reasoning and what to the answer."""
        self._buffer += piece
        reasoning = ""
        while self._state in {"begin", "between", "reasoning"}:
            if self._state == "reasoning":
                inside, close, behind = self._buffer.partition(self._close)
                if not close:
                    reasoning += self._without_possible_mark((self._close,))
                    break
                reasoning += inside
                self._buffer = behind
                self._state = "between"
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
            return text, ""
        # There may be several marks, one behind the other.
        while end := next((mark for mark in _end_marks() if text.rstrip().endswith(mark)), ""):
            text = text.rstrip().removesuffix(end)
        return "", text

    def _without_possible_mark(self, marks: Sequence[str]) -> str:
        """Takes the text out of the buffer up to where one of these marks may begin."""
        end = len(self._buffer) - _overlap(self._buffer, marks)
        text, self._buffer = self._buffer[:end], self._buffer[end:]
        return text

    def _read_mark(self) -> bool:
        """Sets the state by the mark that the buffer begins with; False if it is too short yet."""
        marks = (*_thought_marks(), *_call_marks())
        start = self._buffer.lstrip()
        if any(mark != start and mark.startswith(start) for mark in marks):
            return False  # it may become a longer mark
        mark = max((mark for mark in marks if start.startswith(mark)), key=len, default=None)
        if mark is None:
            if self._state == "between":
                self._buffer = start  # blank lines behind a thought do not belong to the answer
            self._state = "answer"
        elif mark in _thought_marks():
            self._buffer = start.removeprefix(mark)
            self._close = _thought_marks()[mark]
            self._state = "reasoning" if self._close else "between"
        else:
            self._state = "calls"
        return True


def split_whole(
    answer: str, *, has_reasoning: bool, tools: Sequence[ToolSpec]
) -> tuple[str, str, str]:
    """Reasoning, answer and calls of a whole text that does not begin with a mark."""
    # Blanks in place of quoted text keep the positions of all other characters.
    unquoted = _QUOTED.sub(lambda quoted: " " * len(quoted[0]), answer)
    # 1. A thought that ends without having begun. A reply whose reasoning came apart has none. Only
    #    the whole text shows it, so a listener to the pieces has heard the thought as answer.
    for row in () if has_reasoning else _table():
        if _ends_thought(row, unquoted):
            splitter = MarkSplitter(row["think_close"])
            thought, reply = splitter.feed(answer.lstrip().removeprefix(row["think_open"]))
            thought_end, reply_end = splitter.rest()
            return thought + thought_end, (reply + reply_end).lstrip(), splitter.calls
    if not tools:
        return "", answer, ""
    # 2. Marked calls behind an answer, where a line begins.
    for line in re.finditer(r"^[^\S\n]*(?=\S)", unquoted, re.MULTILINE):
        if unquoted.startswith(_call_marks(), line.end()):
            return "", answer[: line.start()].rstrip(), answer[line.end() :]
    # 3. Nothing but calls: Llama and others may write no mark at all, or a fence.
    bare = _FENCE.sub("", answer).strip()
    calls = calls_in(bare, tools) if bare[:1] in {"[", "{"} else []
    are_offered = {name for name, _ in calls} <= {tool.name for tool in tools}
    is_unreadable = any(arguments == bare for _, arguments in calls)  # see `calls_in`
    if calls and are_offered and not is_unreadable:
        return "", "", bare
    return "", answer, ""


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


def mark_in(answer: str) -> str | None:
    """The first text that looks like a mark that a server left in, outside of quotes; else None."""
    match = _LIKE_A_MARK.search(_QUOTED.sub("", answer))
    return match[0] if match else None


def _overlap(text: str, marks: Sequence[str]) -> int:
    """The number of characters at the end of a text that may belong to one of these marks.

    Either they begin a mark, or they are marks and blanks alone.
    """
    tail = text[-_LONGEST_MARK:]
    near = [mark for mark in marks if mark[0] in tail]
    if not near:
        return 0  # a quick way for most tokens
    for start in range(len(tail)):
        end = tail[start:]
        if any(mark.startswith(end) or not end.replace(mark, "").strip() for mark in near):
            return len(end)
    return 0


# --- calls ------------------------------------------------------------------------------------


def calls_in(text: str, tools: Sequence[ToolSpec]) -> list[tuple[str, str]]:
    """Names and arguments of the calls in a text that `MarkSplitter` took for calls."""
    types = {tool.name: at(tool.parameters, "properties") for tool in tools}
    # MiniMax M3 writes this before its marks.
    text = text.replace("]<]minimax[>[", "")
    readers = [_named_calls, _json_calls, _tagged_calls, _python_calls]
    first = _TAGGED.search(text)
    if first and "{" not in text[: first.start()]:
        readers.insert(0, _tagged_calls)  # any JSON is in an argument
    for read in readers:
        with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            if calls := [*read(text, types)]:
                return [(name, _dumped(arguments)) for name, arguments in calls]
    # A text that cannot be read becomes the arguments of a call, whose error the model gets.
    name = next((tool.name for tool in tools if tool.name in text), "unreadable")
    return [(name, text)]


Calls = Iterator[tuple[str, object]]  # (name, arguments)
Types = Mapping[str, Any]  # a tool's name → the schemas of its parameters by their names


def _named_calls(text: str, _types: Types) -> Calls:
    """A name and then JSON: DeepSeek, Mistral, Kimi, harmony; Gemma leaves out quotes."""
    plain = _BEFORE_JSON.sub(r"\1", re.sub(r'<\|"\|>|<escape>', '"', text))
    for named in _NAMED.finditer(plain):
        try:
            value, _ = DECODER.raw_decode(plain, named.end())
        except ValueError:
            value, _ = DECODER.raw_decode(without_slips(plain[named.end() :]))
        yield named[1], value


def _json_calls(text: str, _types: Types) -> Calls:
    """JSON with the name in it: Hermes, Qwen, Llama 3, Granite, Phi, Hunyuan, Command."""
    for value, _ in json_values_in(text):
        for call in value if isinstance(value, list) else [value]:
            name = at(call, "name") or at(call, "tool_name") or at(call, "function", "name")
            if isinstance(name, str):
                function = at(call, "function")
                fields = function if isinstance(function, dict) else call
                keys = ("arguments", "parameters", "input")
                yield name, next((fields[key] for key in keys if fields.get(key)), {})


def _tagged_calls(text: str, types: Types) -> Calls:
    """Elements like those of XML: Qwen3-Coder, Seed, DSML, MiniMax, GLM."""
    # The first call decides, since the marks of the other form in its arguments are content.
    first = _TAGGED.search(text)
    for name, arguments in _calls_of_glm(text) if first and first[1] else _calls_of_qwen(text):
        kinds = types.get(name)
        yield name, {key: _typed(value, at(kinds, key)) for key, value in arguments.items()}


def _calls_of_glm(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    position = 0
    while call := _GLM_CALL.search(text, position):
        arguments, position = dict[str, str](), call.end()
        while argument := _GLM_ARGUMENT.match(text, position):
            key, value, end = argument.groups()
            position = argument.end()
            if end:  # else it is cut
                arguments[key.strip()] = value
        yield call[1], arguments


def _calls_of_qwen(text: str) -> list[tuple[str, dict[str, str]]]:
    calls: list[tuple[str, dict[str, str]]] = []
    is_open = False  # whether a call has begun that has not ended
    kind = key = ""  # of the argument whose end comes next
    start = 0
    for tag in _TAG.finditer(text):
        label = tag[1]
        if kind == "parameter" and not label.startswith("/"):
            continue  # a tag of the argument's text
        if function := _FUNCTION.search(label):
            calls.append((function[1], {}))
            is_open, kind = True, ""
        elif label.startswith("/") and kind and label.endswith(kind):
            calls[-1][1][key] = text[start : tag.start()]
            kind = ""
        elif label.startswith("/"):
            if label.endswith(("function", "invoke")):
                is_open, kind = False, ""
        elif not is_open:
            continue  # a tag of the text, not of the call
        elif parameter := _PARAMETER.search(label):
            kind, key, start = "parameter", parameter[1], tag.end()
        elif not kind and _BARE_TAG.fullmatch(label):
            kind, key, start = f"/{label}", label, tag.end()
    return calls


def _python_calls(text: str, _types: Types) -> Calls:
    """`[name(key=value)]`: Llama 4, LFM2, Olmo."""
    body = re.sub(r"```\w*|</?[|\uff5c]?[\w|\uff5c:]+[|\uff5c]?>", "", text).strip()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # else odd literals are warned of on standard error
        statements = ast.parse(body).body
    for statement in statements:
        value = getattr(statement, "value", None)
        for call in value.elts if isinstance(value, ast.List) else [value]:
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)) or call.args:
                raise ValueError("not a call of a tool")
            arguments = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
            yield call.func.id, arguments


def _typed(value: str, schema: object) -> object:
    """The text, or its JSON value if its schema is not of a text."""
    text = value.strip("\n")
    with suppress(orjson.JSONDecodeError):
        return text if at(schema, "type") == "string" else orjson.loads(text)
    return text


def _dumped(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
