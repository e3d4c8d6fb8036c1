"""Tools: typed functions that a model may call.

A model sees a function's name, docstring and annotations. Its arguments are checked against the
annotations before the function is called, and every request, valid or not, gets a text as its
answer.
"""

from __future__ import annotations

import inspect
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass, replace
from dataclasses import fields as fields_of
from decimal import Decimal
from itertools import chain
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, SchemaError, to_json

from harness.errors import InvalidInput, did_you_mean
from harness.graph.fingerprint import code_without_state
from harness.graph.node import RUN_PARAMETER, annotation_of
from harness.inference import Image, ToolSpec
from harness.inference.images import numbered
from harness.inference.request import JsonSchema, read_arguments

Approve = bool | str | Callable[[Mapping[str, object]], bool | str]
"""Whether a person is asked before a call: always, always with this question, or as a function of
the arguments says."""

ToolOutcome = Literal["ok", "failed", "timed out", "refused", "invalid", "unknown", "repeated"]
"""What came of a call: `refused` by a person, `invalid` arguments, an `unknown` tool; `repeated`
was not called, since the same calls had brought the same results before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """A call of a tool by an agent's model, with its result."""

    name: str
    arguments: str
    text: str
    """The result as told to the model."""
    outcome: ToolOutcome
    images: tuple[Image, ...] = ()
    """The result's images, to which `[image 1]` and so on in the text refer."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function as a tool, with settings beyond its signature; plain functions work too.

    Raises:
        InvalidInput: The function cannot be a tool.
    """

    function: Callable[..., object]
    """Plain or async, each parameter annotated. `run: Run` is the run, unseen by models."""
    name: str | None = None
    """By default the function's."""
    description: str | None = None
    """By default the docstring up to its sections."""
    timeout_s: float | None = None
    """Time limit of a call, without people's answers; by default the agent's."""
    approve: Approve = False
    usable: UsableTool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "usable", _read(self))


class ToolFailed(Exception):
    """A call that has no result, and why, in words that a model can act upon."""

    def __init__(self, message: str, *, outcome: ToolOutcome = "failed") -> None:
        super().__init__(message)
        self.outcome = outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class UsableTool:
    """A tool, read and checked."""

    spec: ToolSpec
    function: Callable[..., object]
    takes_run: bool
    arguments_of: Callable[[Mapping[str, object]], dict[str, object]]
    """The function's arguments from a model's; raises `ToolFailed`."""
    code: str
    """The same as long as a call would give the same, as far as its code says."""
    timeout_s: float | None
    approve: Approve

    def read(self, arguments: str) -> dict[str, object]:
        """A model's arguments as the function takes them.

        Raises:
            ToolFailed: They are not a JSON object, or not what the function takes.
        """
        wrote = f"you wrote {arguments:.200}"  # which the server is not sent again
        try:
            values = read_arguments(arguments)
        except orjson.JSONDecodeError as error:
            what = f"the arguments are not valid JSON: {error}; {wrote}"
            raise ToolFailed(what, outcome="invalid") from error
        if not isinstance(values, dict):
            raise ToolFailed(f"the arguments are not a JSON object; {wrote}", outcome="invalid")
        return self.arguments_of(values)

    def question(self, arguments: Mapping[str, object]) -> str | None:
        """What a person is asked before a call; None for nothing."""
        approval = self.approve(arguments) if callable(self.approve) else self.approve
        if not approval:
            return None
        shown = ", ".join(f"{name}={value!r:.500}" for name, value in arguments.items())
        text = "May this be called?" if approval is True else approval
        return f"{text} {self.spec.name}({shown})"


Offered = Callable[..., object] | Tool | ToolSpec
"""What a model may ask to be called: a function, or a description of what is called elsewhere."""


