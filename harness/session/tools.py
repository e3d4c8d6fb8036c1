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
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, SchemaError, to_json

from harness.errors import InvalidInput, did_you_mean
from harness.graph.fingerprint import code_of
from harness.graph.node import RUN_PARAMETER, annotation_of
from harness.inference import Image, ToolSpec
from harness.inference.images import numbered
from harness.inference.request import JsonSchema, read_arguments
from harness.text.typed_json import TypedJson

Approve = bool | str | Callable[[Mapping[str, object]], bool | str]
"""Whether a person is asked before a call: always (True), always with this question, or as a
function of the arguments decides."""

ToolOutcome = Literal["ok", "failed", "timed out", "refused", "invalid", "unknown", "repeated"]
"""The outcome of a call: `refused` by a person, `invalid` arguments, an `unknown` tool. A tool is
not called again (`repeated`) if the same calls had the same results before."""


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
    """Why a call has no result, in words that a model can act upon."""

    def __init__(self, message: str, *, outcome: ToolOutcome = "failed") -> None:
        super().__init__(message)
        self.outcome = outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class UsableTool:
    """A tool whose function has been read and checked."""

    spec: ToolSpec
    function: Callable[..., object]
    takes_run: bool
    arguments_of: Callable[[Mapping[str, object], str], dict[str, object]]
    """Makes the function's arguments from a model's, and their JSON; raises `ToolFailed`."""
    code: str  # a digest of the function's code: as long as it is the same, results may be reused
    timeout_s: float | None
    approve: Approve

    def read(self, arguments: str) -> dict[str, object]:
        """A model's arguments as the function takes them; raises `ToolFailed` if they are wrong."""
        wrote = f"you wrote {arguments:.200}"  # quoted, since servers refuse it as a call
        try:
            values = read_arguments(arguments)
        except orjson.JSONDecodeError as error:
            problem = f"the arguments are not valid JSON: {error}; {wrote}"
            raise ToolFailed(problem, outcome="invalid") from error
        if not isinstance(values, dict):
            raise ToolFailed(f"the arguments are not a JSON object; {wrote}", outcome="invalid")
        return self.arguments_of(values, arguments)

    def question(self, arguments: Mapping[str, object]) -> str | None:
        """The question that a person must answer before a call; None if there is none."""
        approval = self.approve(arguments) if callable(self.approve) else self.approve
        if not approval:
            return None
        shown = ", ".join(f"{name}={value!r:.500}" for name, value in arguments.items())
        text = "May this be called?" if approval is True else approval
        return f"{text} {self.spec.name}({shown})"


Offered = Callable[..., object] | Tool | ToolSpec
"""A tool that a model may ask to call: a function, or the description of one that is elsewhere."""


def tool_specs(tools: Sequence[Offered]) -> tuple[ToolSpec, ...]:
    """The descriptions of tools for a model; raises `InvalidInput` if two have the same name."""
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
    """A function as a tool, with its present code; raises `InvalidInput` as `Tool` does."""
    tool = tool if isinstance(tool, Tool) else Tool(tool)
    # Not when the `Tool` is made: the function may refer to names that are defined further down.
    return replace(tool.usable, code=code_of(tool.function, with_state=False).digest)


def _read(tool: Tool) -> UsableTool:
    """Checks a tool's function, and makes the schema and the parser of its arguments."""
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
    summary, text_by_argument = _docstring(inspect.getdoc(function) or "")
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(parameters.values()):
        _check_parameter(function, parameter, mistake, is_first=not number)
        text = text_by_argument.get(parameter.name, "")
        # The parameter's own name is an alias, since pydantic reserves some names.
        fields[f"p{number}"] = _field_of(function, parameter, text, mistake)
    try:
        model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        schema = model.model_json_schema(schema_generator=_Schema)
        reader = TypedJson(TypeAdapter(model).core_schema)
    except (PydanticUserError, PydanticUndefinedAnnotation, SchemaError) as error:
        raise mistake(
            f"takes a type that JSON cannot express ({getattr(error, 'message', error)}); use "
            "texts, numbers, lists, dataclasses or pydantic models",
            code="tool.type-unusable",
        ) from error
    del schema["title"]

    def arguments_of(values: Mapping[str, object], arguments: str) -> dict[str, object]:
        try:
            read = reader.read_decoded(values, arguments)
        except ValidationError as error:
            raise ToolFailed(_mistakes_in(error, [*parameters]), outcome="invalid") from error
        # A NaN would pass a tool's own limits: `euros > 100` is false of it.
        if place := next(_not_finite(read), None):
            raise ToolFailed(f"{place}: give a finite number", outcome="invalid")
        names = zip(model.model_fields, parameters, strict=True)
        return {name: getattr(read, f) for f, name in names if f in read.model_fields_set}

    description = summary if tool.description is None else tool.description
    return UsableTool(
        spec=ToolSpec(name=name, description=description, parameters=inlined(schema)),
        function=tool.function,
        takes_run=takes_run,
        arguments_of=arguments_of,
        code="",
        timeout_s=tool.timeout_s,
        approve=tool.approve,
    )


def _field_of(
    function: Callable[..., Any],
    parameter: inspect.Parameter,
    text: str,
    mistake: Callable[..., InvalidInput],
) -> tuple[Any, Any]:
    """The type and the field of a parameter for pydantic; `mistake` makes the error."""
    try:
        kind = annotation_of(function, parameter.name)
    except (NameError, AttributeError) as error:
        raise mistake(
            f"has an annotation of '{parameter.name}' that cannot be resolved ({error}); "
            "import the name at run time, not only under TYPE_CHECKING",
            code="tool.type-unusable",
        ) from error
    default = ... if parameter.default is parameter.empty else parameter.default
    # Only if there is one: None would remove the description in an annotation.
    description: dict[str, Any] = {"description": text} if text else {}
    return kind, Field(default, alias=parameter.name, **description)


