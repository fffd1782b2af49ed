"""Requests to the server as values, without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

import orjson

from breadcrumbs.client.errors import InvalidInput
from breadcrumbs.client.not_finite import find_not_finite
from breadcrumbs.client.options import EventOptions, Filters, Listing, Message, SessionChange, TokenRequest
from breadcrumbs.client.values import SESSION
from breadcrumbs.runtime.breadcrumb.text import shorten_line
from breadcrumbs.runtime.schema_names import ADDRESSEE, AGENT_CANCEL, USER_MESSAGE

_BREADCRUMBS_PER_PAGE = 500
_SESSIONS_PER_PAGE = 100
_SAFE_METHODS: Final = frozenset(("GET", "HEAD", "OPTIONS"))
_SESSION_CHANGES: Final = frozenset(SessionChange.__annotations__)
_JSON: Final = {"content-type": "application/json"}
_MERGE_PATCH: Final = {"content-type": "application/merge-patch+json"}

Params = Sequence[tuple[str, str]] | Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the server."""

    method: str
    path: str
    params: tuple[tuple[str, str], ...] = ()
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names are in lower case."""
    idempotent: bool = False
    """Whether sending it twice has the same effect as once. If so, it is retried."""

    @property
    def expects_json(self) -> bool:
        """Whether a successful reply must be JSON. An `accept` header allows other types."""
        return "accept" not in self.headers


@dataclass(frozen=True, slots=True)
class Payload:
    """Body and headers of a custom request."""

    json: Any = None
    content: bytes | None = None
    headers: Mapping[str, str] | None = None


def custom_request(
    method: str, path: str, params: Params | None, payload: Payload, idempotent: bool | None
) -> Request:
    """Return the request for the arguments of `Client.request`."""
    if not path.startswith("/"):
        # An absolute address would send the credentials to another server.
        raise ValueError(f"{path!r} is not a path: it must start with a slash")
    if payload.json is not None and payload.content is not None:
        raise ValueError("pass json or content, not both")
    headers = {name.lower(): value for name, value in (payload.headers or {}).items()}
    content = payload.content
    if payload.json is not None:
        content, headers = json_of(payload.json), _JSON | headers
    method = method.upper()
    if idempotent is None:
        idempotent = method in _SAFE_METHODS or "idempotency-key" in headers
    pairs = tuple(params.items() if isinstance(params, Mapping) else params or ())
    return Request(method, path, pairs, content, headers, idempotent)


# Breadcrumbs


def create_request(
    fields: Mapping[str, Any], *, session: str | None = None, idempotency_key: str | None = None
) -> Request:
    document = _without_none(fields)
    document["tags"] = _as_list(document.get("tags", ()))
    if session is not None:
        document["tags"].append(SESSION + session)
    return _keyed_post("/breadcrumbs", document, idempotency_key)


def message_request(text: str, session: str | None, message: Message) -> Request:
    addressed = {} if message.get("to") is None else {ADDRESSEE: message["to"]}
    fields = {
        "schema_name": USER_MESSAGE,
        "title": shorten_line(text),
        "tags": list(dict.fromkeys(("user:message", *_as_list(message.get("tags", ()))))),
        "context": {**(message.get("context") or {}), "message": text, **addressed},
    }
    return create_request(fields, session=session, idempotency_key=message.get("idempotency_key"))


def cancel_request(session: str, reason: str | None) -> Request:
    fields = {
        "schema_name": AGENT_CANCEL,
        "title": "Cancel",
        "tags": ["agent:cancel"],
        "context": {} if reason is None else {"reason": reason},
    }
    return create_request(fields, session=session)


def get_request(path: str, params: Iterable[tuple[str, str]] = ()) -> Request:
    return Request("GET", path, tuple(params), idempotent=True)


def update_request(
    id: str, fields: Mapping[str, Any], *, expected_version: int | None, merge_context: bool
) -> Request:
    headers = {**(_MERGE_PATCH if merge_context else _JSON), **if_match(expected_version)}
    return Request("PATCH", breadcrumb_path(id), content=json_of(fields), headers=headers)


def delete_request(path: str, expected_version: int | None) -> Request:
    return Request("DELETE", path, headers=if_match(expected_version))


def history_request(id: str, cursor: str | None) -> Request:
    return get_request(f"{breadcrumb_path(id)}/history", _cursor_params(cursor))


def list_request(
    params: Iterable[tuple[str, str]], *, limit: int | None, given: int, cursor: str | None
) -> Request:
    """Return the request for the next page. `given` of `limit` breadcrumbs were returned before."""
    size = _page_size(_BREADCRUMBS_PER_PAGE, limit, given)
    return get_request("/breadcrumbs", [*params, ("limit", size), *_cursor_params(cursor)])


def token_request(wanted: TokenRequest) -> Request:
    document = _without_none(wanted)
    if "roles" in document:
        document["roles"] = _as_list(document["roles"])
    return Request("POST", "/auth/token", content=json_of(document), headers=_JSON)


# Sessions


def create_session_request(fields: Mapping[str, Any], idempotency_key: str | None) -> Request:
    return _keyed_post("/sessions", _without_none(fields), idempotency_key)


def list_sessions_request(
    user_id: str | None, *, limit: int | None, given: int, cursor: str | None
) -> Request:
    params = [("limit", _page_size(_SESSIONS_PER_PAGE, limit, given))]
    if user_id is not None:
        params.append(("user_id", user_id))
    return get_request("/sessions", [*params, *_cursor_params(cursor)])


def change_session_request(id: str, changes: SessionChange, expected_version: int | None) -> Request:
    if unknown := set(changes) - _SESSION_CHANGES:
        raise TypeError(f"{sorted(unknown)[0]!r} of a session cannot be changed")
    headers = {**_JSON, **if_match(expected_version)}
    return Request("PATCH", session_path(id), content=json_of(changes), headers=headers)


def fork_request(id: str, fields: Mapping[str, Any]) -> Request:
    return _keyed_post(f"{session_path(id)}/fork", _without_none(fields), None)


def retry_request(id: str, message_id: str | None) -> Request:
    document = {} if message_id is None else {"message_id": message_id}
    # Idempotent: if it is sent twice, the turn runs twice and is answered once.
    return Request(
        "POST", f"{session_path(id)}/retry", content=json_of(document), headers=_JSON, idempotent=True
    )


def outcome_request(session: str, message_id: str, agent: str | None) -> Request:
    """Return the request for the stored answer to a message, or for its error."""
    path = f"{session_path(session)}/messages/{segment(message_id)}"
    return get_request(path, () if agent is None else (("agent_id", agent),))


def chain_request(session: str, message_id: str, wait_for: str, wait: float) -> Request:
    """Return the request for an answer of the chain that a message starts. The server waits some seconds for it."""
    path = f"{session_path(session)}/messages/{segment(message_id)}"
    return get_request(path, (("wait_for", wait_for), ("wait", f"{wait:g}")))


# Events


def stream_request(params: Iterable[tuple[str, str]], last_event_id: str | None) -> Request:
    headers = {"accept": "text/event-stream", "accept-encoding": "identity"}
    if last_event_id is not None:
        headers["last-event-id"] = last_event_id
    return Request("GET", "/events/stream", tuple(params), headers=headers, idempotent=True)


# Parameters


def filter_params(wanted: Filters) -> list[tuple[str, str]]:
    """Return the filters that lists and streams share. Tags are sent as JSON, which allows any character."""
    session, schema_name = wanted.get("session"), wanted.get("schema_name")
    all_tags, any_tags = _as_list(wanted.get("tags", ())), _as_list(wanted.get("any_tags", ()))
    for text in (session or "", schema_name or "", *all_tags, *any_tags):
        text.encode()  # raise on a lone surrogate here: the error of httpx is less clear
    found = [
        (name, orjson.dumps(tags).decode())
        for name, tags in (("all_tags", all_tags), ("any_tags", any_tags))
        if tags
    ]
    if session is not None:
        found.append(("session_id", session))
    if schema_name is not None:
        found.append(("schema_name", schema_name))
    return found


def list_params(wanted: Listing) -> list[tuple[str, str]]:
    params = filter_params(wanted)
    if since := wanted.get("updated_since"):
        if since.tzinfo is None:
            raise ValueError("updated_since must have a time zone")
        params.append(("updated_since", since.astimezone(UTC).isoformat().replace("+00:00", "Z")))
    if sort := wanted.get("sort"):
        params.append(("sort", sort))
    if wanted.get("include_context", True):
        params.append(("include_context", "true"))
    return params


def event_params(wanted: EventOptions) -> list[tuple[str, str]]:
    params = filter_params(wanted)
    if selector := wanted.get("selector"):
        params.append(("filters", json_of(dict(selector)).decode()))
    return params


# Parts of a request


def segment(text: str) -> str:
    """Return a name, encoded as one segment of a path."""
    text = str(text)
    # `.` and `..` would be treated as a relative path.
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E")


def breadcrumb_path(id: str) -> str:
    return f"/breadcrumbs/{segment(id)}"


def session_path(id: str) -> str:
    return f"/sessions/{segment(id)}"


def if_match(version: int | None) -> dict[str, str]:
    return {} if version is None else {"if-match": f'"{version}"'}


def json_of(document: Any, *, option: int = 0) -> bytes:
    """Encode a document. Raises `InvalidInput` for values that JSON cannot represent, also for NaN and infinity."""
    try:
        encoded = orjson.dumps(document, option=option)
    except orjson.JSONEncodeError as error:
        raise _not_json(f"the value cannot be encoded as JSON: {error}") from None
    # orjson encodes NaN and infinity as null. Most documents contain no null and need no search.
    if b"null" in encoded and (found := find_not_finite(document)) is not None:
        raise _not_json(f"{found}, and JSON has no such number: send null, a string or omit it")
    return encoded


def _not_json(detail: str) -> InvalidInput:
    return InvalidInput({"status": 422, "detail": detail})


def _keyed_post(path: str, document: Mapping[str, Any], idempotency_key: str | None) -> Request:
    headers = {**_JSON, "idempotency-key": idempotency_key or str(uuid4())}
    return Request("POST", path, content=json_of(document), headers=headers, idempotent=True)


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _as_list(values: Iterable[str]) -> list[str]:
    # A string instead of a list is one tag, not a list of its letters.
    return [values] if isinstance(values, str) else list(values)


def _page_size(maximum: int, limit: int | None, given: int) -> str:
    return str(maximum if limit is None else min(maximum, limit - given))


def _cursor_params(cursor: str | None) -> list[tuple[str, str]]:
    return [] if cursor is None else [("cursor", cursor)]
