import pytest
from states import calls, resident, state, tenant

from harness.residency.reasons import why_it_waits

A, B, C = tenant("a", 6, slots=2, kv_tokens=100), tenant("b", 6), tenant("c", 4)


@pytest.mark.parametrize(
    ("residents", "waiting", "moving", "reason"),
    [
        pytest.param(
            [resident("a", 6, leases=2)], calls("a"), None, "slots: all 2 of 'a' are taken"
        ),
        pytest.param(
            [resident("a", 6, leases=1, kv_tokens=60)],
            calls("a", kv_tokens=41),
            None,
            "KV cache: that of 'a' is full",
        ),
        pytest.param(
            [resident("a", 6, leases=1, kv_tokens=60)],
            calls("a", "a", kv_tokens=40),
            None,
            "KV cache: an earlier call waits for room in that of 'a'",
        ),
        pytest.param(
            [resident("a", 6, leases=1)],
            calls("b", "a"),
            None,
            "'a' makes way for a model that was waited for longer",
        ),
        pytest.param([], calls("a"), resident("c", 4), "'c' is on the move"),
        pytest.param(
            [resident("c", 4, leases=1), resident("a", 6, leases=2)],
            calls("b"),
            None,
            "no room until calls to 'c', 'a' end",
        ),
        pytest.param(
            [resident("c", 4), resident("a", 6)],
            calls("b"),
            None,
            "what is in memory is about to be used again",
        ),
    ],
)
def test_a_call_says_what_stands_between_it_and_its_model(residents, waiting, moving, reason):
    there = state([A, B, C], residents, waiting, room=10, moving=moving)
    assert why_it_waits(waiting[-1], there) == reason
