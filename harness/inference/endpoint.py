"""Endpoints: which model is reached where, as a person writes it down.

One entry of `[endpoints.<tag>]` in `harness.toml`, or of the JSON object in `HARNESS_ENDPOINTS`:
`{"<tag>": {"url": "http://…/v1", "model_id": "<served name>", "backend": "vllm"}}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, Self

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic.types import PositiveFloat

from harness.errors import Mistake
from harness.hardware import CacheType, parse_bytes
from harness.inference.completion import StructuredMode, ToolMode
from harness.inference.retry import RetryPolicy

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
"""Those that load a GGUF file themselves."""

MANAGED_BACKENDS: frozenset[BackendName] = frozenset(
    {"ollama", "llamacpp", "vllm", "sglang", "tabbyapi", "tensorrt-llm", "triton", "triton-openai"}
)
"""Servers that can be told to load a model and to let it go."""

MACHINE, AUTO = "machine", "auto"
"""The machine's own memory, as a device; and the device that is chosen when a session opens."""

GPU_NAME = re.compile(r"gpu\d+")

SamplingField = Literal[
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "seed",
    "logprobs",
    "top_logprobs",
]
"""Fields of a request that a call can do without."""

PromptTemplate = Literal["chatml", "llama3", "plain"]
"""How a conversation becomes one text, for servers that take only that."""

_ONLY_FOR: Mapping[str, frozenset[BackendName]] = {
    "context_tokens": FILE_BACKENDS | {"ollama"},
    "slots": frozenset({"embedded"}),
    "repeatable": frozenset({"embedded"}),
    "threads": FILE_BACKENDS,
    "cache_type_k": FILE_BACKENDS,
    "cache_type_v": FILE_BACKENDS,
    "gpu_layers": FILE_BACKENDS,
    "manage": MANAGED_BACKENDS,
    "control_key_env": MANAGED_BACKENDS,
    "keep_alive": frozenset({"ollama"}),
    "prompt_template": frozenset({"triton"}),
}
"""Settings that most backends take no notice of, and those that do."""

_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?")
_GO_DURATION = re.compile(r"[-+]?(0|((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)")
"""What Go's `time.ParseDuration` takes, and so Ollama."""


