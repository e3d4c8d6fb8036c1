"""What calls of nodes use beside their code and inputs: models, rubrics and settings, as they are.

Each has a name in the record of a call: `model:ROLE` what plays a role, `fallback:ROLE:TAG` an
endpoint that answered in its place, `place:ROLE:TAG` the addresses of an endpoint's servers,
`reply:ROLE:TAG` the model that a server named, `rubric:NAME`, `prompts:NAME` (of that rubric),
`seed`, `candidates`, `embedder` and `reranker`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import orjson

from harness.errors import ConfigurationInvalid, HarnessError
from harness.graph import Earlier
from harness.graph.state import Use
from harness.graph.values import digest
from harness.inference import (
    Backend,
    ChatRequest,
    Completion,
    Endpoint,
    ModelMetadata,
    server_address,
)
from harness.inference.model_names import parse_model_name
from harness.inference.reply_store import reply_settings
from harness.inference.request import Request
from harness.rubric import load_rubric
from harness.session.models import known_endpoints
from harness.session.roles import Roles, with_backends
from harness.session.separation import word_on
from harness.session.settings import OFFLINE_EMBEDDERS, Settings
from harness.session.trust import facts_of, refusal_to_run

_NONE, _UNKNOWN = "none", "unknown"


class Surroundings:
    """The models, rubrics and settings of one run, or of one that is rehearsed.

    Runs with the same settings may share `facts`, the uses by name.
    """

    def __init__(
        self,
        settings: Settings,
        backends: Mapping[str, Backend] | None = None,
        *,
        environment: Mapping[str, str] = os.environ,
        facts: dict[str, Use | None] | None = None,
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._endpoints = known_endpoints(settings, backends)
        self._roles = Roles(self._endpoints, with_backends(settings.roles, backends or {}))
        self._uses_now = {} if facts is None else facts
        self._served: dict[str, ModelMetadata] = {}
        self._changes: dict[tuple[tuple[str, str], ...], str | None] = {}

    # --- noted by calls -------------------------------------------------------------------------

    def of_call(self, request: Request) -> dict[str, Use]:
        """What a call of a model uses, known before it is answered."""
        names = [f"model:{request.role}", f"place:{request.role}:{request.model}"]
        if isinstance(request, ChatRequest) and request.temperature and request.seed is None:
            names.append("seed")
        return self.noted(*names)

    def of_reply(self, request: ChatRequest, reply: Completion) -> dict[str, Use]:
        """What its reply adds: the model's name, and the endpoint if another one answered."""
        tag = reply.endpoint or request.model
        names = [f"{kind}:{request.role}:{tag}" for kind in ("fallback", "place")]
        uses = {f"reply:{request.role}:{tag}": Use(reply.model_id)}
        return uses | (self.noted(*names) if reply.endpoint else {})

    def of_rubric(self, rubric: object, *, whole: bool) -> dict[str, Use]:
        """A rubric that is named; `whole` counts its prompts for writing and the candidates too."""
        names = []
        # One made in code is a part of the node's code.
        if isinstance(rubric, str | Path):
            names = [f"rubric:{rubric}", *([f"prompts:{rubric}"] if whole else [])]
        for name in names:
            self._uses_now.pop(name, None)  # the file may have been edited meanwhile
        return self.noted(*names, *(["candidates"] if whole else []))

    def noted(self, *names: str) -> dict[str, Use]:
        """What has these names, to be noted by a call; in doubt as unknown, which is no match."""
        uses = {name: self._use_now(name) for name in names}
        return {
            name: use or Use(_UNKNOWN)
            for name, use in uses.items()
            if use is not None or not name.startswith("place:")
        }

    # --- compared -------------------------------------------------------------------------------

    def change_since(
        self, uses: Mapping[str, str], parts: Mapping[str, Mapping[str, str]]
    ) -> str | None:
        """See `harness.graph.reuse.Changes`."""
        key = tuple(sorted(uses.items()))
        if key not in self._changes:
            changes = (self._change(name, uses, parts) for name in uses)
            self._changes[key] = next(filter(None, changes), None)
        return self._changes[key]

    def _change(
        self, name: str, uses: Mapping[str, str], parts: Mapping[str, Mapping[str, str]]
    ) -> str | None:
        kind, _, rest = name.partition(":")
        role, _, tag = rest.partition(":")
        if kind == "reply":
            return None  # whichever answered is valid, if it is of the role's definition
        if kind == "place":
            return self._move(role, tag, uses)
        before, current = uses[name], self._use_now(name)
        if current is not None and current.digest == before:
            return None
        subject = {
            "model": f"its model for '{rest}'",
            "fallback": f"'{tag}', which answered for '{role}',",
            "rubric": f"rubric '{rest}'",
            "prompts": f"a prompt of rubric '{rest}'",
            "seed": "the seed of the run",
            "candidates": "candidates or finalists under [evaluation]",
            "embedder": "the model that embeds passages",
            "reranker": "the model that ranks passages",
        }.get(kind, f"'{name}'")
        if current is None:
            return f"{subject} is not known now"
        earlier = parts.get(before, {})
        differing = [
            part
            for part in {**current.parts, **earlier}
            if current.parts.get(part) != earlier.get(part)
        ]
        was = ", ".join(
            f"{part} was {earlier.get(part, _NONE)}, is {current.parts.get(part, _NONE)}"
            for part in differing
            if part != "endpoint" or len(differing) == 1
        )
        return f"{subject} changed" + (f" ({was})" if earlier and was else "")

    def _move(self, role: str, tag: str, uses: Mapping[str, str]) -> str | None:
        """Whether a model at another address is another model, or may be."""
        place = f"place:{role}:{tag}"
        current, before = self._use_now(place), uses[place].split(",")
        # 1. Without an address now, or with one of those before, it has not moved.
        if current is None or not {*before}.isdisjoint(current.digest.split(",")):
            return None
        # 2. Another address is no change if the server there reports the model that answered.
        model = uses.get(f"reply:{role}:{tag}", "")
        served = [self._served.get(member) for member in self._answering(role, tag)]
        if any(metadata is not None and _reports(metadata, model) for metadata in served):
            return None
        return (
            f"its model for '{role}' has another address, and the server there does not report "
            f"the model that answered ({model or 'unknown'})"
        )

    async def beside(self, earlier: Earlier) -> Self:
        """Itself, once the servers of moved models were asked which models they have."""
        tags: dict[str, None] = {}
        for uses in earlier.uses:
            for kind, role, tag in (name.split(":", 2) for name in uses if name.count(":") > 1):
                if kind == "place" and self._move(role, tag, uses) is not None:
                    tags |= dict.fromkeys(self._answering(role, tag))
        # Replicas serve one model: the first answers for all.
        firsts = (next(iter(self._endpoints[tag].replicas.values())) for tag in tags)
        answers = await asyncio.gather(*(self._reported(first) for first in firsts))
        self._served |= {tag: answer for tag, answer in zip(tags, answers, strict=True) if answer}
        return self

    async def _reported(self, endpoint: Endpoint) -> ModelMetadata | None:
        """The model that a server reports; if it only lists names, the one it is asked by."""
        metadata = await word_on(endpoint, self._environment)
        if metadata is not None and (metadata.path or metadata.names):
            return metadata
        try:
            listed = (await facts_of(endpoint, self._environment)).models or ()
        except ConfigurationInvalid:
            return metadata
        return (
            ModelMetadata(names=(endpoint.model_id,)) if endpoint.model_id in listed else metadata
        )

    # --- as they are ----------------------------------------------------------------------------

    def _use_now(self, name: str) -> Use | None:
        """What has a name now; None if nothing has, or it cannot be read."""
        if name not in self._uses_now:
            try:
                self._uses_now[name] = self._read(name)
            except (HarnessError, OSError):
                self._uses_now[name] = None
        return self._uses_now[name]

    def _read(self, name: str) -> Use | None:  # noqa: PLR0911 - one for each kind
        kind, _, rest = name.partition(":")
        role, _, tag = rest.partition(":")
        match kind:
            case "model":
                return self._role_use(rest)
            case "fallback":
                return self._endpoint_use(tag) if tag in self._stand_ins(role) else None
            case "place":
                addresses = [
                    _short(server_address(url).encode())
                    for endpoint in map(self._endpoints.__getitem__, self._answering(role, tag))
                    for url in endpoint.urls or filter(None, [endpoint.url])
                ]
                return Use(",".join(sorted(addresses))) if addresses else None
            case "rubric" | "prompts":
                return self._rubric_use(kind, rest)
            case "seed":
                seed = self._settings.seed
                return Use(_NONE if seed is None else str(seed))
            case "candidates":
                chosen = self._settings.evaluation
                return Use(f"{chosen.candidates} {chosen.finalists}")
            case "embedder":
                embedder = self._settings.memory.embedder
                return (
                    Use(embedder) if embedder in OFFLINE_EMBEDDERS else self._endpoint_use(embedder)
                )
            case "reranker":
                reranker = self._settings.memory.rerank
                return Use(_NONE) if reranker is None else self._endpoint_use(reranker)
            case _:
                return None

    def _stand_ins(self, role: str) -> frozenset[str]:
        return frozenset(
            fallback for tag in self._roles.tags(role) for fallback in self._endpoints[tag].fallback
        )

    def _answering(self, role: str, tag: str) -> tuple[str, ...]:
        # One that does not play the role any more may have a new name.
        players = self._roles.tags(role)
        return (tag,) if tag in {*players, *self._stand_ins(role)} else players

    def _role_use(self, role: str) -> Use | None:
        members = [self._endpoint_use(tag) for tag in self._roles.tags(role)]
        if len(members) < 2:
            return members[0] if members else None
        # A pool counts as a whole, whichever member was drawn.
        combine = self._settings.evaluation.panel
        data = orjson.dumps([combine, *sorted(member.digest for member in members)])
        names = sorted(str(member.parts.get("model_id")) for member in members)
        return Use(_short(data), {"pool": " ".join(names), "panel": str(combine or _NONE)})

    def _endpoint_use(self, tag: str) -> Use:
        endpoint = self._endpoints[tag]
        # By the settings that change replies, not by the endpoint's name.
        settings = reply_settings(endpoint)
        parts = {name: _as_text(value) for name, value in settings.items()}
        return Use(
            _short(orjson.dumps(settings, option=orjson.OPT_SORT_KEYS)), {"endpoint": tag, **parts}
        )

    def _rubric_use(self, kind: str, name: str) -> Use:
        rubric = load_rubric(
            name,
            directory=self._settings.rubrics,
            refuse=lambda path: refusal_to_run(path, environment=self._environment),
        )
        if kind == "rubric":
            return Use(rubric.sha256[:16])
        return Use(_short(rubric.model_dump_json(exclude={"id"}).encode()))


def _reports(served: ModelMetadata, model: str) -> bool:
    """Whether a server has this model, by what it reports."""
    path = served.path or ""
    names = {*served.names, path, Path(path).name} - {""}
    # Names spelled differently match if they parse to the same family, size and quantization.
    # `text` is the spelling, and is blanked.
    parsed = replace(parse_model_name(model), text="")
    reported = (replace(parse_model_name(name), text="") for name in names)
    return model in names or (bool(parsed.words) and parsed in reported)


def _short(data: bytes) -> str:
    return digest(data)[:16]


def _as_text(value: Any) -> str:  # noqa: ANN401 - JSON
    return value if isinstance(value, str) else orjson.dumps(value).decode()
