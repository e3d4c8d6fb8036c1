"""What the calls of nodes use beside their code and inputs: models, rubrics and settings.

The record of a call maps the name of each use to a digest. The names are `model:ROLE` for the model
that plays a role, `fallback:ROLE:TAG` for an endpoint that answered in its place, `place:ROLE:TAG`
for the addresses of an endpoint's servers, `reply:ROLE:TAG` for the model that a server named,
`rubric:NAME`, `prompts:NAME` for the prompts of that rubric, `seed`, `candidates`, `embedder` and
`reranker`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import orjson

from harness.errors import ConfigurationInvalid, HarnessError
from harness.graph import Earlier
from harness.graph.state import Use
from harness.graph.values import digest
from harness.inference import ChatRequest, Completion, Endpoint, ModelMetadata, server_address
from harness.inference.model_names import parse_model_name
from harness.inference.reply_store import reply_settings
from harness.inference.request import Request
from harness.rubric import Rubric, load_rubric
from harness.session.models import known_endpoints
from harness.session.roles import Roles
from harness.session.separation import model_reported_by
from harness.session.settings import OFFLINE_EMBEDDERS, Settings
from harness.session.trust import facts_of, refusal_to_run

# Digest of a setting without a value, and of a use that cannot be read.
_NONE = "none"
_UNKNOWN = "unknown"


class Surroundings:
    """The uses of one run, or of the rehearsal of a run, as settings, files and servers have them.

    Of a run with backends in code, `settings` are those of `with_backends`. A use that was read is
    not read again. Runs with the same settings may share the uses that they read: `facts` maps a
    use's name to the use, or to None if it cannot be read.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        environment: Mapping[str, str] = os.environ,
        facts: dict[str, Use | None] | None = None,
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._endpoints = known_endpoints(settings)
        self._roles = Roles(self._endpoints, settings.roles)
        self._facts = {} if facts is None else facts
        # Endpoint's tag → the model that its server reports, for models that seem to have moved.
        self._reported_models: dict[str, ModelMetadata] = {}
        # Uses of an earlier call, as sorted pairs → what changed since then, in words.
        self._changes: dict[tuple[tuple[str, str], ...], Sequence[str]] = {}

    # --- what a call uses -----------------------------------------------------------------------

    def uses_of_call(self, request: Request) -> dict[str, Use]:
        """The uses of a model call that are known before it is answered."""
        names = [f"model:{request.role}", f"place:{request.role}:{request.model}"]
        if isinstance(request, ChatRequest) and request.temperature and request.seed is None:
            names.append("seed")
        return self.uses_named(*names)

    def uses_of_reply(self, request: ChatRequest, reply: Completion) -> dict[str, Use]:
        """The uses that a reply adds: its model, and the endpoint if a fallback answered."""
        tag = reply.endpoint or request.model
        uses = {f"reply:{request.role}:{tag}": Use(reply.model_id)}
        if reply.endpoint:
            uses |= self.uses_named(f"fallback:{request.role}:{tag}", f"place:{request.role}:{tag}")
        return uses

    def uses_of_rubric(self, rubric: object, *, revises: bool) -> dict[str, Use]:
        """The uses of a rubric; a loop that `revises` also uses its prompts and the candidates."""
        names = []
        # A `Rubric` that is made in code is a part of the node's code.
        if isinstance(rubric, str | Path):
            names = [f"rubric:{rubric}", f"prompts:{rubric}"] if revises else [f"rubric:{rubric}"]
        for name in names:
            self._facts.pop(name, None)  # the file may have been edited since it was read
        return self.uses_named(*names, *(["candidates"] if revises else []))

    def uses_named(self, *names: str) -> dict[str, Use]:
        """Name → use, for the record of a call; without addresses, there is no `place:…`."""
        uses = {}
        for name in names:
            use = self._use_now(name)
            if use is not None:
                uses[name] = use
            elif not name.startswith("place:"):
                uses[name] = Use(_UNKNOWN)  # which equals no later digest
        return uses

    # --- what changed since an earlier call -----------------------------------------------------

    def change_since(
        self, uses: Mapping[str, str], parts: Mapping[str, Mapping[str, str]]
    ) -> Sequence[str]:
        """See `harness.graph.reuse.Changes`."""
        key = tuple(sorted(uses.items()))
        if key not in self._changes:
            changes = (self._change(name, uses, parts) for name in uses)
            self._changes[key] = [*filter(None, changes)]
        return self._changes[key]

    def _change(
        self, name: str, uses: Mapping[str, str], parts: Mapping[str, Mapping[str, str]]
    ) -> str | None:
        kind, _, role, tag = _read_name(name)
        if kind == "reply":
            # A reply is valid whichever model gave it, if the role has the same definition.
            return None
        if kind == "place":
            return self._move(role, tag, uses)
        current = self._use_now(name)
        if current is None:
            return f"{_in_words(name)} is not known now"
        if current.digest == uses[name]:
            return None
        differences = _differences(parts.get(uses[name], {}), current.parts)
        return f"{_in_words(name)} changed" + (f" ({differences})" if differences else "")

    def _move(self, role: str, tag: str, uses: Mapping[str, str]) -> str | None:
        """The change if a role's model has another address now; None if it is the same model."""
        place = f"place:{role}:{tag}"
        current = self._use_now(place)
        # 1. A model did not move if it has no address now, or still has one of its addresses.
        if current is None:
            return None
        if not set(uses[place].split(",")).isdisjoint(current.digest.split(",")):
            return None
        # 2. Another address is no change if the server there reports the model that answered.
        model = uses.get(f"reply:{role}:{tag}", "")
        for candidate in self._successors(role, tag):
            reported = self._reported_models.get(candidate)
            if reported is not None and _reports(reported, model):
                return None
        return (
            f"its model for '{role}' has another address, and the server there does not report "
            f"the model that answered ({model or 'unknown'})"
        )

    async def beside(self, earlier: Earlier) -> Self:
        """Itself, after asking the servers of models that moved since these outputs were made."""
        moved: dict[str, None] = {}  # tags in order, each once
        for uses in earlier.uses:
            for name in uses:
                kind, _, role, tag = _read_name(name)
                if kind == "place" and self._move(role, tag, uses) is not None:
                    moved |= dict.fromkeys(self._successors(role, tag))
        # Replicas serve one model, so the first answers for all.
        servers = [next(iter(self._endpoints[tag].replicas.values())) for tag in moved]
        answers = await asyncio.gather(*map(self._reported_model, servers))
        for tag, metadata in zip(moved, answers, strict=True):
            if metadata is not None:
                self._reported_models[tag] = metadata
        return self

    async def _reported_model(self, endpoint: Endpoint) -> ModelMetadata | None:
        """The model that a server reports; None if it reports none."""
        metadata = await model_reported_by(endpoint, self._environment)
        if metadata is not None and (metadata.path or metadata.names):
            return metadata
        try:
            facts = await facts_of(endpoint, self._environment)
        except ConfigurationInvalid:
            return metadata
        # A server that only lists its models has the one that it is asked for by name.
        if endpoint.model_id in (facts.models or ()):
            return ModelMetadata(names=(endpoint.model_id,))
        return metadata

    # --- what is used now -----------------------------------------------------------------------

    def _use_now(self, name: str) -> Use | None:
        """The use of a name now; None if there is none, or it cannot be read."""
        # Nodes read rubrics in threads, and another one may drop a fact at any time.
        with suppress(KeyError):
            return self._facts[name]
        use = None
        with suppress(HarnessError, OSError):
            use = self._read(name)
        self._facts[name] = use
        return use

    def _read(self, name: str) -> Use | None:  # noqa: PLR0911 - one for each kind
        kind, subject, role, tag = _read_name(name)
        match kind:
            case "model":
                return self._role_use(subject)
            case "fallback":
                return self._endpoint_use(tag) if tag in self._fallbacks(role) else None
            case "place":
                return self._place_use(role, tag)
            case "rubric":
                return Use(self._rubric(subject).sha256[:16])
            case "prompts":
                definition = self._rubric(subject).model_dump_json(exclude={"id"})
                return Use(_short_digest(definition.encode()))
            case "seed":
                seed = self._settings.seed
                return Use(_NONE if seed is None else str(seed))
            case "candidates":
                evaluation = self._settings.evaluation
                return Use(f"{evaluation.candidates} {evaluation.finalists}")
            case "embedder":
                embedder = self._settings.memory.embedder
                is_offline = embedder in OFFLINE_EMBEDDERS
                return Use(embedder) if is_offline else self._endpoint_use(embedder)
            case "reranker":
                reranker = self._settings.memory.rerank
                return Use(_NONE) if reranker is None else self._endpoint_use(reranker)
            case _:
                return None

    def _fallbacks(self, role: str) -> frozenset[str]:
        """Tags of the endpoints that stand in for those of a role."""
        return frozenset(
            fallback for tag in self._roles.tags(role) for fallback in self._endpoints[tag].fallback
        )

    def _successors(self, role: str, tag: str) -> tuple[str, ...]:
        """The endpoints that may now have the model that a tag had in an earlier call of a role."""
        players = self._roles.tags(role)
        if tag in players or tag in self._fallbacks(role):
            return (tag,)
        # The endpoint may have got another tag.
        return players

    def _place_use(self, role: str, tag: str) -> Use | None:
        """The digests of the addresses of all servers that may have the model."""
        addresses = [
            _short_digest(server_address(replica.url).encode())
            for successor in self._successors(role, tag)
            for replica in self._endpoints[successor].replicas.values()
            if replica.url is not None
        ]
        return Use(",".join(sorted(addresses))) if addresses else None

    def _role_use(self, role: str) -> Use | None:
        members = [self._endpoint_use(tag) for tag in self._roles.tags(role)]
        if len(members) < 2:
            return members[0] if members else None
        # A pool counts as a whole, whichever member was drawn.
        combine = self._settings.evaluation.panel
        data = orjson.dumps([combine, *sorted(member.digest for member in members)])
        names = sorted(str(member.parts.get("model_id")) for member in members)
        return Use(_short_digest(data), {"pool": " ".join(names), "panel": str(combine or _NONE)})

    def _endpoint_use(self, tag: str) -> Use:
        # The digest is of the settings that change replies, so that a renamed endpoint is equal.
        settings = reply_settings(self._endpoints[tag])
        parts = {"endpoint": tag}
        for name, value in settings.items():
            parts[name] = value if isinstance(value, str) else orjson.dumps(value).decode()
        return Use(_short_digest(orjson.dumps(settings, option=orjson.OPT_SORT_KEYS)), parts)

    def _rubric(self, name: str) -> Rubric:
        return load_rubric(
            name,
            directory=self._settings.rubrics,
            refuse=lambda path: refusal_to_run(path, environment=self._environment),
        )


