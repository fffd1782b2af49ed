"""An answer, ready to be sent: status, headers, bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import orjson
from starlette.types import Send

Header: TypeAlias = tuple[bytes, bytes]

JSON: Final = b"application/json"
PROBLEM_JSON: Final = b"application/problem+json"
HTML: Final = b"text/html; charset=utf-8"


class Reply:
    """Starlette's Response does more than we need on the way of every write; this does only that."""

    __slots__ = ("body", "headers", "status")

    def __init__(
        self, status: int, body: bytes = b"", media_type: bytes = JSON, headers: Sequence[Header] = ()
    ) -> None:
        self.status = status
        self.body = body
        self.headers: list[Header] = [*headers]
        if body:
            self.headers.append((b"content-type", media_type))
        if status != 204 and status != 304:
            self.headers.append((b"content-length", b"%d" % len(body)))

    @classmethod
    def json(cls, document: Any, *, status: int = 200, headers: Sequence[Header] = ()) -> Reply:
        return cls(status, orjson.dumps(document), JSON, headers)

    async def send(self, send: Send, *, without_body: bool = False) -> None:
        """`without_body` answers HEAD: the headers are those of GET, the length included."""
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": b"" if without_body else self.body})
