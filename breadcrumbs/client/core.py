"""Requests, answers and retries of a client: everything but the sockets (see effects.py)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar, Unpack
from urllib.parse import parse_qs, quote, urlsplit
from uuid import uuid4

import orjson

from breadcrumbs.client.effects import Item, Lost, Operation, Pause, Reply, Request, Send, Series
from breadcrumbs.client.errors import (
    BreadcrumbsError,
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

T = TypeVar("T")

_PAGE = 500
_LONGEST_WAIT = 5.0
_SHORTEST = 0.05
_LONGEST_RETRY_AFTER = 10.0


class Core:
    """A server, and who we are there."""

    def __init__(self, url: str, *, token: str | None, api_key: str | None, retries: int) -> None:
        self.url = url.rstrip("/")
        # A proxy that is set for the internet cannot reach this machine's own address.
        self.on_this_machine = host_of(self.url) in ("127.0.0.1", "localhost", "::1")
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
        self,
        fields: Mapping[str, Any],
        *,
        session: str | None = None,
        idempotency_key: str | None = None,
        deadline: float | None = None,
    ) -> Operation[Written]:
        document = {name: value for name, value in fields.items() if value is not None}
        document["tags"] = _listed(document.get("tags", ()))
        if session is not None:
            document["tags"].append(SESSION + session)
        reply = yield from self.perform(
            Request(
                "POST",
                "/breadcrumbs",
                body=json_of(document),
                headers={
                    "content-type": "application/json",
                    "idempotency-key": idempotency_key or str(uuid4()),
                },
                repeatable=True,
            ),
            deadline=deadline,
        )
        return self._written(reply)

    def post(
        self, text: str, session: str | None, *, deadline: float | None = None, **message: Unpack[Message]
    ) -> Operation[Written]:
        fields = {
            "schema_name": MESSAGE,
            "title": title_of(text),
            "tags": list(dict.fromkeys(("user:message", *_listed(message.get("tags", ()))))),
            "context": {**(message.get("context") or {}), "message": text},
        }
        key = message.get("idempotency_key")
        return self.create(fields, session=session, idempotency_key=key, deadline=deadline)

    def get(self, id: str, *, full: bool = False) -> Operation[Breadcrumb]:
        reply = yield from self.perform(_get(f"{_path(id)}/full" if full else _path(id)))
        return self.read(reply, breadcrumb_of)

    def history(self, id: str) -> Operation[tuple[Version, ...]]:
        """All versions; a long history comes in several pages."""
        found: list[Version] = []
        cursor: str | None = None
        while True:
            after = [] if cursor is None else [("cursor", cursor)]
            reply = yield from self.perform(_get(f"{_path(id)}/history", after))
            found += self.read(reply, lambda versions: [version_of(version) for version in versions])
            cursor = _next_cursor(reply)
            if cursor is None:
                return tuple(found)

    def update(
        self,
        id: str,
        fields: Mapping[str, Any],
        *,
        expected_version: int | None,
        merge_context: bool,
        repeatable: bool = False,
    ) -> Operation[Written]:
        """`repeatable`: a `VersionMismatch` may then be about our own change, whose answer was lost."""
        media_type = "application/merge-patch+json" if merge_context else "application/json"
        headers = {"content-type": media_type, **_if_match(expected_version)}
        request = Request("PATCH", _path(id), body=json_of(fields), headers=headers, repeatable=repeatable)
        return self._written((yield from self._conditional(request, expected_version)))

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

    def collect(
        self, *, deadline: float | None = None, **wanted: Unpack[Listing]
    ) -> Operation[list[Breadcrumb]]:
        """The same, all at once."""
        params, limit, cursor, found = _listing(wanted), wanted.get("limit"), None, list[Breadcrumb]()
        while limit is None or len(found) < limit:
            page, cursor = yield from self._page(params, cursor, limit, len(found), deadline)
            found += page
            if cursor is None:
                break
        return found

    def _page(
        self,
        params: list[tuple[str, str]],
        cursor: str | None,
        limit: int | None,
        given: int,
        deadline: float | None = None,
    ) -> Operation[tuple[list[Breadcrumb], str | None]]:
        size = _PAGE if limit is None else min(_PAGE, limit - given)
        after = [] if cursor is None else [("cursor", cursor)]
        request = _get("/breadcrumbs", [*params, ("limit", str(size)), *after])
        reply = yield from self.perform(request, deadline=deadline)
        found = self.read(reply, lambda documents: [breadcrumb_of(document) for document in documents])
        return found, _next_cursor(reply)

    def token(self, wanted: TokenRequest) -> Operation[Token]:
        document: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
        if "roles" in document:
            document["roles"] = _listed(document["roles"])
        headers = {"content-type": "application/json"}
        reply = yield from self.perform(
            Request("POST", "/auth/token", body=json_of(document), headers=headers)
        )
        return self.read(reply, _token)

    # Requests

    def perform(self, request: Request, *, deadline: float | None = None) -> Operation[Reply]:
        """Send a request, again where that is safe, and raise what the server refuses.

        `deadline`: until when it may take, on the monotonic clock.
        """
        attempt = 0
        while True:
            left = None if deadline is None else max(_SHORTEST, deadline - time.monotonic())
            last = not request.repeatable or attempt >= self.retries
            failure: BreadcrumbsError
            try:
                reply: Reply = yield Send(request, left)
            except Lost as lost:
                failure, wait = self.unreachable(lost), backoff(attempt)
                failure.__cause__ = lost
            else:
                error = self.refusal(reply, request)
                if error is None:
                    return reply
                failure, wait = error, retry_after(reply) or backoff(attempt)
                last = last or not is_passing(error)
            if last or (deadline is not None and time.monotonic() + wait >= deadline):
                raise failure
            yield Pause(wait)
            attempt += 1

    def _written(self, reply: Reply) -> Written:
        replayed = reply.headers.get("idempotency-replayed") == "true"

        def written(document: Any) -> Written:
            updated_at = datetime.fromisoformat(document["updated_at"])
            return Written(
                id=document["id"], version=document["version"], updated_at=updated_at, replayed=replayed
            )

        return self.read(reply, written)

    def _conditional(self, request: Request, expected_version: int | None) -> Operation[Reply]:
        try:
            return (yield from self.perform(request))
        except VersionMismatch as error:
            error.expected = expected_version or 0
            raise

    def refusal(self, reply: Reply, request: Request) -> ProblemError | None:
        """The error that an answer stands for, if it does."""
        if 200 <= reply.status < 300:
            # A server of something else may well answer everything with a page of its own.
            if "json" in reply.headers.get("content-type", "json"):
                return None
            return self.foreign(reply)
        try:
            document = orjson.loads(reply.body)
        except orjson.JSONDecodeError:
            document = None
        if not isinstance(document, dict) or "detail" not in document:
            return self.foreign(reply, f" with {reply.status} to {request.method} {request.path}")
        try:
            return problem_of({"status": reply.status, **document})
        except (TypeError, ValueError, AttributeError):
            return self.foreign(reply, f" with {reply.status} to {request.method} {request.path}")

    def foreign(self, reply: Reply, how: str = " with something else than was asked for") -> ProblemError:
        """What answers, but not as we know it."""
        return ProblemError(
            {"status": reply.status, "detail": f"{self.url} answered{how}: is this a Breadcrumbs server?"}
        )

    def read(self, reply: Reply, convert: Callable[[Any], T]) -> T:
        """What an answer says."""
        try:
            return convert(orjson.loads(reply.body))
        except (LookupError, TypeError, ValueError, AttributeError):
            raise self.foreign(reply) from None

    def unreachable(self, lost: Lost) -> ServerUnreachable:
        if lost.refused:
            return ServerUnreachable(f"nothing answers at {self.url}. Is it running? Start it with: crumb up")
        if lost.timed_out:
            return ServerUnreachable(f"{self.url} did not answer in time")
        return ServerUnreachable(f"the connection to {self.url} failed: {lost}")


def host_of(url: str) -> str:
    """The host of a server's address; a ValueError where it is none."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts.hostname
    except ValueError:  # a port that is no number, half of an IPv6 address
        pass
    raise ValueError(f"{url!r} is not an address: use one such as {DEFAULT_URL}")


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