def _read_name(name: str) -> tuple[str, str, str, str]:
    """Kind, subject, role and tag of a use; role and tag only for fallback, place, reply."""
    kind, _, subject = name.partition(":")
    role, _, tag = subject.partition(":")
    return kind, subject, role, tag


def _in_words(name: str) -> str:
    """A use, as the subject of a sentence."""
    kind, subject, role, tag = _read_name(name)
    sentences = {
        "model": f"its model for '{subject}'",
        "fallback": f"'{tag}', which answered for '{role}',",
        "rubric": f"rubric '{subject}'",
        "prompts": f"a prompt of rubric '{subject}'",
        "seed": "the seed of the run",
        "candidates": "candidates or finalists under [evaluation]",
        "embedder": "the model that embeds passages",
        "reranker": "the model that ranks passages",
    }
    return sentences.get(kind, f"'{name}'")


def _differences(earlier: Mapping[str, str], current: Mapping[str, str]) -> str:
    """The properties that differ, in words; empty if those of the earlier call are not recorded."""
    if not earlier:
        return ""
    differing = [part for part in {**current, **earlier} if current.get(part) != earlier.get(part)]
    if len(differing) > 1 and "endpoint" in differing:
        differing.remove("endpoint")  # its tag alone would not have changed the digest
    return ", ".join(
        f"{part} was {earlier.get(part, _NONE)}, is {current.get(part, _NONE)}"
        for part in differing
    )


def _reports(served: ModelMetadata, model: str) -> bool:
    """Whether a server's report names this model."""
    path = served.path or ""
    names = {*served.names, path, Path(path).name} - {""}
    if model in names:
        return True
    # Names spelled differently match if they parse to the same family, size and quantization.
    parsed = parse_model_name(model)
    return bool(parsed.words) and parsed in map(parse_model_name, names)


def _short_digest(data: bytes) -> str:
    return digest(data)[:16]
