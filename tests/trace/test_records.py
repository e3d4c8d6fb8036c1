import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_runs import steady

from harness.trace import (
    Content,
    CounterSet,
    Flow,
    Flows,
    Instant,
    NodeOutput,
    RunEnded,
    RunStarted,
    SpanEnded,
    SpanRecord,
    SpanStarted,
)
from harness.trace.journal_line import decode, encode, line_start
from harness.trace.records import (
    joined,
    last_moment,
)

TIMES = st.integers(0, 2**62)
IDS = st.integers(1, 2**31)
STATUSES = st.sampled_from(["ok", "error", "cancelled", "unfinished"])
ENDS = st.sampled_from(["ok", "error", "cancelled", "waiting", "stopped"])
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
ATTRIBUTES = st.dictionaries(st.text(), JSON_VALUES)

RECORDS = st.one_of(
    st.builds(
        RunStarted,
        schema=st.integers(1, 9),
        run_id=st.text(),
        name=st.text(),
        wall_ns=TIMES,
        time_ns=TIMES,
        process_id=IDS,
        parent=st.none() | IDS,
        joined_ns=st.none() | TIMES,
        boot_id=st.none() | st.text(),
        part=st.integers(0, 9),
    ),
    st.builds(
        SpanStarted,
        id=IDS,
        parent=st.none() | IDS,
        name=st.text(),
        time_ns=TIMES,
        attributes=ATTRIBUTES,
    ),
    st.builds(
        SpanEnded,
        id=IDS,
        time_ns=TIMES,
        status=STATUSES,
        error=st.none() | st.text(),
        attributes=ATTRIBUTES,
    ),
    st.builds(
        SpanRecord,
        id=IDS,
        parent=st.none() | IDS,
        name=st.text(),
        start_ns=TIMES,
        end_ns=TIMES,
        status=STATUSES,
        error=st.none() | st.text(),
        attributes=ATTRIBUTES,
    ),
    st.builds(Instant, span=st.none() | IDS, name=st.text(), time_ns=TIMES, attributes=ATTRIBUTES),
    st.builds(
        CounterSet,
        name=st.text(),
        unit=st.text(),
        time_ns=TIMES,
        value=st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63 - 1),
        span=st.none() | IDS,
        track=st.none() | st.text(),
    ),
    st.builds(Flow, name=st.text(), source=IDS, target=IDS),
    st.builds(Content, sha256=st.text(), text=st.text()),
    st.builds(Flows, name=st.text(), sources=st.lists(IDS).map(tuple), target=IDS),
    st.builds(
        NodeOutput,
        node=st.text(),
        item=st.none() | IDS,
        value=JSON_VALUES,
        inputs=st.dictionaries(st.text(), st.text()),
        code=st.none() | st.text(),
        skipped=st.none() | st.text(),
        digest=st.none() | st.text(),
    ),
    st.builds(RunEnded, time_ns=TIMES, status=ENDS, error=st.none() | st.text()),
)


@steady
@given(RECORDS)
def test_a_record_reads_back_as_it_was_written(record):
    line = encode(record)

    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert line.startswith(line_start(type(record)))
    assert decode(line) == record
    assert type(decode(line)) is type(record)


def test_what_is_as_usual_is_not_written():
    assert encode(SpanRecord(3, None, "chat", 5, 8)) == (
        b'{"kind":"span","id":3,"parent":null,"name":"chat","start_ns":5,"end_ns":8}\n'
    )
    assert encode(SpanEnded(3, 8)) == b'{"kind":"end","id":3,"time_ns":8}\n'
    # Of an output, nothing is a value.
    assert encode(NodeOutput("plan", None, None)) == (
        b'{"kind":"output","node":"plan","item":null,"value":null}\n'
    )


def test_fields_at_their_defaults_may_be_written_out_as_an_earlier_version_did():
    line = b'{"kind":"end","id":4,"time_ns":6,"status":"ok","error":null,"attributes":{}}'

    assert decode(line) == SpanEnded(4, 6)


def test_a_span_has_the_attributes_of_both_its_ends_and_the_later_ones_count():
    started = SpanStarted(3, 1, "chat", 5, {"a": 1, "b": 1})
    ended = SpanEnded(3, 9, "error", "X: y", {"b": 2, "c": 3})

    span = joined(started, ended)

    assert span == SpanRecord(3, 1, "chat", 5, 9, "error", "X: y", {"a": 1, "b": 2, "c": 3})
    assert span.duration_ns == 4
    assert joined(started, SpanEnded(3, 9)).attributes == {"a": 1, "b": 1}


def test_a_value_that_is_encoded_already_stands_as_it_is():
    value = orjson.Fragment(b'{"a":[1,2]}')

    assert decode(encode(NodeOutput("plan", None, value))) == NodeOutput(
        "plan", None, {"a": [1, 2]}
    )
    # A lone surrogate takes the way on which values are looked at one by one.
    odd = NodeOutput("plan", None, value, skipped="no \ud800")
    assert decode(encode(odd)) == NodeOutput("plan", None, {"a": [1, 2]}, skipped="no ?")


def test_an_output_of_an_earlier_version_says_nothing_of_what_it_was_made_of():
    line = b'{"kind":"output","node":"plan","item":2,"value":["a"]}'

    assert decode(line) == NodeOutput("plan", 2, ["a"], {}, None, None, None)


