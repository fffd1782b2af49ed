"""Environment variables that look like settings."""

from __future__ import annotations

import pytest

from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.settings.settings import Settings, load_settings
from breadcrumbs.runtime.settings.variables import describe_unknown, unknown_variables


def test_every_setting_is_known() -> None:
    names = [f"CRUMB_{name.upper()}" for name in Settings.model_fields]
    assert unknown_variables(names) == {}


@pytest.mark.parametrize(
    "name",
    [
        "CRUMB_URL", "CRUMB_TOKEN", "CRUMB_API_KEY", "CRUMB_CONFIG", "CRUMB_LAUNCHER", "crumb_port",
        "CRUMB_RATE_LIMITS__ENABLED", "CRUMB_SERVICE_HOST", "CRUMB_API_SERVICE_PORT_HTTP", "CRUMB_PORT_8081_TCP_ADDR",
        "PATH", "CRUMBS", "_CRUMB_COMPLETE",
    ],
)  # fmt: skip
def test_other_known_and_foreign_variables_are_not_reported(name: str) -> None:
    assert unknown_variables([name]) == {}


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("CRUMB_PROT", "CRUMB_PORT"),
        ("CRUMB_REDIS_URL", "CRUMB_REDIS"),
        ("CRUMB_APIKEY", "CRUMB_API_KEY"),
        ("CRUMB_LOGLEVEL", "CRUMB_LOG_LEVEL"),
        ("crumb_contextconfig", "CRUMB_CONTEXT_CONFIG"),
        ("CRUMB_LAUNCHR", None),
        ("CRUMB_XYZZY", None),
    ],
)
def test_an_unknown_variable_gets_the_nearest_name(name: str, nearest: str | None) -> None:
    assert unknown_variables([name, "CRUMB_PORT"]) == {name: nearest}
    message = describe_unknown(name, nearest)
    assert name in message and (nearest or "ignored") in message


def test_a_variable_with_the_key_of_a_model_is_known() -> None:
    models = {"gateway": {"base_url": "https://models.example.org", "key_env": "CRUMB_GATEWAY_KEY"}}
    assert unknown_variables(["CRUMB_GATEWAY_KEY"], models) == {}
    assert unknown_variables(["CRUMB_GATEWAY_KEY"]) != {}


def test_an_unknown_key_in_the_file_is_an_error_with_the_nearest_name(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    with open("crumb.toml", "w", encoding="utf-8") as file:
        file.write("prot = 9000\n")
    with pytest.raises(StartupError, match=r"prot: unknown field: did you mean 'port'\?"):
        load_settings()