def inlined(schema: JsonSchema) -> JsonSchema:
    """A JSON schema with each definition copied to where it is referred to.

    If a definition contains itself, or a reference leads out of the schema, as in those of some MCP
    servers, the schema stays as it is.
    """
    # Chat templates that write tools as code, such as gpt-oss's, show a reference as any value.
    definitions: Any = schema.get("$defs", {})

    def with_definitions(value: Any, above: tuple[str, ...] = ()) -> Any:  # noqa: ANN401 - JSON
        """A part of the schema, inside the definitions `above`, without references."""
        if isinstance(value, list):
            return [with_definitions(element, above) for element in value]
        if not isinstance(value, dict):
            return value
        fields = {key: with_definitions(field, above) for key, field in value.items()}
        # A union's discriminator refers to the definitions by their names.
        if "propertyName" in fields.get("discriminator", ()):
            del fields["discriminator"]
        reference = value.get("$ref")
        if not isinstance(reference, str):
            return fields
        name = reference.removeprefix("#/$defs/")
        if name in above:
            raise RecursionError
        del fields["$ref"]
        return {**with_definitions(definitions[name], (*above, name)), **fields}

    try:
        whole = {key: value for key, value in schema.items() if key != "$defs"}
        return with_definitions(whole)  # type: ignore[no-any-return]
    except (RecursionError, KeyError, TypeError):  # TypeError: a definition may be `true`
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
        # `Run` is imported only under TYPE_CHECKING: the annotation is a text, perhaps in quotes.
        return str(parameter.annotation).strip("'\"").rpartition(".")[2] == "Run"
    kinds = [kind, *get_args(kind)] if get_origin(kind) in _AROUND_RUN else [kind]
    # Compared by name, since the module of `Run` imports this one.
    return any(
        (base.__module__, base.__qualname__) == ("harness.session.run", "Run")
        for kind in kinds
        for base in getattr(kind, "__mro__", ())
    )


_AROUND_RUN = (Annotated, Union, UnionType)


def _not_finite(value: object, place: str = "") -> Iterator[str]:
    """The places of infinite and NaN numbers, such as a model's "nan", whose type allows none."""
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
        return False  # a title would only repeat the name

    def emit_warning(self, kind: Any, detail: str) -> None:  # noqa: ANN401
        """Does not warn of defaults that JSON cannot express, which models need not know."""


_SECTION = re.compile(
    r"^(Args|Arguments|Returns|Raises|Yields|Examples?|Notes?):\s*$", re.MULTILINE
)
_ARGUMENT = re.compile(r"^(\*{0,2}\w+)(?: ?\([^)]*\))?: ?(.*)$")


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """The text before a docstring's sections, and argument → its text (Google's style)."""
    summary, *sections = _SECTION.split(text)
    text_by_argument: dict[str, str] = {}
    # Titles and texts of the sections alternate.
    for title, section in zip(sections[::2], sections[1::2], strict=True):
        if title.startswith("Arg"):
            name = None
            for line in inspect.cleandoc(section).splitlines():
                if match := _ARGUMENT.match(line):
                    name = match[1]
                    text_by_argument[name] = match[2]
                elif name is not None and line.strip():
                    text_by_argument[name] += f" {line.strip()}"
    return summary.strip(), text_by_argument


def _mistakes_in(error: ValidationError, names: Sequence[str]) -> str:
    """What is wrong with a model's arguments, for the model; `names` are the right ones."""
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
    """A tool's result as a text for the model, and its images, to which the text refers by number.

    Texts stay as they are, also in a list with images. Other values become JSON; raises `TypeError`
    if they cannot.
    """
    images: list[Image] = []
    try:
        plain = numbered(value, images)  # adds to the images
        if images and isinstance(plain, list) and all(isinstance(part, str) for part in plain):
            plain = "\n".join(plain)
        if isinstance(plain, str):
            return plain, tuple(images)
        # `plain` is without a pydantic model's own serialization; it is needed only for images.
        content = plain if images else value
        data = to_json(content, bytes_mode="base64", inf_nan_mode="strings", fallback=_as_lists)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        why = str(error).rpartition("Error: ")[2]
        raise TypeError(f"its result cannot be written as JSON: {why}") from error
    return data.decode(), tuple(images)


def _as_lists(value: Any) -> object:  # noqa: ANN401
    """Arrays of NumPy and PyTorch, and tables of pandas and polars, as lists."""
    for method, arguments in (("tolist", ()), ("to_dicts", ()), ("to_dict", ("records",))):
        # A class of the user's own may have another method of this name.
        with suppress(AttributeError, TypeError):
            return getattr(value, method)(*arguments)
    raise ValueError(f"{type(value)} has no form in it")


def cut(text: str, *, max_chars: int) -> str:
    """The text without its middle if it is too long, and with `?` for lone surrogates."""
    text = text.encode("utf-8", "replace").decode()
    missing = len(text) - max_chars
    if missing <= 0:
        return text
    head = max_chars * 2 // 3
    note = f"\n[… {missing:,} characters are left out here: ask for less, or for a part …]\n"
    return text[:head] + note + text[head + missing :]
