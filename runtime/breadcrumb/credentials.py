"""Removes the secrets of Google ADK credentials from JSON values.

ADK stores credentials in events and in session state, at any depth. Only curators may read their secrets.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic.alias_generators import to_camel

ASKS_FOR_CREDENTIAL: Final = "adk_request_credential"
"""Name of the tool call with which ADK requests a credential. Its response is the credential."""


def _with_camel_case(*names: str) -> frozenset[str]:
    return frozenset((*names, *(to_camel(name) for name in names)))


_SECRET_FIELDS: Final = _with_camel_case(
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
_CREDENTIAL_FIELDS: Final = _with_camel_case(
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
    """Remove the secrets of all credentials in a value. Return the same object if there are none."""
    if isinstance(value, list):
        items = [strip_credentials(item) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    if not isinstance(value, dict):
        return value
    if _is_credential(value):
        return _strip_secrets(value)
    is_request = value.get("name") == ASKS_FOR_CREDENTIAL
    shown = {name: _strip_field(name, inner, is_request) for name, inner in value.items()}
    return shown if any(shown[name] is not value[name] for name in value) else value


def _strip_field(name: str, value: Any, is_credential_request: bool) -> Any:
    if name in _CREDENTIAL_FIELDS or (is_credential_request and name == "response"):
        return _strip_secrets(value)
    if is_credential_request and name == "args" and isinstance(value, dict):
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
