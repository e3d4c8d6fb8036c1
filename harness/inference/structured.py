"""Typed replies: a JSON Schema made from a Python type, and the reply parsed back into it."""

from __future__ import annotations

import re
from inspect import isroutine
from typing import Any, Generic, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import SchemaError

from harness.errors import ConfigurationInvalid, ReplyInvalid
from harness.inference.completion import Completion, StructuredMode
from harness.inference.request import JsonSchema

T = TypeVar("T")

_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
_UNENFORCED: dict[StructuredMode | None, str] = {
    "advisory": ". The server does not enforce schemas; the model was only told of it",
    "ignored": ". The server took no notice of the schema; the model was only told of it",
}


class ReplyType(Generic[T]):
    """A type that replies are asked for in.

    Servers enforce objects, not every one enforces a bare list or number. So a type whose schema is
    not an object travels as `{"answer": …}` and is unwrapped again.

    Args:
        python_type: A pydantic model, a dataclass, a builtin, or any of these annotated.

    Raises:
        ConfigurationInvalid: It is no type, or one without a JSON Schema.
    """

    def __init__(self, python_type: type[T]) -> None:
        if isinstance(python_type, str) or isroutine(python_type):
            raise _unusable(python_type, "it is no type")
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(python_type)
            self._wrapped = self._adapter.json_schema().get("type") != "object"
            if self._wrapped:
                self._adapter = TypeAdapter(_envelope(python_type))
            self.schema: JsonSchema = self._adapter.json_schema()
        except (PydanticUserError, PydanticUndefinedAnnotation, SchemaError) as error:
            raise _unusable(python_type, getattr(error, "message", str(error))) from error

    def parse(self, completion: Completion, *, endpoint: str) -> T:
        """The reply as a value.

        A model that is only told of the schema likes to put its JSON into a fence, or between two
        sentences: that is looked through. The value itself has to be of the type, to the letter.

        Raises:
            ReplyInvalid: The text is not JSON of this type; if the token limit cut it, it says so.
        """
        text = completion.text
        try:
            parsed = self._adapter.validate_json(_json_in(text))
        except ValidationError as error:
            why = (
                "max_output_tokens cut it short; raise it"
                if completion.finish_reason == "length"
                else "; ".join(f"{_path(e['loc'])}{e['msg']}" for e in error.errors()[:3])
            )
            raise ReplyInvalid(
                f"the reply does not match the type asked for: {why}. It begins: {text[:160]!r}"
                + _UNENFORCED.get(completion.structured, ""),
                endpoint=endpoint,
                text=text,
                problem=why,
            ) from error
        value: T = parsed.answer if self._wrapped else parsed
        return value


def _unusable(python_type: object, why: str) -> ConfigurationInvalid:
    name = getattr(python_type, "__name__", None) or repr(python_type)
    return ConfigurationInvalid(
        f"returns={name}: {why}; give a pydantic model, a dataclass, a builtin type such as "
        "list[str], or any of these annotated",
        code="reply.type-unusable",
    )


def _json_in(text: str) -> str:
    """The object in a text: all of it, what is fenced, or from the first brace to the last."""
    if text.lstrip().startswith("{"):
        return text
    fenced = _FENCED.search(text)
    found = fenced[1] if fenced else text[text.find("{") : text.rfind("}") + 1]
    return found or text


def _envelope(python_type: type[Any]) -> Any:  # noqa: ANN401 - a class made here has no static type
    return create_model("Reply", __config__=ConfigDict(extra="forbid"), answer=(python_type, ...))


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) + ": " if location else ""
