"""Credentials, as Google ADK writes them: found wherever they may be, and taken out for those who may not read them."""

from __future__ import annotations

from typing import Any, Final

from pydantic.alias_generators import to_camel

ASKS_FOR_CREDENTIAL: Final = "adk_request_credential"
"""The call of a tool with which ADK asks for a credential; the response is the credential."""


def _in_both_cases(*names: str) -> frozenset[str]:
    return frozenset((*names, *(to_camel(name) for name in names)))


_SECRET_FIELDS: Final = _in_both_cases(
    *("password", "token", "additional_headers", "client_secret", "auth_response_uri", "auth_code"),
    *(
        "access_token",
        "refresh_token",
        "id_token",
        "code_verifier",
        "private_key_id",
        "private_key",
        "api_key",
    ),
)
_CREDENTIAL_FIELDS: Final = _in_both_cases(
    "requested_auth_configs", "raw_auth_credential", "exchanged_auth_credential"
)
_CREDENTIAL_TYPES: Final = frozenset(
    spelling
    for name, value in (
        *(("API_KEY", "apiKey"), ("HTTP", "http"), ("OAUTH2", "oauth2")),
        *(("OPEN_ID_CONNECT", "openIdConnect"), ("SERVICE_ACCOUNT", "serviceAccount")),
    )
    for spelling in (name, name.lower(), value)
)


def strip_credentials(value: Any) -> Any:
    """Remove the secrets of credentials, wherever ADK puts them. Returns the same object if there are none."""
    if isinstance(value, list):
        items = [strip_credentials(item) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    if not isinstance(value, dict):
        return value
    if _is_credential(value):
        return _strip_secrets(value)
    asks = value.get("name") == ASKS_FOR_CREDENTIAL
    shown = {name: _strip_field(name, inner, asks) for name, inner in value.items()}
    return shown if any(shown[name] is not value[name] for name in value) else value


def _strip_field(name: str, value: Any, asks_for_credential: bool) -> Any:
    if name in _CREDENTIAL_FIELDS or (asks_for_credential and name == "response"):
        return _strip_secrets(value)
    if asks_for_credential and name == "args" and isinstance(value, dict):
        shown = {
            key: _strip_secrets(arg) if key in ("authConfig", "auth_config") else arg
            for key, arg in value.items()
        }
        return shown if any(shown[key] is not value[key] for key in value) else value
    return strip_credentials(value)


def _is_credential(value: dict[str, Any]) -> bool:
    return any(
        isinstance(kind := value.get(name), str) and kind in _CREDENTIAL_TYPES
        for name in ("authType", "auth_type")
    )


def _strip_secrets(value: Any) -> Any:
    if isinstance(value, list):
        items = [_strip_secrets(item) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    if not isinstance(value, dict):
        return value
    kept = {name: _strip_secrets(inner) for name, inner in value.items() if name not in _SECRET_FIELDS}
    same = len(kept) == len(value) and all(kept[name] is value[name] for name in kept)
    return value if same else kept
