"""What a folder's settings may send, and to whom; and which of its code may run."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loopback import Loopback
from session_runs import refused

from harness.errors import ConfigurationInvalid, NotTrusted
from harness.inference import ChatRequest, Endpoint, Message
from harness.session import load_settings, open_shim
from harness.session.endpoint_check import list_models
from harness.session.models import open_endpoint, open_models
from harness.session.trust import (
    api_key_of,
    check_store,
    known_secrets,
    not_allowed,
    project_of,
    refusal_to_run,
    remember,
)
from harness.trace import Tracer, monotonic

FOLDER = Path("/cloned")
SECRETS = {"MY_KEY": "sk-mine", "OPENAI_API_KEY": "sk-openai", "AWS_SECRET_ACCESS_KEY": "sk-aws"}


def endpoint(url, key="MY_KEY", **fields):
    """As a folder's settings have it."""
    fields = {"tag": "e", "url": url, "api_key_env": key, "written_in": FOLDER, **fields}
    return Endpoint(**fields)


def key(url, named="MY_KEY", *, allowed="", **fields):
    environment = {**SECRETS, "HARNESS_ALLOW_KEYS": allowed}
    return api_key_of(endpoint(url, named, **fields), environment)


# --- where a key goes ------------------------------------------------------------------------

NAMES = st.sampled_from([*SECRETS, "ANTHROPIC_API_KEY"])
LOCAL = ["127.0.0.1", "[::1]", "[2001:DB8::1]", "localhost"]
LIKE_IT = ["api.openai.com.evil.example", "api-openai.com", "apixopenai.com", "api.openai.com."]
HOSTS = st.sampled_from(["api.openai.com", "API.OpenAI.com", "evil.example", *LIKE_IT, *LOCAL])
PORTS = st.sampled_from(["", ":443", ":80", ":8000", ":0"])
USERS = st.sampled_from(["", "me:pw@", "api.openai.com@", "api.openai.com:443@", "127.0.0.1\\@"])
TAILS = st.sampled_from(["", "/v1", "/v1?x=@api.openai.com", "#@api.openai.com", "/@evil.example"])
SCHEMES = st.sampled_from(["http", "https", "HTTPS"])
URLS = st.builds("{}://{}{}{}{}".format, SCHEMES, USERS, HOSTS, PORTS, TAILS)
ALLOWANCES = st.builds("{}@{}{}".format, NAMES, HOSTS, PORTS)
USUAL = {("OPENAI_API_KEY", "https", "api.openai.com", 443)}


def leads_to(url):
    """Where a call goes, by another parser than the client's."""
    address = urlsplit(url.replace("\\", ""))
    host = address.hostname or ""
    port = address.port if address.port is not None else {"http": 80, "https": 443}[address.scheme]
    return address.scheme, str(ip_address(host)) if ":" in host else host, port


@given(URLS, NAMES, st.lists(ALLOWANCES))
def test_no_variable_leaves_for_a_host_that_was_not_allowed(url, name, allowances):
    environment = {**SECRETS, "ANTHROPIC_API_KEY": "a", "HARNESS_ALLOW_KEYS": ",".join(allowances)}
    try:
        sent = api_key_of(endpoint(url, name), environment)
    except (ValueError, NotTrusted):
        return
    assert sent == environment[name]
    scheme, host, port = leads_to(url)
    is_own = {"http": 80, "https": 443}[scheme] == port
    meant = {
        (allowed, *leads_to(f"{scheme}://{place}")[1:])
        for allowed, _, place in (allowance.partition("@") for allowance in allowances)
        if is_own or urlsplit(f"//{place}").port is not None
    }
    assert (name, host, port) in meant or (name, scheme, host, port) in USUAL


def test_what_is_refused_says_what_allows_it():
    with refused("trust.key-not-allowed") as caught:
        key("http://[::1]:8000/v1")
    assert caught.value.entry == "MY_KEY@[::1]:8000 /cloned"
    line = str(caught.value).partition("export HARNESS_ALLOW_KEYS=")[2]
    assert key("http://[::1]:8000/v1", allowed=line.strip("'")) == "sk-mine"


