"""Lookup of models by name, alias and URL."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr

from breadcrumbs.agents.models.base import ModelRequest, PromptMessage
from breadcrumbs.agents.models.offline import OfflineModel
from breadcrumbs.agents.models.openai_compatible import OpenAICompatibleModel
from breadcrumbs.agents.models.providers import PRESETS
from breadcrumbs.agents.models.registry import ModelPool, ModelSettings, resolve_model
from breadcrumbs.runtime.errors import InvalidInput, StartupError
from tests.support.model_server import ModelServer

KEYS = {
    "OPENAI_API_KEY": "sk-openai-secret",
    "OPENROUTER_API_KEY": "sk-or-secret",
    "ANTHROPIC_API_KEY": "sk-ant-secret",
}
ASK = ModelRequest((PromptMessage("user", "Hello"),))


def pool(environment: dict[str, str] | None = None, **settings: Any) -> ModelPool:
    return ModelPool(settings, environment=KEYS if environment is None else environment)


def http_model(of: ModelPool, spec: str, *, trusted: bool = False) -> OpenAICompatibleModel:
    model = of.resolve(spec, trusted=trusted)
    assert isinstance(model, OpenAICompatibleModel)
    return model


@pytest.mark.parametrize(
    ("spec", "url", "model"),
    [
        ("openai:gpt-4.1-mini", "https://api.openai.com/v1", "gpt-4.1-mini"),
        ("openai/gpt-4.1-mini", "https://api.openai.com/v1", "gpt-4.1-mini"),
        ("OpenAI:gpt-4.1-mini", "https://api.openai.com/v1", "gpt-4.1-mini"),
        ("openrouter/anthropic/claude", "https://openrouter.ai/api/v1", "anthropic/claude"),
        ("openrouter:meta/llama:free", "https://openrouter.ai/api/v1", "meta/llama:free"),
        ("ollama:llama3:8b", "http://127.0.0.1:11434/v1", "llama3:8b"),
        ("ollama/hf.co/x/y:Q4", "http://127.0.0.1:11434/v1", "hf.co/x/y:Q4"),
        ("ollama_local/llama3", "http://127.0.0.1:11434/v1", "llama3"),
        ("anthropic:claude-sonnet-4-5", "https://api.anthropic.com/v1", "claude-sonnet-4-5"),
        (" vllm:Qwen/Qwen3-8B ", "http://127.0.0.1:8000/v1", "Qwen/Qwen3-8B"),
    ],
)  # fmt: skip
def test_a_provider_is_found_by_its_name(spec: str, url: str, model: str) -> None:
    found = http_model(pool(), spec)
    assert (found.endpoint.url, found.model) == (url, model)


@pytest.mark.parametrize("spec", [None, "", "  ", "offline"])
def test_the_offline_model_is_the_default(spec: str | None) -> None:
    model = pool({}).resolve(spec)
    assert isinstance(model, OfflineModel)
    assert model.name == "offline"


def test_the_default_can_be_set() -> None:
    models = pool(default="openai:gpt-x")
    assert models.resolve(None) is models.default
    assert models.default.name == "openai:gpt-x"


@pytest.mark.parametrize("provider", ["openai", "openrouter", "anthropic"])
def test_the_error_of_a_missing_key_contains_the_variable(provider: str) -> None:
    models = pool({})
    with pytest.raises(StartupError) as caught:
        models.resolve(f"{provider}:m")
    assert PRESETS[provider].key_env in str(caught.value)
    assert "offline" in str(caught.value)


def test_a_missing_key_of_the_default_model_is_refused_at_start() -> None:
    with pytest.raises(StartupError, match="OPENAI_API_KEY is not set"):
        pool({}, default="openai:gpt-x")


@pytest.mark.parametrize("provider", ["ollama", "vllm"])
def test_a_local_server_needs_no_key(provider: str) -> None:
    assert pool({}).resolve(f"{provider}:m").name == f"{provider}:m"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("gpt-4o", "Use offline, "),
        ("opnai:gpt-4o", "Did you mean openai?"),
        ("offlin", "Did you mean offline?"),
        ("google/gemini-2.5-flash", "openrouter/google/gemini-2.5-flash"),
        ("openai", "a provider without a model: write openai:<model>"),
        ("openai:", "a provider without a model"),
        ("openai: ", "a provider without a model"),
        (":x", "Use offline"),
        ("503c2b0d-e178-4c47-b898-a77b90fa33d2", "Use offline"),
        ("ftp://host/v1#m", "is invalid: use https://"),
        ("file:///etc/passwd#m", "is invalid: use https://"),
        ("http://host/v1", "http://host/v1#model"),
        ("http://user:pw@host/v1#m", "contains a key: set the key in the environment (key_env) instead"),
        ("x" * 5000, "Use offline"),
    ],
)
def test_an_unknown_model_is_refused_with_suggestions(spec: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        pool().resolve(spec, trusted=True)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 600
    assert "pw" not in str(caught.value)


def test_the_list_of_models_contains_aliases_endpoints_and_presets() -> None:
    models = pool(endpoints={"lab": {"url": "http://lab/v1"}}, aliases={"house": "lab:m"})
    providers = ["anthropic:…", "lab:…", "ollama:…", "openai:…", "openrouter:…", "vllm:…"]
    assert models.names == ["offline", "house", *providers]


def test_an_alias_can_be_a_uuid_and_refer_to_another_alias() -> None:
    identity = "503c2b0d-e178-4c47-b898-a77b90fa33d2"
    models = pool(aliases={identity: "house", "house": "openrouter/google/gemini-2.5-flash"})
    assert models.resolve(identity).name == "openrouter:google/gemini-2.5-flash"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"aliases": {"a": "b", "b": "a"}}, "a → b → a form a cycle"),
        ({"aliases": {"a": "nonsense"}}, "model 'nonsense' not found"),
        ({"default": "nonsense"}, "model 'nonsense' not found"),
        ({"endpoints": {"lab": {}}}, "'lab' needs a url"),
        ({"endpoints": {"lab": {"url": "ftp://lab"}}}, "is invalid: use https://"),
        ({"endpoints": {"offline": {"url": "http://lab/v1"}}}, "cannot have the name 'offline'"),
        ({"endpoints": {"Not ok": {"url": "http://lab/v1"}}}, "endpoints"),
        ({"endpoints": {"lab": {"url": "http://lab/v1", "pasword": "x-secret"}}}, "endpoints.lab.pasword"),
        ({"total_timeout": 0}, "total_timeout"),
        ({"retries": -1}, "retries"),
        ({"enpoints": {}}, "enpoints"),
    ],
)
def test_invalid_settings_are_refused_at_start(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(StartupError) as caught:
        ModelPool(settings, environment={})
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_an_alias_does_not_need_its_key_before_it_is_used() -> None:
    models = pool({}, aliases={"smart": "openai:gpt-x"})
    with pytest.raises(StartupError, match="OPENAI_API_KEY"):
        models.resolve("smart")


def test_a_custom_endpoint_has_its_own_url_and_key() -> None:
    models = pool(
        {"LAB_KEY": "lab-secret"}, endpoints={"lab": {"url": "http://lab/v1/", "key_env": "LAB_KEY"}}
    )
    found = http_model(models, "lab:m")
    assert found.endpoint.url == "http://lab/v1"
    assert found.endpoint.headers(stream=True)["Authorization"] == "Bearer lab-secret"
    with pytest.raises(StartupError, match="LAB_KEY is not set"):
        pool({}, endpoints={"lab": {"url": "http://lab/v1", "key_env": "LAB_KEY"}}).resolve("lab:m")


def test_a_preset_with_another_url_does_not_send_the_providers_key() -> None:
    found = http_model(pool(endpoints={"openai": {"url": "http://127.0.0.1:9/v1"}}), "openai:m")
    assert "Authorization" not in found.endpoint.headers(stream=True)


def test_a_key_in_the_settings_wins_over_the_environment() -> None:
    settings = ModelSettings.model_validate({"endpoints": {"openai": {"key": SecretStr("from-settings")}}})
    found = http_model(ModelPool(settings, environment=KEYS), "openai:m")
    assert found.endpoint.headers(stream=True)["Authorization"] == "Bearer from-settings"
    assert "from-settings" not in repr(settings)


def test_an_untrusted_definition_cannot_use_an_unconfigured_url() -> None:
    with pytest.raises(InvalidInput, match=r"^unknown model endpoint http://169\.254\.169\.254/v1: "):
        pool().resolve("http://169.254.169.254/v1#m")


def test_a_configured_url_resolves_to_its_endpoint() -> None:
    models = pool(endpoints={"lab": {"url": "http://lab/v1", "key": "k-lab"}}, aliases={"a": "http://b/v1#m"})
    assert http_model(models, "http://lab/v1/#m").endpoint is http_model(models, "lab:n").endpoint
    # An alias is in the settings, so its URL is trusted.
    assert http_model(models, "a").endpoint.url == "http://b/v1"


def test_an_unconfigured_url_gets_no_key() -> None:
    found = http_model(pool(), "http://other/v1#m", trusted=True)
    assert "Authorization" not in found.endpoint.headers(stream=True)
    assert found.name == "http://other/v1#m"


async def test_models_of_one_endpoint_share_its_connections_and_close_together(server: ModelServer) -> None:
    scenario = server.scenario("normal")
    async with pool(endpoints={"lab": {"url": scenario.url}}) as models:
        one, two = http_model(models, "lab:one"), http_model(models, "lab:two")
        assert one.endpoint is two.endpoint
        assert (await one.complete(ASK)).text == "You asked: Hello"
        client = one.endpoint.client
        await one.close()  # the pool owns the connections
        assert (await two.complete(ASK)).text == "You asked: Hello"
        assert one.endpoint.client is client and not client.is_closed
    assert client.is_closed
    await models.close()
    assert [request.body["model"] for request in scenario.requests] == ["one", "two"]


async def test_a_single_model_closes_its_own_connections(server: ModelServer) -> None:
    scenario = server.scenario("normal")
    model = resolve_model(f"{scenario.url}#mine", {"retries": 0, "total_timeout": 5})
    assert isinstance(model, OpenAICompatibleModel)
    assert (await model.complete(ASK)).text == "You asked: Hello"
    client = model.endpoint.client
    await model.close()
    assert client.is_closed


def test_the_limits_in_the_settings_apply_to_the_model() -> None:
    model = resolve_model("ollama:m", {"total_timeout": 7, "max_answer_bytes": 10, "retries": 1})
    assert isinstance(model, OpenAICompatibleModel)
    limits = model.endpoint.limits
    assert (limits.total, limits.max_text, limits.retries) == (7, 10, 1)


def test_keys_are_read_from_the_process_environment_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(StartupError, match="OPENAI_API_KEY"):
        resolve_model("openai:m")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-from-env")
    model = resolve_model("openai:m")
    assert isinstance(model, OpenAICompatibleModel)
    assert model.endpoint.headers(stream=False)["Authorization"] == "Bearer sk-from-env"
