"""Marks of thought and of calls that a server left in a reply's text, split off by `marks.tsv`.

Marks count where a reply begins, or after a thought; those of calls also at the beginning of a
line, if tools were offered. Further in, in quotes and in fences, the answer speaks of them.
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

from harness.inference.json_text import DECODER, at, json_values_in
from harness.inference.request import ToolSpec

_LIKE_A_MARK = re.compile(
    r"<[|\uff5c][^<>\s]{1,60}>|<[^<>\s]{1,60}[|\uff5c]>|\[/?(?:THINK|THOUGHT|TOOL_|REASON)[A-Z_]*\]"
    r"|</?(?:\w+:)?(?:think|thought|reason|tool_call|tool_use|function|invoke|scratch_?pad)"
    r"[\w=:-]*[^<>\n]{0,60}>"
)
_QUOTED = re.compile(r"```.*?```|~~~.*?~~~|`[^`\n]*`|(?<=[\"'\u201c\u2018(])<[^<>\n]*>", re.DOTALL)
_FENCE = re.compile(r"```\w*")
# A tool's name, and behind it nothing but marks before its arguments.
_NAMED = re.compile(
    r"(?:functions\.|call:)?(?!json\b)([A-Za-z_][\w.-]*)(?::\d+)?"
    r"(?:\s|<[^<>]*>|\[ARGS\]|```|json\b|commentary\b)*(?=\{)"
)
_TAGGED = re.compile(
    r"<[^<>]*?(?:function=|invoke name=)\"?([\w.-]+)\"?[^<>]*>"
    r"(.*?)(?=</[^<>]*(?:function|invoke)>|<[^<>/]*(?:function=|invoke name=)|\Z)",
    re.DOTALL,
)
_PARAMETER = re.compile(
    r"<[^<>]*?parameter(?:=| name=)\"?([\w.-]+)\"?[^<>]*>(.*?)</[^<>]*parameter>", re.DOTALL
)
_ELEMENT = re.compile(r"<([\w.-]+)>(.*?)</\1>", re.DOTALL)
_GLM = re.compile(r"<tool_call>\s*([\w.-]+)\s*(<arg_key>.*?)?(?=</tool_call>|\Z)", re.DOTALL)
_GLM_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_LONGEST_MARK = 64  # with the blanks around it
_BARE_KEY = re.compile(r"([{,]\s*)([A-Za-z_]\w*)\s*:")


@cache
def _table() -> tuple[Mapping[str, str], ...]:
    lines = files("harness.inference").joinpath("marks.tsv").read_text(encoding="utf-8")
    entries = (line for line in lines.splitlines() if not line.startswith("#"))
    names, *rows = (line.replace(r"\n", "\n").split("\t") for line in entries)
    return tuple(dict(zip(names, row, strict=True)) for row in rows)


@cache
def _openings() -> Mapping[str, str | None]:
    """Opening marks, with the mark that ends them; None for calls, "" for an answer's."""
    calls = {row["tool_open"]: None for row in _table()}
    # The first row of an opening has its usual end.
    thoughts = {row["think_open"]: row["think_close"] for row in reversed(_table())}
    words = {row["think_open"] for row in _table() if row["opening"] == "both"}
    return {mark: close for mark, close in (calls | thoughts).items() if mark and mark not in words}


@cache
def _ends() -> tuple[str, ...]:
    return tuple(row["think_close"] for row in _table() if row["opening"] == "end")


_State = Literal["begin", "between", "reasoning", "answer", "calls"]