SAVED = "http://127.0.0.1:8000/v1"
FOUND = {"backend": "litellm", "model_id": "openai/gpt", "api_key_env": None}
OPENAI = {"url": "https://api.openai.com/v1", "api_key_env": "OPENAI_API_KEY"}
CASES = {
    "no key": ({"api_key_env": None}, True),
    "a provider's own": (OPENAI, True),
    "in clear": ({**OPENAI, "url": "http://api.openai.com/v1"}, False),
    "another's": ({**OPENAI, "url": "https://api.groq.com/v1"}, False),
    "the user's settings": ({"written_in": None}, True),
    "what litellm finds, elsewhere": (FOUND, False),
    "what litellm finds, at home": ({**FOUND, "url": None}, True),
    "one provider's at another": ({**FOUND, "url": "https://api.groq.com/openai/v1"}, False),
    "by litellm": ({**FOUND, **OPENAI, "url": None}, True),
    "by litellm, elsewhere": ({**FOUND, "api_key_env": "OPENAI_API_KEY"}, False),
    "by litellm, another's": ({**FOUND, "api_key_env": "MY_KEY", "url": None}, False),
    "a host in a name": ({**FOUND, "model_id": "oobabooga/http://h", "url": None}, False),
    "litellm guesses": ({**FOUND, "model_id": "claude-x", "url": None}, True),
}


@pytest.mark.parametrize("case", CASES)
def test_what_everybody_sends_there_needs_no_allowance(case):
    fields, ok = CASES[case]
    assert (not list(not_allowed(endpoint(**{"url": SAVED, **fields}), SECRETS))) is ok


def test_a_provider_can_be_allowed_by_its_name():
    one = endpoint(None, None, backend="litellm", model_id="replicate/x")
    environment = {"HARNESS_ALLOW_KEYS": "*@replicate"}
    for url in (None, "https://api.replicate.com/v1/models/x"):
        assert [error.entry for error in not_allowed(one, {}, url=url)]
        assert not list(not_allowed(one, environment, url=url))


@pytest.mark.parametrize(
    ("model_id", "url", "ok"),
    [
        ("openai/gpt", "https://api.openai.com/v1/chat/completions", True),
        ("huggingface/https://evil.example/x", "https://evil.example/x", False),
        ("baseten/x.evil.example/", "https://model-x.evil.example/.api.baseten.co/predict", False),
        ("bedrock/m", "https://bedrock-runtime.eu-west-1.amazonaws.com/model/m/converse", True),
        ("bedrock/m", "https://bedrock-runtime.evil.s3.amazonaws.com/m", False),
        ("azure/m", "https://mine.openai.azure.com/openai/deployments/m", True),
    ],
)
def test_litellm_reaches_only_providers_and_what_the_users_variables_name(model_id, url, ok):
    one = endpoint(None, None, backend="litellm", model_id=model_id)
    environment = {**SECRETS, "AZURE_API_BASE": "https://mine.openai.azure.com"}
    assert (not list(not_allowed(one, environment, url=url))) is ok


def test_an_allowance_can_be_for_one_folder(tmp_path):
    environment = {**SECRETS, "XDG_CONFIG_HOME": str(tmp_path)}
    remember(f"MY_KEY@127.0.0.1:8000 {FOLDER}", environment)
    assert api_key_of(endpoint(SAVED), environment) == "sk-mine"
    with refused("trust.key-not-allowed"):
        api_key_of(endpoint(SAVED, written_in=Path("/cloned/other")), environment)
    assert (tmp_path / "harness/trust").stat().st_mode & 0o777 == 0o600


def test_a_folders_name_cannot_add_a_line(tmp_path):
    environment = {**SECRETS, "XDG_CONFIG_HOME": str(tmp_path)}
    remember("MY_KEY@evil.example /a\n*@127.0.0.1:8000", environment)
    with refused("trust.key-not-allowed"):
        api_key_of(endpoint(SAVED), environment)


# --- through the doors -----------------------------------------------------------------------

