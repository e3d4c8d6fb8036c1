import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.compress import sections_of
from harness.wiggum.cut_reply import without_broken_end

SHELL = "So:\n\n```sh\nls\ncd /tm"


@pytest.mark.parametrize(
    ("reply", "kept"),
    [
        pytest.param("It has two parts. The first", "It has two parts.", id="mid-sentence"),
        pytest.param("It has two parts. So it is.", "It has two parts. So it is.", id="at an end"),
        pytest.param('He said "no."', 'He said "no."', id="at an end, quoted"),
        pytest.param("One.\n\n- Two.\n- Thr", "One.\n\n- Two.", id="in a list"),
        pytest.param("It has two", "It has two", id="the only sentence"),
        pytest.param("", "", id="nothing"),
        pytest.param(SHELL, "So:\n\n```sh\nls\n```", id="in code"),
        pytest.param(
            "So:\n\n```sh\nls. Then", "So:\n\n```sh\nls. Then\n```", id="in its only line"
        ),
        pytest.param("```\nx = 1.", "```\nx = 1.\n```", id="in code that ends like a sentence"),
        pytest.param(
            "~~~~\na\n~~~\nb\nc", "~~~~\na\n~~~\nb\n~~~~", id="with a shorter fence inside"
        ),
        pytest.param(
            "- So:\n  ```\n  a\n  b\n  c", "- So:\n  ```\n  a\n  b\n  ```", id="in code in a list"
        ),
        pytest.param("```\na\n```\nIt is. And", "```\na\n```\nIt is.", id="after code"),
        pytest.param(
            "It is.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n| 3",
            "It is.\n\n| a | b |\n|---|---|\n| 1 | 2 |",
            id="in a table",
        ),
    ],
)
def test_a_cut_reply_loses_what_it_was_cut_in(reply, kept):
    assert without_broken_end(reply) == kept


pieces = st.sampled_from(
    [
        "```\n",
        "```sh\n",
        "~~~\n",
        "  ```\n",
        "a = 1\n",
        "It is so. ",
        "And\n",
        "\n\n",
        "- x\n",
        "|a|\n",
    ]
)


@given(reply=st.lists(pieces, max_size=10).map("".join))
def test_what_stands_behind_a_cut_reply_stays_what_it_is(reply):
    kept = without_broken_end(reply.strip())

    # No fence is open that would take in a heading behind it.
    assert sections_of(f"{kept}\n\n# Next\n")[-1].title == "Next"