def test_a_record_with_odd_values_keeps_everything_else():
    started = SpanStarted(
        id=3,
        parent=None,
        name="chat \ud800",
        time_ns=5,
        attributes={"score": float("nan"), "seed": 2**70, "model": "ü", "kind": {1}},
    )

    assert decode(encode(started)) == SpanStarted(
        id=3,
        parent=None,
        name="chat ?",
        time_ns=5,
        attributes={"score": None, "seed": str(2**70), "model": "ü", "kind": "{1}"},
    )


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"no json", id="not JSON"),
        pytest.param(b"[1]", id="not an object"),
        pytest.param(b"{}", id="no kind"),
        pytest.param(b'{"kind":"dream"}', id="unknown kind"),
        pytest.param(b'{"kind":["run"]}', id="kind is no text"),
        pytest.param(b'{"kind":"end","id":1}', id="field missing"),
        pytest.param(b'{"kind":"span","id":1,"parent":null}', id="field of a span missing"),
        pytest.param(b'{"kind":"end","id":1,"time_ns":2}}', id="more than an object"),
        pytest.param(b"\xff", id="not UTF-8"),
    ],
)
def test_what_is_no_record_is_a_value_error(line):
    with pytest.raises(ValueError, match=r"^not (a journal record|JSON)"):
        decode(line)


WHOLE = [
    RunStarted(1, "20260102T030405Z-00", "essay", 5, 6, 7, 8, 9, "9e63", 2),
    SpanStarted(1, 2, "chat", 3, {"a": 1}),
    SpanEnded(1, 2, "error", "X: y", {"a": 1}),
    SpanRecord(1, 2, "chat", 3, 4, "error", "X: y", {"a": 1}),
    Instant(1, "stop", 2, {"a": 1}),
    CounterSet("queue", "calls", 1, 2.5, 3, "model qwen"),
    Flow("draft", 1, 2),
    Flows("output", (1, 2), 3),
    Content("f00d", "a text"),
    NodeOutput("plan", 1, None, {"task": "d16e"}, "c0de", "no task", "7e87"),
    RunEnded(1, "error", "X: y"),
]
"""Every field of every class, at no default."""
ODD = {
    "int": ["a", [1], {"a": 1}, 1.5, True, 2**63, 2**64],
    "str": [1, True, ["a"], {"a": 1}],
    "float": ["a", [1]],
    "SpanStatus": [1, "fine", ["ok"], {}],
    "RunEnd": [1, "fine", "unfinished", ["ok"], {}],
    "tuple[int, ...]": [1, "a", [0], [1, -7], [True], [[1]], {"a": 1}],
    "Mapping[str, str]": [1, "a", [1], {"a": 1}, {"a": None}],
    "Attributes": [1, "a", [1]],
}
"""By a field's annotation, what must not be in it."""
IDS_FIELDS = {"id", "parent", "span", "source", "target"}


@pytest.mark.parametrize(
    ("record", "name", "odd"),
    [
        pytest.param(record, name, odd, id=f"{type(record).__name__}.{name}: {odd}")
        for record in WHOLE
        for name in record._fields
        for annotation in [record.__annotations__[name].__forward_arg__]
        if annotation != "object"
        for odd in [
            *ODD[annotation.removesuffix(" | None")],
            *([0, -7] if name in IDS_FIELDS else []),
            *([] if annotation.endswith("None") else [None]),
        ]
    ],
)
def test_a_field_that_is_not_of_its_type_is_named(record, name, odd):
    values = json.loads(encode(record))
    line = json.dumps(values | {name: odd}).encode()

    assert decode(encode(record)) == record
    with pytest.raises(ValueError, match=f"^{name} of a '{values['kind']}' cannot be "):
        decode(line)


def test_what_is_said_of_an_odd_field_is_short():
    line = json.dumps({"kind": "flow", "name": "x", "source": "x" * 99, "target": 1}).encode()

    with pytest.raises(ValueError, match=r"cannot be \"x{39}…$"):
        decode(line)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda n: SpanRecord(n, None, "chat", 1, 2), id="span"),
        pytest.param(lambda n: SpanStarted(n, None, "chat", 1), id="begin"),
        pytest.param(lambda n: SpanEnded(n, 1), id="end"),
    ],
)
def test_ids_count_from_one_and_so_cannot_be_far_beyond_their_line(make):
    for possible in (1, 5, 100_000):
        assert decode(encode(make(possible)), number=3) == make(possible)
    for impossible in (2_000_000, 4 * 10**12):
        with pytest.raises(ValueError, match=f"there cannot be a span {impossible} by line 3"):
            decode(encode(make(impossible)), number=3)
    assert decode(encode(make(2_000_000)), number=1_500_000) == make(2_000_000)


@pytest.mark.parametrize(
    ("record", "moment_ns"),
    [
        (RunStarted(1, "r", "essay", 5, 6, 7), 6),
        (SpanStarted(1, None, "chat", 3), 3),
        (SpanEnded(1, 4), 4),
        (SpanRecord(1, None, "chat", 3, 9), 9),
        (Instant(None, "stop", 8), 8),
        (CounterSet("queue", "calls", 7, 100), 7),
        (RunEnded(12, "ok"), 12),
        (Flow("draft", 1, 2), 0),
        (Flows("output", (1, 2), 3), 0),
        (Content("f00d", "a text"), 0),
        (NodeOutput("plan", None, 99), 0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, tuple) else str(value),
)
def test_a_record_speaks_of_a_last_moment(record, moment_ns):
    assert last_moment(record) == moment_ns


@pytest.mark.parametrize(
    "record", [SpanEnded(1, 2), SpanRecord(1, None, "chat", 2, 3), Flow("draft", 1, 2)]
)
def test_a_field_that_a_later_version_added_is_left_out(record):
    later = json.loads(encode(record)) | {"energy_j": 12}

    assert decode(json.dumps(later).encode()) == record