CLONED = """\
[endpoints.e]
url = "{url}"
backend = "{backend}"
api_key_env = "AWS_SECRET_ACCESS_KEY"
"""


def cloned(folder, url, backend="vllm", more=""):
    (folder / "harness.toml").write_text(CLONED.format(url=url, backend=backend) + more)


@pytest.mark.parametrize("backend", ["vllm", "ollama", "openai", "litellm"])
def test_a_cloned_folder_gets_no_key_from_any_door(tmp_path, monkeypatch, backend):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sk-aws")
    environment = {"AWS_SECRET_ACCESS_KEY": "sk-aws"}

    async def run():
        async with Loopback([]) as server:
            cloned(tmp_path, server.url, backend)
            settings = load_settings(environment=environment)
            one = settings.endpoints["e"]
            seen = await list_models(settings.endpoints, environment=environment)
            with refused("trust.key-not-allowed"):
                open_endpoint(one, environment=environment, cached=False, clock=monotonic)
            with refused("trust.key-not-allowed"):
                async with open_shim("e"):
                    pass
            async with open_models(
                settings.endpoints, settings=settings, environment=environment, required=(),
                tracer=Tracer(),
            ) as opened:  # fmt: skip
                with refused("trust.key-not-allowed"):
                    await opened.client.chat(
                        ChatRequest(model="e", messages=(Message("user", "?"),))
                    )
            return seen, server.requests

    seen, requests = asyncio.run(run())
    assert requests == []
    assert backend == "litellm" or "AWS_SECRET_ACCESS_KEY" in seen[0].problem


def test_litellm_is_stopped_before_it_sends_anything(monkeypatch):
    """The user's own variable once named a provider's host, and this is another."""

    async def run():
        async with Loopback([]) as server:
            monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
            monkeypatch.setenv("OPENAI_API_BASE", server.url)
            one = endpoint(None, None, backend="litellm", model_id="openai/gpt")
            opened = open_endpoint(one, environment={}, cached=False, clock=monotonic)
            with refused("trust.key-not-allowed"):
                await opened.backend.chat(ChatRequest(model="e", messages=(Message("user", "?"),)))
            await opened.backend.aclose()
            return server.requests

    assert asyncio.run(run()) == []


def test_what_the_environment_says_and_what_lies_beside_the_allowances_is_the_users(tmp_path):
    own = tmp_path / "harness"
    own.mkdir()
    cloned(own, SAVED)
    environment = {"XDG_CONFIG_HOME": str(tmp_path), **SECRETS}
    settings = load_settings(own / "harness.toml", environment=environment)
    assert api_key_of(settings.endpoints["e"], environment) == "sk-aws"
    given_there = '{"e": {"url": "http://h/v1", "api_key_env": "MY_KEY", "written_in": "/cloned"}}'
    settings = load_settings(environment={"HARNESS_ENDPOINTS": given_there})
    assert api_key_of(settings.endpoints["e"], SECRETS) == "sk-mine"


def test_a_folder_cannot_pass_its_settings_off_as_the_users(tmp_path):
    cloned(tmp_path, SAVED, more='written_in = "/elsewhere"\n')
    settings = load_settings(tmp_path / "harness.toml", environment={})
    assert settings.endpoints["e"].written_in == tmp_path.resolve()


def test_a_variable_in_a_header_goes_where_a_key_may_go_and_nowhere_else():
    header = {"headers": {"x-api-key": "Bearer ${OPENAI_API_KEY}"}}

    for fields in (header, {"query": {"key": "${OPENAI_API_KEY}"}}):
        assert key("https://api.openai.com/v1", None, **fields) is None
        with pytest.raises(NotTrusted, match="OPENAI_API_KEY"):
            key("https://evil.example/v1", None, **fields)
        with pytest.raises(ConfigurationInvalid, match="OPENAI_API_KEY"):
            api_key_of(endpoint("https://api.openai.com/v1", None, **fields), {})
    filled = endpoint("https://api.openai.com/v1", None, **header).filled_in(SECRETS)
    assert filled.headers == {"x-api-key": "Bearer sk-openai"}
    assert "sk-openai" in known_secrets(
        [endpoint("http://a", None, **header)], environment=SECRETS, named=[]
    )


