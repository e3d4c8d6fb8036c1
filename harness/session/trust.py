"""Trust: what the files of a folder may do without asking, and which values stay secret.

A folder may come from someone else. Its settings may send a variable only to a host that the user
has allowed for it, and its code runs only if the user ran or allowed it. Python code and the
environment are the user's own, and so are the files beside the list of permissions,
`~/.config/harness/trust`, which has one entry a line:

    # To this host, whatever folder asks; and to this one where the settings of a folder ask.
    MY_KEY@llm.example.org
    MY_KEY@127.0.0.1:8000 /home/me/project
    # The code of this folder may run. A single file can stand here too.
    /home/me/project

A host without a port means its scheme's own port. `*` stands for any variable. If litellm chooses
the host too, name the provider: `*@replicate`.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from urllib.parse import unquote, unquote_plus, urlsplit

import httpx2

from harness.errors import ConfigurationInvalid, Notice, NotTrusted
from harness.files import shipped_directory
from harness.graph.fingerprint import is_own_module
from harness.inference import Endpoint, provider_of
from harness.inference.providers import APIS_WITH_ONE_KEY, MANAGED_APIS
from harness.inference.providers.registry import server_facts
from harness.inference.providers.server_host import ServerFacts
from harness.log import log_warning
from harness.memory import Place
from harness.trace.secrets import searchable, secrets_of

KEYS_VARIABLE = "HARNESS_ALLOW_KEYS"
"""Holds further allowances of keys, separated by commas: `MY_KEY@127.0.0.1:8000,…`."""
CODE_VARIABLE = "HARNESS_TRUST"
"""Holds further folders and files whose code may run, separated as in `PATH`."""
SETTINGS_FILE = "harness.toml"
"""The settings of a folder, which make it a project."""

_ANY = "*"
_DEFAULT_PORT = {"http": 80, "https": 443}

# Names of variables that tell litellm a provider's address.
_ADDRESS = re.compile(r".+_(BASE|URL|ENDPOINT)")


# --- keys ------------------------------------------------------------------------------------


def api_key_of(endpoint: Endpoint, environment: Mapping[str, str]) -> str | None:
    """The API key that calls to an endpoint carry; None if it names none.

    Raises:
        ConfigurationInvalid: A variable that the endpoint names is not set.
        NotTrusted: It may not be sent there.
    """
    for name in endpoint.variables:
        if not environment.get(name):
            raise ConfigurationInvalid(
                f"endpoint '{endpoint.tag}' takes its key from {name}, which is not set; export it",
                code="endpoint.key-not-set",
            )
    for refusal in not_allowed(endpoint, environment):
        raise refusal
    return None if endpoint.api_key_env is None else environment[endpoint.api_key_env]


async def facts_of(endpoint: Endpoint, environment: Mapping[str, str]) -> ServerFacts:
    """What a server reports of itself, asked with the endpoint's key; raises as `api_key_of`."""
    key = api_key_of(endpoint, environment)
    return await server_facts(endpoint.filled_in(environment), api_key=key)


def not_allowed(
    endpoint: Endpoint, environment: Mapping[str, str], *, url: str | None = None
) -> Iterator[NotTrusted]:
    """An error for each variable that calls to an endpoint would send though it is not allowed.

    The calls go to `url`, or else to the endpoint's own address.
    """
    folder = endpoint.written_in
    url = url or endpoint.url
    provider = provider_of(endpoint)
    if folder is None or (url is None and not provider.finds_keys):
        return
    trust = _read_trust(environment)
    variables = [*endpoint.variables]
    api = _api_of(endpoint)
    # litellm may send any credentials that it finds, unless the one key of the API is given.
    if provider.finds_keys and (endpoint.api_key_env is None or api not in APIS_WITH_ONE_KEY):
        variables.append(_ANY)
    # If litellm chooses the host, entries name the API, before a call and during it.
    hosts = [] if url is None else _spellings(url)
    if endpoint.url is None:
        hosts.append(api)
    for name in variables:
        if _is_usual(name, url, endpoint, environment) or _is_allowed(name, hosts, folder, trust):
            continue
        entry = f"{name}@{hosts[0]}"
        sent = f"any credentials that {provider.title} finds" if name == _ANY else name
        line = _export_line(KEYS_VARIABLE, entry, ",", environment)
        yield NotTrusted(
            f"endpoint {endpoint.tag!r} of the settings in {folder} would send {sent} to "
            f"{hosts[0]}, which you have not allowed; to allow it: {line}",
            entry=f"{entry} {folder}",
        )


