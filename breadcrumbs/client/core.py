"""Requests, answers and retries of a client: everything but the sockets (see effects.py)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Unpack
from urllib.parse import parse_qs, quote, urlsplit
from uuid import uuid4

import orjson

from breadcrumbs.client.effects import Item, Lost, Operation, Pause, Reply, Request, Send, Series
from breadcrumbs.client.errors import (
    InvalidInput,
    ProblemError,
    ServerUnreachable,
    StoreFull,
    VersionMismatch,
    problem_of,
)
from breadcrumbs.client.options import Listing, Message, TokenRequest
from breadcrumbs.client.values import (
    SESSION,
    Breadcrumb,
    Token,
    Version,
    Written,
    breadcrumb_of,
    version_of,
)

DEFAULT_URL = "http://127.0.0.1:8081"
MESSAGE = "user.message.v1"

_PAGE = 500
_LONGEST_WAIT = 5.0
_LONGEST_RETRY_AFTER = 10.0


class Core:
    """A server, and who we are there."""

    def __init__(self, url: str, *, token: str | None, api_key: str | None, retries: int) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an address: use one such as {DEFAULT_URL}")
        # A proxy that is set for the internet cannot reach this machine's own address.
        self.on_this_machine = parts.hostname in ("127.0.0.1", "localhost", "::1")
        self.headers: dict[str, str] = {}
        if token:
            self.headers["authorization"] = f"Bearer {token}"
        elif api_key:
            self.headers["x-api-key"] = api_key
        if not all(value.isascii() and value.isprintable() for value in self.headers.values()):
            raise ValueError("the token or the API key holds characters that no token has")
        self.retries = retries

    # Breadcrumbs

    def create(
        self, fields: Mapping[str, Any], *, session: str | None = None, idempotency_key: str | None = None
    ) -> Operation[Written]:
        document = {name: value for name, value in fields.items() if value is not None}
        document["tags"] = _listed(document.get("tags", ()))
        if session is not None:
            document["tags"].append(SESSION + session)
        reply = yield from self.perform(
            Request(
                "POST",
                "/breadcrumbs",
                body=_json(document),
                headers={
                    "content-type": "application/json",
                    "idempotency-key": idempotency_key or str(uuid4()),
                },
                repeatable=True,
            )
        )
        return _written(reply)

    def post(self, text: str, session: str | None, **message: Unpack[Message]) -> Operation[Written]:
        fields = {
            "schema_name": MESSAGE,
            "title": title_of(text),
            "tags": list(dict.fromkeys(("user:message", *_listed(message.get("tags", ()))))),
            "context": {**(message.get("context") or {}), "message": text},
        }
        return self.create(fields, session=session, idempotency_key=message.get("idempotency_key"))

    def get(self, id: str, *, full: bool = False) -> Operation[Breadcrumb]:
        reply = yield from self.perform(_get(f"{_path(id)}/full" if full else _path(id)))
        return breadcrumb_of(orjson.loads(reply.body))

    def history(self, id: str) -> Operation[tuple[Version, ...]]:
        reply = yield from self.perform(_get(f"{_path(id)}/history"))
        return tuple(version_of(version) for version in orjson.loads(reply.body))

    def update(
        self, id: str, fields: Mapping[str, Any], *, expected_version: int | None, merge_context: bool
    ) -> Operation[Written]:
        media_type = "application/merge-patch+json" if merge_context else "application/json"
        headers = {"content-type": media_type, **_if_match(expected_version)}
        request = Request("PATCH", _path(id), body=_json(fields), headers=headers)
        return _written((yield from self._conditional(request, expected_version)))

    def delete(self, id: str, *, expected_version: int | None) -> Operation[None]:
        request = Request("DELETE", _path(id), headers=_if_match(expected_version))
        yield from self._conditional(request, expected_version)

    def pages(self, **wanted: Unpack[Listing]) -> Series[Breadcrumb]:
        """Every breadcrumb of a list, page by page."""
        params, limit, cursor, given = _listing(wanted), wanted.get("limit"), None, 0
        while limit is None or given < limit:
            page, cursor = yield from self._page(params, cursor, limit, given)
            given += len(page)
            for crumb in page:
                yield Item(crumb)
            if cursor is None:
                return

    def collect(self, **wanted: Unpack[Listing]) -> Operation[list[Breadcrumb]]:
        """The same, all at once."""
        params, limit, cursor, found = _listing(wanted), wanted.get("limit"), None, list[Breadcrumb]()
        while limit is None or len(found) < limit:
            page, cursor = yield from self._page(params, cursor, limit, len(found))
            found += page
            if cursor is None:
                break
        return found

    def _page(
        self, params: list[tuple[str, str]], cursor: str | None, limit: int | None, given: int
    ) -> Operation[tuple[list[Breadcrumb], str | None]]:
        size = _PAGE if limit is None else min(_PAGE, limit - given)
        after = [] if cursor is None else [("cursor", cursor)]
        reply = yield from self.perform(_get("/breadcrumbs", [*params, ("limit", str(size)), *after]))
        return [breadcrumb_of(document) for document in orjson.loads(reply.body)], _next_cursor(reply)

    def token(self, wanted: TokenRequest) -> Operation[Token]:
        document: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
        if "roles" in document:
            document["roles"] = _listed(document["roles"])
        headers = {"content-type": "application/json"}
        reply = yield from self.perform(Request("POST", "/auth/token", body=_json(document), headers=headers))
        issued = orjson.loads(reply.body)
        return Token(
            token=issued["token"],
            owner_id=issued["owner_id"],
            agent_id=issued["agent_id"],
            roles=tuple(issued["roles"]),
            expires_at=datetime.fromtimestamp(issued["exp"], UTC),
            session_id=issued.get("session_id"),
            user_id=issued.get("user_id"),
        )

    # Requests

    def perform(self, request: Request) -> Operation[Reply]:
        """Send a request, again where that is safe, and raise what the server refuses."""
        attempt = 0
        while True:
            last = not request.repeatable or attempt >= self.retries
            try:
                reply: Reply = yield Send(request)
            except Lost as lost:
                if last:
                    raise self.unreachable(lost) from lost
                wait = backoff(attempt)
            else:
                error = self.refusal(reply, request)
                if error is None:
                    return reply
                if last or not is_passing(error):
                    raise error
                wait = retry_after(reply) or backoff(attempt)
            yield Pause(wait)
            attempt += 1

    def _conditional(self, request: Request, expected_version: int | None) -> Operation[Reply]:
        try:
            return (yield from self.perform(request))
        except VersionMismatch as error:
            error.expected = expected_version or 0
            raise

    def refusal(self, reply: Reply, request: Request) -> ProblemError | None:
        """The error that an answer stands for, if it does."""
        if 200 <= reply.status < 300:
            return None
        try:
            document = orjson.loads(reply.body)
        except orjson.JSONDecodeError:
            document = None
        if not isinstance(document, dict) or "detail" not in document:
            return ProblemError(
                {
                    "status": reply.status,
                    "detail": f"{self.url} answered {reply.status} to {request.method} {request.path}: "
                    "is this a Breadcrumbs server?",
                }
            )
        return problem_of({"status": reply.status, **document})

    def unreachable(self, lost: Lost) -> ServerUnreachable:
        if lost.refused:
            return ServerUnreachable(f"nothing answers at {self.url}. Is it running? Start it with: crumb up")
        if lost.timed_out:
            return ServerUnreachable(f"{self.url} did not answer in time")
        return ServerUnreachable(f"the connection to {self.url} failed: {lost}")


def filter_params(
    *,
    session: str | None = None,
    schema_name: str | None = None,
    tags: Iterable[str] = (),
    any_tags: Iterable[str] = (),
) -> list[tuple[str, str]]:
    """The filters that lists and streams share. As JSON, tags mean themselves whatever they look like."""
    every, some = _listed(tags), _listed(any_tags)
    for text in (session or "", schema_name or "", *every, *some):
        text.encode()  # half a character is no text: said here, before it is met deep down on the way
    found = [
        (name, orjson.dumps(given).decode())
        for name, given in (("all_tags", every), ("any_tags", some))
        if given
    ]
    if session is not None:
        found.append(("session_id", session))
    if schema_name is not None:
        found.append(("schema_name", schema_name))
    return found


def is_passing(error: ProblemError) -> bool:
    """Whether the same request may work in a moment."""
    return error.status in (429, 503) and not isinstance(error, StoreFull)


def backoff(attempt: int) -> float:
    """Longer and longer, and not the same for all the clients that lost the same server."""
    return min(_LONGEST_WAIT, 0.2 * float(2**attempt)) * (0.75 + random.random() / 2)  # noqa: S311 - only spreads load


def retry_after(reply: Reply) -> float | None:
    text = reply.headers.get("retry-after", "")
    return min(_LONGEST_RETRY_AFTER, float(text)) if text.isascii() and text.isdigit() else None


def title_of(text: str) -> str:
    """The beginning of a text, in one line."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[:400]).split())
    return line if len(line) <= 80 else line[:79] + "…"