def test_a_variable_that_is_not_set_is_said_first():
    with refused("endpoint.key-not-set") as caught:
        key(SAVED, "NO_SUCH_KEY")
    assert type(caught.value) is ConfigurationInvalid


# --- code ------------------------------------------------------------------------------------


def test_code_may_run_that_ships_or_is_allowed_or_belongs_to_what_runs_already(tmp_path):
    def is_refused(path, **environment):
        refusal = refusal_to_run(path, environment=environment)
        return None if refusal is None else refusal.code

    own = tmp_path / "checks.py"
    assert is_refused(own) == "trust.code-not-allowed"
    assert is_refused(own, HARNESS_TRUST=f"/elsewhere:{tmp_path}") is None
    assert is_refused(own, HARNESS_TRUST=str(own)) is None
    assert is_refused(tmp_path / "../other.py", HARNESS_TRUST=str(tmp_path)) is not None
    assert is_refused(Path(__file__).with_name("another.py")) is None, "this one runs"
    from harness.files import shipped_directory

    assert is_refused(shipped_directory("rubrics") / "any.py") is None


def test_a_project_is_what_lies_around_its_settings_and_never_a_home(tmp_path, monkeypatch):
    home = tmp_path / "home"
    (home / "project/pipelines").mkdir(parents=True)
    file = home / "project/pipelines/a.py"
    monkeypatch.setenv("HOME", str(home))
    assert project_of(file) == file.parent
    for folder in (home / "project", home):
        (folder / "harness.toml").touch()
    assert project_of(file) == home / "project"
    assert project_of(home / "a.py") == home / "a.py"


# --- the store's server ------------------------------------------------------------------------

STORES = {
    "not allowed": ("postgresql://db.x/m", "", "PGPASSWORD@db.x"),
    "another port": ("postgresql://db.x:5433/m", "PGPASSWORD@db.x", "PGPASSWORD@db.x:5433"),
    "allowed": ("postgresql://DB.x/m", "PGPASSWORD@db.x:5432", None),
    "allowed by a star": ("postgresql://db.x:5433/m", "*@db.x:5433", None),
    "where the user's variables say": ("postgresql:///m", "", "PGPASSWORD@localhost"),
    "there, allowed": ("postgresql:///m", "PGPASSWORD@localhost", None),
    "a directory": ("m", "", None),
}


@pytest.mark.parametrize(("path", "allowed", "entry"), STORES.values(), ids=STORES)
def test_a_folders_settings_send_no_password_to_a_store_without_leave(
    path, allowed, entry, tmp_path
):
    (tmp_path / "harness.toml").write_text(f'[memory]\npath = "{path}"\n')
    environment = {"HARNESS_ALLOW_KEYS": allowed}
    settings = load_settings(tmp_path / "harness.toml", environment=environment)

    def check(settings):
        memory = settings.memory
        check_store(memory.path, written_in=memory.written_in, environment=environment)

    if entry is None:
        check(settings)
    else:
        with pytest.raises(NotTrusted) as caught:
            check(settings)
        assert caught.value.entry == f"{entry} {tmp_path.resolve()}"
        # The user's own word needs no leave.
        given = load_settings(
            tmp_path / "harness.toml", environment=environment, memory=settings.memory.path
        )
        check(given)


def test_a_password_in_the_settings_is_refused_with_its_line_and_not_repeated(tmp_path):
    (tmp_path / "harness.toml").write_text('[memory]\npath = "postgresql://a:hunter2@h/m"\n')
    with pytest.raises(ConfigurationInvalid) as caught:
        load_settings(tmp_path / "harness.toml", environment={})
    assert (caught.value.code, caught.value.line) == ("memory.url-password", 2)
    assert "hunter2" not in str(caught.value)
    assert known_secrets([], environment={"PGPASSWORD": "hunter2"}, named=[]) == {"hunter2"}