def json_of(document: Any, *, option: int = 0) -> bytes:
    try:
        return orjson.dumps(document, option=option)
    except orjson.JSONEncodeError as error:
        raise InvalidInput({"status": 422, "detail": f"this cannot be written as JSON: {error}"}) from None


def _get(path: str, params: Iterable[tuple[str, str]] = ()) -> Request:
    return Request("GET", path, tuple(params), repeatable=True)


def segment(text: str) -> str:
    """A name as one part of a path, whatever it is."""
    text = str(text)
    # A segment of dots alone would be taken for a direction.
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E")


def _path(id: str) -> str:
    return f"/breadcrumbs/{segment(id)}"


def _if_match(version: int | None) -> dict[str, str]:
    return {} if version is None else {"if-match": f'"{version}"'}


def _token(issued: Any) -> Token:
    return Token(
        token=issued["token"],
        owner_id=issued["owner_id"],
        agent_id=issued["agent_id"],
        roles=tuple(issued["roles"]),
        expires_at=datetime.fromtimestamp(issued["exp"], UTC),
        session_id=issued.get("session_id"),
        user_id=issued.get("user_id"),
    )


def _next_cursor(reply: Reply) -> str | None:
    link = reply.headers.get("link", "")
    if 'rel="next"' not in link:
        return None
    target = link.partition("<")[2].partition(">")[0]
    return parse_qs(urlsplit(target).query)["cursor"][0]