class Endpoint(BaseModel):
    """A model and the way to it."""

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
    backend: BackendName = "openai"
    """How it is spoken to."""
    url: str | None = None
    """Base address, with its `/v1` where the server speaks OpenAI's protocol."""
    urls: tuple[str, ...] = ()
    """Base addresses of several servers with the same model, in place of `url`: calls that begin
    alike go to the same one, and one that fails is left out for a while."""
    model_id: str = ""
    """The name the server knows the model by; the tag when left out."""
    path: Path | None = None
    """The GGUF file of an embedded model."""
    context_tokens: int = Field(default=4096, ge=256)
    """Context of one call, prompt and reply together, for a model that is loaded from a file.
    Ollama is told it too, if it is given: a model that is asked with another one is loaded anew."""
    slots: int = Field(default=4, ge=1, le=64)
    """Calls that a model of backend `embedded` answers side by side."""
    repeatable: bool = False
    """Whether a model of backend `embedded` answers one call at a time and reads every prompt
    whole. Then equal calls get equal replies: side by side, or after a cached prefix, the same sums
    are made in another order, and a greedy reply may differ. `--seed` sets it."""
    threads: int | None = Field(default=None, ge=1)
    """Processor threads of a model that is loaded from a file; all cores but one when left out,
    and all to read prompts with on `embedded`. llama.cpp's threads wait for each other spinning:
    give it a core that something else wants, and it writes ten times slower, not twice."""
    cache_type_k: CacheType = "f16"
    """What the keys of the KV cache are stored as, for a model that is loaded from a file."""
    cache_type_v: CacheType = "f16"
    """The same of its values."""
    gpu_layers: int | None = Field(default=None, ge=0)
    """Layers that the GPU named by `device` computes, the others being the processor's, for a model
    that is loaded from a file; all of them when left out. Part of a model on a GPU is slow: a
    smaller model that fits whole is nearly always faster."""
    device: str | dict[str, PositiveFloat] = MACHINE
    """Whose memory the model takes: `machine`, or a GPU's name under `[budget.devices]`, such as
    `gpu0`. Of a server it says what the budget counts, not where the server puts the model. A model
    from a file may also have `auto`, the GPU with the most room if the whole model fits there and
    else `machine`; or a list, such as `["gpu0", "gpu1"]`: these hold its layers together, as many
    each, or by shares: `{gpu0 = 3, gpu1 = 1}`."""
    manage: bool = False
    """Whether the budget may have the server load the model and let it go. Models from files are
    always the budget's. Other clients of that server would find the model gone."""
    need_bytes: int | None = Field(default=None, alias="need", gt=0)
    """What the model takes once it is loaded: bytes, or a text such as "6 GiB". When left out, read
    from the file, or asked of Ollama; another server that is managed needs it. Of one that takes a
    share of its GPU whatever the model (vLLM, SGLang, TensorRT-LLM) it is that share."""
    pin: bool = False
    """Whether it is loaded when a run begins and stays until its end."""
    priority: int = Field(default=0, ge=-10, le=10)
    """Of models that calls wait for, the highest is loaded first. Ahead of calls, the highest comes
    first and the lowest goes first where it makes no difference to the loads."""
    load_timeout_s: float = Field(default=600.0, gt=0)
    """Longest that loading it may take, and letting it go."""
    control_key_env: str | None = None
    """Name of the environment variable with the key that loading and unloading need, where that is
    another than `api_key_env`'s: TabbyAPI's and SGLang's admin key, TensorRT-LLM's control key."""
    written_in: Path | None = Field(default=None, exclude=True, repr=False)
    """The folder whose `harness.toml` it is from; None for the user's own. Filled in on loading."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key; the key itself is never in a file."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Longest that one call may take, from its first sending on, retries included."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    """Longest that connecting to the server may take."""
    first_token_timeout_s: float | None = Field(default=None, gt=0)
    """Longest that the first piece of a reply may take, from sending on; None for `timeout_s`."""
    between_tokens_timeout_s: float | None = Field(default=None, gt=0)
    """Longest pause between two pieces of a reply; None for `timeout_s`."""
    max_reply_bytes: int = Field(default=64 << 20, gt=0)
    """Longest that a reply may be as it comes, with all that is said beside its text: bytes, or a
    text such as "64 MiB"."""
    stream: bool = True
    """Whether replies are streamed, whoever asks: only so is the time to the first token measured.
    False for servers, or ways to them, that cannot."""
    max_parallel: int | None = Field(default=None, ge=1)
    """Calls to it at one time, of `urls` to each; further ones wait here for their turn. When left
    out, as many as its server has slots, where it says that (llama-server does)."""
    max_queue: int | None = Field(default=None, ge=0)
    """Calls that may wait here for their turn; a further one fails at once (`QueueFull`), or goes
    to `fallback`. None for any number."""
    retry: RetryPolicy = RetryPolicy()
    """How often a call that failed is made again: `{max_attempts = 4, base_s = 0.5, cap_s = 8}`."""
    fallback: tuple[str, ...] = ()
    """Tags of the endpoints that are asked instead, in order, when this one cannot answer."""
    drop: tuple[SamplingField, ...] = ()
    """Fields never to be sent, since the model or its server refuses them. Most servers say so, and
    are then asked again without."""
    structured: StructuredMode | None = None
    """What becomes of a reply's schema: `enforced`, `advisory` or `ignored`. Found out, with a
    short call before the first that has one, when left out."""
    tools: ToolMode | None = None
    """How tools are offered: `native`, by the server's own means, or `typed`, as a type of the
    reply. When left out, natively where the server is known to have means and has not refused."""
    embeddings: bool = False
    """Whether the model is there to embed. One from a file is loaded for it, and does not chat
    then; of a server, `harness endpoints check` tries nothing else."""
    keep_alive: str | float | None = None
    """How long Ollama keeps the model loaded after a call: seconds, or a duration as Go writes it,
    such as "10m" or "1h30m"; negative for ever. None for the server's own setting."""
    prompt_template: PromptTemplate | None = None
    """How `triton` is sent a conversation: as the model was trained to read it."""
    family: str | None = None
    """The family of models that this one descends from, such as `qwen`, where its name and its file
    do not tell. A model does not evaluate its own family's output."""
    usd_per_hour: float | None = Field(default=None, ge=0)
    """What the machine costs that serves it, for the report; of two endpoints on one machine, only
    one should have it."""
    usd_per_million_input_tokens: float | None = Field(default=None, ge=0)
    """What a provider charges; litellm knows its providers' prices."""
    usd_per_million_output_tokens: float | None = Field(default=None, ge=0)
    """What a provider charges."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        filled = dict(values)
        if filled.get("urls") and isinstance(filled["urls"], list | tuple):
            if filled.get("url") not in (None, filled["urls"][0]):
                raise Mistake(
                    "'url' and 'urls' are both given; write all addresses into 'urls'",
                    code="endpoint.url-and-urls",
                )
            filled["url"] = filled["urls"][0]
        filled.setdefault("backend", "openai" if filled.get("path") is None else "embedded")
        filled.setdefault("model_id", filled.get("tag", ""))
        if filled.get("repeatable"):
            filled.setdefault("slots", 1)
        return filled

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
        if info.data.get("backend") not in FILE_BACKENDS:
            if len(names) != 1 or value == AUTO:
                raise Mistake(
                    "'auto' and several devices are for a model that harness loads from a file; "
                    "name the one whose memory the server's model takes",
                    code="endpoint.device-of-server",
                )
        elif value not in (MACHINE, AUTO) and not (names and all(map(GPU_NAME.fullmatch, names))):
            raise Mistake(
                f"'{', '.join(names)}' is no device for a model from a file; write 'machine', "
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
            f'\'{value}\' is no time; give seconds, or a text such as "10m", "1h30m" or "-1m"',
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
            if self.repeatable and self.slots > 1:
                raise Mistake(
                    f"a repeatable model answers one call at a time, and 'slots' is {self.slots}; "
                    "leave it out",
                    code="endpoint.repeatable-slots",
                )
        elif self.path is not None:
            raise Mistake(
                "'path' is for backend 'embedded'; a server needs 'url'",
                code="endpoint.path-of-server",
            )
        elif self.url is not None:
            for url in self.urls or (self.url,):
                _check_address(url)
            self._check_replicas()
        elif self.backend not in {"litellm", "scripted"}:
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
        """The same with each of `urls` alone, by host, port and path; else itself, by ""."""
        if not self.urls:
            return {"": self}
        return {_name(url): self.model_copy(update={"url": url, "urls": ()}) for url in self.urls}

    @property
    def shares(self) -> dict[str, float]:
        """By device, GPUs by number, how much of the layers it has in proportion to the others."""
        shares = {self.device: 1.0} if isinstance(self.device, str) else self.device
        return dict(sorted(shares.items(), key=lambda one: (len(one[0]), one[0])))

    def _check_replicas(self) -> None:
        if len(self.replicas) < len(self.urls):
            raise Mistake(
                "'urls' has one server twice; each is to be another", code="endpoint.urls-twice"
            )
        if self.urls and self.manage:
            raise Mistake(
                "the budget loads and unloads the model of one server; set 'manage' to false, or "
                "give each of 'urls' an endpoint of its own",
                code="endpoint.urls-managed",
            )

    def made_repeatable(self) -> Self:
        """The same, so that equal calls get equal replies; as it is where that cannot be had."""
        if self.backend not in _ONLY_FOR["repeatable"]:
            return self
        return self.model_copy(update={"repeatable": True, "slots": 1})

    def _refuse_stray_settings(self) -> None:
        for name, backends in _ONLY_FOR.items():
            # A default asks for nothing, though it was written down.
            asked_for = getattr(self, name) != type(self).model_fields[name].default
            if asked_for and self.backend not in backends:
                elsewhere = "" if self.url is None else ", or set it where that server is started"
                raise Mistake(
                    f"'{name}' is for backend {_either(backends)}, and would do nothing for "
                    f"'{self.backend}'; leave it out{elsewhere}",
                    code="endpoint.stray-setting",
                )


def _either(names: Iterable[str]) -> str:
    *others, last = (f"'{name}'" for name in sorted(names))
    return f"{', '.join(others)} or {last}" if others else last


def _name(url: str) -> str:
    """What traces call a server: no credentials, no `/v1`."""
    address = httpx.URL(url)
    return address.netloc.decode("ascii") + address.path.rstrip("/").removesuffix("/v1")


def _check_address(url: str) -> None:
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise Mistake(
            f"url '{url}' is not an address: {error}", code="endpoint.url-invalid"
        ) from error
    if address.scheme not in {"http", "https"} or not address.host:
        raise Mistake(
            f"url '{url}' must start with http:// or https:// and a host",
            code="endpoint.url-invalid",
        )
    if address.port is not None and address.port > 65535:
        raise Mistake(f"url '{url}': ports end at 65535", code="endpoint.url-invalid")