def tool_specs(tools: Sequence[Offered]) -> tuple[ToolSpec, ...]:
    """What a model is told of tools.

    Raises:
        InvalidInput: One cannot be a tool, or two have one name.
    """
    specs = [tool if isinstance(tool, ToolSpec) else usable_tool(tool).spec for tool in tools]
    names = [spec.name for spec in specs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InvalidInput(
            f"two tools are called '{min(twice)}'; give one another name: Tool(…, name=…), or "
            "mcp(…, prefix=…)",
            code="tool.name-twice",
        )
    return tuple(specs)


# --- a function as a tool -----------------------------------------------------------------------

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def usable_tool(tool: Callable[..., object] | Tool) -> UsableTool:
    """A function as a tool, with the code that it has now.

    Raises:
        InvalidInput: The function cannot be a tool.
    """
    tool = tool if isinstance(tool, Tool) else Tool(tool)
    # Not when it is made: what it refers to may be defined further down.
    return replace(tool.usable, code=code_without_state(tool.function).digest)


def _read(tool: Tool) -> UsableTool:
    function = inspect.unwrap(tool.function) if callable(tool.function) else tool.function
    written = getattr(function, "__code__", None)
    if written is None:
        raise InvalidInput(
            f"{tool.function!r:.80} cannot be a tool; give a function written with def; mcp(…) is "
            "for run.agent alone",
            code="tool.not-a-function",
        )
    name = function.__name__ if tool.name is None else tool.name

    def mistake(what: str, *, code: str) -> InvalidInput:
        path, line = Path(written.co_filename), written.co_firstlineno
        return InvalidInput(f"tool '{name}' {what}", code=code, path=path, line=line)

    if not _NAME.fullmatch(name):
        raise mistake(
            "has a name that servers refuse; give it one of letters, digits, '_' and '-', 64 at "
            "most: Tool(…, name=…)",
            code="tool.name-invalid",
        )
    if inspect.isasyncgenfunction(function):
        raise mistake("yields its result in pieces; return it as a whole", code="tool.yields")
    parameters = dict(inspect.signature(tool.function).parameters)
    takes_run = _is_run(function, parameters.get(RUN_PARAMETER))
    if takes_run:
        del parameters[RUN_PARAMETER]
    described, of_arguments = _docstring(inspect.getdoc(function) or "")
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(parameters.values()):
        _check_parameter(function, parameter, mistake, is_first=not number)
        try:
            kind = annotation_of(function, parameter.name)
        except (NameError, AttributeError) as error:
            raise mistake(
                f"has an annotation of '{parameter.name}' that cannot be resolved ({error}); "
                "import the name at run time, not only under TYPE_CHECKING",
                code="tool.type-unusable",
            ) from error
        default = ... if parameter.default is parameter.empty else parameter.default
        settings: dict[str, Any] = {"alias": parameter.name}
        # None would remove the description of an annotation.
        if text := of_arguments.get(parameter.name):
            settings["description"] = text
        # Its own name may be one of pydantic's.
        fields[f"p{number}"] = kind, Field(default, **settings)
    try:
        model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        schema = model.model_json_schema(schema_generator=_Schema)
    except (PydanticUserError, PydanticUndefinedAnnotation, SchemaError) as error:
        raise mistake(
            f"takes a type that JSON cannot express ({getattr(error, 'message', error)}); use "
            "texts, numbers, lists, dataclasses or pydantic models",
            code="tool.type-unusable",
        ) from error
    del schema["title"]

    def arguments_of(values: Mapping[str, object]) -> dict[str, object]:
        try:
            read = model.model_validate(values)
        except ValidationError as error:
            raise ToolFailed(_wrong(error, [*parameters]), outcome="invalid") from error
        # No limit holds against such a number: `euros > 100` is false of "nan".
        if place := next(_not_finite(read), None):
            raise ToolFailed(f"{place}: give a finite number", outcome="invalid")
        names = zip(model.model_fields, parameters, strict=True)
        return {name: getattr(read, p) for p, name in names if p in read.model_fields_set}

    description = described if tool.description is None else tool.description
    return UsableTool(
        spec=ToolSpec(name=name, description=description, parameters=inlined(schema)),
        function=tool.function,
        takes_run=takes_run,
        arguments_of=arguments_of,
        code="",
        timeout_s=tool.timeout_s,
        approve=tool.approve,
    )


def inlined(schema: JsonSchema) -> JsonSchema:
    """A schema with each definition in place of the references to it, unless one holds itself.

    Chat templates that write tools as code, as gpt-oss's does, show a reference as any value.
    """
    definitions: Any = schema.get("$defs", {})

    def part(value: Any, above: tuple[str, ...] = ()) -> Any:  # noqa: ANN401 - JSON
        if isinstance(value, list):
            return [part(element, above) for element in value]
        if not isinstance(value, dict):
            return value
        fields = {key: part(field, above) for key, field in value.items()}
        # A discriminator tells the options of a union apart by the names of their definitions.
        if "propertyName" in fields.get("discriminator", ()):
            del fields["discriminator"]
        if not isinstance(place := value.get("$ref"), str):
            return fields
        name = place.removeprefix("#/$defs/")
        if name in above:
            raise RecursionError
        del fields["$ref"]
        return {**part(definitions[name], (*above, name)), **fields}

    try:
        return part({key: value for key, value in schema.items() if key != "$defs"})  # type: ignore[no-any-return]
    # References of an MCP server's schema may lead elsewhere, or to `true`, which has no fields.
    except (RecursionError, KeyError, TypeError):
        return schema


def _check_parameter(
    function: Callable[..., Any],
    parameter: inspect.Parameter,
    mistake: Callable[..., InvalidInput],
    *,
    is_first: bool,
) -> None:
    """Refuses a parameter that a model cannot give; `mistake` makes the error."""
    name = parameter.name
    if parameter.kind in {
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
        parameter.POSITIONAL_ONLY,
    }:
        remedy = "name each parameter, without '/'"
        if parameter.kind is parameter.VAR_POSITIONAL:
            remedy = f"take a list: {name}: list[str], for example"
        raise mistake(
            f"takes '{parameter}', which cannot be given by name; {remedy}",
            code="tool.parameter-without-name",
        )
    holder, _, method = function.__qualname__.rpartition(".")
    # A function within a function has `<locals>` before its name.
    if is_first and name == "self" and holder and not holder.endswith(">"):
        owner = holder.rpartition(".")[2]
        raise mistake(
            f"is a method without its object; give a bound method: {owner}(…).{method}",
            code="tool.method-unbound",
        )
    if _is_run(function, parameter):
        raise mistake(
            f"takes a Run as '{name}'; name the parameter '{RUN_PARAMETER}'",
            code="tool.run-misnamed",
        )
    if parameter.annotation is parameter.empty:
        remedy = f"write {name}: str, for example"
        if name == RUN_PARAMETER:
            remedy = "write run: Run to receive the run, or run: str for a text of the model's"
        raise mistake(
            f"has no annotation for '{name}', and a model needs it to know what to give; {remedy}",
            code="tool.parameter-unannotated",
        )


def _is_run(function: Callable[..., object], parameter: inspect.Parameter | None) -> bool:
    if parameter is None or parameter.annotation is parameter.empty:
        return False
    try:
        kind = annotation_of(function, parameter.name)
    except (NameError, AttributeError):
        # Imported for type checkers alone, as a text, which may be quoted twice.
        return str(parameter.annotation).strip("'\"").rpartition(".")[2] == "Run"
    kinds = [kind, *get_args(kind)] if get_origin(kind) in _AROUND_RUN else [kind]
    # By name: the module of `Run` imports this one.
    return any(
        (base.__module__, base.__qualname__) == ("harness.session.run", "Run")
        for kind in kinds
        for base in getattr(kind, "__mro__", ())
    )


_AROUND_RUN = (Annotated, Union, UnionType)


def _not_finite(value: object, place: str = "") -> Iterator[str]:
    """Where a number is infinite or none, as a model's "nan" becomes, and its type allows none."""
    inside: Iterable[tuple[object, object]] = ()
    match value:
        case float() | Decimal() if not isfinite(value):
            yield place
        case BaseModel() if not value.model_config.get("allow_inf_nan"):
            fields = type(value).model_fields
            inside = (
                (fields[name].alias or name, getattr(value, name))
                for name in value.model_fields_set & fields.keys()
                if not _allows((fields[name].annotation, *fields[name].metadata))
            )
        case Mapping():
            inside = chain(value.items(), ((key, key) for key in value))
        case list() | tuple() | set() | frozenset() | deque():
            inside = enumerate(value)
        case _ if is_dataclass(value):
            inside = ((f.name, getattr(value, f.name)) for f in fields_of(value) if f.init)
    for name, part in inside:
        yield from _not_finite(part, f"{place}.{name}" if place else str(name))


def _allows(kind: object) -> bool:
    """Whether an annotation has `AllowInfNan()` or `Field(allow_inf_nan=True)` in it."""
    parts = kind if isinstance(kind, tuple) else get_args(kind)
    return getattr(kind, "allow_inf_nan", None) is True or any(map(_allows, parts))


class _Schema(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ANN401, ARG002
        # A title would repeat the name.
        return False

    def emit_warning(self, kind: Any, detail: str) -> None:  # noqa: ANN401
        # It would warn of defaults that JSON cannot say.
        pass


_SECTION = re.compile(
    r"^(Args|Arguments|Returns|Raises|Yields|Examples?|Notes?):\s*$", re.MULTILINE
)
_ARGUMENT = re.compile(r"^(\*{0,2}\w+)(?: ?\([^)]*\))?: ?(.*)$")


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """What stands before its sections, and what it says of each argument (Google's style)."""
    described, *sections = _SECTION.split(text)
    arguments: dict[str, str] = {}
    for title, section in zip(sections[::2], sections[1::2], strict=True):
        if title.startswith("Arg"):
            last = None
            for line in inspect.cleandoc(section).splitlines():
                if match := _ARGUMENT.match(line):
                    last = match[1]
                    arguments[last] = match[2]
                elif last is not None and line.strip():
                    arguments[last] += f" {line.strip()}"
    return described.strip(), arguments


def _wrong(error: ValidationError, names: Sequence[str]) -> str:
    problems = []
    for fault in error.errors(include_url=False)[:5]:
        place = ".".join(map(str, fault["loc"]))
        if fault["type"] == "extra_forbidden" and len(fault["loc"]) == 1:
            problems.append(f"there is no argument '{place}' ({did_you_mean(place, names)})")
        else:
            problems.append(f"{place}: {fault['msg']}" if place else fault["msg"])
    return "; ".join(problems)


# --- results as texts ---------------------------------------------------------------------------


def result_of(value: object) -> tuple[str, tuple[Image, ...]]:
    """What a model is told of a result, and its images, which the text refers to by number.

    A text is told as it is, as are texts and images in a list; other values as JSON.

    Raises:
        TypeError: It is a value that JSON cannot say.
    """
    images: list[Image] = []
    try:
        plain = numbered(value, images)  # adds to the images
        if images and isinstance(plain, list) and all(isinstance(part, str) for part in plain):
            plain = "\n".join(plain)
        if isinstance(plain, str):
            return plain, tuple(images)
        # Without images, a model's own serialization holds.
        content = plain if images else value
        data = to_json(content, bytes_mode="base64", inf_nan_mode="strings", fallback=_as_lists)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        why = str(error).rpartition("Error: ")[2]
        raise TypeError(f"its result cannot be written as JSON: {why}") from error
    return data.decode(), tuple(images)


def _as_lists(value: Any) -> object:  # noqa: ANN401
    """What arrays of numpy and torch, and tables of pandas and polars, say of themselves."""
    for method, arguments in (("tolist", ()), ("to_dicts", ()), ("to_dict", ("records",))):
        # A class of the user's own may have another method of this name.
        with suppress(AttributeError, TypeError):
            return getattr(value, method)(*arguments)
    raise ValueError(f"{type(value)} has no form in it")


def cut(text: str, *, max_chars: int) -> str:
    """A text without its middle, if it is too long, and without halves of surrogate pairs."""
    text = text.encode("utf-8", "replace").decode()
    missing = len(text) - max_chars
    if missing <= 0:
        return text
    head = max_chars * 2 // 3
    note = f"\n[… {missing:,} characters are left out here: ask for less, or for a part …]\n"
    return text[:head] + note + text[head + missing :]
