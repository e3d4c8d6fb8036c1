"""Typed replies: a JSON Schema made from a Python type, and the reply parsed back into it."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from harness.errors import ReplyInvalid
from harness.inference.completion import Completion
from harness.inference.request import JsonSchema

T = TypeVar("T")


class ReplyType(Generic[T]):
    """A type that replies are asked for in.

    Servers enforce objects, not every one enforces a bare list or number. So a type whose schema is
    not an object travels as `{"answer": …}` and is unwrapped again.

    Args:
        python_type: A pydantic model, a dataclass, a builtin, or any of these annotated.
    """

    def __init__(self, python_type: type[T]) -> None:
        self._adapter: TypeAdapter[T] = TypeAdapter(python_type)
        schema = self._adapter.json_schema()
        self._wrapped = schema.get("type") != "object"
        self.schema: JsonSchema = _wrap(schema) if self._wrapped else schema

    def parse(self, completion: Completion, *, endpoint: str) -> T:
        """The reply as a value.

        Raises:
            ReplyInvalid: The text is not JSON of this type; if the token limit cut it, it says so.
        """
        text = completion.text
        try:
            if self._wrapped:
                envelope = _ENVELOPE.validate_json(text)
                return self._adapter.validate_python(envelope.get("answer"))
            return self._adapter.validate_json(text)
        except ValidationError as error:
            why = (
                "max_output_tokens cut it short; raise it"
                if completion.finish_reason == "length"
                else "; ".join(f"{_path(e['loc'])}{e['msg']}" for e in error.errors()[:3])
            )
            raise ReplyInvalid(
                f"the reply does not match the type asked for: {why}. It begins: {text[:160]!r}",
                endpoint=endpoint,
                text=text,
            ) from error


_ENVELOPE: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


def _wrap(schema: dict[str, Any]) -> JsonSchema:
    definitions = schema.pop("$defs", None)
    wrapped: dict[str, Any] = {
        "type": "object",
        "properties": {"answer": schema},
        "required": ["answer"],
        "additionalProperties": False,
    }
    return wrapped if definitions is None else {**wrapped, "$defs": definitions}


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) + ": " if location else ""
