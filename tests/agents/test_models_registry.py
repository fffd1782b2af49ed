"""Models by their names."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr

from breadcrumbs.agents.models.base import ModelRequest, PromptMessage
from breadcrumbs.agents.models.offline import OfflineModel
from breadcrumbs.agents.models.openai_compatible import PRESETS, OpenAICompatibleModel
from breadcrumbs.agents.models.registry import ModelPool, ModelSettings, resolve_model
from breadcrumbs.runtime.errors import InvalidInput, StartupError
from tests.support.model_server import ModelServer

KEYS = {"OPENAI_API_KEY": "sk-openai-secret", "OPENROUTER_API_KEY": "sk-or-secret"}
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
        (" vllm:Qwen/Qwen3-8B ", "http://127.0.0.1:8000/v1", "Qwen/Qwen3-8B"),
    ],
)  # fmt: skip
def test_providers_are_known_by_name(spec: str, url: str, model: str) -> None:
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


@pytest.mark.parametrize("provider", ["openai", "openrouter"])
def test_a_missing_key_is_said_with_the_name_of_the_variable(provider: str) -> None:
    models = pool({})
    with pytest.raises(StartupError) as caught:
        models.resolve(f"{provider}:m")
    assert PRESETS[provider].key_env in str(caught.value)
    assert "offline" in str(caught.value)


def test_a_missing_key_of_the_default_is_found_at_start() -> None:
    with pytest.raises(StartupError, match="OPENAI_API_KEY is not set"):
        pool({}, default="openai:gpt-x")


@pytest.mark.parametrize("provider", ["ollama", "vllm"])
def test_a_local_server_needs_no_key(provider: str) -> None:
    assert pool({}).resolve(f"{provider}:m").name == f"{provider}:m"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("gpt-4o", "There is offline, "),
        ("opnai:gpt-4o", "Did you mean openai?"),
        ("offlin", "Did you mean offline?"),
        ("anthropic/claude-3.5-sonnet", "openrouter/anthropic/claude-3.5-sonnet"),
        ("openai", "no model of it: openai:<model>"),
        ("openai:", "no model of it"),
        ("openai: ", "no model of it"),
        (":x", "There is offline"),
        ("503c2b0d-e178-4c47-b898-a77b90fa33d2", "There is offline"),
        ("ftp://host/v1#m", "looks like https://"),
        ("file:///etc/passwd#m", "looks like https://"),
        ("http://host/v1", "http://host/v1#model"),
        ("http://user:pw@host/v1#m", "not into its URL"),
        ("x" * 5000, "There is offline"),
    ],
)
def test_an_unknown_model_is_answered_with_what_exists(spec: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        pool().resolve(spec, trusted=True)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 600
    assert "pw" not in str(caught.value)


def test_the_list_of_what_exists_has_everything() -> None:
    models = pool(endpoints={"lab": {"url": "http://lab/v1"}}, aliases={"house": "lab:m"})
    assert models.names == ["offline", "house", "lab:…", "ollama:…", "openai:…", "openrouter:…", "vllm:…"]


def test_an_alias_stands_for_a_model_as_an_llm_config_id_does() -> None:
    identity = "503c2b0d-e178-4c47-b898-a77b90fa33d2"
    models = pool(aliases={identity: "house", "house": "openrouter/google/gemini-2.5-flash"})
    assert models.resolve(identity).name == "openrouter:google/gemini-2.5-flash"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"aliases": {"a": "b", "b": "a"}}, "a → b → a go in circles"),
        ({"aliases": {"a": "nonsense"}}, "no model 'nonsense'"),
        ({"default": "nonsense"}, "no model 'nonsense'"),
        ({"endpoints": {"lab": {}}}, "'lab' needs a url"),
        ({"endpoints": {"lab": {"url": "ftp://lab"}}}, "looks like https://"),
        ({"endpoints": {"offline": {"url": "http://lab/v1"}}}, "cannot be called 'offline'"),
        ({"endpoints": {"Not ok": {"url": "http://lab/v1"}}}, "endpoints"),
        ({"endpoints": {"lab": {"url": "http://lab/v1", "pasword": "x-secret"}}}, "endpoints.lab.pasword"),
        ({"total_timeout": 0}, "total_timeout"),
        ({"retries": -1}, "retries"),
        ({"enpoints": {}}, "enpoints"),
    ],
)
def test_settings_that_are_wrong_are_found_at_start(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(StartupError) as caught:
        ModelPool(settings, environment={})
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_an_alias_does_not_need_its_key_before_it_is_used() -> None:
    models = pool({}, aliases={"smart": "openai:gpt-x"})
    with pytest.raises(StartupError, match="OPENAI_API_KEY"):
        models.resolve("smart")


def test_an_endpoint_of_ones_own_has_a_url_and_a_key() -> None:
    models = pool(
        {"LAB_KEY": "lab-secret"}, endpoints={"lab": {"url": "http://lab/v1/", "key_env": "LAB_KEY"}}
    )
    found = http_model(models, "lab:m")
    assert found.endpoint.url == "http://lab/v1"
    assert found.endpoint.headers(stream=True)["Authorization"] == "Bearer lab-secret"
    with pytest.raises(StartupError, match="LAB_KEY is not set"):
        pool({}, endpoints={"lab": {"url": "http://lab/v1", "key_env": "LAB_KEY"}}).resolve("lab:m")


def test_a_preset_pointed_elsewhere_does_not_take_the_providers_key_there() -> None:
    found = http_model(pool(endpoints={"openai": {"url": "http://127.0.0.1:9/v1"}}), "openai:m")
    assert "Authorization" not in found.endpoint.headers(stream=True)


def test_a_key_in_the_settings_wins_over_the_environment() -> None:
    settings = ModelSettings.model_validate({"endpoints": {"openai": {"key": SecretStr("from-settings")}}})
    found = http_model(ModelPool(settings, environment=KEYS), "openai:m")
    assert found.endpoint.headers(stream=True)["Authorization"] == "Bearer from-settings"
    assert "from-settings" not in repr(settings)


def test_a_definition_cannot_send_prompts_to_a_url_of_its_own() -> None:
    with pytest.raises(InvalidInput, match="no model endpoint of the settings"):
        pool().resolve("http://169.254.169.254/v1#m")


def test_a_url_that_the_settings_know_is_that_endpoint() -> None:
    models = pool(endpoints={"lab": {"url": "http://lab/v1", "key": "k-lab"}}, aliases={"a": "http://b/v1#m"})
    assert http_model(models, "http://lab/v1/#m").endpoint is http_model(models, "lab:n").endpoint
    assert http_model(models, "a").endpoint.url == "http://b/v1"  # the operator wrote it


def test_a_url_that_nobody_configured_gets_no_key() -> None:
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
        await one.close()  # not its connections to close
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


def test_the_limits_of_the_settings_are_those_of_the_model() -> None:
    model = resolve_model("ollama:m", {"total_timeout": 7, "max_answer_bytes": 10, "retries": 1})
    assert isinstance(model, OpenAICompatibleModel)
    limits = model.endpoint.limits
    assert (limits.total, limits.max_text, limits.retries) == (7, 10, 1)


def test_keys_come_from_the_real_environment_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(StartupError, match="OPENAI_API_KEY"):
        resolve_model("openai:m")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-from-env")
    model = resolve_model("openai:m")
    assert isinstance(model, OpenAICompatibleModel)
    assert model.endpoint.headers(stream=False)["Authorization"] == "Bearer sk-from-env"
