"""The words of a journal: written and read in one place."""

import ast
from pathlib import Path
from unittest.mock import ANY

import pytest

import harness
from harness.trace import Instant, SpanRecord, Tracer, calls_of, events
from harness.trace.event_forms import Event
from harness.trace.events import name_of

ROOT = Path(harness.__file__).parent
VOCABULARY = {
    name_of(one)
    for one in vars(events).values()
    if isinstance(one, type) and (issubclass(one, Event) or one.__module__ == events.__name__)
}
OF_MESSAGES = {"error", "reason", "detail", "message"}
BY_TEXT = {"startswith", "endswith", "removeprefix", "removesuffix"}

EXCEPT = {"rubric/verdict.py"}
"""It takes caps, which it has as values, off a reason that ends in them."""


def strings(node: ast.AST) -> set[object]:
    return {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}


def words(node: ast.AST) -> set[str]:
    """The names of variables and attributes in an expression."""
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return names | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def is_attribute(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in names


def is_spelled(node: ast.AST) -> bool:  # noqa: PLR0911 - a table of kinds
    """Whether an expression spells a word of the journal, or decides by the text of a message."""
    match node:
        case ast.Call(ast.Attribute(attr="span" | "instant" | "completed_span"), [first, *_]):
            return isinstance(first, ast.Constant) and first.value in VOCABULARY
        case ast.Call(ast.Attribute(of, "get"), [ast.Constant(), *_]):
            return is_attribute(of, "attributes")
        case ast.Call(ast.Attribute(of, way)) if way in BY_TEXT and not is_attribute(of, "code"):
            return bool(words(of) & OF_MESSAGES)
        case ast.Call(ast.Attribute(of, "partition" | "split"), [ast.Constant(mark), *_]):
            return isinstance(mark, str) and ":" in mark and bool(words(of) & OF_MESSAGES)
        case ast.Subscript(of, ast.Constant()):
            return is_attribute(of, "attributes")
        case ast.MatchClass(kwd_attrs=["name", *_], kwd_patterns=[name, *_]):
            return bool(strings(name) & VOCABULARY)
        case ast.Compare(left, [ast.In() | ast.NotIn()], [of]) if is_attribute(of, *OF_MESSAGES):
            return isinstance(left, ast.Constant)
        case ast.Compare(left, _, others):
            sides = [left, *others]
            # Arrows between spans have names of their own.
            by_name = any(
                is_attribute(side, "name") and "flow" not in words(side) for side in sides
            )
            return by_name and any(strings(side) & VOCABULARY for side in sides)
    return False


def spelled(source: str) -> list[int]:
    return [one.lineno for one in ast.walk(ast.parse(source)) if is_spelled(one)]


def test_no_word_of_a_journal_is_spelled_outside_of_the_trace() -> None:
    found = {
        str(file.relative_to(ROOT)): lines
        for file in ROOT.rglob("*.py")
        if "trace" not in file.relative_to(ROOT).parts and (lines := spelled(file.read_text()))
    }
    assert found.keys() == EXCEPT, found


SPELLED = """tracer.span("hold", reason=why)
tracer.instant("retry")
span.name == "node"
item.name in {"wiggum", "stop"}
span.attributes.get("model")
call.attributes["replica"]
str(error).startswith("max_parallel")
(record.error or "").removeprefix("NodeFailed: ")
"connect_timeout_s" in call.error
(call.error or "").partition(":")[0]"""


@pytest.mark.parametrize("source", SPELLED.splitlines())
def test_what_counts_as_spelled(source: str) -> None:
    assert spelled(source) == [1]


@pytest.mark.parametrize(
    ("error", "attributes", "was_sent"),
    [
        (None, {}, True),
        ("CallTimeout: no reply within timeout_s", {}, True),
        ("CallTimeout: in whatever words", {"was_connected": False}, False),
        ("EndpointUnreachable: in whatever words", {}, False),
        ("RunLimitReached: in whatever words", {}, False),
    ],
)
def test_whether_a_call_was_sent_is_no_matter_of_words(
    error: str | None, attributes: dict[str, object], *, was_sent: bool
) -> None:
    call = events.Chat.of(SpanRecord(1, None, "chat", 0, 9, "error", error, attributes))

    assert call is not None
    assert call.was_sent is was_sent


def test_an_event_is_read_as_it_was_written() -> None:
    records: list[object] = []
    tracer = Tracer(records.append)
    with tracer.span(events.ToolEvent(label="look", tool="look", arguments_sha256=None)):
        tracer.instant(events.Evict(model="small", reason="idle"))
        tracer.instant(events.Evict(model="small", reason="room for big", room_for=None))
    begun, left, made_room, _ = records
    assert left == Instant(1, "evict", ANY, {"model": "small", "reason": "idle"})
    evict = events.Evict.of(made_room)
    assert (evict.span, evict.makes_room, evict.attributes["room_for"]) == (1, False, None)
    assert (events.ToolEvent.of(begun).tool, events.Evict.of(begun)) == ("look", None)


def test_what_is_damaged_reads_as_missing_and_a_text_as_it_shows() -> None:
    attributes = {"model": 7, "output_tokens": "many", "status": "odd", "dropped": ["top_k"]}
    call = events.Chat.read(SpanRecord(1, None, "chat", 0, 5, "ok", None, attributes))
    assert (call.model, call.output_tokens, call.dropped) == ("7", None, ("top_k",))
    assert (call.status, call.duration_ns, call.prompt_sha256) == ("ok", 5, None)


@pytest.mark.parametrize(
    ("wait", "turns", "rooms"),
    [
        ({"place_of": "endpoint", "reason": "whatever it says"}, 1, 0),
        ({"place_of": "memory", "reason": "max_parallel is no reason for it"}, 0, 1),
        # Journals of earlier versions have a sentence alone.
        ({"reason": "max_parallel = 2"}, 1, 0),
        ({"reason": "slots: all 2 of 'a' are taken"}, 1, 0),
        ({"reason": "KV cache: the cache of 'a' is full"}, 1, 0),
        ({"reason": "'b' is on the move"}, 0, 1),
        ({}, 0, 0),
    ],
)
def test_a_reason_in_other_words_moves_no_time(
    wait: dict[str, str], turns: int, rooms: int
) -> None:
    chat = SpanRecord(1, None, "chat", 0, 1, "ok", None, {"model": "a"})
    (call,) = calls_of([chat, SpanRecord(2, 1, "queue", 0, 2, "ok", None, wait)])
    assert (len(call.turns), len(call.room)) == (turns, rooms)
