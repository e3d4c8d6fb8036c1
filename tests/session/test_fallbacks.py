"""Fallbacks: which endpoints can answer for which."""

from __future__ import annotations

import pytest

from harness.errors import ConfigurationInvalid
from harness.inference import Endpoint
from harness.session.fallbacks import chains_from, check_fallbacks


def endpoints(**fallbacks: str) -> dict[str, Endpoint]:
    return {
        tag: Endpoint(tag=tag, url="http://127.0.0.1:8000/v1", fallback=tuple(names.split()))
        for tag, names in fallbacks.items()
    }


def test_an_endpoints_own_fallbacks_can_answer_for_it_and_no_others() -> None:
    known = endpoints(a="b c", b="d", c="", d="")
    check_fallbacks(known)
    assert chains_from("a", known) == (("a",), ("a", "b"), ("a", "c"))
    assert chains_from("d", known) == (("d",),)


def test_two_endpoints_may_stand_in_for_each_other() -> None:
    known = endpoints(a="b", b="a")
    check_fallbacks(known)
    assert chains_from("a", known) == (("a",), ("a", "b"))


def test_a_fallback_that_does_not_exist_suggests_the_nearest() -> None:
    with pytest.raises(
        ConfigurationInvalid, match=r"'a' falls back on 'quen'.*did you mean 'qwen'"
    ):
        check_fallbacks(endpoints(a="quen", qwen=""))
