"""Endpoints: one entry of the settings for each model and its address.

One entry of `[endpoints.<tag>]` in `harness.toml`, or of the JSON object in `HARNESS_ENDPOINTS`:
`{"<tag>": {"url": "http://…/v1", "model_id": "<served name>", "backend": "vllm"}}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_args

import httpx2
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic.types import FiniteFloat, PositiveFloat

from harness.errors import Mistake, did_you_mean
from harness.hardware import CacheType, parse_bytes
from harness.inference.completion import StructuredMode, ToolMode
from harness.inference.health import RetryPolicy
from harness.inference.request import Effort
from harness.plugins import plugin_names

WireName = Literal[
    "openai",
    "llamacpp",
    "vllm",
    "sglang",
    "tgi",
    "tensorrt-llm",
    "tabbyapi",
    "mlc",
    "triton-openai",
    "lmstudio",
    "runpod",
    "modal",
]
"""Servers that speak OpenAI's chat protocol, each in its own way: see `providers`. `llamacpp`
is llama-server, its router mode included; `openai` is any other."""

BackendName = Literal[
    WireName, "ollama", "triton", "embedded", "llama-cpp-python", "litellm", "scripted"
]
"""`ollama` is spoken to by its own protocol, `triton` by KServe's generate; `embedded` is
llama.cpp in a process that harness starts, `llama-cpp-python` llama.cpp inside this process;
`litellm` is any provider that litellm knows; `scripted` is an object handed over in Python."""

FILE_BACKENDS: frozenset[BackendName] = frozenset({"embedded", "llama-cpp-python"})
"""Backends that load a GGUF file themselves."""

MANAGED_BACKENDS: frozenset[BackendName] = frozenset(
    {"ollama", "llamacpp", "vllm", "triton", "triton-openai"}
)
"""Servers that load and unload models on request."""

MACHINE, AUTO = "machine", "auto"
"""Devices: the machine's own memory, and the one that is chosen when a session opens."""

_VARIABLE = re.compile(r"\$\{(\w+)\}")
GPU_NAME = re.compile(r"gpu\d+")

SamplingField = Literal[
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "reasoning_effort",
    "seed",
    "stop",
]
"""Fields of a request without which a call can still be made."""

PromptTemplate = Literal["chatml", "llama3", "plain"]
"""How a conversation becomes one text, for servers that take only that."""

# Settings that most backends ignore → the backends that use them.
_ONLY_FOR: Mapping[str, frozenset[BackendName]] = {
    "path": FILE_BACKENDS,
    "context_tokens": FILE_BACKENDS | {"ollama"},
    "slots": frozenset({"embedded"}),
    "repeatable": frozenset({"embedded"}),
    "threads": FILE_BACKENDS,
    "cache_type_k": FILE_BACKENDS,
    "cache_type_v": FILE_BACKENDS,
    "gpu_layers": FILE_BACKENDS,
    "manage": MANAGED_BACKENDS,
    "keep_alive": frozenset({"ollama"}),
    "prompt_template": frozenset({"triton"}),
}

_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?")
# The durations of Go's `time.ParseDuration`, and so of Ollama.
_GO_DURATION = re.compile(r"[-+]?(0|((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)")