class MarkSplitter:
    """Divides a reply that arrives piece by piece into reasoning, answer and calls."""

    def __init__(self, close: str = "") -> None:
        self.calls = ""  # as text, marks included; set by `rest`
        self._held = ""
        self._close = close  # the mark that ends the reasoning, which the reply may begin with
        self._state: _State = "reasoning" if close else "begin"

    def feed(self, piece: str) -> tuple[str, str]:
        """What the piece adds to the reasoning, and what to the answer."""
        # A text that may become a mark is held back until the rest of it is here.
        self._held += piece
        thought = ""
        while self._state in {"begin", "between", "reasoning"}:
            if self._state == "reasoning":
                inside, closed, rest = self._held.partition(self._close)
                held_chars = 0 if closed else _overlap(self._held, (self._close,))
                thought += inside[: len(inside) - held_chars]
                self._held = rest if closed else inside[len(inside) - held_chars :]
                if not closed:
                    break
                self._state = "between"
            if not self._opened():
                break
        if self._state != "answer":
            return thought, ""
        held_chars = _overlap(self._held, _ends())
        answer = self._held[: len(self._held) - held_chars]
        self._held = self._held[len(answer) :]
        return thought, answer

    def rest(self) -> tuple[str, str]:
        """The text that is still held back, once the reply is whole."""
        held, self._held = self._held, ""
        if self._state == "calls":
            self.calls = held
            return "", ""
        if self._state == "reasoning":
            return held, ""
        # There may be several, one behind the other.
        while end := next((mark for mark in _ends() if held.rstrip().endswith(mark)), ""):
            held = held.rstrip().removesuffix(end)
        return "", held

    def _opened(self) -> bool:
        """Goes on to what begins here; False if that cannot be told yet."""
        start = self._held.lstrip()
        # Too little is here to tell, as long as it may become a longer mark.
        if any(mark != start and mark.startswith(start) for mark in _openings()):
            return False
        mark = max((m for m in _openings() if start.startswith(m)), key=len, default="")
        close = _openings().get(mark, "")
        if not mark:
            # The blank lines between a thought and the answer belong to neither.
            self._held = start if self._state == "between" else self._held
            self._state = "answer"
        elif close is None:
            self._state = "calls"
        else:
            self._held = start[len(mark) :]
            self._close, self._state = close, "reasoning" if close else "between"
        return True


def split_whole(
    answer: str, *, is_thought_out: bool, tools: Sequence[ToolSpec]
) -> tuple[str, str, str]:
    """Reasoning, answer and calls of a text that does not begin with a mark."""
    # Without what it quotes, every other character in its place.
    clear = _QUOTED.sub(lambda quoted: " " * len(quoted[0]), answer)
    # 1. A thought that ends, and does not begin. Where the reasoning came before, it is none. Only
    #    the whole of a reply can be told apart so: who listened to its pieces has heard all of it.
    for row in () if is_thought_out else _table():
        if _ends_thought(row, clear):
            splitter = MarkSplitter(row["think_close"])
            thought, reply = splitter.feed(answer.lstrip().removeprefix(row["think_open"]))
            thought_end, end = splitter.rest()
            return thought + thought_end, (reply + end).lstrip(), splitter.calls
    if not tools:
        return "", answer, ""
    # 2. Marked calls behind an answer, from the beginning of a line on.
    marks = tuple(mark for mark, close in _openings().items() if close is None)
    for line in re.finditer(r"^[^\S\n]*(?=\S)", clear, re.MULTILINE):
        if clear.startswith(marks, line.end()):
            return "", answer[: line.start()].rstrip(), answer[line.end() :]
    # 3. Nothing but calls: Llama and others may write no mark at all, or a fence.
    bare = _FENCE.sub("", answer).strip()
    calls = calls_in(bare, tools) if bare[:1] in {"[", "{"} else []
    names, arguments = {name for name, _ in calls}, {text for _, text in calls}
    if calls and names <= {tool.name for tool in tools} and bare not in arguments:
        return "", "", bare
    return "", answer, ""


def _ends_thought(row: Mapping[str, str], clear: str) -> bool:
    """Whether a text has the end of a thought by this row of the table, without its beginning."""
    # The `<think>` may have been the end of the prompt, so that the reply has `</think>` alone.
    opening, kind = row["think_open"], row["opening"]
    before, end, after = clear.partition(row["think_close"] or "\0")
    if not end:
        return False
    if kind == "both":  # a word that may begin an answer as well, so `_openings` lacks it
        return before.lstrip().startswith(opening)
    in_a_sentence = before[-1:] == after[:1] == " "
    return kind == "missing" and opening not in before and not in_a_sentence


