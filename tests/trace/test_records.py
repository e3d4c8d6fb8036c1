import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_runs import steady

from harness.trace import (
    Content,
    CounterSet,
    Instant,
    NodeOutput,
    RunEnded,
    RunStarted,
    SpanEnded,
    SpanStarted,
)
from harness.trace.records import decode, encode

TIMES = st.integers(0, 2**62)
IDS = st.integers(1, 2**31)
STATUSES = st.sampled_from(["ok", "error", "cancelled"])
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
    st.builds(Instant, span=st.none() | IDS, name=st.text(), time_ns=TIMES, attributes=ATTRIBUTES),
    st.builds(
        CounterSet,
        name=st.text(),
        unit=st.text(),
        time_ns=TIMES,
        value=st.floats(allow_nan=False, allow_infinity=False),
    ),
    st.builds(Content, sha256=st.text(), text=st.text()),
    st.builds(NodeOutput, node=st.text(), item=st.none() | IDS, value=JSON_VALUES),
    st.builds(RunEnded, time_ns=TIMES, status=STATUSES, error=st.none() | st.text()),
)


@steady
@given(RECORDS)
def test_a_record_reads_back_as_it_was_written(record):
    line = encode(record)

    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line) == record


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
    ],
)
def test_what_is_no_record_is_a_value_error(line):
    with pytest.raises(ValueError):  # noqa: PT011 - the message is orjson's or Python's
        decode(line)


def test_a_field_that_a_later_version_added_is_left_out():
    later = json.loads(encode(SpanEnded(id=1, time_ns=2))) | {"energy_j": 12}

    assert decode(json.dumps(later).encode()) == SpanEnded(id=1, time_ns=2)
