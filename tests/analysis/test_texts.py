"""What stands under the rules: how texts are compared."""

from __future__ import annotations

import pytest

from harness.analysis.rules_prompts import likeness, needed_replies

DOCUMENT = "".join(f"Clause {n}: whoever signs here, signs for {n * n} others. " for n in range(40))
ITEMS = "".join(f"Item {n} of the list is called {n}. " for n in range(100))


@pytest.mark.parametrize(
    ("earlier", "later", "prefix_share", "shared_share"),
    [
        pytest.param(DOCUMENT, DOCUMENT, 1, 1, id="the same"),
        pytest.param(f"10:01\n{DOCUMENT}", f"11:02\n{DOCUMENT}", 0, 1, id="early difference"),
        pytest.param(f"{DOCUMENT}\n10:01", f"{DOCUMENT}\n11:02", 1, 1, id="late difference"),
        pytest.param(ITEMS, ITEMS.replace("Item", "Thing"), 0, 0, id="small pieces in common"),
        pytest.param(DOCUMENT, "short", 0, 0, id="a short one"),
        pytest.param("", "", 0, 0, id="empty"),
    ],
)
def test_likeness_is_what_a_cache_serves_and_what_it_could(
    earlier, later, prefix_share, shared_share
):
    like = likeness(earlier, later)

    assert like.prefix_share == pytest.approx(prefix_share, abs=0.07)
    assert like.shared_share == pytest.approx(shared_share, abs=0.07)


REPLY = "It was the best of times, and no one had noticed."


@pytest.mark.parametrize(
    ("prompts", "replies", "needed"),
    [
        pytest.param(["a?", f"On: {REPLY}"], [REPLY, ""], [set(), {0}], id="quoted"),
        pytest.param(["a?", f"{REPLY[:30]}…"], [REPLY, ""], [set(), {0}], id="a part"),
        pytest.param([f"{REPLY} a?", f"{REPLY} b?"], [REPLY, REPLY], [set(), set()], id="given"),
        pytest.param(["a?", "Is 42 right?"], ["42", "yes"], [set(), {0}], id="short"),
        pytest.param(["a or b?", "c or b?"], ["b", ""], [set(), set()], id="short, given"),
    ],
)
def test_a_prompt_needs_the_replies_it_holds_something_of(prompts, replies, needed):
    assert needed_replies(prompts, replies) == needed