def check_store(
    place: Place | None,
    *,
    written_in: Path | None,
    environment: Mapping[str, str],
    journal: Path | None = None,
) -> None:
    """Checks a place of passages that the settings of a folder, `written_in`, or a journal name.

    Raises:
        NotTrusted: Credentials and passages would go to a server that the user has not allowed.
        ConfigurationInvalid: They would go to a place on this machine, and the folder's code may
            not run here.
    """
    if place is None or isinstance(place, Path) or written_in is None:
        return
    source = journal or f"[memory] path of the settings in {written_in}"
    if not place.hosts:
        reason = why_not_trusted(written_in / SETTINGS_FILE, environment=environment)
        if reason is not None:
            raise ConfigurationInvalid(
                f"{source} would write passages to {place}, {reason}", code="trust.path-not-allowed"
            )
        return
    if _is_allowed(place.credential, place.hosts, written_in, _read_trust(environment)):
        return
    entry = f"{place.credential}@{place.hosts[-1]}"
    raise NotTrusted(
        f"{source} would send passages and credentials ({place.credential}) to {place.hosts[-1]}, "
        f"which you have not allowed; to allow it: "
        f"{_export_line(KEYS_VARIABLE, entry, ',', environment)}",
        entry=f"{entry} {written_in}",
    )


def _is_allowed(name: str, hosts: Collection[str], folder: Path, trust: _Trust) -> bool:
    """Whether an entry lets the settings of a folder send a variable to one of these hosts."""
    return any(
        (f"{variable}@{host}", source) in trust.keys
        for variable, host, source in product((name, _ANY), hosts, ("", str(folder)))
    )


def _api_of(endpoint: Endpoint) -> str:
    """The API that litellm reads from the model's name, such as `openai`; "" if it names none."""
    api, slash, _ = endpoint.model_id.partition("/")
    return api if slash else ""


def _spellings(url: str) -> list[str]:
    """A host as the user may write it; the first is the one to print."""
    address = httpx2.URL(url)  # the parser that also sends the call
    host = address.raw_host.decode("ascii").lower()
    host = f"[{host}]" if ":" in host else host
    default_port = _DEFAULT_PORT.get(address.scheme)
    port = default_port if address.port is None else address.port
    spelling = f"{host}:{port}"
    return [host, spelling] if port == default_port else [spelling]


def _is_usual(
    variable: str, url: str | None, endpoint: Endpoint, environment: Mapping[str, str]
) -> bool:
    """Whether an API expects this variable, and the call goes to that API.

    `*` is whatever litellm finds: expected if litellm chooses the host, or the model names this
    API. `url` is None before the call: then the API's name stands for the host.
    """
    api = _api_of(endpoint) if provider_of(endpoint).finds_keys else ""
    for name, (hosts, variables) in MANAGED_APIS.items():
        if variable == _ANY:
            is_expected = endpoint.url is None or api == name
        else:
            is_expected = variable in variables.split()
        goes_there = api in {"", name} if url is None else _is_host_of(hosts.split(), url)
        if is_expected and goes_there:
            return True
    if variable != _ANY or endpoint.url is not None or url is None:
        return False
    # litellm may also choose a proxy that the user's own environment names.
    proxies = [value for name, value in environment.items() if _ADDRESS.fullmatch(name)]
    return any(
        _spellings(url) == _spellings(proxy) for proxy in proxies if proxy.startswith("http")
    )