def _listing(wanted: Listing) -> list[tuple[str, str]]:
    params = filter_params(
        session=wanted.get("session"),
        schema_name=wanted.get("schema_name"),
        tags=wanted.get("tags", ()),
        any_tags=wanted.get("any_tags", ()),
    )
    if since := wanted.get("updated_since"):
        if since.tzinfo is None:
            raise ValueError("updated_since needs a time zone")
        params.append(("updated_since", since.astimezone(UTC).isoformat().replace("+00:00", "Z")))
    if sort := wanted.get("sort"):
        params.append(("sort", sort))
    if wanted.get("include_context", True):
        params.append(("include_context", "true"))
    return params


def _listed(words: Iterable[str]) -> list[str]:
    # A lone text is meant as one tag, not as its letters.
    return [words] if isinstance(words, str) else list(words)


def _json(document: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(document)
    except orjson.JSONEncodeError as error:
        raise InvalidInput({"status": 422, "detail": f"this cannot be written as JSON: {error}"}) from None


def _get(path: str, params: Iterable[tuple[str, str]] = ()) -> Request:
    return Request("GET", path, tuple(params), repeatable=True)


def _path(id: str) -> str:
    return f"/breadcrumbs/{quote(str(id), safe='')}"


def _if_match(version: int | None) -> dict[str, str]:
    return {} if version is None else {"if-match": f'"{version}"'}


def _written(reply: Reply) -> Written:
    document = orjson.loads(reply.body)
    return Written(
        id=document["id"],
        version=document["version"],
        updated_at=datetime.fromisoformat(document["updated_at"]),
        replayed=reply.headers.get("idempotency-replayed") == "true",
    )


def _next_cursor(reply: Reply) -> str | None:
    link = reply.headers.get("link", "")
    if 'rel="next"' not in link:
        return None
    target = link.partition("<")[2].partition(">")[0]
    return parse_qs(urlsplit(target).query)["cursor"][0]