def mark_in(answer: str) -> str | None:
    """What looks like a mark that a server left in; None in a plain text."""
    match = _LIKE_A_MARK.search(_QUOTED.sub("", answer))
    return match[0] if match else None


def _overlap(text: str, marks: Sequence[str]) -> int:
    """How many characters at the end of a text may be, or begin, marks and blanks around them."""
    tail = text[-_LONGEST_MARK:]
    near = [mark for mark in marks if mark[0] in tail]
    if not near:
        return 0  # so for most tokens
    for start in range(len(tail)):
        last = tail[start:]
        if any(mark.startswith(last) or not last.replace(mark, "").strip() for mark in near):
            return len(last)
    return 0


# --- calls ------------------------------------------------------------------------------------


def calls_in(text: str, tools: Sequence[ToolSpec]) -> list[tuple[str, str]]:
    """Names and arguments of the calls in a text that `MarkSplitter` took for some."""
    types = {tool.name: at(tool.parameters, "properties") for tool in tools}
    # MiniMax M3 writes this before its marks.
    text = text.replace("]<]minimax[>[", "")
    for read in (_named_calls, _json_calls, _tagged_calls, _python_calls):
        with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            if calls := [*read(text, types)]:
                return [(name, _dumped(arguments)) for name, arguments in calls]
    # A mark that cannot be read is a call as well, so that the model learns of its slip.
    name = next((tool.name for tool in tools if tool.name in text), "unreadable")
    return [(name, text)]


Calls = Iterator[tuple[str, object]]
Types = Mapping[str, Any]


def _named_calls(text: str, _types: Types) -> Calls:
    """A name and then JSON: DeepSeek, Mistral, Kimi, harmony; Gemma leaves out quotes."""
    plain = re.sub(r'<\|"\|>|<escape>', '"', text)
    for named in _NAMED.finditer(plain):
        try:
            value, _ = DECODER.raw_decode(plain, named.end())
        except ValueError:
            value, _ = DECODER.raw_decode(_BARE_KEY.sub(r'\1"\2":', plain[named.end() :]))
        yield named[1], value


def _json_calls(text: str, _types: Types) -> Calls:
    """JSON with the name in it: Hermes, Qwen, Llama 3, Granite, Phi, Hunyuan, Command."""
    for value, _ in json_values_in(text):
        for call in value if isinstance(value, list) else [value]:
            name = at(call, "name") or at(call, "tool_name") or at(call, "function", "name")
            if isinstance(name, str):
                inner = at(call, "function")
                fields = inner if isinstance(inner, dict) else call
                keys = ("arguments", "parameters", "input")
                yield name, next((fields[key] for key in keys if fields.get(key)), {})


def _tagged_calls(text: str, types: Types) -> Calls:
    """Elements: Qwen3-Coder, Seed, DSML, MiniMax; GLM."""
    for name, body in (*_TAGGED.findall(text), *_GLM.findall(text)):
        pairs = _PARAMETER.findall(body) or _GLM_ARGUMENT.findall(body) or _ELEMENT.findall(body)
        yield name, {key: _typed(value, at(types.get(name), key)) for key, value in pairs}


def _python_calls(text: str, _types: Types) -> Calls:
    """`[name(key=value)]`: Llama 4, LFM2, Olmo."""
    body = re.sub(r"```\w*|</?[|\uff5c]?[\w|\uff5c:]+[|\uff5c]?>", "", text).strip()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd literals, to whoever reads standard error
        statements = ast.parse(body).body
    for statement in statements:
        value = getattr(statement, "value", None)
        for call in value.elts if isinstance(value, ast.List) else [value]:
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)) or call.args:
                raise ValueError("not a call of a tool")
            arguments = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
            yield call.func.id, arguments


def _typed(value: str, schema: object) -> object:
    text = value.strip("\n")
    with suppress(orjson.JSONDecodeError):
        return text if at(schema, "type") == "string" else orjson.loads(text)
    return text


def _dumped(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