def _is_host_of(patterns: Iterable[str], url: str) -> bool:
    """Whether an address is of one of these hosts, in which `*` stands for a part of the name."""
    address = httpx2.URL(url)
    if address.scheme != "https" or address.port is not None:
        return False
    return any(
        re.fullmatch(re.escape(pattern).replace(r"\*", "[a-z0-9-]+"), address.host)
        for pattern in patterns
    )


# --- code ------------------------------------------------------------------------------------


def refusal_to_run(path: Path, *, environment: Mapping[str, str]) -> Notice | None:
    """Why a file's code may not run; None if it may."""
    reason = why_not_trusted(path, environment=environment)
    if reason is None:
        return None
    message = f"{path.resolve()} would be run, {reason}"
    return Notice(code="trust.code-not-allowed", message=message)


def why_not_trusted(path: Path, *, environment: Mapping[str, str]) -> str | None:
    """The end of a sentence: that a file is not allowed, and the remedy; None if it is trusted."""
    path = path.resolve()
    path_and_folders = [path, *path.parents]
    allowed = {*_read_trust(environment).paths, shipped_directory("rubrics").parent.resolve()}
    if not allowed.isdisjoint(path_and_folders):
        return None
    # The user started what runs in this process, so more code of the same projects may run.
    running = _running_files()
    # All files of one folder have one project.
    file_by_folder = {file.parent: file for file in running}
    projects = map(project_of, file_by_folder.values())
    if path in running or any(project in path_and_folders for project in projects):
        return None
    line = _export_line(CODE_VARIABLE, str(project_of(path)), os.pathsep, environment)
    return f"which you have not allowed; to allow it: {line}"


def project_of(file: Path) -> Path:
    """What to trust with a file: the nearest folder with settings, else the file's own folder.

    The home and the root are no projects, and a file in one of them is trusted alone: trust in the
    home would be trust in all of the user's folders.
    """
    file = file.resolve()
    folders = [folder for folder in file.parents if folder not in {Path.home(), Path("/")}]
    for folder in folders:
        if (folder / SETTINGS_FILE).is_file():
            return folder
    return file.parent if file.parent in folders else file


def _running_files() -> set[Path]:
    """The user's own files whose code runs in this process, without a command's script."""
    installed = sys.prefix + os.sep
    files = set()
    for module in tuple(sys.modules.values()):
        # Compared as a text, since there may be thousands of modules.
        file = str(getattr(module, "__file__", None) or "")
        is_outside = file.startswith(os.sep) and not file.startswith(installed)
        if is_outside and is_own_module(module):
            files.add(Path(file).resolve())
    return files


# --- what the user allows --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Trust:
    keys: set[tuple[str, str]]
    """Pairs of `NAME@HOST` and the folder whose settings may send it there; "" for any folder."""
    paths: set[Path]
    """Folders and files whose code may run."""


def own_directory(environment: Mapping[str, str]) -> Path | None:
    """The folder of the user's own configuration; None if the environment does not say."""
    configured = environment.get("XDG_CONFIG_HOME", "")
    if Path(configured).is_absolute():
        return Path(configured) / "harness"
    home = environment.get("HOME", "")
    return Path(home) / ".config/harness" if Path(home).is_absolute() else None


