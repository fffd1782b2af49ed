"""Settings: three sources in order, and every mistake named before anything starts."""

from __future__ import annotations

import os
import re
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from breadcrumbs.runtime.breadcrumb.ttl import parse_duration
from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.settings.settings import DEFAULT_TTLS, Settings, load_settings

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "config" / "crumb.example.toml"
KEYS = '[{"key": "sixteen characters", "owner_id": "5f1c6f0e-0000-4000-8000-000000000001"}]'


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.upper().startswith("CRUMB_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_all_settings_have_safe_defaults() -> None:
    settings = load_settings()
    assert (settings.host, settings.port, settings.redis) == ("127.0.0.1", 8081, None)
    assert settings.development_mode and settings.on_loopback


def test_a_flag_wins_over_the_environment_and_the_environment_over_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "some.toml"
    file.write_text('port = 1001\nnamespace = "from-file"\nlog_level = "error"\n')
    monkeypatch.setenv("CRUMB_PORT", "1002")
    monkeypatch.setenv("CRUMB_LOG_LEVEL", "debug")
    settings = load_settings(config=file, port=1003)
    assert (settings.port, settings.log_level, settings.namespace) == (1003, "debug", "from-file")
    assert load_settings(config=file).port == 1002


def test_the_environment_wins_over_the_file_in_any_case(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "crumb.toml").write_text("port = 1001\n")
    monkeypatch.setenv("crumb_port", "1002")
    assert load_settings().port == 1002


def test_a_flag_that_was_not_given_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRUMB_PORT", "1002")
    assert load_settings(port=None, host=None).port == 1002


def test_the_file_in_the_working_directory_is_found_without_being_named(tmp_path: Path) -> None:
    (tmp_path / "crumb.toml").write_text("port = 1004\n")
    assert load_settings().port == 1004


def test_the_environment_can_name_the_file_and_a_flag_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a.toml").write_text("port = 1005\n")
    (tmp_path / "b.toml").write_text("port = 1006\n")
    monkeypatch.setenv("CRUMB_CONFIG", str(tmp_path / "a.toml"))
    assert load_settings().port == 1005
    assert load_settings(config=tmp_path / "b.toml").port == 1006


def test_a_named_file_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"settings file .*missing\.toml not found"):
        load_settings(config=tmp_path / "missing.toml")


@pytest.mark.parametrize("content", [b"port = \n", b"\xff\xfe"])
def test_an_invalid_toml_file_is_an_error_with_its_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "crumb.toml").write_bytes(content)
    with pytest.raises(StartupError, match=r"crumb\.toml cannot be read"):
        load_settings()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"port": 70000}, "port"),
        ({"lanes": 0}, "lanes"),
        ({"lanes": 5000}, "lanes"),
        ({"redis": "http://example.org"}, "rediss://"),
        ({"namespace": "with space"}, "namespace"),
        ({"log_level": "loud"}, "log_level"),
        ({"event_window": "soon"}, "event_window"),
        ({"event_window": "-1h"}, "event_window"),
        ({"token_secret": "short"}, "token_secret"),
        ({"max_body_bytes": 1}, "max_body_bytes"),
    ],
)
def test_an_invalid_value_is_refused_with_the_name_of_the_setting(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(StartupError, match=says):
        load_settings(**flags)


def test_an_unknown_setting_is_reported(tmp_path: Path) -> None:
    (tmp_path / "crumb.toml").write_text("prot = 1\n")
    with pytest.raises(StartupError, match="prot"):
        load_settings()


def test_all_errors_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "crumb.toml").write_text('port = -1\nlog_level = "loud"\n')
    with pytest.raises(StartupError) as caught:
        load_settings()
    assert "port" in str(caught.value) and "log_level" in str(caught.value)


def test_no_secret_shows_in_an_error_or_in_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StartupError) as caught:
        load_settings(token_secret="hunter2")
    assert "hunter2" not in str(caught.value)
    monkeypatch.setenv("CRUMB_API_KEYS", '[{"key": "opensesame", "owner_id": "x"}]')
    with pytest.raises(StartupError) as caught:
        load_settings()
    assert "opensesame" not in str(caught.value)
    monkeypatch.setenv("CRUMB_API_KEYS", KEYS)
    assert "sixteen characters" not in repr(load_settings())


def test_an_environment_variable_with_invalid_json_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CRUMB_API_KEYS", "my-key")
    with pytest.raises(StartupError, match="api_keys"):
        load_settings()


def test_the_variables_of_the_client_commands_do_not_disturb_a_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CRUMB_URL", "CRUMB_TOKEN", "CRUMB_API_KEY", "CRUMB_LAUNCHER"):
        monkeypatch.setenv(name, "anything")
    load_settings()


# Development mode


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org", ""])
def test_a_public_address_is_refused_without_an_api_key(host: str) -> None:
    with pytest.raises(StartupError, match="CRUMB_API_KEYS"):
        load_settings(host=host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_a_loopback_address_needs_no_api_key(host: str) -> None:
    assert load_settings(host=host).development_mode


def test_with_an_api_key_any_address_is_accepted_and_access_needs_a_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CRUMB_API_KEYS", KEYS)
    settings = load_settings(host="0.0.0.0")
    assert not settings.development_mode
    assert load_settings(host="127.0.0.1").development_mode is False


# The example


def test_the_example_file_is_valid_and_contains_the_defaults() -> None:
    assert load_settings(config=EXAMPLE) == Settings()


def test_the_example_file_lists_every_setting() -> None:
    text = EXAMPLE.read_text("utf-8")
    missing = [
        name
        for name in Settings.model_fields
        if f"\n{name} =" not in text and f"\n# {name} =" not in text and f"[{name}]" not in text
    ]
    assert missing == []


def test_the_commented_settings_of_the_example_are_valid() -> None:
    live = re.sub(r"^# (?=\[|\w+ = )", "", EXAMPLE.read_text("utf-8"), flags=re.MULTILINE)
    settings = Settings(**tomllib.loads(live))
    assert len(settings.api_keys) == 1 and settings.lanes == 64 and settings.redis
    assert settings.models["endpoints"]["local"]["key_env"] == "LOCAL_MODEL_KEY"


def test_defaults_of_schemas_become_lifetimes() -> None:
    expiries = load_settings().expiries
    assert {schema: timedelta(microseconds=expiry.after) for schema, expiry in expiries.items()} == {
        schema: parse_duration(text) for schema, text in DEFAULT_TTLS.items()
    }