class Endpoint(BaseModel):
    """A model, and how to reach it."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        protected_namespaces=(),
        validate_by_name=True,
        validate_by_alias=True,
    )

    tag: str = Field(min_length=1)
    """The name that pipelines and roles use."""
    backend: str = "openai"
    """The server's kind, and so its protocol: a `BackendName`, or a provider that is installed."""
    url: str | None = None
    """Base address, with `/v1` if the server speaks OpenAI's protocol."""
    urls: tuple[str, ...] = ()
    """Base addresses of several servers with the same model, in place of `url`. Calls with the same
    beginning go to the same server; a failing server is left out for a while."""
    model_id: str = ""
    """The model's name on the server; by default the tag."""
    path: Path | None = None
    """The GGUF file of an embedded model."""
    context_tokens: int = Field(default=4096, ge=256)
    """Context of one call, prompt and reply together, for a model loaded from a file. If given, it
    is sent to Ollama too, which reloads a model for each other value."""
    slots: int = Field(default=4, ge=1, le=64)
    """Calls that a model of backend `embedded` answers at once."""
    repeatable: bool = False
    """Whether a model of backend `embedded` answers one call at a time, whatever `slots` is, and
    reads every prompt whole, so that equal calls get equal replies. Otherwise parallel calls and
    cached prefixes change the order of sums, and a greedy reply may differ. `--seed` sets it."""
    threads: int | None = Field(default=None, ge=1)
    """Processor threads of a model loaded from a file; by default all cores that this process or
    its container may use but one, and on `embedded` all for reading prompts. llama.cpp's threads
    spin while they wait for each other: a core shared makes it ten times slower, not twice."""
    cache_type_k: CacheType = "f16"
    """Type of the keys in the KV cache, for a model loaded from a file."""
    cache_type_v: CacheType = "f16"
    """Type of the values in the KV cache."""
    gpu_layers: int | None = Field(default=None, ge=0)
    """Layers on the GPU named by `device`, for a model loaded from a file; by default all. The
    processor computes the rest, slowly: a smaller model that fits whole is nearly always faster."""
    device: str | dict[str, PositiveFloat] = MACHINE
    """The device with the model's memory: `machine`, or a GPU's name under `[budget.devices]`, such
    as `gpu0`. For a server it sets what the budget counts, not where the server puts the model. A
    model from a file may also have `auto`: the GPU with the most room if the whole model fits
    there, else `machine`. Several GPUs hold the layers together, in equal parts, `["gpu0",
    "gpu1"]`, or by shares, `{gpu0 = 3, gpu1 = 1}`."""
    manage: bool = False
    """Whether the budget may have the server load and unload the model. Models from files always
    belong to the budget. Other clients of the server lose the model when it is unloaded."""
    need_bytes: int | None = Field(default=None, alias="need", gt=0)
    """Memory of the loaded model: bytes, or a text such as "6 GiB". By default it is read from the
    file, or asked of Ollama; other managed servers need it. For vLLM it is its share of its GPU."""
    pin: bool = False
    """Whether the model is loaded when a run begins and stays until its end."""
    priority: int = Field(default=0, ge=-10, le=10)
    """Among models that calls wait for, the highest is loaded first. Ahead of calls, it decides
    between loads, and between unloads, of equal cost."""
    load_timeout_s: float = Field(default=600.0, gt=0)
    """Time limit for loading the model, and for unloading it."""
    written_in: Path | None = Field(default=None, exclude=True, repr=False)
    """The folder of its `harness.toml`, set on loading; None for the user's own settings."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key; the key itself is never in a file."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Time limit of one call at its server, including retries and the pauses before them; waits for
    a place there are no part of it."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    """Time limit for connecting to the server."""
    first_token_timeout_s: float | None = Field(default=None, gt=0)
    """Time limit for the first piece of a reply, from sending on; None for `timeout_s`."""
    between_tokens_timeout_s: float | None = Field(default=None, gt=0)
    """Longest pause between two pieces of a reply; None for `timeout_s`."""
    max_reply_bytes: int = Field(default=64 << 20, gt=0)
    """Largest size of a reply as received, with all its data: bytes, or a text such as "64 MiB"."""
    stream: bool = True
    """Whether all replies are streamed, which is needed to measure the time to the first token.
    False for servers or proxies that cannot stream."""
    max_parallel: int | None = Field(default=None, ge=1)
    """Calls at the same time, with `urls` for each server; further calls wait in this process. By
    default the number of the server's slots, if it reports it (llama-server does)."""
    max_queue: int | None = Field(default=None, ge=0)
    """Calls that may wait in this process; a further one fails at once (`QueueFull`), or goes to
    `fallback`. None for any number."""
    retry: RetryPolicy = RetryPolicy()
    """How often a failed call is retried, or a connection:
    `{max_attempts = 4, base_s = 0.5, cap_s = 8}`."""
    max_outage_s: float = Field(default=600.0, ge=0)
    """How long calls wait for a server that has answered and is down now, or still loads; then the
    run ends, and can be resumed. A full server that answers other calls is waited for as long, by
    each call. Such waits use up neither `retry` nor the call's `timeout_s`."""
    fallback: tuple[str, ...] = ()
    """Tags of the endpoints to ask instead, in order, when this one cannot answer."""
    headers: dict[str, str] = {}
    """Headers of every request. `${NAME}` in a value is a variable, sent only where the key is."""
    query: dict[str, str] = {}
    """Parameters of every request's address, with variables as in `headers`."""
    extra_body: dict[str, Any] = {}
    """Fields of each call's JSON that harness does not know, merged last; a call's go first."""
    reasoning_effort: Effort | None = None
    """How much the model thinks, unless a call says: `none` switches thinking off, in the server's
    own spelling. None for the server's own setting, as in the next two."""
    top_k: int | None = Field(default=None, ge=1)
    """Samples from this many of the likeliest tokens, unless a call says."""
    presence_penalty: float | None = Field(default=None, ge=0, le=2)
    """Lowers a token's chance once it was used, unless a call says."""
    drop: tuple[SamplingField, ...] = ()
    """Fields that are never sent, because the model or its server refuses them. If a server reports
    the refusal, as most do, the call is repeated without the field anyway."""
    structured: StructuredMode | None = None
    """How the server treats a reply's schema: `enforced`, `advisory` or `ignored`. By default
    detected by a short call before the first one with a schema."""
    tools: ToolMode | None = None
    """How tools are offered: `native`, by the server's own support, or `typed`, as a type of the
    reply. By default `native` if the server is known to support tools and has not refused them."""
    embeddings: bool = False
    """Whether this is an embedding model. A model from a file is then loaded to embed and does not
    chat; on a server, `harness endpoints check` tests nothing else."""
    keep_alive: str | float | None = None
    """How long Ollama keeps the model loaded after a call: seconds, or a duration as Go writes it,
    such as "10m" or "1h30m"; negative for ever. None for half an hour with `manage`, else for the
    server's own setting."""
    prompt_template: PromptTemplate | None = None
    """How `triton` is sent a conversation: as the model was trained to read it."""
    family: str | None = None
    """The family of models that this one descends from, such as `qwen`, where its name and its file
    do not tell. A model does not evaluate its own family's output."""
    usd_per_hour: FiniteFloat | None = Field(default=None, ge=0)
    """Dollars per hour of its machine, for the report; only one endpoint of a machine has it."""
    usd_per_million_input_tokens: FiniteFloat | None = Field(default=None, ge=0)
    """The provider's price; litellm knows its providers' prices."""
    usd_per_million_output_tokens: FiniteFloat | None = Field(default=None, ge=0)
    """The provider's price."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        filled = dict(values)
        if filled.get("urls") and isinstance(filled["urls"], list | tuple):
            # An endpoint that was written out and is read again has both.
            if filled.get("url") not in (None, filled["urls"][0]):
                raise Mistake(
                    "'url' and 'urls' are both given; write all addresses into 'urls'",
                    code="endpoint.url-and-urls",
                )
            filled["url"] = filled["urls"][0]
        filled.setdefault("backend", "openai" if filled.get("path") is None else "embedded")
        filled.setdefault("model_id", filled.get("tag", ""))
        if filled.get("repeatable"):
            filled["slots"] = 1
        return filled

    @field_validator("backend")
    @classmethod
    def _is_known(cls, backend: str) -> str:
        shipped = get_args(BackendName)
        if backend in shipped or backend in (installed := plugin_names("providers")):
            return backend
        raise Mistake(
            f"there is no backend '{backend}'; " + did_you_mean(backend, [*shipped, *installed]),
            code="endpoint.backend-unknown",
        )

    @field_validator("need_bytes", "max_reply_bytes", mode="before")
    @classmethod
    def _as_bytes(cls, value: object) -> object:
        return parse_bytes(value) if isinstance(value, str) else value

    @field_validator("device", mode="before")
    @classmethod
    def _check_device(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, list | tuple):
            value = dict.fromkeys(map(str, value), 1.0)
        names = [*value] if isinstance(value, dict) else [str(value)]
        # `info.data` has only the fields above this one, so `gpu_layers` has to stand there.
        if info.data.get("path") is None and info.data.get("backend") not in FILE_BACKENDS:
            if len(names) != 1 or value == AUTO:
                raise Mistake(
                    "'auto' and several devices are for a model that harness loads from a file; "
                    "name the one device that holds the server's model",
                    code="endpoint.device-of-server",
                )
        elif value not in (MACHINE, AUTO) and not (names and all(map(GPU_NAME.fullmatch, names))):
            raise Mistake(
                f"'{', '.join(names)}' is not a device for a model from a file; write 'machine', "
                "'auto', a GPU such as 'gpu0', or several, such as [\"gpu0\", \"gpu1\"]",
                code="endpoint.device-unknown",
            )
        elif len(names) > 1 and info.data.get("gpu_layers") is not None:
            raise Mistake(
                "several GPUs hold all layers together; leave out 'gpu_layers', or name one GPU",
                code="endpoint.gpu-layers-of-several",
            )
        return names[0] if len(names) == 1 else value

    @field_validator("keep_alive")
    @classmethod
    def _as_duration(cls, value: str | float | None) -> str | float | None:
        if not isinstance(value, str) or _GO_DURATION.fullmatch(value):
            return value
        if _NUMBER.fullmatch(value):
            return float(value)  # as a text without a unit, Ollama would refuse it
        raise Mistake(
            f'\'{value}\' is no duration; give seconds, or a text such as "10m", "1h30m" or "-1m"',
            code="endpoint.keep-alive-not-a-time",
        )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.backend in FILE_BACKENDS:
            if self.path is None:
                raise Mistake(
                    f"backend '{self.backend}' needs 'path', the GGUF file to load",
                    code="endpoint.path-missing",
                )
            if self.url is not None:
                raise Mistake(
                    "'url' is for a server; a model from a file has 'path' alone",
                    code="endpoint.url-and-path",
                )
        elif self.url is not None:
            for url in self.urls or (self.url,):
                _check_address(url)
            if self.urls and self.manage:
                raise Mistake(
                    "the budget loads and unloads the model of one server; set 'manage' to false, "
                    "or give each of 'urls' an endpoint of its own",
                    code="endpoint.urls-managed",
                )
        elif self.path is None and self.backend not in {"litellm", "scripted"}:
            raise Mistake(
                f"backend '{self.backend}' needs 'url', such as http://127.0.0.1:8000/v1",
                code="endpoint.url-missing",
            )
        if self.backend == "triton" and self.prompt_template is None:
            raise Mistake(
                "backend 'triton' sends one text, not messages: set prompt_template to 'chatml', "
                "'llama3' or 'plain', whichever the model was trained on",
                code="endpoint.template-missing",
            )
        if self.tag in self.fallback:
            raise Mistake("an endpoint cannot be its own fallback", code="endpoint.own-fallback")
        self._refuse_stray_settings()
        return self

    @property
    def replicas(self) -> dict[str, Self]:
        """Server's name → the endpoint with that one of `urls`; without `urls`, "" → itself."""
        if not self.urls:
            return {"": self}
        return {_name(url): self.model_copy(update={"url": url, "urls": ()}) for url in self.urls}

    @property
    def shares(self) -> dict[str, float]:
        """Device → its share of the layers, relative to the others; GPUs in order of number."""
        shares = {self.device: 1.0} if isinstance(self.device, str) else self.device
        # gpu2 comes before gpu10.
        return dict(sorted(shares.items(), key=lambda share: (len(share[0]), share[0])))

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables whose values its requests carry; its key's first."""
        values = " ".join((*self.headers.values(), *self.query.values()))
        return (*filter(None, [self.api_key_env]), *_VARIABLE.findall(values))

    def filled_in(self, environment: Mapping[str, str]) -> Self:
        """The endpoint with values in place of the variables in `headers` and `query`."""
        filled = {
            name: {
                key: _VARIABLE.sub(lambda variable: environment.get(variable[1], ""), value)
                for key, value in getattr(self, name).items()
            }
            for name in ("headers", "query")
        }
        return self.model_copy(update=filled) if self.headers or self.query else self

    @property
    def source(self) -> str:
        """The provider, whatever the model: its host and path, and litellm's name for it."""
        api = self.model_id.partition("/")[0] if self.backend == "litellm" else ""
        return f"{api}@{_name(self.url) if self.url else ''}"

    @property
    def with_settings(self) -> str:
        """The tag, and the settings for which a calibration of its judgements holds."""
        names = ("reasoning_effort", "top_k", "presence_penalty", "extra_body")
        values = ((name, getattr(self, name)) for name in names)
        settings = ", ".join(f"{name} {value}" for name, value in values if value)
        return f"{self.tag} ({settings})" if settings else self.tag

    def made_repeatable(self) -> Self:
        """The same endpoint, made repeatable; unchanged if that is impossible."""
        if self.backend not in _ONLY_FOR["repeatable"]:
            return self
        return self.model_copy(update={"repeatable": True, "slots": 1})

    def _refuse_stray_settings(self) -> None:
        for name, backends in _ONLY_FOR.items():
            # A default that was written down changes nothing.
            is_set = getattr(self, name) != type(self).model_fields[name].default
            # An installed provider may use any of them.
            if is_set and self.backend in get_args(BackendName) and self.backend not in backends:
                *before, last = (f"'{name}'" for name in sorted(backends))
                either = f"{', '.join(before)} or {last}" if before else last
                elsewhere = "" if self.url is None else ", or set it where that server is started"
                raise Mistake(
                    f"'{name}' is for backend {either}, and would do nothing for "
                    f"'{self.backend}'; leave it out{elsewhere}",
                    code="endpoint.stray-setting",
                )


def _name(url: str) -> str:
    """The server's name in traces: no credentials, no `/v1`."""
    address = httpx2.URL(url)
    return address.netloc.decode("ascii") + address.path.rstrip("/").removesuffix("/v1")


def _check_address(url: str) -> None:
    try:
        address = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise Mistake(
            f"url '{url}' is not an address: {error}", code="endpoint.url-invalid"
        ) from error
    if address.scheme not in {"http", "https"} or not address.host:
        raise Mistake(
            f"url '{url}' must start with http:// or https:// and a host",
            code="endpoint.url-invalid",
        )
    # httpx2 takes any number, and connecting to one fails by an error that is none of ours.
    if address.port is not None and address.port > 65535:
        raise Mistake(f"url '{url}': ports end at 65535", code="endpoint.url-invalid")