def remember(entry: str, environment: Mapping[str, str]) -> None:
    """Adds a line to the user's file of permissions."""
    directory = own_directory(environment)
    # A folder's name may hold a line end, followed by an entry that the user never allowed.
    if directory is None or "\n" in entry:
        return
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = os.open(directory / "trust", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(file, "ab") as lines:
        lines.write(os.fsencode(f"{entry}\n"))


def _read_trust(environment: Mapping[str, str]) -> _Trust:
    directory = own_directory(environment)
    try:
        # Decoded by the locale, as paths are: under ASCII, a path that was read as UTF-8 could not
        # be encoded again.
        text = "" if directory is None else os.fsdecode((directory / "trust").read_bytes())
    except OSError:
        text = ""  # a missing file allows nothing
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    lines += environment.get(KEYS_VARIABLE, "").split(",")
    lines += environment.get(CODE_VARIABLE, "").split(os.pathsep)
    trust = _Trust(keys=set(), paths=set())
    for line in lines:
        if line.startswith("/"):
            trust.paths.add(Path(line).resolve())
        else:
            entry, _, folder = line.strip().partition(" ")
            name, _, host = entry.partition("@")
            trust.keys.add((f"{name}@{host.lower()}", folder.strip()))
    return trust


def _export_line(variable: str, entry: str, separator: str, environment: Mapping[str, str]) -> str:
    """The shell line that allows an entry until the shell ends."""
    value = environment.get(variable)
    return f"export {variable}={shlex.quote(f'{value}{separator}{entry}' if value else entry)}"


# --- secrets ---------------------------------------------------------------------------------


_SECRET_PARAMETER = re.compile(
    r"key|token|secret|passw|auth|signature|credential|^(?:x-.*-)?sig$|^code$", re.IGNORECASE
)


def warn_of_secrets(
    endpoints: Iterable[Endpoint], *, environment: Mapping[str, str], named: Collection[str]
) -> None:
    """Warns of secret variables that may be misspelled, or whose values texts keep."""
    for name in named:
        if name not in environment:
            log_warning(
                "a variable of [trace] secrets is not set",
                code="trace.secret-not-set",
                variable=name,
            )
    secrets = _secret_variables(endpoints, environment, named)
    common = sorted(name for name, secret in secrets.items() if secret and not searchable(secret))
    if common:
        log_warning(
            f"{', '.join(common)}: too short or too common a value to be looked for in texts, which"
            " keep it; if it is a real secret, take a longer one",
            code="trace.secret-common",
        )


def known_secrets(
    endpoints: Iterable[Endpoint], *, environment: Mapping[str, str], named: Collection[str]
) -> frozenset[str]:
    """The values to keep out of everything that is written; `named` are `[trace] secrets`."""
    endpoints = tuple(endpoints)
    values = set(_secret_variables(endpoints, environment, named).values())
    for endpoint in endpoints:
        pairs = (*endpoint.headers.items(), *endpoint.query.items())
        values.update(value for name, value in pairs if _SECRET_PARAMETER.search(name))
        for replica in endpoint.replicas.values():
            if replica.url is not None:
                values.update(_credentials(replica.url))
    return frozenset(values)


def _secret_variables(
    endpoints: Iterable[Endpoint], environment: Mapping[str, str], named: Collection[str]
) -> dict[str, str]:
    """Variable → its value, for all variables that are named or look like secrets."""
    # litellm reads the keys of APIs from variables that no endpoint names.
    keys = {name for endpoint in endpoints for name in endpoint.variables}
    return secrets_of(environment, named=keys.union(named))


def _credentials(url: str) -> set[str]:
    """The credentials in an address: as written, decoded, and as a client sends them."""
    address = urlsplit(url)
    texts = set()
    if address.username is not None:
        user, password = address.username, address.password
        # A user's name beside a password is not secret; without one, it may be a token.
        secret = user if password is None else password
        # As the header `Authorization` has it.
        sent = b64encode(f"{unquote(user)}:{unquote(password or '')}".encode()).decode()
        texts |= {secret, unquote(secret), sent, sent.rstrip("=")}
    for parameter in address.query.split("&"):
        name, _, value = parameter.partition("=")
        if _SECRET_PARAMETER.search(unquote(name)):
            texts |= {value, unquote(value), unquote_plus(value)}
    return texts - {""}
