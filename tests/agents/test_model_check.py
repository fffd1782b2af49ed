"""`crumb model check` and `crumb model list`, on a real model server."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from breadcrumbs.agents.models.providers import model_forms
from breadcrumbs.cli.app import app
from tests.support.model_server import ModelServer


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for form in model_forms():
        monkeypatch.delenv(form.key_env or "OLLAMA_API_KEY", raising=False)
    for name in ("CRUMB_CONFIG", "CRUMB_MODEL", "CRUMB_MODELS"):
        monkeypatch.delenv(name, raising=False)


def check(*arguments: str, code: int) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["model", "check", "--json", *arguments])
    assert result.exit_code == code, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    assert document["ok"] is (code == 0)
    return document


def problem(*arguments: str) -> dict[str, str]:
    found: dict[str, str] = check(*arguments, code=1)["problem"]
    assert found["advice"]
    return found


def problems(document: dict[str, Any]) -> list[str]:
    return [finding["problem"] for finding in document["warnings"]]


def test_the_offline_model_passes_without_warnings() -> None:
    document = check(code=0)
    assert (document["model"], document["streaming"], document["tool_calls"]) == ("offline", True, True)
    assert document["warnings"] == []


def test_a_model_that_streams_and_calls_tools_passes(server: ModelServer) -> None:
    scenario = server.scenario("tool_calls", names=("add", "add"))
    document = check(f"{scenario.url}#m", code=0)
    # This server calls a tool in each of its answers, and has no list of models.
    assert document["tool_calls"] is True and document["available"] == []


def test_an_answer_in_one_piece_is_a_warning_about_streaming(server: ModelServer) -> None:
    document = check(f"{server.scenario('whole').url}#m", code=0)
    assert "no streaming" in problems(document)


def test_a_text_instead_of_a_tool_call_is_a_warning(server: ModelServer) -> None:
    document = check(f"{server.scenario('normal').url}#m", code=0)
    assert problems(document) == ["no tool calls"]
    assert document["streaming"] is True


def test_a_server_that_refuses_tools_is_a_warning(server: ModelServer) -> None:
    document = check(f"{server.scenario('picky', refuses=('tools',)).url}#m", code=0)
    assert problems(document) == ["no tool calls"]
    assert "tools" in document["warnings"][0]["details"]


def test_a_server_that_is_not_running_is_reported_with_the_command_that_starts_it() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        Path("crumb.toml").write_text(
            f'[models.endpoints.ollama]\nurl = "http://127.0.0.1:{unused.getsockname()[1]}/v1"\n', "utf-8"
        )
        found = problem("ollama:llama3.2")
    assert found["problem"] == "server not reachable"
    assert "ollama serve" in found["advice"]


def test_an_unknown_model_is_reported_with_the_models_of_the_server(server: ModelServer) -> None:
    scenario = server.scenario("unknown_model", models=["llama3.2:latest", "qwen3:8b"])
    document = check(f"{scenario.url}#llama3.3", code=1)
    assert document["problem"]["problem"] == "no such model"
    assert "llama3.2:latest" in document["problem"]["advice"]
    assert document["available"] == ["llama3.2:latest", "qwen3:8b"]


def test_a_missing_key_is_reported_with_its_variable() -> None:
    found = problem("openai:gpt-4.1-mini")
    assert found["problem"] == "key missing" and "OPENAI_API_KEY" in found["advice"]


def test_a_rejected_key_is_reported_with_its_variable_and_never_shown(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_KEY", "sk-very-secret-key-1234")
    url = server.scenario("unauthorized").url
    Path("crumb.toml").write_text(f'[models.endpoints.lab]\nurl = "{url}"\nkey_env = "LAB_KEY"\n', "utf-8")
    document = check("lab:m", code=1)
    assert document["problem"]["problem"] == "key rejected" and "LAB_KEY" in document["problem"]["advice"]
    assert "very-secret" not in json.dumps(document)


@pytest.mark.parametrize("rest", ["/../nothing-here", "/deeper/v1"])
def test_a_wrong_url_is_reported(server: ModelServer, rest: str) -> None:
    url = server.scenario("normal").url
    assert problem(f"{url}{rest}#m")["problem"] == "wrong URL"


def test_a_web_page_instead_of_json_is_a_wrong_url(server: ModelServer) -> None:
    page = server.scenario("raw", body=b"<html>Hello</html>", content_type="text/html")
    assert problem(f"{page.url}#m")["problem"] == "wrong URL"


def test_a_rate_limit_is_reported_without_retries(server: ModelServer) -> None:
    scenario = server.scenario("rate_limited")
    assert problem(f"{scenario.url}#m")["problem"] == "rate limited"
    assert len(scenario.requests) == 1


def test_a_server_that_does_not_answer_is_a_timeout(server: ModelServer) -> None:
    scenario = server.scenario("slow_first_byte", delay=10)
    assert problem(f"{scenario.url}#m", "--timeout", "1")["problem"] == "timeout"


@pytest.mark.parametrize("spec", ["gpt-4o", "openai", "http://127.0.0.1:9/v1", "ftp://x/v1#m"])
def test_an_invalid_name_is_a_usage_error_with_the_command_that_lists_all_forms(spec: str) -> None:
    result = CliRunner().invoke(app, ["model", "check", spec])
    assert result.exit_code == 2
    assert "crumb model list" in result.stderr and result.stdout == ""


def test_the_list_contains_every_form_with_its_key_and_the_aliases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-secret")
    Path("crumb.toml").write_text(
        'model = "house"\n[models.aliases]\nhouse = "openai:gpt-4.1-mini"\n'
        '[models.endpoints.lab]\nurl = "http://127.0.0.1:8000/v1"\n',
        "utf-8",
    )
    result = CliRunner().invoke(app, ["model", "list", "--json"])
    document = json.loads(result.stdout)
    keys = {form["example"].partition(":")[0]: form["key_env"] for form in document["forms"]}
    assert keys["openai"] == "OPENAI_API_KEY" and keys["ollama"] is None and keys["offline"] is None
    assert {"openrouter", "anthropic", "vllm", "http"} <= set(keys)
    assert document["aliases"] == [{"name": "house", "model": "openai:gpt-4.1-mini"}]
    assert document["endpoints"] == {"lab": "http://127.0.0.1:8000/v1"}
    assert document["default"] == "house"
    assert "sk-secret" not in result.output


def test_every_form_is_a_valid_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from breadcrumbs.agents.models.registry import ModelPool

    keys = {form.key_env: "sk-secret-secret" for form in model_forms() if form.key_env}
    for form in model_forms():
        assert ModelPool(environment=keys).resolve(form.example, trusted=True).name == form.example
