"""A person's answer, as the type that a node asked for."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import TypeAdapter

from harness.graph.annotations import described

_FORMS: dict[object, str] = {
    bool: "yes or no",
    int: "a whole number",
    float: "a number",
    str: "a text",
}


def form_of_answer(returns: Any) -> str:  # noqa: ANN401 - whatever a node asks for
    """What kind of answer is wanted, in words."""
    if returns in _FORMS:
        return _FORMS[returns]
    choices = get_args(returns)
    if choices and all(isinstance(one, str) for one in choices):
        return "one of " + ", ".join(map(str, choices))
    return f"JSON of {described(returns)}"


def parse_answer(given: object, returns: Any) -> object:  # noqa: ANN401
    """The answer as a value.

    Args:
        given: A text as somebody typed it, or the value itself.
        returns: Its type.

    Raises:
        ValueError: It is no such answer.
    """
    adapter: TypeAdapter[object] = TypeAdapter(returns)
    if not isinstance(given, str) or returns is str:
        return adapter.validate_python(given)
    text = given.strip()
    try:
        return adapter.validate_python(text)  # 'yes' is true, '3' is three
    except ValueError:
        return adapter.validate_json(text)


def answer_problem(given: object, form: str) -> str:
    """Why something cannot be an answer, as far as the words for its form tell; empty if it may be.

    Args:
        given: The answer.
        form: As `form_of_answer` says it.
    """
    returns = next((one for one, words in _FORMS.items() if words == form), None)
    choices = form.removeprefix("one of ")
    try:
        if returns is not None:
            parse_answer(given, returns)
        # A choice may have a comma in it: nothing that is one is refused.
        elif choices != form and f", {str(given).strip()}, " not in f", {choices}, ":
            return not_an_answer(given, form)
    except ValueError:
        return not_an_answer(given, form)
    return ""


def not_an_answer(given: object, form: str) -> str:
    """What to say to somebody who answered in another form."""
    return f"{given!r} is not {form}"
